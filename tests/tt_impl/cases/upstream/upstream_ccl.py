"""All-gather and reduce-scatter at the shapes of upstream's own tests.

Those are tests/nightly/t3000/ccl/test_minimal_{all_gather,reduce_scatter}_async.py: eight devices in a row. Gathers of
parts that are no whole tiles take ttnn's composite path. ``tt_impl`` refuses to cut a tile into parts of several
devices, which the scatters of that kind do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from refsim.base.errors import UserError
from tests.tt_impl.env import Env, raises

DEVICES = 8
TILE = 32

# Name: the gathered shape, dim, dtype, layout, whether into a persistent buffer.
GATHERED: dict[str, tuple[tuple[int, ...], int, str, str, bool]] = {
    "sd35_spatial": ((1, 1, 1024, 5120), 3, "bfloat16", "TILE", True),
    "dim_0": ((8, 1, 512, 512), 0, "bfloat16", "TILE", False),
    "dim_2": ((1, 1, 1024, 1024), 2, "bfloat16", "TILE", True),
    "dim_last": ((1, 1, 1024, 1024), -1, "bfloat16", "TILE", True),
    "dim_3_padded_rows": ((1, 1, 48, 1024), 3, "bfloat16", "TILE", True),
    "dim_last_padded_rows": ((1, 1, 48, 1024), -1, "bfloat16", "TILE", True),
    "composite_one_column": ((1, 1, 1, 8), 3, "bfloat16", "TILE", False),
    "composite_heads": ((1, 16, 32, 32), 1, "bfloat16", "TILE", True),
    "sd35_spatial_bfp8": ((1, 1, 1024, 5120), 3, "bfloat8_b", "TILE", True),
}

# Name: the shape of each device's summand, dim, dtype, layout, whether into persistent buffers.
SCATTERED: dict[str, tuple[tuple[int, ...], int, str, str, bool]] = {
    "dim_0_one": ((16, 2, 128, 128), 0, "bfloat16", "TILE", True),
    "dim_0_two": ((8, 2, 128, 128), 0, "bfloat16", "TILE", False),
    "dim_1_one": ((2, 24, 256, 256), 1, "bfloat16", "TILE", True),
    "dim_1_two": ((2, 16, 56, 56), 1, "bfloat16", "TILE", False),
    "dim_1_three": ((2, 8, 512, 512), 1, "bfloat16", "TILE", True),
    "dim_2_one": ((2, 4, 1024, 1024), 2, "bfloat16", "TILE", True),
    "dim_2_two": ((4, 1, 1024, 340), 2, "bfloat16", "TILE", False),
    "dim_2_three": ((1, 1, 512, 512), 2, "bfloat16", "TILE", True),
    "dim_1_of_four": ((2, 4, 1024, 1024), 3, "bfloat16", "TILE", True),
    "padded_rows_one": ((1, 1, 13, 512), 3, "bfloat16", "TILE", False),
    "padded_rows_two": ((3, 1, 41, 512), 3, "bfloat16", "TILE", True),
    "batch_8": ((8, 1, 512, 2560), 3, "bfloat16", "TILE", True),
    "batch_4": ((4, 1, 1024, 2560), 3, "bfloat16", "TILE", False),
    "sd35_spatial": ((1, 1, 1024, 2560), 3, "bfloat16", "TILE", True),
    "sd35_prompt": ((1, 1, 352, 2560), 3, "bfloat16", "TILE", True),
    "batch_2": ((2, 1, 2048, 2560), 3, "bfloat16", "TILE", False),
    "batch_1": ((1, 1, 4096, 2560), 3, "bfloat16", "TILE", True),
    "composite_one_row": ((1, 1, 1, 8), 3, "bfloat16", "TILE", True),
    "composite_heads": ((2, 32, 2048, 64), 3, "bfloat16", "TILE", False),
    "composite_bfp8": ((1, 1, 1, 16), 3, "bfloat8_b", "TILE", True),
    "composite_row_major": ((1, 1, 29, 32), 3, "bfloat16", "ROW_MAJOR", True),
}


def _different(t: Env, shape: tuple[int, ...], dtype: str, layout: str) -> tuple[Any, list[Tensor]]:
    """A tensor of ``shape`` per device, as the mesh and as each device holds it."""
    whole = torch.empty((DEVICES * shape[0], *shape[1:]), dtype=torch.bfloat16).normal_(generator=t.random)
    held = t.put(whole, (None, 0), dtype=dtype, layout=layout)
    return held, t.shadow.values(held)


def _gather(shape: tuple[int, ...], dim: int, dtype: str, layout: str, persistent: bool) -> Callable[[Env], None]:
    def case(t: Env) -> None:
        ttnn = t.ttnn
        local = list(shape)
        local[dim] //= DEVICES
        x, parts = _different(t, tuple(local), dtype, layout)
        buffer = _like(t, shape, x) if persistent else None
        out = ttnn.experimental.all_gather_async(
            x, persistent_output_buffer=buffer, dim=dim, multi_device_global_semaphore=t.semaphores(2), num_links=1,
            topology=t.linear, cluster_axis=1, barrier_semaphore=t.semaphores(1)[0],
        )  # fmt: skip
        t.check(out, torch.cat(parts, dim), ulps=0)

    return case


def _scatter(shape: tuple[int, ...], dim: int, dtype: str, layout: str, persistent: bool) -> Callable[[Env], None]:
    def case(t: Env) -> None:
        ttnn = t.ttnn
        x, parts = _different(t, shape, dtype, layout)
        local = list(shape)
        local[dim] //= DEVICES
        buffers = [_like(t, (2, *shape), x), _like(t, tuple(local), x)] if persistent else None

        def run() -> Any:
            return ttnn.experimental.reduce_scatter_minimal_async(
                x, persistent_output_buffers=buffers, dim=dim, multi_device_global_semaphore=t.semaphores(3),
                num_links=1, topology=t.linear, cluster_axis=1, barrier_semaphore=t.semaphores(1)[0],
            )  # fmt: skip

        if layout == "TILE" and dim == 3 and local[dim] % TILE:
            raises(UserError, run, "needs a multiple of 256")
            return
        out = run()
        total = sum(parts)
        t.check(out, [piece.contiguous() for piece in total.chunk(DEVICES, dim)])

    return case


def _like(t: Env, shape: tuple[int, ...], x: Any) -> Any:
    return t.ttnn.zeros(shape, dtype=x.dtype, layout=x.layout, device=t.device)


CASES = {f"gather_{name}": _gather(*row) for name, row in GATHERED.items()} | {
    f"scatter_{name}": _scatter(*row) for name, row in SCATTERED.items()
}
