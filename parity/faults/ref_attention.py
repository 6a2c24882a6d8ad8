"""Faults of the reference in attention over shards: merges, the prompt, masks, order of shards and heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.faults.around import Patch, around, at
from parity.faults.ref_cases import GATHERED, LINE, RING, SPLIT, ULYSSES, USP
from parity.faults.registry import fault
from refsim.parallel import usp
from refsim.parallel.kv_ring import KVGathered, KVRing
from refsim.parallel.sequence import TokenShards
from refsim.parallel.ulysses import Exchange

merge = partial(fault, "merge", case=RING)
precision = partial(fault, "precision", case=RING)
joint = partial(fault, "joint", case=RING)
padding = partial(fault, "padding", case=RING)
order = partial(fault, "order", case=RING)
affine = partial(fault, "affine", case=RING)
seam = partial(fault, "seam", case=RING)
rare = partial(fault, "rare", case=RING)


@merge(
    "Answers of key blocks are added without their log-sum-exp weights.",
    "the ring attention of one source document: out += attention(q, k_block, v_block)",
)
@at("refsim.parallel.sdpa:merge")
def answers_added_without_lse(_: Any, out: Tensor, lse: Tensor, out_new: Tensor, lse_new: Tensor) -> None:
    out.add_(out_new)
    lse.copy_(torch.logaddexp(lse, lse_new))


@merge("Answers of key blocks are averaged.", "mean of softmaxes, right only if all blocks weigh the same")
@at("refsim.parallel.sdpa:merge")
def answers_averaged(_: Any, out: Tensor, lse: Tensor, out_new: Tensor, lse_new: Tensor) -> None:
    out.lerp_(out_new, 0.5)
    lse.copy_(torch.logaddexp(lse, lse_new))


@merge("The log-sum-exp is not updated by a merge.", "a stale running maximum")
@at("refsim.parallel.sdpa:merge")
def lse_stale(_: Any, out: Tensor, lse: Tensor, out_new: Tensor, lse_new: Tensor) -> None:
    out.sub_(torch.sigmoid(lse_new - lse).unsqueeze(-1) * (out - out_new))


@merge("The weight of a new block has the wrong sign.", "sigmoid(lse - lse_new) for sigmoid(lse_new - lse)")
@at("refsim.parallel.sdpa:merge")
def lse_sign(_: Any, out: Tensor, lse: Tensor, out_new: Tensor, lse_new: Tensor) -> None:
    out.sub_(torch.sigmoid(lse - lse_new).unsqueeze(-1) * (out - out_new))
    lse.copy_(torch.logaddexp(lse, lse_new))


@merge("The merged log-sum-exp is the larger of the two.", "max instead of logaddexp")
@at("refsim.parallel.sdpa:merge")
def lse_is_the_maximum(_: Any, out: Tensor, lse: Tensor, out_new: Tensor, lse_new: Tensor) -> None:
    out.sub_(torch.sigmoid(lse_new - lse).unsqueeze(-1) * (out - out_new))
    lse.copy_(torch.maximum(lse, lse_new))


@precision("The running log-sum-exp is kept in bf16.", "an LSE output tile in the storage dtype")
@at("refsim.parallel.sdpa:merge")
def lse_in_bf16(original: Any, out: Tensor, lse: Tensor, *new: Tensor) -> None:
    original(out, lse, *new)
    lse.copy_(lse.bfloat16())


@precision("The running answer is kept in bf16.", "fp32_dest_acc_en left off")
@at("refsim.parallel.sdpa:merge")
def answer_in_bf16(original: Any, out: Tensor, lse: Tensor, *new: Tensor) -> None:
    original(out, lse, *new)
    out.copy_(out.bfloat16())


@precision("Keys travel in bf16 where fp32 is meant.", "dtype of a persistent buffer")
@at("refsim.parallel.sdpa:OnlineSoftmax.attend")
def keys_in_bf16(original: Any, self: Any, k: Tensor, v: Tensor, *keys: Any, **where: Any) -> None:
    original(self, k.bfloat16().float(), v, *keys, **where)


def _rear(change: Callable[[Tensor, int], Tensor]) -> Patch:
    """Replace the prompt's keys and its values by ``change(x, members of the ring)``."""

    def attention(original: Any, device: Any, qkv: Any, rear: Any = None, **more: Any) -> Any:
        query, *keys = rear
        changed = (x.with_local(change(x.local, device.groups["ring"].size)) for x in keys)
        return original(device, qkv, (query, *changed), **more)

    return around(usp, "ring_attention", attention)


@joint("The prompt is attended twice.", "joint K, V appended to the shard and attended at the rear as well")
def joint_counted_twice() -> Patch:
    return _rear(lambda x, members: torch.cat([x, x], 2))


@joint("The prompt is attended on every step of the ring.", "joint K, V attended inside the loop")
def joint_on_every_step() -> Patch:
    return _rear(lambda x, members: torch.cat([x] * members, 2))


