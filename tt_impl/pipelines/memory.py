"""DRAM and L1 of a whole SD3.5 transformer on a mesh, from ttnn's own allocator; needs shapes, not weights.

Counterpart of nothing in ``refsim``: only a device has an allocator. Every cfg group's model is built on its submesh
(a submesh has an allocator of its own, and all its devices hold the same), then one forward is run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import ttnn

from refsim.checkpoint import ShapeWeights
from refsim.errors import UserError
from refsim.models.sd35.config import SD35Config
from refsim.models.sd35.spec import SPEC
from refsim.models.spec import Published
from refsim.options import RunOptions
from tt_impl.models.sd35.transformer import SD35Transformer
from tt_impl.parallel.context import Context
from tt_impl.pipelines.transformer import submeshes

LATENT_PER_PIXEL = 8
PROMPT_TOKENS = SPEC.published[0].text
_SIGN = {"buffer_allocate": 1, "buffer_deallocate": -1}


@dataclass(frozen=True)
class Level:
    """What an allocator says about one device, in bytes: all banks together."""

    total: int
    allocated: int
    largest_free: int

    @classmethod
    def of(cls, device: ttnn.MeshDevice, kind: ttnn.BufferType) -> Level:
        view = ttnn.get_memory_view(device, kind)
        per_bank = (
            view.total_bytes_per_bank,
            view.total_bytes_allocated_per_bank,
            view.largest_contiguous_bytes_free_per_bank,
        )
        return cls(*(view.num_banks * n for n in per_bank))


def find_published(name: str) -> Published:
    """A published model by its name, its family left out or not (``large``); ``UserError`` if there is none."""
    known = {published.name: published for published in SPEC.published}
    for found in (name, f"{SPEC.name}-{name}"):
        if found in known:
            return known[found]
    raise UserError(f"model '{name}' does not exist; choose one of {', '.join(known)}.")


def program(
    device: ttnn.MeshDevice,
    options: RunOptions,
    *,
    model: dict[str, Any] | str,
    pixels: int = 1024,
    forward: bool = True,
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Allocate ``model`` (config.json or a published name) and run one forward of a square image of ``pixels``.

    The batch is the negative and the positive prompt, cut over cfg. The report has an entry per cfg group; its sizes
    are bytes of one device's DRAM: ``total``; ``weights``; ``persistent``, which adds the collectives' buffers;
    ``peak``, the highest level of the forward, reached in ``peak_op``; ``headroom`` = total - peak; ``largest_free``,
    the largest contiguous block of a bank times the banks, after the forward.
    """
    published = find_published(model) if isinstance(model, str) else SPEC.published[0].but(config=model)
    parsed = SD35Config.from_dict(published.config)
    groups = []
    for submesh in submeshes(device, options):
        weights = ShapeWeights(torch.bfloat16)
        started = time.monotonic()
        transformer = SD35Transformer(weights, Context(submesh, options), parsed)
        built = time.monotonic()
        level = Level.of(submesh, ttnn.BufferType.DRAM)
        group = {
            "shape": list(submesh.shape),
            "parameters": weights.parameters,
            "total": level.total,
            "weights": level.allocated,
            "build_s": round(built - started, 2),
        }
        transient, culprit = 0, ""
        if forward:
            _forward(transformer, parsed, pixels, 2 // options.parallel.cfg)
            level = Level.of(submesh, ttnn.BufferType.DRAM)
            transient, culprit = _transient(transformer, parsed, pixels, 2 // options.parallel.cfg)
            group["forward_s"] = round(time.monotonic() - built, 2)
        group |= {
            "persistent": level.allocated,
            "peak": level.allocated + transient,
            "peak_op": culprit,
            "headroom": level.total - level.allocated - transient,
            "largest_free": level.largest_free,
        }
        groups.append(group)
    return {"model": vars(parsed), "pixels": pixels, "groups": groups}, {}


def _forward(transformer: SD35Transformer, config: SD35Config, pixels: int, batch: int) -> None:
    """One forward on zeros, its result dropped."""
    side = pixels // LATENT_PER_PIXEL
    transformer(
        hidden_states=torch.zeros(batch, config.in_channels, side, side),
        encoder_hidden_states=torch.zeros(batch, PROMPT_TOKENS, config.joint_attention_dim),
        pooled_projections=torch.zeros(batch, config.pooled_projection_dim),
        timestep=torch.zeros(batch),
    )


def _transient(transformer: SD35Transformer, config: SD35Config, pixels: int, batch: int) -> tuple[int, str]:
    """The most DRAM of one device, in bytes, that a forward takes and gives back, and the operation that does it.

    From a capture of a second forward without dispatch, which also sees what operations take inside themselves. Blocks
    of a kind take the same, so one block of each is enough.
    """
    blocks = transformer._blocks
    transformer._blocks = list({(block._dual, block._context_pre_only): block for block in blocks}.values())
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
    try:
        _forward(transformer, config, pixels, batch)
    finally:
        graph = ttnn.graph.end_graph_capture()
        transformer._blocks = blocks
    banks = ttnn.get_memory_view(transformer._ctx.device, ttnn.BufferType.DRAM).num_banks
    level, peak, culprit = 0, 0, ""
    running: list[str] = []
    for node in graph:
        kind, params = node["node_type"], node["params"]
        if kind == "function_start":
            running.append(params["name"])
        elif kind == "function_end":
            running.pop()
        elif kind in _SIGN and params["type"] == "DRAM":
            level += _SIGN[kind] * params["max_size_per_bank"] * banks
            if level > peak:
                peak, culprit = level, running[0] if running else ""
    return peak, culprit
