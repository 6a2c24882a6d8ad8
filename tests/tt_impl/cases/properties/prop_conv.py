"""Convolutions of images that differ from device to device, over strides, paddings, dilations and groups."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, spread

SIDES = st.sampled_from([(0, 0), (1, 1), (1, 2), (2, 0, 1, 1)])
PAIRS = st.sampled_from([(1, 1), (2, 2), (1, 2)])


def _images(t: Env, n: int, h: int, w: int, c: int) -> tuple[Any, list[Tensor]]:
    x, parts = spread(t, 1, 1, n * h * w, c)
    return t.ttnn.to_layout(x, t.ttnn.ROW_MAJOR_LAYOUT), [p.reshape(n, h, w, c).permute(0, 3, 1, 2) for p in parts]


def _last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(1, 1, -1, x.shape[1])


def _host(t: Env, value: Tensor | None) -> Any:
    return None if value is None else t.ttnn.from_torch(value, dtype=t.ttnn.bfloat16)


def _common(t: Env, n: int, c: int, o: int) -> dict[str, Any]:
    config = t.ttnn.Conv2dConfig(weights_dtype=t.ttnn.bfloat16)
    return dict(device=t.device, batch_size=n, in_channels=c, out_channels=o, conv_config=config)


def _framed(image: Tensor, padding: tuple) -> Tensor:
    top, bottom, left, right = padding if len(padding) == 4 else (padding[0], padding[0], padding[1], padding[1])
    return F.pad(image, (left, right, top, bottom))


@drawn(10, kernel=st.sampled_from([(1, 1), (3, 3), (2, 3)]), stride=PAIRS, padding=SIDES, dilation=PAIRS,
       groups=st.sampled_from([1, 2, 32]), bias=st.booleans())  # fmt: skip
def convolutions(
    t: Env, kernel: tuple, stride: tuple, padding: tuple, dilation: tuple, groups: int, bias: bool
) -> None:
    x, images = _images(t, 2, 9, 8, 32)
    weight, shift = t.rand(64, 32 // groups, *kernel, scale=0.2), t.rand(1, 1, 1, 64) if bias else None
    out = t.ttnn.conv2d(
        input_tensor=x, weight_tensor=_host(t, weight), bias_tensor=_host(t, shift), input_height=9, input_width=8,
        kernel_size=kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, **_common(t, 2, 32, 64),
    )  # fmt: skip
    flat = None if shift is None else shift.flatten()
    wanted = [F.conv2d(_framed(i, padding), weight, flat, stride, 0, dilation, groups) for i in images]
    t.check(out, [_last(w) for w in wanted], ulps=2)


@drawn(8, kernel=st.sampled_from([1, 3, 4]), stride=st.sampled_from([1, 2]), padding=st.sampled_from([0, 1, (2, 0)]),
       dilation=st.sampled_from([1, 2]), groups=st.sampled_from([1, 32]), bias=st.booleans())  # fmt: skip
def convolutions_of_lines(
    t: Env, kernel: int, stride: int, padding: int | tuple, dilation: int, groups: int, bias: bool
) -> None:
    x, parts = spread(t, 2, 1, 20, 32)
    x = t.ttnn.to_layout(x, t.ttnn.ROW_MAJOR_LAYOUT)
    weight, shift = t.rand(32, 32 // groups, kernel, scale=0.2), t.rand(1, 1, 1, 32) if bias else None
    out = t.ttnn.conv1d(
        input_tensor=x, weight_tensor=_host(t, weight), bias_tensor=_host(t, shift), input_length=20,
        kernel_size=kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, **_common(t, 2, 32, 32),
    )  # fmt: skip
    sides = (padding, padding) if isinstance(padding, int) else padding
    flat = None if shift is None else shift.flatten()
    wanted = [F.conv1d(F.pad(p[:, 0].mT, sides), weight, flat, stride, 0, dilation, groups).mT for p in parts]
    t.check(out, [w.reshape(1, 1, -1, 32) for w in wanted], ulps=2)


@drawn(10, kernel=st.sampled_from([(3, 3), (2, 2)]), stride=PAIRS, padding=st.sampled_from([(0, 0), (1, 1)]),
       more=st.booleans(), mirrored=st.booleans(), bias=st.booleans())  # fmt: skip
def transposed_convolutions(
    t: Env, kernel: tuple, stride: tuple, padding: tuple, more: bool, mirrored: bool, bias: bool
) -> None:
    """``mirrored``: the caller has turned the kernel around, and says so."""
    x, images = _images(t, 1, 6, 8, 32)
    weight, shift = t.rand(32, 64, *kernel, scale=0.2), t.rand(1, 1, 1, 64) if bias else None
    beyond = tuple(s - 1 for s in stride) if more else (0, 0)
    out = t.ttnn.conv_transpose2d(
        input_tensor=x, weight_tensor=_host(t, weight.flip(2, 3).contiguous() if mirrored else weight),
        bias_tensor=_host(t, shift), input_height=6, input_width=8, kernel_size=kernel, stride=stride,
        padding=padding, output_padding=beyond, mirror_kernel=not mirrored, **_common(t, 1, 32, 64),
    )  # fmt: skip
    flat = None if shift is None else shift.flatten()
    wanted = [F.conv_transpose2d(i, weight, flat, stride, padding, beyond) for i in images]
    t.check(out, [_last(w) for w in wanted], ulps=2)


def prepared_weights(t: Env) -> None:
    """Prepared once and used by two calls; what ttnn leaves room for behind the weights of groups is zero."""
    ttnn = t.ttnn
    for groups in (1, 2):
        weight, shift = t.rand(40, 32 // groups, 3, 3, scale=0.2), t.rand(1, 1, 1, 40)
        options = _common(t, 1, 32, 40) | dict(
            input_height=8, input_width=8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1),
            groups=groups,
        )  # fmt: skip
        told = dict(input_memory_config=ttnn.DRAM_MEMORY_CONFIG, input_layout=ttnn.ROW_MAJOR_LAYOUT, **options)
        told["input_dtype"] = ttnn.bfloat16
        held = ttnn.prepare_conv_weights(weight_tensor=_host(t, weight), weights_format="OIHW", has_bias=True, **told)
        rows = weight.permute(2, 3, 1, 0).reshape(1, 1, 288 // groups, 40)
        t.check(held, F.pad(rows, (0, 0, 0, 288 - 288 // groups)))
        bias = ttnn.prepare_conv_bias(bias_tensor=_host(t, shift), **told)
        for _ in range(2):
            x, images = _images(t, 1, 8, 8, 32)
            out = ttnn.conv2d(input_tensor=x, weight_tensor=held, bias_tensor=bias, **options)
            wanted = [F.conv2d(i, weight, shift.flatten(), padding=1, groups=groups) for i in images]
            t.check(out, [_last(value) for value in wanted], ulps=2)


def prepared_transposed_weights(t: Env) -> None:
    """A mirrored kernel is told of when it is prepared, and not again; what the call hands back serves, too."""
    ttnn, weight, shift = t.ttnn, t.rand(32, 64, 3, 3, scale=0.2), t.rand(1, 1, 1, 64)
    options = _common(t, 1, 32, 64) | dict(
        input_height=8, input_width=8, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), output_padding=(1, 1),
        dilation=(1, 1), groups=1,
    )  # fmt: skip
    told = dict(input_memory_config=ttnn.DRAM_MEMORY_CONFIG, input_layout=ttnn.ROW_MAJOR_LAYOUT, **options)
    told["input_dtype"] = ttnn.bfloat16
    turned = _host(t, weight.flip(2, 3).contiguous())
    held = ttnn.prepare_conv_transpose2d_weights(
        weight_tensor=turned, weights_format="IOHW", has_bias=True, mirror_kernel=False, **told
    )
    del told["output_padding"]
    bias = ttnn.prepare_conv_transpose2d_bias(bias_tensor=_host(t, shift), **told)
    x, images = _images(t, 1, 8, 8, 32)
    wanted = [_last(F.conv_transpose2d(i, weight, shift.flatten(), 2, 1, 1)) for i in images]
    run = ttnn.conv_transpose2d
    t.check(run(input_tensor=x, weight_tensor=held, bias_tensor=bias, **options), wanted, ulps=2)
    first, (again, shift_again) = run(
        input_tensor=x, weight_tensor=turned, bias_tensor=_host(t, shift), mirror_kernel=False,
        return_weights_and_bias=True, **options,
    )  # fmt: skip
    t.check(first, wanted, ulps=2)
    t.check(run(input_tensor=x, weight_tensor=again, bias_tensor=shift_again, **options), wanted, ulps=2)


def repeated_borders(t: Env) -> None:
    """The configuration says what a line is padded with."""
    ttnn, weight = t.ttnn, t.rand(32, 32, 3, scale=0.2)
    x, parts = spread(t, 1, 1, 20, 32)
    options = _common(t, 1, 32, 32)
    options["conv_config"].padding_mode = ttnn.PaddingMode.Replicate
    out = ttnn.conv1d(
        input_tensor=ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT), weight_tensor=_host(t, weight), input_length=20,
        kernel_size=3, padding=1, **options,
    )  # fmt: skip
    wanted = [F.conv1d(F.pad(p[:, 0].mT, (1, 1), "replicate"), weight).mT.unsqueeze(0) for p in parts]
    t.check(out, wanted, ulps=2)


CASES = collect(globals())
