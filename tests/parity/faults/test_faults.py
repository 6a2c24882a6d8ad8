"""The corpus of faults: every one is told apart, a survivor and a false alarm fail the run, what PCC misses is seen."""

import sys
from collections import Counter
from contextlib import nullcontext

import pandas as pd
import pytest
from typer.testing import CliRunner

from parity.cli import faults as cli
from parity.cli.faults import app
from parity.faults import run, summary
from parity.faults.around import around, at, instead, together
from parity.faults.ref_cases import RING
from parity.faults.registry import FAULTS, fault, register
from refsim.base.errors import UserError
from tests.json_output import loads

FAMILIES = {
    "merge",
    "joint",
    "padding",
    "order",
    "precision",
    "affine",
    "seam",
    "rare",
    "decoder",
    "reduction",
    "weights",
    "tables",
    "buffers",
    "schedule",
    "configuration",
    "decoding",
}
PCC_MISSES = "answer-scaled or lse-in-bf16 or one-stale-copy or released-early or cfg-branches-in-turn or border-keys"


def test_the_corpus_is_large_and_covers_the_families():
    count = Counter(f.family for f in run.corpus("cpu").values())
    assert count.keys() == FAMILIES
    assert len(run.corpus("cpu")) >= 60
    assert len(run.corpus("ttnn-mock")) >= 20


@pytest.mark.parametrize("name", sorted(run.corpus("cpu")))
def test_a_fault_says_what_it_is(name):
    known = FAULTS[name]
    assert known.id == name
    assert known.sentence.endswith(".")
    assert known.sentence[0].isupper() or known.sentence.startswith("logical_n")


def test_two_faults_of_one_name_are_refused():
    known = next(iter(run.corpus("cpu").values()))
    with pytest.raises(ValueError, match="two faults"):
        register(known)


def test_what_whole_tensor_pcc_misses_is_caught(tmp_path):
    table = tmp_path / "records.csv"
    words = ["run", "-k", PCC_MISSES, "--out", str(tmp_path), "--csv", str(table), "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    told = loads("faults run", (tmp_path / "faults.json").read_text())
    assert told["summary"]["caught"] == told["summary"]["faults"] == 6
    assert len(told["summary"]["missed_by_pcc_0.999"]) == 6
    assert "| answer-scaled | cpu |" in (tmp_path / "faults.md").read_text()
    missed = {r["id"]: r["missed_by"] for r in told["records"]}
    assert "one_minus_pcc" in missed["answer-scaled"]
    assert "rel_rmse" in missed["one-stale-copy"]
    written = pd.read_csv(table)
    for name in ("id", "verdict"):
        assert list(written[name]) == [record[name] for record in told["records"]]


@pytest.fixture
def harmless():
    """A fault that changes nothing, and so survives."""

    @fault("rare", "Nothing is wrong.", case=RING)
    def harmless_fault():
        return nullcontext()

    globals()["harmless_fault"] = harmless_fault
    yield "harmless-fault"
    del FAULTS["harmless-fault"], globals()["harmless_fault"]


def test_a_survivor_is_told_and_fails_the_run(harmless):
    records = run.run("cpu", [harmless])
    assert [r.verdict for r in records] == ["passed", "survived"]
    assert summary.summary(records).survived == [harmless]
    assert not summary.summary(records).good
    assert "SURVIVED" in summary.markdown(records)


def test_a_false_alarm_fails_the_run(monkeypatch):
    monkeypatch.setattr(run.traces, "check", lambda trace, layout: {"trace_wrong_axis": 1})
    records = run.run("cpu", ["answer-scaled"])
    assert [r.verdict for r in records] == ["false alarm", "caught"]
    assert not summary.summary(records).good


def test_buffer_faults_leave_a_hazard_or_are_refused():
    records = run.run("cpu", [name for name, known in run.corpus("cpu").items() if known.family == "buffers"])
    for record in records:
        if record.kind == "fault":
            assert record.error or record.metrics["hazards"] > 0, record.id


def test_an_expression_that_matches_nothing_is_one_sentence():
    result = CliRunner().invoke(app, ["run", "-k", "no_such_fault"])
    assert "no fault matches" in str(result.exception)


def test_a_backend_s_faults_are_listed_and_an_unknown_backend_is_refused():
    listed = CliRunner().invoke(app, ["list", "--backend", "ttnn-mock", "-k", "kqv"])
    assert listed.exit_code == 0 and "ttnn-qkv-order-kqv" in listed.stdout, listed.output
    refused = CliRunner().invoke(app, ["list", "--backend", "tpu"])
    assert "choose one of cpu, ttnn-mock, both" in str(refused.exception)


def test_parts_of_the_corpus_are_the_whole():
    chosen = cli._chosen("both", None)
    parts = [cli._part(chosen, f"{number}/3") for number in (1, 2, 3)]
    for backend, ids in chosen.items():
        assert sorted(name for part in parts for name in part[backend]) == sorted(ids)


def test_a_part_that_there_is_not_is_refused():
    with pytest.raises(UserError, match="such as 1/3"):
        cli._part(cli._chosen("cpu", None), "4/3")


class Base:
    def size(self):
        return 1


class Shape(Base):
    rows = 2

    @staticmethod
    def double(x):
        return 2 * x

    @classmethod
    def of(cls, rows):
        made = cls()
        made.rows = rows
        return made

    def whole(self):
        return self.size() * self.double(self.rows)


def test_a_patch_replaces_what_it_names_and_is_undone():
    """Methods, also inherited ones, static and class methods, values."""
    before = dict(vars(Shape))
    with around(Shape, "size", lambda original, self: original(self) + 10), instead(Shape, "rows", 3):
        assert Shape().whole() == 66
    with together(
        around(Shape, "double", lambda original, x: original(x) + 1),
        around(Shape, "of", lambda original, rows: original(rows + 1)),
    ):
        assert Shape.of(4).whole() == 11
    assert Shape.of(4).whole() == 8 and vars(Shape) == before


def test_a_patch_within_a_function_lasts_as_long_as_it_runs():
    wrong = at(f"{__name__}:Shape.double", within=f"{__name__}:Shape.whole")(lambda original, x: original(x) * 100)
    with pytest.raises(ZeroDivisionError), wrong():
        assert (Shape().whole(), Shape.double(2)) == (400, 4)
        raise ZeroDivisionError
    assert Shape().whole() == 4


def parts():
    """What the modules of refsim and their classes hold, by module, class and name."""
    modules = [(name, module) for name, module in sys.modules.items() if name.partition(".")[0] == "refsim"]
    classes = [(f"{name}:{k}", v) for name, m in modules for k, v in vars(m).items() if isinstance(v, type)]
    return {f"{name}.{k}": id(v) for name, owner in [*modules, *classes] for k, v in vars(owner).items()}


def part_of(name):
    """What one of the names of ``parts`` holds; None if there is none."""
    owner_name, _, k = name.rpartition(".")
    module, _, its_class = owner_name.partition(":")
    owner = vars(sys.modules[module])
    if its_class:
        owner = vars(owner[its_class]) if isinstance(owner.get(its_class), type) else {}
    return id(owner[k]) if k in owner else None


def test_every_fault_changes_the_program_and_is_undone():
    faults = run.corpus("cpu").values()
    for known in faults:
        with known.inject():
            pass  # which imports what it is put into
    before = parts()
    for known in faults:
        with known.inject():
            changed = [name for name, part in parts().items() if before.get(name) != part]
            assert changed, known.id
        assert [name for name in changed if before.get(name) != part_of(name)] == [], known.id
    assert parts() == before
