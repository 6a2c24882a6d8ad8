"""Operations that round nothing: they move values, choose among them, compare them, or give integers.

Those that may give a number of the call are in :data:`tt_impl.mock.numerics.eltwise.WITH_NUMBERS`.
"""

from __future__ import annotations

_MOVE = """
    experimental.nlp_create_qkv_heads experimental.nlp_create_qkv_heads_boltz
    experimental.nlp_create_qkv_heads_segformer experimental.nlp_create_q_heads_split experimental.create_qkv_heads
    experimental.create_qkv_heads_from_separate_tensors transformer.split_query_key_value_and_split_heads
    experimental.nlp_concat_heads experimental.nlp_concat_heads_boltz experimental.nlp_create_qkv_heads_falcon7b
    experimental.nlp_create_qkv_heads_vit transformer.concatenate_heads experimental.nlp_create_qkv_heads_decode
    experimental.nlp_concat_heads_decode experimental.paged_update_cache experimental.paged_fused_update_cache
    experimental.paged_fill_cache experimental.indexed_fused_update_cache update_cache fill_cache
    experimental.nlp_kv_cache_load_slice kv_cache.fill_cache_for_user_ kv_cache.update_cache_for_token_ all_gather
    experimental.all_gather_async all_broadcast mesh_partition experimental.ring_attention_all_gather_async
    experimental.neighbor_pad_async experimental.slice_reshard_async experimental.all_to_all_async_generic broadcast
    experimental.strided_all_gather_async prepare_conv_weights prepare_conv_transpose2d_weights prepare_conv_bias
    prepare_conv_transpose2d_bias experimental.prepare_conv3d_weights arange moreh_arange moreh_full moreh_full_like
    fill_rm fill_ones_rm slice experimental.padded_slice experimental.slice_write concat pad untilize_with_unpadding
    chunk expand experimental.broadcast_to experimental.convert_to_chw repeat repeat_interleave roll split stack
    interleaved_to_sharded_partial sharded_to_interleaved_partial experimental.convert_to_hwc fold gather scatter
    tosa_scatter index_fill index_fill_new tosa_gather indexed_fill moreh_getitem reshape Tensor.reshape squeeze assign
    bitcast clone copy interleaved_to_sharded move permute reallocate reshape_on_device reshard sharded_to_interleaved
    to_memory_config transpose unsqueeze unsqueeze_to_4D untilize view experimental.view fill_implicit_tile_padding
    upsample all_to_all_dispatch all_to_all_combine experimental.rotate_half experimental.repeat_and_interleave
    experimental.all_gather_async_reversed experimental.all_to_all_dispatch_metadata moe_routing_remap dram_prefetcher
    experimental.deepseek_moe_post_combine_tilize experimental.deepseek_prefill.dispatch
    experimental.deepseek_prefill.combine experimental.deepseek_prefill.extract experimental.deepseek_prefill.insert
    experimental.deepseek_prefill.masked_bincount experimental.deepseek_prefill.offset_cumsum
    experimental.deepseek_prefill.update_padded_kv_cache experimental.deepseek_prefill.zero_padded_kv_cache
"""
_CHOOSE = """
    abs bitwise_not ceil eqz floor gez gtz identity isfinite isinf isnan isneginf isposinf lez logical_not logical_not_
    ltz neg nez relu relu6 round sign signbit tril triu trunc hardshrink alt_complex_rotate90 bitwise_and bitwise_or
    bitwise_xor bitwise_left_shift bitwise_right_shift logical_left_shift logical_right_shift eq ge gt le lt ne eq_ ge_
    gt_ le_ lt_ ne_ logical_and logical_or logical_xor logical_and_ logical_or_ logical_xor_ isclose max_pool2d
    adaptive_max_pool2d max min argmax sort topk experimental.isin nonzero
"""
UNROUNDED = frozenset(f"ttnn.{name}" for name in (_MOVE + _CHOOSE).split())
