"""What the launching process checks before it starts any rank: every mistake is one sentence, exit code 2."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from refsim.base.access import refuse_unreadable
from refsim.base.config import DiTParallelConfig
from refsim.base.errors import UserError
from refsim.base.finite import first_not_finite
from refsim.base.options import RunOptions
from refsim.base.schema import Real, is_a
from refsim.files.checkpoint import Weights
from refsim.files.folder import ModelFolder
from refsim.files.tensor_file import TensorFile
from refsim.models.inputs import BATCH, Dims, fits, is_exact, named_sizes, unbatched
from refsim.models.registry import load_model, models, open_checkpoint, spec_of_checkpoint
from refsim.parallel.cfg import check_batch
from refsim.parallel.ulysses import cannot_split_heads
from refsim.runtime import launch
from refsim.runtime.device import Device
from refsim.runtime.host_memory import check_fits

_WHOLE_NUMBERS = ("input_ids", "attention_mask")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def refuse_uneven_heads(heads: int, config: DiTParallelConfig) -> None:
    if heads % config.tp:
        raise UserError(f"tp{config.tp} cannot split {heads} heads evenly; allow padding with --pad-heads.")
    if heads // config.tp % config.ulysses:
        raise UserError(cannot_split_heads(heads // config.tp, config.ulysses))


def check_attention_tensors(tensors: dict[str, Tensor], storage: torch.dtype) -> None:
    """Raise ``UserError`` for shapes that do not go together, and for what is no finite number in ``storage``."""
    mask = tensors.get("joint_mask")
    tensors = {name: x for name, x in tensors.items() if name != "joint_mask"}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in _FLOATS:
            actual = _short(tensor.dtype) if isinstance(tensor, Tensor) else f"a {type(tensor).__name__}"
            raise UserError(f"{name} is {actual}; it must be a tensor of {', '.join(map(_short, _FLOATS))}.")
        if tensor.ndim != 4 or 0 in tensor.shape:
            raise UserError(f"{name} must be (batch, heads, tokens, features), not {tuple(tensor.shape)}.")
    q = tensors["q"]
    for name in ("k", "v"):
        if tensors[name].shape != q.shape:
            raise UserError(f"{name} {tuple(tensors[name].shape)} must have the shape of q {tuple(q.shape)}.")
    joint = [name for name in ("joint_q", "joint_k", "joint_v") if name in tensors]
    if joint and len(joint) < 3:
        raise UserError(f"a prompt needs joint_q, joint_k and joint_v, not only {' and '.join(joint)}.")
    for name in joint:
        shape = tensors[name].shape
        like = tensors["joint_q"].shape
        if shape != like or (shape[0], shape[1], shape[3]) != (q.shape[0], q.shape[1], q.shape[3]):
            wanted = f"({q.shape[0]}, {q.shape[1]}, tokens, {q.shape[3]})"
            raise UserError(f"{name} {tuple(shape)} must be {wanted}, the same for joint_q, joint_k and joint_v.")
    if mask is not None:
        if not joint:
            raise UserError("joint_mask needs a prompt: joint_q, joint_k and joint_v.")
        rows = (q.shape[0], tensors["joint_q"].shape[2])
        if not isinstance(mask, Tensor) or mask.dtype is not torch.bool or mask.shape != rows:
            raise UserError(f"joint_mask must be a bool tensor {rows}: batch and prompt tokens.")
    for name, tensor in tensors.items():
        check_finite(name, tensor.to(storage))


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise ``UserError`` that counts and locates what is not finite."""
    first = first_not_finite(tensor)
    if first is not None:
        count = int((~torch.isfinite(tensor)).sum())
        raise UserError(
            f"input {name} holds {count} non-finite value(s), the first at {first}, as {_short(tensor.dtype)}; "
            "inputs must be finite numbers of that dtype."
        )


