"""What the blocks of a model are made of, said once for both backends: widths, names of weights, and the differences
between models.

A block has stages, each a norm, a modulation by the time step, what is computed, and a gate:

    double   of each stream "attn" and "ff"; of the image also "attn2" where it attends to itself alone once more
    single   "attn" for both streams, whose MLP stands beside its attention

A stage's modulation are up to three chunks of a linear of the time step. They are named after stage and part, those of
the prompt with "prompt." before: "attn.shift", "attn.scale", "attn.gate", "prompt.ff.gate".

All names of weights are those in the checkpoint, without the block's prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Activation = Literal["gelu_tanh", "swiglu", "swiglu_gate_first"]
"""Of a feed-forward, see :mod:`refsim.layers.feedforward`."""
Tensor = TypeVar("Tensor")
PARTS = ("shift", "scale", "gate")


def chunks(*stages: str, parts: tuple[str, ...] = PARTS) -> tuple[str, ...]:
    """Return the names of the chunks of some stages, one stage after the other."""
    return tuple(f"{stage}.{part}" for stage in stages for part in parts)


@dataclass(frozen=True)
class ModulationShape:
    """A linear of the time step.

    Attributes:
        name: of the linear; it is not read where the block is handed the chunks, see ``shared_modulation``.
        features: of a chunk, as wide as the stream it modulates.
        chunks: what its out features are, in their order in the checkpoint.
    """

    name: str
    features: int
    chunks: tuple[str, ...] = chunks("attn", "ff")

    @property
    def scales(self) -> tuple[int, ...]:
        """Return the places of the chunks that scale, by 1 + what the linear gives."""
        return tuple(i for i, chunk in enumerate(self.chunks) if chunk.endswith(".scale"))


@dataclass(frozen=True)
class AttentionNames:
    """Names of one stream's weights within an attention; the defaults are an image's in diffusers."""

    qkv: tuple[str, str, str] = ("to_q", "to_k", "to_v")
    norms: tuple[str, str] = ("norm_q", "norm_k")
    out: str = "to_out.0"


PROMPT_NAMES = AttentionNames(
    ("add_q_proj", "add_k_proj", "add_v_proj"), ("norm_added_q", "norm_added_k"), "to_add_out"
)
"""A prompt's in diffusers."""


@dataclass(frozen=True)
class StreamShape:
    """One stream of a double block.

    Attributes:
        features: of the stream.
        hidden: of its feed-forward, of one of both halves where it is gated.
        attention: names within the block's attention.
        norms: what norms the stream before attention and before the feed-forward.
        ff: the feed-forward.
        norms_out: what norms the result of attention and of the feed-forward before its gate; None for nothing.
    """

    features: int
    hidden: int
    attention: AttentionNames = AttentionNames()
    norms: tuple[str, str] = ("norm1", "norm2")
    ff: str = "ff"
    norms_out: tuple[str, str] | None = None


@dataclass(frozen=True)
class BlockShape:
    """What both kinds of block have.

    Attributes:
        num_heads, head_dim: of attention, the same for all streams.
        time_features: of what the modulations are linears of.
        modulations: linears of the time step, each run when the first of its chunks is needed.
        shared_modulation: all blocks have the same chunks; a call is handed them by the names of ``modulations``.
        norm: of the streams: a layer norm without or with weight and bias, or root mean square without.
        eps: of these norms.
        qk_norm: of the queries and keys of a head: root mean square with a weight, a layer norm with weight and bias,
            or nothing.
        qk_eps: of these.
        qkv_bias, out_bias, ff_bias: whether the linears into and out of attention and of a feed-forward have a bias.
        activation: of the feed-forward.
    """

    num_heads: int
    head_dim: int
    time_features: int
    modulations: tuple[ModulationShape, ...]
    shared_modulation: bool = False
    norm: Literal["layer", "layer_affine", "rms"] = "layer"
    eps: float = 1e-6
    qk_norm: Literal["rms", "layer_affine", "none"] = "rms"
    qk_eps: float = 1e-6
    qkv_bias: bool = True
    out_bias: bool = True
    ff_bias: bool = True
    activation: Activation = "gelu_tanh"


@dataclass(frozen=True, kw_only=True)
class DoubleStreamShape(BlockShape):
    """A double block: image and prompt, each with its own weights, meeting in one attention.

    Attributes:
        spatial, prompt: the streams; a prompt of None goes through the image's weights (all but the modulation's).
        attention: what attention's names begin with.
        context_pre_only: the prompt is dropped after attention. Its queries are projected all the same (they are part
            of the fused weight), but ask nothing.
        answers_first: masked tokens of the prompt get zeros from attention, and the answers of the others, in their
            order, are those of the first tokens, as diffusers' Mochi has it (which moves them where a mask has holes).
        second: an attention of the image alone, on the norm of the first: what its names begin with; None for none.
        gate: what is applied to a gate's chunk.
        ff_linears: names of a feed-forward's linears.
    """

    spatial: StreamShape
    prompt: StreamShape | None
    attention: str = "attn"
    context_pre_only: bool = False
    answers_first: bool = False
    second: str | None = None
    gate: Literal["identity", "tanh"] = "identity"
    ff_linears: tuple[str, str] = ("net.0.proj", "net.2")


@dataclass(frozen=True, kw_only=True)
class SingleStreamShape(BlockShape):
    """A single block: both streams go through the same weights, with attention and an MLP side by side.

    Attributes:
        features: of both streams.
        hidden: of the MLP, of one of both halves where it is gated.
        norm_name: of the norm.
        attention: what the names of q, k, v and their norms begin with.
        mlp: name of the linear into the MLP.
        packed: name of one linear without bias of q, k, v and a gated MLP's in, in the place of theirs; None for none.
        out: name of the linear of [heads | MLP].
        joined: diffusers' block takes and gives both streams as one, so that what it adds to each is judged by itself.
    """

    features: int
    hidden: int
    norm_name: str = "norm.norm"
    attention: str = "attn"
    mlp: str = "proj_mlp"
    packed: str | None = None
    out: str = "proj_out"
    joined: bool = False


class Chunks(Generic[Tensor]):
    """The modulation of one call of a block; a linear runs when the first of its chunks is asked for.

    Args:
        linears: of each modulation, its chunks' names and what makes them.
    """

    def __init__(self, linears: Sequence[tuple[tuple[str, ...], Callable[[], Sequence[Tensor]]]]) -> None:
        self._linears = linears
        self._made: dict[str, Tensor] = {}

    def of(self, stage: str) -> tuple[Any, Any, Any]:
        """Return shift, scale and gate of a stage such as "prompt.ff"; None for each that the model has not."""
        wanted = chunks(stage)
        for names, make in self._linears:
            if not self._made.keys() >= set(names) and set(names) & set(wanted):
                self._made |= zip(names, make(), strict=True)
        shift, scale, gate = (self._made.get(name) for name in wanted)
        return shift, scale, gate
