"""Calls of schemes, collectives and layers: some that cannot be right, and beside each its neighbour that is.

A call is wrong by how one of its tensors is laid out over a group of devices, or by a number. A wrong one whose answer
nobody compares with anything looks like a right one: on ranks that hold equal values a missing reduction shows in no
shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from parity.cases.checkpoints import MODELS
from refsim.base.errors import PlacementError, UserError
from refsim.base.mesh import Topology
from refsim.blocks.shape import SingleStreamShape
from refsim.blocks.single import AttentionAndMLPOut
from refsim.ccl import all_to_all, neighbor_pad, reduce_scatter, shift
from refsim.ccl.exchange import CHUNK_BYTES, split_chunks
from refsim.files.checkpoint import ShapeWeights
from refsim.layers.attention import local_attention
from refsim.layers.embeddings import PatchEmbed, TokenEmbedding
from refsim.layers.group_norm import GroupNorm
from refsim.layers.grouped_attention import grouped_attention, head_ranges
from refsim.layers.kv_cache import KVCache
from refsim.layers.modulation import Modulation, modulate
from refsim.layers.norm import DistributedLayerNorm, DistributedRMSNorm, RMSNorm
from refsim.layers.paged_cache import PAGE, PagePool
from refsim.models.flux1.embeddings import sequences_of
from refsim.models.qwen3_moe.experts import Qwen3MoeSparseMoeBlock
from refsim.models.registry import get
from refsim.models.wan22.attention import CrossAttention
from refsim.parallel.cfg import batch_range, guide
from refsim.parallel.halo import ImageShards, cut_image, gather_image
from refsim.parallel.padding import TILE, padded_features, padded_heads
from refsim.parallel.ring import ring_attention
from refsim.parallel.sdpa import OnlineSoftmax
from refsim.parallel.sequence import TokenShards, cut_tokens, gather_tokens
from refsim.parallel.tensor import (
    column_linear,
    concat_heads,
    fused_column_linear,
    gather_features,
    reduce_scatter_features,
    row_linear,
)
from refsim.parallel.ulysses import Exchange
from refsim.parallel.usp import joint_attention
from refsim.parallel.vocab import vocab_argmax
from refsim.pipelines.denoise import denoise
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, Partial, Placement, Replicate, Shard, shards


@dataclass(frozen=True)
class Call:
    """A call that is right, or one that is wrong.

    Attributes:
        name: unique among those of a run.
        make: makes it.
        wrong: how the sentence that refuses it begins; None of a right one.
    """

    name: str
    make: Callable[[], Any]
    wrong: str | None = None


Calls = Iterator[Call]

LAYOUTS: tuple[Placement, ...] = (Replicate(), *map(Shard, range(4)), Partial("sum"), Partial("max"))
SEQUENCE = ("sp", "ring", "ulysses")
_B = 1
_E = 4
_PROMPT = 3


def program(device: Device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Make every call; by name, those ``accepted``, wrong but not refused before anything was sent, and those that
    ``failed`` though right."""
    report: dict[str, Any] = {"accepted": [], "failed": [], "calls": 0}
    for calls in (features, norms, heads, parts, tokens, joint, rings, exchanges, pictures, numbers, rows, dtypes):
        for call in calls(device):
            sent = sum(device.trace.sent.values())
            error = _error(call.make)
            report["calls"] += 1
            sentence = f"{call.name}: {type(error).__name__} {error}"
            if call.wrong is None:
                report["failed"] += [] if error is None else [sentence]
                continue
            refused = isinstance(error, PlacementError | UserError | ValueError) and str(error).startswith(call.wrong)
            if not refused or sent != sum(device.trace.sent.values()):
                report["accepted"].append(sentence)
    return report, {}


