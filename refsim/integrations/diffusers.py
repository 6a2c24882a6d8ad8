"""A diffusers pipeline of the user's own, its transformer sequence-parallel over torchrun's ranks.

    hidden_states (all tokens) --first block's entry: cut over sp--> blocks on local tokens --proj_out: all_gather-->
    attention of local queries: diffusers' own processor, whose softmax(q k) v is ours (ring, Ulysses, USP)
    rotary tables: cut to the local tokens; prompt and cross-attention: whole on every rank

Every rank runs the whole pipeline with the same prompt and seed; what the transformer gives is the same on all. Nothing
of the pipeline is replaced but the call inside attention, so schedulers, callbacks and LoRA work as they do. At the
blocks' entry the ranks compare samples of what they hold: noise without a common seed is refused, not mixed.

In the manner of xDiT's ``parallelize_transformer``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from refsim.base.config import DiTParallelConfig, parse_parallel
from refsim.base.errors import InvariantError, UserError
from refsim.base.mesh import MeshSpec, get_mesh
from refsim.base.options import DEFAULT_TIMEOUT_S, RingOrder, RunOptions
from refsim.ccl import all_gather
from refsim.models.registry import by_class_name, models
from refsim.models.spec import DiffusersParts
from refsim.parallel.ring import QKV
from refsim.parallel.sequence import TokenShards, gather_tokens
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device
from refsim.runtime.launch import under_torchrun
from refsim.runtime.tensor import MeshTensor, Placement, shards
from refsim.runtime.transports.transport import GlooTransport

_TRANSFORMERS = ("transformer", "transformer_2")


def parallelize(
    pipe_or_transformer: Any,
    parallel: str = "",
    mesh: str | MeshSpec | None = None,
    *,
    ring_order: RingOrder = "step",
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Any:
    """Run the transformer of a diffusers pipeline sequence-parallel; the object itself is changed and handed back.

    Args:
        pipe_or_transformer: a pipeline, with all its experts, or a transformer; its model's spec says how
            it is taken apart (``diffusers``).
        parallel: ``ring4``, ``ulysses4`` or ``ulysses2_ring2``; the ring over all ranks if empty.
        mesh: whose axes and topology the ranks stand for; by default one row of as many devices as ranks.
        ring_order: see ``refsim.parallel.ring``.

    Raises:
        UserError: not under torchrun, another class, factors that do not use every rank, or parallelized before.
            Later, from the transformer: ranks with different noise, an attention backend other than torch's, a mask.
    """
    if not under_torchrun():
        raise UserError(
            "refsim.parallelize runs on torchrun's ranks; start the script with `torchrun --nproc-per-node N`."
        )
    parts = [pipe_or_transformer]
    if hasattr(pipe_or_transformer, "transformer"):
        parts = [getattr(pipe_or_transformer, name, None) for name in _TRANSFORMERS]
    parts = [part for part in parts if part is not None] or [pipe_or_transformer]
    for part in parts:
        _check(part)
    device = _device(parallel, mesh, ring_order, timeout_s)
    for part in parts:
        _Sharded(part, device)
    return pipe_or_transformer


def _parts(transformer: Any) -> DiffusersParts:
    """Return how the transformer is taken apart, from its model's spec."""
    name = type(transformer).__name__
    spec = by_class_name(name)
    if spec is None or spec.diffusers is None:
        known = ", ".join(name for spec in models().all if spec.diffusers for name in spec.class_names)
        raise UserError(f"refsim.parallelize knows {known}, not {name}{models().notes}.")
    return spec.diffusers


def _check(transformer: Any) -> None:
    parts = _parts(transformer)
    blocks = getattr(transformer, parts.blocks)
    if isinstance(getattr(blocks[0], parts.attentions[0]).processor, _Processor):
        raise UserError(f"this {type(transformer).__name__} is parallelized already; call refsim.parallelize once.")


def _device(parallel: str, mesh: str | MeshSpec | None, ring_order: RingOrder, timeout_s: float) -> Device:
    from refsim.runtime.ranks import joined

    size = int(os.environ["WORLD_SIZE"])
    spec = get_mesh(mesh) if mesh is not None else MeshSpec(f"1x{size}", "torchrun", "wormhole_b0", (1, size), (0, 1))
    if spec.num_devices != size:
        raise UserError(
            f"torchrun started {size} ranks but mesh {spec} has {spec.num_devices} devices; they must agree."
        )
    try:
        config = _parsed(parallel or f"ring{size}", spec)
    except UserError as e:
        raise UserError(f"{str(e).partition(';')[0]}; refsim.parallelize takes {', '.join(_works(spec))} here.") from e
    if config.sp != size:
        raise UserError(f"'{parallel}' is {config}; refsim.parallelize is sequence parallel, such as ring{size}.")
    host = joined.join()
    transport = GlooTransport(timeout_s)
    options = RunOptions(spec, config, ring_order=ring_order, timeout_s=timeout_s, detect_hazards=False)
    return Device(options, transport.rank, transport, board=host.board if host else None)


def _parsed(parallel: str, mesh: MeshSpec) -> DiTParallelConfig:
    kinds = [kind for kind in ("ring", "ulysses") if kind in parallel]
    return parse_parallel(parallel, mesh, attention="usp" if len(kinds) == 2 else (kinds or ["ring"])[0])


