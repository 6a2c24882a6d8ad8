"""Writes the folders of random checkpoints, and loads the oracles' models from folders."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.cases.checkpoints import DRAFTER, RandomModel
from parity.cases.oracles import oracle_of
from parity.cases.sensitive_block import make_sensitive

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_LOUD = (3, 17, 36)
"""Words, on both devices of two, that a random target says more often than others: with them a random drafter, which
has the same head, is right now and then."""
DRAFTER_NAMES = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
"""What transformers calls two of a drafter's tensors, and z-lab."""


def diffusers_class(class_name: str) -> Any:
    """Return the class of that name in diffusers, or the one that an oracle brings; None if there is none."""
    return oracle_of(class_name).model_class(class_name)


def build(spec: RandomModel, seed: int, folder: Path) -> None:
    """Write a checkpoint folder through ``save_pretrained``; the same seed gives the same bits."""
    from parity.cases.inputs import generator  # imports torch, which a list of cases does without

    g = generator(seed, "weights")
    if spec.class_name == DRAFTER:
        _write_drafter(transformers_model(spec, g), folder)
    elif diffusers_class(spec.class_name) is None:
        transformers_model(spec, g).save_pretrained(folder)
    elif spec.block is not None:
        _write_block(spec, g, folder)
    else:
        diffusers_model(spec, g).save_pretrained(folder, max_shard_size=spec.max_shard_size)
        if spec.left_aside:
            _write_left_aside(spec, g, folder)


def _write_left_aside(spec: RandomModel, g: torch.Generator, folder: Path) -> None:
    """Add the weights that the class leaves aside to the one file of a folder."""
    import torch
    from safetensors.torch import load_file, save_file

    (file,) = folder.glob("*.safetensors")
    left = {name: torch.randn(8, generator=g) for name in spec.left_aside}
    save_file(load_file(file) | left, file, metadata={"format": "pt"})


def diffusers_model(spec: RandomModel, g: torch.Generator) -> Any:
    """Make the model of a spec in diffusers, random; tables that are no part of a checkpoint are left on meta."""
    model = _empty_model(spec)
    state = {name: spec.random(name, p.shape, g) for name, p in model.named_parameters()}
    if "pos_embed_max_size" in spec.config:
        table = "pos_embed.pos_embed"
        state[table] = _positional_table(spec.config) * spec.gain(table)
    state |= {name: _statistic(name, x, g) for name, x in model.state_dict().items() if name.startswith("bn.")}
    if spec.in_bf16:
        state = {name: x if stays_fp32(type(model), name) else x.bfloat16() for name, x in state.items()}
    model.load_state_dict(state, strict=True, assign=True)
    return model


def _statistic(name: str, like: Tensor, g: torch.Generator) -> Tensor:
    """Draw what a batch norm has counted: means, variances above 0, and how many batches."""
    import torch

    if not like.is_floating_point():
        return torch.zeros(like.shape, dtype=like.dtype)
    drawn = torch.rand(like.shape, generator=g)
    return drawn + 0.5 if name.endswith("running_var") else drawn - 0.3


def _empty_model(spec: RandomModel) -> Any:
    """Make the model of a spec in diffusers on meta: torch's own initialisation of a real width takes too long."""
    from parity.cases.oracles.meta import on_meta

    with on_meta():
        return diffusers_class(spec.class_name)(**spec.config)


def transformers_model(spec: RandomModel, g: torch.Generator) -> Any:
    """Make the model of a spec in transformers, random."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model_class = getattr(transformers, spec.class_name)
    model = model_class(model_class.config_class(**spec.config)).requires_grad_(False)
    for name, p in model.named_parameters():
        p.copy_(spec.random(name, p.shape, g))
        if name == "lm_head.weight" and p.shape[0] > max(_LOUD):
            p[list(_LOUD)] *= 4
        if spec.rounded:
            p.copy_(p.bfloat16())
    return model.eval()


def _write_drafter(model: Any, folder: Path) -> None:
    """Write a folder as z-lab publishes it; what is particular to drafting stands apart."""
    from safetensors.torch import save_file

    config = model.config.to_dict()
    drafting = {name: config.pop(name) for name in ("mask_token_id", "target_layer_ids")}
    if "num_target_layers" in config:
        del drafting["target_layer_ids"]
    config |= {"architectures": ["DFlashDraftModel"], "dflash_config": drafting}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    state = {DRAFTER_NAMES.get(name, name): x.contiguous() for name, x in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")


def load_drafter(folder: Path, target_layer_ids: Sequence[int], mask_token_id: int, variant: str | None = None) -> Any:
    """Load transformers' drafter, in fp32, from a folder as z-lab publishes it.

    Args:
        target_layer_ids: layers of the target whose output it reads; a folder may leave them to z-lab's rule.
        mask_token_id: what stands in a block in place of tokens that are not known yet.
    """
    import transformers
    from safetensors.torch import load_file

    transformers.utils.logging.disable_progress_bar()
    model_class = getattr(transformers, DRAFTER)
    config = json.loads((folder / "config.json").read_text())
    config |= {"target_layer_ids": [*target_layer_ids], "mask_token_id": mask_token_id}
    model = model_class(model_class.config_class.from_dict(config)).requires_grad_(False)
    names = {theirs: ours for ours, theirs in DRAFTER_NAMES.items()}
    state: dict[str, Tensor] = {}
    for path in _weight_files(folder, variant):
        state |= {names.get(name, name): x.float() for name, x in load_file(path).items()}
    model.load_state_dict(state, strict=True)
    return model.eval()


def _weight_files(folder: Path, variant: str | None) -> list[Path]:
    """Return a folder's files of weights, of one variant or of none."""
    files = sorted(folder.glob("*.safetensors"))
    return [path for path in files if (f".{variant}" in path.stem if variant else "." not in path.stem)]


