"""Layers of the decoders on a 2x4 mesh against torch, and the blocks of a convolution of videos."""

from __future__ import annotations

import pytest

from tests.tt_impl.worker import Case, Outcome, cases_of, run_cases
from tt_impl.run.launch import Worker

LAYERS = cases_of("pixels")
WIDTHS = ((16, 384, 27), (384, 384, 27), (384, 768, 3), (384, 192, 9), (192, 192, 27), (96, 96, 27), (96, 3, 27),
          (512, 512, 27), (256, 512, 27), (128, 128, 27), (128, 3, 27))  # fmt: skip
"""Channels in and out and positions of the kernel, of the published decoders of Wan and CogVideoX."""


@pytest.fixture(scope="module")
def outcomes(worker: Worker) -> dict[Case, Outcome]:
    return run_cases(worker, LAYERS, "t3k").outcomes


@pytest.mark.parametrize("case", LAYERS, ids="-".join)
def test_layer(case: Case, outcomes: dict[Case, Outcome]) -> None:
    error = outcomes[case].error
    assert error is None, error


@pytest.mark.parametrize(("channels", "out_channels", "taps"), WIDTHS)
def test_blocks_of_published_widths(channels: int, out_channels: int, taps: int) -> None:
    """They divide the channels, fit in memory and registers, and are no needlessly small ones."""
    from tt_impl.layers.conv3d import DST_TILES, L1_BYTES, blocks

    lanes_in, lanes_out = (-(-size // 32) * 32 for size in (channels, out_channels))
    c_in, c_out = blocks(lanes_in, lanes_out, taps)
    assert lanes_in % c_in == lanes_out % c_out == c_in % 32 == c_out % 32 == 0
    assert c_out <= 32 * DST_TILES or c_out % (32 * DST_TILES) == 0
    assert 2 * taps * c_in * (c_out + 128) < L1_BYTES
    assert (c_in, c_out) == (lanes_in, lanes_out) or 2 * taps * c_in * (c_out + 128) > L1_BYTES / 2
