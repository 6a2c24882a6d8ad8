"""Names of commands and options that are others now: the old ones work, say so on stderr, and are not shown."""

import pytest
import typer

from refsim.cli import process
from refsim.cli.app import app, mount


def test_old_commands_of_parity_are_hidden_and_say_the_new_name(capsys):
    mount()
    parity = typer.main.get_command(app).commands["parity"].commands
    for old, new in (("explain", "why"), ("calibrate", "floors")):
        assert parity[old].hidden and not parity[new].hidden
        assert [p.opts for p in parity[old].params] == [p.opts for p in parity[new].params]
    assert process.run_command(["parity", "explain", "no-such-case"]) == 2
    assert "`refsim parity explain` is called `refsim parity why` now" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--weights", "bfp8"], ["--weights-dtype", "bfp8_b"]], ids=lambda words: words[0])
def test_both_names_of_the_dtype_of_weights_give_one_prediction(words, capsys):
    assert process.run_command(["time", "sd35-medium", "--mesh", "n150", "--json", *words]) == 0
    shown = capsys.readouterr()
    assert '"weights": "bfp8"' in shown.out
    assert ("is called `refsim time --weights-dtype` now" in shown.err) == (words[0] == "--weights")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["memory"], "there is no model; give one"),
        (["memory", "--model", "huge"], "`refsim memory --model MODEL` is called `refsim memory MODEL` now"),
        (["ops", "sd35-large", "--mesh", "n150", "--weights-dtype", "bfp2_b"], "choose one of bf16, bfp8_b, bfp4_b"),
    ],
)
def test_what_is_refused(words, says, capsys):
    assert process.run_command(words) == 2
    assert says in capsys.readouterr().err
