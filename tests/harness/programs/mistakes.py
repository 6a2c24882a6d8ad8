"""Programs with one mistake each, on a 2x4 mesh of lines, and their correct versions; ``# here`` is the line to name.

Each is a function of an :class:`tests.tt_impl.env.Env` and ``wrong``; ``EXPECTED`` has the kind and the operation.
"""

from __future__ import annotations

from typing import Any

from tests.tt_impl.env import Env

ROWS, COLUMNS = (None, 2), (None, 3)
"""A tensor of rank 4 cut along axis 1 of the mesh: by its rows, or by its columns."""


def into(t: Env, semaphores: Any, buffer: Any = None, **more: Any) -> dict[str, Any]:
    """Arguments of a gather of columns over the line of axis 1, into ``buffer``."""
    ours = {"persistent_output_buffer": buffer, "multi_device_global_semaphore": semaphores}
    return {"dim": 3, "num_links": 1, "topology": t.linear, "cluster_axis": 1} | ours | more


def gather(t: Env, x: Any, semaphores: Any, buffer: Any = None, **more: Any) -> Any:
    return t.ttnn.experimental.all_gather_async(x, **into(t, semaphores, buffer, **more))  # here


def ring_on_a_line(t: Env, wrong: bool) -> None:
    x = t.put(t.rand(1, 1, 32, 128), COLUMNS)
    topology = t.ttnn.Topology.Ring if wrong else t.linear
    y = t.ttnn.all_gather(x, 3, cluster_axis=1, topology=topology)  # here
    t.ttnn.to_torch(t.ttnn.get_device_tensors(y)[0])


def ring_by_default(t: Env, wrong: bool) -> None:
    x = t.put(t.rand(1, 1, 32, 128), COLUMNS)
    options = {} if wrong else {"topology": t.linear}
    y = t.ttnn.experimental.all_gather_async(  # here
        x,
        persistent_output_buffer=None,
        dim=3,
        multi_device_global_semaphore=t.semaphores(2),
        barrier_semaphore=t.semaphores(1)[0],
        cluster_axis=1,
        **options,
    )
    t.ttnn.to_torch(t.ttnn.get_device_tensors(y)[0])


def links(t: Env, wrong: bool) -> None:
    x = t.put(t.rand(1, 1, 32, 128), COLUMNS)
    y = t.ttnn.all_gather(x, 3, cluster_axis=1, topology=t.linear, num_links=4 if wrong else 1)  # here
    t.ttnn.to_torch(t.ttnn.get_device_tensors(y)[0])


def small_buffer(t: Env, wrong: bool) -> None:
    """tt-metal PR #51774: the intermediate buffer of a line needs room for both directions; ttnn looks at no shape."""
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 1024), COLUMNS)
    sums = ttnn.zeros((1 if wrong else 2, 1, 32, 256), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=t.device)
    result = ttnn.zeros((1, 1, 32, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=t.device)
    ttnn.synchronize_device(t.device)
    y = ttnn.experimental.reduce_scatter_minimal_async(  # here
        x,
        persistent_output_buffers=[sums, result],
        dim=3,
        multi_device_global_semaphore=t.semaphores(3),
        num_links=1,
        topology=t.linear,
        cluster_axis=1,
    )
    ttnn.to_torch(ttnn.get_device_tensors(y)[0])


def small_whole(t: Env, wrong: bool) -> None:
    """The parts, of ten columns each, have more padding together than the whole of forty."""
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 40), COLUMNS)
    whole = ttnn.zeros((1, 1, 32, 32 if wrong else 40), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=t.device)
    ttnn.synchronize_device(t.device)
    y = ttnn.experimental.all_gather_async(x, **into(t, t.semaphores(2), whole))  # here
    ttnn.to_torch(ttnn.get_device_tensors(y)[0])


def semaphore_twice(t: Env, wrong: bool) -> None:
    x = t.put(t.rand(1, 1, 32, 128), COLUMNS)
    first, second, barrier = t.semaphores(3)
    pair = [first, first] if wrong else [first, second]
    y = gather(t, x, pair, barrier_semaphore=barrier)
    t.ttnn.to_torch(t.ttnn.get_device_tensors(y)[0])


