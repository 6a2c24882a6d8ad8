"""Faults of the text encoders in TTNN: relative bias, masks, the end token, activations, norms, what tp cuts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from parity.cases import Case, Layout, ModelShape, make_case
from parity.faults.around import Patch, around, at, together
from parity.faults.registry import fault
from parity.faults.ttnn.device import ttnn


def _case(model: str, tokens: int) -> Case:
    """Make a case of three heads on two devices, and of two prompts of which one is padded."""
    layout = Layout("n300", "tp2")
    shape = ModelShape((), tokens, 2)
    return make_case("ttnn_text_encoder", model, layout, shape, dtype="bf16")


T5 = _case("t5_tiny64", 150)
UMT5 = _case("umt5_tiny64", 150)
CLIP_L = _case("clip_l_tiny64", 77)
CLIP_G = _case("clip_g_tiny64", 77)


bias = partial(fault, "relative-bias", case=T5)
masks = partial(fault, "text-masks", case=T5)
tokens = partial(fault, "text-tokens", case=CLIP_L)
arithmetic = partial(fault, "text-arithmetic", case=T5)


@bias(
    "Distances are counted from the row after the query's.", "positions that start at 1 for queries and at 0 for keys"
)
@at("tt_impl.models.t5.encoder:bucket_ids")
def relative_bias_bucket_off_by_one(original: Callable, config: Any, length: Any) -> Any:
    return original(config, length + 1)[1:, :-1]


@bias("The bucket is that of query minus key.", "the sign of a distance, with tables that fit either way")
@at("tt_impl.models.t5.encoder:bucket_ids")
def relative_bias_of_the_other_direction(original: Callable, config: Any, length: int) -> torch.Tensor:
    return original(config, length).t().contiguous()


@bias(
    "All buckets are for the past, and tokens ahead share the first.",
    "bidirectional=False, as in T5's decoder, whose table has the same shape",
)
@at("tt_impl.models.t5.encoder:bucket_ids")
def relative_bias_unidirectional(original: Callable, config: Any, length: int) -> torch.Tensor:
    buckets = config.relative_attention_num_buckets
    ids = original(replace(config, relative_attention_num_buckets=2 * buckets), length)
    return torch.where(ids < buckets, ids, 0)


@bias(
    "Distances beyond the exact ones are not grouped logarithmically but cut off.",
    "relative_attention_max_distance not read",
)
@at("tt_impl.models.t5.encoder:bucket_ids")
def relative_bias_without_wide_buckets(original: Callable, config: Any, length: int) -> torch.Tensor:
    half = config.relative_attention_num_buckets // 2
    distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    return distance.abs().clamp(max=half - 1) + (distance > 0) * half


@bias(
    "Every device adds the bias of the first device's heads.",
    "the table of a bias put on the mesh like the table of tokens, whole, and its first heads taken",
)
@at("tt_impl.parallel.context:Context.put_rows")
def relative_bias_not_cut_by_heads(
    original: Callable, ctx: Any, x: torch.Tensor, dtype: Any, *, tp_dim: int | None = None
) -> Any:
    return original(ctx, x if tp_dim is None else x.chunk(ctx.tp, tp_dim)[0].contiguous(), dtype)


@bias("UMT5's layers all add the bias of the first.", "T5's shared bias kept when its folder was copied", case=UMT5)
@at("tt_impl.models.t5.encoder:T5Block.__init__")
def relative_bias_of_the_first_layer(
    original: Callable, self: Any, weights: Any, ctx: Any, config: Any, index: int
) -> None:
    original(self, weights, ctx, config, index)
    self.bias = self.bias if index == 0 else None


@bias(
    "The bias is added only in the layer whose checkpoint holds it.",
    "a bias made where it is loaded, and not handed on",
)
@at("tt_impl.models.t5.encoder:T5Block.__call__")
def relative_bias_in_the_first_layer_only(original: Callable, self: Any, x: Any, bias: Any) -> Any:
    return original(self, x, bias if self.bias is not None else ttnn.multiply(bias, 0.0))


@bias("The bias is divided by the root of a head's size.", "bias added to scores before they are scaled")
@at("tt_impl.models.t5.encoder:RelativeBias.__call__")
def relative_bias_scaled(original: Callable, *args: Any) -> Any:
    return ttnn.multiply(original(*args), 64 ** (-0.5))


@masks("Padding takes part.", "the attention mask not handed to the encoder, as Stable Diffusion 3 does")
@at("tt_impl.models.t5.encoder:T5Encoder.__call__")
def padding_mask_omitted(original: Callable, self: Any, input_ids: Any, attention_mask: Any = None) -> Any:
    return original(self, input_ids)


@masks("The mask hides what is real.", "1 for real and 1 for hidden tokens confused")
@at("tt_impl.models.t5.encoder:T5Encoder.__call__")
def padding_mask_inverted(original: Callable, self: Any, input_ids: Any, attention_mask: Any = None) -> Any:
    return original(self, input_ids, 1 - attention_mask)


@masks("Only the first layer hides padding.", "a mask added where T5 makes its one bias", case=UMT5)
def padding_mask_in_the_first_layer_only() -> Patch:
    masks = []

    @at("tt_impl.models.t5.encoder:T5Encoder._masked")
    def masked(original: Callable, bias: Any, mask: Any) -> Any:
        masks.append(mask)
        return original(bias, mask if len(masks) == 1 else None)

    return masked()


@masks("Tokens see those behind them.", "is_causal=False, which every other attention here has", case=CLIP_L)
@at("tt_impl.models.clip.encoder:local_attention")
def clip_causal_mask_omitted(original: Callable, ctx: Any, qkv: Any, **options: Any) -> Any:
    return original(ctx, qkv, **options | {"is_causal": False})


def _end_at(row: Callable[[torch.Tensor], torch.Tensor]) -> Patch:
    """Put the end token where ``row`` says, of (B, L) that is 1 at every end token."""

    @at("tt_impl.models.clip.encoder:CLIPTextEncoder._end_rows")
    def end_rows(original: Callable, self: Any, x: Any, input_ids: torch.Tensor) -> Any:
        ends = torch.zeros_like(input_ids)
        end = self._config.eos_token_id
        ends.scatter_(1, row((input_ids == end).int())[:, None], 1)
        return original(self, x, torch.where(ends == 1, end, end + 1))

    return end_rows()


@tokens("The pooled row is the one before the end token's.", "the length of a prompt taken for an index")
def end_token_off_by_one() -> Patch:
    return _end_at(lambda ends: ends.argmax(-1) - 1)


@tokens("The pooled row is the last one.", "the last end token in place of the first, which pads as well")
def end_token_of_the_padding() -> Patch:
    return _end_at(lambda ends: ends.shape[1] - 1 - ends.flip(-1).argmax(-1))


@tokens(
    "Both prompts' pooled rows are picked from the first one.",
    "rows of a batch not counted on when it is looked up as one table",
)
@at("tt_impl.parallel.context:Context.put_rows")
def end_token_of_the_first_prompt(original: Callable, ctx: Any, x: torch.Tensor, dtype: Any, **where: Any) -> Any:
    return original(ctx, x % 77 if x.shape[1] == 1 else x, dtype, **where)


def _sequence(change: Callable[[Any, Any], Any]) -> Patch:
    """Make CLIP's rows for the transformer ``change(encoder, output of the last block)``."""
    from tt_impl.models.clip.encoder import CLIPBlock, CLIPTextEncoder

    outputs = []

    def call(original: Callable, self: Any, x: Any) -> Any:
        outputs.append(original(self, x))
        return outputs[-1]

    def answer(original: Callable, self: Any, input_ids: Any) -> Any:
        _, pooled = original(self, input_ids)
        return change(self, outputs), pooled

    return together(around(CLIPBlock, "__call__", call), around(CLIPTextEncoder, "__call__", answer))


