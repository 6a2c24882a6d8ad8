"""``refsim explain``: what every device holds agrees with the groups, the schedule and the memory account."""

import xml.etree.ElementTree as ET

import pytest
from typer.testing import CliRunner

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.cli.app import app
from refsim.cli.commands.explain_layout import layout_of
from refsim.cli.commands.explain_svg import svg
from tests.json_output import loads

SVG = "{http://www.w3.org/2000/svg}"


def explain(*arguments):
    result = CliRunner().invoke(app, ["explain", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def large():
    return loads("explain", explain("sd35-large", "--mesh", "t3k", "--parallel", "cfg2_sp2_tp2", "--json"))


def test_every_device_has_its_rows_and_heads(large):
    rank5 = large["devices"][5]
    assert (rank5["coord"], rank5["cfg"], rank5["sp"], rank5["tp"]) == ([1, 1], 0, 1, 1)
    assert (rank5["token_rows"], rank5["heads"]) == ([2048, 4096], [19, 38])
    held = {(tuple(d["token_rows"]), tuple(d["heads"])) for d in large["devices"] if d["cfg"] == 0}
    assert len(held) == 4


def test_buffers_are_those_of_the_account_and_hold_one_shard_each(large):
    total = sum(buffer["slots"] * buffer["bytes"] for buffer in large["buffers"])
    assert total == large["per_device"]["buffer_bytes"]
    assert {buffer["bytes"] for buffer in large["buffers"]} == {19 * 2048 * 64 * 2}


def test_bytes_per_step_follow_the_collective(large):
    by_name = {}
    for row in large["collectives"]:
        by_name.setdefault(row["name"], row)
    assert by_name["ring_attention"]["count"] == 38
    assert by_name["ring_attention"]["bytes_per_step"] == by_name["ring_attention"]["bytes"] == 2 * 19 * 2048 * 64 * 2
    assert by_name["reduce_scatter"]["bytes_per_step"] * 2 == by_name["reduce_scatter"]["bytes"] == 2048 * 2432 * 2


@pytest.mark.parametrize(
    ("mesh", "parallel", "member", "shards"),
    [
        ("bh-qb-1x4", "sp4", 1, [[1], [0], [3], [2]]),
        ("t3k", "sp4@1_tp2@0", 1, [[1], [0, 2], [3]]),
        ("t3k", "sp4@1_tp2@0", 0, [[0], [1], [2], [3]]),
    ],
)
def test_the_order_of_a_ring_and_of_a_line(mesh, parallel, member, shards):
    found = layout_of(RunOptions.of(mesh=mesh, parallel=parallel))
    assert [step["shards"] for step in found.ring[member]["steps"]] == shards
    assert found.ring[member]["steps"][0]["from"] == []


def test_who_sends_is_the_neighbour():
    found = layout_of(RunOptions.of(mesh="t3k", parallel="sp4@1_tp2@0"))
    assert [step["from"] for step in found.ring[1]["steps"]] == [[], [0, 2], [2]]


def test_the_picture_has_every_device_and_every_hop(tmp_path):
    text = explain("--mesh", "bh-loudbox", "--parallel", "sp4@1_tp2@0", "--svg", str(tmp_path / "x.svg"))
    assert "ring member 0 (rank 0) attends to shards 0 | 3 (from rank 3)" in text
    root = ET.parse(tmp_path / "x.svg").getroot()
    words = " ".join(element.text or "" for element in root.iter(f"{SVG}text"))
    assert all(f"rank {rank} " in words for rank in range(8))
    arrows = [p for p in root.iter(f"{SVG}path") if p.get("marker-end")]
    assert len(arrows) == 2 * 4  # two rings of four hops
    line = ET.fromstring(svg(layout_of(RunOptions.of(mesh="t3k", parallel="sp4@1_tp2@0"))))
    assert len([p for p in line.iter(f"{SVG}path") if p.get("marker-end")]) == 2 * 6  # three hops both ways


def test_one_device_and_no_ring():
    assert "ring member" not in explain("--mesh", "n150")


def test_a_configuration_that_does_not_fit_is_one_sentence():
    with pytest.raises(UserError, match="would work"):
        layout_of(RunOptions.of(mesh="t3k", parallel="sp3"))
