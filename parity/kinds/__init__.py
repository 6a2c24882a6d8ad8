"""The kinds of cases, a module and a class each: what goes in, what runs, what is measured, what is allowed.

Only what a list of cases needs stands here; the classes are imported when a case runs, torch with them. A kind of your
own is one more entry in ``KINDS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

from parity.thresholds import Threshold, tightened
from refsim.errors import UserError

Cut = Literal["scheme", "heads", "picture", "nothing"]


@dataclass(frozen=True)
class Entry:
    """What is known of a kind without running it.

    Attributes:
        implementation: ``module:class`` of the kind, a :class:`parity.kinds.base.CpuKind` or
            :class:`parity.kinds.base.TTNNKind`.
        cut: what its parallel scheme cuts, which an id spells: the tokens by an attention ``scheme``, only ``heads``
            (and features), a ``picture``'s rows and columns or channels, or nothing.
        backend: ``cpu`` or ``ttnn``, the family of backends that run it.
        checkpoint: cases have a checkpoint, and an oracle that reads it; otherwise they are inputs and a formula.
    """

    implementation: str
    cut: Cut = "scheme"
    backend: Literal["cpu", "ttnn"] = "cpu"
    checkpoint: bool = True


KINDS: dict[str, Entry] = {
    "attention": Entry("parity.kinds.attention:Attention", checkpoint=False),
    "attention_storage": Entry("parity.kinds.attention:StorageAttention", checkpoint=False),
    "attention_gemm": Entry("parity.kinds.attention:GemmAttention", checkpoint=False),
    "collectives": Entry("parity.kinds.collectives:Collectives", cut="nothing", checkpoint=False),
    "norms": Entry("parity.kinds.norms:Norms", cut="nothing", checkpoint=False),
    "placements": Entry("parity.kinds.placements:Placements", checkpoint=False),
    "transformer": Entry("parity.kinds.transformer:Transformer"),
    "single_file": Entry("parity.kinds.single_file:SingleFile"),
    "block": Entry("parity.kinds.block:Block"),
    "schedule": Entry("parity.kinds.schedule:ScheduleSteps", cut="nothing", checkpoint=False),
    "published": Entry("parity.kinds.published:PublishedModel", cut="nothing", checkpoint=False),
    "outlined": Entry("parity.kinds.outlined:OutlinedModel", cut="nothing", checkpoint=False),
    "refusals": Entry("parity.kinds.refusals:Refusals", cut="nothing"),
    "keys": Entry("parity.kinds.keys:UnreadKeys", cut="nothing"),
    "request": Entry("parity.kinds.request:Requests", cut="nothing"),
    "pipeline_refusals": Entry("parity.kinds.pipeline_refusals:PipelineRefusals", cut="nothing"),
    "vae_decoder": Entry("parity.kinds.vae_decoder:VAEDecoder", cut="picture"),
    "text_encoder": Entry("parity.kinds.text_encoder:TextEncoder", cut="heads"),
    "causal_lm": Entry("parity.kinds.causal_lm:CausalLM", cut="heads"),
    "generation": Entry("parity.kinds.generation:Generation", cut="heads"),
    "pipeline": Entry("parity.kinds.pipeline:Pipeline"),
    "ttnn_transformer": Entry("parity.kinds.ttnn_transformer:TTNNTransformer", backend="ttnn"),
    "ttnn_vae_decoder": Entry("parity.kinds.ttnn_vae_decoder:TTNNVAEDecoder", cut="picture", backend="ttnn"),
    "ttnn_block": Entry("parity.kinds.ttnn_block:TTNNBlock", backend="ttnn"),
    "ttnn_text_encoder": Entry("parity.kinds.ttnn_text_encoder:TTNNTextEncoder", cut="heads", backend="ttnn"),
    "ttnn_pipeline": Entry("parity.kinds.ttnn_pipeline:TTNNPipeline", backend="ttnn"),
    "ttnn_refused": Entry("parity.kinds.ttnn_calls:RefusedCalls", cut="nothing", backend="ttnn", checkpoint=False),
    "ttnn_spare": Entry("parity.kinds.ttnn_calls:SpareTensors", cut="nothing", backend="ttnn", checkpoint=False),
    "ttnn_given": Entry("parity.kinds.ttnn_calls:GivenCalls", cut="nothing", backend="ttnn", checkpoint=False),
    "ttnn_chosen": Entry("parity.kinds.ttnn_calls:ChosenSizes", cut="nothing", backend="ttnn", checkpoint=False),
    "ttnn_generation": Entry("parity.kinds.ttnn_generation:TTNNGeneration", cut="heads", backend="ttnn"),
}


def entry(kind: str) -> Entry:
    """What is known of a kind; ``UserError`` if there is none of that name."""
    if kind not in KINDS:
        raise UserError(f"kind of case '{kind}' does not exist; choose one of {', '.join(KINDS)}.")
    return KINDS[kind]


def load(kind: str) -> Any:
    """The class of a kind, a :class:`parity.kinds.base.Kind`."""
    module, _, name = entry(kind).implementation.partition(":")
    return getattr(import_module(module), name)


@cache
def thresholds_for(kind: str, dtype: str) -> tuple[Threshold, ...]:
    """The bounds of a kind of case in a storage dtype (``fp32``, ``bf16``), tightened by the measured floors.

    Raises:
        UserError: there are none for this dtype.
    """
    allowed = load(kind).thresholds
    if dtype not in allowed:
        raise UserError(f"{kind} cases are judged in {' and '.join(allowed)} only, not in {dtype}.")
    return tightened(allowed[dtype], f"{kind} {dtype}")
