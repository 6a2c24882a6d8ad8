"""One rank as a program sees it: its groups, its buffers, its transfers, its trace."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

from torch import Tensor

from refsim.base.config import DiTParallelConfig
from refsim.base.errors import HazardError
from refsim.base.finite import NotFinite, first_not_finite
from refsim.base.mesh import MeshSpec
from refsim.base.options import RunOptions
from refsim.runtime.buffers import BufferPool
from refsim.runtime.delays import Delays
from refsim.runtime.group import Group, parallel_groups
from refsim.runtime.tensor import MeshTensor
from refsim.runtime.transports.transport import Transfer, Transport
from refsim.runtime.watch.activity import Activity, Kind
from refsim.runtime.watch.calls import NONE, CallCounter
from refsim.runtime.watch.hazards import Use, UseLog
from refsim.runtime.watch.observe import Observations, Streams
from refsim.runtime.watch.status import StatusBoard
from refsim.runtime.watch.trace import Event, Trace

_BLOCK = re.compile(r"^\w*blocks\.\d+\.")
_Call = TypeVar("_Call", bound=Callable[..., Any])


def in_module(call: _Call) -> _Call:
    """Run a layer's method as the module that the layer's ``_name`` says, see :meth:`Device.module`."""

    @functools.wraps(call)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = self._device  # as Device.module does, whose context manager costs more than what many a layer does
        outer = device._module
        device._module = self._name or device._module
        try:
            return call(self, *args, **kwargs)
        finally:
            device._module = outer

    return cast(_Call, run)


class Device:
    """One mesh device, played by one process.

    Without a transport it can still be asked for its groups and load its weights as meta tensors; that is how the
    launching process validates a checkpoint before it starts any rank.

    Attributes:
        options: of the run; layers and schemes read how they are carried out from here.
        groups: the groups this rank belongs to, by name (``cfg``, ``tp``, ``sp``, ``ring``, ``ulysses``).
        not_finite: the first activation that an op read and that held NaN or infinity.
        observations: what layers took and gave; None unless ``options.observe`` asks for it.
        current_stage: the part of the model that runs, as :meth:`stage` said it last.
    """

    def __init__(
        self,
        options: RunOptions,
        rank: int = 0,
        transport: Transport | None = None,
        *,
        board: StatusBoard | None = None,
    ) -> None:
        self.options = options
        self.rank = rank
        self.groups: dict[str, Group] = parallel_groups(options.mesh, options.parallel, rank)
        self.uses = UseLog(on=options.detect_hazards)
        self.buffers = BufferPool(released=lambda buffer: self.uses.release(buffer, self._path()), where=self._path)
        self.delays = Delays(rank, *(options.delay or ()))
        self.trace = Trace(rank, keep=options.trace)
        self._transport = transport
        self._board = board
        self.collectives: list[dict[str, Any]] = []
        self._collectives: list[str] = []
        self._calls = CallCounter()
        self._header = NONE
        self._noted = 0
        self._under_way: dict[_Posted, None] = {}
        self.current_stage = Activity(Kind.RUNNING)
        self._module = ""
        self.not_finite: NotFinite | None = None
        self._ops = 0
        self.observations = Observations() if options.observe else None

    @property
    def replica(self) -> tuple[int, int]:
        """Return this rank's number among those that hold the same weights (members of cfg and sp), and their count."""
        cfg = self.groups["cfg"]
        sp = self.groups["sp"]
        return cfg.index * sp.size + sp.index, cfg.size * sp.size

    @property
    def mesh(self) -> MeshSpec:
        """Return the mesh this device is one of."""
        return self.options.mesh

    @property
    def parallel(self) -> DiTParallelConfig:
        """Return the factors of the parallel schemes and their mesh axes."""
        return self.options.parallel

    def collective(self, name: str, group: Group, *moved: Tensor, **options: int | str) -> AbstractContextManager[None]:
        """Open a block in which everything sent belongs to collective ``name``; collectives may nest.

        Members of a group make the same calls in the same order, with ``moved`` of one shape and dtype and the same
        ``options`` (``dim``, ``root``); every message says which call it belongs to, see
        :mod:`refsim.runtime.watch.calls`.

        With ``moved``, what this rank brings to it, it is noted in ``collectives``: one entry for each that is not
        part of another noted one.
        """
        noted = bool(moved) and not self._noted
        if noted:
            size = sum(t.numel() * t.element_size() for t in moved)
            self.collectives.append({"collective": name, "axis": group.axis, "bytes": size, "group": group.name})
        self._noted += noted
        self._collectives.append(name)
        activity = Activity(Kind.COLLECTIVE, f"{group.name} (axis {group.axis})", self._path())
        self.report(activity)
        outer = self._header
        if group.size > 1:
            call = self._calls.next(name, group, moved, options)
            self._header = call.header
            if self._board is not None:
                self._board.add_call(self.rank, call)
        return _Collective(self, activity, noted, outer)

    def compute(
        self, op: str, *tensors: Tensor, step: int = -1, buffer: str = "-", channels_dim: int = -1, again: bool = False
    ) -> AbstractContextManager[None]:
        """Declare that what happens inside the block that this opens is one op of the device, and trace it.

        Args:
            op: the name of that op: ``linear``, ``sdpa``, ``conv3d``, ``rms_norm``, ``group_norm``, ``rope`` ...
            tensors: it reads, the activation first.
            step: of the scheme the op belongs to.
            buffer: id of the device buffer it reads, as the trace is to name it.
            channels_dim: dim of the features that a norm is over; the device holds pictures with theirs last.
            again: the op has read the same activation before, so that it is not looked at for what is not finite.
        """
        if self._transport is not None:
            self._transport.progress()
        if tensors and self.not_finite is None:
            self._ops += 1
            if not again:
                self._look_at(op, tensors[0])
        activity = Activity(Kind.COMPUTING, op, self._path(), step)
        self.report(activity)
        event = self.trace.begin(activity, *tensors, buffer=buffer, where=lambda: self.where)
        return _Computing(self, self._begin_uses(op, tensors, step, writes=False), event)

    def _look_at(self, op: str, x: Tensor) -> None:
        """Note the first activation that is not finite: should the answer not be either, it began there."""
        index = first_not_finite(x)
        if index is not None:
            where = str(self.current_stage)
            self.not_finite = NotFinite(self._ops, op, where, index, tuple(x.shape))

    def observe(self, name: str, x: MeshTensor) -> None:
        """Keep what a layer of this name took or gave, if asked to, see :mod:`refsim.runtime.watch.observe`."""
        if self.observations is not None:
            self.observations.add(name, x)

    def observe_added(self, block: str, before: Streams, after: Streams) -> None:
        """Keep, if the run is asked to, what a block added to each of its streams; those it drops are left out."""
        if self.observations is not None:
            for index, (old, new) in enumerate(zip(before, after, strict=True)):
                if old is not None and new is not None:
                    self.observe(f"{block}+{index}", new.with_local(new.local.float() - old.local.float()))

    def reading(self, op: str, *tensors: Tensor, step: int = -1) -> AbstractContextManager[None]:
        """Open a block in which ``op`` reads ``tensors``; those in no device buffer do not count."""
        return _Computing(self, self._begin_uses(op, tensors, step, writes=False), None)

    def writing(self, op: str, *tensors: Tensor, step: int = -1) -> AbstractContextManager[None]:
        """Open a block in which ``op`` writes ``tensors``; those in no device buffer do not count."""
        return _Computing(self, self._begin_uses(op, tensors, step, writes=True), None)

    def _begin_uses(self, op: str, tensors: tuple[Tensor, ...], step: int, *, writes: bool) -> list[Use]:
        """Log that ``op`` uses those of ``tensors`` that lie in device buffers."""
        uses: list[Use] = []
        if self.uses.on:
            for tensor in tensors:
                buffer = self.buffers.of(tensor)
                if buffer is not None:
                    path = self._path()
                    uses.append(self.uses.begin(tensor, buffer, writes=writes, op=op, step=step, path=path))
        return uses

    def _end_uses(self, uses: list[Use]) -> None:
        for use in uses:
            self.uses.end(use)

    def isend(self, tensor: Tensor, group: Group, to: int, *, step: int, channel: int = 0) -> Transfer:
        """Post a send to member ``to`` of ``group``; ``tensor`` is read until the transfer is waited for.

        Transfers between two ranks arrive in order per ``channel``; across channels they may be posted in any order.
        """
        return _Posted(self, "send", tensor, group, group.ranks[to], step, channel)

    def irecv(self, tensor: Tensor, group: Group, source: int, *, step: int, channel: int = 0) -> Transfer:
        """Post a receive from member ``source``; ``tensor`` is written until the transfer is waited for."""
        return _Posted(self, "recv", tensor, group, group.ranks[source], step, channel)

    def finish(self) -> None:
        """Raise ``HazardError`` if the program forgot a transfer, which would disturb whatever runs next."""
        if self._under_way:
            first = next(iter(self._under_way))
            raise HazardError(f"the program ended without waiting for {len(self._under_way)} transfer(s), as {first}")

    def report(self, activity: Activity) -> None:
        """Say what this rank is doing; the launcher reads it when the rank dies or hangs."""
        if activity.kind is Kind.RUNNING:
            self.current_stage = activity
        if self._board is not None:
            self._board.set(self.rank, activity)

    def activity(self, kind: Kind, what: str = "", *, block: int = -1, step: int = -1) -> None:
        """Report something that moves no data and computes nothing yet, see :meth:`report`."""
        self.report(Activity(kind, what, step=step, block=block))

    def loading(self, what: str) -> None:
        """Say that this rank reads weights: ``device.loading("the text encoder")``."""
        self.activity(Kind.LOADING, what)

    def stage(self, *, block: int = -1, step: int = -1, expert: str = "") -> None:
        """Say that a part of the model runs from now on: ``device.stage(block=3)``."""
        self.activity(Kind.RUNNING, expert, block=block, step=step)

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """Open a block whose ops belong to the module diffusers calls ``name``; of several the innermost counts."""
        outer = self._module
        self._module = name or self._module
        try:
            yield
        finally:
            self._module = outer

    @property
    def current_module(self) -> str:
        """Return the module that runs, inside a block by its name there: ``attn.to_q``."""
        return _BLOCK.sub("", self._module) if self.current_stage.block >= 0 else self._module

    @property
    def where(self) -> str:
        """Return the part of the model that runs and the module in it: ``block 17 / attn.to_q``."""
        return " / ".join(part for part in (self.current_stage.place, self.current_module) if part)

    def progress(self, done: int, total: int) -> None:
        """Say how many of the job's steps are done; read by the launcher while it waits."""
        if self._board is not None:
            self._board.advance(self.rank, done, total)

    def _path(self) -> str:
        return "/".join(self._collectives)


