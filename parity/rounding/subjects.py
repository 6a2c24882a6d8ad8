"""What can be run with a device's numerics and without: a case, a random model by name, a folder.

    sd35_tiny64               a random model of parity
    sd35-large                a published one: one random block of its widths
    sd35_tiny-n300-...-fp32   a case, in its layout
    FOLDER                    a checkpoint, with --inputs

Weights and inputs are numbers that bf16 has, as published weights are, so that what differs is arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import Tensor

from parity.cases import BlockShape, Case, checkpoints
from parity.cases.checkpoints import MODELS
from parity.cases.selection import find_case
from parity.cases.store import CheckpointStore
from parity.cases.suites import registry, suite_cases
from parity.kinds import load
from refsim import api
from refsim.base import scratch
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.models.registry import published
from refsim.runtime.launch import Result
from refsim.runtime.watch import observe

KINDS = ("transformer", "block", "vae_decoder", "text_encoder")
"""Kinds of cases that are one forward."""
_TTNN = {f"ttnn_{kind}": kind for kind in KINDS}
_WIDTHS = ("num_attention_heads", "attention_head_dim")

Layers = dict[str, list[Tensor]]
"""What layers gave, each rank's part, by name, in the order they ran."""


@dataclass(frozen=True)
class Subject:
    """A model with inputs, in one layout.

    Attributes:
        name: of the model or the folder.
        layout: mesh and factors, for people.
        options: the run's options for a dtype and further fields.
        forward: runs it with a seed and options.
        timed: what ``refsim time`` prices in its place: a published model or the folder; None for nothing.
        ran: what is run in the name's place, and on how much; empty for the thing itself.
    """

    name: str
    layout: str
    options: Callable[..., RunOptions]
    forward: Callable[[int, RunOptions], Result]
    timed: str | None = None
    ran: str = ""

    def run(self, seed: int, numerics: str = "", *, dtype: str | None = None) -> Result:
        """Run with a device's numerics in bf16; without, in fp32: that is exact, and the judge."""
        return self.forward(seed, self.options(dtype or ("bf16" if numerics else "fp32"), device_numerics=numerics))

    def layers(self, seed: int, numerics: str = "") -> tuple[Result, Layers]:
        """Run, and also return what every layer gave on every rank."""
        with scratch.Folder("layers") as folder:
            dtype = "bf16" if numerics else "fp32"
            options = self.options(dtype, device_numerics=numerics, observe=str(folder))
            result = self.forward(seed, options)
            ranks = observe.read(folder, options.mesh.num_devices)
        layers: Layers = {}
        for one in (one for rank in ranks for one in rank):
            layers.setdefault(one.name, []).append(one.local)
        return result, layers


def outputs(result: Result) -> dict[str, Tensor]:
    """Return the tensors of an answer that are compared."""
    return {name: x for name, x in result.tensors.items() if name != "guided"}


def find(
    text: str, store: CheckpointStore, *, inputs: Path | None = None, mesh: str = "", parallel: str = ""
) -> Subject:
    """Return what a text names, see the top of this file.

    Args:
        store: where random checkpoints are made.
        inputs: of a folder, a file of the arguments of its forward.
        mesh, parallel: the layout; empty: that of the case, and one device of anything else.

    Raises:
        UserError: nothing of that name, or a folder without inputs.
    """
    if Path(text).is_dir():
        return _of_folder(Path(text), inputs, mesh or "n150", parallel or "sp1")
    if inputs is not None:
        raise UserError(f"--inputs goes with a checkpoint folder, and '{text}' is none; leave it out.")
    registry()  # every suite names its models
    if text in MODELS:
        return _of_model(text, text, store, mesh or "n150", parallel or "sp1")
    if text in published():
        return _of_model(text, _block_of(text), store, mesh or "n150", parallel or "sp1")
    return _of_case(_case(text), store, mesh, parallel)


def _of_folder(folder: Path, inputs: Path | None, mesh: str, parallel: str) -> Subject:
    if inputs is None:
        raise UserError(f"'{folder}' is a checkpoint folder; give --inputs FILE with the arguments of its forward.")

    def options(dtype: str, **more: Any) -> RunOptions:
        return RunOptions.of(mesh=mesh, parallel=parallel, dtype=dtype, **more)

    def forward(seed: int, options: RunOptions) -> Result:
        result = api.run(folder, inputs=inputs, options=options)
        assert result is not None
        return result

    return Subject(str(folder), f"{mesh} {parallel}", options, forward, timed=str(folder))


