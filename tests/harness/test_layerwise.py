"""A torch module beside a TTNN program: the layer that goes wrong is named, and nothing that is only fused."""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from refsim.base.errors import UserError
from tests import warm
from tests.harness import words
from tests.harness.conftest import HAS_TTNN, REASON
from tests.tt_impl.worker import ROOT, launch

LIKE_THE_RIGHT_ONE = ("returned", "a part returned")
pytestmark = pytest.mark.skipif(not HAS_TTNN, reason=REASON)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ran = launch("tests.harness.beside", folder=tmp_path_factory.mktemp("beside"))
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.strip().splitlines()[-1])


def test_a_right_program_is_in_line_everywhere(compared: dict[str, Any]) -> None:
    rows = compared[""]["rows"]
    blocks = [f"{i}{part}" for i in range(2) for part in (".norm", ".up", ".act", ".down", "")]
    assert [row[0] for row in rows] == [*blocks, "(module)"]
    assert all(state == "ok" and pcc > 0.9999 and error < 0.006 for _, state, _, pcc, error, _ in rows)
    assert [row[2] for row in rows[:4]] == ["ttnn.layer_norm", "ttnn.linear", "ttnn.gelu", "ttnn.add"]
    assert rows[1][5] == "dim 2 over axis 0, dim 3 over axis 1"


@pytest.mark.parametrize(
    ("mistake", "layer", "op"),
    [
        ("epsilon", "1.norm", "ttnn.layer_norm"),  # PCC 0.9998
        ("bias", "1.up", "ttnn.linear"),
        ("activation", "1.act", "ttnn.relu"),  # PCC 0.998
        ("order", "1.down", "ttnn.add"),
        ("all_reduce", "1.down", "ttnn.add"),
        ("scale", "1", "ttnn.add"),  # after the layer that is right
    ],
)
def test_the_layer_with_the_mistake_is_named(compared: dict[str, Any], mistake: str, layer: str, op: str) -> None:
    found = compared[mistake]
    assert found["first"] == layer and found["place"].startswith(f"{op} at tests/harness/beside.py:")
    states = [row[1] for row in found["rows"]]
    assert states[-1] == "OUT OF LINE" and set(states[:-1]) == {"ok"}
    assert f"{layer} is the first layer out of line: PCC " in found["text"]


def test_a_fused_activation_is_no_mistake(compared: dict[str, Any]) -> None:
    rows = {row[0]: row for row in compared["fused"]["rows"]}
    assert compared["fused"]["first"] is None
    assert [rows[f"{i}.up"][1] for i in (0, 1)] == ["?", "?"] and rows["1.act"][1:3] == ["ok", "ttnn.linear"]
    assert "9 layers in line, 2 without a counterpart" in compared["fused"]["text"]


def test_what_the_program_gives_back_is_compared(compared: dict[str, Any]) -> None:
    *_, (layer, state, op, pcc, error, how) = compared["returned"]["rows"]
    assert (layer, state, op, how) == ("(returned)", "ok", None, "as returned") and pcc > 0.9999 and error < 0.006
    assert compared["returned twice as large"]["first"] == "(returned)"
    assert compared["a part returned"]["rows"][-1][0] == "(module)"


def test_taps_are_binding(compared: dict[str, Any]) -> None:
    assert compared["tapped"]["first"] is None
    assert compared["wrong tap"]["first"] == "1.up" and "ttnn.gelu" in compared["wrong tap"]["place"]


def test_a_program_whose_end_fits_nothing_is_not_in_line(compared: dict[str, Any]) -> None:
    """It was compared with nothing, so nothing says that it is right."""
    found = compared["another shape"]
    assert found["first"] == "(module)" and {row[1] for row in found["rows"][:-1]} == {"-"}
    assert found["text"].endswith("(module) has no counterpart: no result of the program has the elements of 2x64x64.")


def test_comparisons_word_for_word(compared: dict[str, Any]) -> None:
    """Figures to a tenth: processors round differently."""
    text = words.by_source(
        "\n\n".join(found["text"] for name, found in compared.items() if name not in LIKE_THE_RIGHT_ONE)
    )
    words.check("compared.txt", re.sub(r"\d+\.\d{2,}", lambda figure: f"{float(figure[0]):.1f}", text))


