"""One model priced twice, by class: sums are kept, and what is listed makes up what differs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim.timing.predict.replay import Ran
from refsim.timing.report.side_by_side import APART, CLASSES, described, side_by_side

RANS = st.lists(
    st.builds(
        Ran,
        kind=st.sampled_from([*CLASSES, "conv"]),
        name=st.sampled_from(["a", "b", "c"]),
        inputs=st.just(((1, 1, 33, 64), (1, 1, 64, 70))),
        ns=st.floats(0, 1e9),
        count=st.integers(1, 50),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(RANS, RANS, st.floats(0, 1e4), st.integers(1, 100))
def test_classes_add_up_and_the_listed_operations_make_up_what_differs(reference, ttnn, gap_ns, forwards):
    rows = side_by_side(reference, ttnn, gap_ns, forwards)
    for side, programs in (("reference", reference), ("ttnn", ttnn)):
        took = sum(ran.count * (ran.ns + gap_ns) for ran in programs) * forwards / 1e9
        assert sum(getattr(row, f"{side}_s") for row in rows) == pytest.approx(took)
    for row in rows[:-1]:
        apart = abs(row.ttnn_s - row.reference_s)
        listed = sum(abs(op["ttnn_s"] - op["reference_s"]) for op in row.ops)
        assert (row.ops == []) == (apart <= APART * row.reference_s)
        assert listed >= apart * (1 - APART - 1e-9) or not row.ops


def test_both_sides_name_what_is_the_same_alike():
    """Rows in whole tiles, names of several years, a fused gather that only says what it computes."""
    here = Ran("matmul", "all_gather + linear", ((2, 333, 600), (1824, 2432)), 1.0)
    there = Ran("matmul", "AllGatherMinimalMatmulAsyncOp", ((1, 2, 352, 608), (1, 1, 1824, 2432)), 1.0)
    assert described(here) == described(there) == "704x2432x1824"
    names = ("all_gather", "AllGatherAsyncDeviceOperation")
    assert len({described(Ran("collective", name, ((1, 333, 64),), 1.0)) for name in names}) == 1
    assert described(Ran("collective", "gather_weights", (), 1.0)) == "gather_weights"
