"""The DFlash drafter by context length: predicted for a p300 chip beside the document's measurements, measured on CPU.

    predicted   ``benchmarks.drafter``: each forward's programs, split into TT-Lang and TTNN, cached and not
    measured    refsim's drafter, smaller, in fp32 on this machine: seconds and floating point operations of a step,
                cached and not. With a cache all but attention must cost the same at every context length.

``refsim bench draft --out reports/draft`` writes predicted.md, the same bytes every
time, and measured.md, a record of one run.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.drafter import DOCUMENT, DOCUMENT_OPS, Kernel, forward, split_ms
from refsim.base.mesh import get_mesh
from refsim.base.options import RunOptions
from refsim.files import output
from refsim.files.checkpoint import ShapeWeights
from refsim.files.tables import as_markdown
from refsim.models.dflash.config import DFlashConfig
from refsim.models.dflash.spec import SPEC
from refsim.runtime.device import Device
from refsim.timing.predict.stages import EAGER_GAP_NS

NEW = 3
"""Rows accepted since the last step, as in the document's benchmark."""
SMALL = replace(DFlashConfig.from_dict(SPEC.published[0].config), hidden_size=256, intermediate_size=768,
                num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, head_dim=32)  # fmt: skip
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384)


def random_weights(seed: int = 0) -> ShapeWeights:
    """Any tensor, seeded, small."""
    generator = torch.Generator().manual_seed(seed)
    return ShapeWeights(torch.float32, lambda size: torch.randn(size, generator=generator) / size[-1] ** 0.5)


@dataclass(frozen=True)
class Measured:
    """One context length: processor seconds of a step, and its operations in attention and elsewhere."""

    context: int
    cached_s: float
    uncached_s: float
    cached_flops: tuple[int, int]
    uncached_flops: tuple[int, int]


def measure(
    contexts: tuple[int, ...] = CONTEXTS,
    *,
    config: DFlashConfig = SMALL,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Measured]:
    """Draft steps of ``NEW`` accepted rows at each context length; both forms must propose the same."""
    mesh = get_mesh("n150")
    model = SPEC.model_class(random_weights(), Device(RunOptions.of(mesh=mesh)), config)
    generator = torch.Generator().manual_seed(1)
    features = len(config.target_layer_ids) * config.hidden_size
    records = []
    for context in contexts:
        progress(f"context {context}")
        context_rows = torch.randn(1, context, features, generator=generator)
        noise = torch.randn(1, config.block_size, config.hidden_size, generator=generator)
        history = model.new_cache()
        with torch.inference_mode():
            model(noise, context_rows[:, :-NEW], history, start=context - NEW)

            def cached(context_rows=context_rows, noise=noise, history=history, context=context) -> torch.Tensor:
                for layer in history:
                    layer.crop(context - NEW)
                return model(noise, context_rows[:, -NEW:], history, start=context)

            def whole(context_rows=context_rows, noise=noise, context=context) -> torch.Tensor:
                return model(noise, context_rows, model.new_cache(), start=context)

            torch.testing.assert_close(cached(), whole(), rtol=1e-4, atol=1e-4)
            records.append(
                Measured(context, _seconds(cached, repeats), _seconds(whole, repeats), _flops(cached), _flops(whole))
            )
    return records


def _seconds(step: Callable[[], torch.Tensor], repeats: int) -> float:
    """Return the least processor time of one thread: what others do on the machine only adds to it."""
    threads = torch.get_num_threads()
    times = []
    torch.set_num_threads(1)
    try:
        for _ in range(repeats):
            started = time.process_time()
            step()
            times.append(time.process_time() - started)
    finally:
        torch.set_num_threads(threads)
    return min(times)


def _attention_flops(q_BHNE: torch.Size, k_BGSE: torch.Size, *rest: object, **named: object) -> int:
    return 4 * q_BHNE.numel() * k_BGSE[2]


def _flops(step: Callable[[], torch.Tensor]) -> tuple[int, int]:
    """(in attention, elsewhere)."""
    fused = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}  # torch does not count it
    with FlopCounterMode(display=False, custom_mapping=fused) as counter:
        step()
    counts = counter.get_flop_counts()["Global"]
    attention = sum(n for op, n in counts.items() if "attention" in str(op))
    return attention, sum(counts.values()) - attention


_MEASURED = (
    *("context", "cached ms", "uncached ms", "speed-up"),
    *("cached: MFLOP in attention", "elsewhere", "uncached: MFLOP in attention", "elsewhere"),
)
_PREDICTED = (
    *("context", "TT-Lang", "document", "error", "TTNN", "document", "error", "TTNN share", "document"),
    *("wall", "document", "error", "uncached: TT-Lang", "TTNN", "wall", "times cached"),
)
_OPERATIONS = (
    *("operation", "count", "predicted avg ms", "document avg ms", "error", "bound", "roofline", "roofline ms"),
    *("MB moved", "MB needed", "document's verdict"),
)


