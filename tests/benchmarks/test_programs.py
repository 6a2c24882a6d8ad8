"""``python -m benchmarks.programs``: what published programs say of themselves is read, and failures have an owner."""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace

import pytest

from benchmarks.programs import campaign, checkpoints
from tt_impl.harness.pytest import verdicts


def _row(category: str, **more: object) -> campaign.Row:
    return campaign.Row("test_x.py", campaign.DFLASH, "bh-qb-1x4", category, "why", 3, 1, 0, 2.5, 0.5, **more)


def test_comparisons_are_read() -> None:
    assert campaign._checks("a PCC=0.9\ncheck: latents PCC: 0.99996\ncheck: same tokens: yes\n") == {
        "latents PCC": "0.99996",
        "same tokens": "yes",
    }
    assert campaign._checks("small: PCC=0.999995 PASS\nlarge: PCC=0.998 PASS\n") == {"lowest PCC": "0.998000"}
    assert campaign._checks("nothing") == {}


@pytest.mark.parametrize(
    ("category", "whose"),
    [
        *((verdicts.KERNELS, "-"), (verdicts.ENVIRONMENT, "not here"), (verdicts.RULE, "ours")),
        *((verdicts.ERROR, "open"), (verdicts.TIMEOUT, "open")),
    ],
)
def test_a_failure_has_an_owner(category: str, whose: str) -> None:
    assert _row(category).whose == whose
    page = campaign.page([_row(category, checks={"PCC": "0.9"})])
    assert ("why" in page) == (
        whose != "-"
    ) and f"| bh-qb-1x4 | {verdicts.CATEGORIES[category].split(':')[0]} |" in page


def test_known_messages_have_a_cause() -> None:
    row = _row(verdicts.REFUSED)
    row.message = "TT_FATAL: WorkUnitSpec 'x' targets node (0,8), which is out of bounds."
    assert row.whose == "ttnn's mock" and "dispatch in rows" in campaign.page([row])


def test_a_case_is_read_or_its_error(tmp_path) -> None:
    """The plugin's line is the verdict; a file that cannot be imported has none, but pytest prints why."""
    usage = SimpleNamespace(ru_maxrss=2**20, ru_utime=1.0, ru_stime=0.5)
    program = campaign.Program("test_x.py", campaign.TT_METAL, tmp_path, "auto", cause="theirs: why", is_test=True)
    line = json.dumps({"category": verdicts.REFUSED, "message": "no", "mesh": "t3k", "ops": {"ttnn.add": 2}})
    row = campaign._row(program, "PCC: 0.9991\n", f"{line}\n", 3.0, usage)
    assert (row.mesh, row.operations, row.checks, row.whose) == ("t3k", 2, {"lowest PCC": "0.999100"}, "theirs")
    broken = campaign._row(program, "E   ModuleNotFoundError: No module named 'timm'\n", "", 3.0, usage)
    assert (broken.category, broken.gib) == (verdicts.ENVIRONMENT, 1.0) and "timm" in broken.message
    assert campaign._row(program, "", "", 3.0, usage).category == verdicts.TIMEOUT


def test_a_message_does_not_say_where_files_lie() -> None:
    message = "no '/a/b/hub/config.json' at https://x.org/y (/a/c.py:3), 1/2 of /tmp/d/e"
    assert campaign._without_folders(message) == "no 'config.json' at https://x.org/y, 1/2 of e"


def test_published_configurations_are_found_by_name(tmp_path) -> None:
    """A cache of the hub without weights: configurations, and words for the encoder that wants a tokenizer."""
    pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    folder = checkpoints.make(checkpoints.HUB, tmp_path)
    (unet,) = folder.glob("hub/models--stabilityai--stable-diffusion-xl-base-1.0/snapshots/*/unet/config.json")
    assert json.loads(unet.read_text(encoding="utf-8"))["cross_attention_dim"] == 2048
    (words,) = folder.glob("hub/models--Tongyi-MAI--Z-Image-Turbo/snapshots/*/tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(words)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "the cat"}], tokenize=False)
    ids = tokenizer(text, padding="max_length", max_length=8).input_ids
    assert len(ids) == 8 and len(set(ids)) == 3


def test_the_table_of_tests_names_each_file_once() -> None:
    with campaign.TABLE.open(encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    assert len({row["path"] for row in rows}) == len(rows) > 60


def test_without_a_checkout_it_is_skipped_aloud(monkeypatch, capsys) -> None:
    for name in campaign.TREES.values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["benchmarks.programs"])
    assert campaign.main() == 0
    assert "skipped" in capsys.readouterr().err
