"""Layers judged one by one: what each rank's part of a layer took and gave, beside the same part of the oracle's.

A whole transformer hides an operation that is 15 % too large on one rank: behind the residual stream, behind the sum
over tensor-parallel ranks, behind the rounding of everything after it. So every linear, norm and feed-forward of a
block, and what makes tokens of image and prompt, is compared where it stands, rank by rank (and head by head where it
has heads), with the module of the same name in diffusers. Embeddings of time and guidance are not: they are replicated,
and all modulations, which are compared, are made of them; nor are the last norm and projection, which give the sample.

    NAME        what the layer gave             NAME.in   what it took (not of norms and feed-forwards)
    NAME.term   a rank's term of the sum that a row-parallel layer gives: the oracle's input and weight, these lanes
    BLOCK+0, +1 what a block added to image and prompt

``layer_gain``     largest |<ours, oracle> / <oracle, oracle> - 1|: a factor. Rounding is unbiased, so it nearly cancels
                   in this sum over a part, and a factor that is smaller than the noise of a value stands out.
``layer_rel_rmse`` largest error of a part, as RMS over the oracle's: everything else.
``unseen_layers``  modules of the oracle that some rank should have observed and did not: what nobody looks at is never
                   wrong.

Legend: B batch, N rows (tokens), D features, H heads, E features of a head.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.measure import metrics as m
from refsim.base.errors import InvariantError
from refsim.base.options import RunOptions
from refsim.parallel.sequence import TokenShards
from refsim.runtime.group import Group, parallel_groups
from refsim.runtime.watch.observe import Observed

METRICS = ("layer_gain", "layer_rel_rmse")
PIECE = (32, 16)
"""Rows and features of the smallest parts that a rank of a tiny case has: a tile of tokens, a head."""

MOST_VALUES = 2**18
"""Values of a part that are compared: of more, as at real widths, every second row, or third; all rows of a layer are
computed alike, and all tokens are judged in what the model gives."""

LEAST = 1 / 8
"""What a block adds is judged in units of itself, but of no less than this part of the stream it is added to: of what
is smaller (beside large embeddings of positions) the sum keeps few digits, in the oracle as here."""

_BLOCK = re.compile(r"\w*blocks\.\d+")
_NOT_LOOKED_AT = re.compile(
    r"(.*\.)?(time_text_embed|time_guidance_embed|time_embedding|time_embedder|ofs_embedding|norm_out|norm_final|proj_out)(\.[\w.]+)?"
    r"|.*\.image_embedder\.(ff|norm1)|time_embed\.(timestep_embedder|pooler)\.\w+"
)


@dataclass
class Module:
    """What a module of the oracle took and gave, call by call, each (B, N, D), and its weight (out, in).

    Of a block, what it added and the ``stream`` before.
    """

    took: list[Tensor] = field(default_factory=list)
    gave: list[Tensor] = field(default_factory=list)
    weight: Tensor | None = None
    stream: Tensor | None = None

    @cached_property
    def stream_rms(self) -> float:
        """Of what the block's stream was before; 0 of anything else."""
        return 0.0 if self.stream is None else float(self.stream.double().square().mean().sqrt())


Modules = dict[str, Module]


@contextmanager
def watch(model: Any, batch: int, streams: Callable[[Any], tuple], heads_dim: int = 1) -> Iterator[Modules]:
    """Record what runs inside of a model as diffusers writes them: every linear, patch embedding, block, feed-forward
    (what has a ``net`` or a ``linear_in``) and norm (a module called one that has no parts; others modulate as well).

    Args:
        streams: (image, prompt) of what a block returns; blocks are recorded as ``BLOCK+0`` and ``BLOCK+1``.
        heads_dim: where the heads are in what the norms of queries and keys take, 1 or 2 of (B, H, N, E).
    """
    modules: Modules = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d | torch.nn.Conv3d):
            hooks.append(module.register_forward_hook(_layer_hook(modules, name, batch)))
        elif hasattr(module, "linear_in"):
            hooks.append(module.register_forward_hook(_result_hook(modules, name, heads_dim)))
        elif hasattr(module, "net") or ("norm" in type(module).__name__.lower() and not list(module.children())):
            hooks.append(module.register_forward_hook(_result_hook(modules, name, heads_dim)))
        elif _BLOCK.fullmatch(name):
            hooks.append(module.register_forward_hook(_block_hook(modules, name, streams), with_kwargs=True))
    try:
        yield modules
    finally:
        for hook in hooks:
            hook.remove()


