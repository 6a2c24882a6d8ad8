"""Faults of the device backend in CogVideoX: two streams of one block, positions of video tokens, patches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parity.cases import BlockShape, Case, Layout, ModelShape, make_case
from parity.faults.around import Patch, at, instead
from parity.faults.registry import fault
from parity.faults.ttnn.device import ttnn


def video_block(layout: Layout, text: int = 29) -> Case:
    """Make a case of a block with 175 video tokens, a box of 5 x 5 x 7."""
    return make_case("ttnn_block", "cogvideox_5b_tiny64_block", layout, BlockShape(175, text), dtype="bf16")


def _whole(model: str, frames: int) -> Case:
    shape = ModelShape((frames, 6, 10), 29, 1)
    return make_case("ttnn_transformer", f"cogvideox_{model}_tiny64", Layout("n300", "sp2"), shape, dtype="bf16")


SP2 = video_block(Layout("n300", "sp2"))
USP22 = video_block(Layout("bh-qb", "sp4", "usp", 2, 2))  # two axes of equal size: a wrong axis fits everywhere
USP24 = video_block(Layout("t3k", "sp8", "usp", 2, 4))  # 3 heads on 4 devices: one padded head
TABLE = _whole("2b", 3)
ROTARY = _whole("5b", 3)
DEEP = _whole("15", 4)


streams = partial(fault, "streams", case=SP2)
positions = partial(fault, "positions", case=SP2)
patches = partial(fault, "patches", case=ROTARY)


@streams(
    "The video gets the prompt's shift, scale and gate, and the prompt the video's.",
    "the six chunks of the modulation read prompt first",
)
@at("tt_impl.layers.modulation:Modulation.__call__")
def modulation_of_the_other_stream(original: Callable, self: Any, time: Any) -> list:
    six = original(self, time)
    return [*six[3:], *six[:3]]


@streams("Shift and scale of every norm change places.", "SD3.5's last norm has them in the other order")
@at("tt_impl.layers.norm:DistributedLayerNorm.modulated")
def modulation_scale_first(original: Callable, self: Any, x: Any, *by: Any) -> Any:
    return original(self, x, *((factor, shift) for shift, factor in by))


@streams(
    "The block's norms have no weight and no bias.", "the norm of SD3.5, which has none, used for CogVideoX", case=USP22
)
@at("tt_impl.layers.norm:DistributedLayerNorm.__init__")
def norms_without_affine(original: Callable, self: Any, ctx: Any, *, affine: Any, **more: Any) -> None:
    original(self, ctx, **more)


@streams(
    "Queries and keys are normalised over the features of all heads instead of those of one.",
    "Wan's norm, which stands before the heads are split",
)
@at("tt_impl.layers.attention:StreamQKV.of_shards")
def heads_normalised_together(original: Callable, self: Any, x: Any, rotary: Any) -> Any:
    with instead(self, "_norms", [partial(_over_all_heads, norm) for norm in self._norms]):
        return original(self, x, rotary)


def _over_all_heads(norm: Any, y: Any) -> Any:
    batch, heads, rows, features = y.shape
    wide = ttnn.layer_norm(ttnn.experimental.nlp_concat_heads(y), epsilon=norm._eps)
    narrow = ttnn.permute(ttnn.reshape(wide, (batch, rows, heads, features)), (0, 2, 1, 3))
    return ttnn.add(ttnn.multiply(narrow, norm._affine["weight"]), norm._affine["bias"])


@positions(
    "The prompt's queries and keys are turned as the video's are.",
    "one rotation of the concatenated streams",
    says="devices that should hold the same tensor differ in it",
)
def rotary_on_the_prompt() -> Patch:
    tables = []

    @at("tt_impl.layers.attention:StreamQKV.of_shards")
    def project(original: Callable, self: Any, x: Any, rotary: Any) -> Any:
        if rotary is not None:
            tables[:] = rotary
            return original(self, x, rotary)
        cos, sin, turn = tables
        return original(self, x, (cos[:, :, : x.shape[2]], sin[:, :, : x.shape[2]], turn))

    return project()


@positions(
    "Rows turn what columns should, and the other way round.", "(time, width, height) instead of (time, height, width)"
)
@at("tt_impl.models.cogvideox.embeddings:rotary_angles")
def rotary_axes_swapped(original: Callable, positions: Any, features: Any) -> Any:
    frames, rows, columns = positions
    return original((frames, columns, rows), features)


@positions("Time turns three eighths of a head and the width a quarter.", "the features dealt to the axes from the end")
@at("tt_impl.models.cogvideox.embeddings:rotary_angles")
def rotary_features_dealt_from_the_end(original: Callable, positions: Any, features: Any) -> Any:
    return original(positions, features[::-1])


@positions(
    "Every device turns its tokens by the positions of its neighbour's.",
    "tables dealt from the second shard on",
    case=USP24,
)
@at("tt_impl.models.cogvideox.embeddings:pair_rotary")
def rotary_of_the_next_shard(original: Callable, ctx: Any, angles: Any, *, split: bool) -> Any:
    import torch

    return original(ctx, torch.roll(angles, -(len(angles) // ctx.sp), 0), split=split)


@positions("2b's table has height before width.", "the order of 5b's rotation used for the table", case=TABLE)
@at("tt_impl.models.cogvideox.embeddings:rotary_angles")
def table_axes_swapped(original: Callable, positions: Any, features: Any) -> Any:
    frames, rows, columns = positions
    return original((frames, columns, rows), features)


@positions("Every device adds the first shard's positions.", "positions computed from the local row", case=TABLE)
@at("tt_impl.models.cogvideox.embeddings:put_tokens")
def table_of_local_rows(original: Callable, ctx: Any, x: Any, *, tp_dim: int | None = None) -> Any:
    import torch

    if tp_dim is not None:
        first = x[:, : -(-x.shape[1] // (32 * ctx.sp)) * 32]
        x = torch.cat([first] * ctx.sp, 1)
    return original(ctx, x, tp_dim=tp_dim)


@patches(
    "Patches come with the channels last, as pixels lie.", "rows and columns of a patch flattened before its channels"
)
@at("tt_impl.layers.embeddings:put_tokens")
def patches_channels_last(original: Callable, ctx: Any, x: Any, **more: Any) -> Any:
    return original(ctx, x.unflatten(2, (-1, 2, 2)).movedim(2, -1).flatten(2), **more)


@patches(
    "1.5's patches have their frames outermost.", "channels and frames of a deep patch in the latent's order", case=DEEP
)
@at("tt_impl.layers.embeddings:put_tokens")
def patches_frames_outermost(original: Callable, ctx: Any, x: Any, **more: Any) -> Any:
    return original(ctx, x.unflatten(2, (-1, 2, 2, 2)).transpose(2, 3).flatten(2), **more)


@patches(
    "Rows and columns within a patch change places in the answer.",
    "patches taken apart by another order than they were made",
)
@at("tt_impl.models.cogvideox.embeddings:CogVideoXPatches.unpatchify")
def unpatchify_transposed(original: Callable, self: Any, out: Any, grid: Any) -> Any:
    return original(self, out.unflatten(2, (-1, 2, 2)).transpose(-1, -2).flatten(2), grid)
