"""One case, run and measured: inputs, simulator, oracle, metrics. Judging is left to ``gate.py``."""

from __future__ import annotations

import itertools
import math
import os
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from parity import decoding, oracles, pipelines
from parity import metrics as m
from parity.cases import Case, Layout
from parity.checkpoints import MODELS, CheckpointStore
from parity.inputs import attention_inputs, rounded
from refsim import api
from refsim.api.attention import attention_result
from refsim.mesh import get_mesh
from refsim.parallel.sequence import TokenShards
from refsim.runtime.launch import Result

DIGITS = {"fp32": 24, "bf16": 8}


@dataclass
class Measured:
    """What a run gave.

    Attributes:
        metrics: of the answer against the oracle; None where there is nothing to measure.
        noise: rel_rmse and one_minus_pcc of the oracle itself in the storage dtype.
        bytes_by_collective: sent by all ranks, keyed ``collective@group``.
        sim_s, oracle_s: seconds of the simulator, and of everything that is not.
        hazards: uses of device buffers that nothing kept apart, one sentence each.
        trace: events of all ranks, where asked for.
        extra: what a backend has to say beyond that.
    """

    metrics: dict[str, Any]
    noise: dict[str, float]
    bytes_by_collective: dict[str, int] = field(default_factory=dict)
    sim_s: float = 0.0
    oracle_s: float = 0.0
    hazards: list[str] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


