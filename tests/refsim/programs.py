"""Programs that the tests run on ranks, named ``tests.refsim.programs:function``."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import threading
import time
import weakref
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from refsim.base.errors import CommError
from refsim.base.mesh import Topology
from refsim.ccl import all_gather, all_reduce, all_to_all, broadcast, neighbor_pad, reduce_scatter, shift
from refsim.parallel.cfg import batch_range, gather_batch
from refsim.parallel.sequence import TokenShards, cut_tokens, gather_tokens
from refsim.parallel.tensor import column_linear, gather_features, row_linear, shard_range
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device
from refsim.runtime.group import Group
from refsim.runtime.tensor import MeshTensor, Partial, Replicate, shards
from refsim.runtime.watch.activity import Kind

Answer = tuple[dict[str, Any], dict[str, Tensor]]


def seeded(rank: int, shape: list[int], dtype: torch.dtype, *, integers: bool = False) -> Tensor:
    """Make the input of a rank, which every other rank can compute too; integers add up without rounding."""
    g = torch.Generator().manual_seed(1000 + rank)
    x = torch.randint(-8, 9, shape, generator=g) if integers else torch.randn(shape, generator=g)
    return x.to(dtype)


def digest(x: Tensor) -> str:
    return hashlib.blake2b(x.contiguous().view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()


def differs(got: Tensor, want: Tensor) -> str:
    """Return ``same`` if equal to the bit (up to the sign of zero), otherwise in what they differ."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}"
    return "same" if torch.equal(got, want) else f"{int((got != want).sum())} of {want.numel()} values differ"


# Collectives against the one-call collective of torch.distributed ---------------------------------------------------

_ONE_CALL: dict[tuple[int, ...], dist.ProcessGroupGloo] = {}


def one_call(group: Group, folder: str) -> dist.ProcessGroupGloo:
    """torch's own process group over the ranks of ``group``, connected once through a file in ``folder``."""
    if group.ranks not in _ONE_CALL:
        store = dist.FileStore(f"{folder}/{'-'.join(map(str, group.ranks))}", group.size)
        _ONE_CALL[group.ranks] = dist.ProcessGroupGloo(store, group.index, group.size, timedelta(seconds=30))
    return _ONE_CALL[group.ranks]


def torch_all_gather(theirs: dist.ProcessGroupGloo, x: Tensor) -> list[Tensor]:
    outs = [torch.empty_like(x) for _ in range(theirs.size())]
    theirs.allgather([outs], [x]).wait()
    return outs


def torch_reduce_scatter(theirs: dist.ProcessGroupGloo, x: Tensor, dim: int) -> Tensor:
    slices = [s.contiguous() for s in x.chunk(theirs.size(), dim)]
    out = torch.empty_like(slices[0])
    theirs.reduce_scatter([out], [slices]).wait()
    return out


def torch_all_reduce(theirs: dist.ProcessGroupGloo, x: Tensor) -> Tensor:
    out = x.clone()
    theirs.allreduce([out]).wait()
    return out


def torch_all_to_all(theirs: dist.ProcessGroupGloo, x: Tensor, split_dim: int, concat_dim: int) -> Tensor:
    pieces = torch.stack(x.chunk(theirs.size(), split_dim))
    arrived = torch.empty_like(pieces)
    theirs.alltoall_base(arrived, pieces, [], []).wait()
    return torch.cat(arrived.unbind(0), concat_dim)


def torch_broadcast(theirs: dist.ProcessGroupGloo, x: Tensor, root: int) -> Tensor:
    out, options = x.clone(), dist.BroadcastOptions()
    options.rootRank = root
    theirs.broadcast([out], options).wait()
    return out