def _of_model(name: str, model: str, store: CheckpointStore, mesh: str, parallel: str) -> Subject:
    cases = [case for case in _forwards() if case.model == model] or _blocks_like(model)
    if not cases:
        raise UserError(f"'{model}' has no case of one forward; choose another model or give a folder.")
    subject = _of_case(cases[0], store, mesh, parallel)
    sizes = ", ".join(f"{key} {value}" for key, value in asdict(cases[0].shape).items())
    ran = f"the random model {model} ({'one block' if MODELS[model].block is not None else 'whole'}), {sizes}"
    return replace(subject, name=name, timed=name if name in published() else None, ran=ran)


def _block_of(name: str) -> str:
    """Return the random model of one block, or else of few, that has the widths of a published one; register it."""
    model = published()[name]
    widths = [model.config.get(key) for key in _WIDTHS]
    alike = [
        key
        for key, spec in MODELS.items()
        if spec.class_name == model.class_name and [spec.config.get(width) for width in _WIDTHS] == widths
    ]
    alike.sort(key=lambda key: (MODELS[key].block is None, len(key)))
    if alike:
        return alike[0]
    made = f"{re.sub(r'[.-]', '_', name)}_block"
    few = {key: 1 for key in ("num_layers", "num_single_layers") if key in model.config}
    block = checkpoints.published(name, **few, block=0)
    if not _blocks_of(block.class_name):
        raise UserError(f"'{name}' is priced here and not run, so nothing rounds; choose one of {', '.join(_run())}.")
    checkpoints.register(made, block)
    return made


def _blocks_like(model: str) -> list[Case]:
    """Return cases of a block that none is registered of, in layouts of another one of its class."""
    like = _blocks_of(MODELS[model].class_name) if MODELS[model].block is not None else []
    return [replace(case, id=model, model=model, shape=BlockShape()) for case in like]


def _blocks_of(class_name: str) -> list[Case]:
    return [case for case in _forwards() if case.kind == "block" and MODELS[case.model].class_name == class_name]


def _run() -> list[str]:
    """Return the published models of which a block can be run."""
    classes = {MODELS[case.model].class_name for case in _forwards() if case.kind == "block"}
    return [name for name, model in published().items() if model.class_name in classes]


def _forwards() -> Iterator[Case]:
    """Yield the cases of both families of backends that are one forward, as refsim's ranks run them."""
    for backend in ("cpu", "ttnn-mock"):
        for case in suite_cases("full", backend):
            kind = _TTNN.get(case.kind, case.kind)
            if kind in KINDS:
                yield replace(case, kind=kind)


def _case(case_id: str) -> Case:
    for case in _forwards():
        if case.id == case_id:
            return case
    if near := get_close_matches(case_id, [*MODELS, *published()], cutoff=0.7):
        raise UserError(f"'{case_id}' is no model, case or folder; the nearest models are {', '.join(near)}.")
    if all(case.id != case_id for case in suite_cases("full", "ttnn-mock")):
        find_case(case_id, "cpu")  # says what there is where there is no such case
    raise UserError(f"case '{case_id}' is no single forward of a model; choose one that is.")


def _of_case(case: Case, store: CheckpointStore, mesh: str, parallel: str) -> Subject:
    layout = replace(case.layout, chunks=None)
    if mesh or parallel:
        layout = replace(layout, mesh=mesh or layout.mesh, parallel=parallel or "sp1", attention="ring")
        layout = replace(layout, ring=None, ulysses=None)
    kind = load(case.kind)(store)

    def forward(seed: int, options: RunOptions) -> Result:
        if case.kind == "block":
            more = {"device_numerics": options.device_numerics, "observe": options.observe}
            return kind.run(replace(case, dtype=options.dtype), layout, seed, **more)
        tensors = kind.inputs(replace(case, dtype="bf16"), seed)
        in_bf16 = case.kind == "transformer"
        result = api.run(store.folder(case.model, seed, in_bf16=in_bf16), inputs=tensors, options=options)
        assert result is not None
        return result

    return Subject(case.id, f"{layout.mesh} {layout.parallel}", layout.options, forward)
