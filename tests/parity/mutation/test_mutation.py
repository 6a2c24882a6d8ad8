"""Mutations: what the operators change, what is left alone, the draw, the score, and a few of them run."""

import ast
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from parity.cases import AttentionShape, Layout, make_case
from parity.cases.selection import select
from parity.cli.faults import app
from parity.cli.mutate import backend_of, seconds
from parity.measure.records import Record
from parity.mutation import cache, campaign, child, equivalent, judge, measure, score, tree
from parity.mutation.operators import OPERATORS
from parity.mutation.sites import Mutation, drawn, mutations
from parity.mutation.source import Statement, outside_functions
from refsim.base.errors import UserError
from tests.json_output import loads


def changes(expression, operator):
    """The texts that an operator makes of every part of an expression in a function."""
    source = f"def f():\n    x = {expression}\n"
    return {m.applied(source).splitlines()[1][8:] for m in mutations("a.py", source) if m.operator == operator}


@pytest.mark.parametrize(
    ("operator", "expression", "changed"),
    [
        ("swapped-operands", "a - b", {"(b - a)"}),
        ("other-operator", "a * (b + c)", {"(a / (b + c))", "a * ((b - c))"}),
        ("missing-term", "x * w + bias", {"(x * w)", "bias", "x + bias", "w + bias"}),
        ("rounded-up", "h // 2", {"(-(-h // 2))"}),
        ("off-by-one", "x[start:stop]", {f"x[{b}]" for b in ("start + 1:stop", "start - 1:stop")} | {
            "x[start:stop + 1]", "x[start:stop - 1]"}),
        ("off-by-one", "min(rows, 3)", {"min(rows - 1, 3)", "min(rows, 4)", "min(rows, 2)"}),
        ("wrong-dim", "cat(xs, dim=-1)", {"cat(xs, dim=-2)"}),
        ("wrong-dim", "x.permute((0, 2, 1))", {"x.permute((2, 0, 1))", "x.permute((0, 1, 2))"}),
        ("wrong-dim", 'groups["sp"]', {"groups['tp']"}),
        ("changed-constant", "1e-06", {"1e-05"}),
        ("changed-constant", "f(x, exact=True)", {"f(x, exact=False)"}),
        ("flipped-comparison", "a < b", {"(a <= b)"}),
        ("flipped-comparison", "a is None", {"(a is not None)"}),
        ("negated-condition", "a if c else b", {"(b if c else a)"}),
        ("negated-condition", "[x for x in y if x]", {"[x for x in y]"}),
        ("missing-call", "x.float() * w", {"x * w"}),
        ("missing-call", "torch.clamp(x, 0, 1)", {"x"}),
        ("dropped-argument", "sdpa(q, attn_mask=m, scale=s)", {"sdpa(q, scale=s)", "sdpa(q, attn_mask=m)"}),
        ("swapped-arguments", "f(device, q, k)", {"f(device, k, q)"}),
        ("swapped-arguments", "ttnn.add(x, ttnn.subtract(y, z))", {"ttnn.add(x, ttnn.subtract(z, y))"}),
        ("swapped-arguments", "f(x.transpose(1, 2), y)", {"f(y, x.transpose(1, 2))"}),
        ("reversed-order", "cat([image, prompt])", {"cat([prompt, image])"}),
        ("other-dtype", "x.to(torch.float32)", {"x.to(torch.bfloat16)"}),
        ("other-function", "max(a, b)", {"min(a, b)"}),
        ("other-function", "f(x, approximate='tanh')", {"f(x, approximate='none')"}),
    ],
)  # fmt: skip
def test_an_operator(operator, expression, changed):
    assert changes(expression, operator) == changed


def test_every_operator_is_tried_above():
    tried = {mark.args[1][i][0] for mark in test_an_operator.pytestmark for i in range(len(mark.args[1]))}
    assert tried == set(OPERATORS)


SILENT = '''
"""A: 1."""
from x import y
Pair = tuple[int, int]
Time: TypeAlias = int | Mapping[str, Pair]
def f(a: int = 0) -> tuple[int, int]:
    """2."""
    if a < 1:
        raise ValueError(f"{a + 1}")
    with device.compute("rms_norm", a[0]):
        return a
'''