def collective_case(
    device: Device, *, collective: str, group: str, dtype: str, shape: list[int], chunks: list[int], folder: str
) -> Answer:
    """Every variant of one collective against torch.distributed's; {variant: "same" or what differs}."""
    members = device.groups[group]
    theirs = one_call(members, folder)
    n = members.size
    x = seeded(device.rank, shape, getattr(torch, dtype), integers=True)
    before = x.clone()
    dims = range(x.ndim)
    found = {}
    for chunk_bytes in chunks:
        if collective == "all_gather":
            for dim in dims:
                ours = all_gather(device, x, members, dim=dim, chunk_bytes=chunk_bytes)
                found[f"dim{dim}-{chunk_bytes}B"] = differs(ours, torch.cat(torch_all_gather(theirs, x), dim))
            stage = torch.empty(n, *x.shape, dtype=x.dtype)
            all_gather(device, x, members, dim=0, out=stage, chunk_bytes=chunk_bytes)
            found[f"out-{chunk_bytes}B"] = differs(stage, torch.stack(torch_all_gather(theirs, x)))
        elif collective == "reduce_scatter":
            for dim in dims:
                ours = reduce_scatter(device, x, members, dim=dim, chunk_bytes=chunk_bytes)
                found[f"dim{dim}-{chunk_bytes}B"] = differs(ours, torch_reduce_scatter(theirs, x, dim))
        elif collective == "all_reduce":
            for name, part in (("whole", x), ("odd", x.flatten()[:-1]), ("tiny", x.flatten()[:1]), ("seen", x.mT)):
                ours = all_reduce(device, part, members, chunk_bytes=chunk_bytes)
                found[f"{name}-{chunk_bytes}B"] = differs(ours, torch_all_reduce(theirs, part.contiguous()))
        elif collective == "all_to_all":
            for split_dim, concat_dim in (*itertools.permutations(dims, 2), (1, 1)):
                cut = {"split_dim": split_dim, "concat_dim": concat_dim}
                ours = all_to_all(device, x, members, **cut, chunk_bytes=chunk_bytes)
                case = f"split{split_dim}_concat{concat_dim}-{chunk_bytes}B"
                found[case] = differs(ours, torch_all_to_all(theirs, x, **cut))
        elif collective == "broadcast":
            for root in range(n):
                ours = broadcast(device, x, members, root=root, chunk_bytes=chunk_bytes)
                found[f"root{root}-{chunk_bytes}B"] = differs(ours, torch_broadcast(theirs, x, root))
        elif collective == "shift":
            every = torch_all_gather(theirs, x)
            for by in (1, -1):
                ours = shift(device, x, members, by=by, chunk_bytes=chunk_bytes)
                found[f"by{by}-{chunk_bytes}B"] = differs(ours, every[(members.index - by) % n])
        elif collective == "neighbor_pad":
            every = torch_all_gather(theirs, x)
            for dim, by in itertools.product(dims, (1, 3)):
                ours = neighbor_pad(device, x, members, dim=dim, by=by, chunk_bytes=chunk_bytes)
                zeros = torch.zeros_like(x).narrow(dim, 0, by)
                whole = torch.cat([zeros, *every, zeros], dim)
                found[f"dim{dim}_by{by}-{chunk_bytes}B"] = differs(
                    ours, whole.narrow(dim, members.index * x.shape[dim], x.shape[dim] + 2 * by)
                )
    found["input untouched"] = differs(x, before)
    return found, {}


def documented_sum(terms: list[Tensor], j: int, topology: Topology) -> Tensor:
    """Add the terms of all members in the order that reduce_scatter's docstring gives for member j."""
    n = len(terms)
    if topology is Topology.RING:
        total = terms[(j + 1) % n]
        for step in range(2, n + 1):
            total = total + terms[(j + step) % n]
        return total
    total = terms[j]
    for walk in (terms[:j], terms[:j:-1]):
        if walk:
            arrived = walk[0]
            for term in walk[1:]:
                arrived = arrived + term
            total = total + arrived
    return total


def reduce_order(device: Device, *, group: str, dtype: str, shape: list[int], chunk_bytes: int) -> Answer:
    """reduce_scatter along every dim, and all_reduce, against the documented order of additions."""
    members = device.groups[group]
    n, i = members.size, members.index
    every = [seeded(rank, shape, getattr(torch, dtype)) for rank in members.ranks]
    found = {}
    for dim in range(len(shape)):
        ours = reduce_scatter(device, every[i], members, dim=dim, chunk_bytes=chunk_bytes)
        wanted = documented_sum([x.chunk(n, dim)[i] for x in every], i, members.topology)
        found[f"reduce_scatter-dim{dim}"] = differs(ours, wanted)
    slices = [torch.nn.functional.pad(x.flatten(), (0, -x.numel() % n)).chunk(n) for x in every]
    wanted = torch.cat([documented_sum([s[j] for s in slices], j, members.topology) for j in range(n)])
    ours = all_reduce(device, every[i], members, chunk_bytes=chunk_bytes)
    found["all_reduce"] = differs(ours, wanted[: ours.numel()].view(shape))
    return {"found": found, "digest": digest(ours)}, {}


