"""``refsim report html``: what its page shows is what the records say, and no text of a record breaks out of it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from parity.cases.selection import find_case
from parity.faults.run import corpus
from parity.report.page import ring, rows, trends, write
from parity.report.results import results_json
from refsim.cli.process import run_command
from refsim.results import KINDS
from tests.parity.report import page_records
from tests.refsim import trace_form
from tests.refsim.helpers import assert_one_sentence


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return page_records.write(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def found(folder):
    return rows.read([folder])


class Scripts(HTMLParser):
    """The scripts of a page: (type, text) of each, as a browser finds their ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[list[str]] = []
        self.urls: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._inside = tag == "script"
        self.urls += [value for name, value in attrs if name in ("src", "href")]
        if self._inside:
            self.found.append([dict(attrs).get("type", ""), ""])

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.found[-1][1] += data


def made(folders) -> dict:
    return write.collect(folders, only_records=True, progress=print)


def test_the_page_is_one_file_and_no_message_ends_its_script(folder):
    text = write.page(made([folder]))
    (kind, data), (_, program) = Scripts(text).found
    assert kind == "application/json" and Scripts(text).urls == []
    assert page_records.HOSTILE in [row["reason"] for row in json.loads(data)["records"]["parity"]]
    assert "</script>" not in data and "paritySection()" in program


def test_programs_of_the_page_make_no_html_of_text():
    programs = "".join(path.read_text(encoding="utf-8") for path in write.FOLDER.glob("*.js"))
    words = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "fetch(",
        "import(",
    )
    assert [word for word in words if word in programs] == []


def test_a_case_has_its_metrics_with_bounds_shares_and_reasons(found):
    passed, failed, skipped = found["parity"]
    assert [row["verdict"] for row in found["parity"]] == ["passed", "failed", "skipped"]
    assert (passed["mesh"], passed["run_machine"]["cpus"]) == ("t3k", 2)
    assert passed["nearest"]["share"] == pytest.approx(0.1) and not any(m["beyond"] for m in passed["metrics"])
    assert all(metric["reason"] for metric in passed["metrics"])
    nan, others = failed["metrics"][0], failed["metrics"][1:]
    assert (nan["name"], nan["value"], nan["share"], nan["beyond"]) == ("rel_rmse", "nan", None, True)
    assert all(m["beyond"] for m in others if m["bound"]) and failed["explanation"]["place"]
    assert skipped["source"].endswith("/results.json")


def test_a_bound_of_another_version_says_so():
    (known,) = (t for t in page_records.thresholds_for("attention", "fp32") if t.metric == "rel_rmse")
    same, other = (
        rows._metric("rel_rmse", 0.0, limit, rows._reasons("attention", "fp32")) for limit in (known.limit, 1.0)
    )
    assert same["reason"] == known.reason and f"(this version allows {known.limit:.3g})" in other["reason"]


@pytest.mark.parametrize(
    ("value", "bound", "share", "beyond"),
    [
        (0, 0, 0.0, False),
        (2, 0, None, True),
        (None, 1.0, None, False),
        (0.5, 2.0, 0.25, False),
        ("inf", 1.0, None, True),
    ],
)
def test_how_much_of_its_bound_a_metric_takes(value, bound, share, beyond):
    metric = rows._metric("m", value, bound, {})
    assert (metric["share"], metric["beyond"]) == (share, beyond)


def test_faults_memory_predictions_and_speed_are_those_of_the_files(found):
    assert [(row["id"], row["verdict"]) for row in found["faults"][1:]] == [
        ("two-heads", "caught"),
        ("late", "survived"),
    ]
    t5, vae = found["memory"]
    assert (t5["stage"], t5["mesh"], t5["peak"], t5["fits"]) == ("t5", "t3k", 2**30, True), "the fullest group counts"
    assert vae["missing"] == "no counterpart" and "peak" not in vae
    assert found["predictions"][0]["total_seconds_range"] == {"low": 9.0, "high": 14.0}
    assert found["speed"][0]["run_machine"] == {"cores": 2}


