"""The double-stream block: image and prompt, modulated by the time step, meet in one attention.

    spatial --norm--mod--all_gather--+--> joint attention --reduce_scatter--gate--+--norm--mod--all_gather--FF--gate-->
    prompt  --norm--mod--all_gather--'            (same, its own weights)         '

The residual streams live cut over tp (features) and sp (tokens; the prompt replicated or cut). What differs between
models is in :class:`refsim.blocks.shape.DoubleStreamShape`: a prompt may share the image's weights, or be dropped after
attention (a last block); the image may attend to itself once more on the same norm.
"""

from __future__ import annotations

from torch import Tensor

from refsim.blocks.parts import Modulations, Time, head_norm, stream_norm
from refsim.blocks.sequences import Sequences
from refsim.blocks.shape import DoubleStreamShape, StreamShape
from refsim.files.checkpoint import Weights
from refsim.layers.attention import StreamQKV
from refsim.layers.feedforward import ParallelFeedForward
from refsim.layers.linear import AttentionSizes, RowParallelHeads
from refsim.layers.modulation import modulate
from refsim.parallel.sequence import cut_tokens, gather_tokens
from refsim.parallel.tensor import gather_features
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor


class DoubleStreamBlock:
    """A block such as ``transformer_blocks.{index}`` of diffusers' transformers with two streams.

    Args:
        prefix: what the names of its weights begin with.
    """

    def __init__(self, weights: Weights, device: Device, shape: DoubleStreamShape, prefix: str) -> None:
        self._device = device
        self._modulations = Modulations(weights, device, prefix, shape)
        self._spatial = _Stream(weights, device, prefix, shape, shape.spatial)
        self._prompt = self._spatial
        if shape.prompt is not None:
            self._prompt = _Stream(weights, device, prefix, shape, shape.prompt)
        self._attn = JointAttention(weights, device, f"{prefix}.{shape.attention}", shape, prompt=True)
        self._second = None
        if shape.second is not None:
            self._second = JointAttention(weights, device, f"{prefix}.{shape.second}", shape, prompt=False)

    def __call__(
        self, spatial: MeshTensor, prompt: MeshTensor, time: Time, *, sequences: Sequences
    ) -> tuple[MeshTensor, MeshTensor | None]:
        """Map (B, local N, local D) and (B, local L, local D) to the same; a block that drops the prompt gives None."""
        chunks = self._modulations(time, sequences)
        shift, scale, gate = chunks.of("attn")
        normed = self._spatial.norm1(spatial)
        attn_in = gather_features(self._device, modulate(normed, shift, scale))
        shift, scale, prompt_gate = chunks.of("prompt.attn")
        prompt_in = gather_features(self._device, modulate(self._prompt.norm1(prompt), shift, scale))

        attn, attn_prompt = self._attn(attn_in, prompt_in, sequences)
        spatial = self._spatial.with_attention(spatial, attn, gate)
        if self._second is not None:
            shift, scale, gate = chunks.of("attn2")
            attn2, _ = self._second(gather_features(self._device, modulate(normed, shift, scale)), None, sequences)
            spatial = self._spatial.with_attention(spatial, attn2, gate)
        if attn_prompt is None:
            return self._spatial.with_feed_forward(spatial, *chunks.of("ff")), None
        prompt = self._prompt.with_attention(prompt, attn_prompt, prompt_gate)
        spatial = self._spatial.with_feed_forward(spatial, *chunks.of("ff"))
        return spatial, self._prompt.with_feed_forward(prompt, *chunks.of("prompt.ff"))


class _Stream:
    """What a stream goes through by itself."""

    def __init__(
        self, weights: Weights, device: Device, prefix: str, shape: DoubleStreamShape, stream: StreamShape
    ) -> None:
        self._device = device
        self._tanh = shape.gate == "tanh"
        norms = (*stream.norms, *(stream.norms_out or ()))
        made = [stream_norm(weights, device, f"{prefix}.{name}", shape, stream.features) for name in norms]
        self.norm1, self._norm2, *self._norms_out = made
        self._ff = None
        if stream is not shape.prompt or not shape.context_pre_only:
            self._ff = ParallelFeedForward(
                weights,
                device,
                f"{prefix}.{stream.ff}",
                features=stream.features,
                hidden=stream.hidden,
                activation_fn=shape.activation,
                linears=shape.ff_linears,
                bias=shape.ff_bias,
            )

    def with_attention(self, x: MeshTensor, attention: MeshTensor, gate: MeshTensor) -> MeshTensor:
        """Add what attention gives, (B, rows, local D)."""
        return self._added(x, attention, gate, 0)

    def with_feed_forward(
        self, x: MeshTensor, shift: MeshTensor | None, scale: MeshTensor, gate: MeshTensor
    ) -> MeshTensor:
        """Add what the feed-forward makes of the stream, normed and modulated."""
        assert self._ff is not None
        ff = self._ff(gather_features(self._device, modulate(self._norm2(x), shift, scale)))
        return self._added(x, ff, gate, 1)

    def _added(self, x: MeshTensor, result: MeshTensor, gate: MeshTensor, stage: int) -> MeshTensor:
        if self._norms_out:
            result = self._norms_out[stage](result)
        return x + result * (gate.map("tanh", Tensor.tanh) if self._tanh else gate)


