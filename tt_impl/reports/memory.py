"""Whether a whole model fits a mesh, asked of ttnn's allocator without hardware: ``refsim memory``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from refsim.base.errors import RankFailure, UserError
from refsim.base.options import RunOptions
from refsim.files.keys import Document, Sometimes
from refsim.models.inputs import BATCH
from refsim.models.registry import get_published, models
from refsim.models.spec import Published
from tt_impl.run.installed import ttnn_package
from tt_impl.run.launch import Outcome, execute

MIB = 1024 * 1024
PROGRAM = "tt_impl.pipelines.allocation:program"
NEEDS = "tt_impl.pipelines.allocation:needs"
_FULL = ("Out of Memory", "Not enough space", "beyond max L1 size", "clash with L1 buffers")
"""What ttnn says when DRAM or L1 is full: an allocation that fails, or circular buffers that grow too far."""
PASSES = 3
"""Of a video's decoder, which holds as much in all passes as soon as its causal caches are full."""


def find_published(name: str) -> Published:
    """Find a published model that has a counterpart in TTNN, by its name, its family left out or not (``large``)."""
    known = {p.name: (spec, p) for spec in models().all if spec.ttnn for p in spec.published}
    for full, (spec, model) in known.items():
        if name in (full, full.removeprefix(f"{spec.name}-")):
            return model
    transformers = [full for full, (spec, _) in known.items() if spec.kind == "transformer"]
    raise UserError(f"model '{name}' does not exist in TTNN; choose one of {', '.join(transformers)}.")


def plan(
    model: Published,
    options: RunOptions,
    shapes: dict[str, tuple[int, ...]],
    *,
    optable: bool = False,
    run: Callable[..., Outcome] = execute,
) -> Outcome:
    """Make the report of ``tt_impl.pipelines.allocation`` as ``Outcome.report``: what was or would be allocated.

    Args:
        options: the mesh, the factors and a ttnn backend.
        shapes: of the inputs of one cfg group, see :func:`input_shapes`.
        run: ``tt_impl.run.launch.execute``, or that of a warm ``Worker``.

    Raises:
        UserError: ttnn is not installed; no such mesh, model or configuration.
        RankFailure: ttnn refused for another reason than memory.
    """
    ttnn_package()
    arguments = {"model": model.config, "shapes": {name: list(shape) for name, shape in shapes.items()}}
    try:
        return run(PROGRAM, options, arguments, values=False, optable=optable)
    except RankFailure as failure:
        if not any(words in str(failure) for words in _FULL):
            raise
        outcome = run(NEEDS, options, arguments, values=False)
        return replace(outcome, report=outcome.report | {"refused": str(failure)})