def one_collective(device: Device, *, collective: str, group: str, dtype: str, shape: list[int], **options) -> Answer:
    """Run one collective, for its bytes, its trace or its error; the result's digest, and rank 0's result."""
    function = {
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "all_reduce": all_reduce,
        "all_to_all": all_to_all,
        "broadcast": broadcast,
        "shift": shift,
        "neighbor_pad": neighbor_pad,
    }[collective]
    x = seeded(device.rank, shape, getattr(torch, dtype))
    out = function(device, x, device.groups[group], **options)
    return {"digest": digest(out), "is_input": out is x}, {"out": out.contiguous()}


# Schemes --------------------------------------------------------------------------------------------------------------


def qkv(device: Device, seed: int, shape: list[int], kind: torch.dtype, *, cut: bool) -> tuple[MeshTensor, ...]:
    """Three seeded tensors, heads over tp, tokens over sp if ``cut``."""
    placements = shards(device.groups, tp=1, **({"sp": 2} if cut else {}))
    return tuple(MeshTensor(seeded(seed + i, shape, kind), placements) for i in range(3))


def attention_only(
    device: Device,
    *,
    heads: int,
    rows: int,
    prompt_rows: int,
    with_lse: bool = False,
) -> Answer:
    """joint_attention of local tensors (1, heads, rows, 8), without putting anything together afterwards."""
    sp = device.groups["sp"].size
    kind = device.options.storage
    split = device.options.prompt_layout == "split"
    spatial = qkv(device, 10 * device.rank, [1, heads, rows, 8], kind, cut=True)
    prompt = qkv(device, 5, [1, heads, prompt_rows, 8], kind, cut=split) if prompt_rows else None
    joint_attention(
        device,
        spatial,
        prompt,
        tokens=TokenShards(rows * sp, sp, rows),
        prompt_tokens=TokenShards(prompt_rows * sp, sp, prompt_rows) if split else None,
        with_lse=with_lse,
    )
    return {}, {}


def silent_prompt(device: Device, *, split: bool) -> Answer:
    """joint_attention of one image and prompt, with and without queries of the prompt."""
    sp = device.groups["sp"].size
    image = qkv(device, 10 * device.rank, [1, 4, 6, 8], torch.float32, cut=True)
    prompt = qkv(device, 5, [1, 4, 3, 8], torch.float32, cut=split)
    silent = (prompt[0].with_local(prompt[0].local[:, :, :0]), *prompt[1:])
    options = {
        "tokens": TokenShards(6 * sp, sp, 6),
        "prompt_tokens": TokenShards(3 * sp, sp, 3) if split else None,
    }
    asked = joint_attention(device, image, prompt, **options)[0]
    out, prompt_out, _ = joint_attention(device, image, silent, **options)
    return {"difference": float((out.local - asked.local).abs().max()), "prompt_rows": prompt_out.shape[2]}, {}


def megatron_pair(device: Device, *, features: int, hidden: int, padded: int, garbage: float) -> Answer:
    """Column linear, GELU, row linear, gather; the hidden features are cut over tp and padded to ``padded``.

    The padded lanes have zero weights on both sides; a bias puts ``garbage`` into the padded hidden activation.
    """
    tp = device.groups["tp"]
    g = torch.Generator().manual_seed(0)
    w1, b1 = torch.randn(hidden, features, generator=g), torch.randn(hidden, generator=g)
    w2, b2 = torch.randn(features, hidden, generator=g), torch.randn(features, generator=g)
    x = torch.randn(2, 3, features, generator=g)
    extra = padded - hidden
    w1, b1 = torch.nn.functional.pad(w1, (0, 0, 0, extra)), torch.nn.functional.pad(b1, (0, extra), value=garbage)
    w2 = torch.nn.functional.pad(w2, (0, extra))
    hidden_lanes, out_lanes = slice(*shard_range(padded, tp)), slice(*shard_range(features, tp))
    y = column_linear(device, MeshTensor(x, {"tp": Replicate()}), w1[hidden_lanes], b1[hidden_lanes])
    y = y.map("gelu", torch.nn.functional.gelu)
    y = row_linear(device, y, w2[:, hidden_lanes], b2[out_lanes])
    return {"placement": str(y.placement("tp"))}, {"out": gather_features(device, y).local.contiguous()}