def one_semaphore_set(t: Env, wrong: bool) -> None:
    """Two gathers in a row without a barrier need two sets of semaphores."""
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 128), COLUMNS)
    sets = [t.semaphores(2), t.semaphores(2)]
    buffers = [t.empty(1, 1, 32, 128) for _ in range(3)]
    ttnn.synchronize_device(t.device)
    for i, buffer in enumerate(buffers):
        y = ttnn.experimental.all_gather_async(x, **into(t, sets[0 if wrong else i % 2], buffer))  # here
        ttnn.to_torch(ttnn.get_device_tensors(ttnn.add(y, 1.0))[0]) if i == 2 else ttnn.add(y, 1.0)


def one_semaphore_set_captured(t: Env, wrong: bool) -> None:
    """What a trace holds runs once its capture has waited for all before it; within it two gathers need two sets."""
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 128), COLUMNS)
    semaphores = t.semaphores(2)
    buffers = [t.empty(1, 1, 32, 128) for _ in range(2)]
    ttnn.synchronize_device(t.device)
    results = [] if wrong else [gather(t, x, semaphores, buffers[0])]
    trace = ttnn.begin_trace_capture(t.device, cq_id=0)
    results += [gather(t, x, semaphores, buffer) for buffer in (buffers if wrong else buffers[1:])]
    ttnn.end_trace_capture(t.device, trace, cq_id=0)
    ttnn.execute_trace(t.device, trace, cq_id=0, blocking=False)
    for y in results:
        ttnn.to_torch(ttnn.get_device_tensors(y)[0])


def semaphores_of_two_axes(t: Env, wrong: bool) -> None:
    """A gather along the other axis in between tells nothing about this one; the correct one synchronises."""
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 64, 128), (2, 3))
    mine, other = t.semaphores(2), t.semaphores(2)
    buffers = [t.empty(1, 1, 32, 128), t.empty(1, 1, 64, 32), t.empty(1, 1, 32, 128)]
    ttnn.synchronize_device(t.device)
    first = gather(t, x, mine, buffers[0])
    between = gather(t, x, other, buffers[1], dim=2, cluster_axis=0)
    if not wrong:
        ttnn.synchronize_device(t.device)
    second = ttnn.experimental.all_gather_async(x, **into(t, mine, buffers[2]))  # here
    for y in (first, between, second):
        ttnn.to_torch(ttnn.get_device_tensors(y)[0])


def one_buffer(t: Env, wrong: bool) -> None:
    """A device ahead writes the next result into a buffer that one behind still reads; two in turn are safe."""
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 128), COLUMNS)
    sets = [t.semaphores(2), t.semaphores(2)]
    buffers = [t.empty(1, 1, 32, 128), t.empty(1, 1, 32, 128)]
    ttnn.synchronize_device(t.device)
    total = t.put(t.rand(1, 1, 32, 128))
    for i in range(3):
        y = ttnn.experimental.all_gather_async(x, **into(t, sets[i % 2], buffers[0 if wrong else i % 2]))  # here
        total = ttnn.add(total, y)
    ttnn.to_torch(ttnn.get_device_tensors(total)[0])


def read_late(t: Env, wrong: bool) -> None:
    """Two buffers in turn are not enough where a result is read after the next gather; tt-metal PR #38374 is kin."""
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 128), COLUMNS)
    sets = [t.semaphores(2), t.semaphores(2)]
    buffers = [t.empty(1, 1, 32, 128), t.empty(1, 1, 32, 128)]
    ttnn.synchronize_device(t.device)
    first = gather(t, x, sets[0], buffers[0])
    early = None if wrong else ttnn.add(first, 1.0)
    second = gather(t, x, sets[1], buffers[1])
    late = ttnn.add(first, 1.0) if wrong else early
    third = ttnn.experimental.all_gather_async(x, **into(t, sets[0], buffers[0]))  # here
    for y in (late, second, third):
        ttnn.to_torch(ttnn.get_device_tensors(y)[0])


