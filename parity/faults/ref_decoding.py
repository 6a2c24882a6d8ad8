"""Faults of speculative decoding: acceptance, what the caches keep, positions, the cut vocabulary, the experts."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.cases import GenerationShape, Layout, make_case
from parity.faults.around import around, at
from parity.faults.registry import fault
from refsim.layers import rope
from refsim.models.dflash import draft
from refsim.models.qwen3_moe import decoder
from refsim.runtime.tensor import MeshTensor

TP2 = make_case("generation", "dflash_tiny", Layout("n300", "tp2"), GenerationShape(prompts=6))
SIX = make_case("generation", "dflash_six_tiny", Layout("n300", "tp2"), GenerationShape(prompts=6))


decoding = partial(fault, "decoding", case=TP2)


@decoding("One proposal too many is accepted.", "acceptance loop that stops one late")
@at("refsim.pipelines.speculative:matching_prefix")
def accept_one_too_many(original: Any, proposed: Tensor, best: Tensor) -> int:
    return min(original(proposed, best) + 1, len(proposed))


@decoding("Every proposal that matches counts, also behind one that does not.", "sum without cumprod")
@at("refsim.pipelines.speculative:matching_prefix")
def accept_behind_a_mismatch(_: Any, proposed: Any, best: Any) -> Any:
    return int((proposed == best[:-1]).sum())


@decoding("Right proposals are thrown away: tokens stay right, speed is lost.", "a = 0 always")
@at("refsim.pipelines.speculative:matching_prefix")
def accept_nothing(_: Any, proposed: Any, best: Any) -> Any:
    return 0


@decoding("The target's cache keeps the rows of rejected tokens.", "a cache that is not cropped", says="out of step")
@at("refsim.pipelines.speculative:crop")
def rejected_rows_kept(_: Any, cache: Any, rows: Any) -> Any:
    return None


@decoding("The drafter's cache keeps noise in the place of context.", "CACHE_NOISE=True as the default")
@at("refsim.pipelines.speculative:DFlashDrafter.__init__")
def noise_rows_kept(original: Any, self: Any, model: Any, target: Any, mode: str = "context") -> None:
    original(self, model, target, "noise")


@decoding("The block stands one position late.", "RoPE of the drafter from start + 1")
@at("refsim.models.dflash.draft:text_rotary")
def draft_position_off_by_one(original: Any, positions: Tensor, *rest: Any) -> Any:
    return original(torch.cat([positions[:-16], positions[-16:] + 1]), *rest)


@decoding("Every pass of the target starts at position 0.", "positions not offset by the cache")
@at("refsim.models.qwen3_moe.decoder:text_rotary")
def target_positions_from_zero(original: Any, p: Any, *rest: Any) -> Any:
    return original(p - p[0], *rest)


@decoding("Hidden states come from one layer too early.", "hidden_states[id] instead of [id + 1]")
@at("refsim.models.qwen3_moe.decoder:Qwen3MoeForCausalLM.hidden")
def hidden_states_a_layer_early(
    original: Any, self: Any, ids: Tensor, cache: Any = None, keep: tuple[int, ...] = ()
) -> Any:
    hidden = original(self, ids, cache, keep)
    if not keep:
        return hidden
    before = self.embed(ids)
    return decoder.Hidden(hidden.last, torch.cat([before, hidden.layers[..., : -before.shape[-1]]], -1))


@decoding("The context is not normed before the layers.", "hidden_norm left out")
@at("refsim.models.dflash.draft:DFlashDraftModel.__init__")
def context_not_normed(original: Any, self: Any, *args: Any) -> None:
    original(self, *args)
    self._context_norm = lambda x: x


@decoding("The block's own rows attend causally.", "is_causal left at the target's True")
@at("refsim.models.dflash.attention:grouped_attention")
def draft_causal(original: Any, *args: Any, causal: bool) -> MeshTensor:
    return original(*args, causal=True)


@decoding("A verified row sees the one after it.", "mask of the last N of S rows off by one")
@at("refsim.models.qwen3_moe.attention:grouped_attention")
def verified_rows_see_ahead(_: Any, device: Any, *qkv: MeshTensor, causal: bool) -> MeshTensor:
    q, k, v = (x.local for x in qkv)
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2] + 1)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return qkv[0].with_local(out)


@decoding("Keys are turned as neighbouring pairs.", "interleaved instead of half-split RoPE")
@at("refsim.models.qwen3_moe.attention:rotate_halves")
def rotary_pairs_are_neighbours(_: Any, *args: Any) -> Any:
    return rope.apply_rotary(*args)


@decoding("The best token is counted from the shard's first.", "argmax without the shard's offset")
@at("refsim.parallel.vocab:best_two")
def argmax_without_offset(original: Any, logits: Any, first: Any) -> Any:
    return original(logits, 0)


@decoding(
    "Tokens that only pad the head may win.",
    "vocabulary padded to tiles, not masked",
    case=SIX,
    says="the text encoder knows 0 to 5",
)
@at("refsim.models.qwen3_moe.decoder:vocab_argmax")
def padded_tokens_compete(original: Any, device: Any, logits: Any, vocab_size: int) -> Any:
    return original(device, logits, logits.local.shape[-1] * device.groups["tp"].size)


@decoding("The chosen experts' weights do not sum to one.", "norm_topk_prob ignored")
@at("refsim.models.qwen3_moe.experts:Qwen3MoeSparseMoeBlock.route")
def experts_not_normalised(original: Any, self: Any, tokens: Tensor) -> Any:
    weight, expert = original(self, tokens)
    every = torch.softmax(tokens @ self.gate.T, -1, dtype=torch.float32)
    return every.gather(-1, expert).to(weight.dtype), expert


@decoding("Only the best expert of each token runs.", "top-1 of a top-k router")
@at("refsim.models.qwen3_moe.experts:Qwen3MoeSparseMoeBlock.route")
def one_expert_only(original: Any, self: Any, tokens: Tensor) -> Any:
    weight, expert = original(self, tokens)
    return weight[:, :1], expert[:, :1]


@decoding("Query heads use the next group's keys.", "key-value heads repeated in the wrong order")
@at("refsim.models.qwen3_moe.attention:grouped_attention")
def wrong_key_value_head(original: Any, device: Any, q: MeshTensor, *kv: MeshTensor, causal: bool) -> MeshTensor:
    return original(device, q, *(x.map("roll", lambda y: y.roll(1, 1)) for x in kv), causal=causal)


@decoding(
    "The hidden state of the last accepted token is not handed on.",
    "context of a rows instead of a + 1",
    says="out of step",
)
@at("refsim.pipelines.speculative:DFlashDrafter.propose")
def context_row_short(original: Any, self: Any, start: int, last: int, context: Tensor) -> Tensor:
    return original(self, start, last, context[:, :-1])


@decoding("The block is masks only.", "the last token not put in front of them")
@at("refsim.models.dflash.draft:DFlashDraftModel.__call__")
def block_of_masks_only(original: Any, self: Any, noise: Tensor, *args: Any, start: int) -> Tensor:
    return original(self, noise[:, 1:2].expand_as(noise), *args, start=start)


@decoding("Hidden states come from one layer too late.", "hidden_states[id + 2]")
@at("refsim.models.qwen3_moe.decoder:Qwen3MoeForCausalLM.hidden")
def hidden_states_a_layer_late(
    original: Any, self: Any, ids: Tensor, cache: Any = None, keep: tuple[int, ...] = ()
) -> Any:
    last = self.config.num_hidden_layers - 1
    return original(self, ids, cache, tuple(min(layer + 1, last) for layer in keep))


@decoding("The drafter has a head of its own.", "lm_head made anew instead of shared with the target")
@at("refsim.pipelines.speculative:DFlashDrafter.propose")
def drafter_with_its_own_head(original: Any, self: Any, *args: Any) -> Tensor:
    head = self._target._head
    shared = head.weight
    head.weight = shared.roll(1, 1)
    try:
        return original(self, *args)
    finally:
        head.weight = shared


@decoding("The drafter's last norm is loaded and not applied.", "norm left out before the head")
@at("refsim.models.dflash.draft:DFlashDraftModel.__init__")
def last_norm_not_applied(original: Any, self: Any, *args: Any) -> None:
    original(self, *args)
    self._norm = lambda x: x


@decoding(
    "Blocks after a shorter prompt stand where those after the longest did.", "positions of the first prompt kept"
)
@at("refsim.models.dflash.draft:DFlashDraftModel.__call__")
def positions_of_a_longer_prompt(
    original: Any, self: Any, noise: Tensor, states: Tensor, cache: Any, *, start: int
) -> Tensor:
    if not cache[0].length:
        self.longest = max(start, getattr(self, "longest", 0))
        self.late = self.longest - start
    rows = noise.shape[1]

    def turned(rotary: Any, positions: Tensor, *rest: Any) -> Any:
        return rotary(torch.cat([positions[:-rows], positions[-rows:] + self.late]), *rest)

    with around(draft, "text_rotary", turned):
        return original(self, noise, states, cache, start=start)