def _works(mesh: MeshSpec) -> list[str]:
    """Return the factors that are accepted on a mesh."""
    size = mesh.num_devices
    texts = []
    both = [f"ulysses{u}_ring{size // u}" for u in range(2, size) if size % u == 0]
    for text in (f"ring{size}", f"ulysses{size}", *both):
        with contextlib.suppress(UserError):
            _parsed(text, mesh)
            texts.append(text)
    return texts


class _Sharded:
    """The hooks of one transformer."""

    def __init__(self, transformer: Any, device: Device) -> None:
        self._device = device
        self._parts = _parts(transformer)
        self._cut: TokenShards | None = None
        blocks = getattr(transformer, self._parts.blocks)
        blocks[0].register_forward_pre_hook(self._enter, with_kwargs=True)
        for block in blocks:
            for attribute in self._parts.attentions:
                attention = getattr(block, attribute, None)
                if attention is not None:
                    attention.set_processor(_Processor(attention.processor, self))
        transformer.proj_out.register_forward_hook(self._leave)

    def _enter(
        self, block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Hand the first block this rank's tokens of ``hidden_states``."""
        sp = self._device.groups["sp"]
        x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        self._compare(x)
        if any(isinstance(t, Tensor) and t.ndim == 4 and t.shape[1] == x.shape[1] for t in args):
            raise UserError("refsim.parallelize takes one time step per video, not one per token.")
        self._cut = TokenShards.of(x.shape[1], sp.size)
        local = self._cut.cut(x, sp.index, dim=1)
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": local}
        return (local, *args[1:]), kwargs

    @property
    def _tokens(self) -> TokenShards:
        """Return how the tokens of the pass under way are cut."""
        if self._cut is None:
            raise InvariantError("attention was called before the first block of the transformer")
        return self._cut

    def _leave(self, module: Any, args: tuple[Any, ...], out: Tensor) -> Tensor:
        """Gather all tokens again after the last linear."""
        local = MeshTensor(out, shards(self._device.groups, sp=1))
        return gather_tokens(self._device, local, self._tokens, dim=1).local

    def cut_rotary(self, tables: Any) -> Any:
        """Map (cos, sin) of all tokens to those of this rank's; padded rows are zero and no keys."""
        if tables is None or self._parts.rotary is None:
            return tables
        index = self._device.groups["sp"].index
        dim = self._parts.rotary[1]
        return tuple(self._tokens.cut(table, index, dim=dim) for table in tables)

    @property
    def rotary_name(self) -> str | None:
        return self._parts.rotary and self._parts.rotary[0]

    def _compare(self, x: Tensor) -> None:
        """Raise ``UserError`` if ranks hold different tokens; 64 values of each are compared, within bf16's noise."""
        few = x.detach().flatten()[:: max(1, x.numel() // 64)][:64].double()
        of_rank = all_gather(self._device, few.unsqueeze(0).contiguous(), self._device.groups["sp"], dim=0)
        if not torch.allclose(of_rank, few.expand_as(of_rank), rtol=0.05, atol=0.05 * float(few.abs().mean())):
            raise UserError(
                "the ranks were given different latents; pass every rank a generator with the same seed, such as "
                "generator=torch.Generator().manual_seed(0)."
            )

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attend with (B, H, local rows, E), prompt rows before or behind the local tokens."""
        if (
            attn_mask is not None
            or dropout_p
            or is_causal
            or enable_gqa
            or scale not in (None, query.shape[-1] ** -0.5)
        ):
            raise UserError("refsim.parallelize runs attention without mask, dropout or a scale of its own.")
        n = self._tokens.local_n
        rows = query.shape[2]
        text = rows - n
        first = self._parts.prompt_first
        at = (slice(text, None), slice(0, text)) if first else (slice(0, n), slice(n, None))

        def part(span: slice, placements: dict[str, Placement]) -> QKV:
            return tuple(MeshTensor(x[:, :, span], placements) for x in (query, key, value))  # type: ignore[return-value]

        # the image's tokens are cut, the prompt is whole on every rank
        image = part(at[0], shards(self._device.groups, sp=2))
        prompt = part(at[1], {})
        out, prompt_out, _ = joint_attention(self._device, image, prompt if text else None, tokens=self._tokens)
        if prompt_out is None:
            return out.local
        return torch.cat([prompt_out.local, out.local] if first else [out.local, prompt_out.local], 2)


class _MeshAttention(TorchFunctionMode):
    """While open, torch's attention is the mesh's."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self._attend = attend
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            self.calls += 1
            func = self._attend
        return func(*args, **(kwargs or {}))


class _Processor:
    """diffusers' processor of an attention, with the mesh's softmax(q k) v inside."""

    def __init__(self, original: Callable[..., Any], sharded: _Sharded) -> None:
        self._original = original
        self._sharded = sharded
        # diffusers reads the signature of this attribute and drops keywords that are not in it (the rotary tables)
        self.__call__ = original.__call__  # type: ignore[method-assign, operator]

    def __call__(self, attn: Any, *args: Any, **kwargs: Any) -> Any:
        name = self._sharded.rotary_name
        if name is not None and name in kwargs:
            kwargs[name] = self._sharded.cut_rotary(kwargs[name])
        elif name is not None and args and isinstance(args[-1], tuple):
            args = (*args[:-1], self._sharded.cut_rotary(args[-1]))
        with _MeshAttention(self._sharded.attend) as mesh:
            out = self._original(attn, *args, **kwargs)
        if mesh.calls != 1:
            raise UserError(
                f"{type(self._original).__name__} does not go through torch's scaled_dot_product_attention; "
                "choose it with transformer.set_attention_backend('native')."
            )
        return out
