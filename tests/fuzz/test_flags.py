"""Meshes, parallel factors and every flag of the command, right and wrong ones mixed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.base.mesh import MESHES
from tests.fuzz.command import assert_refused, assert_refused_or_accepted, command, listing
from tests.fuzz.examples import examples

ODD_TEXT = st.one_of(
    st.text(st.characters(exclude_characters="\0"), max_size=12),
    st.sampled_from(
        ["", " ", "-", "--", "\n", "é", "\udcff", "nan", "inf", "-1", "0", "1e400", "1" * 400, "None", "\x1b[2J"]
    ),
)
NUMBER = st.one_of(
    st.integers(-2, 64).map(str),
    st.integers(-(10**30), 10**30).map(str),
    st.floats().map(str),
    ODD_TEXT,
)
FACTOR = st.builds(
    lambda name, n, axis: f"{name}{n}{axis}",
    st.sampled_from(["cfg", "sp", "tp", "ring", "ulysses", "pp", ""]),
    st.one_of(st.sampled_from([1, 2, 4, 8, 32]), st.integers(0, 99999)),
    st.sampled_from(["", "", "@0", "@1", "@2", "@"]),
)
PARALLEL = st.one_of(st.lists(FACTOR, max_size=5).map("_".join), ODD_TEXT)
FLAGS = {
    "--mesh": st.one_of(st.sampled_from(sorted(MESHES)), ODD_TEXT),
    "--parallel": PARALLEL,
    "--attention": st.one_of(st.sampled_from(["ring", "ulysses", "usp", "Ring"]), ODD_TEXT),
    "--ring": NUMBER,
    "--ulysses": NUMBER,
    "--guidance": NUMBER,
    "--dtype": st.one_of(st.sampled_from(["fp32", "bf16", "fp8", "float64"]), ODD_TEXT),
    "--prompt-layout": st.one_of(st.sampled_from(["replicated", "split"]), ODD_TEXT),
    "--ring-order": st.one_of(st.sampled_from(["gather", "step", "block"]), ODD_TEXT),
    "--q-chunk-size": NUMBER,
    "--k-chunk-size": NUMBER,
    "--device-numerics": st.one_of(st.sampled_from(["fast", "exact:ops=norm", "fast:dest=fp8", "slow"]), ODD_TEXT),
    "--numerics": st.one_of(st.sampled_from(["fast", "exact", "off", "fast:dest=fp32"]), ODD_TEXT),
    "--backend": st.one_of(st.sampled_from(["cpu", "ttnn-mock", "ttnn-sim", "ttnn-device"]), ODD_TEXT),
    "--timeout": NUMBER,
    "--json": st.just(None),
    "--no-pad-heads": st.just(None),
}


def words(flags: dict[str, str | None]) -> list[str]:
    return [word for name, value in flags.items() for word in ((name,) if value is None else (name, value))]


def run_words(good, flags: dict[str, str | None]) -> list[str]:
    files = ["--inputs", str(good / "in.safetensors"), "--out", str(good / "out.safetensors")]
    return ["run", str(good / "checkpoint"), *files, *words({"--mesh": "t3k", "--parallel": "sp2_tp4", **flags})]


@examples(100)
@given(st.fixed_dictionaries({}, optional=FLAGS))
def test_any_flags(good, flags):
    before = listing(good)
    assert_refused_or_accepted(command(*run_words(good, flags)))
    assert listing(good) == before


@examples(50)
@given(st.sampled_from(sorted(MESHES)), PARALLEL, st.sampled_from(["ring", "ulysses", "usp"]), st.data())
def test_any_factors_on_any_mesh(good, mesh, parallel, attention, data):
    flags = {"--mesh": mesh, "--parallel": parallel, "--attention": attention}
    flags |= data.draw(st.fixed_dictionaries({}, optional={"--ring": NUMBER, "--ulysses": NUMBER}))
    assert_refused_or_accepted(command(*run_words(good, flags)))


@examples(50)
@given(
    st.lists(st.one_of(ODD_TEXT, st.sampled_from(["run", "meshes", "parity", "list", "--json", *FLAGS])), max_size=6)
)
def test_any_words(words):
    if {"--help", "--version"} & set(words):
        return
    assert_refused_or_accepted(command("--debug", *words) if words[:1] == ["--debug"] else command(*words, "--nothing"))


EXPRESSION = st.one_of(
    st.lists(st.sampled_from(["(", ")", "and", "or", "not", "ring", "bf16", "t3k", "zzz"]), max_size=12).map(" ".join),
    st.integers(0, 3000).map(lambda n: "(" * n + "ring" + ")" * n),
    st.integers(0, 3000).map(lambda n: "not " * n + "ring"),
    ODD_TEXT,
)


@examples(50)
@given(
    st.sampled_from(["list", "run"]),
    st.fixed_dictionaries(
        {},
        optional={
            "-k": EXPRESSION,
            "--suite": st.one_of(st.sampled_from(["smoke", "full"]), ODD_TEXT),
            "--backend": FLAGS["--backend"],
            "--json": st.just(None),
        },
    ),
    NUMBER,
)
def test_any_flags_of_parity(verb, flags, seed):
    more = ["--seed", seed] if verb == "run" else []
    assert_refused_or_accepted(command("parity", verb, *words(flags), *more))


@pytest.mark.parametrize("parallel", [["tp2", "--ring", "999999999999"], ["ring9999_ulysses9999"], ["sp9999"]])
def test_huge_factors_are_refused_at_once(good, parallel):
    assert_refused(command(*run_words(good, {}), "--parallel", *parallel))


@pytest.mark.parametrize("guidance", ["nan", "inf", "-inf", "1e400"])
def test_guidance_that_is_no_finite_number(good, guidance):
    assert_refused(command(*run_words(good, {"--guidance": guidance})))


PLACES = st.sampled_from(
    [
        "nowhere/out.safetensors",
        "folder",
        "pipe",
        "/dev/null",
        "/dev/full",
        "in.safetensors",
        "link-to-inputs",
        "checkpoint/config.json",
        "checkpoint/new.safetensors",
        "link-to-nothing/out",
        "loop",
        "n" * 300,
        "in.safetensors/out",
        "",
    ]
)


@examples(14)
@given(place=PLACES, option=st.sampled_from(["--out", "--trace"]))
def test_nothing_but_an_ordinary_new_file_is_written(good, tmp_path_factory, place, option):
    folder = tmp_path_factory.getbasetemp() / "places"
    if not folder.exists():
        _places(folder, good)
    before = listing(folder)
    flags = {"--out": str(folder / "fine.safetensors"), option: str(folder / place) if place else ""}
    files = [str(folder / "checkpoint"), "--inputs", str(folder / "in.safetensors"), "--mesh", "n150"]
    assert_refused(command("run", *files, *words(flags)))
    assert listing(folder) == before


def _places(folder, good) -> None:
    import os
    import shutil

    folder.mkdir()
    shutil.copytree(good / "checkpoint", folder / "checkpoint")
    shutil.copy(good / "in.safetensors", folder)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link-to-inputs").symlink_to("in.safetensors")
    (folder / "link-to-nothing").symlink_to("nothing")
    (folder / "loop").symlink_to("loop")


@pytest.mark.parametrize("flags", [{}, {"--mesh": "n300", "--parallel": "tp2", "--guidance": "4.5", "--dtype": "bf16"}])
def test_good_flags_are_accepted(good, flags):
    assert command(*run_words(good, flags)).code is None
