"""Cases under seeded schedules: same bits; what differs, hazards and failures come with the command to replay them."""

import shlex

import pytest
import torch
from typer.testing import CliRunner

from parity.cases import AttentionShape, Layout, make_case
from parity.cli.schedules import app
from parity.run import cpu, schedules
from refsim.base.errors import RankFailure, UserError
from refsim.runtime.launch import Result
from refsim.runtime.watch.hazards import Hazard
from tests.json_output import loads

CASE = "attention-t3k-sp4_tp2-ring-block-fp32-fa_rand-chunks48x20"
HAZARD = Hazard("write-after-write", "rank 0's send and rank 1's send both write buffer k of rank 2.", "k", 2)


def result(x: float = 1.0, value: int = 0, hazards=()) -> Result:
    return Result([{"digest": 0}, {"digest": value}], {"out": torch.tensor([1.0, x])}, {}, [], hazards=list(hazards))


class Runner:
    """Answers by seed; None is the undisturbed run."""

    def __init__(self, answers):
        self.answers = answers

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def drop(self, case, seed):
        pass

    def simulate(self, case, seed, *, delay):
        answer = self.answers.get(delay and delay[0], result())
        if isinstance(answer, Exception):
            raise answer
        return answer


def explore(answers, seeds=3):
    case = make_case("attention", "attention", Layout("n300", "sp2"), AttentionShape())
    return schedules.explore(Runner(answers), case, list(range(seeds)))


def test_the_same_bits_under_every_schedule_pass():
    outcome = explore({})
    assert outcome.verdict == "passed"
    assert outcome.schedules == 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (result(x=1.0 + 2**-23), "out differs from the undisturbed run in 1 bytes"),
        (result(x=float("nan")), "out differs from the undisturbed run in 2 bytes"),
        (result(value=1), "what ranks 1 report differs from the undisturbed run"),
        (result(hazards=[HAZARD]), str(HAZARD)),
        (RankFailure("rank 3 made no progress.", rank=3), "rank 3 made no progress."),
    ],
    ids=["bit", "nan", "other_rank", "hazard", "hang"],
)
def test_a_schedule_that_goes_wrong_is_found_and_can_be_replayed(answer, said):
    outcome = explore({1: answer})
    assert outcome.failures == [schedules.ScheduleFailure(1, [said])]
    assert outcome.replay == [f"refsim schedules replay {outcome.case} --seed 1"]


def test_a_hazard_of_the_undisturbed_run_fails_too():
    assert explore({None: result(hazards=[HAZARD])}).failures == [schedules.ScheduleFailure(None, [str(HAZARD)])]


def test_a_case_too_big_for_the_machine_is_skipped_aloud(monkeypatch):
    monkeypatch.setattr(schedules, "missing_memory", lambda case: "needs 99 GiB")
    outcome = explore({})
    assert (outcome.verdict, outcome.reason, outcome.schedules) == ("skipped", "needs 99 GiB", 0)
    monkeypatch.setattr(cpu, "CpuRunner", lambda: Runner({}))
    ran = CliRunner().invoke(app, ["run", "-k", CASE])
    assert (ran.exit_code, ran.stdout.startswith("0 passed, 0 failed, 1 skipped")) == (1, True)


def test_the_replay_command_carries_what_is_not_the_default():
    command = schedules.replay_command("a-b", 4, "full", 0.05)
    assert shlex.split(command)[3:] == ["a-b", "--seed", "4", "--suite", "full", "--longest", "50"]


@pytest.mark.parametrize("answer", [None, RankFailure("rank 1 died.", rank=1)], ids=["passes", "fails"])
def test_the_commands_tell_and_their_exit_codes_too(monkeypatch, answer):
    answers = {5: answer} if answer else {}
    monkeypatch.setattr(cpu, "CpuRunner", lambda: Runner(answers))
    ran = CliRunner().invoke(app, ["run", "-k", CASE, "--schedules", "3", "--seed", "4", "--json"])
    assert ran.exit_code == bool(answer)
    (record,) = loads("schedules run", ran.stdout)
    assert (record["case"], record["schedules"], record["verdict"]) == (CASE, 3, "failed" if answer else "passed")
    if answer:
        assert record["failures"] == [{"seed": 5, "reasons": ["rank 1 died."]}]
        (command,) = record["replay"]
        again = CliRunner().invoke(app, shlex.split(command)[2:])
        assert (again.exit_code, "rank 1 died." in again.stdout) == (1, True)
    replayed = CliRunner().invoke(app, ["replay", CASE, "--seed", "5", "--json"])
    told = loads("schedules replay", replayed.stdout)
    assert (replayed.exit_code, told["verdict"], told["schedules"]) == (
        record["verdict"] == "failed",
        record["verdict"],
        1,
    )
    assert told["failures"] == record["failures"]


def test_a_case_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match="has no case 'nothing'"):
        CliRunner().invoke(app, ["replay", "nothing", "--seed", "1"], catch_exceptions=False)


@pytest.mark.parametrize(
    "case", [CASE, "attention-t3k_1x8-sp8-ring-fp32-normal", "attention-t3k-sp4_tp2-usp_r2u2-fp32-normal"]
)
def test_the_simulator_keeps_its_bits(case):
    from parity.cases.suites import suite_cases

    (chosen,) = (known for known in suite_cases("smoke") if known.id == case)
    with cpu.CpuRunner() as runner:
        outcome = schedules.explore(runner, chosen, [0, 1, 2])
    assert outcome.verdict == "passed", outcome.failures
    assert outcome.schedules == 3
