"""One SD3.5 block of the device wing against the same block of the reference wing, both in bf16.

A whole transformer hides a wrong block behind its residual stream and its output projection, so here the block is
judged by what it adds: output minus input, "delta". Checkpoint and inputs are the same file for both wings.

    one_minus_pcc         of a stream after the block: PCC >= 0.999
    delta_one_minus_pcc   of what the block added to it: PCC >= 0.9995
    delta_shard           the same on the worst sequence shard, where one wrong device in many shows
    delta_rel_rmse        error over spread of what was added, which sees a factor that a correlation does not

Legend: B batch, N image tokens, L prompt tokens, D features.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from parity import metrics as m
from parity.cases import ModelShape
from parity.checkpoints import MODELS, ModelSpec, _random, _sd35
from parity.inputs import generator, model_inputs
from parity.oracles import tokens_of
from parity.thresholds import Threshold, judge
from refsim.config import DiTParallelConfig, parse_parallel
from refsim.launch import execute as run_reference
from refsim.mesh import MeshSpec, get_mesh

BACKEND = "ttnn-mock"
BLOCK, TRANSFORMER = "block", "transformer"
_SEED = 7
_TILE = 32
_SHARP = 1.5
"""Norm weights of queries and keys are multiplied by it: scores of spread 2 make a few keys count in every row. With
spread 1 attention averages 100 keys to a tenth of the feed-forward's size and the delta would not see it."""

_TEXT = {"joint_attention_dim": 64, "pooled_projection_dim": 40, "pos_embed_max_size": 24, "sample_size": 16}
SPECS: dict[str, ModelSpec] = {
    "tiny": ModelSpec(_sd35(3, 64, 2, (), **_TEXT)),
    "tiny_dual": ModelSpec(_sd35(3, 64, 2, (0,), **_TEXT)),
    "medium": MODELS["sd35_medium"],
    "large": MODELS["sd35_large"],
}


