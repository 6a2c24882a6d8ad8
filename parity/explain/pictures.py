"""A decoder's wrong picture: on which device, in which rows and columns, at its borders or all over.

Legend: B batch, C channels, T frames, H rows, W columns of pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from parity.cases import Layout
from parity.explain.places import Evidence, Features, Place, error_map, largest, log_error, relative, span, where
from parity.measure.metrics import cut
from refsim.runtime.group import parallel_groups

BORDER = 2
"""Pixels next to a border of devices that count as border."""


def find(out: Tensor, ref: Tensor, latent: tuple[int, ...], layout: Layout, limit: float) -> Evidence:
    """Say where frames (B, C, [T,] H, W) are wrong that were decoded from a latent (..., height, width)."""
    options = layout.options()
    config = options.parallel
    mesh = options.mesh
    cuts = (config.sp, config.tp if layout.vae_parallel == "spatial" else 1)
    error = relative((out.double() - ref.double()).abs(), ref.double())
    flat = error.flatten(0, -3).amax(0)  # (H, W)
    wrong = flat > 10 * limit
    bounds = [cut(latent[dim], n, ref.shape[dim] // latent[dim]) for dim, n in zip((-2, -1), cuts, strict=True)]
    by_rank = []
    parts = []
    for rank in range(mesh.num_devices):
        groups = parallel_groups(mesh, config, rank)
        column = groups["tp"].index if cuts[1] > 1 else 0
        part = (*bounds[0][groups["sp"].index], *bounds[1][column])
        mine = flat[part[0] : part[1], part[2] : part[3]]
        parts.append(part)
        by_rank.append(largest(mine))
    lines = [[float(flat[a:b, c:d].max()) if a < b and c < d else None for c, d in bounds[1]] for a, b in bounds[0]]
    shown = error_map("error by part of the picture", "parts of rows", "parts of columns", lines)
    if not wrong.any():
        return Evidence(None, by_rank, shown)
    rank = max(range(mesh.num_devices), key=by_rank.__getitem__)
    a, b, c, d = parts[rank]
    mine = wrong[a:b, c:d]
    ranks = tuple(r for r, (a0, b0, c0, d0) in enumerate(parts) if wrong[a0:b0, c0:d0].any())
    rows = span(where(mine.any(1)), a)
    columns = span(where(mine.any(0)), c)
    note = _frames(error, 10 * limit)
    place = Place("sample", rank, ranks, mesh.coord(rank), None, rows, columns, note=note)
    return Evidence(place, by_rank, shown, _features(out, ref, flat, (bounds, error, wrong)))


def _frames(error: Tensor, limit: float) -> str:
    """Say which frames of a video are wrong; empty of a picture."""
    if error.ndim < 5:
        return ""
    frames = where((error.movedim(-3, 0).flatten(1) > limit).any(1))
    return f"frames {frames[0]}..{frames[-1]} of {error.shape[-3]}" if frames else ""


def _features(out: Tensor, ref: Tensor, flat: Tensor, more: tuple) -> Features:
    bounds, error, wrong = more
    inner = [
        sorted({stop for _, stop in axis[:-1] if 0 < stop < size})
        for axis, size in zip(bounds, flat.shape, strict=True)
    ]
    near = [torch.zeros(size, dtype=torch.bool) for size in flat.shape]
    for mask, stops in zip(near, inner, strict=True):
        for stop in stops:
            mask[max(stop - BORDER, 0) : stop + BORDER] = True
    rows, columns = near
    finite = torch.where(flat.isfinite(), flat, 10.0)

    def mean(mask: Tensor) -> float:
        return float(finite[mask].square().mean().sqrt()) if mask.any() else 0.0

    inside = mean(~rows[:, None] & ~columns[None, :])
    edge = torch.zeros_like(wrong)
    edge[0] = True
    edge[-1] = True
    edge[:, 0] = True
    edge[:, -1] = True
    o = out.double().nan_to_num()
    r = ref.double()
    gain = float((o * r).sum() / r.square().sum()) - 1
    channels = error.movedim(1, 0).flatten(1).amax(1)
    features = {
        "share:wrong": float(wrong.double().mean()),
        "share:channels": float((channels > channels.max() / 30).double().mean()),
        "share:not_finite": float((~out.isfinite()).any()),
        "log:inside": log_error(inside),
        "log:row_borders": log_error(mean(rows[:, None] & ~columns[None, :]), max(inside, 1e-12)),
        "log:column_borders": log_error(mean(~rows[:, None] & columns[None, :]), max(inside, 1e-12)),
        "log:corners": log_error(mean(rows[:, None] & columns[None, :]), max(inside, 1e-12)),
        "log:edge": log_error(mean(edge), max(inside, 1e-12)),
        "log:bottom": log_error(mean(_last(bounds, flat)), max(inside, 1e-12)),
        "log:gain": log_error(gain),
        "log:error": log_error(float((o - r).square().mean().sqrt() / r.square().mean().sqrt())),
    }
    if error.ndim == 5:
        frames = error.movedim(-3, 0).flatten(1).nan_to_num(posinf=10).square().mean(1).sqrt()
        features["share:frames"] = float((frames > frames.max() / 30).double().mean())
        features["share:first_frame"] = float(frames[0] / frames.max())
        features["share:last_frame"] = float(frames[-1] / frames.max())
    return features


def _last(bounds: list, flat: Tensor) -> Tensor:
    """Return the part of the last device, which has padding behind it."""
    mask = torch.zeros_like(flat, dtype=torch.bool)
    (a, b), (c, d) = (next(part for part in reversed(axis) if part[0] < part[1]) for axis in bounds)
    mask[a:b, c:d] = True
    return mask
