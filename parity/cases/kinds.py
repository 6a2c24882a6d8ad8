"""The table of kinds of cases: what is known of each without running it. A kind of your own is one more entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from refsim.base.errors import UserError

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
    "attention": Entry("parity.kinds.cpu.attention:Attention", checkpoint=False),
    "attention_storage": Entry("parity.kinds.cpu.attention:StorageAttention", checkpoint=False),
    "attention_gemm": Entry("parity.kinds.cpu.attention:GemmAttention", checkpoint=False),
    "collectives": Entry("parity.kinds.cpu.collectives:Collectives", cut="nothing", checkpoint=False),
    "norms": Entry("parity.kinds.cpu.norms:Norms", cut="nothing", checkpoint=False),
    "placements": Entry("parity.kinds.refusals.placements:Placements", checkpoint=False),
    "transformer": Entry("parity.kinds.cpu.transformer:Transformer"),
    "single_file": Entry("parity.kinds.cpu.single_file:SingleFile"),
    "block": Entry("parity.kinds.cpu.block:Block"),
    "schedule": Entry("parity.kinds.cpu.schedule:ScheduleSteps", cut="nothing", checkpoint=False),
    "published": Entry("parity.kinds.published.published:PublishedModel", cut="nothing", checkpoint=False),
    "refusals": Entry("parity.kinds.refusals.refusals:Refusals", cut="nothing"),
    "keys": Entry("parity.kinds.refusals.keys:UnreadKeys", cut="nothing"),
    "request": Entry("parity.kinds.refusals.request:Requests", cut="nothing"),
    "pipeline_refusals": Entry("parity.kinds.refusals.pipeline_refusals:PipelineRefusals", cut="nothing"),
    "vae_decoder": Entry("parity.kinds.cpu.vae_decoder:VAEDecoder", cut="picture"),
    "text_encoder": Entry("parity.kinds.cpu.text_encoder:TextEncoder", cut="heads"),
    "causal_lm": Entry("parity.kinds.cpu.text_encoder:CausalLM", cut="heads"),
    "generation": Entry("parity.kinds.cpu.generation:Generation", cut="heads"),
    "pipeline": Entry("parity.kinds.cpu.pipeline:Pipeline"),
    "ttnn_transformer": Entry("parity.kinds.ttnn.transformer:TTNNTransformer", backend="ttnn"),
    "ttnn_vae_decoder": Entry("parity.kinds.ttnn.vae_decoder:TTNNVAEDecoder", cut="picture", backend="ttnn"),
    "ttnn_block": Entry("parity.kinds.ttnn.block:TTNNBlock", backend="ttnn"),
    "ttnn_text_encoder": Entry("parity.kinds.ttnn.text_encoder:TTNNTextEncoder", cut="heads", backend="ttnn"),
    "ttnn_pipeline": Entry("parity.kinds.ttnn.pipeline:TTNNPipeline", backend="ttnn"),
    "ttnn_refused": Entry("parity.kinds.ttnn.calls:RefusedCalls", cut="nothing", backend="ttnn", checkpoint=False),
    "ttnn_spare": Entry("parity.kinds.ttnn.calls:SpareTensors", cut="nothing", backend="ttnn", checkpoint=False),
    "ttnn_given": Entry("parity.kinds.ttnn.calls:GivenCalls", cut="nothing", backend="ttnn", checkpoint=False),
    "ttnn_chosen": Entry("parity.kinds.ttnn.calls:ChosenSizes", cut="nothing", backend="ttnn", checkpoint=False),
    "ttnn_generation": Entry("parity.kinds.ttnn.generation:TTNNGeneration", cut="heads", backend="ttnn"),
}


def entry(kind: str) -> Entry:
    """Return what is known of a kind; ``UserError`` if there is none of that name."""
    if kind not in KINDS:
        raise UserError(f"kind of case '{kind}' does not exist; choose one of {', '.join(KINDS)}.")
    return KINDS[kind]
