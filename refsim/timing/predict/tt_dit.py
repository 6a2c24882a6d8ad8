"""What tt_dit's pipelines can be asked to run today: the part of a plan that needs no new kernels or layers.

Sources, tenstorrent/tt-metal models/tt_dit at the commits named: sequence parallelism is ring joint attention in
attention_wan.py@0138d1c6 and attention_sd35.py@0833f79b alike, and neither holds an all-to-all; ``create_pipeline`` of
pipeline_wan.py@003e671a has no cfg factor (the branches run one after the other on the whole mesh), takes its axes as
arguments and has ``is_fsdp``; SD3.5's layers have no fsdp, its pipeline cuts the mesh in two for guidance. One
``CCLManager`` per pipeline: one topology and one number of links for both axes.
"""

from __future__ import annotations

from refsim.base.config import DiTParallelConfig
from refsim.models.spec import TtDit


def refusal(pipeline: TtDit | None, parallel: DiTParallelConfig, heads: int, fsdp: bool) -> str:
    """Say why tt_dit does not run it today; "" if it does."""
    if pipeline is None:
        return "tt_dit has no such model"
    if parallel.ulysses > 1:
        return "tt_dit's attention has no Ulysses exchange"
    if parallel.cfg > 1 and not pipeline.cfg:
        return "tt_dit runs this model's guidance branches one after the other"
    if heads % parallel.tp and not pipeline.pads_heads:
        return f"tt_dit does not pad this model's {heads} heads to divide by tp{parallel.tp}"
    if fsdp and not pipeline.fsdp:
        return "its weights fit only if cut over sp, which tt_dit does not do for this model"
    return ""