def measured_report(rows: list[Measured], config: DFlashConfig = SMALL) -> str:
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    load = os.getloadavg()[0]
    text = [
        "# DFlash drafter on CPU: cached and not\n",
        f"**Measured** {when} on {platform.machine()}, {os.cpu_count()} cores at load {load:.1f}, torch "
        f"{torch.__version__}, one thread, fp32; a drafter of {config.num_hidden_layers} "
        f"layers, {config.hidden_size} features, {config.num_attention_heads} heads on {config.num_key_value_heads}. "
        f"Processor time of a step, least of several, {NEW} newly accepted rows each. Operations are counted as they "
        "run.\n",
    ]
    cells = []
    for r in rows:
        times = (f"{r.cached_s * 1e3:.2f}", f"{r.uncached_s * 1e3:.2f}", f"{r.uncached_s / r.cached_s:.1f}")
        flops = (f"{flop / 1e6:.1f}" for flop in (*r.cached_flops, *r.uncached_flops))
        cells.append((f"{r.context:,}", *times, *flops))
    return "\n".join([*text, as_markdown(cells, _MEASURED)]) + "\n"


def predicted_report(progress: Callable[[str], None] = lambda text: None) -> str:
    text = [
        "# DFlash drafter on one p300 chip: predicted and the document's figures\n",
        "ms of one forward of the 8-layer drafter, 3 newly accepted rows. **Predicted** by the timing model, programs "
        "dispatched by the host without a trace; *document*: the published measurements, context-only cache (it gives "
        "none without a cache). Error: predicted / document - 1. Nothing is fitted on the document: programs and their "
        "reads are those of its repository and of ttnn, prices those of the stored calibration and of tt-metal's NoC "
        "table. With short contexts TTNN is bound by the host, for which a gap of another program is taken "
        f"({EAGER_GAP_NS / 1000:.0f} us an operation). Uncached: without the upload of outputs.\n",
    ]
    rows: list[tuple[object, ...]] = []
    for context, (wall, lang, ttnn) in DOCUMENT.items():
        progress(f"context {context}")
        a, b = split_ms(forward(context, new=NEW))
        ua, ub = split_ms(forward(context, new=NEW, cached=False))
        rows.append(
            (
                *(f"{context:,}", f"{a:.1f}", lang, f"{a / lang - 1:+.0%}", f"{b:.1f}", ttnn, f"{b / ttnn - 1:+.0%}"),
                *(f"{b / (a + b):.0%}", f"{ttnn / wall:.0%}", f"{a + b:.1f}", wall, f"{(a + b) / wall - 1:+.0%}"),
                *(f"{ua:.1f}", f"{ub:.1f}", f"{ua + ub:.1f}", f"{(ua + ub) / (a + b):.1f}"),
            )
        )
    context = max(DOCUMENT)
    text += [
        as_markdown(rows, _PREDICTED),
        f"\n## Per operation, context {context:,}, cached\n",
        "*bound*: what sets the predicted time of the kernel as it runs; *roofline*: the arithmetic alone (compute or "
        "memory bound at the chip's ridge) and its time; *bytes*: predicted to be read and written, against what is "
        "needed once.\n",
    ]
    rows = []
    kernels: dict[str, list[Kernel]] = {}
    for k in forward(context, new=NEW):
        kernels.setdefault(k.name, []).append(k)
    for name, same in sorted(kernels.items(), key=lambda item: -sum(k.ns for k in item[1])):
        known = DOCUMENT_OPS.get(name)
        ms = sum(k.ns for k in same) / len(same) / 1e6
        reported = (f"{known[0]:.3f}", f"{ms / known[0] - 1:+.0%}", known[2]) if known else ("", "", "")
        first = same[0]
        sizes = (f"{size / 1e6:.1f}" for size in (first.moved, first.nbytes))
        bound = (first.cost.bound, first.verdict, f"{first.roofline_ns / 1e6:.3f}", *sizes)
        rows.append((f"{name} ({first.toolchain})", len(same), f"{ms:.3f}", *reported[:2], *bound, reported[2]))
    text.append(as_markdown(rows, _OPERATIONS))
    text.append(
        "\nThe document calls gate_up+silu 96 % compute bound from counters of threads that wait for each other; its "
        "own traffic (540 MiB at 395 GB/s) is 77 % of the chip's DRAM bandwidth, and ten times what one pass over the "
        "weights needs: its kernels share work out by the column of a core, and all ten rows of cores do the same."
    )
    return "\n".join(text) + "\n"


def write(out: Path, progress: Callable[[str], None], *, measured: bool = True) -> None:
    out.mkdir(parents=True, exist_ok=True)
    output.write(out / "predicted.md", predicted_report(progress).encode())
    if measured:
        output.write(out / "measured.md", measured_report(measure(progress=progress)).encode())