def test_types_texts_and_refusals_are_left_alone():
    assert {(m.line, m.before, m.after) for m in mutations("a.py", SILENT)} == {(6, "0", "1")}


def test_names_that_are_given_one_value_have_no_order():
    source = "def f():\n    a, b = [], []\n    c, d = x, y\n"
    turned = [m.after for m in mutations("a.py", source) if m.operator == "reversed-order"]
    assert turned == ["(d, c)", "(y, x)"]


def test_a_check_of_a_layout_is_left_out_too():
    """Kind ``placements`` judges what is refused."""
    source = "def f(x):\n    x.require('f', tp=Replicate())\n    return x\n"
    assert "pass" in {m.after for m in mutations("a.py", source) if m.operator == "missing-call"}


def test_every_mutation_of_the_product_is_one_place_and_not_the_program():
    """Of three files of each backend: the text differs, parses, and differs in the lines that the diff shows only."""
    for file in ("refsim/parallel/ring.py", "refsim/layers/norm.py", "tt_impl/parallel/ring.py"):
        source = (tree.ROOT / file).read_text(encoding="utf-8")
        sample = [m for m, _ in zip(drawn({file: source}, 0), range(60), strict=False)]
        assert len(sample) > 30 and len({m.line for m in sample}) > 15
        for mutation in sample:
            changed = mutation.applied(source)
            assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), mutation.id
            assert mutation.runs.first <= mutation.line <= mutation.runs.last, mutation.id
            removed = [line for line in mutation.diff(source).splitlines()[2:] if line.startswith("-")]
            assert all(line[1:] in source.splitlines() for line in removed)


def test_a_default_is_run_by_the_cases_of_its_function():
    source = "def g():\n    return 1\n\n\ndef f(eps=1e-6):\n    return eps\n"
    assert {m.runs for m in mutations("a.py", source) if m.before == "1e-6"} == {Statement(6, 6)}


