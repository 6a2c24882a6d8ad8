"""What rules do not know: calls that they take, an argument changed at a time to what has to be refused.

A call is one that its rule takes, as the rule was asked by a case of other modules or by a call of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch

from refsim.base.errors import UserError
from tests.tt_impl.cases.properties import prop_collectives, prop_conv, prop_data_movement
from tests.tt_impl.cases.shadow.numerics import _rounds
from tests.tt_impl.cases.values import (
    attention,
    branches,
    cache,
    chunked_prefill,
    conv,
    matmul,
    moe_prefill,
    norm,
    options,
)
from tests.tt_impl.env import Env, collect, raises

if TYPE_CHECKING:
    from tt_impl.mock.rules.registry import Call


@dataclass(frozen=True)
class _Asked:
    """A call that a rule takes, with the arguments as the caller gave them and as the rule gets them."""

    t: Env
    call: Call
    args: tuple
    kwargs: dict[str, Any]

    def refuses(self, said: str, *args: Any, **changed: Any) -> None:
        """The same call with other last positional and other named arguments is refused by the mock."""
        from tt_impl.mock.storage.errors import RefusedOption

        operation = functools.reduce(getattr, self.call.name.split(".")[1:], self.t.ttnn)
        args = self.call.args[: len(self.call.args) - len(args)] + args
        raises(RefusedOption, lambda: operation(*args, **self.call.kwargs | changed), self.call.name, said)

    def rule_refuses(self, said: str, **changed: Any) -> None:
        """The rule itself refuses what ttnn does not take here: on another chip or mesh, or in another release."""
        try:
            self.answer(**changed)
        except Exception as error:
            assert type(error).__name__ in ("RefusedOption", "TypeError") and said in str(error), error
        else:
            raise AssertionError(f"{self.call.name} takes {changed}, expected {said}")

    def answer(self, **changed: Any) -> Any:
        """Return what the rule gives for other arguments."""
        from tt_impl.mock.rules.registry import RULES

        return RULES[self.call.name](self.call, self.args, self.kwargs | changed)


def _asked(t: Env, name: str, action: Callable[[], Any]) -> _Asked:
    """Return the last call of ``ttnn.<name>`` in ``action``."""
    return _all_asked(t, name, action)[-1]


def _all_asked(t: Env, name: str, action: Callable[[], Any]) -> list[_Asked]:
    from tt_impl.mock.rules.registry import RULES

    name = f"ttnn.{name}"
    rule = RULES[name]
    calls = []

    def noting(call: Call, args: tuple, kwargs: dict[str, Any]) -> Any:
        calls.append(_Asked(t, call, args, kwargs))
        return rule(call, args, kwargs)

    with patch.dict(RULES, {name: noting}):
        action()
    return calls


def rings(t: Env) -> None:
    name = "transformer.ring_joint_scaled_dot_product_attention"
    ring = _asked(t, name, lambda: attention.ring_joint(t))
    limits = "dim other than 2, cross attention, logical_n as a tensor"
    ring.refuses(limits, logical_n=t.integers(torch.full((1, 1), 234), "uint32"))
    ring.rule_refuses(limits, dim=3)
    ring.rule_refuses(limits, is_cross=True)
    cut = _asked(t, name, lambda: attention.ring_with_cut_joint(t))
    cut.refuses("logical_l 32", logical_l=32)
    cut.rule_refuses("logical_l 31", logical_l=31)
    cut.answer(logical_l=33)
    alone = _asked(t, name, lambda: attention.ring_without_joint(t))
    alone.refuses("balanced attention that is not causal", is_balanced=True)
    alone.answer(is_causal=True, is_balanced=True)
    q = t.put(t.rand(1, 2, 32, 64))
    alone.refuses("other rows of Q than of K", q, *alone.call.args[1:], is_causal=True)


def latents(t: Env) -> None:
    whole, chunk, _ = _all_asked(t, "transformer.ring_mla", lambda: chunked_prefill.attention_to_a_latent(t))
    whole.rule_refuses("a ring of all axes", cluster_axis=None)
    whole.rule_refuses("a ring of all axes", dim=3)
    chunk.refuses("what is before it", kv_actual_isl=None)
    chunk.rule_refuses("balanced work on chunks", is_balanced=True)
    whole.answer(is_balanced=True)


def collectives(t: Env) -> None:
    ttnn, x = t.ttnn, t.put(t.rand(1, 1, 32, 64))
    sent = _asked(
        t, "broadcast", lambda: ttnn.broadcast(x, ttnn.MeshCoordinate(0, 1), cluster_axis=1, topology=t.linear)
    )
    sent.rule_refuses("a mesh of two axes without cluster_axis", cluster_axis=None)
    total = _asked(t, "experimental.all_reduce_async", lambda: prop_collectives.sums_everywhere(t))
    total.refuses("a math_op that is no sum", math_op=ttnn.ReduceType.Max)
    total.rule_refuses("4 of 8 devices", num_devices=4)
    total.answer(num_devices=8)
    placed = _asked(t, total.call.name[5:], lambda: branches.sum_over_the_axis_of_a_position(t))
    placed.refuses("a math_op that is no sum", ttnn.ReduceType.Max)
    scattered = replace(total.call, name="ttnn.experimental.strided_reduce_scatter_async")
    _Asked(t, replace(scattered, outputs=scattered.outputs * 2), (*total.args, None, 3), {}).rule_refuses("2 outputs")
    _Asked(t, scattered, (*total.args, None, 3), {"cluster_axis": 1}).answer()


def convolutions(t: Env) -> None:
    ttnn = t.ttnn
    preparing, plain = _all_asked(t, "conv2d", lambda: conv.conv2d(t))
    for shape in ((1, 1, 287, 64), (1, 1, 288, 63), (1, 2, 288, 64), (2, 1, 288, 64)):
        weight = ttnn.from_torch(t.rand(*shape), dtype=ttnn.bfloat16)
        plain.refuses(f"a weight of shape {shape}", weight_tensor=weight)
    plain.answer(weight_tensor=t.rand(1, 1, 289, 65))
    video = _asked(t, "experimental.conv3d", lambda: conv.conv3d_without_a_config(t))
    config = ttnn.Conv3dConfig(
        weights_dtype=ttnn.bfloat16, output_layout=ttnn.ROW_MAJOR_LAYOUT, C_in_block=64, dilation=(1, 1, 2),
        compute_with_storage_grid_size=t.device.compute_with_storage_grid_size(),
    )  # fmt: skip
    video.refuses("a dilation in the config", config=config)
    ttnn.experimental.conv3d(**video.call.kwargs | {"config": config, "dilation": (1, 1, 2)})
    turned = _asked(t, "conv_transpose2d", lambda: prop_conv.prepared_transposed_weights(t))
    first, _, bias = preparing.call.outputs
    narrow = replace(preparing.call, outputs=[first, t.put(t.rand(1, 1, 288, 32)), bias])
    replace(preparing, call=narrow).rule_refuses("prepared as (1, 1, 288, 32)")
    _rounds(t)
    weight = ttnn.from_torch(t.rand(32, 32, 3, 3), dtype=ttnn.bfloat16)
    ttnn.conv_transpose2d(**turned.call.kwargs | dict(weight_tensor=weight, groups=2, return_weights_and_bias=False))
    assert "groups of a transposed" in min(t.shadow.numerics.once)


def caches(t: Env) -> None:
    ttnn = t.ttnn
    one = _all_asked(t, "transformer.scaled_dot_product_attention_decode", lambda: cache.decode(t))[0]
    one.rule_refuses("3 positions for 4 users", cur_pos=[3, 4, 5])
    one.answer(cur_pos=[3, 4, 5, 6, 7])
    paged = "transformer.paged_scaled_dot_product_attention_decode"
    other = _asked(t, paged, lambda: branches.decoding_from_blocks_of_another_geometry(t))
    for heads, size in ((2, 64), (1, 32), (4, 16)):
        geometry = ttnn.PagedCacheGeometryOverride(num_kv_heads=heads, block_size=size)
        other.rule_refuses(f"read as ({heads}, {size}, 64)", paged_cache_geometry=geometry)
    ring = _asked(t, paged, lambda: options.decoding_in_a_ring(t))
    ring.refuses("without a sliding window", sliding_window_size=None)
    ring.answer(sliding_window_size=64)


def elementwise(t: Env) -> None:
    ttnn, x = t.ttnn, t.put(t.rand(1, 1, 64, 64))
    add = _asked(t, "add", lambda: ttnn.add(x, x))
    add.refuses("activation 'abs_int32'", activations=[ttnn.UnaryOpType.ABS_INT32])
    index = t.put(torch.zeros(1, 1, 64, 64).int(), dtype="uint32")
    _asked(t, "gather", lambda: ttnn.gather(x, 3, index=index)).rule_refuses("sparse_grad", sparse_grad=True)
    row = t.put(t.rand(1, 1, 1, 64))
    rms = _asked(t, "rms_norm", lambda: ttnn.rms_norm(x, weight=row))
    rms.refuses("a weight or bias of 128 values for 64", weight=t.put(t.rand(1, 1, 2, 64)))
    groups = _asked(t, "group_norm", lambda: norm.group_norm(t))
    channels = groups.call.args[0].shape[-1]
    for part in ("weight", "bias"):
        for values in (channels - 32, channels + 32):
            said = f"a {part} of {values} values for {channels} channels"
            groups.rule_refuses(said, **{part: t.rand(1, 1, values // 32, 32)})
    mask = t.put(t.rand(1, 1, 32, 64))
    softmax = "scale_mask_softmax_in_place"
    masked = _asked(t, softmax, lambda: ttnn.scale_mask_softmax_in_place(x, None, mask, is_causal_mask=True))
    for rows in (48, 96):
        masked.refuses(f"a mask of {rows} rows for 64", t.put(t.rand(1, 1, rows, 64)))


def images(t: Env) -> None:
    ttnn, x = t.ttnn, t.put(t.rand(1, 4, 4, 32), layout="ROW_MAJOR")
    large = _asked(t, "upsample", lambda: ttnn.upsample(x, (2, 3)))
    large.refuses("mode 'bilinear'", (2, 2), mode="bilinear")
    for scale in ((2, 1.5), (1.5, 2), 1.5):
        large.refuses("only whole scale factors", scale)
    ttnn.upsample(x, (2.0, 1.0))
    grid = t.put(t.rand(1, 4, 5, 2), dtype="float32", layout="ROW_MAJOR")
    _asked(t, "grid_sample", lambda: ttnn.grid_sample(x, grid)).refuses("mode='bicubic'", mode="bicubic")
    folded = _asked(t, "fold", lambda: prop_data_movement.pictures(t))
    folded.rule_refuses("an output of shape", padding=(0, 0, 0, 0, 0, 2))


def products(t: Env) -> None:
    ttnn = t.ttnn
    x, w = t.put(t.rand(1, 1, 32, 64)), t.put(t.rand(64, 64))
    both = {"activation": "relu", "core_grid": ttnn.CoreGrid(x=2, y=1), "program_config": None}
    linear = _asked(t, "linear", lambda: ttnn.linear(x, w))
    linear.refuses("an activation beside a program_config", **both)
    for name in both:
        ttnn.linear(x, w, **{key: value for key, value in both.items() if key != name})
    ttnn.linear(x, w, **both | {"core_grid": None})
    rest = {"program_activation": "silu"}
    for bias in (torch.ones(2, 1, 1, 64), torch.ones(64, 64)):
        linear.rule_refuses("a bias that is not a row", bias=bias, **rest)
    batches = replace(linear, args=(linear.args[0], torch.ones(2, 64, 64)))
    batches.rule_refuses("a bias that is not a row", bias=torch.ones(64), **rest)
    batches.answer(bias=torch.ones(64))
    linear.answer(bias=torch.ones(32, 64), **rest)
    sparse = _all_asked(t, "sparse_matmul", lambda: matmul.sparse_matmul(t))[0]
    for nnz in (1, 3):
        sparse.refuses(f"nnz {nnz} where 2 values", nnz=nnz)
    scattered = replace(linear.call, name="ttnn.experimental.minimal_matmul_strided_reduce_scatter_async")
    in_two = _Asked(t, scattered, ([linear.args[0]] * 2, linear.args[1], 3), {})
    in_two.rule_refuses("an input in two parts")


def experts(t: Env) -> None:
    back = _asked(t, "all_to_all_combine", lambda: prop_collectives.tokens_to_experts_and_back(t))
    back.rule_refuses("local_reduce", local_reduce=True)
    prefill = "experimental.deepseek_prefill"
    sent, returned = (
        _asked(t, f"{prefill}.{name}", lambda: moe_prefill.sent_and_sent_back(t)) for name in ("dispatch", "combine")
    )
    for call in (sent, returned):
        call.refuses("no cluster_axis", cluster_axis=None)
        for size in (1, 4):
            call.refuses("a group ", dispatch_group_size=size)
    for length in (2, 4):
        sent.refuses("metadata of more", metadata_len=length)
    sent.rule_refuses("values in fp8", fp8_output=True)
    sent.rule_refuses("values in fp8", fp8_scaled_input=True)
    returned.rule_refuses("values in fp8", use_fp8_combine=True)
    summed = _asked(t, f"{prefill}.post_combine_reduce", lambda: moe_prefill.sums_of_experts_by_weight(t))
    summed.refuses("experts along dim 3 of 4", expert_dim=3)


def what_is_stored(t: Env) -> None:
    """Dtypes, typecasts, cores and views that nothing is known of, and rules that give too much."""
    from tt_impl.mock.rules.registry import RULES, per_device
    from tt_impl.mock.storage.dtypes import round_to
    from tt_impl.mock.storage.errors import ShadowError
    from tt_impl.mock.storage.views import View, seen_by

    ttnn, x = t.ttnn, t.put(torch.zeros(64, 64))
    raises(ShadowError, lambda: round_to(torch.ones(2, 2), ttnn.fp8_e4m3), "FP8_E4M3")
    for value in (2.0**31, -(2.0**31), float("nan")):
        held = t.put(torch.full((32, 32), value), dtype="float32")
        raises(ShadowError, lambda x=held: ttnn.typecast(x, ttnn.int8), "past 2**31 in INT8")
    t.check(
        ttnn.typecast(t.put(torch.full((32, 32), 128 - 2.0**31), dtype="float32"), ttnn.int8),
        torch.full((32, 32), -128),
    )
    everywhere = ttnn.ReplicateTensorToMesh(t.device)
    host = ttnn.from_torch(torch.ones(64, 64), dtype=x.dtype, layout=x.layout, mesh_mapper=everywhere)
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 0))})
    with pytest.raises(RuntimeError, match="only supported for sharded"):
        ttnn.copy_host_to_device_tensor_partial(host, x, cores)
    ttnn.copy_host_to_device_tensor_partial(host, x, ttnn.CoreRangeSet([]))
    t.check(x, torch.zeros(64, 64))
    by_core = ttnn.MemoryConfig(ttnn.BufferType.L1, ttnn.NdShardSpec([32, 64], cores, ttnn.ShardOrientation.ROW_MAJOR))
    parts = ttnn.to_memory_config(x, by_core)
    raises(ShadowError, lambda: ttnn.copy_host_to_device_tensor_partial(host, parts, cores), "lies on a core")
    raises(
        ShadowError, lambda: t.shadow.store.write(x, [torch.zeros(64, 64)] * 7, "a test"), "7 values for the 8 devices"
    )
    whole, part = (View((rows, 64), (rows, 64), (32, 32)) for rows in (64, 32))
    raises(ShadowError, lambda: seen_by(torch.zeros(64, 64), whole, part, 0.0), "a part of a buffer of shape (64, 64)")
    rule = RULES["ttnn.exp"]
    RULES["ttnn.exp"] = lambda *_: [[torch.zeros(64, 64)] * t.n] * 2
    try:
        raises(ShadowError, lambda: ttnn.exp(x), "gives 1 tensors, but its rule 2")
        raises(ValueError, lambda: per_device("exp")(torch.exp), "two shadow rules for ttnn.exp")
    finally:
        RULES["ttnn.exp"] = rule


def whole_calls(t: Env) -> None:
    """Programs on a part of the mesh without values, what makes a device tensor of nothing, users' own seeds."""
    from tt_impl.mock.calls import checks, shadow
    from tt_impl.mock.storage.errors import MissingRule, RefusedOption, ShadowError
    from tt_impl.trace.intercept import Invocation

    ttnn, x = t.ttnn, t.put(torch.zeros(1, 1, 32, 32))
    coordinates = [ttnn.MeshCoordinate(row, column) for row in range(2) for column in range(4)]

    def proceeds(coordinates: list[Any]) -> Any:
        return checks.refuse_crashes(Invocation("ttnn.add", (x,), {"mesh_coords": coordinates}, lambda *_, **__: x))

    assert proceeds(coordinates[:7]) is x
    with patch.object(checks, "_emulators", 0):
        raises(UserError, lambda: proceeds(coordinates[:7]), "ttnn.add with mesh_coords of some devices")
        assert proceeds(coordinates) is x
    raises(MissingRule, lambda: t.shadow.handle(Invocation("ttnn.made", (), {}, lambda: x)), "ttnn.made")
    seeds = t.put(torch.arange(t.n).reshape(2, 4).int(), (0, 1), dtype="uint32", layout="ROW_MAJOR")
    raises(ShadowError, lambda: ttnn.manual_seed(seeds=seeds, user_ids=seeds), "other seeds or users on every device")
    t.shadow.fallback = True
    failing = patch.object(shadow, "golden_values", side_effect=ShadowError("no golden function."))
    with patch.dict(shadow.RULES, {"ttnn.abs": _refuses}), failing:
        raises(RefusedOption, lambda: ttnn.abs(x), "ttnn.abs", "anything")


def _refuses(call: Call, *_: Any) -> Any:
    raise call.unsupported("anything")


def rows_of_a_ring(t: Env) -> None:
    from tt_impl.mock.storage.values import Shards

    q, attention = t.put(t.rand(1, 2, 256, 64)), "ring_distributed_scaled_dot_product_attention"
    operation, config = getattr(t.ttnn.transformer, attention), t.sdpa_config()
    asked = functools.partial(operation, q, q, q, ring_size=4, ring_id=0, program_config=config)
    ring = _asked(t, f"transformer.{attention}", asked)
    ring.refuses("no ring_id, with a ring of 4 on a mesh of 2x4", ring_id=None)
    ring.rule_refuses("no ring_id, with a ring of 8 on a mesh of 2x4", ring_size=8, ring_id=None)
    line = replace(ring, args=(Shards(ring.args[0].stored, (1, 2, 256, 64), (1, 8)), *ring.args[1:]))
    line.rule_refuses("no ring_id, with a ring of 4 on a mesh of 1x8", ring_id=None)
    line.answer(ring_size=8, ring_id=None)


CASES = collect(globals())
