"""Feed-forwards with two halves in one linear, cut over tp, against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from refsim.base.options import RunOptions
from refsim.files.checkpoint import ShapeWeights
from refsim.layers.feedforward import activated
from refsim.layers.linear import PackedColumns, take_part
from refsim.parallel.padding import padded_features
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor


class _Weights(ShapeWeights):
    """Two parts of 40 and 24 lanes; each number says which lane it stands in."""

    def take(self, name, shape, *ranges):
        super().take(name, shape, *ranges)
        whole = torch.arange(float(shape[0])).view(-1, *[1] * (len(shape) - 1)).expand(shape)
        part = whole[tuple(slice(*span) if span else slice(None) for span in ranges)]
        wanted = [stop - start for start, stop in ranges]
        missing = [n - have for n, have in zip(wanted, part.shape, strict=False)]
        return F.pad(part, [n for each in missing[::-1] for n in (0, each)])


@pytest.mark.parametrize("member", range(4))
def test_each_part_is_cut_by_itself_and_padded_with_zeros(member):
    device = Device(RunOptions.of(mesh="bh-qb-1x4", parallel="tp4"), member)
    parts = [(features, padded_features(features, 4)) for features in (40, 24)]
    packed = PackedColumns(_Weights(torch.float32), device, "in", in_features=32, parts=parts)
    for (first, last), weight, bias in zip(((0, 40), (40, 64)), packed.weights, packed.biases, strict=True):
        start = min(first + 32 * member, last)
        stop = min(start + 32, last)
        wanted = F.pad(torch.arange(float(start), float(stop)), (0, 32 - (stop - start)))
        assert torch.equal(weight[:, 0], wanted)
        assert torch.equal(bias, wanted)
        columns = take_part(
            _Weights(torch.float32), "out", (8, 64), (first, last), (32 * member, 32 * member + 32), dim=1, other=(0, 8)
        )
        assert columns.shape == (8, 32)
        assert torch.equal(columns[:, stop - start :], torch.zeros(8, 32 - (stop - start)))


def test_which_half_gates():
    one, two = torch.randn(2, 3), torch.randn(2, 3)
    halves = [MeshTensor(one), MeshTensor(two)]
    assert torch.equal(activated(halves, "swiglu").local, one * F.silu(two))
    assert torch.equal(activated(halves, "swiglu_gate_first").local, two * F.silu(one))
    assert torch.equal(activated(halves[:1], "gelu_tanh").local, F.gelu(one, approximate="tanh"))
