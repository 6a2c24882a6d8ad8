"""Faults that make a program ask for more than a device has; each is called before the program (``fault=``).

What ttnn has to refuse is tt_impl's own SD3.5 forward, so that the refusal comes from where it would come in earnest.
"""

from __future__ import annotations

from typing import Any


def huge_chunks() -> None:
    """Attention's chunks need more L1 for circular buffers than a core has."""
    from tt_impl.parallel import sdpa

    sdpa._CHUNKS, sdpa._DEFAULT = {}, (2048, 2048)


def long_chunks() -> None:
    """Chunks longer than the rows a device has, and than its L1."""
    _chunks(1024)


def _chunks(size: int) -> None:
    import ttnn

    from tt_impl.parallel import ring

    original = ring.program_config

    def program_config(*args: Any, **kwargs: Any) -> ttnn.SDPAProgramConfig:
        config = original(*args, **kwargs)
        config.q_chunk_size = config.k_chunk_size = size
        return config

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


def hidden_in_l1() -> None:
    """What a layer hands to itself is asked to lie in L1, however long it is."""
    import ttnn

    from tt_impl.parallel import programs

    programs.activation_memory = lambda rows: ttnn.L1_MEMORY_CONFIG
