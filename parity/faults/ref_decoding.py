"""Faults of speculative decoding: acceptance, what the caches keep, positions, the cut vocabulary, the experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from parity.cases import GenerationShape, Layout, make_case
from parity.faults.ref_tools import around, fault, instead
from refsim.layers import grouped_attention, rope
from refsim.models.dflash import attention as draft_attention
from refsim.models.dflash import draft
from refsim.models.qwen3_moe import attention as target_attention
from refsim.models.qwen3_moe import decoder, experts
from refsim.parallel import vocab
from refsim.pipelines import speculative
from refsim.runtime.tensor import MeshTensor

DECODING = "decoding"
TP2 = make_case("generation", "dflash_tiny", Layout("n300", "tp2"), GenerationShape(prompts=6))
SIX = make_case("generation", "dflash_six_tiny", Layout("n300", "tp2"), GenerationShape(prompts=6))


@fault(DECODING, TP2, "One proposal too many is accepted.", "acceptance loop that stops one late")
def accept_one_too_many() -> Iterator[None]:
    def matching(original: Any, proposed: Tensor, best: Tensor) -> int:
        return min(original(proposed, best) + 1, len(proposed))

    with around(speculative, "matching_prefix", matching):
        yield


@fault(DECODING, TP2, "Every proposal that matches counts, also behind one that does not.", "sum without cumprod")
def accept_behind_a_mismatch() -> Iterator[None]:
    with instead(speculative, "matching_prefix", lambda proposed, best: int((proposed == best[:-1]).sum())):
        yield


@fault(DECODING, TP2, "Right proposals are thrown away: tokens stay right, speed is lost.", "a = 0 always")
def accept_nothing() -> Iterator[None]:
    with instead(speculative, "matching_prefix", lambda proposed, best: 0):
        yield


@fault(
    DECODING,
    TP2,
    "The target's cache keeps the rows of rejected tokens.",
    "a cache that is not cropped",
    says="out of step",
)
def rejected_rows_kept() -> Iterator[None]:
    with instead(speculative, "crop", lambda cache, rows: None):
        yield


@fault(DECODING, TP2, "The drafter's cache keeps noise in the place of context.", "CACHE_NOISE=True as the default")
def noise_rows_kept() -> Iterator[None]:
    def noisy(original: Any, self: Any, model: Any, target: Any, mode: str = "context") -> None:
        original(self, model, target, "noise")

    with around(speculative.DFlashDrafter, "__init__", noisy):
        yield


@fault(DECODING, TP2, "The block stands one position late.", "RoPE of the drafter from start + 1")
def draft_position_off_by_one() -> Iterator[None]:
    def late(original: Any, positions: Tensor, *rest: Any) -> Any:
        return original(torch.cat([positions[:-16], positions[-16:] + 1]), *rest)

    with around(draft, "text_rotary", late):
        yield


@fault(DECODING, TP2, "Every pass of the target starts at position 0.", "positions not offset by the cache")
def target_positions_from_zero() -> Iterator[None]:
    with around(decoder, "text_rotary", lambda original, p, *rest: original(p - p[0], *rest)):
        yield


@fault(DECODING, TP2, "Hidden states come from one layer too early.", "hidden_states[id] instead of [id + 1]")
def hidden_states_a_layer_early() -> Iterator[None]:
    def early(original: Any, self: Any, ids: Tensor, cache: Any = None, keep: tuple[int, ...] = ()) -> Any:
        found = original(self, ids, cache, keep)
        if not keep:
            return found
        before = self.embed(ids)
        return decoder.Hidden(found.last, torch.cat([before, found.kept[..., : -before.shape[-1]]], -1))

    with around(decoder.Qwen3MoeForCausalLM, "hidden", early):
        yield


@fault(DECODING, TP2, "The context is not normed before the layers.", "hidden_norm left out")
def context_not_normed() -> Iterator[None]:
    def bare(original: Any, self: Any, *args: Any) -> None:
        original(self, *args)
        self._context_norm = lambda x: x

    with around(draft.DFlashDraftModel, "__init__", bare):
        yield


@fault(DECODING, TP2, "The block's own rows attend causally.", "is_causal left at the target's True")
def draft_causal() -> Iterator[None]:
    original = draft_attention.grouped_attention
    with instead(draft_attention, "grouped_attention", lambda *args, causal: original(*args, causal=True)):
        yield


@fault(DECODING, TP2, "A verified row sees the one after it.", "mask of the last N of S rows off by one")
def verified_rows_see_ahead() -> Iterator[None]:
    def ahead(device: Any, *qkv: MeshTensor, causal: bool) -> MeshTensor:
        q, k, v = (x.local for x in qkv)
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2] + 1)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return qkv[0].with_local(out)

    with instead(target_attention, "grouped_attention", ahead):
        yield


@fault(DECODING, TP2, "Keys are turned as neighbouring pairs.", "interleaved instead of half-split RoPE")
def rotary_pairs_are_neighbours() -> Iterator[None]:
    with instead(target_attention, "rotate_halves", rope.apply_rotary):
        yield


@fault(DECODING, TP2, "The best token is counted from the shard's first.", "argmax without the shard's offset")
def argmax_without_offset() -> Iterator[None]:
    with around(vocab, "best_two", lambda original, logits, first: original(logits, 0)):
        yield


@fault(
    DECODING,
    SIX,
    "Tokens that only pad the head may win.",
    "vocabulary padded to tiles, not masked",
    says="the text encoder knows 0 to 5",
)
def padded_tokens_compete() -> Iterator[None]:
    def all_tokens(original: Any, device: Any, logits: Any, vocab_size: int) -> Any:
        return original(device, logits, logits.local.shape[-1] * device.groups["tp"].size)

    with around(decoder, "vocab_argmax", all_tokens):
        yield


@fault(DECODING, TP2, "The chosen experts' weights do not sum to one.", "norm_topk_prob ignored")
def experts_not_normalised() -> Iterator[None]:
    def bare(original: Any, self: Any, tokens: Tensor) -> Any:
        weight, expert = original(self, tokens)
        every = torch.softmax(tokens @ self.gate.T, -1, dtype=torch.float32)
        return every.gather(-1, expert).to(weight.dtype), expert

    with around(experts.Qwen3MoeSparseMoeBlock, "route", bare):
        yield


@fault(DECODING, TP2, "Only the best expert of each token runs.", "top-1 of a top-k router")
def one_expert_only() -> Iterator[None]:
    def first(original: Any, self: Any, tokens: Tensor) -> Any:
        weight, expert = original(self, tokens)
        return weight[:, :1], expert[:, :1]

    with around(experts.Qwen3MoeSparseMoeBlock, "route", first):
        yield


@fault(DECODING, TP2, "Query heads use the next group's keys.", "key-value heads repeated in the wrong order")
def wrong_key_value_head() -> Iterator[None]:
    original = grouped_attention.grouped_attention

    def shifted(device: Any, q: MeshTensor, *kv: MeshTensor, causal: bool) -> MeshTensor:
        return original(device, q, *(x.map("roll", lambda y: y.roll(1, 1)) for x in kv), causal=causal)

    with instead(target_attention, "grouped_attention", shifted):
        yield


@fault(
    DECODING,
    TP2,
    "The hidden state of the last accepted token is not handed on.",
    "context of a rows instead of a + 1",
    says="out of step",
)
def context_row_short() -> Iterator[None]:
    def short(original: Any, self: Any, start: int, last: int, kept: Tensor) -> Tensor:
        return original(self, start, last, kept[:, :-1])

    with around(speculative.DFlashDrafter, "propose", short):
        yield
