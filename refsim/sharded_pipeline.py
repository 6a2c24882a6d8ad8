"""A diffusers pipeline of the user's own, its transformer sequence-parallel over torchrun's ranks.

    hidden_states (all tokens) --first block's entry: cut over sp--> blocks on local tokens --proj_out: all_gather-->
    attention of local queries: diffusers' own processor, whose softmax(q k) v is ours (ring, Ulysses, USP)
    rotary tables: cut to the local tokens; prompt and cross-attention: whole on every rank

Every rank runs the whole pipeline with the same prompt and seed; what the transformer gives is the same on all. Nothing
of the pipeline is replaced but the call inside attention, so schedulers, callbacks and LoRA work as they do.

In the manner of xDiT's ``parallelize_transformer``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from refsim.config import parse_parallel
from refsim.errors import UserError
from refsim.launch import DEFAULT_TIMEOUT_S, under_torchrun
from refsim.mesh import MeshSpec, get_mesh
from refsim.parallel.sequence import TokenShards, gather_tokens
from refsim.parallel.usp import AttentionOptions, joint_attention
from refsim.runtime.device import Device
from refsim.runtime.transport import GlooTransport

_TRANSFORMERS = ("transformer", "transformer_2")


@dataclass(frozen=True)
class _Family:
    """How a transformer class is taken apart.

    Attributes:
        blocks: name of the list of blocks.
        attentions: of a block, those that attend over all tokens.
        prompt_first: the processor puts the prompt before the image; None where there is no prompt in it.
        rotary: keyword of the rotary tables and the dim of their tokens, if there are any.
    """

    blocks: str
    attentions: tuple[str, ...]
    prompt_first: bool | None
    rotary: tuple[str, int] | None = None


_FAMILIES = {
    "SD3Transformer2DModel": _Family("transformer_blocks", ("attn", "attn2"), False),
    "CogVideoXTransformer3DModel": _Family("transformer_blocks", ("attn1",), True, ("image_rotary_emb", 0)),
    "WanTransformer3DModel": _Family("blocks", ("attn1",), None, ("rotary_emb", 1)),
}


def parallelize(
    pipe_or_transformer: Any,
    parallel: str = "",
    mesh: str | MeshSpec | None = None,
    *,
    schedule: str = "step",
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Any:
    """Run the transformer of a diffusers pipeline sequence-parallel; the object itself is changed and handed back.

    Args:
        pipe_or_transformer: a pipeline with an SD3, CogVideoX or Wan transformer (both experts), or such a transformer.
        parallel: ``ring4``, ``ulysses4`` or ``ulysses2_ring2``; the ring over all ranks if empty.
        mesh: whose axes and topology the ranks stand for; by default one row of as many devices as ranks.
        schedule: of the ring, see ``refsim.parallel.ring``.

    Raises:
        UserError: not under torchrun, another class, or factors that do not use every rank.
    """
    if not under_torchrun():
        raise UserError(
            "refsim.parallelize runs on torchrun's ranks; start the script with torchrun --nproc-per-node N."
        )
    parts = [pipe_or_transformer]
    if hasattr(pipe_or_transformer, "transformer"):
        parts = [getattr(pipe_or_transformer, name, None) for name in _TRANSFORMERS]
    device = _device(parallel, mesh, timeout_s)
    for part in parts:
        if part is not None:
            _Sharded(part, device, AttentionOptions(schedule=schedule))
    return pipe_or_transformer


def _device(parallel: str, mesh: str | MeshSpec | None, timeout_s: float) -> Device:
    import torch.distributed as dist

    size = int(os.environ["WORLD_SIZE"])
    spec = get_mesh(mesh) if mesh is not None else MeshSpec(f"1x{size}", "torchrun", "wormhole_b0", (1, size), (0, 1))
    if spec.num_devices != size:
        raise UserError(
            f"torchrun started {size} ranks but mesh {spec} has {spec.num_devices} devices; they must agree."
        )
    kinds = [kind for kind in ("ring", "ulysses") if kind in parallel]
    attention = "usp" if len(kinds) == 2 else (kinds or ["ring"])[0]
    config = parse_parallel(parallel or f"ring{size}", spec, attention=attention)
    if config.sp != size:
        raise UserError(f"'{parallel}' is {config}; refsim.parallelize is sequence parallel, such as ring{size}.")
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    transport = GlooTransport(timeout_s)
    return Device(spec, config, transport.rank, transport, log_uses=False)


class _Sharded:
    """The hooks of one transformer."""

    def __init__(self, transformer: Any, device: Device, options: AttentionOptions) -> None:
        name = type(transformer).__name__
        if name not in _FAMILIES:
            raise UserError(f"refsim.parallelize knows {', '.join(_FAMILIES)}, not {name}.")
        self._device, self._options, self._family = device, options, _FAMILIES[name]
        self._tokens: TokenShards | None = None
        blocks = getattr(transformer, self._family.blocks)
        blocks[0].register_forward_pre_hook(self._enter, with_kwargs=True)
        for block in blocks:
            for attribute in self._family.attentions:
                attention = getattr(block, attribute, None)
                if attention is not None:
                    attention.set_processor(_Processor(attention.processor, self))
        transformer.proj_out.register_forward_hook(self._leave)

    def _enter(self, block: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Before the first block: this rank's tokens of ``hidden_states``."""
        sp = self._device.groups["sp"]
        x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        self._tokens = TokenShards.of(x.shape[1], sp.size)
        local = self._tokens.cut(x, sp.index, dim=1)
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": local}
        return (local, *args[1:]), kwargs

    def _leave(self, module: Any, args: tuple, out: Tensor) -> Tensor:
        """After the last linear: all tokens again."""
        return gather_tokens(self._device, out, self._device.groups["sp"], self._tokens, dim=1)

    def cut_rotary(self, tables: Any) -> Any:
        """(cos, sin) of all tokens -> those of this rank's; padded rows are zero and no keys."""
        if tables is None or self._family.rotary is None:
            return tables
        index, dim = self._device.groups["sp"].index, self._family.rotary[1]
        return tuple(self._tokens.cut(table, index, dim=dim) for table in tables)

    @property
    def rotary_name(self) -> str | None:
        return self._family.rotary and self._family.rotary[0]

    @contextlib.contextmanager
    def attention(self) -> Iterator[None]:
        """While open, torch's attention is the mesh's."""
        with mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", self._attend):
            yield

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
        """(B, H, local rows, E), prompt rows before or behind the local tokens -> the same of the answer."""
        n, rows = self._tokens.local_n, query.shape[2]
        text, first = rows - n, self._family.prompt_first
        at = (slice(text, None), slice(0, text)) if first else (slice(0, n), slice(n, None))
        image, prompt = (tuple(x[:, :, span] for x in (query, key, value)) for span in at)
        out, prompt_out, _ = joint_attention(
            self._device, image, prompt if text else None, tokens=self._tokens, options=self._options
        )
        if not text:
            return out
        return torch.cat([prompt_out, out] if first else [out, prompt_out], 2)


class _Processor:
    """diffusers' processor of an attention, with the mesh's softmax(q k) v inside."""

    def __init__(self, original: Callable[..., Any], sharded: _Sharded) -> None:
        self._original, self._sharded = original, sharded
        # diffusers reads the signature of this attribute and drops keywords that are not in it (the rotary tables)
        self.__call__ = original.__call__

    def __call__(self, attn: Any, *args: Any, **kwargs: Any) -> Any:
        name = self._sharded.rotary_name
        if name is not None and name in kwargs:
            kwargs[name] = self._sharded.cut_rotary(kwargs[name])
        elif name is not None and args and isinstance(args[-1], tuple):
            args = (*args[:-1], self._sharded.cut_rotary(args[-1]))
        with self._sharded.attention():
            return self._original(attn, *args, **kwargs)
