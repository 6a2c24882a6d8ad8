"""What every kind of case can do: a case goes in, metrics and digests come out. Judging is left to
``parity.run.case``."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from parity.cases import Case, Layout
from parity.cases.checkpoints import MODELS
from parity.cases.inputs import decoder_inputs, rounded
from parity.cases.model_folders import load_oracle
from parity.cases.oracles import oracle_of
from parity.cases.oracles.base import Oracle
from parity.cases.store import CheckpointStore
from parity.explain import tokens
from parity.explain.places import Evidence
from parity.kinds import load
from parity.measure import metrics as m
from parity.measure.digests import rank_digest
from parity.measure.thresholds import Threshold
from refsim import api
from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh
from refsim.models.registry import get
from refsim.parallel.sequence import TokenShards
from refsim.runtime.launch import Result

if TYPE_CHECKING:
    from tt_impl.run.launch import Outcome

DIGITS = {"fp32": 24, "bf16": 8}
"""Binary places of the storage dtypes."""

Metrics = dict[str, Any]
T = TypeVar("T")


@dataclass
class Measured:
    """What a run gave.

    Attributes:
        metrics: of the answer against the oracle; None where there is nothing to measure.
        noise: rel_rmse and one_minus_pcc of the oracle itself in the storage dtype.
        bytes_by_collective: sent by all ranks, keyed ``collective@group``.
        digests: of the answer's tensors, by name; equal ones mean equal bits.
        sim_s, oracle_s: seconds of the simulator, and of everything that is not.
        hazards: uses of device buffers that nothing kept apart, one sentence each.
        trace: events of all ranks, where asked for.
        extra: what a backend has to say beyond that.
    """

    metrics: Metrics
    noise: dict[str, float] = field(default_factory=dict)
    bytes_by_collective: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    sim_s: float = 0.0
    oracle_s: float = 0.0
    hazards: list[str] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


class Kind(ABC):
    """A kind of case; an instance keeps what the cases of one suite share.

    Attributes:
        thresholds: what is allowed, by storage dtype; floors tighten it, see :func:`parity.kinds.thresholds_for`.
    """

    thresholds: ClassVar[Mapping[str, tuple[Threshold, ...]]]

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        self._made: dict[tuple[str, int], dict[Any, Any]] = defaultdict(dict)

    def once(self, case: Case, seed: int, key: Any, make: Callable[[], T]) -> T:
        """Return ``make()``, called once for all cases of a model and a seed that have the ``key``."""
        made = self._made[case.model, seed]
        if key not in made:
            made[key] = make()
        return made[key]

    def drop(self, case: Case, seed: int) -> None:
        """Forget what only this case's checkpoint needs; called after the last case that uses it."""
        self._made.pop((case.model, seed), None)
        self.store.drop(case.model, seed)

    @classmethod
    def tables(cls, case: Case) -> tuple[str, ...]:
        """Return the modules of which a case judges what stands outside of functions, which ran before any case did."""
        return ()


class CpuKind(Kind):
    """A kind that refsim's ranks run and code that nobody here wrote judges.

    A result has ``wall_s``, ``hazards`` and ``bytes_by_collective``, whatever else its kind gives.
    """

    @abstractmethod
    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Any:
        """Return the simulator's answer in ``layout``; ``more`` are further fields of the run's options."""

    @abstractmethod
    def measure(self, case: Case, seed: int, result: Any) -> Metrics:
        """Measure an answer against the oracle's in all metrics."""

    def measure_other_layout(self, case: Case, result: Any, other: Any) -> Metrics:
        """Return metrics of the answer in the case's second layout against the first one."""
        raise NotImplementedError(f"{type(self).__name__} cases have one layout")

    def noise(self, case: Case, seed: int) -> dict[str, float]:
        """Return rel_rmse and one_minus_pcc of the oracle in the storage dtype; empty where that is not computed."""
        return {}

    def floor(self, case: Case, seed: int) -> Metrics:
        """Measure the oracle in the storage dtype against itself in a wider one; empty where that is costly."""
        return {}

    def extra(self, result: Any) -> dict[str, Any]:
        """Return what else a record is to keep of a result that has been measured."""
        return {}

    def explain(self, case: Case, seed: int, result: Any, limits: Mapping[str, float]) -> Evidence:
        """Say where a result that has been measured is wrong; nothing where this kind cannot tell.

        Args:
            limits: what was allowed, by metric.
        """
        return Evidence()

    def answers(self, result: Any) -> dict[str, Tensor]:
        """Return the tensors of a result whose bits count, by name."""
        return result.tensors


