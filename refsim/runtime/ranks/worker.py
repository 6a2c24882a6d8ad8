"""The program side of a rank: build its device, run the program, hand rank 0's answer back.

A *program* is a function ``program(device, **arguments) -> (json, tensors)`` named ``module:function``; every rank
of the mesh runs it. The answer is rank 0's tensors and the JSON values of all ranks. The same code serves ranks forked
here and those torchrun started.
"""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from refsim.base import heap, scratch
from refsim.base.device_numerics import DeviceNumerics
from refsim.base.jobs import Job, failure, injected, named
from refsim.base.options import RunOptions
from refsim.base.padded import noting
from refsim.files import tensor_file
from refsim.runtime import bfloat16
from refsim.runtime.device import Device
from refsim.runtime.ranks import messages
from refsim.runtime.transports import pages, world
from refsim.runtime.transports.shared_transport import Door, connect, use
from refsim.runtime.transports.transport import Transport
from refsim.runtime.watch import hazards
from refsim.runtime.watch.activity import Activity, Kind
from refsim.runtime.watch.status import StatusBoard


def run_job(job: Job, board: StatusBoard | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run a job on this rank; rank 0 returns the answer, with trace and byte counts of all ranks added."""
    job.enter_folder()
    with injected(job.options.fault):
        return _run_job(job, board)


def _run_job(job: Job, board: StatusBoard | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    transport = connect(job.options.transport, job.options.timeout_s, eager=job.options.delay is None)
    if board is not None:
        board.begin_run(transport.rank)
    device = Device(job.options, transport.rank, transport, board=board)
    device.activity(Kind.STARTING, "the program")
    options = job.options
    with (
        torch.inference_mode(),
        bfloat16.products(options.dtype),
        noting() as padded,
        _rounding(options) as without_rule,
    ):
        result, tensors = named(job.program)(device, **job.arguments)
    device.finish()
    if device.observations is not None:
        device.observations.write(job.options.observe, device.rank)
    device.activity(Kind.HANDING_IN, "its trace")
    mine = {
        "result": result,
        "bytes": device.trace.bytes_by_collective(),
        "trace": device.trace.as_json(),
        "not_finite": device.not_finite and device.not_finite.to_json(),
        "suspicious": device.uses.suspicious(),
    }
    every = _to_rank_0(transport, mine)
    hazards = _hazards(transport, device, any(one["suspicious"] for one in every))
    total: Counter[str] = Counter()
    for one in every:
        total.update(one["bytes"])
    answer = {
        "results": [one["result"] for one in every],
        "bytes": dict(total),
        "bytes_per_rank": [one["bytes"] for one in every],
        "collectives": device.collectives,
        "transport": transport.name,
        "padded": [vars(one) for one in padded],
        "rounded_once": dict(without_rule),
        "trace": [event for one in every for event in one["trace"]],
        "not_finite": [one["not_finite"] for one in every],
        "hazards": [vars(hazard) for hazard in hazards],
    }
    return answer, tensors


def _rounding(options: RunOptions) -> contextlib.AbstractContextManager[dict[str, int]]:
    """Let ops be computed as a device does where the options say so; the block gives those without a rule."""
    if not options.device_numerics:
        return contextlib.nullcontext({})
    from refsim.runtime.rounding import as_device

    return as_device(DeviceNumerics.parse(options.device_numerics), options.dtype, options.mesh.arch)


def _hazards(transport: Transport, device: Device, suspicious: bool) -> list[hazards.Hazard]:
    """Return what rank 0 finds in the logs of all ranks, which it asks for only if one of them is ``suspicious``."""
    asked = torch.tensor([suspicious])
    if transport.rank == 0:
        for request in [transport.isend(asked, rank) for rank in range(1, transport.world_size)]:
            request.wait()
    else:
        transport.irecv(asked, 0).wait()
    return hazards.find(_to_rank_0(transport, device.uses.as_json())) if asked else []


def _to_rank_0(transport: Transport, value: Any) -> list[Any]:
    """Gather a JSON value of every rank on rank 0; the others get an empty list."""
    if transport.rank == 0:
        values = [value]
        for source in range(1, transport.world_size):
            size = torch.empty(1, dtype=torch.int64)
            transport.irecv(size, source).wait()
            text = torch.empty(int(size), dtype=torch.uint8)
            transport.irecv(text, source).wait()
            values.append(json.loads(text.numpy().tobytes()))
        return values
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    transport.isend(torch.tensor([text.numel()]), 0).wait()
    transport.isend(text, 0).wait()
    return []


def serve(sock: socket.socket, board: StatusBoard, rank: int, world_size: int, threads: int) -> None:
    """Run the main loop of a forked rank: find the other ranks, then answer jobs until the launcher hangs up."""
    torch.set_num_threads(threads)
    heap.keep_freed()
    world.forked = rank
    with contextlib.suppress(EOFError, ConnectionError):  # the launcher is gone, and nobody is left to be told
        board.set(rank, Activity(Kind.JOINING, "the other ranks"))
        door = Door()
        messages.send(sock, {"ok": True, "numbers": door.numbers})
        every = messages.receive(sock)[0]["numbers"]
        messages.send(sock, {"ok": True, "reached": door.leads_to(every[(rank + 1) % world_size])})
        use(door.opened(rank, every, reached=messages.receive(sock)[0]["reached"]))
        board.set(rank, Activity(Kind.IDLE))
        while True:
            _answer_job(sock, board, rank, world_size)
            # A device and its buffers know each other, so only the collector frees them. Left to itself it comes so
            # seldom that a rank grows by 1 MB in a hundred runs, and by whatever the largest buffers hold.
            gc.collect()
            pages.trim()


def _answer_job(sock: socket.socket, board: StatusBoard, rank: int, world_size: int) -> None:
    message, _ = messages.receive(sock)
    sys.path[:] = message["sys_path"]
    try:
        if message["store"] and not dist.is_initialized():
            board.set(rank, Activity(Kind.JOINING, "the process group"))
            store = dist.FileStore(message["store"], world_size)
            bound = timedelta(seconds=60)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=bound)
        answer, tensors = run_job(Job.from_json(message["job"]), board)
    except BaseException as e:
        messages.send(sock, failure(e))
        return
    board.set(rank, Activity(Kind.HANDING_IN, "its answer"))
    if rank == 0 and tensors:
        with open(scratch.nameless("answer"), "w+b") as file:
            tensor_file.write(file, tensors)
            file.flush()
            messages.send(sock, {"ok": True, "answer": answer}, fds=[file.fileno()])
    else:
        messages.send(sock, {"ok": True, "answer": answer if rank == 0 else {}})