def test_example(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    ran = warm.run("examples/compare_with_torch.py", "--bug", cwd=ROOT, env=environment)
    assert ran.returncode == 1, ran.stderr[-2000:]
    assert (
        "act is the first layer out of line" in ran.stdout
        and "ttnn.relu at examples/compare_with_torch.py:" in ran.stdout
    )


@pytest.mark.parametrize(
    ("shape", "parts", "mesh", "how"),
    [
        ((2, 4, 4), lambda x: [x[..., :2], x[..., 2:], x[..., :2], x[..., 2:]], (2, 2), "dim 2 over axis 1"),
        (
            (2, 4, 4),
            lambda x: [x[:, :2] / 4, x[:, 2:] / 4, x[:, :2] * 0.75, x[:, 2:] * 0.75],
            (2, 2),
            "summed over axis 0, dim 1 over axis 1",
        ),
        ((2, 4, 4), lambda x: [x[:, :2], x[:, 2:]], (2, 2), "dim 1 over axis 1"),  # devices of another mesh are a row
        ((2, 4, 4), lambda x: [x, x], (1, 2), "whole on each"),
        ((2, 4, 4), lambda x: [x.reshape(2, 4, 2, 2).permute(0, 2, 1, 3)], (1, 1), "heads joined"),
        ((2, 4, 4), lambda x: [x.reshape(8, 4)], (1, 1), "reshaped"),
        ((1, 4, 4), lambda x: [x[None]], (1, 1), "whole on each"),
        ((4, 4), lambda x: [x.reshape(1, 4, 1, 4)], (1, 1), "whole on each"),
        ((1, 3, 4, 5), lambda x: [x.permute(0, 2, 3, 1)], (1, 1), "NHWC"),
        ((2, 3, 4, 5), lambda x: [x.permute(0, 2, 3, 1).reshape(2, 1, 20, 3)], (1, 1), "NHWC rows"),
    ],
)
def test_parts_are_joined(shape: tuple[int, ...], parts: Any, mesh: tuple[int, int], how: str) -> None:
    from tt_impl.harness.comparison.compose import wholes

    x = torch.randn(shape)
    fitting = [w.how for w in wholes(parts(x), mesh, x.shape) if torch.allclose(w.value, x.reshape(-1))]
    assert fitting == [how]


def waves() -> list[torch.Tensor]:
    """Seven tensors of ones and minus ones that have nothing to do with each other."""
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    return [row.reshape(2, 4) for row in torch.kron(torch.kron(two, two), two)[1:]]


A, B, C, D, ELSE, NOISE, _ = waves()
"""What the layers a to d give, what none of them gives, and an error as large as a layer."""


def judged(*results: torch.Tensor, taps: dict[str, str] | None = None) -> tuple[str, str, Any]:
    """Return every layer's state and the number of its operation, the sentence, and the rows."""
    from tt_impl.harness.comparison.layerwise import _Judge, _Limits, compare
    from tt_impl.harness.comparison.taps import Result

    by_default = inspect.signature(compare).parameters
    limits = _Limits(*(by_default[name].default for name in ("pcc", "error", "jump")))

    made = [Result(f"ttnn.op{i}", f"program.py:{i}", [value], (1, 1)) for i, value in enumerate(results)]
    found = _Judge(list(zip("abcd", (A, B, C, D), strict=True)), made, taps or {}, limits).comparison()
    told = " ".join(row.state + (row.result.op[-1] if row.result else "") for row in found.rows)
    return told, found.sentence, found.rows


@pytest.mark.parametrize(
    ("results", "told"),
    [
        ((A, B, C, D), "ok0 ok1 ok2 ok3"),
        ((A, ELSE, B, ELSE, C, D), "ok0 ok2 ok4 ok5"),
        ((A, B, C, B, D), "ok0 ok1 ok2 ok4"),
        # of a wrong one the place is the result that is nearest to it, between its neighbours
        ((A, ELSE, B + ELSE, ELSE, ELSE), "ok0 OUT OF LINE2"),
        ((A, B + 0.7 * ELSE, C + 9, D + 9), "ok0 OUT OF LINE1"),
        ((B + ELSE, A, B + 2 * ELSE, C + 9, D + 9), "ok1 OUT OF LINE2"),
        ((A, B + 0.3 * NOISE, C + NOISE, D + NOISE), "ok0 OUT OF LINE1"),
        # what fits nothing was fused, where the next ones are as right as those before
        ((A, B + ELSE, C, D), "ok0 ?1 ok2 ok3"),
        ((A, B + 2 * ELSE, C, B + ELSE, D), "ok0 ?1 ok2 ok4"),
        ((A, B + 0.3 * NOISE, C, D), "ok0 ?1 ok2 ok3"),
        ((A, ELSE, C + 0.019 * NOISE, D), "ok0 ?0 ok2 ok3"),
        ((A, B + ELSE, C + 0.021 * NOISE, D), "ok0 OUT OF LINE1"),
        ((A + 0.01 * NOISE, B + ELSE, C + 0.039 * NOISE, D), "ok0 ?1 ok2 ok3"),
        ((A + 0.01 * NOISE, B + ELSE, C + 0.041 * NOISE, D), "ok0 OUT OF LINE1"),
        ((A[:1], B, C, D), "?1 ok1 ok2 ok3"),
        ((A[:1], B[:1], C[:1], D), "?3 ?3 ?3 ok3"),
        ((A + 2 * ELSE, B + 0.019 * NOISE, C, D), "?0 ok1 ok2 ok3"),
        ((A + 2 * ELSE, B + 0.021 * NOISE, C, D), "OUT OF LINE0"),
        # an error of rounding is no jump, and more than eight times the worst before is, although it fits
        ((A + 0.001 * NOISE, B + 0.049 * NOISE, C, D), "ok0 ok1 ok2 ok3"),
        ((A + 0.001 * NOISE, B + 0.051 * NOISE, C + 0.051 * NOISE, D), "ok0 ?1 ?2 ok3"),
        ((A + 0.001 * NOISE, B + 0.051 * NOISE, C + 0.051 * NOISE, D + 0.051 * NOISE), "ok0 OUT OF LINE1"),
        ((A + 0.01 * NOISE, B + 0.079 * NOISE, C + 0.079 * NOISE, D), "ok0 ok1 ok2 ok3"),
        ((A + 0.01 * NOISE, B + 0.081 * NOISE, C + 0.081 * NOISE, D + 0.081 * NOISE), "ok0 OUT OF LINE1"),
        # limits of correlation and of size
        ((A + 0.01 * NOISE, B + 0.079 * NOISE, C * 1.19, D * 0.81), "ok0 ok1 ok2 ok3"),
        ((A + 0.01 * NOISE, B + 0.079 * NOISE, C * 1.21, D * 1.21), "ok0 ok1 OUT OF LINE2"),
        ((A + 0.02 * NOISE, B + 0.142 * NOISE, C, D), "ok0 ok1 ok2 ok3"),
        ((A + 0.02 * NOISE, B + 0.143 * NOISE, C + 0.143 * NOISE, D + 0.143 * NOISE), "ok0 OUT OF LINE1"),
        ((A * 1.19, B * 1.19, C * 1.19, D * 1.19), "OUT OF LINE0"),
    ],
)  # fmt: skip
def test_which_layer_is_out_of_line(results: tuple[torch.Tensor, ...], told: str) -> None:
    assert judged(*results)[0] == told


def test_sentences_and_figures() -> None:
    right = (A, B, C, D)
    assert judged(*right)[1] == "4 layers in line, 0 without a counterpart of their own."
    assert judged(A, B + ELSE, C, D)[1] == "3 layers in line, 1 without a counterpart of their own."
    _, sentence, rows = judged(A, B + 0.3 * NOISE, C + NOISE, D + NOISE)
    assert sentence == "b is the first layer out of line: PCC 0.95783, error 0.300, ttnn.op1 at program.py:1."
    assert (rows[0].error, rows[0].pcc, len(rows)) == (0.0, pytest.approx(1.0), 2)
    assert judged(*right, taps={"b": "op1", "c": "program.py:2"})[0] == "ok0 ok1 ok2 ok3"
    assert judged(*right, taps={"b": "op2"})[0] == "ok0 OUT OF LINE2"
    with pytest.raises(UserError, match=r"^no operation 'op1' gives as many elements as layer b; tap another one\.$"):
        judged(A, B[:1], C, D, taps={"a": "op0", "b": "op1"})


@pytest.mark.parametrize(
    ("a", "b", "pcc", "error"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1.0, 0.0),
        ([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], 1.0, 1.0),
        ([1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], -1.0, 2.0),
        ([1.0, 2.0, 2.0], [2.0, 2.0, 1.0], -0.5, 2**0.5 / 3),
        ([0.0, 0.0], [0.0, 0.0], 1.0, 0.0),
        ([0.0, 0.0], [0.0, 1.0], 0.0, float("inf")),
        ([3.0, 3.0], [3.0, 3.0], 1.0, 0.0),
        ([3.0, 3.0], [3.0, 6.0], 0.0, 3 / 18**0.5),
        ([1.0, 2.0], [1.0, float("nan")], 0.0, float("inf")),
        ([1.0, 2.0], [1.0, float("inf")], 0.0, float("inf")),
    ],
)
def test_how_well_a_result_fits(a: list[float], b: list[float], pcc: float, error: float) -> None:
    from tt_impl.harness.comparison.layerwise import fitted

    fit = fitted(torch.tensor(a), torch.tensor(b), "so")
    assert (fit.pcc, fit.error, fit.how) == (pytest.approx(pcc), pytest.approx(error), "so")