def test_the_draw_depends_on_the_seed_only_and_takes_every_line_first():
    sources = {"a.py": "def f(x):\n    a = x[0] - 1\n    b = x[1] - 2\n    return a + b\n"}
    orders = [[m.id for m in drawn(sources, seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(orders[2])
    assert len({m.line for m, _ in zip(drawn(sources, 0), range(3), strict=False)}) == 3


def test_wilson():
    """Against the table of Agresti and Coull (1998), and the borders."""
    assert score.wilson(9, 10) == pytest.approx((0.5958, 0.9821), abs=1e-4)
    assert score.wilson(285, 300) == pytest.approx((0.9192, 0.9694), abs=1e-4)
    assert score.wilson(0, 0) == (0.0, 1.0)
    assert score.wilson(30, 30)[1] == 1.0 and score.wilson(30, 30)[0] == pytest.approx(0.8865, abs=1e-4)


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("90s", 90), ("20m", 1200), ("1.5h", 5400)])
def test_times(text, value):
    assert seconds(text, "--budget") == value


@pytest.mark.parametrize("text", ["", "0", "soon", "-3m", "20 minutes", "3d"])
def test_no_times(text):
    with pytest.raises(UserError, match="write it as 90s, 20m or 2h"):
        seconds(text, "--budget")


def test_files_of_two_backends_are_refused():
    assert backend_of(["refsim/a.py"]) == "cpu" and backend_of(["tt_impl/a.py"]) == "ttnn-mock"
    for files in (["refsim/a.py", "tt_impl/a.py"], ["parity/a.py"]):
        with pytest.raises(UserError, match="one of them at a time"):
            backend_of(files)


def test_what_is_proved_equivalent_exists():
    """A proof of a line that was changed since proves nothing."""
    for file, before, after in equivalent.EQUIVALENT:
        source = (tree.ROOT / file).read_text(encoding="utf-8")
        made = mutations(file, source)
        found = [m for m in made if (before, after) in ((m.before, m.after), equivalent.changed_lines(m, source))]
        assert found, (file, before)
        assert all(equivalent.proof(m, source) for m in found)
    assert all(proof.endswith(".") for proof in equivalent.EQUIVALENT.values())


FILE = "refsim/parallel/sdpa.py"
CASE = "attention-n300-sp2-ring-fp32-normal"


@pytest.fixture(scope="module")
def tried(all_forked, copy):
    """Mutations of one file by hand, run by one case: wrong, neutral, hanging, no program, on a line no case runs."""
    source = (tree.ROOT / FILE).read_text(encoding="utf-8")

    def made(before, after, runs=None):
        start = source.encode().index(before.encode())
        line = source[: source.index(before)].count("\n") + 1
        where = runs or Statement(line, line)
        return Mutation(FILE, line, "by-hand", before, after, where, start, start + len(before.encode()))

    everywhere, nowhere = Statement(1, 10_000), Statement(10_001, 10_001)
    limits = {
        made("torch.sigmoid(lse_new - lse)", "torch.sigmoid(lse - lse_new)"): 150,
        made("F.logsigmoid(lse - lse_new)", "F.logsigmoid(-(lse_new - lse))"): 150,
        made("import Device", "import Devise", everywhere): 150,
        made("return self._out.to(self._dtype), self._lse", "return self._lse, self._out", nowhere): 150,
        made("self._started = True", "__import__('time').sleep(60)"): 3,
    }
    asked = measure.Asked([FILE], expr=CASE)
    found = measure.measured(asked, copy, None, lambda case: None)
    judge = campaign.ParityCases(asked, None)
    yield [campaign.attempt(m, copy, found, judge, limit) for m, limit in limits.items()]
    assert (tree.ROOT / FILE).read_text(encoding="utf-8") == source


def test_a_mutation_is_killed_by_the_case_that_executes_it(tried):
    assert [t.verdict for t in tried] == ["killed", "survived", "killed", "unreached", "survived"]
    assert [t.how for t in tried] == ["bound", "", "error", "", ""]
    assert tried[0].by == CASE and "rel_rmse" in tried[0].reason and tried[0].ran == 1
    assert "ImportError" in tried[2].reason and not tried[2].by
    assert tried[4].reason == "no end in 3 s" and tried[4].ran == 0


def test_a_case_that_hangs_is_told_from_time_that_is_over(monkeypatch):
    cases, over = [measure.Executed(name, "passed", "", 2.0) for name in "ab"], child.Ended("no end", out_of_time=True)
    heard = campaign._Heard(cases)
    heard({"case": "a", "verdict": "passed", "reason": "", "error": ""})
    assert heard.outcome(over, FILE) == campaign.Outcome("survived", reason="no end")
    later = campaign.time.monotonic() + 41.0
    monkeypatch.setattr(campaign.time, "monotonic", lambda: later)
    found = heard.outcome(over, FILE)
    assert (found.verdict, found.by, found.how, found.certain) == ("killed", "b", "hung", False)
    assert "the unchanged program takes 2.0 s" in found.reason
    heard({"case": "b", "verdict": "passed", "reason": "", "error": ""})  # what hangs is the end of the process
    assert heard.outcome(over, FILE).verdict == "survived"


ANY = Mutation(FILE, 1, "by-hand", "a", "b", Statement(1, 10_000), 0, 1)
ELSEWHERE = "Traceback ...\nOSError: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("told", "ended", "unchanged", "verdict", "how"),
    [
        ([("failed", "")], "", "", "killed", "bound"),
        ([("failed", f'File "/copy/{FILE}", line 3')], "", None, "killed", "error"),
        ([("failed", ELSEWHERE)], "", "", "killed", "error"),
        ([("failed", ELSEWHERE)], "", "no space", "untold", ""),
        ([], "the process died", "", "killed", "error"),
        ([], "the process died", "the process died", "untold", ""),
        ([], "KeyError: 'an error of the tool'", "KeyError: 'an error of the tool'", "untold", ""),
        ([("passed", "")], "", None, "survived", ""),
    ],
)
def test_what_the_unchanged_program_does_not_survive_kills_nothing(
    told, ended, unchanged, verdict, how, copy, monkeypatch
):
    """``unchanged``: why the case fails on the tree as it is, asked for only where the change is not known to be it."""
    calls = []

    def call(reference, arguments, root, *, limit_s, hear, fresh=False):
        calls.append(arguments["ids"])
        if len(calls) == 2:
            assert unchanged is not None
            hear({"case": "a", "verdict": "failed" if unchanged else "passed", "reason": unchanged, "error": ""})
            return child.Ended()
        for said, error in told:
            hear({"case": "a", "verdict": said, "reason": "because", "error": error})
        return child.Ended(ended)

    monkeypatch.setattr(campaign.child, "call", call)
    found = measure.LineMap([measure.Executed("a", "passed", "", 1.0, {FILE: [1]})])
    tried = campaign.attempt(ANY, copy, found, campaign.ParityCases(measure.Asked([FILE]), None), 60.0)
    assert (tried.verdict, tried.how) == (verdict, how)
    assert len(calls) == 1 or calls[1] == ["a"]
    done = campaign.Campaign(measure.Asked([FILE]), 0, [], [tried], 1.0)
    assert score.summary(done)["score"] == (100.0 if verdict == "killed" else 0.0)
    assert (tried in score.survivors(done)) == (verdict != "killed")


