"""Golden functions of ttnn 0.81.1 that must not answer for their operations, each with the reason.

Every entry was looked at or compared with torch; what is not here is still only as good as ttnn's registry.
"""

from __future__ import annotations

_RANDOM = "draws other numbers than the device would"
_CROSSES = "takes one device's tensor for the whole, but the operation joins those of many devices"
_MUTATES = "gives back a value, but the operation also writes into its arguments"
_LACKS = "imports a module that the wheel does not have"
_HOST = "stands for a transfer, not for arithmetic"

DENIED: dict[str, str] = {
    f"ttnn.{name}": reason
    for reason, names in {
        _RANDOM: "rand randn uniform bernoulli sampling",
        _CROSSES: """
            all_broadcast all_gather all_reduce all_to_all_combine all_to_all_dispatch broadcast fused_rms_minimal
            mesh_partition point_to_point reduce_scatter reduce_to_root moe_routing_remap
            transformer.exp_ring_joint_scaled_dot_product_attention transformer.ring_mla
            transformer.ring_distributed_scaled_dot_product_attention
            transformer.ring_joint_scaled_dot_product_attention
            """,
        _MUTATES: """
            batch_norm dram_prefetcher experimental.indexed_fused_update_cache experimental.slice_write
            """,
        _LACKS: "max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d grid_sample",
        _HOST: """
            allocate_tensor_on_device allocate_tensor_on_host as_tensor copy_device_to_host_tensor
            copy_host_to_device_tensor from_buffer load_tensor to_dtype
            """,
        "computes another recurrence than the documentation says": "ema",
        "lays the patches out in another order than the operation": "fold",
        "fails for uint32, and shifts signed integers": "bitwise_right_shift",
        "keeps subnormal results, which the device flushes": "exp2",
        "loses all digits of small inputs to cancellation": "tanhshrink",
        "is not a number for negative inputs": "cbrt",
    }.items()
    for name in names.split()
}