def input_shapes(
    model: Published, size: tuple[int, ...], options: RunOptions, batch: int | None = None
) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's inputs on one cfg group.

    ``batch`` prompts run at once; None: as many as a step has predictions, which are cut over cfg.
    """
    spec = next(spec for spec in models().all if model.class_name in spec.class_names)
    return spec.input_shapes(model, size, batch or max(1, model.branches // options.parallel.cfg))


@dataclass
class L1:
    """Bytes of one core.

    Attributes:
        total: that the allocator has.
        kept: by semaphores and tensors that stay.
        peak: in ``peak_op``.
        tensors: what of the peak is no circular buffers.
    """

    total: int
    kept: int
    peak: int
    peak_op: str
    tensors: int
    headroom: int


@dataclass(kw_only=True)
class CfgGroup:
    """Bytes of one device's DRAM; ``persistent`` has ``weights`` in it, ``peak`` both.

    Attributes:
        persistent: adds what a forward leaves.
        peak: the highest level of the forward, reached in ``peak_op``.
        headroom: total - peak.
        largest_free: the largest contiguous block of a bank times the banks, after the forward.
        owners: of what was added.
    """

    shape: list[int]
    parameters: int
    total: int
    weights: int
    build_s: Sometimes[float] = None
    forward_s: Sometimes[float] = None
    persistent: int
    peak: int
    peak_op: str
    headroom: int
    largest_free: int
    l1: L1
    owners: list[dict[str, Any]]


@dataclass
class Memory(Document):
    """A model on a mesh.

    Attributes:
        groups: JSON values, as they come from the process that asked ttnn.
        refused: What ttnn said of a model that does not fit.
    """

    name: str
    mesh: str
    parallel: str
    latent: tuple[int, ...]
    ran: str
    wall_s: float
    model: dict[str, Any] | str
    groups: list[CfgGroup]
    fits: bool
    refused: Sometimes[str] = None
    resources: Sometimes[dict[str, Any]] = None
    optable: Sometimes[list[dict[str, Any]]] = None


@dataclass(frozen=True)
class Stage:
    """A model of a pipeline and the shapes it is fed; two experts take turns, so they are two stages."""

    name: str
    model: Published
    shapes: dict[str, tuple[int, ...]]


def stages(model: Published, size: tuple[int, ...], options: RunOptions) -> list[Stage]:
    """List a transformer's pipeline for one cfg group: text encoders, the transformer once per expert, decoder."""
    parts = []
    for companion in model.encoders:
        spec, encoder = get_published(companion.published)
        sizes = {BATCH: max(1, companion.prompts // options.parallel.cfg), "tokens": companion.tokens}
        shapes = {name: tuple(sizes[dim] for dim in dims) for name, dims in spec.inputs(encoder.config).items()}
        parts.append(Stage(companion.stage, encoder, shapes))
    shapes = input_shapes(model, size, options)
    for number in range(1, model.experts + 1):
        name = f"expert {number}" if model.experts > 1 else "transformer"
        parts.append(Stage(name, model, shapes))
    if model.decoder:
        spec, decoder = get_published(model.decoder)
        frames = [min(n, PASSES * spec.frames_per_pass) for n in size[:-2]]
        parts.append(Stage("decoder", decoder, input_shapes(decoder, (*frames, *size[-2:]), options, 1)))
    return parts


def text(outcome: Outcome, title: str) -> str:
    """Write a few lines for people, sizes in MiB of one device."""
    group = outcome.report["groups"][0]
    shape = "x".join(map(str, group["shape"]))
    persistent = group["persistent"] - group["weights"]
    lines = [
        f"{title}: {outcome.ran}",
        f"  a cfg group of {shape}, {group['parameters'] / 1e9:.2f} G parameters, MiB per device:",
        f"    DRAM       {_mib(group['total'])}",
        f"    weights    {_mib(group['weights'])}",
        f"    persistent {_mib(persistent)}  kept from one forward to the next",
        *(f"      {_mib(owner['bytes'])}  {_owner(owner)}" for owner in group["owners"]),
        f"    transient  {_mib(group['peak'] - group['persistent'])}  at the peak, in {group['peak_op']}",
        f"    peak       {_mib(group['peak'])}",
        f"    headroom   {_mib(group['headroom'])}  largest free block {group['largest_free'] / MIB:.1f}",
    ]
    l1 = group["l1"]
    lines += [
        f"  L1 of a core, B: {l1['peak']} of {l1['total']} at the peak, in {l1['peak_op']} ({l1['tensors']} are "
        f"tensors and semaphores), {l1['headroom']} free; {l1['kept']} kept",
        f"  {verdict(outcome.report)}",
    ]
    return "\n".join(lines)


def verdict(report: dict[str, Any]) -> str:
    """One sentence: it fits, or which owner to shrink, to what, and how."""
    group = report["groups"][0]
    if report["fits"]:
        used = group["peak"] / group["total"], group["l1"]["peak"] / group["l1"]["total"]
        return f"Fits: {used[0]:.0%} of DRAM, {used[1]:.0%} of L1."
    return "DOES NOT FIT: " + "; ".join(shrink(group) or [f"ttnn says: {report['refused']}"]) + "."


def shrink(group: dict[str, Any]) -> list[str]:
    """List what to shrink so that a group fits, the largest owner first; nothing if DRAM and L1 would hold it."""
    sentences = []
    transient = group["peak"] - group["persistent"]
    total = group["total"]
    persistent = group["persistent"] - group["weights"]
    if group["headroom"] < 0:
        size, owner, how = max(
            (group["weights"], "weights", "more tp, bfp8_b (about half of bf16) or fsdp over sp"),
            (persistent, "persistent buffers", "more sp or tp; fewer owners that keep a pair each"),
            (transient, f"activations, at most in {group['peak_op']}", "more sp, or one prompt at a time"),
        )
        most = total - (group["peak"] - size)
        sentences.append(
            f"{-group['headroom'] / MIB:.1f} MiB of DRAM too much; shrink {owner} from {size / MIB:.1f} to "
            f"{max(0, most) / MIB:.1f} MiB: {how}"
        )
    if group["l1"]["headroom"] < 0:
        l1 = group["l1"]
        sentences.append(
            f"{-l1['headroom']} B of a core's L1 too much in {l1['peak_op']}; take smaller chunks or blocks there, or "
            f"move its {l1['tensors']} B of tensors to DRAM"
        )
    return sentences


def _owner(owner: dict[str, Any]) -> str:
    if owner["axis"] is None:
        return owner["owner"]
    shape = "x".join(map(str, owner["shape"]))
    return f"{owner['count']} x {shape} {owner['dtype']} of {owner['owner']} on axis {owner['axis']}"


def _mib(size: int) -> str:
    return f"{size / MIB:9.1f}"
