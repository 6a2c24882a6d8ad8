"""Faults of the reference in attention over shards: merges, the prompt, masks, order of shards and heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from parity.faults.ref_tools import GATHERED, LINE, RING, SPLIT, ULYSSES, USP, around, fault, instead
from refsim.parallel import sdpa, ulysses, usp
from refsim.parallel.kv_ring import KVGathered, KVRing
from refsim.parallel.sequence import TokenShards
from refsim.parallel.ulysses import Exchange

MERGE, JOINT, PADDING, ORDER, PRECISION, AFFINE = "merge", "joint", "padding", "order", "precision", "affine"
SEAM, RARE = "seam", "rare"


def _merge(change: Any) -> Any:
    """A patch of the merge of a block: ``change(out, lse, out_new, lse_new)`` changes the running answer in place."""
    return instead(sdpa, "merge", change)


@fault(
    MERGE,
    RING,
    "Answers of key blocks are added without their log-sum-exp weights.",
    "the ring attention of one source document: out += attention(q, k_block, v_block)",
)
def answers_added_without_lse() -> Iterator[None]:
    def change(out: Tensor, lse: Tensor, out_new: Tensor, lse_new: Tensor) -> None:
        out.add_(out_new)
        lse.copy_(torch.logaddexp(lse, lse_new))

    with _merge(change):
        yield


@fault(MERGE, RING, "Answers of key blocks are averaged.", "mean of softmaxes, right only if all blocks weigh the same")
def answers_averaged() -> Iterator[None]:
    def change(out: Tensor, lse: Tensor, out_new: Tensor, lse_new: Tensor) -> None:
        out.lerp_(out_new, 0.5)
        lse.copy_(torch.logaddexp(lse, lse_new))

    with _merge(change):
        yield


@fault(MERGE, RING, "The log-sum-exp is not updated by a merge.", "a stale running maximum")
def lse_stale() -> Iterator[None]:
    def change(out: Tensor, lse: Tensor, out_new: Tensor, lse_new: Tensor) -> None:
        out.sub_(torch.sigmoid(lse_new - lse).unsqueeze(-1) * (out - out_new))

    with _merge(change):
        yield


@fault(
    MERGE, RING, "The weight of a new block has the wrong sign.", "sigmoid(lse - lse_new) for sigmoid(lse_new - lse)"
)
def lse_sign() -> Iterator[None]:
    def change(out: Tensor, lse: Tensor, out_new: Tensor, lse_new: Tensor) -> None:
        out.sub_(torch.sigmoid(lse - lse_new).unsqueeze(-1) * (out - out_new))
        lse.copy_(torch.logaddexp(lse, lse_new))

    with _merge(change):
        yield


@fault(MERGE, RING, "The merged log-sum-exp is the larger of the two.", "max instead of logaddexp")
def lse_is_the_maximum() -> Iterator[None]:
    def change(out: Tensor, lse: Tensor, out_new: Tensor, lse_new: Tensor) -> None:
        out.sub_(torch.sigmoid(lse_new - lse).unsqueeze(-1) * (out - out_new))
        lse.copy_(torch.maximum(lse, lse_new))

    with _merge(change):
        yield


@fault(PRECISION, RING, "The running log-sum-exp is kept in bf16.", "an LSE output tile in the storage dtype")
def lse_in_bf16() -> Iterator[None]:
    def merge(original: Any, out: Tensor, lse: Tensor, *new: Tensor) -> None:
        original(out, lse, *new)
        lse.copy_(lse.bfloat16())

    with around(sdpa, "merge", merge):
        yield


@fault(PRECISION, RING, "The running answer is kept in bf16.", "fp32_dest_acc_en left off")
def answer_in_bf16() -> Iterator[None]:
    def merge(original: Any, out: Tensor, lse: Tensor, *new: Tensor) -> None:
        original(out, lse, *new)
        out.copy_(out.bfloat16())

    with around(sdpa, "merge", merge):
        yield


@fault(PRECISION, RING, "Keys travel in bf16 where fp32 is meant.", "dtype of a persistent buffer")
def keys_in_bf16() -> Iterator[None]:
    def attend(original: Any, self: Any, k: Tensor, v: Tensor, *keys: Any, **where: Any) -> None:
        original(self, k.bfloat16().float(), v, *keys, **where)

    with around(sdpa.OnlineSoftmax, "attend", attend):
        yield


def _rear(change: Any) -> Any:
    """A patch of the prompt's keys and values: ``change(k, v, members)``, or None for no prompt at all."""

    def attention(original: Any, device: Any, qkv: Any, rear: Any = None, **more: Any) -> Any:
        query, key, value = rear
        changed = change(key.local, value.local, device.groups["ring"].size)
        if changed is None:
            changed = key.local[:, :, :0], value.local[:, :, :0]
        rear = (query, key.with_local(changed[0]), value.with_local(changed[1]))
        return original(device, qkv, rear, **more)

    return around(usp, "ring_attention", attention)