def check_guidance(guidance: float | None) -> None:
    """Raise ``UserError`` unless the scale is a number that fp32 holds."""
    if not is_a(Real | None, guidance):
        raise UserError(f"--guidance is {guidance!r}; it must be a finite number.")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_run(
    checkpoint: str | Path | ModelFolder, inputs: Path, options: RunOptions, *, guidance: float | None = None
) -> None:
    """Check folder, inputs and configuration of a run against each other; reads headers and inputs, no weights."""
    check_guidance(guidance)
    folder = open_checkpoint(checkpoint, options.variant, options.lora)
    spec = spec_of_checkpoint(folder)
    model_config = folder.as_config(spec.config_class)
    if options.vae_parallel not in spec.vae_forms:
        able = [name for s in models().all if options.vae_parallel in s.vae_forms for name in s.class_names]
        raise UserError(f"only an {' or '.join(able)} is cut by channel; leave out --vae-parallel.")
    if not options.pad_heads and hasattr(model_config, "num_attention_heads"):
        refuse_uneven_heads(model_config.num_attention_heads, options.parallel)
    weights = Weights(folder, options.storage, meta=True)
    model = load_model(folder, weights, Device(options))
    check_weights_fit(folder.class_name, options, weights)
    wanted = spec.model_class.input_shapes(model_config)
    shapes = _check_inputs(inputs, wanted, options.storage)
    batch = named_sizes(wanted, shapes)[BATCH]
    if hasattr(model, "check_inputs"):
        model.check_inputs(shapes)
    check_batch(batch, options.parallel.cfg)
    if guidance is not None and batch % 2:
        raise UserError(f"--guidance needs a batch of negative and positive samples, not {batch} sample(s).")


def check_weights_fit(what: str, options: RunOptions, *weights: Weights) -> None:
    """Raise ``UserError`` if the ranks of this machine would convert or pad more weights than it has memory for.

    Args:
        what: the model, as the sentence names it.
        weights: as rank 0 took them; those of other ranks have the same sizes. What is a view of the file is not
            counted: ranks share its pages, and the system takes them back.
    """
    ranks = launch.ranks_here(options)
    check_fits(
        f"{what} on {ranks} rank(s) in {options.dtype}",
        {"converted or padded weights": ranks * sum(one.copied_bytes for one in weights)},
        instead="choose the --dtype of the checkpoint, or a mesh that cuts weights finer (tp)",
    )


def _check_inputs(path: Path, wanted: dict[str, Dims], storage: torch.dtype) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs file, after checking names, shapes, dtypes and values."""
    refuse_unreadable(path, "inputs file")
    try:
        exists = path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        exists = False
    if not exists:
        raise UserError(f"inputs file '{path}' does not exist; give a safetensors file with {', '.join(wanted)}.")
    shapes = {}
    try:
        file = TensorFile(path)
        for name in [*wanted, *sorted(file.names - wanted.keys())]:
            if name not in file.names or name not in wanted:
                verb = "lacks" if name in wanted else "holds"
                raise UserError(f"inputs file '{path}' {verb} '{name}'; the model takes exactly {', '.join(wanted)}.")
            shapes[name] = _check_input(name, file[name], wanted[name], storage)
    except (OSError, ValueError) as e:
        raise UserError(f"'{path}' is not a readable safetensors file ({e}).") from e
    return shapes


def _check_input(name: str, tensor: Tensor, wanted: Dims, storage: torch.dtype) -> tuple[int, ...]:
    tensor = unbatched(tensor, wanted)
    shape = tuple(tensor.shape)
    if not fits(shape, wanted):
        text = ", ".join(map(str, wanted))
        raise UserError(f"input {name} has shape {shape} but the checkpoint needs ({text}).")
    if name in _WHOLE_NUMBERS:
        if tensor.dtype not in (torch.int64, torch.int32):
            raise UserError(f"input {name} is {_short(tensor.dtype)}; it must be int64.")
        return shape
    plain: tuple[torch.dtype, ...] = _FLOATS
    if name.endswith("_mask"):
        plain = (torch.bool, *_INTEGERS)
    elif is_exact(wanted):  # a time step may be a whole number
        plain = (*_FLOATS, *_INTEGERS)
    if tensor.dtype not in plain:
        names = ", ".join(map(_short, plain))
        raise UserError(f"input {name} is {_short(tensor.dtype)}; it must be one of {names}.")
    check_finite(name, tensor if is_exact(wanted) or not tensor.is_floating_point() else tensor.to(storage))
    return shape
