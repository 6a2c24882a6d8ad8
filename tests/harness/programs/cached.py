"""Programs that run a cached program which ttnn built for other arguments; see ``mistakes``."""

from __future__ import annotations

from typing import Any

from tests.tt_impl.env import Env


def gather(t: Env, **options: Any) -> Any:
    """A gather of columns fused with a product, after what other programs left in the cache is gone."""
    ttnn = t.ttnn
    x, weight = t.put(t.rand(1, 1, 64, 1024), (None, 3)), t.put(t.rand(1024, 384))
    config = ttnn.MinimalMatmulConfig(
        M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
        compute_with_storage_grid_size=ttnn.CoreCoord(6, 6),
    )  # fmt: skip
    ttnn.synchronize_device(t.device)
    return ttnn.experimental.all_gather_minimal_matmul_async(  # here
        x, weight, config=config, num_workers_per_link=6, multi_device_global_semaphore=t.semaphores(2), num_links=1,
        cluster_axis=1, topology=t.linear, persistent_output_buffer=t.empty(1, 1, 64, 1024), **options,
    )  # fmt: skip


def _two(t: Env, first: dict[str, Any], second: dict[str, Any], wrong: bool) -> None:
    """Two calls that differ in some options; the correct one clears the cache in between."""
    t.device.clear_program_cache()
    for options in (first, second):
        for y in gather(t, **options):
            t.ttnn.to_torch(t.ttnn.get_device_tensors(y)[0])
        if not wrong:
            t.device.clear_program_cache()


def cached_activation(t: Env, wrong: bool) -> None:
    """tt-metal #57357: the second call asks for GELU, and a device does without."""
    _two(t, {"fused_activation": None}, {"fused_activation": (t.ttnn.UnaryOpType.GELU, False)}, wrong)


def cached_dtype(t: Env, wrong: bool) -> None:
    """The second call's result is float32, which the kernels of the first do not write."""
    _two(t, {}, {"dtype": t.ttnn.float32}, wrong)


EXPECTED = {
    "cached_activation": ("cached-program", "ttnn.experimental.all_gather_minimal_matmul_async"),
    "cached_dtype": ("cached-program", "ttnn.experimental.all_gather_minimal_matmul_async"),
}