def test_a_machine_without_memory_kills_nothing(monkeypatch):
    said = iter(
        ["rank 1 held 0.2 GB of memory when the machine had 0.2 GB left while it was idle.", "rel_rmse 1 is above"]
    )
    known = [make_case("attention", "attention", Layout("n300", "sp2"), AttentionShape(n=n)) for n in (240, 480)]
    known = [replace(case, id=name) for case, name in zip(known, "ab", strict=True)]
    record = Record.of(known[0], "cpu", 0)
    monkeypatch.setattr(judge, "suite_cases", lambda suite, backend: known)
    monkeypatch.setattr(judge, "run_case", lambda *_: replace(record, verdict="failed", reason=next(said)))
    told = []
    judge.run_cases(told.append, ["a", "b"], "cpu", 0, 10.0, "unused")
    assert [(t["case"], t["verdict"]) for t in told] == [("a", "skipped"), ("b", "failed")]


def test_survivors_and_score_are_told(tried):
    done = campaign.Campaign(measure.Asked([FILE], expr=CASE), 3, [], tried, 10.0)
    assert score.summary(done)["score"] == 40.0 and score.summary(done)["interval_95"] == [11.8, 76.9]
    for told in (score.text(done), score.markdown(done)):
        assert "+    lse.sub_(F.logsigmoid(-(lse_new - lse)))" in told and "no case executes it" in told
        assert "torch.sigmoid(lse - lse_new)" not in told
    assert len(json.loads(score.as_json(done))["mutations"]) == 5


def test_figures_of_documents_are_counted_apart():
    """A changed figure that survives lowers one score alone; the sizes of a model that no library has are figures."""
    source = "CONFIG = {'a': 3}\n_RUN = {'b': 5}\n\n\ndef f(x):\n    return x - 1\n\n\n"
    source += "def g(seconds, steps):\n    return M((Figure(seconds, **_RUN), Figure(12.2)), steps)\n\n\n"
    source += "SPEC = M(g(seconds=7, steps=20), x=f(CONFIG))\n"
    drawn_of = {m.before: m.of_document for m in mutations("refsim/models/sd35/spec.py", source)}
    assert (
        drawn_of["12.2"] and drawn_of["5"] and drawn_of["7"] and not (drawn_of["3"] or drawn_of["20"] or drawn_of["1"])
    )
    drawn_of = {m.before: m.of_document for m in mutations("refsim/models/motif/spec.py", source)}
    assert drawn_of["3"] and drawn_of["20"] and not drawn_of["1"]
    figure, other = (replace(ANY, of_document=known) for known in (True, False))
    tried = [campaign.Tried(figure, "", "survived"), campaign.Tried(other, "", "killed")]
    done = campaign.Campaign(measure.Asked([FILE]), 0, [], tried, 1.0)
    summary = score.summary(done)
    assert summary["score"] == 50.0 and summary["without_documents"]["score"] == 100.0
    assert "1 of them change figures that only a document has" in score.markdown(done)


