"""Public bugs: each replay exists and shows its bug, and the page says how many are found."""

from pathlib import Path

import pytest

from parity.faults.run import FAULTS, corpus, run
from parity.policies.operations import Fabric
from parity.policies.program import program
from parity.policies.proof import prove
from parity.report.public_bugs import BUGS, markdown, replayed
from tests.refsim.runtime.test_hazards import FOUND

ROOT = Path(__file__).resolve().parents[3]
DOC = ROOT / "docs" / "public_bugs.md"
PROGRAMS = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests/harness/programs").glob("*.py")))
"""Programs of TTNN with a mistake each."""


@pytest.mark.parametrize("bug", replayed(), ids=lambda bug: bug.thread)
def test_a_replay_shows_its_bug(bug):
    """Faults are run by their own session, which fails for one that nothing catches; here they have to be in it."""
    if bug.kind == "policy":
        fabric = Fabric(split=True, workers=True) if bug.replay == "no_wait" else Fabric()
        assert prove(program(bug.replay, 4, 3, fabric=fabric))
    elif bug.kind == "fault":
        assert bug.replay in FAULTS
    elif bug.kind == "finding":  # tests/harness/test_findings.py wants it to be named
        kind = bug.note.removeprefix("finding ")
        assert f'    "{bug.replay}": ("{kind}", ' in PROGRAMS
    elif bug.kind == "check":
        assert f'"{bug.replay}"' in (ROOT / "tests/harness/test_findings.py").read_text(encoding="utf-8")
    elif bug.kind == "pipeline":  # benchmarks/programs runs it, for minutes
        assert (ROOT / "benchmarks/programs/drive" / f"{bug.replay}.py").is_file()
    else:
        assert bug.replay in FOUND


def test_the_page_says_what_catches_a_fault():
    """Of the faults of refsim; those of the TTNN programs need ttnn, and run in a session of their own."""
    notes = {bug.replay: bug.note for bug in replayed() if bug.kind == "fault" and bug.replay in corpus("cpu")}
    assert len(notes) == 14
    for record in run("cpu", notes):
        by = [exceeded.metric for exceeded in record.caught_by]
        if record.kind == "clean":
            assert record.verdict == "passed", record
        elif notes[record.id] == "the parity metrics":
            assert any(not metric.startswith("trace_") for metric in by), record
        elif notes[record.id] == "the trace":
            assert any(metric.startswith("trace_") for metric in by), record
        else:
            assert notes[record.id] == "refused: a semaphore is never reached"
            assert not by and "semaphore" in record.error, record


def test_what_is_not_found_says_why():
    assert all(bug.note for bug in BUGS)
    assert all(not bug.replay for bug in BUGS if not bug.kind)
    assert len({bug.thread for bug in BUGS}) == len(BUGS)


def test_the_page_is_the_table():
    assert len(replayed()) == 27
    assert DOC.read_text(encoding="utf-8").endswith(markdown())
