"""Reading safetensors: the bits that the library gives, lazily, and nothing that stays behind."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from refsim.files.checkpoint import Checkpoint, Weights
from refsim.files.tensor_file import _DTYPES, TensorFile, write

TENSORS, READS = 50, 300


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Whatever a random byte pattern means in ``dtype``, of which bool knows 0 and 1."""
    most = 2 if dtype is torch.bool else 256
    size = (*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.randint(most, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).view(dtype)


def bits(x: torch.Tensor) -> tuple:
    return x.dtype, tuple(x.shape), x.contiguous().view(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", _DTYPES.values(), ids=_DTYPES)
def test_the_bits_are_those_that_the_library_reads(tmp_path, dtype):
    given = {"one": numbers(dtype, 3, 4), "b": torch.tensor([True]), "scalar": numbers(dtype, 1)[0]}
    save_file(given | {"empty": torch.zeros(0, 4, dtype=dtype)}, tmp_path / "x", {"note": "kept"})
    file, theirs = TensorFile(tmp_path / "x"), load_file(tmp_path / "x")
    assert {name: bits(x) for name, x in file.all().items()} == {name: bits(x) for name, x in theirs.items()}
    assert bits(file["one"][1:, 2:]) == bits(given["one"][1:, 2:])
    assert (file.shape("one"), _DTYPES[file.dtype("one")]) == ((3, 4), dtype)
    assert file.metadata == {"note": "kept"}


def test_a_header_of_any_length(tmp_path):
    """The format does not ask for tensors to begin where their dtype would like to."""
    x = torch.randn(5)
    for spaces in range(4):
        header = json.dumps({"x": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}}).encode() + b" " * spaces
        (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + x.numpy().tobytes())
        assert torch.equal(TensorFile(tmp_path / "x")["x"], x)


def test_a_dtype_that_torch_does_not_have(tmp_path):
    header = json.dumps({"x": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    file = TensorFile(tmp_path / "x")
    with pytest.raises(ValueError, match="'x' is F8_E8M0"):
        file["x"]


def test_what_is_written_into_a_tensor_stays_there(tmp_path):
    save_file({"x": torch.zeros(4)}, tmp_path / "x")
    TensorFile(tmp_path / "x")["x"].fill_(1)
    assert TensorFile(tmp_path / "x")["x"].tolist() == [0] * 4


def test_every_tensor_has_a_storage_of_its_own(tmp_path):
    """Buffers are known by their storage, and torch reads the state of a generator from the beginning of one."""
    state = torch.Generator().manual_seed(3).get_state()
    save_file({"a": torch.zeros(4), "b": torch.ones(4), "state": state}, tmp_path / "x")
    tensors = TensorFile(tmp_path / "x").all()
    assert all(x.storage_offset() == 0 and x.untyped_storage().nbytes() == x.nbytes for x in tensors.values())
    assert len({x.untyped_storage()._cdata for x in tensors.values()}) == 3
    generator = torch.Generator()
    generator.set_state(tensors["state"])
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"0", lambda b: b[:20], lambda b: b""])
def test_a_damaged_file(tmp_path, damage):
    save_file({"x": torch.zeros(4)}, tmp_path / "x")
    (tmp_path / "x").write_bytes(damage((tmp_path / "x").read_bytes()))
    with pytest.raises(ValueError):
        TensorFile(tmp_path / "x")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_nothing_stays_behind(tmp_path, monkeypatch, dtype):
    """A rank reads a checkpoint in every job of its life; what it keeps of it, it has after the first."""
    monkeypatch.setattr("refsim.files.tensor_file._COARSE_NS", 0)
    name = "diffusion_pytorch_model.safetensors"
    save_file({f"layer.{i}.weight": torch.ones(32, 64, dtype=dtype) for i in range(TENSORS)}, tmp_path / name)
    (tmp_path / "config.json").write_text("{}")

    def read() -> None:
        weights = Weights(Checkpoint(tmp_path), dtype)
        for i in range(TENSORS):
            weights.take(f"layer.{i}.weight", (32, 64), (8, 24))

    def objects(times: int) -> int:
        for _ in range(times):
            read()
        gc.collect()
        return sys.getallocatedblocks()

    before = objects(20)
    assert objects(READS) - before < READS  # a single one of a read; it was two of every tensor


def test_a_header_is_kept_until_somebody_writes_to_the_file(tmp_path):
    path = tmp_path / "x"
    save_file({"x": torch.zeros(4)}, path)
    long_ago = time.time_ns() - 10**9

    def opened() -> TensorFile:
        return TensorFile(path, again=True)

    opened().finite.add("x")
    assert opened().finite == set()  # written so lately that another write might not be told by its time
    with mock.patch("refsim.files.tensor_file._COARSE_NS", 0):
        first = opened()
        first.finite.add("x")
        assert opened().finite == {"x"}
        assert TensorFile(path).finite == set()
        first["x"].fill_(1)
        assert opened()["x"].tolist() == [0] * 4  # mapped anew
        save_file({"y": torch.ones(4)}, path)
        os.utime(path, ns=(long_ago, long_ago))
        assert opened().finite == set()
        assert opened()["y"].tolist() == [1] * 4


_READ = """
import json, sys
from pathlib import Path
from refsim.files.tensor_file import TensorFile

def resident():
    fields = [line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Rss")]
    return {name.rstrip(":"): int(size) << 10 for name, size, _ in fields}

before = resident()
part = TensorFile(sys.argv[1])["large"][1 << 20 : 2 << 20]
assert int(part.sum()) == 0
print(json.dumps({name: size - before[name] for name, size in resident().items()}))
"""
"""In a process of its own, where nothing else takes memory."""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_only_what_is_asked_for_is_read(tmp_path):
    """A slice of a large file takes neither its size in private memory nor in pages of the file."""
    save_file({"large": torch.zeros(64 << 20, dtype=torch.uint8)}, tmp_path / "x")

    measured = subprocess.run(
        [sys.executable, "-c", _READ, str(tmp_path / "x")], capture_output=True, text=True, timeout=120, check=True
    )
    grown = json.loads(measured.stdout)
    assert grown["RssAnon"] < 8 << 20 and grown["RssFile"] < 32 << 20


@pytest.mark.parametrize("dtype", _DTYPES.values(), ids=str)
def test_what_is_written_is_what_the_library_reads(tmp_path, dtype):
    whole = torch.randint(0, 2, (5, 40, 3000)).to(dtype)
    tensors = {
        "whole": whole,
        "shared": whole,
        "rows": whole[:, 3:33],
        "columns": whole[:, :, ::7],
        "turned": whole[0].T,
        "one": whole[0, 0, 0],
        "none": whole[:0],
        "aligned": torch.ones(3, dtype=torch.uint8),
    }
    with open(tmp_path / "it", "wb") as file:
        write(file, tensors)
    read = load_file(tmp_path / "it")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype is tensor.dtype
        assert read[name].shape == tensor.shape
        assert torch.equal(read[name], tensor)


def test_a_dtype_that_the_format_does_not_have(tmp_path):
    with open(tmp_path / "it", "wb") as file, pytest.raises(ValueError, match=r"'x' is torch\.complex128"):
        write(file, {"x": torch.ones(2, dtype=torch.complex128)})
