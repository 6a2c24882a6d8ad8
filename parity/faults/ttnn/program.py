"""Faults of the device backend around the blocks: cfg groups, positions, buffers, links, topology, lifetime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from parity.faults.ttnn.tools import CFG2, SP2_DUAL, SP2_TP4, TP2, WHOLE_SP2, around, around_init, fault

CFG, POSITIONS, BUFFERS, RESOURCES = "cfg", "positions", "buffers", "resources"


@fault(
    CFG,
    CFG2,
    "The cfg groups are swapped: the first one gets the positive half.",
    "the other convention of the order of negative and positive",
)
def cfg_groups_swapped() -> None:
    _cfg_inputs([1, 0])


@fault(CFG, CFG2, "Both cfg groups get the negative half.", "the batch replicated over submeshes instead of cut")
def cfg_groups_alike() -> None:
    _cfg_inputs([0, 0])


def _cfg_inputs(order: list[int]) -> None:
    from tt_impl.pipelines import transformer

    def program(original: Callable, *args: Any, inputs: dict[str, torch.Tensor], **more: Any) -> Any:
        dealt = {name: torch.cat([x.chunk(2)[i] for i in order]) for name, x in inputs.items()}
        return original(*args, inputs=dealt, **more)

    around(transformer, "program", program)


@fault(
    POSITIONS,
    WHOLE_SP2,
    "Every device adds the first rows of the positional table.",
    "a table cropped to the shard's length and not cut over sp",
)
def positions_not_cut() -> None:
    from tt_impl.layers.embeddings import PatchEmbed
    from tt_impl.parallel.context import Context

    def call(original: Callable, self: Any, latent: torch.Tensor) -> Any:
        plain = Context.put

        def put(ctx: Any, x: torch.Tensor, **where: Any) -> Any:
            if x.shape[-1] == latent.shape[1] * 4:  # patches; the other one is the table
                return plain(ctx, x, **where)
            first = x[:, :, : x.shape[2] // ctx.sp]
            return plain(ctx, torch.cat([first] * ctx.sp, 2), **where)

        Context.put = put
        try:
            return original(self, latent)
        finally:
            Context.put = plain

    around(PatchEmbed, "__call__", call)


@fault(
    BUFFERS,
    SP2_DUAL,
    "One buffer instead of a ping-pong pair.",
    "memory saved by halving the persistent buffers",
    says="buffer 0 .* may still read it",
)
def single_buffer() -> None:
    from tt_impl.parallel import manager

    manager.SLOTS = 1


@fault(
    BUFFERS,
    TP2,
    "A gather's reader takes the buffer of the gather before.",
    "the ping-pong index advanced before the read instead of after it",
)
def stale_buffer() -> None:
    from tt_impl.parallel.manager import CCLManager

    def gather(original: Callable, self: Any, x: Any, buffer: Any, **more: Any) -> Any:
        original(self, x, buffer, **more)
        return next(
            b for pair in self._buffers.values() if any(c is buffer for c in pair) for b in pair if b is not buffer
        )

    around(CCLManager, "_all_gather", gather)


def _ccl(change: Callable[[Any], None]) -> None:
    from tt_impl.parallel.manager import CCLManager

    def init(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        change(self)

    around_init(CCLManager, init)


@fault(
    RESOURCES,
    TP2,
    "Four Ethernet links are asked for where the mesh has one.",
    "num_links of a larger product",
    says="asks for 4 links, but n300",
)
def links_beyond_the_mesh() -> None:
    def change(ccl: Any) -> None:
        ccl.num_links = [4, 4]

    _ccl(change)


@fault(
    RESOURCES,
    SP2_TP4,
    "A Ring is asked for on an axis that is a line.",
    "topology of a Galaxy on a smaller mesh",
    says="Ring on axis . of t3k .*, which is a line",
)
def ring_on_a_line() -> None:
    import ttnn

    def change(ccl: Any) -> None:
        ccl.topology = [ttnn.Topology.Ring] * 2

    _ccl(change)


@fault(
    RESOURCES,
    TP2,
    "A bias is freed before it is used.",
    "deallocate after the first block, of a tensor that the second one shares",
    says="uses a .* tensor of shape .* that was deallocated before",
)
def use_after_free() -> None:
    import ttnn

    from tt_impl.layers.linear import RowParallelLinear

    def call(original: Callable, self: Any, *args: Any) -> Any:
        ttnn.deallocate(self._bias)
        return original(self, *args)

    around(RowParallelLinear, "__call__", call)