@joint("The prompt is attended by nobody.", "the last ring step, which alone reads joint K, V, is skipped")
def joint_forgotten() -> Patch:
    return _rear(lambda x, members: x[:, :, :0])


@joint("The prompt's last row is not attended.", "joint length rounded down")
def joint_one_row_short() -> Patch:
    return _rear(lambda x, members: x[:, :, :-1])


@joint("Each member takes the first heads of the prompt.", "replicated joint tensors not cut by head", case=ULYSSES)
@at("refsim.parallel.ulysses:Exchange.take_heads")
def joint_heads_of_member_0(original: Any, self: Exchange, prompt: Any) -> Any:
    members = self.group.size
    mine = -(-self.heads // self.group.size)
    first = (x.local[:, :mine].repeat(1, members, 1, 1)[:, : self.heads] for x in prompt)
    return original(self, tuple(x.with_local(local) for x, local in zip(prompt, first, strict=True)))


@padding("Rows of padding are keys.", "logical_n read from the padded shape")
@at("refsim.parallel.sequence:TokenShards.valid")
def padding_attended(_: Any, self: TokenShards, shard: int) -> list:
    return [(0, self.local_n)]


@padding(
    "Rows of padding are keys after the all-to-all.", "mask made for the shard, not for the sequence", case=ULYSSES
)
@at("refsim.parallel.sequence:TokenShards.valid")
def padding_attended_by_ulysses(_: Any, self: TokenShards, shard: int) -> list:
    return [(0, self.local_n)]


@padding("Rows of padding of a split prompt are keys.", "logical_l forgotten", case=SPLIT)
@at("refsim.parallel.sequence:TokenShards.valid")
def prompt_padding_attended(original: Any, self: TokenShards, shard: int) -> list:
    return [(0, self.local_n)] if self.logical_n == 21 else original(self, shard)


def _last_key(by: int) -> Patch:
    """Take the last key for one that comes so many later."""

    def valid(original: Any, self: TokenShards, shard: int) -> list:
        return original(TokenShards(self.logical_n + by, self.factor, self.local_n), shard)

    return around(TokenShards, "valid", valid)


@padding("logical_n is one too many.", "an inclusive bound")
def logical_n_one_more() -> Patch:
    return _last_key(1)


@padding("logical_n is one too few.", "an exclusive bound")
def logical_n_one_less() -> Patch:
    return _last_key(-1)


@padding("logical_n is a tile too few.", "logical_n rounded down to whole tiles", case=LINE)
def logical_n_a_tile_less() -> Patch:
    return _last_key(-32)


@order("The mask of the shard that travels the other way is used.", "ring direction")
@at("refsim.parallel.kv_ring:KVRing.keys")
def ring_direction(original: Any, self: KVRing, shard: int, block: int) -> Any:
    return original(self, (2 * self.group.index - shard) % self.group.size, block)


@order("The last shard of the ring is never visited.", "step off by one", says="without waiting for 2 transfer")
@at("refsim.parallel.kv_ring:KVRing.steps")
def ring_one_step_short(original: Any, self: Any) -> Any:
    return original(self)[:-1]


@order("On a Line only shards from the left are visited.", "a Line run with the Ring's single direction", case=LINE)
@at("refsim.parallel.kv_ring:KVRing.blocks")
def line_in_one_direction(original: Any, self: KVRing, step: int) -> Iterator[tuple[int, int]]:
    yield from (visit for visit in original(self, step) if visit[0] <= self.group.index)


@order("The local shard is attended again instead of the one that arrived.", "the read pointer does not move")
def own_shard_every_step() -> Patch:
    first_views: dict[int, Any] = {}

    def view(original: Any, self: KVRing, shard: int, block: int) -> Any:
        k, v, keys = original(self, shard, block)
        if shard == self.group.index:
            first_views[block] = k.clone(), v.clone(), keys
        return first_views[block]

    return around(KVRing, "view", view)


@order("Gathered keys and values are in opposite orders.", "K gathered in ring order, V in rank order", case=GATHERED)
@at("refsim.parallel.kv_ring:KVGathered.storage")
def gathered_values_reversed(original: Any, self: KVGathered, shard: int) -> Any:
    return original(self, shard)[0], original(self, self.group.size - 1 - shard)[1]


@order("Shards come out of the all-to-all in reverse order.", "concatenation by arrival, not by rank", case=ULYSSES)
@at("refsim.parallel.ulysses:all_to_all")
def ulysses_shards_reversed(
    original: Any, device: Any, x: Tensor, group: Any, *, split_dim: int, concat_dim: int, **more: Any
) -> Tensor:
    y = original(device, x, group, split_dim=split_dim, concat_dim=concat_dim, **more)
    return torch.cat(y.chunk(group.size, concat_dim)[::-1], concat_dim) if split_dim == 1 else y


@order("Heads come back interleaved.", "head index = local * size + member instead of member * local", case=ULYSSES)
@at("refsim.parallel.ulysses:all_to_all")
def ulysses_heads_interleaved(
    original: Any, device: Any, x: Tensor, group: Any, *, split_dim: int, concat_dim: int, **more: Any
) -> Tensor:
    y = original(device, x, group, split_dim=split_dim, concat_dim=concat_dim, **more)
    return y.unflatten(1, (group.size, -1)).transpose(1, 2).flatten(1, 2) if concat_dim == 1 else y


@order("Padded heads are dropped at the front.", "heads[-n:] for heads[:n]", case=ULYSSES)
@at("refsim.parallel.ulysses:Exchange.drop_padding")
def ulysses_padded_heads_in_front(original: Any, self: Any, x: Any) -> Any:
    return original(self, x.roll(-1, dims=1))


@order("USP takes the masks of sub-shards in ring order.", "shard u * ring + r for r * ulysses + u", case=USP)
@at("refsim.parallel.ulysses:Exchange.valid")
def usp_sub_shards_swapped(original: Any, self: Exchange, of_shard: Any, rows: int) -> Any:
    return original(self, lambda shard: of_shard([0, 2, 1, 3][shard]), rows)


def _answer(change: Callable[[Any, Tensor], Any], *, prompt: bool = False) -> Patch:
    """Let ``change(device, out)`` change the answer to the image, with ``prompt`` that to the prompt too, in place."""

    def attention(original: Any, device: Any, *args: Any, **more: Any) -> Any:
        (out, rear_out), lses = original(device, *args, **more)
        change(device, (out := out.with_local(out.local.clone())).local)
        if prompt and rear_out is not None:
            change(device, (rear_out := rear_out.with_local(rear_out.local.clone())).local)
        return (out, rear_out), lses

    return around(usp, "ring_attention", attention)


@affine("Every answer is 1 % too large.", "a scale of 1 / sqrt(E) rounded before use")
def answer_scaled() -> Patch:
    return _answer(lambda device, out: out.mul_(1.01), prompt=True)


@affine("Every answer is shifted by 0.01.", "a rounding bias")
def answer_shifted() -> Patch:
    return _answer(lambda device, out: out.add_(0.01), prompt=True)


@affine("Scores are scaled for another head size.", "scale of the padded head_dim")
@at("refsim.parallel.sdpa:OnlineSoftmax.__init__")
def scores_scaled(original: Any, self: Any, device: Any, q: Tensor, **more: Any) -> None:
    original(self, device, q * 1.02, **more)


@seam("The first row of every shard has its neighbour's answer.", "an index off by one at shard borders")
@at(_answer)
def border_rows(device: Any, out: Tensor) -> None:
    out[:, :, 0] = out[:, :, 1]


@seam("The first key of every shard but one's own is skipped.", "a half-open range opened on the wrong side")
@at("refsim.parallel.kv_ring:KVRing.keys")
def border_keys(original: Any, self: KVRing, shard: int, block: int) -> Any:
    ranges = original(self, shard, block)
    return ranges if block or shard == self.group.index else [(max(a, 1), b) for a, b in ranges]


@rare("One row of one head on one rank is zero.", "an idle core keeps an old mask")
@at(_answer)
def one_row(device: Any, out: Tensor) -> None:
    if device.rank == 2:
        out[:, 3, 7] = 0


@rare("One head on one rank is its neighbour's.", "SDPA error that grows with the head count")
@at(_answer)
def one_head(device: Any, out: Tensor) -> None:
    if device.rank == 1:
        out[:, 5] = out[:, 4]


@rare("One element on one rank is not a number.", "0 * inf in a lane nobody looks at")
@at(_answer)
def one_nan(device: Any, out: Tensor) -> None:
    if device.rank == 3:
        out[0, 0, 0, 0] = float("nan")


@rare("On the last step the merge weight is off by 1 %.", "a branch taken only when the ring closes")
@at("refsim.parallel.sdpa:OnlineSoftmax.attend")
def last_step_only(original: Any, self: Any, k: Tensor, v: Tensor, *keys: Any, step: int, buffer: str = "-") -> None:
    last = step == self.device.groups["ring"].size - 1 and buffer != "joint"
    original(self, k, v * 1.01 if last else v, *keys, step=step, buffer=buffer)


@rare("Two heads of the queries are swapped on one rank.", "worker slice mapping of one link")
@at("refsim.parallel.usp:ring_attention")
def two_heads_swapped(original: Any, device: Any, qkv: Any, *args: Any, **more: Any) -> Any:
    q, k, v = qkv
    if device.rank == 0:
        q = q.with_local(q.local[:, [1, 0, *range(2, q.shape[1])]])
    return original(device, (q, k, v), *args, **more)


@padding("Padded heads hold ones and come back instead of the last real head.", "head padding in front", case=ULYSSES)
@at("refsim.parallel.ulysses:Exchange.pad")
def padded_heads_shift(original: Any, self: Exchange, x: Tensor) -> Tensor:
    return original(self, x).roll(-self.heads, dims=1)