def test_a_case_leads_to_its_trace_or_to_the_command_that_makes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    case = find_case("attention-n300-sp2-ring-fp32-normal", "cpu")
    record = page_records.record(case)
    others = [{"id": f"{case.id}-seed3", "seed": case.seed + 3}, {"verdict": "skipped"}, {"backend": "ttnn-mock"}]
    run = replace(page_records.parity_run(), records=[record, *(replace(record, **other) for other in others)])
    Path("results").mkdir()
    Path("results/results.json").write_text(results_json(run), encoding="utf-8")
    first, second, *without = (row["trace"] for row in rows.read([Path("results")])["parity"])
    assert without == [None, None]
    assert second["command"].split()[3:] == [case.id, "--seed", "3", "--trace", f"results/{case.id}-seed3.trace.json"]
    assert run_command(shlex.split(first["command"])[1:]) == 0, capsys.readouterr()
    assert write.write(Path("page"), [Path("results")], only_records=True, progress=print)
    data = json.loads(Scripts(Path("page/index.html").read_text(encoding="utf-8")).found[0][1])
    file = Path("page", data["records"]["parity"][0]["trace"]["file"])
    document = trace_form.read(file.read_text(encoding="utf-8"))
    assert "measured" in document["otherData"]["title"] and case.id in document["otherData"]["title"]
    assert trace_form.arrows(document)
    assert run_command([*shlex.split(first["command"])[1:], "--backend", "ttnn-mock"]) == 2


def test_without_records_the_page_has_the_commands_and_no_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(["report", "html", "--only-records", "--out", "page"]) == 0
    data = json.loads(Scripts((tmp_path / "page/index.html").read_text(encoding="utf-8")).found[0][1])
    assert not any(data["records"].values()) and (data["figures"], data["rings"]) == (None, None)
    assert all(data["commands"][kind] == KINDS[kind][1] for kind in data["records"])


def test_a_folder_without_results_is_refused(tmp_path, capsys):
    words = ["report", "html", "--only-records", "--out", str(tmp_path / "page"), "--results", str(tmp_path)]
    assert run_command(words) == 2
    message = capsys.readouterr().err.strip()
    assert "holds no results" in message and not Path(tmp_path, "page").exists()
    assert_one_sentence(message.removeprefix("error: ").partition(";")[0] + ".")


def test_published_figures_stand_beside_predictions_with_their_range(folder, monkeypatch):
    one = write.ranking.Run("m", "1024", "n300", "tp2", "wormhole_b0", 12.0, 10.0, 9.0, 11.0, "somebody")
    monkeypatch.setattr(write.ranking, "runs", lambda progress: [one])
    monkeypatch.setattr(write.ring, "runs", lambda: [])
    (figure,) = write.collect([folder], only_records=False, progress=print)["figures"]
    assert (figure["measured"], figure["low"], figure["high"], figure["inside"]) == (12.0, 9.0, 11.0, False)


@pytest.fixture(scope="module")
def rings():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "SHAPE", (1, 2, 128, 32))
        yield ring.runs()


def test_every_rank_attends_to_four_steps_in_turns_of_the_two_buffers(rings):
    right, _ = rings
    assert right["ranks"] == [0, 1, 2, 3] and right["hazards"] == [] and right["fault"] is None
    for rank in right["ranks"]:
        attended = [bar for bar in right["bars"] if bar["rank"] == rank and bar["lane"] == "attend"]
        assert [(bar["step"], bar["slot"]) for bar in attended] == [(0, "A"), (1, "B"), (2, "A"), (3, "B")]
        received = [bar for bar in right["bars"] if bar["rank"] == rank and bar["lane"] == "receive V"]
        assert [(bar["step"], bar["slot"], bar["peer"]) for bar in received] == [
            (step, slot, (rank - 1) % 4) for step, slot in ((1, "B"), (2, "A"), (3, "B"))
        ]
    assert min(bar["start"] for bar in right["bars"]) == 0
    assert all(bar["end"] >= bar["start"] and not bar["hazards"] for bar in right["bars"])