def buffer_filled_on_the_way(t: Env, wrong: bool) -> None:
    """tt-metal PR #38374: a device ahead gathers into a buffer that another one is still filling with zeros."""
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 128), COLUMNS)
    buffer = ttnn.zeros((1, 1, 32, 128), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=t.device)
    if not wrong:
        ttnn.synchronize_device(t.device)
    y = ttnn.experimental.all_gather_async(x, **into(t, t.semaphores(2), buffer))  # here
    ttnn.to_torch(ttnn.get_device_tensors(y)[0])


def fused_gather_overtakes(t: Env, wrong: bool) -> None:
    """tt-metal #57458: a gather fused with a matmul, twice into one buffer; upstream's tests synchronise each time."""
    ttnn = t.ttnn
    x, weight = t.put(t.rand(1, 1, 64, 1024), COLUMNS), t.put(t.rand(1024, 384))
    buffer = t.empty(1, 1, 64, 1024)
    sets = [t.semaphores(2), t.semaphores(2)]
    config = ttnn.MinimalMatmulConfig(
        M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
        compute_with_storage_grid_size=ttnn.CoreCoord(6, 6),
    )  # fmt: skip
    results = []
    for semaphores in sets:
        results += ttnn.experimental.all_gather_minimal_matmul_async(  # here
            x, weight, config=config, num_workers_per_link=6, multi_device_global_semaphore=semaphores,
            persistent_output_buffer=buffer, num_links=1, cluster_axis=1, topology=t.linear,
        )  # fmt: skip
        if not wrong:
            ttnn.synchronize_device(t.device)
    for y in results:
        ttnn.to_torch(ttnn.get_device_tensors(y)[0])


def one_buffer_for_two(t: Env, wrong: bool) -> None:
    """K and V of ring attention are gathered into one buffer."""
    ttnn, grid = t.ttnn, t.device.compute_with_storage_grid_size()
    q, k, v = (t.put(t.rand(1, 4, 256, 64), (1, 2)) for _ in range(3))
    buffers = [t.empty(1, 2, 256, 64) for _ in range(2)]
    cores = ttnn.CoreCoord(grid.x, grid.y - 1)
    out, *_ = ttnn.transformer.ring_joint_scaled_dot_product_attention(  # here
        q, k, v, None, None, None, joint_strategy="rear", logical_n=256, dim=2, cluster_axis=1,
        persistent_output_buffer_k=buffers[0], persistent_output_buffer_v=buffers[0 if wrong else 1],
        program_config=ttnn.SDPAProgramConfig(compute_with_storage_grid_size=cores, q_chunk_size=32, k_chunk_size=32),
        multi_device_global_semaphore=t.semaphores(2), num_links=1, mesh_device=t.device, topology=t.linear,
        subdevice_id=ttnn.SubDeviceId(0), ccl_core_grid_offset=ttnn.CoreCoord(0, grid.y - 1),
    )  # fmt: skip
    ttnn.to_torch(ttnn.get_device_tensors(out)[0])


def stale(t: Env, wrong: bool) -> None:
    """K is read after V was gathered into the same buffer."""
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 128), COLUMNS)
    buffers = [t.empty(1, 1, 32, 128), t.empty(1, 1, 32, 128)]
    barrier = t.semaphores(1)[0]
    k = gather(t, x, t.semaphores(2), buffers[0], barrier_semaphore=barrier)
    k = ttnn.reshape(k, (32, 128))
    v = gather(t, ttnn.add(x, 1.0), t.semaphores(2), buffers[0 if wrong else 1], barrier_semaphore=barrier)
    scores = ttnn.multiply(k, ttnn.reshape(v, (32, 128)))  # here
    ttnn.to_torch(ttnn.get_device_tensors(scores)[0])