def test_channels_last() -> None:
    from tt_impl.harness.comparison.compose import wholes

    x = torch.randn(2, 3, 4, 5)
    rows = x.permute(0, 2, 3, 1).reshape(1, 1, 40, 3)
    assert "NHWC rows" in [w.how for w in wholes([rows], (1, 1), x.shape) if torch.equal(w.value, x.reshape(-1))]
    assert list(wholes([rows], (1, 1), torch.Size((7, 3)))) == []


def test_no_parts_are_no_whole() -> None:
    from tt_impl.harness.comparison.compose import wholes

    assert list(wholes([torch.zeros(0, 4)], (1, 1), torch.Size((0, 4)))) == []


@pytest.mark.parametrize(
    ("ratio", "state", "sentence"),
    [
        (1.0, "ok", "2 layers in line, 0 without a counterpart of their own."),
        (1.5, "OUT OF LINE", "(returned) is the first layer out of line: PCC 1.00000, error 0.500, no operation."),
    ],
)
def test_what_is_returned_is_judged_by_itself(ratio: float, state: str, sentence: str) -> None:
    from tt_impl.harness.comparison.layerwise import Comparison, Row, _append_returned, _Limits

    comparison = Comparison([Row("(module)", (2, 4), "ok", None, "whole", 1.0, 0.0)])
    _append_returned(comparison, A, (A * ratio).reshape(4, 2).bfloat16(), _Limits(0.99, 0.2, 8.0))
    row = comparison.rows[-1]
    assert (row.layer, row.shape, row.state, row.how, comparison.sentence) == (
        "(returned)", (4, 2), state, "as returned", sentence,
    )  # fmt: skip
    assert comparison.first is (None if state == "ok" else row)
    assert comparison.text().splitlines()[1].startswith("(module)    2x4    1.00000  0.00000  ok ")
    assert comparison.text().splitlines()[0] == "layer       shape  PCC      error    " + " " * len(state) + (
        "  operation  parts"
    )