def _positional_table(config: dict[str, Any]) -> Tensor:
    from diffusers.models.embeddings import get_2d_sincos_pos_embed

    base = config["sample_size"] // config["patch_size"]
    features = config["caption_projection_dim"]
    size = config["pos_embed_max_size"]
    return get_2d_sincos_pos_embed(features, size, base_size=base, output_type="pt").float().unsqueeze(0)


def _write_block(spec: RandomModel, g: torch.Generator, folder: Path) -> None:
    """Write the weights of one block, which are sensitive to its constants, in bf16."""
    from safetensors.torch import save_file

    model = _empty_model(spec)
    oracle = oracle_of(spec.class_name)
    parts = oracle.block_prefix(model.config, spec.block), *(f"{name}." for name in oracle.shared_by_blocks)
    drawn = ((name, p.shape) for name, p in model.named_parameters() if name.startswith(parts))
    state = {name: spec.random(name, shape, g).bfloat16() for name, shape in drawn}
    make_sensitive(state)
    folder.mkdir(parents=True)
    model.save_config(folder)
    save_file(state, folder / "diffusion_pytorch_model.safetensors")


def load_oracle(folder: Path, dtype: torch.dtype, *, rounded: bool = False, variant: str | None = None) -> Any:
    """Load the library's model of a folder in ``dtype``; ``rounded``: with weights that bf16 can hold.

    ``variant`` picks the files of weights as diffusers does: ``fp16`` those with ``.fp16`` in their names.
    What diffusers keeps in fp32 when it loads a model in bf16 is neither rounded nor stored lower here.
    """
    import torch
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    if "architectures" in config:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        model_class = getattr(transformers, config["architectures"][0])
        how = {"dtype": dtype, "variant": variant, "local_files_only": True}
        return model_class.from_pretrained(folder, trust_remote_code=False, **how).eval()
    model = _restored(folder, config, dtype)
    state: dict[str, Tensor] = {}
    for path in _weight_files(folder, variant):
        state |= load_file(path)
    ignored = model._keys_to_ignore_on_load_unexpected or ()  # as from_pretrained has it
    state = {name: x for name, x in state.items() if not any(re.search(part, name) for part in ignored)}
    for name, x in state.items():
        exact = stays_fp32(type(model), name)
        lower = torch.float32 if exact and dtype == torch.bfloat16 else dtype
        state[name] = (x.bfloat16() if rounded and not exact else x).to(lower)
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval()


def _restored(folder: Path, config: dict[str, Any], dtype: torch.dtype) -> Any:
    """Make the diffusers model of a folder on meta, with those tables that are no part of a checkpoint."""
    from parity.cases.oracles.meta import on_meta

    model_class = diffusers_class(config["_class_name"])
    with on_meta():
        model = model_class.from_config(model_class.load_config(folder))
    oracle_of(config["_class_name"]).restore(model, config, dtype)
    return model


def stays_fp32(model_class: Any, name: str) -> bool:
    """Whether diffusers keeps a weight in fp32 when it loads the model in bf16."""
    return not set(model_class._keep_in_fp32_modules or ()).isdisjoint(name.split("."))


def load_block(folder: Path, index: int) -> tuple[Any, Any]:
    """Load the diffusers model of a folder with only the weights of one block, and what it shares with others, in fp32;
    and that block."""
    import torch
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    model = _restored(folder, config, torch.float32)
    oracle = oracle_of(config["_class_name"])
    block = oracle.block_prefix(config, index).removesuffix(".")
    state = load_file(folder / "diffusion_pytorch_model.safetensors")
    for part in (block, *oracle.shared_by_blocks):
        weights = {name.removeprefix(f"{part}."): x.float() for name, x in state.items() if name.startswith(f"{part}.")}
        model.get_submodule(part).load_state_dict(weights, strict=True, assign=True)
    return model, model.get_submodule(block).eval()