def gathered_again(t: Env, wrong: bool) -> None:
    """Another tensor is gathered over a result before that is read; the same one again leaves the same bytes there."""
    ttnn = t.ttnn
    x, other = (t.put(t.rand(1, 1, 32, 128), COLUMNS) for _ in range(2))
    buffer = t.empty(1, 1, 32, 128)
    sets = [t.semaphores(2), t.semaphores(2)]
    barrier = {"barrier_semaphore": t.semaphores(1)[0]} if wrong else {}
    ttnn.synchronize_device(t.device)
    first = ttnn.reshape(gather(t, x, sets[0], buffer, **barrier), (32, 128))
    second = gather(t, other if wrong else x, sets[1], buffer, **barrier)
    ttnn.to_torch(ttnn.get_device_tensors(ttnn.add(first, 1.0))[0])  # here
    ttnn.to_torch(ttnn.get_device_tensors(second)[0])


def never_written(t: Env, wrong: bool) -> None:
    ttnn = t.ttnn
    total = t.empty(1, 1, 32, 128)
    x = t.put(t.rand(1, 1, 32, 128))
    if not wrong:
        ttnn.fill(total, 0.0, output_tensor=total)  # as tt_dit makes constants under a trace
    ttnn.add_(total, x)  # here
    ttnn.to_torch(ttnn.get_device_tensors(total)[0])


def freed(t: Env, wrong: bool) -> None:
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 128))
    if wrong:
        ttnn.deallocate(x)
    try:
        ttnn.add(x, 1.0)  # here
    except Exception:
        assert wrong


def forgotten_sum(t: Env, wrong: bool) -> None:
    """A row-parallel linear whose sum is missing before the gelu."""
    ttnn = t.ttnn
    x, weight = t.put(t.rand(1, 1, 32, 512), COLUMNS), t.put(t.rand(512, 128), (None, 0))
    y = ttnn.linear(x, weight)
    if not wrong:
        y = ttnn.all_reduce(y, cluster_axis=1, topology=t.linear)
    y = ttnn.gelu(ttnn.reshape(y, (1, 32, 128)))  # here
    ttnn.to_torch(ttnn.get_device_tensors(y)[0])


def forgotten_sum_of_transposed(t: Env, wrong: bool) -> None:
    """The weight lies transposed, so its columns are summed over."""
    ttnn = t.ttnn
    x, weight = t.put(t.rand(1, 1, 32, 512), COLUMNS), t.put(t.rand(128, 512), (None, 1))
    y = ttnn.linear(x, weight, transpose_b=True)
    if not wrong:
        y = ttnn.all_reduce(y, cluster_axis=1, topology=t.linear)
    y = ttnn.silu(y)  # here
    ttnn.to_torch(ttnn.get_device_tensors(y)[0])


def part_of_a_sum_read(t: Env, wrong: bool) -> None:
    """One device's part leaves by the host."""
    ttnn = t.ttnn
    x, weight = t.put(t.rand(1, 1, 32, 512), COLUMNS), t.put(t.rand(512, 128), (None, 0))
    y = ttnn.reshape(ttnn.linear(x, weight), (1, 32, 128))
    if not wrong:
        y = ttnn.all_reduce(y, cluster_axis=1, topology=t.linear)
    ttnn.to_torch(ttnn.get_device_tensors(y)[0])  # here


def parts_of_a_sum_composed(t: Env, wrong: bool) -> None:
    """All parts leave by the host, which may add them up: a note."""
    ttnn = t.ttnn
    x, weight = t.put(t.rand(1, 1, 32, 512), COLUMNS), t.put(t.rand(512, 128), (None, 0))
    y = ttnn.linear(x, weight)
    if not wrong:
        y = ttnn.all_reduce(y, cluster_axis=1, topology=t.linear)
    composer = ttnn.ConcatMesh2dToTensor(t.device, mesh_shape=t.shape, dims=(0, 1))
    ttnn.to_torch(y, mesh_composer=composer)  # here


def forgotten_statistics(t: Env, wrong: bool) -> None:
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 512), COLUMNS)
    statistics = ttnn.rms_norm_pre_all_gather(x, dtype=ttnn.bfloat16)
    if not wrong:
        statistics = ttnn.all_gather(statistics, 3, cluster_axis=1, topology=t.linear)
    y = ttnn.rms_norm_post_all_gather(x, statistics, epsilon=1e-5)  # here
    ttnn.to_torch(ttnn.get_device_tensors(y)[0])