@pytest.mark.parametrize(
    ("layers", "first"),
    [
        ([("a", "ok"), ("(module)", "?"), ("(returned)", "ok")], None),
        ([("a", "ok"), ("(module)", "?"), ("(module) (2)", "-")], "(module) (2)"),
        ([("a", "ok"), ("(module)[0]", "?"), ("(module)[1]", "ok")], None),
        ([("a", "-"), ("b", "-")], "b"),
        ([("a", "-"), ("b", "ok")], None),
    ],
)
def test_an_end_that_nothing_fits_is_refused(layers: list[tuple[str, str]], first: str | None) -> None:
    from tt_impl.harness.comparison import layerwise

    comparison = layerwise.Comparison([layerwise.Row(name, (2,), state) for name, state in layers])
    layerwise._refuse_an_end_that_nothing_fits(comparison)
    states = [state for _, state in layers]
    assert comparison.ok == (first is None)
    if comparison.first is not None:
        assert comparison.first.layer == first
        states[-1] = "OUT OF LINE"
    assert [row.state for row in comparison.rows] == states


@pytest.mark.parametrize(("pcc", "error", "holds"), [(0.5, 0.25, True), (0.49, 0.25, False), (0.5, 0.26, False)])
def test_limits_hold_at_their_end(pcc: float, error: float, holds: bool) -> None:
    from tt_impl.harness.comparison.layerwise import _Fit, _Limits

    assert _Limits(0.5, 0.25, 8.0).hold(_Fit(pcc, error, "")) == holds


