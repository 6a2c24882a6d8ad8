"""Any answer of tokens (G, N, F) beside its reference: which shard, which rows, which features."""

from __future__ import annotations

import torch
from torch import Tensor

from parity.cases import Layout
from parity.explain.places import Evidence, Features, Place, error_map, largest, log_error, relative, span, where
from parity.measure.metrics import Range
from refsim.runtime.group import parallel_groups


def find(out_GNF: Tensor, ref_GNF: Tensor, shards: list[Range], layout: Layout, limit: float) -> Evidence:
    """Say which shard is wrong most; ``shards`` are the token ranges of the members of sp."""
    out = out_GNF.double()
    ref = ref_GNF.double()
    error = relative((out - ref).square().mean(-1).sqrt(), ref)  # (G, N)
    options = layout.options()
    cfg_size = options.parallel.cfg
    by_rank = []
    parts = []
    for rank in range(options.mesh.num_devices):
        groups = parallel_groups(options.mesh, options.parallel, rank)
        start, stop = shards[groups["sp"].index] if groups["sp"].index < len(shards) else (0, 0)
        samples = torch.arange(len(error)).chunk(cfg_size) if len(error) >= cfg_size else [torch.arange(len(error))]
        mine = error[samples[min(groups["cfg"].index, len(samples) - 1)], start:stop]
        parts.append((mine, start))
        by_rank.append(largest(mine))
    lines = [[float(error[g, a:b].max()) if a < b else None for a, b in shards] for g in range(len(error))]
    shown = error_map("error by sample and shard", "samples", "shards of tokens", lines)
    wrong = error > limit
    if not wrong.any():
        return Evidence(None, by_rank, shown, _features(out, ref, wrong))
    rank = max(range(len(by_rank)), key=by_rank.__getitem__)
    mine, start = parts[rank]
    ranks = tuple(r for r, worst in enumerate(by_rank) if worst > limit)
    rows = span(where((mine > limit).any(0)), start)
    place = Place("sample", rank, ranks, options.mesh.coord(rank), None, rows)
    return Evidence(place, by_rank, shown, _features(out, ref, wrong))


def _features(out: Tensor, ref: Tensor, wrong: Tensor) -> Features:
    finite = out.nan_to_num()
    gain = float((finite * ref).sum() / ref.square().sum().clamp_min(1e-30)) - 1
    return {
        "share:sample_rows": float(wrong.double().mean()),
        "share:samples": float(wrong.any(1).double().mean()),
        "log:sample": log_error(float((finite - ref).square().mean().sqrt() / ref.square().mean().sqrt())),
        "log:sample_gain": log_error(gain),
        "share:sample_not_finite": float((~out.isfinite()).any()),
    }