@fault(
    JOINT, RING, "The prompt is attended twice.", "joint K, V appended to the shard and attended at the rear as well"
)
def joint_counted_twice() -> Iterator[None]:
    with _rear(lambda k, v, members: (torch.cat([k, k], 2), torch.cat([v, v], 2))):
        yield


@fault(JOINT, RING, "The prompt is attended on every step of the ring.", "joint K, V attended inside the loop")
def joint_on_every_step() -> Iterator[None]:
    with _rear(lambda k, v, members: (torch.cat([k] * members, 2), torch.cat([v] * members, 2))):
        yield


@fault(JOINT, RING, "The prompt is attended by nobody.", "the last ring step, which alone reads joint K, V, is skipped")
def joint_forgotten() -> Iterator[None]:
    with _rear(lambda k, v, members: None):
        yield


@fault(JOINT, RING, "The prompt's last row is not attended.", "joint length rounded down")
def joint_one_row_short() -> Iterator[None]:
    with _rear(lambda k, v, members: (k[:, :, :-1], v[:, :, :-1])):
        yield


@fault(JOINT, ULYSSES, "Each member takes the first heads of the prompt.", "replicated joint tensors not cut by head")
def joint_heads_of_member_0() -> Iterator[None]:
    def take(original: Any, self: Exchange, prompt: Any) -> Any:
        members, mine = self.group.size, -(-self.heads // self.group.size)
        first = (x.local[:, :mine].repeat(1, members, 1, 1)[:, : self.heads] for x in prompt)
        return original(self, tuple(x.with_local(local) for x, local in zip(prompt, first, strict=True)))

    with around(Exchange, "take_heads", take):
        yield


def _valid(change: Any) -> Any:
    return around(TokenShards, "valid", lambda original, self, shard: change(self, shard, original))


@fault(PADDING, RING, "Rows of padding are keys.", "logical_n read from the padded shape")
def padding_attended() -> Iterator[None]:
    with _valid(lambda self, shard, original: [(0, self.local_n)]):
        yield


@fault(
    PADDING, ULYSSES, "Rows of padding are keys after the all-to-all.", "mask made for the shard, not for the sequence"
)
def padding_attended_by_ulysses() -> Iterator[None]:
    with _valid(lambda self, shard, original: [(0, self.local_n)]):
        yield


@fault(PADDING, SPLIT, "Rows of padding of a split prompt are keys.", "logical_l forgotten")
def prompt_padding_attended() -> Iterator[None]:
    with _valid(lambda self, shard, original: [(0, self.local_n)] if self.logical_n == 21 else original(self, shard)):
        yield


def _last_key(by: int) -> Any:
    def change(self: TokenShards, shard: int, original: Any) -> list:
        whole = TokenShards(self.logical_n + by, self.factor, self.local_n)
        return original(whole, shard)

    return _valid(change)


@fault(PADDING, RING, "logical_n is one too many.", "an inclusive bound")
def logical_n_one_more() -> Iterator[None]:
    with _last_key(1):
        yield


@fault(PADDING, RING, "logical_n is one too few.", "an exclusive bound")
def logical_n_one_less() -> Iterator[None]:
    with _last_key(-1):
        yield


@fault(PADDING, LINE, "logical_n is a tile too few.", "logical_n rounded down to whole tiles")
def logical_n_a_tile_less() -> Iterator[None]:
    with _last_key(-32):
        yield


@fault(ORDER, RING, "The mask of the shard that travels the other way is used.", "ring direction")
def ring_direction() -> Iterator[None]:
    def keys(original: Any, self: KVRing, shard: int, block: int) -> Any:
        return original(self, (2 * self.group.index - shard) % self.group.size, block)

    with around(KVRing, "keys", keys):
        yield


@fault(
    ORDER,
    RING,
    "The last shard of the ring is never visited.",
    "step off by one",
    says="without waiting for 2 transfer",
)
def ring_one_step_short() -> Iterator[None]:
    with around(KVRing, "steps", lambda original, self: original(self)[:-1]):
        yield


@fault(ORDER, LINE, "On a Line only shards from the left are visited.", "a Line run with the Ring's single direction")
def line_in_one_direction() -> Iterator[None]:
    def blocks(original: Any, self: KVRing, step: int) -> Iterator[tuple[int, int]]:
        yield from (visit for visit in original(self, step) if visit[0] <= self.group.index)

    with around(KVRing, "blocks", blocks):
        yield


@fault(
    ORDER, RING, "The local shard is attended again instead of the one that arrived.", "the read pointer does not move"
)
def own_shard_every_step() -> Iterator[None]:
    kept: dict[int, Any] = {}

    def view(original: Any, self: KVRing, shard: int, block: int) -> Any:
        k, v, keys = original(self, shard, block)
        if shard == self.group.index:
            kept[block] = k.clone(), v.clone(), keys
        return kept[block]

    with around(KVRing, "view", view):
        yield


@fault(ORDER, GATHERED, "Gathered keys and values are in opposite orders.", "K gathered in ring order, V in rank order")
def gathered_values_reversed() -> Iterator[None]:
    def storage(original: Any, self: KVGathered, shard: int) -> Any:
        return original(self, shard)[0], original(self, self.group.size - 1 - shard)[1]

    with around(KVGathered, "storage", storage):
        yield


@fault(ORDER, ULYSSES, "Shards come out of the all-to-all in reverse order.", "concatenation by arrival, not by rank")
def ulysses_shards_reversed() -> Iterator[None]:
    def swap(
        original: Any, device: Any, x: Tensor, group: Any, *, split_dim: int, concat_dim: int, **more: Any
    ) -> Tensor:
        y = original(device, x, group, split_dim=split_dim, concat_dim=concat_dim, **more)
        return torch.cat(y.chunk(group.size, concat_dim)[::-1], concat_dim) if split_dim == 1 else y

    with around(ulysses, "all_to_all", swap):
        yield


@fault(ORDER, ULYSSES, "Heads come back interleaved.", "head index = local * size + member instead of member * local")
def ulysses_heads_interleaved() -> Iterator[None]:
    def swap(
        original: Any, device: Any, x: Tensor, group: Any, *, split_dim: int, concat_dim: int, **more: Any
    ) -> Tensor:
        y = original(device, x, group, split_dim=split_dim, concat_dim=concat_dim, **more)
        return y.unflatten(1, (group.size, -1)).transpose(1, 2).flatten(1, 2) if concat_dim == 1 else y

    with around(ulysses, "all_to_all", swap):
        yield


@fault(ORDER, ULYSSES, "Padded heads are dropped at the front.", "heads[-n:] for heads[:n]")
def ulysses_padded_heads_in_front() -> Iterator[None]:
    with around(Exchange, "drop_padding", lambda original, self, x: original(self, x.roll(-1, dims=1))):
        yield


@fault(ORDER, USP, "USP takes the masks of sub-shards in ring order.", "shard u * ring + r for r * ulysses + u")
def usp_sub_shards_swapped() -> Iterator[None]:
    def valid(original: Any, self: Exchange, of_shard: Any, rows: int) -> Any:
        return original(self, lambda shard: of_shard([0, 2, 1, 3][shard]), rows)

    with around(Exchange, "valid", valid):
        yield


def _answer(change: Any, *, prompt: bool = False) -> Any:
    """A patch of the answer to the image, and with ``prompt`` of that to the prompt: ``change(device, out)``."""

    def attention(original: Any, device: Any, *args: Any, **more: Any) -> Any:
        (out, rear_out), lses = original(device, *args, **more)
        if prompt and rear_out is not None:
            rear_out = rear_out.with_local(change(device, rear_out.local.clone()))
        return (out.with_local(change(device, out.local.clone())), rear_out), lses

    return around(usp, "ring_attention", attention)


@fault(AFFINE, RING, "Every answer is 1 % too large.", "a scale of 1 / sqrt(E) rounded before use")
def answer_scaled() -> Iterator[None]:
    with _answer(lambda device, out: out * 1.01, prompt=True):
        yield


@fault(AFFINE, RING, "Every answer is shifted by 0.01.", "a rounding bias")
def answer_shifted() -> Iterator[None]:
    with _answer(lambda device, out: out + 0.01, prompt=True):
        yield


@fault(AFFINE, RING, "Scores are scaled for another head size.", "scale of the padded head_dim")
def scores_scaled() -> Iterator[None]:
    def build(original: Any, self: Any, device: Any, q: Tensor) -> None:
        original(self, device, q * 1.02)

    with around(sdpa.OnlineSoftmax, "__init__", build):
        yield


@fault(SEAM, RING, "The first row of every shard has its neighbour's answer.", "an index off by one at shard borders")
def border_rows() -> Iterator[None]:
    def change(device: Any, out: Tensor) -> Tensor:
        out[:, :, 0] = out[:, :, 1]
        return out

    with _answer(change):
        yield


@fault(
    SEAM, RING, "The first key of every shard but one's own is skipped.", "a half-open range opened on the wrong side"
)
def border_keys() -> Iterator[None]:
    def keys(original: Any, self: KVRing, shard: int, block: int) -> Any:
        found = original(self, shard, block)
        return found if block or shard == self.group.index else [(max(a, 1), b) for a, b in found]

    with around(KVRing, "keys", keys):
        yield


@fault(RARE, RING, "One row of one head on one rank is zero.", "an idle core keeps an old mask")
def one_row() -> Iterator[None]:
    def change(device: Any, out: Tensor) -> Tensor:
        if device.rank == 2:
            out[:, 3, 7] = 0
        return out

    with _answer(change):
        yield


@fault(RARE, RING, "One head on one rank is its neighbour's.", "SDPA error that grows with the head count")
def one_head() -> Iterator[None]:
    def change(device: Any, out: Tensor) -> Tensor:
        if device.rank == 1:
            out[:, 5] = out[:, 4]
        return out

    with _answer(change):
        yield


@fault(RARE, RING, "One element on one rank is not a number.", "0 * inf in a lane nobody looks at")
def one_nan() -> Iterator[None]:
    def change(device: Any, out: Tensor) -> Tensor:
        if device.rank == 3:
            out[0, 0, 0, 0] = float("nan")
        return out

    with _answer(change):
        yield


@fault(RARE, RING, "On the last step the merge weight is off by 1 %.", "a branch taken only when the ring closes")
def last_step_only() -> Iterator[None]:
    def attend(original: Any, self: Any, k: Tensor, v: Tensor, *keys: Any, step: int, buffer: str = "-") -> None:
        last = step == self.device.groups["ring"].size - 1 and buffer != "joint"
        original(self, k, v * 1.01 if last else v, *keys, step=step, buffer=buffer)

    with around(sdpa.OnlineSoftmax, "attend", attend):
        yield


@fault(RARE, RING, "Two heads of the queries are swapped on one rank.", "worker slice mapping of one link")
def two_heads_swapped() -> Iterator[None]:
    def attention(original: Any, device: Any, qkv: Any, *args: Any, **more: Any) -> Any:
        q, k, v = qkv
        if device.rank == 0:
            q = q.with_local(q.local[:, [1, 0, *range(2, q.shape[1])]])
        return original(device, (q, k, v), *args, **more)

    with around(usp, "ring_attention", attention):
        yield


@fault(PADDING, ULYSSES, "Padded heads hold ones and come back instead of the last real head.", "head padding in front")
def padded_heads_shift() -> Iterator[None]:
    def pad(original: Any, self: Exchange, x: Tensor) -> Tensor:
        return original(self, x).roll(-self.heads, dims=1)

    with around(Exchange, "pad", pad):
        yield
