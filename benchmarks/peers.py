"""Ring attention and Ulysses of this simulator beside those of other libraries, on the same ranks, in turn.

Every library's attention is called by the same processes (as many threads each) on the same shards of q, k and v. The
others talk through gloo, this simulator through its own transport (``--transport auto``).
What is timed is that call alone, from the first rank that begins to the last that ends. Every round runs all of them,
each first in turn, and calls twice, of which the second counts; a ratio is the median over rounds, to this simulator's
scheme of the same kind. Beside each time stands the error of the answer against float64. What cannot run on CPU is
listed with what it says.

``refsim bench peers --ranks 8 --rows 4096 --heads 8``; ``nox -s bench`` installs the libraries.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from benchmarks.sim import WORST, Machine, Ratio, Setup, elapsed_s, error, exact, machine, one_process
from refsim.api.inputs import as_file
from refsim.base.errors import RankFailure
from refsim.base.options import RunOptions
from refsim.ccl import all_gather
from refsim.files.keys import Beside, Document, Sometimes
from refsim.files.tensor_file import TensorFile
from refsim.parallel.sequence import TokenShards
from refsim.parallel.usp import joint_attention
from refsim.runtime import launch
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, shards

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From a rank's rows of q, k and v, each (1, heads, rows of the rank, head_dim), to its rows of the answer."""
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Peer:
    """One implementation: what package it is of, ``ring`` or ``ulysses``, and what returns its ``Attend`` on a rank."""

    package: str
    kind: str
    make: Callable[[Device], Attend]


def _refsim(device: Device) -> Attend:
    group = device.groups["sp"]

    def attend(*qkv: Tensor) -> Tensor:
        q, k, v = (MeshTensor(x, shards(device.groups, sp=2)) for x in qkv)
        tokens = TokenShards.of(qkv[0].shape[2] * group.size, group.size)
        return joint_attention(device, (q, k, v), None, tokens=tokens)[0].local

    return attend


def _join_torch(device: Device) -> None:
    """Set torch's default process group up, which refsim's ranks do without; its store serves torch's new groups."""
    if not dist.is_initialized():
        group = device.groups["sp"]
        port = torch.zeros(1)
        if group.index == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            port[0] = store.port
        port = all_gather(device, port, group, dim=0)[:1]
        if group.index:
            store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
        dist.init_process_group("gloo", store=store, rank=group.index, world_size=group.size)


@functools.cache
def _mesh(*axes: tuple[str, int]) -> Any:
    """Return a device mesh of torch over all ranks; made once, since it keeps its process groups open."""
    return dist.init_device_mesh("cpu", tuple(n for _, n in axes), mesh_dim_names=tuple(name for name, _ in axes))


def _torch_ring(device: Device, rotate: str) -> Attend:
    """Call the loop inside ``context_parallel`` with the kernel that CPUs have, for which it has no entry itself."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as cp

    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    cp._cp_options.enable_load_balance = False

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cp.set_rotate_method(rotate)
        return cp._templated_ring_attention(dist.group.WORLD, 2, kernel, q, k, v, is_causal=False)[0]

    return attend


def _torch_public(device: Device, *backends: str) -> Attend:
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._context_parallel import _attention as cp
    from torch.nn.attention import SDPBackend, sdpa_kernel

    cp._cp_options.enable_load_balance = False
    allowed = [getattr(SDPBackend, name) for name in backends or ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")]
    size = device.groups["sp"].size

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        unused = [torch.empty(size)]  # it wants something to cut, and q, k, v are cut already
        cut = context_parallel(_mesh(("cp", size)), buffers=unused, buffer_seq_dims=[0], no_restore_buffers=set(unused))
        with sdpa_kernel(allowed), cut:
            return F.scaled_dot_product_attention(q, k, v)

    return attend


def _ring_attention_pytorch(device: Device) -> Attend:
    from ring_attention_pytorch.ring_flash_attention import ring_flash_attn

    return _rows_before_heads(lambda *qkv: ring_flash_attn(*qkv, ring_reduce_col=True, bucket_size=512))


@functools.cache
def _yunchang(size: int, kind: str) -> Attend:
    from yunchang import LongContextAttention, set_seq_parallel_pg
    from yunchang.kernels import AttnType

    set_seq_parallel_pg(*((size, 1) if kind == "ulysses" else (1, size)), dist.get_rank(), size)
    return _rows_before_heads(LongContextAttention(ring_impl_type="basic", attn_type=AttnType.TORCH_MATH))


def _diffusers(device: Device, kind: str) -> Attend:
    from diffusers import ContextParallelConfig
    from diffusers.models._modeling_parallel import ParallelConfig
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    size = device.groups["sp"].size
    mesh = _mesh(("ring", size if kind == "ring" else 1), ("ulysses", size if kind == "ulysses" else 1))
    config = ParallelConfig(context_parallel_config=ContextParallelConfig(**{f"{kind}_degree": size}))
    config.setup(dist.get_rank(), size, torch.device("cpu"), mesh=mesh)
    return _rows_before_heads(functools.partial(dispatch_attention_fn, backend="native", parallel_config=config))


def _rows_before_heads(attend: Callable[..., Any]) -> Attend:
    """Adapt what takes and gives (1, rows, heads, head_dim); turning that is part of neither's time to speak of."""

    def turned(*qkv: Tensor) -> Tensor:
        out = attend(*(x.transpose(1, 2).contiguous() for x in qkv))
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return turned