class CpuRunner:
    """Runs cases on forked CPU ranks; holds checkpoints and oracle answers over the cases of one suite."""

    def __init__(self) -> None:
        self._store = CheckpointStore()
        self._oracle = oracles.ModelOracle(self._store)
        self._decoders: dict[tuple[str, int], decoding.DecodeOracle] = {}
        self._pipelines: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
        self._threads = torch.get_num_threads()

    def __enter__(self) -> CpuRunner:
        self._store.__enter__()
        # ranks idle while the oracle computes, so it may have every core
        torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        return self

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._threads)
        self._store.__exit__(*error)

    def run(self, case: Case, seed: int, **more: Any) -> Measured:
        """Run one case with ``seed``; whatever goes wrong is raised. ``more`` are further options of the run."""
        started = time.monotonic()
        kinds = {
            "attention": self._attention,
            "model": self._model,
            "decoder": self._decoder,
            "encoder": self._encoder,
            "decode": self._decode,
            "pipeline": self._pipeline,
        }
        measured = kinds[case.kind](case, seed, **more)
        measured.oracle_s = time.monotonic() - started - measured.sim_s
        return measured

    def simulate(self, case: Case, seed: int, **more: Any) -> Result:
        """The simulator's part of a case alone; ``more`` are further options of the run."""
        if case.kind == "attention":
            tensors = rounded(attention_inputs(case.shape, case.family, seed), case.dtype)
            return simulate_attention(case, case.layout, tensors, **more)
        folder = self._store.folder(case.model, seed)
        return simulate_model(case, case.layout, folder, self._oracle.inputs(case, seed), **more)

    def drop(self, case: Case, seed: int) -> None:
        """Forget what only this case's checkpoint needs; called after the last case that uses it."""
        if case.kind != "attention":
            self._store.drop(case.model, seed)
            self._oracle.drop(case.model, seed)
        if case.kind == "decode":
            self._store.drop(MODELS[case.model].target, seed)
            self._decoders.pop((case.model, seed), None)
        self._pipelines.pop((case.model, seed), None)

    def _attention(self, case: Case, seed: int, **more: Any) -> Measured:
        tensors = rounded(attention_inputs(case.shape, case.family, seed), case.dtype)
        rows = case.shape.rows
        result = simulate_attention(case, case.layout, tensors, **more)
        ref, lse_ref = oracles.attention_float64(tensors, case.shape)
        out, lse = _joint(result, rows), _lse_rows(result.tensors["lse"], case.shape.n, rows)
        shards = token_shards(case.layout, case.shape.n, rows)
        if case.shape.text:
            split = case.layout.prompt_layout == "split"
            prompt = token_shards(case.layout, case.shape.text, case.shape.text) if split else [(0, case.shape.text)]
            shards += [(rows + a, rows + b) for a, b in prompt]
        found = m.compare(joint_rows_per_head(out), joint_rows_per_head(ref), shards, digits=DIGITS[case.dtype])
        found["lse_rel_max"] = m.rel_max(lse, lse_ref)
        found["non_finite"] += m.non_finite(lse)
        sim_s, hazards = result.wall_s, list(map(str, result.hazards))
        if case.twin is not None:
            twin = simulate_attention(case, case.twin, tensors)
            sim_s += twin.wall_s
            hazards += map(str, twin.hazards)
            found["twin_max_abs"] = m.max_abs(_joint(twin, rows), out)
        noise = oracles.attention_noise(tensors, case.shape, case.dtype)
        sent = result.bytes_by_collective
        return Measured(found, _noise(noise, ref), sent, sim_s, hazards=hazards, trace=result.trace)

    def _model(self, case: Case, seed: int, **more: Any) -> Measured:
        tensors = self._oracle.inputs(case, seed)
        folder = self._store.folder(case.model, seed)
        result = simulate_model(case, case.layout, folder, tensors, **more)
        ref = self._oracle.reference(case, seed)
        sample = result.tensors["sample"]
        out_tokens, ref_tokens = (oracles.tokens_of(oracles.channels_first(case.model, x)) for x in (sample, ref))
        n = ref_tokens.shape[1]
        found = m.compare(out_tokens, ref_tokens, token_shards(case.layout, n, n), digits=DIGITS[case.dtype])
        digests = result.value["digests"]
        ranks = get_mesh(case.mesh).num_devices
        found["distinct_replicas"] = len(set(digests)) if len(digests) == ranks else math.nan
        sim_s, hazards = result.wall_s, list(map(str, result.hazards))
        if case.guidance is not None:
            guided_ref = oracles.guided(ref, case.guidance)
            found["guided_rel_rmse"] = m.rel_rmse(result.tensors["guided"], guided_ref)
            found["guided_one_minus_pcc"] = m.one_minus_pcc(result.tensors["guided"], guided_ref)
            found["non_finite"] += m.non_finite(result.tensors["guided"])
        if case.twin is not None:
            twin = simulate_model(case, case.twin, folder, tensors)
            sim_s += twin.wall_s
            hazards += map(str, twin.hazards)
            found["twin_rel_rmse"] = m.rel_rmse(twin.tensors["sample"], sample)
            if case.guidance is not None:
                guided = m.rel_rmse(twin.tensors["guided"], result.tensors["guided"])
                found["twin_rel_rmse"] = m.worst([found["twin_rel_rmse"], guided])
        noise = self._oracle.noise(case, seed)
        sent = result.bytes_by_collective
        return Measured(found, _noise(noise, ref), sent, sim_s, hazards=hazards, trace=result.trace)

    def _encoder(self, case: Case, seed: int) -> Measured:
        """Every token's features, those of padding too: they are computed from the real ones."""
        tensors = self._oracle.inputs(case, seed)
        result = simulate_model(case, case.layout, self._store.folder(case.model, seed), tensors)
        ref, digests = self._oracle.reference(case, seed), result.value["digests"]
        out = result.tensors["sample"]
        if ref.ndim == 2:  # one row of features a prompt
            out, ref = out.unsqueeze(1), ref.unsqueeze(1)
        found = m.compare(out, ref, [(0, ref.shape[1])])
        ranks = get_mesh(case.mesh).num_devices
        found["distinct_replicas"] = len(set(digests)) if len(digests) == ranks else math.nan
        return Measured(found, {}, result.bytes_by_collective, result.wall_s, hazards=list(map(str, result.hazards)))

    def _decode(self, case: Case, seed: int, *, trace: bool = False, **more: Any) -> Measured:
        """Tokens and how they came about; there is no trace of a decode loop."""
        prompts = decoding.decode_prompts(case, seed)
        result = decoding.run(case, seed, self._store, **more)
        if (case.model, seed) not in self._decoders:
            self._decoders[case.model, seed] = decoding.DecodeOracle(self._store, case.model, seed)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a row at a time is too little for more
        try:
            found = decoding.compare(case, prompts, result.texts, self._decoders[case.model, seed])
        finally:
            torch.set_num_threads(threads)
        found["distinct_replicas"] = 1 if result.replicas_equal else math.nan
        return Measured(found, {}, result.bytes_by_collective, result.wall_s, hazards=result.hazards)

    def _pipeline(self, case: Case, seed: int, **more: Any) -> Measured:
        """Latents after every step and the pictures."""
        result = pipelines.run(case, seed, self._store, **more)
        if (case.model, seed) not in self._pipelines:
            folder = self._store.folder(case.model, seed)
            self._pipelines[case.model, seed] = pipelines.reference(case.model, folder)
        found = pipelines.compare(case, result, *self._pipelines[case.model, seed])
        return Measured(found, {}, result.bytes_by_collective, result.wall_s, hazards=result.hazards)

    def _decoder(self, case: Case, seed: int, **more: Any) -> Measured:
        """Frames judged by rows and by columns, each side cut as the decoder cuts it; the worse of both counts."""
        tensors = self._oracle.inputs(case, seed)
        result = simulate_model(case, case.layout, self._store.folder(case.model, seed), tensors, **more)
        ref, sample = self._oracle.reference(case, seed), result.tensors["sample"]
        config = case.layout.config()
        columns = config.tp if case.layout.vae_parallel == "spatial" else 1
        found = compare_frames(sample, ref, case.shape.latent, (config.sp, columns))
        digests = result.value["digests"]
        found["distinct_replicas"] = len(set(digests)) if len(digests) == config.num_devices else math.nan
        sent, hazards = result.bytes_by_collective, list(map(str, result.hazards))
        return Measured(found, {}, sent, result.wall_s, hazards=hazards, trace=result.trace)


