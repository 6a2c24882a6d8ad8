"""The schemas of ``--json``: every command that has it, real outputs, and what is missing or unknown in one."""

import json
from pathlib import Path

import pytest
import typer
from pydantic import ValidationError
from typer.testing import CliRunner

from parity.measure.thresholds import CALIBRATION
from refsim.base.errors import UserError
from refsim.cli.app import app, mount
from refsim.cli.result_schemas import RESULTS, schema_of
from refsim.files.keys import Loose
from refsim.files.tables import as_csv
from tests.json_output import loads

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
CHEAP = [
    ["schedules", "policy", "upstream", "--ranks", "2", "--seeds", "2"],
    ["explain", "--mesh", "n300", "--parallel", "sp2"],
    ["parity", "list", "-k", "attention and n300"],
]


def commands(group, words=()):
    """The commands that are shown and have ``--json``."""
    for name, command in getattr(group, "commands", {}).items():
        if not command.hidden:
            yield from commands(command, (*words, name))
    if any("--json" in parameter.opts for parameter in group.params):
        yield " ".join(words)


def test_every_command_with_json_has_a_schema():
    mount()
    assert set(commands(typer.main.get_command(app))) == RESULTS.keys()
    assert all(schema_of(command) for command in RESULTS)


def test_what_every_command_prints_is_read_by_a_test():
    """Those of ``CHEAP`` here, the others beside the tests of what they do."""
    texts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    here = {" ".join(words[:count]) for words in CHEAP for count in (1, 2)}
    assert [name for name in RESULTS if name not in here and f'loads("{name}", ' not in texts] == []


def test_the_stored_floors_are_what_the_schema_says():
    """``refsim parity floors --json`` prints what it stores."""
    assert loads("parity floors", CALIBRATION.read_text(encoding="utf-8"))["floors"]


@pytest.mark.parametrize("words", CHEAP, ids=lambda words: " ".join(words[:2]))
def test_what_a_command_prints_is_what_its_schema_says(words):
    mount()
    printed = CliRunner().invoke(app, [*words, "--json"]).stdout
    assert loads(" ".join(words[: 1 + (words[1] in ("policy", "list"))]), printed)


@pytest.mark.parametrize("file", sorted((REPORTS / "ttnn_memory").glob("*.json")), ids=lambda file: file.stem)
def test_what_ttnn_allocated_is_what_the_schema_says(file):
    assert loads("memory", file.read_text())["groups"]


@pytest.mark.parametrize("change", [{"more": 1}, {"fits": "yes"}, {"fits": None}], ids=lambda change: str(change))
def test_a_key_that_is_unknown_missing_or_wrong_is_found(change):
    row = json.loads((REPORTS / "ttnn_memory/t3k-cfg2_sp2_tp2.json").read_text()) | change
    row = {name: value for name, value in row.items() if value is not None}
    with pytest.raises(ValidationError, match=next(iter(change))):
        loads("memory", json.dumps(row))


def test_the_command_prints_json_schema_the_page_and_what_there_is():
    shown = json.loads(CliRunner().invoke(app, ["schema", "schedules", "replay"]).stdout)
    assert shown["properties"]["failures"]["items"] == {"$ref": "#/$defs/ScheduleFailure"}
    page = CliRunner().invoke(app, ["schema", "--markdown"]).stdout
    assert [line[10:] for line in page.split("\n") if line.startswith("## refsim ")] == list(RESULTS)
    assert "| `devices` | list of DeviceShare |" in page and "\n| *`ttnn`* | InTtnn |" in page
    assert CliRunner().invoke(app, ["schema"]).stdout.split("\n")[:-1] == list(RESULTS)
    with pytest.raises(UserError, match="'meshs' prints no JSON; choose one of meshes, run"):
        CliRunner().invoke(app, ["schema", "meshs"], catch_exceptions=False)


def test_a_line_of_csv_says_no_schema():
    assert as_csv([Loose({"a": {"b": 1}, "c": [2]})]) == "a.b,c\n1,[2]\n"
