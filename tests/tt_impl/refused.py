"""Faults that make a program ask for more than a device has; each is entered around the program (``fault=``).

What ttnn has to refuse is tt_impl's own SD3.5 forward, so that the refusal comes from where it would come in earnest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.faults.around import Patch, around, at, instead, together


def huge_chunks() -> Patch:
    """Attention's chunks need more L1 for circular buffers than a core has."""
    from tt_impl.parallel import sdpa

    return together(instead(sdpa, "_CHUNKS", {}), instead(sdpa, "_DEFAULT", (2048, 2048)))


@at("tt_impl.parallel.ring:program_config")
def long_chunks(original: Callable, *args: Any, **kwargs: Any) -> Any:
    """Chunks longer than the rows a device has, and than its L1."""
    config = original(*args, **kwargs)
    config.q_chunk_size = config.k_chunk_size = 1024
    return config


def short_gather_buffer() -> Patch:
    """The persistent buffer of all_gather has room for one shard only."""
    return _short("all_gather")


def short_ring_buffer() -> Patch:
    """The persistent buffer of the ring's K has room for one shard only."""
    return _short("ring.k")


def _short(name: str) -> Patch:
    import ttnn

    from tt_impl.parallel.manager import CCLManager

    def gather_buffer(original: Callable, self: CCLManager, x: ttnn.Tensor, **kwargs: Any) -> ttnn.Tensor:
        buffer = original(self, x, **kwargs)
        if kwargs.get("name", "all_gather") != name:
            return buffer
        return ttnn.zeros(list(x.shape), dtype=x.dtype, layout=x.layout, device=self.device)

    return around(CCLManager, "gather_buffer", gather_buffer)


@at("tt_impl.parallel.programs:activation_memory")
def hidden_in_l1(_: Callable, rows: int) -> Any:
    """What a layer hands to itself is asked to lie in L1, however long it is."""
    import ttnn

    return ttnn.L1_MEMORY_CONFIG
