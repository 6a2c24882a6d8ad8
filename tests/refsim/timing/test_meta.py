"""What calls give on meta tensors, told without torch: as torch gives it of real ones."""

import pytest
import torch
import torch.nn.functional as F

from refsim.timing.read.meta import Quick

CALLS = {
    "elementwise": lambda x, y, i: (x * y, y - x.mT, x.mT + 1, F.gelu(y.mT), F.logsigmoid(x.mT.square()), 2.0**x),
    "broadcast": lambda x, y, i: (i[:, None] * i, x[:, :1] + y[0, 0], x.mT[:, :1] * y, torch.tanh(x.mT)),
    "clamped": lambda x, y, i: (
        x.clamp(-1, 1),
        x.mT.clamp(max=0.5),
        y.clamp_min(1e-12),
        i.clamp(1, 2),
        i.clamp(max=1.5),
    ),
    "of integers": lambda x, y, i: (i // 3, i % 2, i / 3, i * 0.5, i + i[0], -i),
    "in place": lambda x, y, i: (x.lerp_(x * 2, torch.sigmoid(x)), x.sub_(y.float())),
    "joined": lambda x, y, i: (torch.cat([x.mT, x], 1), torch.cat([x, y]), torch.stack([x.mT, x], -1)),
    "reduced": lambda x, y, i: (x.mean(-1, keepdim=True), x.mT.mean((0, 1), keepdim=True), x.mean(1)),
    "normed": lambda x, y, i: (
        F.normalize(x.mT, dim=1),
        x.sum([1], True),
        y.sum((0, 2), True),
        i.sum(0, True),
        x.sum(1),
    ),
    "masked attention": lambda x, y, i: (F.scaled_dot_product_attention(x, x, x[:, :, :3], x > 0.5),),
    "products": lambda x, y, i: (F.linear(x.mT, x[0]), torch.outer(x[0, 0], i), F.layer_norm(x.mT, (4,))),
    "numbers": lambda x, y, i: (torch.arange(0, 9, 2, device=i.device), torch.linspace(0, 1, 7, device=i.device)),
}


@pytest.mark.parametrize("call", CALLS)
def test_as_torch_gives_it_of_real_tensors(call):
    real = torch.rand(2, 4, 4), torch.rand(2, 4, 4).bfloat16(), torch.arange(4)
    expected = CALLS[call](*(x.clone() for x in real))
    with torch.inference_mode(), Quick():
        answers = CALLS[call](*(x.to("meta") for x in real))
    assert {x.device.type for x in answers} == {"meta"}
    assert [(x.shape, x.stride(), x.dtype) for x in answers] == [(x.shape, x.stride(), x.dtype) for x in expected]
