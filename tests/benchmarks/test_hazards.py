"""``refsim bench hazards``: what it prints for programs is what its schema says, from runs on ranks."""

from __future__ import annotations

from benchmarks import hazards
from parity.cases import AttentionShape, Layout, make_case
from refsim.cli.process import run_command
from tests.json_output import loads


def test_a_record_holds_shares_ratios_and_their_quartiles(capsys, monkeypatch):
    small = make_case("attention", "attention", Layout("n300", "sp2"), AttentionShape(heads=2, n=64, text=5))
    monkeypatch.setattr(hazards, "FULL_LENGTH", small)
    monkeypatch.setattr(hazards, "SMOKE", ())
    monkeypatch.setattr(hazards, "ENOUGH_S", 0.0)
    assert run_command(["bench", "hazards", "--pairs", "2", "--json"]) == 0
    (record,) = loads("bench hazards", capsys.readouterr().out)["records"]
    assert record["case"] == small.id and record["pairs"] == 2
    assert record["counted"]["uses"] > 0 and 0 < record["counted"]["share"] < 1
    for name in ("cpu", "wall"):
        low, high = record[name]["quartiles"]
        assert 0 < low <= record[name]["ratio"] <= high and record[name]["without_s"] > 0
    costs = {name: hazards.WithHazards(**record[name]) for name in ("cpu", "wall")}
    assert f"{small.id}: wall with / without" in hazards.text(hazards.HazardCost(**record | costs))
