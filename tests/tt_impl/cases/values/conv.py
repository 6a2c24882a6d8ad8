"""Convolution of images and videos, and the exchange of their borders, against torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env, collect


def conv2d(t: Env) -> None:
    """Weights from the host, and again those that ttnn prepared and handed back."""
    ttnn, x = t.ttnn, t.rand(1, 32, 16, 16)
    weight, bias = t.rand(64, 32, 3, 3, scale=0.1), t.rand(1, 1, 1, 64)
    wanted = F.conv2d(x, weight, bias.flatten(), stride=2, padding=1).permute(0, 2, 3, 1).reshape(1, 1, 64, 64)
    options = dict(
        device=t.device, in_channels=32, out_channels=64, batch_size=1, input_height=16, input_width=16,
        kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), conv_config=ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16),
    )  # fmt: skip
    image = t.put(x.permute(0, 2, 3, 1).reshape(1, 1, 256, 32), layout="ROW_MAJOR")
    host = [ttnn.from_torch(value, dtype=ttnn.bfloat16) for value in (weight, bias)]
    out, (height, width), prepared = ttnn.conv2d(
        input_tensor=image, weight_tensor=host[0], bias_tensor=host[1], return_output_dim=True,
        return_weights_and_bias=True, **options,
    )  # fmt: skip
    assert (height, width) == (8, 8)
    t.check(out, wanted)
    again = ttnn.conv2d(input_tensor=image, weight_tensor=prepared[0], bias_tensor=prepared[1], **options)
    t.check(again, wanted)


def conv2d_cut_weights(t: Env) -> None:
    """Output channels cut over axis 1: every device convolves with its own host shard of the weight."""
    ttnn, x, weight = t.ttnn, t.rand(1, 32, 8, 8), t.rand(128, 32, 1, 1, scale=0.1)
    mapper = ttnn.ShardTensor2dMesh(t.device, mesh_shape=t.shape, dims=(None, 0))
    out = ttnn.conv2d(
        input_tensor=t.put(x.permute(0, 2, 3, 1).reshape(1, 1, 64, 32), layout="ROW_MAJOR"),
        weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16, mesh_mapper=mapper),
        device=t.device, in_channels=32, out_channels=32, batch_size=1, input_height=8, input_width=8,
        kernel_size=(1, 1), conv_config=ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16),
    )  # fmt: skip
    wanted = F.conv2d(x, weight).permute(0, 2, 3, 1).reshape(1, 1, 64, 128)
    t.check(out, t.shards(torch.as_tensor(wanted), (None, 3)))


def filled_up_on_the_host(t: Env) -> None:
    """What is to be in L1 is filled up to whole tiles on the host; the rows that zeros give stay until the next one."""
    x, weight, bias = t.rand(1, 5, 7, 512), t.rand(1024, 512, 1, 1, scale=0.1), t.rand(1, 1, 1, 1024)
    ttnn, rest = t.ttnn, {"device": t.device, "batch_size": 1, "input_height": 5, "input_width": 7}
    weight_on_host, bias_on_host = (ttnn.from_torch(y, dtype=ttnn.bfloat16) for y in (weight, bias))
    image = ttnn.from_torch(x, dtype=ttnn.bfloat16, memory_config=ttnn.L1_MEMORY_CONFIG)
    out = ttnn.conv2d(
        input_tensor=image, weight_tensor=weight_on_host, bias_tensor=bias_on_host, in_channels=512, out_channels=1024,
        kernel_size=(1, 1), **rest,
    )  # fmt: skip
    wanted = torch.nn.functional.pad(x.reshape(1, 1, 35, 512), (0, 0, 0, 29)) @ weight.reshape(1024, 512).T + bias
    t.check(out, wanted)
    back = t.rand(32, 1024, 3, 3, scale=0.1)
    again = ttnn.conv2d(
        input_tensor=ttnn.to_layout(out, ttnn.ROW_MAJOR_LAYOUT), weight_tensor=ttnn.from_torch(back, ttnn.bfloat16),
        in_channels=1024, out_channels=32, kernel_size=(3, 3), padding=(1, 1), **rest,
    )  # fmt: skip
    picture = wanted[:, :, :35].bfloat16().float().reshape(1, 5, 7, 1024).permute(0, 3, 1, 2)
    t.check(again, F.conv2d(picture, back, padding=1).permute(0, 2, 3, 1).reshape(1, 1, 35, 32))


def weights_of_fewer_channels(t: Env) -> None:
    """An image of three channels with zeros behind them, as a device wants it: its weight may have the three alone."""
    ttnn, x, weight = t.ttnn, t.rand(1, 3, 8, 8), t.rand(32, 3, 3, 3, scale=0.2)
    wide = F.pad(x, (0, 0, 0, 0, 0, 13)).permute(0, 2, 3, 1).reshape(1, 1, 64, 16)
    rest = dict(
        device=t.device, in_channels=16, out_channels=32, batch_size=1, input_height=8, input_width=8,
        kernel_size=(3, 3), padding=(1, 1), return_weights_and_bias=True,
    )  # fmt: skip
    image, of_three = t.put(wide, layout="ROW_MAJOR"), ttnn.from_torch(weight, dtype=ttnn.bfloat16)
    wanted = F.conv2d(x, weight, padding=1).permute(0, 2, 3, 1).reshape(1, 1, 64, 32)
    out, (prepared, _) = ttnn.conv2d(input_tensor=image, weight_tensor=of_three, **rest)
    t.check(out, wanted)
    again, _ = ttnn.conv2d(input_tensor=image, weight_tensor=prepared, **rest)
    t.check(again, wanted)


def no_groups(t: Env) -> None:
    """``groups=0`` stands for one."""
    x, weight = t.rand(1, 32, 4, 4), t.rand(32, 32, 3, 3, scale=0.1)
    out = t.ttnn.conv2d(
        input_tensor=t.put(x.permute(0, 2, 3, 1).reshape(1, 1, 16, 32), layout="ROW_MAJOR"),
        weight_tensor=t.ttnn.from_torch(weight, dtype=t.ttnn.bfloat16), device=t.device, in_channels=32,
        out_channels=32, batch_size=1, input_height=4, input_width=4, kernel_size=(3, 3), padding=(1, 1), groups=0,
    )  # fmt: skip
    t.check(out, F.conv2d(x, weight, padding=1).permute(0, 2, 3, 1).reshape(1, 1, 16, 32))


def _last(x: Tensor) -> Tensor:
    """Channels last."""
    return x.movedim(1, -1).contiguous()


def _conv3d(t: Env, x: Any, weight: Tensor, bias: Tensor, block: int, **more: Any) -> Any:
    ttnn = t.ttnn
    config = ttnn.Conv3dConfig(
        weights_dtype=ttnn.bfloat16, output_layout=ttnn.ROW_MAJOR_LAYOUT, C_in_block=block,
        compute_with_storage_grid_size=t.device.compute_with_storage_grid_size(),
    )  # fmt: skip
    prepared = ttnn.experimental.prepare_conv3d_weights(
        weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16),
        C_in_block=block,
        device=t.device,
        groups=more.get("groups", 1),
    )
    return ttnn.experimental.conv3d(
        input_tensor=x, weight_tensor=prepared, bias_tensor=t.put(bias.reshape(1, -1)), device=t.device,
        config=config, dtype=ttnn.bfloat16, output_channels=weight.shape[0], kernel_size=weight.shape[2:], **more,
    )  # fmt: skip


def conv3d(t: Env) -> None:
    """Rows of the video cut over axis 0, columns over axis 1; channels in one block and in two."""
    x, bias = t.rand(1, 64, 3, 8, 16), t.rand(32)
    on_mesh = t.put(_last(x), (2, 3), layout="ROW_MAJOR")
    weight = t.rand(32, 64, 3, 1, 1, scale=0.1)
    wanted = t.shards(_last(F.conv3d(x, weight, bias)), (2, 3))
    for block in (64, 32):
        t.check(_conv3d(t, on_mesh, weight, bias, block), wanted)
    weight = t.rand(32, 64, 3, 3, 3, scale=0.1)
    whole = t.put(_last(x), layout="ROW_MAJOR")
    for mode in ("zeros", "replicate"):
        padded = F.pad(x, (1, 1, 1, 1, 0, 0), mode="constant" if mode == "zeros" else mode)
        wanted = _last(F.conv3d(padded, weight, bias, stride=(1, 2, 2)))
        out = _conv3d(t, whole, weight, bias, 32, padding=(0, 1, 1), stride=(1, 2, 2), padding_mode=mode)
        t.check(out, wanted)


def conv3d_without_a_config(t: Env) -> None:
    """All channels are one block."""
    ttnn = t.ttnn
    x, weight, bias = t.rand(1, 64, 4, 6, 7), t.rand(32, 64, 3, 2, 3, scale=0.1), t.rand(32)
    prepared = ttnn.experimental.prepare_conv3d_weights(
        weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16), C_in_block=0, device=t.device
    )
    out = ttnn.experimental.conv3d(
        input_tensor=t.put(_last(x), layout="ROW_MAJOR"), weight_tensor=prepared, bias_tensor=t.put(bias[None]),
        device=t.device, dtype=ttnn.bfloat16, output_channels=32, kernel_size=(3, 2, 3),
    )  # fmt: skip
    t.check(out, _last(F.conv3d(x, weight, bias)))


def conv3d_of_sound(t: Env) -> None:
    """One pixel of many frames, with padding, stride and dilation of frames."""
    x, weight, bias = t.rand(1, 64, 40, 1, 1), t.rand(32, 64, 7, 1, 1, scale=0.1), t.rand(32)
    on_mesh = t.put(_last(x), layout="ROW_MAJOR")
    for more in ({}, {"padding": (3, 0, 0)}, {"stride": (2, 1, 1)}, {"dilation": (3, 1, 1)}):
        t.check(_conv3d(t, on_mesh, weight, bias, 64, **more), _last(F.conv3d(x, weight, bias, **more)))


def neighbor_pad(t: Env) -> None:
    """Rows over axis 0, columns over axis 1, and both at once, with corners; what is convolved then has no seam."""
    pad = t.ttnn.experimental.neighbor_pad_async
    x = t.rand(1, 2, 8, 16, 32)
    on_mesh = t.put(x, (2, 3), layout="ROW_MAJOR")
    rows, columns = x.shape[2] // t.shape[0], x.shape[3] // t.shape[1]
    channels_first = x.movedim(-1, 1)
    for mode in ("zeros", "replicate"):
        around = F.pad(channels_first, (2, 1, 1, 1, 0, 0), mode="constant" if mode == "zeros" else mode)
        around = around.movedim(1, -1)
        wanted = [
            around[:, :, r * rows : (r + 1) * rows + 2, c * columns : (c + 1) * columns + 3]
            for r in range(t.shape[0])
            for c in range(t.shape[1])
        ]
        out = pad(on_mesh, [2, 3], [1, 2], [1, 1], mode, [0, 1], t.semaphores(2), t.semaphores(1),
                  num_links=[1, 1], topology=t.linear)  # fmt: skip
        t.check(out, wanted)
        out = pad(on_mesh, [2], [1], [1], mode, [0], t.semaphores(1), t.semaphores(1), num_links=[1], topology=t.linear)
        t.check(out, [part[:, :, :, 2:-1] for part in wanted])


def neighbor_pad_of_padded_video(t: Env) -> None:
    """Rows 13 and later of 16 are padding, and two frames of zeros go before the first; the buffer holds it all."""
    ttnn, pad = t.ttnn, t.ttnn.experimental.neighbor_pad_async
    x = t.rand(1, 2, 16, 16, 32)
    rows, columns = x.shape[2] // t.shape[0], x.shape[3] // t.shape[1]
    inside = F.pad(x[:, :, :13], (0, 0, 0, 0, 0, 3))
    around = F.pad(inside, (0, 0, 2, 1, 1, 1, 2, 0))
    wanted = [
        around[:, :, r * rows : (r + 1) * rows + 2, c * columns : (c + 1) * columns + 3]
        for r in range(t.shape[0])
        for c in range(t.shape[1])
    ]
    shape = tuple(wanted[0].shape)
    buffer = ttnn.zeros(shape, dtype=ttnn.bfloat16, layout=ttnn.ROW_MAJOR_LAYOUT, device=t.device)
    out = pad(
        t.put(x, (2, 3), layout="ROW_MAJOR"), [2, 3], [1, 2], [1, 1], "zeros", [0, 1], t.semaphores(2),
        t.semaphores(1), num_links=[1, 1], topology=t.linear, persistent_output_buffer=buffer, logical_h=13,
        t_front_pad=2,
    )  # fmt: skip
    t.check(out, wanted)
    t.check(buffer, wanted)


def slice_reshard(t: Env) -> None:
    """Frames 3 to 27 of 32, cut anew: what one device held ends on another."""
    x = t.rand(32, 4, 4, 32)
    out = t.ttnn.experimental.slice_reshard_async(
        t.put(x, (None, 0), layout="ROW_MAJOR"), 0, 3, 24, 1, t.semaphores(1)[0], t.semaphores(1)[0], num_links=1,
        topology=t.linear,
    )  # fmt: skip
    t.check(out, t.shards(x[3:27], (None, 0)))


def grouped_conv3d(t: Env) -> None:
    x, weight, bias = t.rand(1, 64, 3, 8, 8), t.rand(64, 32, 3, 3, 3, scale=0.1), t.rand(64)
    wanted = _last(F.conv3d(x, weight, bias, padding=(0, 1, 1), groups=2))
    out = _conv3d(t, t.put(_last(x), layout="ROW_MAJOR"), weight, bias, 32, padding=(0, 1, 1), groups=2)
    t.check(out, wanted)


def few_channels_of_videos(t: Env) -> None:
    """Weights of the host keep their three channels where the input has them filled up to a tile."""
    ttnn, x, weight = t.ttnn, t.rand(2, 3, 2, 6, 6), t.rand(32, 3, 2, 3, 3)
    x_NDHWC = F.pad(_last(x), (0, 29))
    out = ttnn.experimental.conv3d(
        input_tensor=t.put(x_NDHWC, layout="ROW_MAJOR"), weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16),
        device=t.device, dtype=ttnn.bfloat16, output_channels=32, kernel_size=(2, 3, 3), stride=(2, 3, 3),
        padding=(0, 0, 0), padding_mode="zeros", groups=1,
    )  # fmt: skip
    t.check(out, _last(F.conv3d(x, weight, stride=(2, 3, 3))))


def narrow_weights(t: Env) -> None:
    """A host weight is used as the configuration says to keep it."""
    ttnn, x, weight = t.ttnn, t.rand(1, 32, 8, 8), torch.randn(64, 32, 1, 1, generator=t.random)
    for dtype in ("bfloat16", "bfloat8_b"):
        out = ttnn.conv2d(
            input_tensor=t.put(x.permute(0, 2, 3, 1).reshape(1, 1, 64, 32), layout="ROW_MAJOR"),
            weight_tensor=ttnn.from_torch(weight, dtype=ttnn.float32),
            device=t.device, in_channels=32, out_channels=64, batch_size=1, input_height=8, input_width=8,
            kernel_size=(1, 1), conv_config=ttnn.Conv2dConfig(weights_dtype=getattr(ttnn, dtype)),
            dtype=ttnn.float32,
        )  # fmt: skip
        held = t.shadow.values(t.put(weight.reshape(64, 32).T.contiguous(), dtype=dtype))[0]
        t.check(out, (x.flatten(2).mT @ held).reshape(1, 1, 64, 64), ulps=4)


def replicated_border(t: Env) -> None:
    """What an image is padded with is part of the configuration; a fused activation too."""
    ttnn, x, weight = t.ttnn, t.rand(1, 32, 8, 8), t.rand(32, 32, 3, 3, scale=0.1)
    config = ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16, activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU))
    config.padding_mode = type(config.padding_mode).Replicate
    out = ttnn.conv2d(
        input_tensor=t.put(x.permute(0, 2, 3, 1).reshape(1, 1, 64, 32), layout="ROW_MAJOR"),
        weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16), device=t.device, in_channels=32, out_channels=32,
        batch_size=1, input_height=8, input_width=8, kernel_size=(3, 3), padding=(1, 1), conv_config=config,
    )  # fmt: skip
    wanted = F.silu(F.conv2d(F.pad(x, (1, 1, 1, 1), "replicate"), weight))
    t.check(out, wanted.permute(0, 2, 3, 1).reshape(1, 1, 64, 32))


def transposed_between_its_edges(t: Env) -> None:
    """A transposed convolution whose image goes on with its edges is a plain one of the turned kernel, by groups."""
    ttnn, groups = t.ttnn, 2
    x, weight = t.rand(1, 32, 6, 5), t.rand(32, 16, 3, 3, scale=0.2)
    out = ttnn.conv_transpose2d(
        input_tensor=t.put(x.permute(0, 2, 3, 1), layout="ROW_MAJOR"),
        weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16),
        in_channels=32, out_channels=32, device=t.device, batch_size=1, input_height=6, input_width=5,
        kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), output_padding=(1, 0), groups=groups,
        conv_config=ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16, padding_mode=ttnn.PaddingMode.Replicate),
        dtype=ttnn.bfloat16,
    )  # fmt: skip
    image = torch.zeros(1, 32, 11, 9)
    image[:, :, ::2, ::2] = x
    kernel = torch.cat([part.transpose(0, 1) for part in weight.chunk(groups)]).flip(2, 3)
    y = F.conv2d(F.pad(image, (1, 1, 1, 2), "replicate"), kernel, groups=groups)
    t.check(out, y.permute(0, 2, 3, 1).reshape(1, 1, -1, 32))


CASES = collect(globals())
