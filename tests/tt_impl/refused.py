"""Faults that make a program ask for more than a device has; each is called before the program (``fault=``).

What ttnn has to refuse is the wing's own SD3.5 forward, so that the refusal comes from where it would come in earnest.
"""

from __future__ import annotations

from typing import Any


def huge_chunks() -> None:
    """Attention's chunks need more L1 for circular buffers than a core has."""
    from tt_impl.parallel import sdpa

    sdpa._CHUNKS = dict.fromkeys(sdpa._CHUNKS, (2048, 2048))


def ragged_chunks() -> None:
    """Chunks that are no whole tiles."""
    _chunks(48, 48)


def long_chunks() -> None:
    """Chunks longer than the sequence of a device."""
    _chunks(1024, 1024)


def _chunks(q: int, k: int) -> None:
    import ttnn

    from tt_impl.parallel import ring

    def program_config(ctx: Any, rows: int, *, reserve_row: bool) -> ttnn.SDPAProgramConfig:
        grid = ctx.device.compute_with_storage_grid_size()
        return ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=(grid.x, grid.y - 1), q_chunk_size=q, k_chunk_size=k, exp_approx_mode=False
        )

    ring.program_config = program_config


def short_gather_buffer() -> None:
    """The persistent buffer of all_gather has room for one shard only."""
    _short("all_gather")


def short_ring_buffer() -> None:
    """The persistent buffer of the ring's K has room for one shard only."""
    _short("ring.k")


def _short(name: str) -> None:
    import ttnn

    from tt_impl.parallel.manager import CCLManager

    original = CCLManager.gather_buffer

    def gather_buffer(self: CCLManager, x: ttnn.Tensor, **kwargs: Any) -> ttnn.Tensor:
        buffer = original(self, x, **kwargs)
        if kwargs.get("name", "all_gather") != name:
            return buffer
        return ttnn.zeros(list(x.shape), dtype=x.dtype, layout=x.layout, device=self.device)

    CCLManager.gather_buffer = gather_buffer


def activations_in_l1() -> None:
    """The feed-forward's hidden tensor is asked to lie in L1, which has no room for it."""
    import ttnn

    from tt_impl.layers import linear

    def call(self: linear.ColParallelLinear, x: ttnn.Tensor) -> ttnn.Tensor:
        return ttnn.linear(x, self._weight, bias=self._bias, memory_config=ttnn.L1_MEMORY_CONFIG)

    linear.ColParallelLinear.__call__ = call
