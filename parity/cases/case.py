"""What a case is, and how its id spells its configuration.

    sd35_large-t3k-cfg2_sp2_tp2-ring-bf16
    attention-t3k_1x8-sp8-ring-fp32-outlier_text
    model-mesh-factors-scheme-[variants]-dtype-[family]-[tag]

The id joins test, result record and report row, and is what ``-k`` selects by.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from parity.cases.kinds import entry
from refsim.base.config import DiTParallelConfig
from refsim.base.options import Math, PromptLayout, RingOrder, RunOptions, VAEParallel

FAMILIES = ("normal", "large_logits", "fa_rand", "outlier_text", "constant_rows")


@dataclass(frozen=True)
class AttentionShape:
    """Full shapes of one attention: image rows ``n`` (of which ``logical_n`` are real), ``text`` prompt rows."""

    heads: int = 8
    n: int = 240
    text: int = 77
    logical_n: int | None = None
    batch: int = 1
    head_dim: int = 64

    @property
    def rows(self) -> int:
        """Real image rows."""
        return self.n if self.logical_n is None else self.logical_n


@dataclass(frozen=True)
class ModelShape:
    """Latent (height, width) or (frames, height, width), prompt tokens and batch; 2 is [negative, positive]."""

    latent: tuple[int, ...] = (24, 40)
    text: int = 77
    batch: int = 2


@dataclass(frozen=True)
class BlockShape:
    """Image tokens ``n``, prompt tokens and batch of one transformer block."""

    n: int = 240
    text: int = 77
    batch: int = 1


@dataclass(frozen=True)
class GenerationShape:
    """Prompts of ``least`` to ``text`` tokens, the tokens to give after each, and those that end a text; ``cache`` of
    the drafter, ``alone`` where the target runs without one."""

    prompts: int = 10
    text: int = 13
    max_new_tokens: int = 10
    cache: str = "context"
    least: int = 2
    stop: tuple[int, ...] = ()

    @property
    def drafted(self) -> bool:
        """Whether a drafter proposes."""
        return self.cache != "alone"


@dataclass(frozen=True)
class Layout:
    """Where and how a case runs: everything that must not change the answer.

    Attributes:
        mesh: name of the mesh.
        parallel: factors such as ``cfg2_sp2_tp2``.
        attention: ``ring``, ``ulysses`` or ``usp``; ``ring`` and ``ulysses`` are the factors of usp.
        prompt_layout: ``replicated`` or ``split``.
        ring_order: ``gather``, ``step`` or ``block``.
        chunks: rows of q and of k handled at a time, attention cases only; None: those of the math.
        math: of refsim's blocks of attention: ``reference``, one precision above storage, but in cases about
            ``storage``.
        vae_parallel: what tp cuts of an image's decoder, ``spatial`` or ``tensor``; decoder cases only.
    """

    mesh: str
    parallel: str
    attention: str = "ring"
    ring: int | None = None
    ulysses: int | None = None
    prompt_layout: PromptLayout = "replicated"
    ring_order: RingOrder = "step"
    chunks: tuple[int, int] | None = None
    math: Math = "reference"
    vae_parallel: VAEParallel = "spatial"

    def options(self, dtype: str | None = None, **more: Any) -> RunOptions:
        """Return the options of a run of this layout; ``more`` are further fields of :class:`RunOptions`.

        ``bfp8_b`` and ``bfp4_b`` are storage of weights on a device; everything else, and all of refsim, is then bf16.
        """
        if dtype in ("bfp8_b", "bfp4_b"):
            if more.get("backend", "cpu") != "cpu":
                more["weights_dtype"] = dtype
            dtype = "bf16"
        q, k = self.chunks or (None, None)
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "chunks"}
        return RunOptions.of(**shared, q_chunk_size=q, k_chunk_size=k, dtype=dtype, **more)

    def config(self) -> DiTParallelConfig:
        """Return the factors on the mesh's axes."""
        return self.options().parallel

    @property
    def scheme(self) -> str:
        """``ring``, ``ulysses`` or such as ``usp_r2u4``."""
        return f"usp_r{self.ring}u{self.ulysses}" if self.attention == "usp" else self.attention


