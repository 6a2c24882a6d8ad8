"""What a suite's tests look like: values compared with torch, options, markers, a skip."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import ttnn


@pytest.fixture(scope="module", autouse=True)
def of_the_module():
    yield
    Path("put_away").touch()


def on(device, value, **more):
    return ttnn.from_torch(value, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device, **more)


def pcc(a, b):
    return torch.corrcoef(torch.stack([a.float().flatten(), b.float().flatten()]))[0, 1].item()


@pytest.mark.parametrize("width", [32, 64, 96, 128, 160, 192])
@pytest.mark.parametrize("height", [32, 64])
def test_add(device, height, width):
    a, b = torch.randn(height, width), torch.randn(height, width)
    assert pcc(ttnn.to_torch(ttnn.add(on(device, a), on(device, b))), a + b) > 0.9999


@pytest.mark.parametrize("device_params", [{"l1_small_size": 8192}], indirect=True)
def test_matmul(device):
    a, b = torch.randn(64, 96), torch.randn(96, 32)
    assert pcc(ttnn.to_torch(on(device, a) @ on(device, b)), a @ b) > 0.999


def test_wrong_value(device):
    a = torch.randn(64, 64)
    assert pcc(ttnn.to_torch(ttnn.neg(on(device, a))), a) > 0.99


def test_refused_by_ttnn(device):
    ttnn.matmul(on(device, torch.randn(32, 64)), on(device, torch.randn(32, 64)))


def test_ttnn_refuses_as_expected(device):
    with pytest.raises(RuntimeError, match="must be equal"):
        ttnn.matmul(on(device, torch.randn(32, 64)), on(device, torch.randn(32, 64)))


def test_no_such_operation(device):
    ttnn.an_operation_of_another_version(on(device, torch.randn(32, 32)))


def test_no_such_file():
    open("weights.safetensors")


def test_without_a_device():
    assert ttnn.to_torch(ttnn.from_torch(torch.ones(2, 2))).sum() == 4


def test_on_the_other_architecture(device, arch_blackhole):
    raise AssertionError


@pytest.mark.needs_grid(99, 99)
def test_more_cores(device):
    raise AssertionError


@pytest.mark.xfail(reason="known", strict=True)
def test_known_to_fail(device):
    assert ttnn.to_torch(on(device, torch.ones(32, 32))).sum() == 0


class TestModule:
    """Tensors of a fixture with a wider scope are used by several tests."""

    @pytest.fixture(scope="class")
    def shared(self):
        opened = ttnn.CreateDevice(device_id=0)
        yield on(opened, torch.full((32, 32), 2.0))
        ttnn.close_device(opened)

    @pytest.mark.parametrize("times", [1, 2])
    def test_shared(self, shared, times):
        assert ttnn.to_torch(ttnn.multiply(shared, times)).sum() == 2048 * times
