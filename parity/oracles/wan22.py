"""Wan's transformer: its rotary tables are made at construction."""

from __future__ import annotations

from typing import Any

import torch

from parity.oracles.base import Oracle


class WanOracle(Oracle):
    """``WanTransformer3DModel``."""

    class_names = ("WanTransformer3DModel",)

    def restore(self, model: Any, config: dict[str, Any], dtype: torch.dtype) -> None:
        model.rope = type(model.rope)(config["attention_head_dim"], config["patch_size"], config["rope_max_seq_len"])