def test_the_known_fault_marks_the_uses_that_its_hazards_name(rings):
    _, wrong = rings
    fault = corpus("cpu")[ring.KNOWN_FAULT]
    assert wrong["fault"] == {"id": fault.id, "sentence": fault.sentence} and wrong["hazards"]
    assert ring.FAULTY == fault.reference
    assert {bar["slot"] for bar in wrong["bars"]} == {"A"}
    for number, hazard in enumerate(wrong["hazards"]):
        marked = [bar for bar in wrong["bars"] if number in bar["hazards"]]
        assert marked and all(f"of rank {bar['rank']}" in hazard["sentence"] for bar in marked)


def test_a_hazard_marks_the_uses_that_its_sentence_names_and_no_other():
    """The write is a receive of rank 1's; the attention is recorded with K's buffer and reads V's of the slot too."""
    sentence = "rank 0's send of step 3 of ring_attention writes buffer ring.v[0] of rank 1 and rank 1's sdpa of step 2"
    hazard = {"buffer": "buffer ring.v[0] of rank 1", "rank": 1, "sentence": f"{sentence} of ring_attention reads it."}
    common = {"rank": 1, "collective": "ring_attention", "peer": None}
    attends = {**common, "step": 2, "op": "sdpa", "buffer": "ring.k[0]"}
    receives = {**common, "step": 3, "op": "recv", "buffer": "ring.v[0]", "peer": 0}
    assert ring._is_of(attends, hazard) and ring._is_of(receives, hazard)
    others = ({"rank": 2}, {"step": 1}, {"buffer": "ring.k[1]"}, {"op": "send"})
    assert not any(ring._is_of(attends | other, hazard) for other in others)
    others = ({"rank": 2}, {"step": 2}, {"buffer": "ring.k[0]"}, {"op": "send"}, {"peer": 3})
    assert not any(ring._is_of(receives | other, hazard) for other in others)


def test_a_history_is_a_series_per_case_with_a_point_per_commit(tmp_path, capsys):
    found = trends.read(page_records.write_history(tmp_path))
    assert [(len(commit["commit"]), commit["date"][:10]) for commit in found["commits"]][3] == (40, "2026-01-13")
    turned, steady, plan = found["series"]
    assert (turned["at"], turned["verdicts"]) == ([0, 1, 2, 3], ["passed"] * 3 + ["failed"])
    drawn = turned["metrics"]["rel_rmse"]
    assert drawn["metrics"][3] == pytest.approx(60 * drawn["metrics"][0])
    assert drawn["thresholds"][2:] == [4 * limit for limit in drawn["thresholds"][:2]]
    said = [(change["point"], change["metric"], change["loosened"]) for change in turned["worse"]]
    assert sorted(said) == [(2, "rel_rmse", True), (3, "rel_rmse", False), (3, "verdict", False)]
    assert (steady["worse"], plan["at"], plan["predicted_s"], plan["memory_gb"]) == ([], [2, 3], [9.0, 9.0], [9.5, 9.5])
    words = ["report", "html", "--only-records", "--out", str(tmp_path / "page"), "--db"]
    assert run_command([*words, str(tmp_path / "h.sqlite")]) == 0
    data = json.loads(Scripts((tmp_path / "page/index.html").read_text(encoding="utf-8")).found[0][1])
    assert [row["case"] for row in data["trends"]["series"]] == [row["case"] for row in found["series"]]
    capsys.readouterr()
    assert run_command([*words, str(tmp_path / "none")]) == 2 and "does not exist" in capsys.readouterr().err
