"""Checkpoint folders and inputs files that somebody damaged: always one sentence, never a file outside the folder."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.fuzz.command import Said, assert_refused, assert_refused_or_accepted, command, listing
from tests.fuzz.examples import examples

FILE = "diffusion_pytorch_model.safetensors"
INDEX = f"{FILE}.index.json"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder for the damaged copies of this module."""
    return tmp_path_factory.mktemp("damaged")


def run(checkpoint: Path, inputs: Path, out: Path) -> Said:
    """What the command says; nothing may have changed on disk."""
    before = listing(out.parent)
    said = command(
        "run", str(checkpoint), "--mesh", "n300", "--parallel", "tp2", "--inputs", str(inputs), "--out", str(out)
    )
    assert listing(out.parent) == before
    return said


def fresh(place: Path, source: Path) -> Path:
    """A copy of ``source`` in ``place``, by hard links, so that a file is replaced and never edited."""
    target = place / "checkpoint"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=os.link)
    return target


def replace(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
CONFIG_KEYS = (
    "_class_name sample_size patch_size in_channels num_layers attention_head_dim num_attention_heads out_channels "
    "joint_attention_dim caption_projection_dim pooled_projection_dim pos_embed_max_size dual_attention_layers qk_norm"
).split()
VALUES = st.one_of(
    JSON,
    st.sampled_from([0, -1, 1, 2, 3, 16, 48, 10**9, 10**18, 10**40, 1.5, True, "16", [], [0], [-1], [7], [0, 0], None]),
)


@examples(70)
@given(changes=st.dictionaries(st.sampled_from(CONFIG_KEYS), VALUES, min_size=1, max_size=3))
def test_any_config(good, place, changes):
    folder = fresh(place, good / "checkpoint")
    config = json.loads((folder / "config.json").read_text())
    replace(folder / "config.json", json.dumps({**config, **changes}).encode())
    assert_refused_or_accepted(run(folder, good / "in.safetensors", place / "out.safetensors"))


NOT_JSON = st.one_of(
    st.binary(max_size=40),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.integers(1, 200_000).map(lambda n: b"[" * n),
    st.integers(1, 200_000).map(lambda n: b'{"a":' * n + b"1" + b"}" * n),
    st.integers(1, 6000).map(lambda n: b'{"num_layers": 1' + b"0" * n + b"}"),
    st.just(b"\xff\xfe{}"),
    st.just(b'\xef\xbb\xbf{"_class_name": "x"}'),
    st.just(b'{"_class_name": "\\ud800"}'),
)


@examples(40)
@given(text=NOT_JSON, name=st.sampled_from(["config.json", INDEX]))
def test_anything_for_json(good, place, text, name):
    folder = fresh(place, good / "checkpoint")
    replace(folder / name, text)
    assert_refused(run(folder, good / "in.safetensors", place / "out.safetensors"))


NAMES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            "../elsewhere.safetensors",
            "/etc/passwd",
            "/dev/zero",
            "..",
            ".",
            "",
            "\0",
            "a\0b",
            "\ud800",
            "\n",
            "n" * 300,
            "sub/inner.safetensors",
            "pipe",
            "link",
            "config.json",
            "sub",
        ]
    ),
    st.none(),
    st.integers(),
)


@examples(50)
@example(name="sub/inner.safetensors", where="one")
@example(name="link", where="one")
@example(name="../elsewhere.safetensors", where="one")
@given(name=NAMES, where=st.sampled_from(["one", "all", "new", "other"]))
def test_index_that_names_anything(good, place, name, where):
    folder = fresh(place, good / "sharded")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    save_file({"proj_out.bias": torch.zeros(64)}, place / "elsewhere.safetensors")
    shutil.copy(place / "elsewhere.safetensors", folder / "sub" / "inner.safetensors")
    (folder / "link").symlink_to("../elsewhere.safetensors")
    index = json.loads((folder / INDEX).read_text())
    names = index["weight_map"]
    if where == "one":
        names["proj_out.bias"] = name
    elif where == "all":
        index["weight_map"] = dict.fromkeys(names, name)
    elif where == "new":
        names["spare"] = name
    else:
        index["weight_map"] = {str(name): next(iter(names.values())), **names}
    replace(folder / INDEX, json.dumps(index).encode())
    assert_refused(run(folder, good / "in.safetensors", place / "out.safetensors"))


@examples(12)
@given(data=st.data())
def test_missing_shard_or_key(good, place, data):
    folder = fresh(place, good / "sharded")
    files = sorted(path.name for path in folder.iterdir() if path.name != "config.json")
    gone = data.draw(st.sampled_from([*files, "a key"]))
    if gone == "a key":
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"].pop(data.draw(st.sampled_from(sorted(index["weight_map"]))))
        replace(folder / INDEX, json.dumps(index).encode())
    else:
        (folder / gone).unlink()
    assert_refused(run(folder, good / "in.safetensors", place / "out.safetensors"))


def header(data: bytes) -> tuple[dict, bytes]:
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def put_together(head: object, rest: bytes) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + rest


