"""zoecarver/dflash with small sizes: constants of its modules, replaced before others take them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import device
import torch
from safetensors.torch import load_file

CHECKPOINT = Path(sys.argv[1])
VOCAB = 1024
device.VOCAB = VOCAB
device.TARGET_DIR = str(CHECKPOINT / "target")
import dflash_draft  # noqa: E402 - takes the constants of device
import qwen3  # noqa: E402 - takes the constants of device

for module, sizes in (
    (qwen3, {"TLAYERS": 2, "NEXPERTS": 16, "MOE_INTER": 128, "EPC": 4}),
    (dflash_draft, {"DLAYERS": 2, "TLAYER_IDS": [0, 0, 1, 1, 1], "MASK_ID": 1000, "VOCAB": VOCAB}),
):
    vars(module).update(sizes)
dflash_draft.DRAFT_DIR = str(CHECKPOINT / "draft")
PROMPT = torch.tensor([3, 872, 13, 565, 264, 135])


def target() -> Any:
    """Return transformers' model of the same weights, in float32."""
    from transformers import AutoConfig, Qwen3MoeForCausalLM

    model = Qwen3MoeForCausalLM(AutoConfig.from_pretrained(device.TARGET_DIR, trust_remote_code=False)).eval()
    model.load_state_dict(load_file(CHECKPOINT / "target" / "whole.safetensors"))
    return model.float()


def greedy(model: Any, count: int) -> list[int]:
    """Return the prompt and the tokens that transformers' model takes after it, the likeliest each time."""
    tokens = PROMPT.tolist()
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(model(torch.tensor(tokens)[None]).logits[0, -1].argmax().item())
    return tokens