def _error(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def spoiled(
    device: Device,
    op: str,
    call: Callable[..., Any],
    groups: tuple[str, ...],
    *tensors: MeshTensor,
    wrong: tuple[Placement, ...] = LAYOUTS,
) -> Calls:
    """Yield a call as it is right; then with each tensor in turn laid out in every ``wrong`` way over each group."""
    yield Call(op, partial(call, *tensors))
    for group in (name for name in groups if device.groups[name].size > 1):
        for at, x in enumerate(tensors):
            for placement in wrong:
                if x.placement(group) != placement:
                    other = x.with_local(x.local, **{group: placement})
                    arguments = (*tensors[:at], other, *tensors[at + 1 :])
                    yield Call(f"{op}: tensor {at} {group}={placement}", partial(call, *arguments), wrong=op)


def laid_out(device: Device, *shape: int, **dims: int) -> MeshTensor:
    """Make ones of a local shape, cut over the named groups where those have members."""
    return MeshTensor(torch.ones(shape), shards(device.groups, **dims))


def check(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def features(device: Device) -> Calls:
    """Yield calls of linears and sums over tp; the vocabulary; shift, scale and gate."""
    weights = ShapeWeights(torch.float32, torch.ones)
    size = TILE * device.groups["tp"].size
    down = torch.ones(TILE, size)
    up = torch.ones(size, TILE)
    each = partial(spoiled, device)
    whole = laid_out(device, _B, 2, size)
    cut = laid_out(device, _B, 2, TILE, tp=2)
    yield from each("column_linear", lambda x: column_linear(device, x, down, None), ("tp",), whole)
    yield from each("column_linear", lambda x: fused_column_linear(device, x, [down] * 3, [None] * 3), ("tp",), whole)
    yield from each("row_linear", lambda x: row_linear(device, x, up, None), ("tp",), cut)
    term = whole.with_local(whole.local, tp=Partial("sum"))
    yield from each("reduce_scatter", partial(reduce_scatter_features, device), ("tp",), term)
    yield from each("all_gather", partial(gather_features, device), ("tp",), cut)
    best = partial(vocab_argmax, device, vocab_size=size)
    yield from each("vocab_argmax", best, ("tp",), laid_out(device, _B, TILE, tp=1))
    for vocabulary in (1, size - TILE + 1, size):

        def first(count: int = vocabulary) -> None:
            token, margin = best(laid_out(device, _B, TILE, tp=1), vocab_size=count)
            check(int(token) == 0 and float(margin) == (0 if count > 1 else torch.inf), f"{token} by {margin}")

        yield Call(f"the first of {vocabulary} equal tokens", first)
    modulation = Modulation(weights, device, "modulation", features=size, chunks=2)
    yield from each("modulation", modulation, ("tp",), laid_out(device, _B, size))
    yield from each("", modulate, ("tp", "sp"), *[laid_out(device, _B, 2, TILE, tp=2, sp=1)] * 3)


def norms(device: Device) -> Calls:
    weights = ShapeWeights(torch.float32, torch.ones)
    size = TILE * device.groups["tp"].size
    each = partial(spoiled, device)
    per_head = laid_out(device, _B, 2, 2, _E, tp=1)
    norm = RMSNorm(weights, device, "norm_q", features=_E, eps=1e-6).of_heads
    yield from each("rms_norm", norm, ("tp", "sp"), per_head, wrong=(Partial("sum"),))
    all_heads = {"num_heads": 2 * device.groups["tp"].size, "head_dim": _E, "eps": 1e-6}
    yield from each(
        "distributed_rms_norm", DistributedRMSNorm(weights, device, "norm_k", **all_heads), ("tp",), per_head
    )
    layer_norm = DistributedLayerNorm(device, features=size, eps=1e-6)
    yield from each("distributed_layer_norm", layer_norm, ("tp",), laid_out(device, _B, 2, TILE, tp=2))


def heads(device: Device) -> Calls:
    """Yield calls of attention on rows that every device has."""
    each = partial(spoiled, device)
    over = ("tp", *SEQUENCE)
    qkv = [laid_out(device, _B, 2, _PROMPT, _E, tp=1)] * 3
    yield from each("concat_heads", concat_heads, over, qkv[0], wrong=(Shard(3),))
    yield from each("local_attention's", lambda *x: local_attention(device, x), over, *qkv)
    grouped = partial(grouped_attention, device, causal=True)
    yield from each("grouped_attention's", grouped, over, *qkv)
    for placement in LAYOUTS if device.groups["tp"].size > 1 else ():
        alike = [x.with_local(x.local, tp=placement) for x in qkv]
        wrong = None if placement in (Replicate(), Shard(1)) else "grouped_attention's"
        yield Call(f"grouped_attention, all tensors tp={placement}", partial(grouped, *alike), wrong)


def parts(device: Device) -> Calls:
    """Call what models add to the layers: two ranges of features in one linear, attention to a prompt, experts."""
    weights = ShapeWeights(torch.float32, torch.ones)
    each = partial(spoiled, device)
    flux = SingleStreamShape(4, 8, 32, (), features=32, hidden=64)
    wan, qwen = (
        get(MODELS[name].class_name).config_class.from_dict(MODELS[name].config)
        for name in ("wan22_tiny", "qwen3_moe_tiny")
    )
    size = device.groups["tp"].size
    padded = padded_heads(flux.num_heads, size) // size
    attended = laid_out(device, _B, padded, 2, flux.head_dim, tp=1)
    mlp = laid_out(device, _B, 2, padded_features(flux.hidden, size) // size, tp=2)
    out = AttentionAndMLPOut(weights, device, "proj_out", flux)
    yield from each("proj_out", lambda x: out(attended, x), ("tp",), mlp)
    rows = laid_out(device, _B, _PROMPT, padded_features(wan.features, size))
    cross = CrossAttention(weights, device, "attn2", wan)
    yield from each("cross-attention's prompt", lambda x: cross(rows, x), ("sp",), rows, wrong=(Shard(1),))
    chosen = laid_out(device, _B, 2, padded_features(qwen.hidden_size, size))
    yield from each("experts", Qwen3MoeSparseMoeBlock(weights, device, "mlp", qwen), ("tp",), chosen)


def tokens(device: Device) -> Calls:
    each = partial(spoiled, device)
    cut = TokenShards.of(40, device.groups["sp"].size)
    whole = laid_out(device, _B, 40, _E)
    mine = laid_out(device, _B, cut.local_n, _E, sp=1)
    yield from each("cut_tokens", lambda x: cut_tokens(device, x, cut, dim=1), SEQUENCE, whole)
    yield from each("gather_tokens", lambda x: gather_tokens(device, x, cut, dim=1), SEQUENCE, mine)


def joint(device: Device) -> Calls:
    """Yield calls of attention over all tokens, without a prompt, with one on every device, and with a cut one."""
    each = partial(spoiled, device)
    over = ("tp", *SEQUENCE)
    cut, cut_prompt = (TokenShards.of(n, device.groups["sp"].size) for n in (40, _PROMPT))
    of_heads = _B, 2 * device.groups["ulysses"].size
    image = [laid_out(device, *of_heads, cut.local_n, _E, tp=1, sp=2)] * 3
    prompt = [laid_out(device, *of_heads, _PROMPT, _E, tp=1)] * 3
    split = [laid_out(device, *of_heads, cut_prompt.local_n, _E, tp=1, sp=2)] * 3

    def attend(*qkv: MeshTensor, prompt_tokens: TokenShards | None = None) -> None:
        answers = joint_attention(device, qkv[:3], qkv[3:] or None, tokens=cut, prompt_tokens=prompt_tokens)
        check(answers[2] is None, "log-sum-exps were moved that nobody asked for")
        for queries, out in zip(qkv[::3], answers, strict=False):
            same = all(out.placement(group) == queries.placement(group) for group in over)
            check(same and out.shape == queries.shape, f"{queries} was answered by {out}")

    yield from each("joint_attention's", attend, over, *image)
    yield from each("joint_attention's", attend, over, *image, *prompt)
    yield from each("joint_attention's", partial(attend, prompt_tokens=cut_prompt), over, *image, *split)
    for (q, *kv), cut_as in ((prompt, None), (split, cut_prompt)):
        silent = q.with_local(q.local[:, :, :0])  # of a block that drops its prompt
        asked = partial(attend, *image, silent, *kv, prompt_tokens=cut_as)
        yield Call("joint_attention, a prompt without queries", asked)


def rings(device: Device) -> Calls:
    """Yield calls of attention over a ring, of the heads that are there; and what has no key to attend to."""
    each = partial(spoiled, device)
    over = ("tp", "ulysses", "ring")
    shard = [laid_out(device, _B, 2, 5, _E, tp=1, ulysses=1, ring=2)] * 3
    rear = [laid_out(device, _B, 2, _PROMPT, _E, tp=1, ulysses=1)] * 3

    def attend(*qkv: MeshTensor, keys: int = 5) -> tuple[Any, Any]:
        return ring_attention(device, qkv[:3], qkv[3:] or None, valid=lambda shard: [(0, keys)])

    yield from each("ring_attention's", attend, over, *shard)
    yield from each("ring_attention's", attend, over, *shard, *rear)

    def no_keys() -> None:
        (out, _), (lse, _) = attend(*shard, keys=0)
        check(not out.local.any() and bool((lse.local == -torch.inf).all()), f"{out} and {lse} of no keys")

    yield Call("ring_attention without keys", no_keys)
    yield Call("no block of keys", lambda: check(not OnlineSoftmax(device, shard[0].local).result()[0].any(), "none"))


def exchanges(device: Device) -> Calls:
    """Yield exchanges of tokens for heads and back."""
    size = device.groups["ulysses"].size
    each = partial(spoiled, device)
    of_heads = _B
    over = ("ulysses",)
    exchange = Exchange(device, 2 * size)
    whole = laid_out(device, of_heads, 2 * size, 5, _E)
    mine = laid_out(device, of_heads, 2 * size, 5, _E, ulysses=2)
    cut = laid_out(device, of_heads, 2, 5 * size, _E, ulysses=1)
    yield from each("ulysses' ", lambda *x: exchange.to_heads(x), over, *[mine] * 3)
    yield from each("ulysses' answer", exchange.to_tokens, over, cut)
    yield from each("ulysses' prompt ", lambda *x: exchange.take_heads(x), over, *[whole] * 3)
    yield from each("ulysses' answer for the prompt", exchange.gather_heads, over, cut)
    for count in (2 * size, 3 * size, 2 * size + 1):
        wrong = f"ulysses {size} cannot split {count} heads" if count % size else None
        yield Call(f"{count} heads over ulysses {size}", partial(Exchange, device, count), wrong)


def pictures(device: Device) -> Calls:
    """Cut pictures by rows and columns unless it is said otherwise, and merge statistics over columns first."""
    sp = device.groups["sp"]
    tp = device.groups["tp"]
    whole = torch.arange(float(_E * sp.size * 5 * tp.size)).view(1, 1, _E * sp.size, 5 * tp.size)
    cut = ImageShards.of(device, *whole.shape[2:])
    norm = GroupNorm(ShapeWeights(torch.float32, torch.ones), device, "norm", channels=1, groups=1)

    def gathers(call: Callable[[], Any]) -> list[str]:
        before = len(device.collectives)
        call()
        return [collective["group"] for collective in device.collectives[before:]]

    def there_and_back() -> None:
        mine = cut_image(device, whole, cut)
        check(mine.shape[2:] == (_E, 5), f"a part of a picture is {tuple(mine.shape)}")
        check(torch.equal(gather_image(device, mine, cut), whole), "a picture that was cut is another one")

    def normed() -> None:
        groups = gathers(lambda: norm(cut_image(device, whole, cut), cut))
        check(groups == [group.name for group in (tp, sp) if group.size > 1], f"gathered over {groups}")

    yield Call("a picture cut and gathered", there_and_back)
    yield Call("a norm of a picture", normed)


def numbers(device: Device) -> Calls:
    """Call what must divide by a group, and what needs a link."""
    sp, tp, cfg = (device.groups[name] for name in ("sp", "tp", "cfg"))
    x = torch.ones(2 * sp.size, 2 * sp.size)
    for extra in (0, 1) if sp.size > 1 else (0,):
        rows = torch.ones(2 * sp.size + extra, 2)
        for dim, moved in enumerate((rows, rows.T)):
            scatter = partial(reduce_scatter, device, moved, sp, dim=dim)
            exchange = partial(all_to_all, device, moved, sp, split_dim=dim, concat_dim=1 - dim)
            for name, call in (("reduce_scatter", scatter), ("all_to_all", exchange)):
                wrong = f"{name} cannot cut dim {dim} of size {len(rows)}" if extra else None
                yield Call(f"{name} of {len(rows)}", call, wrong)
    for length, most in ((3, 1), (3, 7), (5, 8), (700_000, CHUNK_BYTES)):

        def pieces(length: int = length, most: int = most) -> None:
            x = torch.empty(length)
            whole = max(most // 4, 1)
            wanted = [min(whole, len(x) - start) for start in range(0, len(x), whole)]
            lengths = [len(piece) for piece in split_chunks(x, most)]
            check(lengths == wanted and CHUNK_BYTES == 2**20, f"pieces of {lengths}")

        yield Call(f"{length} numbers in pieces of {most} bytes", pieces)
    for by in (0, 1, 2, 3):
        wrong = None if by in (1, 2) else f"neighbor_pad cannot give {by} of 2 rows"
        yield Call(f"neighbor_pad of {by}", partial(neighbor_pad, device, torch.ones(3, 2), sp, dim=1, by=by), wrong)
    line = sp.topology is Topology.LINEAR and sp.size > 2
    yield Call("shift", partial(shift, device, x, sp), "shift over sp needs the wrap-around link" if line else None)
    for kv_heads in (1, tp.size, 2 * tp.size):
        yield Call(f"{kv_heads} heads of keys", partial(head_ranges, 2 * tp.size, kv_heads, tp))
    if tp.size > 1:
        for counts in ((2 * tp.size + 1, 1), (3 * tp.size, 3)):
            wrong = f"tp{tp.size} cannot split {counts[0]} heads with {counts[1]}"
            yield Call(f"{counts} heads", partial(head_ranges, *counts, tp), wrong)
    yield Call("a sample per guidance branch", partial(batch_range, device, cfg.size))
    if cfg.size > 1:
        wrong = f"cfg{cfg.size} cannot split a batch of {cfg.size + 1}"
        yield Call("samples that do not divide", partial(batch_range, device, cfg.size + 1), wrong)
    yield Call("guidance of a pair", partial(guide, torch.ones(2, 3), 4.0))
    yield Call("guidance of three samples", partial(guide, torch.ones(3, 3), 4.0), "guidance needs a batch")


def rows(device: Device) -> Calls:
    """Yield calls for rows of a table, of a cache and of a picture's patches: those that there are."""
    weights = ShapeWeights(torch.float32, torch.ones)
    size = {"features": TILE * device.groups["tp"].size, "table_size": 4}
    grid = PatchEmbed(weights, device, "pos_embed", patch=2, in_channels=1, **size).grid
    yield Call("a latent of 4x8", lambda: check(grid(4, 8) == (2, 4), "other patches"))
    for latent, wrong in (
        ((3, 4), "a latent of 3x4 does not divide"),
        ((4, 3), "a latent of 4x3 does not divide"),
        ((10, 4), "a latent of 10x4 needs a positional table of 5"),
        ((4, 10), "a latent of 4x10 needs a positional table of 5"),
    ):
        yield Call(f"a latent of {latent}", partial(grid, *latent), wrong)
    table = TokenEmbedding(weights, "tokens", vocab_size=5, features=4)
    yield Call("the first and the last token", partial(table, torch.tensor([0, 4])))
    for ids in ([2, 5], [-1, 2]):
        yield Call(f"tokens {ids}", partial(table, torch.tensor(ids)), "the tokenizer gave the id")
    pool = PagePool(1, 2)
    pages = list[int]()
    yield Call("rows of all pages", partial(pool.reserve, pages, 2 * PAGE))
    for count in (4, 5):

        def every(pool: PagePool, taken: list[int]) -> None:
            pool.reserve(taken, pool.pages * PAGE)
            check(sorted(taken) == list(range(pool.pages)), f"pages {taken} of {pool.pages}")

        yield Call(f"each of {count} pages once", partial(every, PagePool(1, count), []))
    yield Call("a row more than there are", partial(pool.reserve, pages, 2 * PAGE + 1), "all 2 pages")
    for name, cache in (("a cache", KVCache()), ("a cache of pages", PagePool(1, 2).new_cache()[0])):
        cache.append(*[MeshTensor(torch.ones(1, 2, 3, 4))] * 2)
        for length in (4, -1, 3, 0):
            wrong = None if 0 <= length <= 3 else "a cache of 3 rows cannot be cropped"
            yield Call(f"{name} cropped to {length}", partial(cache.crop, length), wrong)


def dtypes(device: Device) -> Calls:
    """Call what is computed in fp32 whatever the storage dtype is: rotary tables, and guidance of some pipelines."""
    axes = SimpleNamespace(axes_dims_rope=(4, 4), rope_theta=10000)
    ids = torch.arange(2.0 * TILE).view(TILE, 2)

    def tables() -> None:
        sequences = sequences_of(device, axes, ids, ids)
        table_dtypes = {x.dtype for x in (*sequences.rotary, *sequences.prompt_rotary)}
        check(table_dtypes == {torch.float32}, f"tables of {table_dtypes}")

    yield Call("rotary tables of Flux.1", tables)
    pair = torch.tensor([[1.0], [1.0078125]], dtype=torch.bfloat16)
    for dtype in (torch.float32, None):

        def guided(dtype: torch.dtype | None = dtype) -> None:
            (answer,), _ = denoise(*_one_step(device, pair, dtype))
            wanted = guide(pair.to(dtype or pair.dtype), 6.1)
            check(answer.dtype == wanted.dtype and torch.equal(answer, wanted), f"{answer}, not {wanted}")

        yield Call(f"guidance in {dtype}", guided)


def _one_step(device: Device, pair: Tensor, dtype: torch.dtype | None) -> tuple[Any, Any, dict[str, Tensor]]:
    """Make a pipeline of one step, whose model gives this device's part of ``pair`` and whose scheduler does nothing,
    its run and its conditions.
    """
    mine = pair[slice(*batch_range(device, len(pair)))]
    schedule = SimpleNamespace(timesteps=[1.0], num_train_timesteps=1, step=lambda sample, index, latents: sample)
    pipeline = SimpleNamespace(
        experts=lambda root: (("transformer", 0.0),),
        schedule=lambda run: schedule,
        transformer=None,
        timestep=torch.tensor,
        guidance_dtype=dtype,
        guided=guide,
        batch=lambda request: len(pair),
    )
    run = SimpleNamespace(
        device=device,
        root=None,
        request=SimpleNamespace(guidance_scales=(6.1,)),
        tensors={"latents": torch.zeros(1, 1)},
        storage=pair.dtype,
        load=lambda name, kind: lambda **inputs: mine,
    )
    return pipeline, run, {"encoder_hidden_states": mine}