def _layer_hook(modules: Modules, name: str, batch: int) -> Callable:
    def rows(x: Tensor, channels_first: bool) -> Tensor:
        if x.ndim == 2:  # several time steps, each for the whole batch
            return x.unflatten(0, (-1, batch)).transpose(0, 1)
        return (x.movedim(1, -1) if channels_first else x).reshape(batch, -1, x.shape[1 if channels_first else -1])

    def hook(module: torch.nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        linear = isinstance(module, torch.nn.Linear)
        known = modules.setdefault(name, Module(weight=module.weight.detach() if linear else None))
        if linear:
            known.took.append(rows(args[0], False))
        known.gave.append(rows(out, not linear))

    return hook


def _result_hook(modules: Modules, name: str, heads_dim: int) -> Callable:
    def hook(module: torch.nn.Module, args: tuple[Tensor, ...], out: Any) -> None:
        if not isinstance(out, Tensor):
            return
        rows = out.movedim(heads_dim, 2).flatten(2) if out.ndim == 4 else out
        modules.setdefault(name, Module()).gave.append(rows)

    return hook


def _block_hook(modules: Modules, name: str, streams: Callable[[Any], tuple]) -> Callable:
    def hook(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        if "hidden_states" not in arguments:
            return  # not a block as diffusers writes them; what such a block adds is not observed either
        before = arguments["hidden_states"], arguments.get("encoder_hidden_states")
        for index, (old, new) in enumerate(zip(before, streams(out), strict=True)):
            if old is not None and new is not None and new is not old:  # a last block hands the prompt on
                modules[f"{name}+{index}"] = Module(gave=[new.float() - old.float()], stream=old)

    return hook


@dataclass(frozen=True)
class Judged:
    """The metrics of :data:`METRICS`, and for each the layer and the rank that were worst."""

    metrics: dict[str, float]
    worst: dict[str, str]


def judge(ranks: list[list[Observed]], oracle: Modules, options: RunOptions, prompt: int) -> Judged:
    """Compare what all ranks observed with the oracle's modules.

    Args:
        ranks: in rank order, see :func:`refsim.runtime.watch.observe.read`.
        oracle: see :func:`watch`.
        prompt: rows of the prompt, which stand before the image's where diffusers makes one stream of both and refsim
            calls the layer once for the image and once for the prompt.

    Raises:
        InvariantError: something observed has no counterpart in the oracle. (Another shape is an infinite distance.)
    """
    pieces = findings(ranks, oracle, options, prompt)
    values = {name: [f.metrics[name] for f in pieces] for name in METRICS}
    worst = {name: str(pieces[_index_of_worst(x)]) for name, x in values.items() if x}
    return Judged({name: m.worst(x) for name, x in values.items()}, worst)


@dataclass(frozen=True)
class Finding:
    """One piece of a tensor of one rank beside the oracle's.

    Attributes:
        name: of the tensor, see the top of this file; a second call of a layer ends in ``#1``.
        rank: whose tensor.
        index: place in the program's order on that rank.
        piece, pieces: which of how many heads that lie there; 0 of 1 where the tensor has no heads.
        first_piece: index of the rank's first head among all.
        metrics: those of :data:`METRICS`.
        signed: the factor with its sign, <ours - oracle, oracle> / <oracle, oracle>; NaN of another shape.
        rows: rows that hold all of the error, of the rank's part, [start, stop); (0, 0) where nobody asked.
    """

    name: str
    rank: int
    index: int
    piece: int
    pieces: int
    first_piece: int
    metrics: dict[str, float]
    signed: float
    rows: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name.partition('#')[0]} on rank {self.rank}"


def findings(
    ranks: list[list[Observed]], oracle: Modules, options: RunOptions, prompt: int, *, rows: bool = False
) -> list[Finding]:
    """Return every piece of every tensor beside the oracle's, rank by rank in program order.

    Args:
        ranks, oracle, options, prompt: see :func:`judge`.
        rows: look where the error is, too, which only an explanation needs.
    """
    results = []
    for part, index, one in _observed(ranks, oracle, options, prompt, sparse=not rows):
        least = part.least(one)
        ours, theirs, pieces = part.pieces(one)
        heads = one.local.shape[1] if one.local.ndim == 4 and "tp" in one.cut else 0
        places = [(part.rank, index, piece, pieces, part.groups["tp"].index * heads) for piece in range(pieces)]
        where = _rows_with_error(ours, theirs, pieces) if rows else [(0, 0)] * pieces
        distances = _distances(ours, theirs, pieces, least)
        for place, (metrics, signed), at in zip(places, distances, where, strict=True):
            results.append(Finding(_label(one), *place, metrics, signed, at))
    return results


def spoiled_padding(ranks: list[list[Observed]], oracle: Modules, options: RunOptions, prompt: int) -> list[Finding]:
    """Return results of layers whose padding is not zero; only an explanation asks, since answers drop it."""
    spoiled_results = []
    wrong = dict.fromkeys(METRICS, math.inf)
    for part, index, one in _observed(ranks, oracle, options, prompt):
        padding = part.padding(one)
        if padding is not None and bool((padding != 0).any()):
            rows = (padding != 0).flatten(2).any(2).any(0).nonzero().flatten()
            spoiled = int(rows.min()), int(rows.max()) + 1
            spoiled_results.append(Finding(_label(one), part.rank, index, 0, 1, 0, wrong, math.nan, spoiled))
    return spoiled_results


def _observed(
    ranks: list[list[Observed]], oracle: Modules, options: RunOptions, prompt: int, *, sparse: bool = False
) -> Iterator[tuple[_Part, int, Observed]]:
    """Yield everything that was observed with its rank's part of the oracle's and its place in the rank's order."""
    terms: dict[tuple, Tensor] = {}  # ranks that differ in their tokens alone share them
    for rank, observed in enumerate(ranks):
        groups = parallel_groups(options.mesh, options.parallel, rank)
        part = _Part(rank, groups, observed, oracle, prompt, terms, sparse=sparse)
        for index, one in enumerate(observed):
            yield part, index, one


def _label(one: Observed) -> str:
    return f"{one.name}#{one.call}" if one.call else one.name


def unseen(ranks: list[list[Observed]], oracle: Modules) -> list[str]:
    """Return what a rank should have observed and did not, as ``NAME on rank 1``: each module of the oracle but those
    that nothing is compared with (see the top of this file), and a term of each sum over tensor-parallel ranks.
    """
    named = [name for name in oracle if _BLOCK.match(name) or not _NOT_LOOKED_AT.fullmatch(name)]
    missing = []
    for rank, observed in enumerate(ranks):
        names = {one.name.partition("@")[0] for one in observed}
        summed = {one.name.partition("@")[0].removesuffix(".in") for one in observed if "tp" in one.cut}
        terms = [f"{name}.term" for name in named if f"{name}.in" in names and name in summed]
        missing += [f"{name} on rank {rank}" for name in (*named, *terms) if name not in names]
    return missing


def _rows_with_error(ours: Tensor, theirs: Tensor, pieces: int) -> list[tuple[int, int]]:
    """Return of each piece the rows with an error of a tenth of the largest row's or more."""
    if ours.shape != theirs.shape:
        return [(0, 0)]
    if not pieces:
        return []
    error_NP = (ours.double() - theirs.double()).square().unflatten(-1, (pieces, -1)).sum((0, 3))
    ranges = []
    for error in torch.where(error_NP.isfinite(), error_NP, torch.inf).unbind(1):
        rows = (error >= 0.01 * float(error.max())).nonzero().flatten()
        ranges.append((int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0))
    return ranges


def floor(noise: Modules, ref: Modules) -> dict[str, float]:
    """Measure the oracle in the storage dtype against itself in a wider one, part by part of ``PIECE``."""
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    for name, module in ref.items():
        pairs = [*zip(noise[name].took, module.took, strict=True), *zip(noise[name].gave, module.gave, strict=True)]
        for ours, theirs in pairs:
            for metric, distance in _distances_of_pieces(ours, theirs).items():
                values[metric].append(distance)
    return {name: m.worst(distances) for name, distances in values.items()}


class _Part:
    """The part of the oracle's tensors that one rank holds."""

    def __init__(
        self,
        rank: int,
        groups: dict[str, Group],
        observed: list[Observed],
        oracle: Modules,
        prompt: int,
        terms: dict[tuple, Tensor],
        *,
        sparse: bool,
    ) -> None:
        self.rank = rank
        self.groups = groups
        self._observed = observed
        self._oracle = oracle
        self._calls = Counter(one.name for one in observed)
        self._prompt = prompt
        self._terms = terms
        self._sparse = sparse

    def pieces(self, one: Observed) -> tuple[Tensor, Tensor, int]:
        """Return ours and the oracle's, (B, N, D), real rows and features only, and how many pieces of equal width are
        judged: one per head where the tensor has heads, none where this rank has only padding.

        They differ in shape if the program is wrong, and then are one piece.
        """
        name, _, lanes = one.name.partition("@")
        if name.endswith(".term"):
            take, n, width = self._term(name.removesuffix(".term"), one)
            start = 0
            limit = width
        else:
            whole = self._of(name, one.call, self._calls[one.name])

            def take(rows: slice) -> Tensor:
                return whole[:, rows]

            n = whole.shape[1]
            start, limit = map(int, lanes.split(":")) if lanes else (0, whole.shape[-1])
        heads = one.local.shape[1] if one.local.ndim == 4 else 0
        local = one.local.transpose(1, 2).flatten(2) if heads else one.local
        start += self.groups["tp"].index * local.shape[-1] if "tp" in one.cut else 0
        stop = max(start, min(start + local.shape[-1], limit))
        ours = local[..., : stop - start]
        rows = self._rows(n, cut="sp" in one.cut)
        if "sp" in one.cut or n == ours.shape[1]:
            ours = ours[:, : len(rows)]
        if self._sparse and ours.shape[1] == len(rows):
            every = max(1, ours.numel() // MOST_VALUES)
            ours = ours[:, ::every]
            rows = rows[::every]
        theirs = take(slice(rows.start, rows.stop, rows.step))[..., start:stop]
        if ours.shape != theirs.shape:
            return ours, theirs, 1
        if not ours.numel():
            return ours, theirs, 0
        return ours, theirs, max(1, heads * ours.shape[-1] // local.shape[-1])

    def padding(self, one: Observed) -> Tensor | None:
        """Return what a layer gave behind its last real lane, (B, N, lanes); None where there is none, or of norms."""
        module = self._oracle.get(one.name)
        if module is None or "norm" in one.name.split(".")[-1] or one.local.ndim != 3 or "tp" not in one.cut:
            return None
        start = self.groups["tp"].index * one.local.shape[-1]
        return one.local[..., max(module.gave[0].shape[-1] - start, 0) :]

    def least(self, one: Observed) -> float:
        """Return the least RMS that what a block added is measured by, 0 for anything else."""
        return LEAST * self._oracle[one.name].stream_rms if one.name in self._oracle else 0.0

    def _of(self, name: str, call: int, calls: int) -> Tensor:
        """Return a module's input or output of a call, this cfg group's samples of it."""
        module = self._oracle.get(name.removesuffix(".in"))
        tensors = [] if module is None else module.took if name.endswith(".in") else module.gave
        if not tensors:
            raise InvariantError(f"the oracle has no module {name}, which a layer is named after")
        if len(tensors) == calls:
            whole = tensors[call]
        else:  # one stream in the oracle, prompt first; two calls here, image first
            whole = tensors[0][:, : self._prompt] if call else tensors[0][:, self._prompt :]
        cfg = self.groups["cfg"]
        return whole.chunk(cfg.size)[cfg.index]

    def _term(self, name: str, one: Observed) -> tuple[Callable[[slice], Tensor], int, int]:
        """Return this rank's term, its rows and width: of each input, the lanes here times their columns of the weight.

        The term is computed for the rows that are asked for.
        """
        weight = self._oracle[name].weight
        assert weight is not None
        inputs = []
        cuts = []
        for x in self._observed:
            if x.name.split("@")[0] == f"{name}.in" and x.call == one.call:
                whole = self._of(f"{name}.in", x.call, self._calls[x.name])
                _, _, lanes = x.name.partition("@")
                start, limit = map(int, lanes.split(":")) if lanes else (0, whole.shape[-1])
                width = x.local.shape[-1] * (x.local.shape[1] if x.local.ndim == 4 else 1)
                start += self.groups["tp"].index * width if "tp" in x.cut else 0
                inputs.append(whole)
                cuts.append((start, min(start + width, limit)))

        wide = _wide(one.local)

        def of(rows: slice) -> Tensor:
            at = rows.start, rows.stop, rows.step
            key = name, one.call, self._calls[one.name], self.groups["cfg"].index, at, *cuts
            if key not in self._terms:
                lanes = zip(inputs, cuts, strict=True)
                terms = (x[:, rows, a:b].to(wide) @ weight[:, a:b].to(wide).T for x, (a, b) in lanes)
                self._terms[key] = sum(terms, start=torch.zeros((), dtype=wide))
            return self._terms[key]

        return of, inputs[0].shape[1] if inputs else 0, weight.shape[0]

    def _rows(self, n: int, *, cut: bool) -> range:
        """Return the real rows of this rank's shard, of ``n`` in all."""
        if not cut:
            return range(n)
        sp = self.groups["sp"]
        return range(*TokenShards.of(n, sp.size).tokens(sp.index))


def _distances(ours: Tensor, theirs: Tensor, pieces: int, least: float) -> list[tuple[dict[str, float], float]]:
    """Return of each piece the metrics, and the signed factor: <ours - theirs, theirs> / <theirs, theirs>."""
    if ours.shape != theirs.shape:
        return [(dict.fromkeys(METRICS, math.inf), math.nan)]
    if not pieces:
        return []
    wide = _wide(ours)
    b = theirs.to(wide)
    error = ours.to(wide) - b
    smallest = least**2 * (theirs.numel() // pieces)
    if pieces == 1:
        b = b.reshape(-1)
        error = error.reshape(-1)
        return [_ratios(b.dot(b).item(), error.dot(b).item(), error.dot(error).item(), smallest)]
    sizes, along, errors = (
        x.reshape(-1, pieces, x.shape[-1] // pieces).sum((0, 2)).tolist() for x in (b * b, error * b, error * error)
    )
    return [_ratios(*sums, smallest) for sums in zip(sizes, along, errors, strict=True)]


def _wide(ours: Tensor) -> torch.dtype:
    """Return the dtype to compare a tensor in: wider than it, so that not all of a real width is float64's work."""
    return torch.float64 if ours.dtype == torch.float32 else torch.float32


def _ratios(size: float, along: float, error: float, smallest: float) -> tuple[dict[str, float], float]:
    """Compute what :func:`_distances` says; a sum is finite only where all of its numbers are."""
    signed = along / size if size else 0.0
    if not (math.isfinite(size) and math.isfinite(error)):
        return dict.fromkeys(METRICS, math.nan), signed
    size = max(size, smallest)
    if size == 0.0:
        return dict.fromkeys(METRICS, math.inf if error else 0.0), signed
    return {"layer_gain": abs(along) / size, "layer_rel_rmse": math.sqrt(error / size)}, signed


def _distances_of_pieces(ours_BND: Tensor, theirs_BND: Tensor) -> dict[str, float]:
    """Return the worst of :func:`_distances` over the pieces of every sample; what is empty counts as equal."""

    def sums(x: Tensor) -> Tensor:
        rows, lanes = PIECE
        filled = F.pad(x, (0, -x.shape[2] % lanes, 0, -x.shape[1] % rows))
        return filled.unflatten(2, (-1, lanes)).unflatten(1, (-1, rows)).sum((2, 4))

    a = ours_BND.double()
    b = theirs_BND.double()
    size = sums(b.square()).clamp_min(torch.finfo(torch.float64).tiny)
    gain = sums((a - b) * b).abs() / size
    rmse = (sums((a - b).square()) / size).sqrt()
    return {"layer_gain": float(gain.max()), "layer_rel_rmse": float(rmse.max())}


def _index_of_worst(values: list[float]) -> int:
    nan = [i for i, value in enumerate(values) if value != value]
    return nan[0] if nan else max(range(len(values)), key=values.__getitem__)
