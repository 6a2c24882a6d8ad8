"""Operations behind a receive whose send has not been made yet: they wait, as in the queue of a device.

``recv_async`` before its ``send_async`` is no mistake: the host goes on, the devices of the receiver wait. What a
program then calls on them is built as usual, and computed in order as soon as the send is there. A host that reads
from them before would wait for ever, and is told so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import ttnn

from tt_impl.mock.storage.errors import ShadowError
from tt_impl.mock.storage.values import Store


@dataclass
class Queue:
    """What devices have not done yet.

    Attributes:
        devices: their numbers in the system.
        reader: the receive that they wait in.
        steps: the things to do in order, each with what it waits for: a sequence that is empty until then, or None.
    """

    devices: frozenset[int]
    reader: str
    steps: deque[tuple[Any, Callable[[], Any]]] = field(default_factory=deque)

    def advance(self) -> bool:
        """Do what waits for nothing; tell whether anything was done."""
        before = len(self.steps)
        while self.steps and (self.steps[0][0] is None or self.steps[0][0]):
            self.steps.popleft()[1]()
        return len(self.steps) < before


class Queues:
    """All devices that wait; as long as there are any, ``store`` keeps what they have still to read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Queue] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def of(self, tensors: Iterable[ttnn.Tensor], meshes: Iterable[ttnn.MeshDevice] = ()) -> Queue | None:
        """Find the queue in which an operation on ``tensors`` or ``meshes`` has to stand; None: it may run now."""
        if not self._waiting:
            return None
        devices = {number for tensor in tensors for number in tensor.device().get_device_ids()}
        devices |= {number for mesh in meshes for number in mesh.get_device_ids()}
        queues = [queue for queue in self._waiting if queue.devices & devices]
        if not queues:
            return None
        if len(queues) > 1 or not devices <= queues[0].devices:
            raise ShadowError(f"an operation on devices of which only some wait in {queues[0].reader} has no values.")
        return queues[0]

    def add(self, tensor: ttnn.Tensor, reader: str) -> Queue:
        """Have the devices of ``tensor`` wait."""
        queue = Queue(frozenset(tensor.device().get_device_ids()), reader)
        self._waiting.append(queue)
        self._store.waiting = True
        return queue

    def advance(self) -> None:
        """Do all that can be done, now that something was sent."""
        while any([queue.advance() for queue in self._waiting]):
            self._waiting = [queue for queue in self._waiting if queue.steps]
        self._store.waiting = bool(self._waiting)