def bias_before_the_sum(t: Env, wrong: bool) -> None:
    ttnn = t.ttnn
    x, weight = t.put(t.rand(1, 1, 32, 512), COLUMNS), t.put(t.rand(512, 128), (None, 0))
    bias = t.put(t.rand(1, 128))
    y = ttnn.linear(x, weight, bias=bias if wrong else None)  # here
    y = ttnn.all_reduce(y, cluster_axis=1, topology=t.linear)
    y = y if wrong else ttnn.add(y, bias)
    ttnn.to_torch(ttnn.get_device_tensors(y)[0])


def uneven(t: Env, wrong: bool) -> None:
    """Rows of the mesh hold other values than their topology says."""
    ttnn = t.ttnn
    parts = t.put(t.rand(2, 1, 32, 32), (0, None))
    topology = t.put(t.rand(1, 1, 32, 32)).tensor_topology()
    if wrong:
        parts.update_tensor_topology(topology)
    y = ttnn.all_gather(ttnn.add(parts, 0.0), 0, cluster_axis=0, topology=t.linear) if not wrong else parts
    composer = ttnn.ConcatMesh2dToTensor(t.device, mesh_shape=t.shape, dims=(0, 3))
    ttnn.to_torch(y, mesh_composer=composer)  # here


def unread(t: Env, wrong: bool) -> None:
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 128), COLUMNS)
    y = ttnn.all_gather(x, 3, cluster_axis=1, topology=t.linear)  # here
    ttnn.to_torch(ttnn.get_device_tensors(x if wrong else y)[0])


EXPECTED = {
    "ring_on_a_line": ("ring-without-link", "ttnn.all_gather"),
    "ring_by_default": ("ring-without-link", "ttnn.experimental.all_gather_async"),
    "links": ("too-many-links", "ttnn.all_gather"),
    "small_buffer": ("small-buffer", "ttnn.experimental.reduce_scatter_minimal_async"),
    "small_whole": ("small-buffer", "ttnn.experimental.all_gather_async"),
    "semaphore_twice": ("semaphore-twice", "ttnn.experimental.all_gather_async"),
    "one_semaphore_set": ("semaphore-in-flight", "ttnn.experimental.all_gather_async"),
    "one_semaphore_set_captured": ("semaphore-in-flight", "ttnn.experimental.all_gather_async"),
    "semaphores_of_two_axes": ("semaphore-in-flight", "ttnn.experimental.all_gather_async"),
    "one_buffer": ("buffer-in-use", "ttnn.experimental.all_gather_async"),
    "read_late": ("buffer-in-use", "ttnn.experimental.all_gather_async"),
    "buffer_filled_on_the_way": ("buffer-in-use", "ttnn.experimental.all_gather_async"),
    "fused_gather_overtakes": ("buffer-in-use", "ttnn.experimental.all_gather_minimal_matmul_async"),
    "one_buffer_for_two": ("buffer-twice", "ttnn.transformer.ring_joint_scaled_dot_product_attention"),
    "stale": ("stale-read", "ttnn.multiply"),
    "gathered_again": ("stale-read", "ttnn.add"),
    "never_written": ("never-written", "ttnn.add_"),
    "freed": ("freed", "ttnn.add"),
    "forgotten_sum": ("partial-sum", "ttnn.gelu"),
    "forgotten_sum_of_transposed": ("partial-sum", "ttnn.silu"),
    "part_of_a_sum_read": ("partial-sum", "ttnn.to_torch"),
    "parts_of_a_sum_composed": ("partial-sum", "ttnn.to_torch"),
    "forgotten_statistics": ("local-statistics", "ttnn.rms_norm_post_all_gather"),
    "bias_before_the_sum": ("bias-summed", "ttnn.linear"),
    "uneven": ("uneven-replicas", "ttnn.to_torch"),
    "unread": ("unused-result", "ttnn.all_gather"),
}