@pytest.mark.parametrize(
    ("pcc", "error", "weight"), [(1.0, 0.0, 1.0), (1.0, 0.5, 0.5), (0.5, 0.49, 0.5**8), (-1.0, 0.0, 0.0)]
)
def test_weights_of_fits(pcc: float, error: float, weight: float) -> None:
    from tt_impl.harness.comparison.layerwise import _Fit

    assert _Fit(pcc, error, "").weight == weight


def test_places_of_a_sample() -> None:
    from tt_impl.harness.comparison.layerwise import _places

    assert torch.equal(_places(4096), torch.arange(4096))
    some = _places(4097)
    assert some.shape == (4096,) and torch.equal(some, _places(4097)) and len(set(some.tolist())) < 3000


def test_of_several_ways_to_join_parts_the_best_counts() -> None:
    """Of equal correlation that of the smaller error: replicas are no summands."""
    from tt_impl.harness.comparison.layerwise import _Judge, _Limits
    from tt_impl.harness.comparison.taps import Result

    made = [Result("ttnn.op", "a.py:1", parts, (1, 2)) for parts in ([A, A], [B / 4, B * 0.75])]
    rows = _Judge([("a", A), ("b", B)], made, {}, _Limits(0.99, 0.2, 8.0)).comparison().rows
    assert [(row.state, row.how, row.error) for row in rows] == [
        ("ok", "whole on each", 0.0), ("ok", "summed over axis 1", 0.0),
    ]  # fmt: skip


def test_layers_by_name_and_turn() -> None:
    """A layer that runs twice has its turn, several tensors their places; numbers and nothing are none."""
    from tt_impl.harness.comparison.taps import layers_of

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.nn.Identity()

        def forward(self, x: torch.Tensor) -> Any:
            y = self.part(self.part(x) + 1)
            return y, torch.arange(3), x[:0], {"more": [x]}

    module = Twice()
    layers = layers_of(module, A)
    assert [name for name, _ in layers] == ["part", "part (2)", "(module)[0]", "(module)[1]"]
    for (_, found), wanted in zip(layers, (A, A + 1, A + 1, A), strict=True):
        assert torch.equal(found, wanted)
    assert not module._forward_hooks and not module.part._forward_hooks


def test_ways_to_call() -> None:
    from tt_impl.harness.comparison.taps import call

    def function(x: Any, y: Any = 0) -> Any:
        return x, y

    assert (
        call(function, A) == (A, 0) and call(function, [1, 2]) == (1, 2) and call(function, {"y": 3, "x": 4}) == (4, 3)
    )


def test_results_that_can_be_put_beside_layers() -> None:
    """Numbers of which somebody knows the values; nothing is said of the others."""
    from types import SimpleNamespace

    from tt_impl.harness.comparison.taps import Result, _append
    from tt_impl.mock.storage.errors import ShadowError

    def values(tensor: Any) -> Any:
        if isinstance(tensor.known, Exception):
            raise tensor.known
        return tensor.known

    results: list[Result] = []
    shadow: Any = SimpleNamespace(values=values)
    for known in ([], [A, B], [A.int()], ShadowError("nobody knows.")):
        mesh = SimpleNamespace(shape=(1, 2))
        _append(results, "ttnn.add", "a.py:1", SimpleNamespace(known=known, device=lambda mesh=mesh: mesh), shadow)
    assert results == [Result("ttnn.add", "a.py:1", [A, B], (1, 2))]
    for name, called in (("ttnn.add", True), ("add", True), ("dd", False), ("a.py:1", True), ("py:11", False)):
        assert results[0].is_called(name) == called