# Classes, since the generator of a ``contextmanager`` costs more than a small op, and every op opens one.


class _Collective(AbstractContextManager[None]):
    """A collective under way, ``noted`` in the device's list or part of one that is."""

    __slots__ = ("_activity", "_device", "_noted", "_outer")

    def __init__(self, device: Device, activity: Activity, noted: bool, outer: bytes) -> None:
        self._device = device
        self._activity = activity
        self._noted = noted
        self._outer = outer

    def __enter__(self) -> None:
        pass

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        device = self._device
        device._collectives.pop()
        device._header = self._outer
        device._noted -= self._noted
        if error is None:
            device.report(self._activity.of_kind(Kind.CONTINUING))


class _Computing(AbstractContextManager[None]):
    """An op under way: uses its memory until it is over; its trace event, if any, ends if nothing is raised."""

    __slots__ = ("_device", "_event", "_uses")

    def __init__(self, device: Device, uses: list[Use], event: Event | None) -> None:
        self._device = device
        self._uses = uses
        self._event = event

    def __enter__(self) -> None:
        pass

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._device._end_uses(self._uses)
        if error is None:
            self._device.trace.end(self._event)


class _Posted:
    """A transfer under way: uses its memory and has a trace event until it is waited for."""

    def __init__(
        self, device: Device, op: str, tensor: Tensor, group: Group, peer: int, step: int, channel: int
    ) -> None:
        self._device = device
        self._activity = Activity(Kind.POSTING, op, device._path(), step, peer)
        if op == "send":
            device.delays.pause()
        buffer = device.buffers.of(tensor)
        self._use = None
        if device.uses.on:
            path = self._activity.collective
            self._use = device.uses.begin(
                tensor, buffer, writes=op == "recv", op=op, step=step, path=path, peer=peer, channel=channel
            )
        id = buffer.id if buffer else "-"
        self._event = device.trace.begin(
            self._activity, tensor, buffer=id, group=group, where=lambda: device.where, channel=channel
        )
        device.report(self._activity)
        transport = device._transport
        if transport is None:
            raise RuntimeError("this device has no transport; it can only describe itself")
        self._transfer = (transport.isend if op == "send" else transport.irecv)(tensor, peer, channel, device._header)
        device._under_way[self] = None

    def __str__(self) -> str:
        return f"{self._activity.transfer} {self._activity.direction}"

    def wait(self) -> None:
        if self._activity.what == "recv":
            self._device.delays.pause()
        self._device.report(self._activity.of_kind(Kind.WAITING))
        self._transfer.wait()
        self._device._under_way.pop(self, None)
        self._device.trace.end(self._event)
        if self._use is not None:
            self._device.uses.end(self._use)
