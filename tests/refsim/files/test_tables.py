"""A table in markdown stays a table, whatever stands in its cells."""

from refsim.files.tables import as_markdown


def test_cells_keep_to_their_columns():
    assert as_markdown([("a|b", 1), ("c\nd",), ("", None)], (None, "n")).splitlines() == [
        "| | n |",
        "|---|---|",
        "| a\\|b | 1 |",
        "| c d | |",
        "|  | |",
    ]


def test_numbers_stand_to_the_right():
    assert as_markdown([], ("case", "s"), "lr") == "| case | s |\n|---|---:|"