@tokens("The rows are the last states.", "hidden_states[-1] in place of hidden_states[-2]", case=CLIP_G)
def last_states_for_penultimate() -> Patch:
    return _sequence(lambda encoder, outputs: outputs[-1][:, :, :, :192])


@tokens("The penultimate states are normalised.", "the final norm applied to both results", case=CLIP_G)
def penultimate_states_normalised() -> Patch:
    return _sequence(lambda encoder, outputs: encoder._norm(outputs[-2]))


@tokens("Positions start at 1.", "position ids of a tokenizer that counts from 1")
@at("tt_impl.models.clip.encoder:CLIPTextEncoder.__init__")
def positions_off_by_one(original: Callable, self: Any, *args: Any) -> None:
    original(self, *args)
    self._table = self._table.roll(-1, 0)


@tokens("Embeddings are multiplied by the root of their size.", "as Gemma and the first transformers do", case=T5)
@at("tt_impl.layers.embeddings:TokenEmbedding.__call__")
def embeddings_scaled(original: Callable, self: Any, ids: Any) -> Any:
    return ttnn.multiply(original(self, ids), 96**0.5)


@arithmetic("Scores are divided by the root of a head's size.", "the default scale of ttnn's attention")
@at("tt_impl.models.t5.encoder:local_attention")
def t5_scores_scaled(original: Callable, ctx: Any, qkv: Any, **options: Any) -> Any:
    return original(ctx, qkv, **options | {"scale": None})