class _Projections:
    """A stream's linears into attention and out of it."""

    def __init__(
        self, weights: Weights, device: Device, name: str, shape: DoubleStreamShape, stream: StreamShape
    ) -> None:
        names = stream.attention
        self.drops = stream is shape.prompt and shape.context_pre_only
        sizes = AttentionSizes(stream.features, shape.num_heads, shape.head_dim)
        self.qkv = StreamQKV(
            weights,
            device,
            name,
            sizes,
            names=names.qkv,
            norms=None if shape.qk_norm == "none" else names.norms,
            norm=head_norm(shape),
            bias=shape.qkv_bias,
        )
        self.out = None
        if not self.drops:
            self.out = RowParallelHeads(weights, device, f"{name}.{names.out}", sizes, bias=shape.out_bias)


class JointAttention:
    """Attention of both streams over each other's tokens and their own, heads cut over tp, tokens over sp.

    image  --fused QKV--> q k v --norm per head--rotary--.                                  .--> out row-parallel
    prompt --fused QKV--> q k v --norm per head--rotary--+--> joint attention over sp ------+--> out row-parallel

    Args:
        prompt: the prompt takes part; else image tokens attend to themselves alone.
    """

    def __init__(self, weights: Weights, device: Device, name: str, shape: DoubleStreamShape, *, prompt: bool) -> None:
        self._device = device
        self._name = name
        self._answers_first = shape.answers_first
        self._spatial = _Projections(weights, device, name, shape, shape.spatial)
        self._prompt = self._spatial if prompt else None
        if prompt and shape.prompt is not None:
            self._prompt = _Projections(weights, device, name, shape, shape.prompt)

    @in_module
    def __call__(
        self, spatial: MeshTensor, prompt: MeshTensor | None, sequences: Sequences
    ) -> tuple[MeshTensor, MeshTensor | None]:
        """Take inputs tp=Replicate (gathered) and give results tp=Shard(-1); tokens over sp stay as they came in."""
        assert self._spatial.out is not None
        qkv = self._spatial.qkv(spatial, sequences.rotary)
        if self._prompt is None or prompt is None:
            out, _, _ = joint_attention(self._device, qkv, None, **sequences.cut)
            return self._spatial.out(out), None
        q, k, v = self._prompt.qkv(prompt, sequences.prompt_rotary)
        if self._prompt.out is None:
            q = q.with_local(q.local[:, :, :0])
        out, prompt_out, _ = joint_attention(self._device, qkv, (q, k, v), **sequences.cut)
        if self._prompt.out is None or prompt_out is None:
            return self._spatial.out(out), None
        if self._answers_first and sequences.prompt_mask is not None:
            prompt_out = _answers_first(self._device, prompt_out, sequences)
        return self._spatial.out(out), self._prompt.out(prompt_out)


def _answers_first(device: Device, answers_BHLE: MeshTensor, sequences: Sequences) -> MeshTensor:
    """Give the answers of a sample's unmasked tokens to its first ones, in their order, and zeros to the others.

    A mask without holes moves nothing; with them, tokens that are cut over sp are gathered and cut again.
    """
    mask_BL = sequences.prompt_mask
    assert mask_BL is not None
    cut = sequences.prompt_tokens
    moves = not mask_BL.is_meta and bool((mask_BL[:, 1:] & ~mask_BL[:, :-1]).any())
    if not moves:
        answered_BL = mask_BL if cut is None else cut.cut(mask_BL, device.groups["sp"].index, dim=1)
        return answers_BHLE.map("answered", lambda x: x * answered_BL[:, None, :, None].to(x.dtype))
    answered_BL, tokens_BL = mask_BL.int().sort(dim=1, descending=True, stable=True)
    whole = answers_BHLE if cut is None else gather_tokens(device, answers_BHLE, cut, dim=2)
    rows_BHLE = tokens_BL[:, None, :, None].expand_as(whole.local)
    moved = whole.map("answers first", lambda x: x.gather(2, rows_BHLE) * answered_BL[:, None, :, None].to(x.dtype))
    return moved if cut is None else cut_tokens(device, moved, cut, dim=2)