@st.composite
def damages(draw, data: bytes) -> bytes:
    """A safetensors file, damaged."""
    how = draw(st.sampled_from(["cut", "grown", "size", "noise", "entry", "header", "empty"]))
    if how == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    if how == "grown":
        return data + draw(st.binary(min_size=1, max_size=9))
    if how == "size":
        return struct.pack("<Q", draw(st.sampled_from([0, 1, len(data), 2**31, 2**63, 2**64 - 1]))) + data[8:]
    if how == "noise":
        return draw(st.binary(max_size=64))
    if how == "empty":
        return b""
    head, rest = header(data)
    if how == "header":
        return put_together(draw(st.one_of(JSON, st.just(b"[" * 100_000), st.just(b" " * 1_000_000))), rest)
    names = sorted(name for name in head if name != "__metadata__")
    entry = dict(head[draw(st.sampled_from(names))])
    changed = draw(st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__"]))
    if changed == "__metadata__":
        return put_together({**head, "__metadata__": draw(JSON)}, rest)
    values = {
        "dtype": st.one_of(st.sampled_from(["I64", "F8_E4M3", "BOOL", "U8", "C64", "F4", "f32", ""]), JSON),
        "shape": st.one_of(st.lists(st.integers(-1, 2**63), max_size=4), JSON),
        "data_offsets": st.one_of(st.tuples(st.integers(-1, 2**64), st.integers(-1, 2**64)).map(list), JSON),
    }
    entry[changed] = draw(values[changed])
    return put_together({**head, draw(st.sampled_from(names)): entry}, rest)


@examples(50)
@given(data=st.data())
def test_damaged_weights(good, place, data):
    folder = fresh(place, good / "checkpoint")
    damaged = data.draw(damages((folder / FILE).read_bytes()))
    replace(folder / FILE, damaged)
    assert_refused_or_accepted(run(folder, good / "in.safetensors", place / "out.safetensors"))


@examples(40)
@given(data=st.data())
def test_damaged_inputs(good, place, data):
    replace(place / "in.safetensors", data.draw(damages((good / "in.safetensors").read_bytes())))
    assert_refused_or_accepted(run(good / "checkpoint", place / "in.safetensors", place / "out.safetensors"))


DTYPES = [
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.uint16),
]
SHAPES = st.lists(st.one_of(st.sampled_from([1, 2, 12, 16, 20, 29, 40, 64]), st.integers(0, 70)), max_size=5)


@examples(50)
@given(
    changes=st.dictionaries(
        st.sampled_from(
            ["hidden_states", "encoder_hidden_states", "pooled_projections", "timestep", "guidance", "\n", "é"]
        ),
        st.one_of(st.none(), st.tuples(st.sampled_from(DTYPES), st.one_of(st.none(), SHAPES), st.booleans())),
        min_size=1,
        max_size=2,
    )
)
@example(changes={"timestep": (torch.float8_e4m3fn, None, False)})
@example(changes={"timestep": (torch.complex64, None, False)})
def test_inputs_of_any_shape_and_dtype(good, place, changes):
    tensors = load_file(good / "in.safetensors")
    for name, change in changes.items():
        old = tensors.pop(name, torch.zeros(2))
        if change is not None:
            dtype, shape, spoiled = change
            tensors[name] = (old if shape is None else torch.ones(shape)).to(dtype)
            if spoiled and dtype.is_floating_point and tensors[name].numel():
                tensors[name].view(-1)[0] = float("nan")
    (place / "in.safetensors").unlink(missing_ok=True)
    save_file(tensors, place / "in.safetensors")
    assert_refused_or_accepted(run(good / "checkpoint", place / "in.safetensors", place / "out.safetensors"))


@examples(16)
@given(
    dtype=st.sampled_from([dtype for dtype in DTYPES if not dtype.is_floating_point or dtype.itemsize == 1]),
    data=st.data(),
)
def test_weights_that_are_no_numbers_of_a_model(good, place, dtype, data):
    folder = fresh(place, good / "checkpoint")
    tensors = load_file(folder / FILE)
    name = data.draw(st.sampled_from(sorted(tensors)))
    (folder / FILE).unlink()
    save_file({**tensors, name: tensors[name].to(dtype)}, folder / FILE)
    assert_refused(run(folder, good / "in.safetensors", place / "out.safetensors"))


@pytest.mark.parametrize("what", ["config.json", INDEX, FILE, "folder", "pipe", "in.safetensors", "long"])
def test_links_pipes_and_folders_in_the_wrong_place(good, place, what):
    folder, inputs = fresh(place, good / "checkpoint"), good / "in.safetensors"
    outside = place / "outside"
    if what in ("config.json", INDEX, FILE):
        outside.unlink(missing_ok=True)
        shutil.copy((good / "sharded" if what == INDEX else folder) / what, outside)
        (folder / what).unlink(missing_ok=True)
        (folder / what).symlink_to(outside)
    elif what == "folder":
        (folder / "config.json").unlink()
        (folder / "config.json").mkdir()
    elif what == "pipe":
        (folder / FILE).unlink()
        os.mkfifo(folder / FILE)
    elif what == "in.safetensors":
        inputs = Path("/dev/zero")
    else:
        inputs = place / ("n" * 300)
    assert_refused(run(folder, inputs, place / "out.safetensors"))


@pytest.mark.parametrize("kind", ["checkpoint", "sharded"])
def test_the_folders_are_good_before_they_are_damaged(good, place, kind):
    assert run(fresh(place, good / kind), good / "in.safetensors", place / "out.safetensors").code is None