@dataclass(frozen=True)
class BlockCase:
    """Where and on what a block runs.

    Attributes:
        kind: ``block``, or ``transformer`` (the whole tiny model, judged by its sample) for what no block holds.
        index: which block; the last one has no prompt afterwards.
        n, text: image and prompt tokens; of a transformer, ``n`` is that of a latent 2 * (n // 12, 12) high and wide.
    """

    mesh: str
    parallel: str
    model: str = "tiny"
    attention: str = "ring"
    ring: int | None = None
    ulysses: int | None = None
    kind: str = BLOCK
    index: int = 0
    n: int = 75
    text: int = 29
    batch: int = 1

    @property
    def id(self) -> str:
        parts = [self.mesh, self.parallel]
        if self.attention != "ring":
            parts.append(self.attention + "".join(str(x) for x in (self.ring, self.ulysses) if x))
        tail = [self.model] + ([self.kind] if self.kind != BLOCK else []) + ([f"block{self.index}"] * bool(self.index))
        return "-".join([*parts, *tail, f"{self.n}+{self.text}"])

    @property
    def spec(self) -> MeshSpec:
        return get_mesh(self.mesh)

    @property
    def config(self) -> DiTParallelConfig:
        return parse_parallel(self.parallel, self.spec, attention=self.attention, ring=self.ring, ulysses=self.ulysses)

    @property
    def streams(self) -> tuple[str, ...]:
        if self.kind == TRANSFORMER:
            return ("sample",)
        last = self.index == SPECS[self.model].config["num_layers"] - 1
        return ("spatial",) if last else ("spatial", "prompt")

    @property
    def shards(self) -> list[m.Range]:
        """Image tokens of every device along the sequence, whole tiles each; a shard of padding only is empty."""
        sp = self.config.sp
        rows = self.n if sp == 1 else -(-self.n // (_TILE * sp)) * _TILE
        return [(min(i * rows, self.n), min((i + 1) * rows, self.n)) for i in range(sp)]


@dataclass
class Bench:
    """Checkpoints, inputs and the reference wing's answers, in one temporary folder; a context manager."""

    seed: int = _SEED
    _root: Path | None = None
    _inputs: dict[str, Path] = field(default_factory=dict)
    _answers: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def __enter__(self) -> Bench:
        self._root = Path(tempfile.mkdtemp(prefix="refsim-wing-block-"))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def checkpoint(self, case: BlockCase) -> Path:
        whole = case.kind == TRANSFORMER
        folder = self._root / f"{case.model}-{'all' if whole else case.index}"
        if not folder.exists():
            _write_checkpoint(folder, case.model, None if whole else case.index, self.seed)
        return folder

    def inputs(self, case: BlockCase) -> Path:
        """A file with the case's inputs, values that bf16 holds."""
        if case.id not in self._inputs:
            path = self._root / f"{case.id}.safetensors"
            safetensors.torch.save_file(_inputs(case, self.seed), path)
            self._inputs[case.id] = path
        return self._inputs[case.id]

    def reference(self, case: BlockCase, dtype: str = "bfloat16") -> dict[str, Tensor]:
        """The reference wing's answer; the ranks are forked, so call it from one thread only."""
        key = f"{case.id} {dtype}"
        if key not in self._answers:
            arguments: dict[str, Any] = {
                "checkpoint": str(self.checkpoint(case)),
                "inputs": str(self.inputs(case)),
                "dtype": dtype,
            }
            if case.kind == BLOCK:
                arguments["index"] = case.index
            else:
                arguments |= {"guidance": None, "split_prompt": False, "schedule": "block", "pad_heads": True}
                arguments["chunks"] = (256, 512)
            program = f"refsim.pipelines.{case.kind}:program"
            self._answers[key] = run_reference(program, case.spec, case.config, arguments).tensors
        return self._answers[key]

    def wing(self, case: BlockCase, *, fault: str = "", timeout_s: float = 240.0) -> dict[str, Tensor]:
        """The device wing's answer, from a process of its own."""
        from tt_impl import launch

        arguments: dict[str, Any] = {"checkpoint": str(self.checkpoint(case)), "inputs": str(self.inputs(case))}
        if case.kind == BLOCK:
            arguments["index"] = case.index
        program = f"tt_impl.pipelines.{case.kind}:program"
        outcome = launch.execute(
            program, case.spec, case.config, arguments, backend=BACKEND, fault=fault, timeout_s=timeout_s
        )
        return outcome.tensors

    def measure(self, case: BlockCase, ours: dict[str, Tensor], dtype: str = "bfloat16") -> dict[str, float | int]:
        """All metrics of an answer against the reference wing's in ``dtype``."""
        inputs = safetensors.torch.load_file(self.inputs(case))
        return measure(case, inputs, ours, self.reference(case, dtype))

    def judge(self, case: BlockCase, *, fault: str = "") -> tuple[dict[str, float | int], list[str]]:
        """Run the device wing and judge it: metrics, and what was exceeded."""
        found = self.measure(case, self.wing(case, fault=fault))
        return found, judge(found, thresholds(case))


def measure(
    case: BlockCase, inputs: dict[str, Tensor], ours: dict[str, Tensor], ref: dict[str, Tensor]
) -> dict[str, float | int]:
    """Metrics by name, those of a stream as ``spatial.delta_one_minus_pcc``."""
    if sorted(ours) != sorted(case.streams):
        raise ValueError(f"the wing answered {sorted(ours)}, but the case has {sorted(case.streams)}")
    found: dict[str, float | int] = {"non_finite": sum(m.non_finite(t) for t in ours.values())}
    for name in case.streams:
        a, b = ours[name].float(), ref[name].float()
        if name == "sample":
            a, b = tokens_of(a), tokens_of(b)
            found["sample.one_minus_pcc"] = m.one_minus_pcc(a, b)
            found["sample.shard"] = m.worst_shard(a, b, case.shards)
            found["sample.rel_rmse"] = m.rel_rmse(a, b)
            continue
        before = inputs[name].float()
        shards = case.shards if name != "prompt" else [(0, b.shape[1])]
        found[f"{name}.one_minus_pcc"] = m.one_minus_pcc(a, b)
        found[f"{name}.delta_one_minus_pcc"] = m.one_minus_pcc(a - before, b - before)
        found[f"{name}.delta_shard"] = m.worst_shard(a - before, b - before, shards)
        found[f"{name}.delta_rel_rmse"] = m.rel_rmse(a - before, b - before)
    return found


_PCC, _DELTA = 1e-3, 5e-4


def thresholds(case: BlockCase) -> tuple[Threshold, ...]:
    """The bounds of a case: those the issue sets, and two that follow from them by arithmetic."""
    found = [Threshold("non_finite", 0, "inputs are finite and so is every operation of a block")]
    if case.kind == TRANSFORMER:
        reason = "PCC >= 0.999, set by the acceptance of the device wing"
        return (
            *found,
            Threshold("sample.one_minus_pcc", _PCC, reason),
            Threshold("sample.shard", _PCC, f"{reason}; on every sample's worst sequence shard"),
            Threshold("sample.rel_rmse", math.sqrt(2 * _PCC), "the error that this PCC stands for, sqrt(2 * 1e-3)"),
        )
    for name in case.streams:
        found += [
            Threshold(f"{name}.one_minus_pcc", _PCC, "PCC >= 0.999, set by the acceptance of the device wing"),
            Threshold(
                f"{name}.delta_one_minus_pcc",
                _DELTA,
                "PCC >= 0.9995 of what the block itself adds, set by the acceptance of the device wing",
            ),
            Threshold(
                f"{name}.delta_shard",
                _DELTA,
                "the same on every sample's worst sequence shard: rounding does not depend on the shard",
            ),
            Threshold(
                f"{name}.delta_rel_rmse",
                math.sqrt(2 * _DELTA),
                "the error that a PCC of 0.9995 stands for, sqrt(2 * 5e-4), so that a factor gets no more room",
            ),
        ]
    return tuple(found)


def _write_checkpoint(folder: Path, model: str, index: int | None, seed: int) -> None:
    """A diffusers folder in bf16; with ``index`` of that block only, which is all that a block program reads."""
    from diffusers import SD3Transformer2DModel
    from diffusers.models.embeddings import get_2d_sincos_pos_embed

    config = SPECS[model].config
    with torch.device("meta"):
        architecture = SD3Transformer2DModel(**config)
    prefix = "" if index is None else f"transformer_blocks.{index}."
    g = generator(seed, "wing-block", model)
    state = {}
    for name, p in architecture.named_parameters():
        if name.startswith(prefix):
            x = _random(name, p.shape, g)
            state[name] = (x * _SHARP if ".norm_" in name and ".attn" in name else x).bfloat16()
    if index is None:
        table, base = config["pos_embed_max_size"], config["sample_size"] // config["patch_size"]
        embedding = get_2d_sincos_pos_embed(config["caption_projection_dim"], table, base_size=base, output_type="pt")
        state["pos_embed.pos_embed"] = embedding.bfloat16().unsqueeze(0)
    folder.mkdir(parents=True)
    architecture.save_config(folder)
    safetensors.torch.save_file(
        {k: x.contiguous() for k, x in state.items()}, folder / "diffusion_pytorch_model.safetensors"
    )


def _inputs(case: BlockCase, seed: int) -> dict[str, Tensor]:
    config = SPECS[case.model].config
    if case.kind == TRANSFORMER:
        shape = ModelShape((2 * (case.n // 12), 24), case.text, case.batch)
        drawn = model_inputs(shape, config["joint_attention_dim"], config["pooled_projection_dim"], "normal", seed)
        return {k: x.bfloat16().float() if x.ndim > 1 else x for k, x in drawn.items()}
    g, d = generator(seed, "wing-block", case.id), config["caption_projection_dim"]
    sizes = {"spatial": (case.batch, case.n, d), "prompt": (case.batch, case.text, d), "time": (case.batch, d)}
    drawn = {name: torch.randn(size, generator=g) for name, size in sizes.items()}
    # Means that differ from 0 and from token to token, so that a norm's mean and variance both matter.
    for name in ("spatial", "prompt"):
        drawn[name] = drawn[name] * 0.8 + 0.5 * torch.randn(*sizes[name][:2], 1, generator=g)
    drawn["time"] = torch.nn.functional.silu(drawn["time"] * 2.0)
    return {k: x.bfloat16().float() for k, x in drawn.items()}


_LAYOUTS = (
    ("n300", "tp2"),
    ("t3k", "cfg2_sp2_tp2"),
    ("t3k", "sp2_tp4"),
    ("t3k-1x8", "tp8"),
    ("galaxy", "cfg2_sp4_tp4"),
    ("bh-qb-1x4", "tp4"),
    ("bh-loudbox", "sp2_tp4"),
)


def cases() -> list[BlockCase]:
    """The blocks of medium (dual attention) and large at full width, on every layout of the acceptance."""
    return [BlockCase(mesh, p, model, n=240, text=77) for model in ("medium", "large") for mesh, p in _LAYOUTS]


def run(chosen: list[BlockCase], *, noise: bool = False) -> list[dict[str, Any]]:
    """One record per case; with ``noise`` also how far either wing is from the reference wing in fp32."""
    from refsim.errors import RefsimError

    records = []
    with Bench() as bench:
        for case in chosen:
            started = time.monotonic()
            record: dict[str, Any] = {"id": case.id, "metrics": {}, "failures": []}
            try:
                ours = bench.wing(case)
                record["metrics"] = bench.measure(case, ours)
                record["failures"] = judge(record["metrics"], thresholds(case))
                if noise:
                    record["wing_to_fp32"] = bench.measure(case, ours, "float32")
                    record["refsim_to_fp32"] = bench.measure(case, bench.reference(case), "float32")
            except RefsimError as e:
                record["failures"] = [str(e)]
            record["thresholds"] = {t.metric: t.limit for t in thresholds(case)}
            record["seconds"] = round(time.monotonic() - started, 1)
            records.append(record)
    return records


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m parity.wing_block", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="records as JSON instead of a table")
    parser.add_argument("--noise", action="store_true", help="also each wing's own distance from fp32")
    parser.add_argument("-k", default="", metavar="SUBSTRING", help="only cases whose id holds it")
    options = parser.parse_args(argv)
    chosen = [case for case in cases() if options.k in case.id]
    if not chosen:
        print(f"no block case's id holds '{options.k}'.", file=sys.stderr)
        return 2
    records = run(chosen, noise=options.noise)
    if options.json:
        print(json.dumps(records, indent=2))
    else:
        for r in records:
            worst = {k: max((v for n, v in r["metrics"].items() if n.endswith(k)), default=math.nan) for k in _COLUMNS}
            figures = "  ".join(f"{k} {v:.2g}" for k, v in worst.items())
            print(f"{'FAIL' if r['failures'] else 'pass'}  {r['id']:44} {figures}  {r['seconds']} s")
            print("".join(f"      {f}\n" for f in r["failures"]), end="")
    return 1 if any(r["failures"] for r in records) else 0


_COLUMNS = (".one_minus_pcc", ".delta_one_minus_pcc", ".delta_shard", ".delta_rel_rmse")


if __name__ == "__main__":
    sys.exit(main())