def _activation(act: str) -> Patch:
    """Let CLIP's blocks activate with another function."""

    @at("tt_impl.models.clip.encoder:CLIPBlock.__init__")
    def init(original: Callable, self: Any, *args: Any) -> None:
        original(self, *args)
        self._act = act

    return init()


@arithmetic("quick_gelu where gelu is meant.", "the activation of CLIP-L in OpenCLIP's G", case=CLIP_G)
def quick_gelu_for_gelu() -> Patch:
    return _activation("quick_gelu")


@arithmetic("gelu where quick_gelu is meant.", "hidden_act not read from the configuration", case=CLIP_L)
def gelu_for_quick_gelu() -> Patch:
    return _activation("gelu")


@arithmetic("The other half of the feed-forward is activated.", "wi_0 and wi_1 exchanged")
@at("tt_impl.models.t5.encoder:split_matmul")
def gate_and_up_swapped(original: Callable, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs)[::-1]


@arithmetic(
    "wi_0 and wi_1 are cut as they lie, so that the first devices gate and the last ones do not.",
    "fused weights sharded as one, without giving each device its own part of both",
)
@at("tt_impl.parallel.context:Context.put", within="tt_impl.models.t5.encoder:GateAndUp.__init__")
def gate_and_up_not_interleaved(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
    columns = x.unflatten(3, (ctx.tp, 2, -1)).transpose(3, 4).flatten(3)
    return original(ctx, columns.contiguous(), **where)


@arithmetic("The norms' epsilon is a thousand times what it is.", "1e-3 for 1e-6, a default of another norm")
@at("tt_impl.layers.norm:RMSNorm.__init__")
def t5_norm_epsilon(original: Callable, self: Any, *args: Any, eps: float, **sizes: Any) -> None:
    original(self, *args, eps=1e3 * eps, **sizes)


@arithmetic("The norms take the mean away.", "layer_norm called where T5 has rms_norm under that name")
@at("tt_impl.layers.norm:RMSNorm.__call__")
def t5_norm_with_mean(_: Callable, self: Any, x: Any) -> Any:
    return ttnn.layer_norm(x, epsilon=self._eps, weight=self._weight)


@arithmetic(
    "Every device keeps its own partial sum of wo, cut to its features.",
    "a slice in place of a reduce-scatter, whose shape it has",
)
@at("tt_impl.layers.linear:reduce_scatter_features")
def feed_forward_not_reduced(original: Callable, ctx: Any, x: Any) -> Any:
    return x[:, :, :, : x.shape[-1] // ctx.tp]
