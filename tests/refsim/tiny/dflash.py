"""Tiny random targets and drafters of transformers, saved as the folders that refsim reads.

The drafter's oracle is transformers' ``MuseGlimmerAssistantModel``, the same architecture under other names of two
tensors.
"""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.muse_glimmer_assistant import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, BLOCK, THETA = 64, 8, 4, 16, 16, 1e7
KEEP = (0, 1)


def make_target(seed: int = 0, *, vocab: int = 12, layers: int = 3, std: float = 0.15) -> Qwen3MoeForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=vocab,
        hidden_size=HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        norm_topk_prob=True,
        max_position_embeddings=512,
        initializer_range=std,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen3MoeForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):  # ones would hide a norm that is left out or taken twice
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    model.generation_config.eos_token_id = None
    return model


def make_drafter(seed: int = 1, *, vocab: int = 12, layers: int = 2, std: float = 0.15) -> MuseGlimmerAssistantModel:
    torch.manual_seed(seed)
    config = MuseGlimmerAssistantConfig(
        vocab_size=vocab,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=BLOCK,
        mask_token_id=vocab - 1,
        target_layer_ids=list(KEEP),
        layer_types=["full_attention"] * layers,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = MuseGlimmerAssistantModel(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 else 0.0, 0.2 if parameter.ndim == 1 else std)
    return model


def save_drafter(model: MuseGlimmerAssistantModel, folder: Path) -> Path:
    """As z-lab publishes it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    names = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
    state = {names.get(name, name): tensor.contiguous() for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(state, folder / "model.safetensors")
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    kept += ("num_key_value_heads", "head_dim", "block_size", "rms_norm_eps")
    written = {name: getattr(config, name) for name in kept}
    written |= {"architectures": ["DFlashDraftModel"], "rope_theta": THETA}
    written["dflash_config"] = {"mask_token_id": config.mask_token_id, "target_layer_ids": config.target_layer_ids}
    (folder / "config.json").write_text(json.dumps(written))
    return folder


def greedy_tokens(model: Qwen3MoeForCausalLM, prompts: list[torch.Tensor], most: int) -> list[list[int]]:
    """Return the tokens transformers generates after each prompt; prompts of one length are one batch."""
    found: dict[int, list[int]] = {}
    for length in {len(p) for p in prompts}:
        which = [i for i, p in enumerate(prompts) if len(p) == length]
        ids = torch.stack([prompts[i] for i in which])
        with torch.no_grad():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False, pad_token_id=0
            )
        found |= dict(zip(which, out[:, length:].tolist(), strict=True))
    return [found[i] for i in range(len(prompts))]


def train(drafter: MuseGlimmerAssistantModel, target: Qwen3MoeForCausalLM, *, steps: int) -> MuseGlimmerAssistantModel:
    """Teach a drafter to go on as the target does: cross entropy of all rows of blocks at random places."""
    generator = torch.Generator().manual_seed(0)
    vocab, mask = target.config.vocab_size, drafter.config.mask_token_id
    prompts = torch.randint(0, vocab - 1, (96, 6), generator=generator)
    text = torch.tensor(greedy_tokens(target, list(prompts), 48))
    text = torch.cat([prompts, text], 1)
    with torch.no_grad():
        states = target(text, output_hidden_states=True).hidden_states
    kept = torch.cat([states[index + 1] for index in KEEP], -1)
    optimizer = torch.optim.Adam(drafter.parameters(), lr=2e-3)
    for _ in range(steps):
        start = int(torch.randint(3, text.shape[1] - BLOCK, (1,), generator=generator))
        rows = torch.randint(0, len(text), (16,), generator=generator)
        block = torch.full((len(rows), BLOCK), mask)
        block[:, 0] = text[rows, start]
        with torch.no_grad():
            noise = target.model.embed_tokens(block)
        out = drafter(noise_embeds=noise, context_hidden_states=kept[rows, :start]).last_hidden_state
        logits = out[:, 1:] @ target.lm_head.weight.detach().T
        wanted = text[rows, start + 1 : start + BLOCK]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return drafter.eval()