@pytest.mark.parametrize("there", [True, False])
def test_results_of_calls_on_devices(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls that took tensors, those that still lie on devices; by the shadow that is there, else by a new one."""
    from contextlib import contextmanager
    from types import SimpleNamespace

    from tt_impl.harness.comparison import taps

    shadows = {"old": SimpleNamespace(values=lambda one: [A]), "new": SimpleNamespace(values=lambda one: [B])}
    log = SimpleNamespace(events=[])
    handlers: list[Any] = []

    @contextmanager
    def intercepted(handler: Any, first: bool) -> Any:
        handlers.append((handler, first))
        yield
        handlers.pop()

    @contextmanager
    def shadow_values() -> Any:
        yield shadows["new"]

    def made(number: int, on_device: bool = True, allocated: bool = True) -> Any:
        mesh = SimpleNamespace(shape=(1, number)) if on_device else None
        return SimpleNamespace(device=lambda: mesh, is_allocated=lambda: allocated)

    def program(x: Any, y: Any) -> Any:
        assert [first for _, first in handlers] == [True, True] and handlers[1][0] is log
        for number, (inputs, outcome) in enumerate(
            (([], [made(1)]), ([1], [made(2), made(3, allocated=False), made(4, False), made(5)]), ([1], []))
        ):
            log.events.append(SimpleNamespace(inputs=inputs, op=f"ttnn.op{number}", where=f"a.py:{number}"))
            call = SimpleNamespace(proceed=lambda outcome=outcome: outcome)
            assert handlers[0][0](call) is outcome
        return x, y

    monkeypatch.setattr(taps, "installed", lambda kind: shadows["old"] if there and kind is taps.Shadow else None)
    monkeypatch.setattr(taps, "shadow_values", shadow_values)
    monkeypatch.setattr(taps, "EventLog", lambda shadow: log if shadow is shadows["old" if there else "new"] else None)
    monkeypatch.setattr(taps, "intercepted", intercepted)
    monkeypatch.setattr(taps, "on_device", lambda one: one.device() is not None)
    monkeypatch.setattr(taps, "tensors_in", lambda outcome: outcome)
    results, returned = taps.results_of(program, (3, 4))
    value = [A if there else B]
    assert results == [taps.Result("ttnn.op1", "a.py:1", value, (1, number)) for number in (2, 5)]
    assert returned == (3, 4) and handlers == []


def test_what_is_returned_has_the_elements_of_the_module_s_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from tt_impl.harness.comparison import layerwise
    from tt_impl.harness.comparison.taps import Result

    class First(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[:1]

    results = [Result("ttnn.add", "a.py:1", [A], (1, 1)), Result("ttnn.slice", "a.py:2", [A[:1]], (1, 1))]
    for returned, appended in ((A[:1], True), (A, False)):
        monkeypatch.setattr(layerwise, "results_of", lambda *_, returned=returned: (results, returned))
        rows = layerwise.compare(First(torch.nn.Identity()), print, A, show=None).rows
        assert [row.layer for row in rows] == ["0", "(module)", *["(returned)"] * appended]


def test_names_of_layers_in_a_refusal() -> None:
    from tt_impl.harness.comparison.layerwise import _some

    assert _some([(str(i), A) for i in range(8)]) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert _some([(str(i), A) for i in range(9)]) == "0, 1, 2, 3, 4, 5, 6, 7, ..."


@pytest.mark.parametrize(
    ("returned", "rows"),
    [(A, ["0", "(module)", "(returned)"]), (A[:1], ["0", "(module)"]), ([A], ["0", "(module)"])],
)
def test_what_is_compared(returned: Any, rows: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program gives back only if it is one tensor with as many elements as the module's."""
    from tt_impl.harness.comparison import layerwise
    from tt_impl.harness.comparison.taps import Result

    results = [Result("ttnn.add", "a.py:1", [A], (1, 1))]

    def results_of(program: Any, inputs: Any) -> Any:
        assert program is print and inputs is A
        return results, returned

    monkeypatch.setattr(layerwise, "results_of", results_of)
    module = torch.nn.Sequential(torch.nn.Identity())
    shown: list[str] = []
    found = layerwise.compare(module, print, A, show=shown.append)
    assert [row.layer for row in found.rows] == rows and found.ok and shown == [found.text()]
    assert layerwise.compare(module, print, A, taps={"0": "add"}, show=None).ok and len(shown) == 1
    with pytest.raises(UserError, match=r"^taps names '1', which is no layer; choose one of 0, \(module\)\.$"):
        layerwise.compare(module, print, A, taps={"0": "add", "1": "add"})
    results.clear()
    with pytest.raises(UserError, match="ran no operation on a device"):
        layerwise.compare(module, print, A)
