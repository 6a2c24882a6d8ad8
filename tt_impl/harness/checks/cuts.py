"""Which dims of a tensor are cut over the mesh for certain: as the program put them there, not as ttnn names results.

from_torch with a mapper, mesh_partition      cut as they say
reduce_scatter of a dim                       cut along it, too
all_gather along an axis                      cut along it no more
element by element                            as the operands of the same shape
anything else                                 nobody knows
"""

from __future__ import annotations

from tt_impl.harness.checks.linear import bare, operands
from tt_impl.mock.log.events import Event, TensorUse
from tt_impl.mock.rules.binary import BINARY
from tt_impl.mock.rules.eltwise import UNARY

FROM_HOST = frozenset(f"ttnn.{name}" for name in ("from_torch", "as_tensor", "to_device", "Tensor.to"))
_BY_ELEMENT = frozenset(UNARY) | frozenset(BINARY) | frozenset("addcmul clone mac to_memory_config typecast".split())

Cut = tuple[Event, int]
"""The call that cut a tensor along an axis, and the dim, counted from the last (-1)."""


class Cuts:
    """Cuts of the tensors of a program, by mesh axis, while its calls are followed one by one."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, Cut]] = {}

    def of(self, use: TensorUse) -> dict[int, Cut]:
        """Return by axis of the mesh what cut a tensor, and which dim."""
        return self._of.get(use.buffer, {})

    def follow(self, event: Event) -> None:
        """Take over what a call makes of its operands' cuts."""
        results = [*event.outputs, *(use for use in event.inputs if use.buffer in event.written)]
        cuts = [self._after(event, use) for use in results]
        for use, now in zip(results, cuts, strict=True):
            self._of.pop(use.buffer, None)
            if now:
                self._of[use.buffer] = now

    def _after(self, event: Event, result: TensorUse) -> dict[int, Cut]:
        if event.op in FROM_HOST and not event.inputs:
            dims = enumerate(cut_dims(result))
            return {axis: (event, dim % len(result.shape) - len(result.shape)) for axis, dim in dims if dim is not None}
        uses = operands(event)
        if bare(event) in _BY_ELEMENT and not event.collectives:
            whole = [use for use in uses.values() if use.shape == result.shape]
            return {axis: cut for use in whole for axis, cut in self.of(use).items()}
        if 0 not in uses or len(event.outputs) > 1:
            return {}
        before = self.of(uses[0])
        dim = event.options.get("dim", event.options.get("1"))
        crossed = {(c["collective"], c["axis"]) for c in event.collectives if "within" not in c}
        if bare(event) == "mesh_partition":
            crossed = {("reduce_scatter", event.options.get("cluster_axis", event.options.get("2")))}
        if len(crossed) != 1 or not isinstance(dim, int):
            return {}
        ((collective, axis),) = crossed
        if axis is None or collective not in ("reduce_scatter", "all_gather"):
            return {}
        others = {along: cut for along, cut in before.items() if along != axis}
        return others | (
            {axis: (event, dim % len(result.shape) - len(result.shape))} if collective != "all_gather" else {}
        )


def cut_dims(use: TensorUse) -> tuple[int | None, ...]:
    """Return the dim that is cut along each of two axes; over a mesh of one row a dim is cut along its columns.

    Along an axis of one device nothing is cut, whatever the mapper says.
    """
    if len(use.placements) == len(use.mesh) == 2:
        dims: tuple[int | None, ...] = use.placements
    else:
        dim = use.placements[0] if use.placements else None
        dims = (dim if use.mesh[-1:] == (1,) else None, dim if use.mesh[:1] == (1,) else None)
    sizes = use.mesh if len(use.mesh) == 2 else (2, 2)
    return tuple(dim if size > 1 else None for dim, size in zip(dims, sizes, strict=True))


def is_dim(use: TensorUse, dim: int | None, wanted: int) -> bool:
    """Say whether ``dim``, counted from either end, is dim ``wanted`` of a tensor, counted from its last (-1)."""
    return dim is not None and dim % len(use.shape) == len(use.shape) + wanted