PEERS: dict[str, Peer] = {
    "refsim ring": Peer("refsim", "ring", _refsim),
    "refsim ulysses": Peer("refsim", "ulysses", _refsim),
    "torch context_parallel": Peer("torch", "ring", _torch_public),
    "torch context_parallel, MATH": Peer("torch", "ring", lambda d: _torch_public(d, "MATH")),
    "torch _templated_ring_attention, alltoall": Peer("torch", "ring", lambda d: _torch_ring(d, "alltoall")),
    "torch _templated_ring_attention, allgather": Peer("torch", "ring", lambda d: _torch_ring(d, "allgather")),
    "ring-attention-pytorch": Peer("ring-attention-pytorch", "ring", _ring_attention_pytorch),
    "yunchang ring": Peer("yunchang", "ring", lambda d: _yunchang(d.groups["sp"].size, "ring")),
    "yunchang ulysses": Peer("yunchang", "ulysses", lambda d: _yunchang(d.groups["sp"].size, "ulysses")),
    "diffusers ring": Peer("diffusers", "ring", lambda d: _diffusers(d, "ring")),
    "diffusers ulysses": Peer("diffusers", "ulysses", lambda d: _diffusers(d, "ulysses")),
}


def program(device: Device, *, peer: str, inputs: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Attend once by ``peer``; when this rank began and ended, or what the peer said; rank 0 has the whole answer."""
    group = device.groups["sp"]
    file = TensorFile(inputs)
    rows = file.shape("q")[2] // group.size
    cut = slice(group.index * rows, (group.index + 1) * rows)
    with torch.inference_mode(PEERS[peer].package == "refsim"), torch.no_grad():
        q, k, v = (file[name][:, :, cut].clone() for name in "qkv")
        try:
            if PEERS[peer].package != "refsim":
                _join_torch(device)
            attend = PEERS[peer].make(device)
            attend(q, k, v)  # the first call of some libraries takes seconds
            all_gather(device, torch.ones(1), group, dim=0)  # all begin together
            began = time.monotonic()
            out = attend(q, k, v)
            ended = time.monotonic()
        except Exception as e:  # whatever another library raises is what is to be listed
            return {"error": f"{type(e).__name__}: {e}".splitlines()[0]}, {}
        if out.shape != q.shape:
            return {"error": f"the answer has shape {list(out.shape)}, the queries {list(q.shape)}"}, {}
        whole = all_gather(device, out.detach().contiguous(), group, dim=2)
    return {"began": began, "ended": ended, "threads": torch.get_num_threads()}, {"out": whole}


@dataclass
class PeerRecord:
    """``ratio``: its seconds over refsim's; one that could not run has an ``error`` and no numbers."""

    name: str
    kind: str
    version: str
    error: Sometimes[str] = None
    seconds: Sometimes[float] = None
    threads_per_rank: Sometimes[int] = None
    ratio: Sometimes[float] = None
    ratio_range: Sometimes[list[float]] = None
    rel_rmse: Sometimes[float] = None
    right: Sometimes[bool] = None


@dataclass
class Peers(Document):
    """Every implementation that was asked for, and this simulator's two."""

    setup: Beside[Setup]
    load_before: float
    one_process: dict[str, float]
    records: list[PeerRecord]
    could_not_run: int
    wrong: int
    machine: Machine


class _Measured:
    """What has come of one implementation so far."""

    def __init__(self, name: str, setup: Setup) -> None:
        self.name = name
        self.peer = PEERS[name]
        self.options: RunOptions = setup.options(self.peer.kind).but(timeout_s=_TIMEOUT_S)
        self.seconds: list[float] = []
        self.error = ""
        self.out = torch.empty(0)
        self.threads = 0

    def run(self, path: str) -> None:
        """Run it once more, unless it has said that it cannot."""
        if self.error:
            return
        try:
            result = launch.execute("benchmarks.peers:program", self.options, {"peer": self.name, "inputs": path})
        except RankFailure as e:
            self.error = str(e)
            return
        assert result is not None  # the command refuses torchrun
        self.error = next((value["error"] for value in result.values if "error" in value), "")
        if self.error:
            launch.end_ranks()  # whatever it has left under way ends with them
            return
        self.out = result.tensors["out"]
        self.threads = result.value["threads"]
        self.seconds.append(elapsed_s(result))

    def record(self, ours: list[float], alone: float, rows: Tensor, expected: Tensor) -> PeerRecord:
        """Return what has come of it; ``ratio`` is its time over ``ours``, so above 1 where refsim is faster."""
        record = PeerRecord(self.name, self.peer.kind, _version(self.peer.package), self.error or None)
        if self.error:
            return record
        ratio = Ratio.of(zip(self.seconds, ours, strict=True))
        wrong_by = error(self.out[:, :, rows], expected)
        return replace(
            record,
            seconds=statistics.median(self.seconds),
            threads_per_rank=self.threads,
            ratio=ratio.ratio,
            ratio_range=ratio.range,
            rel_rmse=wrong_by,
            right=wrong_by <= WORST * alone,
        )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def measure(setup: Setup, names: list[str], *, say: Callable[[str], None] = print) -> Peers:
    """Return a record of every implementation in ``names``, to which this simulator's two are added if missing."""
    names = [name for name in PEERS if name in names or PEERS[name].package == "refsim"]
    measured = {name: _Measured(name, setup) for name in names}
    tensors = setup.inputs()
    load = os.getloadavg()[0]
    alone, alone_s, _ = one_process(tensors)
    with as_file(tensors) as path:
        for number in range(setup.repetitions):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                say(f"round {number + 1} of {setup.repetitions}: {name}")
                measured[name].run(str(path))
    rows, expected = exact(tensors)
    floor = error(alone[:, :, rows], expected)
    ours = {kind: measured[f"refsim {kind}"].seconds for kind in ("ring", "ulysses")}
    records = [m.record(ours[m.peer.kind], floor, rows, expected) for m in measured.values()]
    could_not_run = sum(record.error is not None for record in records)
    wrong = sum(record.right is False for record in records)
    return Peers(setup, load, {"seconds": alone_s, "rel_rmse": floor}, records, could_not_run, wrong, machine())


def text(peers: Peers) -> str:
    """Return the records as a table for people."""
    setup = peers.setup
    lines = [
        f"{setup.ranks} ranks, {setup.rows} x {setup.heads} x {setup.head_dim} {setup.dtype}, "
        f"median of {setup.repetitions} rounds; load average before: {peers.load_before:.1f}",
        f"{'':54} {'seconds':>8}  {'times refsim':22} error",
    ]
    for r in peers.records:
        name = f"{r.name} {r.version}"
        if r.error is not None:
            lines.append(f"{name:54} could not run: {r.error}")
            continue
        low, high = r.ratio_range
        times = f"{r.ratio:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"{name:54} {r.seconds:8.3f}  {times:22} {r.rel_rmse:.1e}{'' if r.right else ' WRONG'}")
    alone = peers.one_process
    lines.append(f"{'one process, all cores':54} {alone['seconds']:8.3f}  {'':22} {alone['rel_rmse']:.1e}")
    return "\n".join([*lines, f"{peers.could_not_run} could not run, {peers.wrong} answered wrongly"])
