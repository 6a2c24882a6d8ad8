"""Which parallel scheme runs on which mesh axis: ``DiTParallelConfig`` and its parser.

The submesh rule
    ``cfg`` cuts one mesh axis into groups; what is left of the mesh is the submesh of one group.
    ``tp`` takes one whole axis of the submesh, ``sp`` takes the other one (or, for USP, both axes).
    ``ring x ulysses`` factor the attention group of size ``sp``: ``sp = ring * ulysses``, the sequence being
    cut over ring first, ulysses second (shard index = ring_index * ulysses + ulysses_index).
    Together the factors use every device of the mesh.

The axis rule, where no axis is given: sp on axis 0 and tp on axis 1 if that fits, else the other way round;
cfg on the axis that makes it fit (axis 1 is tried first). With an ``@`` (``sp2@0_tp4@1``) the axis is taken as given.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Literal

from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec

ATTENTIONS = ("ring", "ulysses", "usp")
Attention = Literal["ring", "ulysses", "usp"]


@dataclass(frozen=True)
class ParallelFactor:
    """How many parts there are, and along which mesh axis; ``(0, 1)`` where they cover both axes of the submesh."""

    factor: int
    mesh_axis: int | tuple[int, int]

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise UserError(f"a parallel factor is 1 or more, not {self.factor}.")


@dataclass(frozen=True)
class DiTParallelConfig:
    """One validated parallel configuration; build it with :func:`parse_parallel`.

    ``ring_parallel.factor * ulysses_parallel.factor == sequence_parallel.factor`` always holds.
    """

    cfg_parallel: ParallelFactor
    tensor_parallel: ParallelFactor
    sequence_parallel: ParallelFactor
    ring_parallel: ParallelFactor
    ulysses_parallel: ParallelFactor

    def __post_init__(self) -> None:
        ring = self.ring
        ulysses = self.ulysses
        sp = self.sp
        if self.cfg > 2:
            raise UserError(f"cfg is 1 or 2 (the negative and the positive prompt), not {self.cfg}.")
        if ring * ulysses != sp:
            raise UserError(
                f"ring {ring} x ulysses {ulysses} = {ring * ulysses} must equal the attention group sp{sp}; "
                f"{_options([(r, sp // r) for r in range(1, sp + 1) if sp % r == 0])} would work."
            )
        tp_axis = self.tensor_parallel.mesh_axis
        sp_axis = self.sequence_parallel.mesh_axis
        if self.tp > 1 and sp > 1 and tp_axis == sp_axis:
            raise UserError(
                f"sp{sp} and tp{self.tp} cannot share mesh axis {tp_axis}; give them different axes, "
                f"such as sp{sp}@0_tp{self.tp}@1."
            )

    @property
    def cfg(self) -> int:
        return self.cfg_parallel.factor

    @property
    def tp(self) -> int:
        return self.tensor_parallel.factor

    @property
    def sp(self) -> int:
        return self.sequence_parallel.factor

    @property
    def ring(self) -> int:
        return self.ring_parallel.factor

    @property
    def ulysses(self) -> int:
        return self.ulysses_parallel.factor

    @property
    def attention(self) -> Attention:
        if self.ulysses == 1:
            return "ring"
        return "ulysses" if self.ring == 1 else "usp"

    @property
    def num_devices(self) -> int:
        return self.cfg * self.sp * self.tp

    def __str__(self) -> str:
        parts = [f"{n}{f}" for n, f in (("cfg", self.cfg), ("sp", self.sp), ("tp", self.tp)) if f > 1]
        return "_".join(parts) or "sp1"


_TOKEN = re.compile(r"(cfg|sp|tp|ring|ulysses)([1-9][0-9]{0,3})(?:@([01]))?")


def parse_parallel(
    text: str, mesh: MeshSpec, *, attention: str = "ring", ring: int | None = None, ulysses: int | None = None
) -> DiTParallelConfig:
    """Parse ``cfg2_sp2_tp2`` (or ``sp2@0_tp4@1``, or ``ring2_ulysses4``) for a mesh.

    Args:
        text: factors joined by ``_``; an omitted factor is 1; ``@axis`` fixes the mesh axis.
        attention: ``ring`` (ring = sp), ``ulysses`` (ulysses = sp) or ``usp`` (give ring and/or ulysses).
        ring, ulysses: factors of the attention group.

    Raises:
        UserError: one sentence that names what does not fit and what would.
    """
    if attention not in ATTENTIONS:
        raise UserError(f"--attention '{attention}' does not exist; choose one of {', '.join(ATTENTIONS)}.")
    factors: dict[str, int] = {}
    axes: dict[str, int] = {}
    for token in text.split("_"):
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise UserError(
                f"'{token}' in --parallel '{text}' is no parallel factor; write factors such as "
                "cfg2_sp2_tp2, each one of cfg, sp, tp, ring, ulysses, a number and optionally @axis (0 or 1)."
            )
        name, factor, axis = match.groups()
        if name in factors:
            raise UserError(f"--parallel '{text}' gives {name} twice; give each factor once.")
        factors[name] = int(factor)
        if axis is not None:
            axes[name] = int(axis)
    for name, value in (("ring", ring), ("ulysses", ulysses)):
        if value is None:
            continue
        if value < 1:
            raise UserError(f"--{name} is 1 or more, not {value}.")
        if factors.get(name, value) != value:
            raise UserError(f"--{name} {value} contradicts {name}{factors[name]} in --parallel '{text}'.")
        factors[name] = value

    return _place(mesh, factors, axes, attention)


def _place(mesh: MeshSpec, factors: dict[str, int], axes: dict[str, int], attention: str) -> DiTParallelConfig:
    """Fill in the attention group, choose the mesh axes by the axis rule, or say in one sentence why none fits."""
    cfg = factors.get("cfg", 1)
    tp = factors.get("tp", 1)
    sp, ring, ulysses = _attention_group(factors, attention)
    if ring * ulysses == sp:
        config = _fit(mesh, cfg, sp, tp, ring, ulysses, axes)
        if config is not None:
            return config
    raise UserError(_why_not(mesh, cfg, sp, tp, ring, ulysses, axes))


def _attention_group(factors: dict[str, int], attention: str) -> tuple[int, int, int]:
    """Return (sp, ring, ulysses), omitted ones filled in; ring and ulysses are 0 where usp leaves both open."""
    ring = factors.get("ring", 0)
    ulysses = factors.get("ulysses", 0)  # a factor given is 1 or more
    sp = factors.get("sp") or (ring or 1) * (ulysses or 1)
    if not ring and not ulysses:
        ring, ulysses = {"ring": (sp, 1), "ulysses": (1, sp), "usp": (0, 0)}[attention]
    elif not ring:
        ring = max(sp // ulysses, 1)
    elif not ulysses:
        ulysses = max(sp // ring, 1)
    if ring * ulysses == sp and attention != "usp":
        other, size = ("ulysses", ulysses) if attention == "ring" else ("ring", ring)
        if size > 1:
            raise UserError(f"attention {attention} takes no {other} factor ({size}); use --attention usp.")
    return sp, ring, ulysses


def _fit(
    mesh: MeshSpec, cfg: int, sp: int, tp: int, ring: int, ulysses: int, axes: dict[str, int]
) -> DiTParallelConfig | None:
    """Return the first placement of the axis rule that fits the mesh and the axes given, None if there is none."""
    if cfg * sp * tp != mesh.num_devices:
        return None
    sizes = {"cfg": cfg, "sp": sp, "tp": tp, "ring": ring, "ulysses": ulysses}

    def allowed(**chosen: int | tuple[int, int]) -> bool:
        return all(sizes[name] == 1 or axes.get(name, axis) == axis for name, axis in chosen.items())

    for sp_axis, cfg_axis in itertools.product((0, 1), (1, 0)):
        tp_axis = 1 - sp_axis
        sub = _submesh(mesh, cfg, cfg_axis)
        wanted = allowed(cfg=cfg_axis, sp=sp_axis, tp=tp_axis, ring=sp_axis, ulysses=sp_axis)
        if wanted and sub is not None and (sub[sp_axis], sub[tp_axis]) == (sp, tp):
            return DiTParallelConfig(
                ParallelFactor(cfg, cfg_axis),
                ParallelFactor(tp, tp_axis),
                ParallelFactor(sp, sp_axis),
                ParallelFactor(ring, sp_axis),
                ParallelFactor(ulysses, sp_axis),
            )
    for ring_axis, cfg_axis in itertools.product((0, 1), (1, 0)):
        ulysses_axis = 1 - ring_axis
        sub = _submesh(mesh, cfg, cfg_axis)
        wanted = allowed(cfg=cfg_axis, sp=(0, 1), ring=ring_axis, ulysses=ulysses_axis)
        if tp > 1 or min(ring, ulysses) == 1 or not wanted or sub is None:
            continue
        if (sub[ring_axis], sub[ulysses_axis]) == (ring, ulysses):
            return DiTParallelConfig(
                ParallelFactor(cfg, cfg_axis),
                ParallelFactor(1, ring_axis),
                ParallelFactor(sp, (0, 1)),
                ParallelFactor(ring, ring_axis),
                ParallelFactor(ulysses, ulysses_axis),
            )
    return None


def _submesh(mesh: MeshSpec, cfg: int, cfg_axis: int) -> tuple[int, int] | None:
    if mesh.shape[cfg_axis] % cfg:
        return None
    sub = list(mesh.shape)
    sub[cfg_axis] //= cfg
    return sub[0], sub[1]


def valid_configs(mesh: MeshSpec) -> list[str]:
    """Return every ``cfg, sp, tp`` that fits the mesh with ring (or Ulysses) attention, as text."""
    texts = []
    for cfg in (1, 2):
        for sub in {sub for axis in (0, 1) if (sub := _submesh(mesh, cfg, axis)) is not None}:
            for sp, tp in (sub, sub[::-1]):
                parts = [f"{n}{f}" for n, f in (("cfg", cfg), ("sp", sp), ("tp", tp)) if f > 1]
                texts.append("_".join(parts) or "sp1")
    return sorted(set(texts), key=lambda t: (t.count("_") * -1, t))


def _why_not(mesh: MeshSpec, cfg: int, sp: int, tp: int, ring: int, ulysses: int, axes: dict[str, int]) -> str:
    asked = "_".join(f"{k}{f}" for k, f in (("cfg", cfg), ("sp", sp), ("tp", tp)) if f > 1) or "sp1"
    works = f"on mesh {mesh} these would work: {', '.join(valid_configs(mesh))}."
    pairs = [(r, sp // r) for r in range(1, mesh.num_devices + 1) if sp % r == 0]
    fitting = [(r, u) for r, u in pairs if _fit(mesh, cfg, sp, tp, r, u, axes) is not None]
    advice = f"{_options([p for p in fitting if 1 not in p] or fitting)} would work." if fitting else works
    if ring * ulysses == 0:
        return f"attention usp over sp{sp} needs --ring and --ulysses; {advice}"
    if ring * ulysses != sp:
        return f"ring {ring} x ulysses {ulysses} = {ring * ulysses} must equal the attention group sp{sp}; {advice}"
    n = cfg * sp * tp
    if n != mesh.num_devices:
        return f"{asked} uses {n} device{'s' * (n > 1)} but mesh {mesh} has {mesh.num_devices}; {works}"
    if axes:
        on_axes = ", ".join(f"{k} on axis {a}" for k, a in axes.items())
        return f"{asked} with {on_axes} does not fit mesh {mesh}; {works}"
    if fitting:
        need = f"one mesh axis of {sp} devices for this attention"
        if 1 not in (ring, ulysses):
            need = f"mesh axes of {ring} and {ulysses} devices for ring {ring} x ulysses {ulysses}"
        return f"{asked} needs {need} and mesh {mesh} has none; --parallel {asked} --attention usp {advice}"
    return f"{asked} does not fit the axes of mesh {mesh}; {works}"


def _options(pairs: list[tuple[int, int]]) -> str:
    return " or ".join(f"--ring {r} --ulysses {u}" for r, u in pairs[:3])