def compare_frames(
    out: Tensor, ref: Tensor, latent: tuple[int, ...], cuts: tuple[int, int]
) -> dict[str, float | int | None]:
    """Metrics of frames (B, C, [T,] H, W), and their seams, of a latent cut into ``cuts`` by rows and by columns.

    Rows are judged as the tokens of the first cut, columns as those of the second; of each metric the worse counts.
    """
    found: dict[str, Any] = {}
    for dim, factor in zip((-2, -1), cuts, strict=True):
        local, scale = -(-latent[dim] // factor), ref.shape[dim] // latent[dim]
        bounds = [min(i * local, latent[dim]) * scale for i in range(factor + 1)]
        shards = list(itertools.pairwise(bounds))
        # (B, [T,] lines, across, C) -> (B [T], lines, everything of a line)
        lines = [x.movedim(1, -1).movedim(dim - 1, -3).flatten(0, -4).flatten(-2) for x in (out, ref)]
        for name, value in (m.compare(*lines, shards) | {"seam_ratio": m.seam_ratio(*lines, shards)}).items():
            values = [v for v in (found.get(name), value) if v is not None]
            found[name] = m.worst(values) if values else None
    return found


def simulate_attention(case: Case, layout: Layout, tensors: dict[str, Tensor], **more: Any) -> Result:
    options = layout.options(case.dtype, **more)
    return attention_result(tensors, options=options, logical_n=case.shape.logical_n)


def simulate_model(case: Case, layout: Layout, folder: Any, tensors: dict[str, Tensor], **more: Any) -> Result:
    options = layout.options(case.dtype, **more)
    return api.run(folder, inputs=tensors, options=options, guidance=case.guidance)


def token_shards(layout: Layout, n: int, rows: int) -> list[m.Range]:
    """Token ranges of the members of the sp group when ``n`` tokens are cut of which ``rows`` are real."""
    config = layout.config()
    cut = TokenShards(rows, config.sp, TokenShards.of(n, config.sp).local_n)
    return [cut.tokens(shard) for shard in range(config.sp)]


def _joint(result: Result, rows: int) -> Tensor:
    """Real image rows and prompt rows of the simulator's answer, (B, H, rows + L, E)."""
    image = result.tensors["out"][:, :, :rows]
    return torch.cat([image, result.tensors["joint_out"]], 2) if "joint_out" in result.tensors else image


def _lse_rows(lse: Tensor, n: int, rows: int) -> Tensor:
    """(B, H, n + L) without the padding rows."""
    return torch.cat([lse[:, :, :rows], lse[:, :, n:]], 2)


def joint_rows_per_head(x: Tensor) -> Tensor:
    """(B, H, N, E) -> (B * H, N, E)."""
    return x.flatten(0, 1)


def _noise(noise: Tensor | None, ref: Tensor) -> dict[str, float]:
    if noise is None:
        return {}
    return {"rel_rmse": m.rel_rmse(noise, ref), "one_minus_pcc": m.one_minus_pcc(noise, ref)}
