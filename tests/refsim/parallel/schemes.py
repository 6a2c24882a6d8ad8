"""The attention schemes under test, by an id that says mesh, factors and scheme."""

from __future__ import annotations

import torch

from refsim.api import attention_result
from refsim.runtime.launch import Result
from tests.refsim.helpers import TIMEOUT_S, real_rows

SCHEMES: dict[str, dict] = {
    "n150-serial": {"mesh": "n150", "scheme": "ring"},
    "n300-ring2": {"mesh": "n300", "scheme": "ring"},
    "n300-ulysses2": {"mesh": "n300", "scheme": "ulysses"},
    "qb_1x4-ring4": {"mesh": "bh-qb-1x4", "scheme": "ring"},
    "t3k_1x8-ring8": {"mesh": "t3k-1x8", "scheme": "ring"},
    "t3k_1x8-ulysses8": {"mesh": "t3k-1x8", "scheme": "ulysses"},
    "t3k_1x8-usp_ring2_ulysses4": {"mesh": "t3k-1x8", "scheme": "usp", "ring": 2, "ulysses": 4},
    "t3k_1x8-usp_ring4_ulysses2": {"mesh": "t3k-1x8", "scheme": "usp", "ring": 4, "ulysses": 2},
    "t3k-sp2tp4-ring": {"mesh": "t3k", "scheme": "ring", "parallel": "sp2_tp4"},
    "t3k-sp4tp2-ring_line": {"mesh": "t3k", "scheme": "ring", "parallel": "sp4_tp2"},
    "t3k-sp4tp2-ulysses": {"mesh": "t3k", "scheme": "ulysses", "parallel": "sp4_tp2"},
    "t3k-sp4tp2-usp_ring2_ulysses2": {
        "mesh": "t3k",
        "scheme": "usp",
        "parallel": "sp4_tp2",
        "ring": 2,
        "ulysses": 2,
    },
    "t3k-usp_ring2@0_ulysses4@1": {"mesh": "t3k", "scheme": "usp", "ring": 2, "ulysses": 4},
    "t3k-usp_ring4@1_ulysses2@0": {"mesh": "t3k", "scheme": "usp", "ring": 4, "ulysses": 2},
    "t3k-cfg2sp2tp2-ring": {"mesh": "t3k", "scheme": "ring", "parallel": "cfg2_sp2_tp2"},
    "loudbox-sp4tp2-ring": {"mesh": "bh-loudbox", "scheme": "ring", "parallel": "sp4_tp2"},
}
RINGS = [name for name in SCHEMES if "ring" in name]
ULYSSES = [name for name in SCHEMES if "ulysses" in name]
# one of every kind, where a test is about something else than the kind
SOME = [
    "t3k_1x8-ring8",
    "t3k_1x8-ulysses8",
    "t3k-sp4tp2-ring_line",
    "t3k-usp_ring2@0_ulysses4@1",
    "t3k-usp_ring4@1_ulysses2@0",
    "t3k-sp4tp2-usp_ring2_ulysses2",
]


def attend(tensors: dict[str, torch.Tensor], scheme: str, **options) -> Result:
    """Attention by the scheme of that id."""
    # the bounds of these tests are for what a scheme rounds, not for what a kernel does
    return attention_result(tensors, **{"timeout_s": TIMEOUT_S, "math": "reference", **SCHEMES[scheme], **options})


def answer(tensors: dict[str, torch.Tensor], scheme: str, **options) -> dict[str, torch.Tensor]:
    """out, lse and joint_out of the real rows."""
    n = tensors["q"].shape[2]
    return real_rows(attend(tensors, scheme, **options).tensors, n, options.get("logical_n") or n)


def assert_same_bits(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == want[name].dtype
        assert torch.equal(got[name], want[name]), name
