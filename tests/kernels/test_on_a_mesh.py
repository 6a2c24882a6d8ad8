"""TT-Lang kernels in programs on the mock: operations on each device's values, contained and told apart."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("ttl") is None or importlib.util.find_spec("ttnn") is None:
    pytest.skip("tt-lang-sim or ttnn is not installed: no TT-Lang kernel ran on the mock", allow_module_level=True)

from tests.tt_impl.worker import Case, Ran, cases_of, run_cases
from tt_impl.harness.pytest import verdicts
from tt_impl.mock.ttlang import module, simulator
from tt_impl.run.launch import Worker

CASES = cases_of("ttlang")


@pytest.fixture(scope="module")
def ran(worker: Worker) -> Ran:
    return run_cases(worker, CASES, "bh-qb-1x4")


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_case(case: Case, ran: Ran) -> None:
    error = ran.outcomes[case].error
    assert error is None, error


def test_they_are_evidence_of_their_own() -> None:
    from collections import Counter

    assert verdicts.passed(Counter({"ttnn.add": 1, "ttl.kernel": 1}), Counter(), True) == verdicts.KERNELS
    assert verdicts.passed(Counter({"ttl.kernel": 1}), Counter({"ttnn.sin": 1}), True) == verdicts.FALLBACK


def test_they_have_no_price() -> None:
    from types import SimpleNamespace

    from tt_impl.harness.reports.cost import summary
    from tt_impl.mock.log.events import Event

    events = [Event(number, "ttl.scaled_sum", "program.py:1", []) for number in range(2)]
    session = SimpleNamespace(log=SimpleNamespace(events=events), meter=SimpleNamespace(meshes={}))
    told = [{"device_op": "ttl.scaled_sum", "reason": "a TT-Lang kernel", "count": 2}]
    assert summary(session, [])["unpriced"] == told


@pytest.mark.parametrize(
    ("files", "words"),
    [((), "tt-lang-sim, and that is not installed"), (("ttl_api.py",), "compiler is installed")],
    ids=["nothing", "the_compiler"],
)
def test_without_the_simulator_a_program_is_told(files, words, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "ttl"
    if files:
        folder.mkdir()
        for name in ("__init__.py", *files):
            (folder / name).write_text("")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(ImportError, match=words), module.served():
        import ttl  # noqa: F401


def test_a_module_of_that_name_that_is_no_tt_lang_is_left_alone(tmp_path, monkeypatch) -> None:
    (tmp_path / "ttl.py").write_text("mine = True")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert simulator.find() is None
    with module.served():
        import ttl

        assert ttl.mine
