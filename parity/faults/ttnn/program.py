"""Faults of the device backend around the blocks: cfg groups, positions, buffers, links, topology, lifetime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from parity.faults.around import Patch, around, at, instead
from parity.faults.registry import fault
from parity.faults.ttnn.cases import CFG2, SP2_DUAL, SP2_TP4, TP2, WHOLE_SP2
from parity.faults.ttnn.device import ttnn

cfg = partial(fault, "cfg", case=CFG2)
positions = partial(fault, "positions", case=WHOLE_SP2)
buffers = partial(fault, "buffers", case=SP2_DUAL)
resources = partial(fault, "resources", case=TP2)


@cfg(
    "The cfg groups are swapped: the first one gets the positive half.",
    "the other convention of the order of negative and positive",
)
def cfg_groups_swapped() -> Patch:
    return _cfg_inputs([1, 0])


@cfg("Both cfg groups get the negative half.", "the batch replicated over submeshes instead of cut")
def cfg_groups_alike() -> Patch:
    return _cfg_inputs([0, 0])


def _cfg_inputs(order: list[int]) -> Patch:
    """Give the groups the halves of the batch in this order."""

    @at("tt_impl.pipelines.transformer:program")
    def program(original: Callable, *args: Any, inputs: dict[str, torch.Tensor], **more: Any) -> Any:
        dealt = {name: torch.cat([x.chunk(2)[i] for i in order]) for name, x in inputs.items()}
        return original(*args, inputs=dealt, **more)

    return program()


@positions(
    "Every device adds the first rows of the positional table.",
    "a table cropped to the shard's length and not cut over sp",
)
@at("tt_impl.layers.embeddings:PatchEmbed.__call__")
def positions_not_cut(original: Callable, self: Any, latent: torch.Tensor) -> Any:
    from tt_impl.parallel.context import Context

    def put(plain: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        if x.shape[-1] == latent.shape[1] * 4:  # patches; the other one is the table
            return plain(ctx, x, **where)
        first = x[:, :, : x.shape[2] // ctx.sp]
        return plain(ctx, torch.cat([first] * ctx.sp, 2), **where)

    with around(Context, "put", put):
        return original(self, latent)


@buffers(
    "One buffer instead of a ping-pong pair.",
    "memory saved by halving the persistent buffers",
    says="buffer 0 .* may still read it",
)
def single_buffer() -> Patch:
    from tt_impl.parallel import manager

    return instead(manager, "SLOTS", 1)


@buffers(
    "A gather's reader takes the buffer of the gather before.",
    "the ping-pong index advanced before the read instead of after it",
    case=TP2,
)
@at("tt_impl.parallel.manager:CCLManager._all_gather")
def stale_buffer(original: Callable, self: Any, x: Any, buffer: Any, **more: Any) -> Any:
    original(self, x, buffer, **more)
    return next(b for pair in self._buffers.values() if any(c is buffer for c in pair) for b in pair if b is not buffer)


@resources(
    "Four Ethernet links are asked for where the mesh has one.",
    "num_links of a larger product",
    says="asks for 4 links, but n300",
)
@at("tt_impl.parallel.manager:CCLManager.__init__")
def links_beyond_the_mesh(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    self.num_links = [4, 4]


@resources(
    "A Ring is asked for on an axis that is a line.",
    "topology of a Galaxy on a smaller mesh",
    case=SP2_TP4,
    says="Ring on axis . of t3k .*, which is a line",
)
@at("tt_impl.parallel.manager:CCLManager.__init__")
def ring_on_a_line(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    self.topology = [ttnn.Topology.Ring] * 2


@resources(
    "A bias is freed before it is used.",
    "deallocate after the first block, of a tensor that the second one shares",
    says="uses a .* tensor of shape .* that was deallocated before",
)
@at("tt_impl.layers.linear:RowParallelLinear.__call__")
def use_after_free(original: Callable, self: Any, *args: Any) -> Any:
    ttnn.deallocate(self._bias)
    return original(self, *args)