@dataclass(frozen=True)
class Case:
    """One judged run.

    Attributes:
        id: unique, see the top of this file.
        kind: what is run and how it is judged, one of ``parity.kinds.KINDS``.
        model: ``attention`` or a name in ``parity.cases.checkpoints.MODELS`` or ``parity.cases.pipelines.PIPELINES``.
        dtype: storage, ``fp32`` or ``bf16``; ``bfp8_b`` is bf16 with the device's weights in bfp8_b.
        suite: ``smoke`` cases are part of ``full``.
        family: of the inputs, see ``parity.cases.inputs``.
        guidance: of a transformer: also judge ``uncond + guidance * (cond - uncond)``.
        other_layout: a second layout that must give the same answer to the same inputs.
        seed: added to the seed of the run.
        needs_gb: memory without which the case is skipped rather than driven into the ground.
    """

    id: str
    kind: str
    model: str
    layout: Layout
    shape: AttentionShape | ModelShape | BlockShape | GenerationShape
    dtype: str = "fp32"
    suite: str = "smoke"
    family: str = "normal"
    guidance: float | None = None
    other_layout: Layout | None = None
    seed: int = 0
    needs_gb: float = 0.0

    @property
    def mesh(self) -> str:
        return self.layout.mesh

    @property
    def backends(self) -> str:
        """``cpu`` or ``ttnn``: the backends that can run it."""
        return entry(self.kind).backend

    def describe(self) -> dict[str, Any]:
        """Return the configuration as JSON values, the first half of a record."""
        other = self.other_layout
        return {
            "id": self.id,
            "kind": self.kind,
            "model": self.model,
            "mesh": self.mesh,
            "parallel": self.layout.parallel,
            "scheme": self.layout.scheme,
            "prompt_layout": self.layout.prompt_layout if self.shape.text else "none",
            "ring_order": self.layout.ring_order,
            "math": self.layout.math,
            "dtype": self.dtype,
            "family": self.family,
            "shape": asdict(self.shape),
            "guidance": self.guidance,
            "other_layout": other and f"{other.mesh}-{other.parallel}-{other.scheme}",
            "suite": self.suite,
        }


_CUTS = {"spatial": "halo", "tensor": "channels"}


def make_case(kind: str, model: str, layout: Layout, shape: Any, *, tag: str = "", **more: Any) -> Case:
    """Make a case whose id is put together from its parts; ``tag`` tells apart what the parts do not."""
    case = Case("", kind, model, layout, shape, **more)
    known = entry(kind)
    words = [model, layout.mesh.replace("-", "_"), layout.parallel.replace("@", "_on_axis")]
    cuts = {"scheme": layout.scheme, "heads": "heads", "picture": _CUTS[layout.vae_parallel], "nothing": "exact"}
    words.append(cuts[known.cut])
    if known.cut in ("picture", "nothing"):
        pass  # there never is a prompt
    elif not shape.text:
        words.append("no_prompt")
    elif layout.prompt_layout != "replicated":
        words.append(f"{layout.prompt_layout}_prompt")
    if layout.ring_order != "step":
        words.append(layout.ring_order)
    if layout.math != "reference":
        words.append(f"{layout.math}_math")
    words.append(case.dtype)
    if case.family != "normal" or not known.checkpoint:
        words.append(case.family)
    if tag:
        words.append(tag)
    return replace(case, id="-".join(words))


@dataclass
class Registry:
    """Cases in the order they run, those of both families of backends; an id is unique among those of one family.

    Attributes:
        problems: a clause about every package whose cases could not be added.
    """

    cases: list[Case] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _ids: set[tuple[str, str]] = field(default_factory=set)

    def add(self, case: Case) -> None:
        """Add a case; ValueError if its id is taken."""
        key = case.backends, case.id
        if key in self._ids:
            raise ValueError(f"two cases have the id {case.id}")
        self._ids.add(key)
        self.cases.append(case)

    def make(self, kind: str, model: str, layout: Layout, shape: Any, **more: Any) -> None:
        """Add the case that :func:`make_case` makes of these."""
        self.add(make_case(kind, model, layout, shape, **more))
