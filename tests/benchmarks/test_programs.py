"""``python -m benchmarks.programs``: what published programs say of themselves is read, and failures have an owner."""

from __future__ import annotations

import pytest

from benchmarks.programs import campaign
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


def test_without_a_checkout_it_is_skipped_aloud(monkeypatch, capsys) -> None:
    for name in campaign.TREES.values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["benchmarks.programs"])
    assert campaign.main() == 0
    assert "skipped" in capsys.readouterr().err