def test_what_is_asked_for_otherwise_than_by_a_pipeline_is_a_figure():
    """Steps that diffusers' pipeline has, too, are none."""
    source = "A = M(P('sd35-large', steps=20, text=7), P('flux1-dev', steps=28), P('mochi-1', sizes=(1,), text=9))\n"
    drawn_of = {m.before: m.of_document for m in mutations("refsim/models/sd35/spec.py", source)}
    assert drawn_of["20"] and drawn_of["1"] and not (drawn_of["7"] or drawn_of["28"] or drawn_of["9"])


def test_tables_without_an_order_are_not_turned_round():
    source = "A = S(class_names=(X, Y), encoders=(E, F), published=(P(1), P(2)), a=(Figure(1), Figure(2)))\n"
    turned = [m.before for m in mutations("refsim/models/t5/spec.py", source) if m.operator == "reversed-order"]
    assert turned == ["(E, F)"]
    turned = [m.before for m in mutations("refsim/models/t5/encoder.py", source) if m.operator == "reversed-order"]
    assert len(turned) == 4


def test_a_table_is_run_by_the_cases_that_judge_it():
    """What stands outside of functions of a published model's spec, and in a function that is called there."""
    file, (case,) = "refsim/models/flux1/spec.py", select("smoke", "published_flux1_dev")
    assert measure.tables(case, [file, FILE]) == [file] and measure.tables(case, [FILE]) == []
    source = (tree.ROOT / file).read_text(encoding="utf-8")
    lines = outside_functions(source)
    found = measure.LineMap([measure.Executed(case.id, "passed", "", 1.0, {file: lines})])
    at = {m.before: found.executing(file, m.runs) for m in mutations(file, source)}
    assert at["77"] and at["28"] and not at["single == 0"]


def test_the_command_draws_runs_and_writes(tmp_path, all_forked):
    command = ["mutate", "--files", "refsim/parallel/ulysses.py", "-k", "attention-n300-sp2-ulysses", "--count", "3"]
    done = CliRunner().invoke(app, [*command, "--seed", "1", "--least", "0", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    told = loads("faults mutate", done.stdout)
    assert told == json.loads((tmp_path / "mutation.json").read_text())
    assert told["summary"]["mutations"] == 3 and len(told["mutations"]) == 3
    assert "# Mutation testing" in (tmp_path / "mutation.md").read_text()


def test_a_large_budget_leaves_a_mutation_more_time():
    assert campaign.Limits.of(30, 60).each_s == 60
    assert campaign.Limits.of(1, 1200).each_s == 1200
    assert campaign.Limits.of(300, 6 * 3600) == campaign.Limits(300, 6 * 3600, 288)


def test_the_next_case_is_the_one_most_unlike_those_before():
    """Quick cases of one kind wait for a slower one of another; of equal ones the quickest is next."""
    alike = [measure.Executed(f"a-n300-tp2-{n}", "passed", "", 0.1 * n, {FILE: [1]}) for n in (1, 2, 3)]
    other = measure.Executed("b-t3k-sp8-1", "passed", "", 0.6, {FILE: [1, 2]})
    turns = campaign.in_turn([*alike, other], FILE)
    assert [case.case for case in turns] == ["a-n300-tp2-1", "b-t3k-sp8-1", "a-n300-tp2-2", "a-n300-tp2-3"]
    assert campaign.in_turn([], FILE) == []


def test_checkpoints_are_kept_for_the_next_process(tmp_path):
    """A folder is there whole or not at all, and stays where a runner would drop it."""
    with cache.CachedStore(tmp_path) as store:
        folder = store.folder("sd35_tiny64", 0)
        made = (folder / "config.json").stat().st_mtime_ns
        store.drop("sd35_tiny64", 0)
    with cache.CachedStore(tmp_path) as store:
        assert store.folder("sd35_tiny64", 0) == folder and (folder / "config.json").stat().st_mtime_ns == made
    assert [path.name for path in tmp_path.iterdir()] == ["sd35_tiny64-0"]