class HostKind(CpuKind):
    """A kind that needs no ranks: it looks at what is refused, read or asked for, and complains.

    The value of a result has ``complaints``: lists of sentences, each by a name under which a record keeps it.
    """

    def runs(self, case: Case, seed: int) -> tuple[ModelKind, dict[str, Tensor]]:
        """Return the kind that runs the case's model, and inputs that it runs it on."""
        kind = load(get(MODELS[case.model].class_name).kind)(self.store)
        return kind, kind.inputs(replace(case, family="normal"), seed)

    @abstractmethod
    def look(self, case: Case, seed: int) -> dict[str, Any]:
        """Return the value of a result."""

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        begun = time.monotonic()
        return Result([self.look(case, seed)], {}, {}, [], wall_s=time.monotonic() - begun)

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        return {name: len(sentences) for name, sentences in result.value["complaints"].items()}

    def extra(self, result: Result) -> dict[str, Any]:
        return {name: sentences for name, sentences in result.value["complaints"].items() if sentences}

    def answers(self, result: Result) -> dict[str, Tensor]:
        return {}


class ModelKind(CpuKind):
    """A kind whose answer is one tensor ``sample`` of one forward of a checkpoint, each oracle's computed once.

    Attributes:
        variant: of the folder's weights, see :func:`refsim.files.folder.find_weights`.
    """

    variant: str | None = None

    @abstractmethod
    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        """Return the case's inputs, by the names that ``refsim run`` takes, all values of :meth:`value_dtype`."""

    def call(self, model: Any, tensors: dict[str, Any]) -> Tensor:
        """Return the oracle's answer to the inputs."""
        return oracle_of(type(model).__name__).answer(model, tensors)

    def compare(self, case: Case, out: Tensor, ref: Tensor) -> Metrics:
        """Measure an answer (B, L, F), or one row (B, F) a sample, against the oracle's."""
        if ref.ndim == 2:
            out = out.unsqueeze(1)
            ref = ref.unsqueeze(1)
        return m.compare(out, ref, [(0, ref.shape[1])])

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        options = layout.options(case.dtype, **more)
        folder = self.folder(case, seed)
        tensors = self.inputs(case, seed)
        return api.run(folder, inputs=tensors, options=options, guidance=case.guidance)

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        metrics = self.compare(case, result.tensors["sample"], self.reference(case, seed))
        return metrics | {"distinct_replicas": distinct_replicas(case, result.value["digests"], result.tensors)}

    def explain(self, case: Case, seed: int, result: Any, limits: Mapping[str, float]) -> Evidence:
        out = result.tensors["sample"]
        ref = self.reference(case, seed)
        if out.shape != ref.shape or out.ndim != 3:
            return Evidence()
        return tokens.find(out, ref, [(0, ref.shape[1])], case.layout, limits.get("worst_token", limits["rel_rmse"]))

    def folder(self, case: Case, seed: int) -> Path:
        """Return the checkpoint of a case."""
        return self.store.folder(case.model, seed)

    @staticmethod
    def value_dtype(case: Case) -> str:
        """Return the dtype whose values weights and inputs hold: that of storage, or one that storage holds as well."""
        return case.dtype

    def reference(self, case: Case, seed: int, arithmetic: torch.dtype = torch.float32) -> Tensor:
        """Return the oracle's answer, computed in ``arithmetic`` from weights and inputs as storage holds them."""
        return self.watched(case, seed, arithmetic)[0]

    def watched(self, case: Case, seed: int, arithmetic: torch.dtype = torch.float32) -> tuple[Tensor, Any]:
        """Return the oracle's answer and what :meth:`watching` saw of it, None where nobody looked."""
        key = case.shape, case.family, self.value_dtype(case), arithmetic
        return self.once(case, seed, key, lambda: self._answered(case, seed, arithmetic))

    def _answered(self, case: Case, seed: int, arithmetic: torch.dtype) -> tuple[Tensor, Any]:
        oracle = self.oracle(case)
        tensors = self.inputs(case, seed)
        folder = self.folder(case, seed)
        rounded = self.value_dtype(case) == "bf16"
        model = load_oracle(folder, arithmetic, rounded=rounded, variant=self.variant)
        inputs: dict[str, Any] = {
            name: x.to(arithmetic) if x.ndim > 1 and x.is_floating_point() and name not in oracle.exact else x
            for name, x in tensors.items()
        }
        inputs |= oracle.further_inputs(model, inputs)
        with torch.inference_mode(), self.watching(case, arithmetic, model) as seen:
            return self.call(model, inputs), seen

    def watching(self, case: Case, arithmetic: torch.dtype, model: Any) -> AbstractContextManager[Any]:
        """Return what the oracle runs in; a kind that judges more than the answer looks at its modules here."""
        return nullcontext()

    @staticmethod
    def oracle(case: Case) -> Oracle:
        """Return what is particular to the class of the case's model."""
        return oracle_of(MODELS[case.model].class_name)


