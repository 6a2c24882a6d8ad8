"""What the DFlash drafter is, as z-lab publishes it."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "DFlashDraftModel"

SPEC = ModelSpec.of_folder(
    "dflash",
    model="draft:DFlashDraftModel",
    config="DFlashConfig",
    class_names=(CLASS_NAME,),
    kind="drafter",
    published=(Published("dflash-qwen3-coder"),),
)