def wrong_placement(device: Device) -> Answer:
    """Hand a partial sum to an element-wise op on every rank."""
    tp = device.groups["tp"].size
    x = MeshTensor(torch.ones(2, 4))
    partial = x.with_local(x.local, tp=Partial("sum"))
    column_linear(device, partial, torch.ones(4 // tp, 4), None)
    return {}, {}


def tokens_round_trip(device: Device, *, logical_n: int, dim: int) -> Answer:
    """Cut a tensor over sp and gather it again."""
    sp = device.groups["sp"]
    shape = [2, 3, 4]
    shape[dim] = logical_n
    full = seeded(0, shape, torch.float32)
    tokens = TokenShards.of(logical_n, sp.size)
    local = cut_tokens(device, MeshTensor(full), tokens, dim=dim)
    again = gather_tokens(device, local, tokens, dim=dim)
    return {
        "local": list(local.shape),
        "placements": [str(x.placement("sp")) for x in (local, again)],
        "same": torch.equal(again.local, full),
    }, {}


def batch_round_trip(device: Device, *, batch: int) -> Answer:
    """Split a batch over cfg and gather it again."""
    full = seeded(0, [batch, 3], torch.float32)
    start, stop = batch_range(device, batch)
    return {"samples": [start, stop], "same": torch.equal(gather_batch(device, full[start:stop]), full)}, {}


# Ranks that live, fail and hang ---------------------------------------------------------------------------------------


def pids(device: Device) -> Answer:
    return {"pid": os.getpid()}, {}


def freed_again(device: Device) -> Answer:
    """Page faults of three tensors of 12, 6 and 12 MB made and freed twenty times, after a few times."""
    import resource

    def make() -> None:
        [torch.ones(size) for size in (3_000_000, 1_500_000, 3_000_000)]

    for _ in range(10):
        make()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        make()
    return {"faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before}, {}


def large_buffers(device: Device) -> Answer:
    """Report what two buffers of 8 MiB hold as they are handed out; then the first holds 1, the second 2."""
    buffers = [device.buffers.persistent(name, (2 << 20,), torch.float32).tensor for name in "kv"]
    found = [float(buffer[-1]) for buffer in buffers]
    for number, buffer in enumerate(buffers, start=1):
        buffer.fill_(number)
    return {"found": found}, {}


def gloo_is_joined(device: Device) -> Answer:
    """Whether this rank is in a process group, and gathers everybody's number."""
    return {"joined": dist.is_initialized(), "ranks": gathered_ranks(device)[0]["ranks"]}, {}


_LAST_DEVICE: list[weakref.ref[Device]] = []


def last_device_is_gone(device: Device) -> Answer:
    """Whether the device of the job before this one has been freed, with all its buffers."""
    gone = all(last() is None for last in _LAST_DEVICE)
    _LAST_DEVICE[:] = [weakref.ref(device)]
    return {"gone": gone}, {}


def listening(device: Device) -> Answer:
    """Report the addresses at which this rank and the process that started it take connections."""
    import psutil

    found = {}
    for who, pid in {"rank": os.getpid(), "parent": os.getppid()}.items():
        sockets = psutil.Process(pid).net_connections(kind="inet")
        found[who] = sorted({s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN})
    return found, {}


def gathered_ranks(device: Device) -> Answer:
    """Something to get right: every rank's number, gathered over sp."""
    mine = torch.full((3,), float(device.rank))
    return {"ranks": all_gather(device, mine, device.groups["sp"], dim=0)[::3].tolist()}, {}


def one_fails(device: Device, *, rank: int, how: str, inside: bool = False) -> Answer:
    """``rank`` fails while the others wait for it; ``inside`` a collective and after it has posted a send, which nobody
    receives."""
    group = device.groups["sp"]
    with device.collective("demo", group) if inside else nullcontext():
        if device.rank == rank:
            if inside:
                device.isend(torch.ones(2), group, (group.index + 1) % group.size, step=3, channel=1)
                _until_the_others_wait(device)
            _fail(how)
        all_gather(device, torch.ones(2), group, dim=0)
    return {}, {}


def sends_first(device: Device, *, numbers: int) -> Answer:
    """Two ranks that each wait for their send before they receive."""
    group, arrived = device.groups["sp"], torch.empty(numbers)
    other = 1 - group.index
    device.isend(torch.full((numbers,), float(group.index)), group, other, step=0).wait()
    device.irecv(arrived, group, other, step=0).wait()
    return {"arrived": float(arrived[0])}, {}


def _until_the_others_wait(device: Device) -> None:
    """Return when every other rank says on the board that it waits for a transfer, within half a minute."""
    board, until = device._board, time.monotonic() + 30
    assert board is not None
    others = [rank for rank in range(device.mesh.num_devices) if rank != device.rank]
    while not all((events := board.recent(rank)) and events[-1][1].kind is Kind.WAITING for rank in others):
        assert time.monotonic() < until, "the other ranks never waited"
        time.sleep(0.001)  # nothing wakes a rank when another one writes to the board


def _fail(how: str) -> None:
    if how == "raise":
        raise ValueError("planted")
    if how == "exit":
        os._exit(3)
    if how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "sigstop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "hang":
        threading.Event().wait()


def hang_aloud(device: Device) -> Answer:
    """Say so on the launcher's stdout, then never return."""
    os.write(1, b"hanging\n")
    threading.Event().wait()
    return {}, {}


def wait_in_a_circle(device: Device) -> Answer:
    """Every rank receives from its neighbour and none of them sends."""
    group = device.groups["sp"]
    device.irecv(torch.empty(3), group, (group.index + 1) % group.size, step=0).wait()
    return {}, {}


def wait_for_nothing(device: Device) -> Answer:
    """Rank 1 receives from rank 0, which sends to nobody and ends."""
    if device.rank == 1:
        device.irecv(torch.empty(3), device.groups["sp"], 0, step=0).wait()
    return {}, {}


_LEFT_BEHIND: list[Any] = []


def leave_behind(device: Device, *, op: str) -> Answer:
    """Post a transfer between ranks 0 and 1 that nobody answers or waits for, and end."""
    group, stale = device.groups["sp"], torch.full((3,), 666.0)
    if op == "send" and device.rank == 0:
        _LEFT_BEHIND.append(device.isend(stale, group, 1, step=0))
    if op == "recv" and device.rank == 1:
        _LEFT_BEHIND.append(device.irecv(stale, group, 0, step=0))
    return {}, {}


# Transports -----------------------------------------------------------------------------------------------------------


def handed_on(device: Device, *, dtypes: list[str], sizes: list[int]) -> Answer:
    """Shift a tensor of every dtype and size in bytes (rounded up) around sp, all under way at once."""
    group, n = device.groups["sp"], device.groups["sp"].size
    to, source = (group.index + 1) % n, (group.index - 1) % n
    posted = []
    for dtype, size in itertools.product(dtypes, sizes):
        kind = getattr(torch, dtype)
        shape = [-(-size // kind.itemsize)]
        sent, wanted = (seeded(rank, shape, torch.float32).to(kind) for rank in (device.rank, group.ranks[source]))
        arrived = torch.empty_like(wanted)
        transfers = [device.isend(sent, group, to, step=0), device.irecv(arrived, group, source, step=0)]
        posted.append((f"{dtype} {size}", transfers, arrived, wanted))
    for transfer in [transfer for _, transfers, _, _ in posted for transfer in transfers]:
        transfer.wait()
    return {
        "count": len(posted),
        "wrong": [name for name, _, got, want in posted if differs(got, want) != "same"],
    }, {}


def one_is_killed(device: Device, *, note: str) -> Answer:
    """Rank 1 is killed once rank 0 waits for it, and what rank 0's transfer says then goes into the file ``note``."""
    if device.rank == 1:
        _until_the_others_wait(device)
        _fail("sigkill")
    try:
        device.irecv(torch.empty(3), device.groups["sp"], 1, step=0).wait()
    except CommError as e:
        Path(note).write_text(str(e))
        raise
    return {}, {}