class TTNNKind(Kind):
    """A kind that ``tt_impl`` runs on a ttnn backend and that refsim, itself judged on CPU, is the reference for.

    Attributes:
        program: ``module:function`` in the device's process.
        values: it needs golden values of what it computes, and a record of what every operation takes on a device.
    """

    program: ClassVar[str]
    values: ClassVar[bool] = True

    @abstractmethod
    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        """Return what both backends are handed in a file."""

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        """Return what the program takes besides ``inputs``."""
        return {"checkpoint": str(self.store.folder(case.model, seed))}

    def reference(self, case: Case, seed: int, inputs: Path) -> Any:
        """Return refsim's answer in the case's dtype; its ranks are forked, so call it from one thread only."""
        folder = self.store.folder(case.model, seed)
        options = case.layout.options(case.dtype)
        return api.run(folder, inputs=inputs, options=options, guidance=case.guidance)

    @abstractmethod
    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Any) -> tuple[Metrics, dict[str, Any]]:
        """Measure the device backend's answer against the reference's, and say what else is to be kept."""


def text_inputs(case: Case, seed: int) -> dict[str, Tensor]:
    """Return what an encoder of prompts is run on, in either backend."""
    model = MODELS[case.model]
    return oracle_of(model.class_name).text_inputs(model.config, case.shape, seed)


def latent_inputs(case: Case, seed: int) -> dict[str, Tensor]:
    """Return what a decoder of pictures is run on, in either backend."""
    config = MODELS[case.model].config
    channels = config.get("z_dim") or config["latent_channels"]
    return rounded(decoder_inputs(case.shape, channels, case.family, seed), case.dtype)


def is_refused(call: Callable[[], Any], *named: str) -> bool:
    """Whether a call is refused in a sentence, which has one of these words if there are any."""
    try:
        call()
    except UserError as error:
        return not named or any(word in str(error) for word in named)
    return False


def distinct_replicas(case: Case, digests: list[str], answers: Mapping[str, Tensor]) -> float:
    """Count the different answers that ranks hold; NaN if not every rank says what it holds, or if what the first one
    says is not of the bits of the ``answers`` that came from it."""
    ranks = get_mesh(case.mesh).num_devices
    known = len(digests) == ranks and digests[0] == rank_digest(answers)
    return len(set(digests)) if known else math.nan


def noise_of(noise: Tensor | None, ref: Tensor) -> dict[str, float]:
    """Return how far rounding alone moves an answer; empty if that was not computed."""
    if noise is None:
        return {}
    return {"rel_rmse": m.rel_rmse(noise, ref), "one_minus_pcc": m.one_minus_pcc(noise, ref)}


def token_shards(layout: Layout, n: int, rows: int) -> list[m.Range]:
    """Return the token ranges of the sp group's members when ``n`` tokens are cut of which ``rows`` are real."""
    config = layout.config()
    cut = TokenShards(rows, config.sp, TokenShards.of(n, config.sp).local_n)
    return [cut.tokens(shard) for shard in range(config.sp)]
