"""Integers hold what their width holds, typecasts say how they round, scalars are rounded before they are used."""

from __future__ import annotations

from typing import Any

import torch

from tests.tt_impl.env import Env, collect, raises


def _put(t: Env, dtype: str, *numbers: float) -> Any:
    value = torch.zeros(32, 32, dtype=torch.int32 if "int" in dtype else torch.float32)
    value[0, : len(numbers)] = torch.tensor(numbers).to(value.dtype)
    return t.put(value, dtype=dtype)


def _first(t: Env, tensor: Any, count: int) -> list[float]:
    return t.shadow.values(tensor)[0][0, :count].tolist()


def sums_wrap_in_32_bits(t: Env) -> None:
    ttnn = t.ttnn
    low = ttnn.subtract(_put(t, "uint32", 0, 5), _put(t, "uint32", 3, 3))
    assert _first(t, low, 2) == [2**32 - 3, 2]
    assert ttnn.to_torch(ttnn.get_device_tensors(low)[0])[0, 0].to(torch.int64) % 2**32 == 2**32 - 3
    assert _first(t, ttnn.gt(low, _put(t, "uint32", 1000, 1000)), 2) == [1, 0]
    high = _put(t, "int32", 2**31 - 5)
    total = ttnn.add(high, high)
    assert _first(t, total, 1) == [-10]
    assert _first(t, ttnn.lt(total, _put(t, "int32", 0)), 1) == [1]
    assert _first(t, ttnn.multiply(_put(t, "int32", 2**31 - 1), _put(t, "int32", 2)), 1) == [-2]


def typecasts_of_floats(t: Env) -> None:
    """Towards zero, saturating in 32 bits, wrapping in 8; to the nearest in 16, unless from block floats."""
    ttnn = t.ttnn
    wanted = {
        "int32": ([2.5, -2.5, 300.0, -3.0, 3e9, -3e9], [2, -2, 300, -3, -(2**31), -(2**31)]),
        "uint32": ([2.5, -2.5, 300.0, -3.0, 3e9, 5e9], [2, 0, 300, 0, 3_000_000_000, 2**32 - 1]),
        "uint16": ([2.5, -2.5, 300.0, 2.25, 7e4], [3, 0, 300, 2, 65535]),
        "uint8": ([2.5, -2.5, 300.0, -3.0, 512.0], [2, 254, 44, 253, 0]),
    }
    for dtype, (numbers, whole) in wanted.items():
        out = ttnn.typecast(_put(t, "float32", *numbers), getattr(ttnn, dtype))
        assert t.shadow.values(out)[0].dtype == torch.int64
        assert _first(t, out, len(whole)) == whole, dtype
    assert _first(t, ttnn.experimental.typecast(_put(t, "bfloat16", 2.5, -2.5), ttnn.int32), 2) == [2, -2]
    block = ttnn.typecast(_put(t, "bfloat8_b", 2.5, 1.75), ttnn.uint16)
    assert _first(t, block, 2) == [2, 1]


def bits_of_another_dtype(t: Env) -> None:
    """Each pair of dtypes that ttnn takes, there and back: signs, infinity, and a NaN of its own."""
    ttnn = t.ttnn
    numbers = (1.0, -2.5, 0.0, float("inf"), -float("inf"), float("nan"))
    for dtype, whole, bits in (
        ("bfloat16", "uint16", (0x3F80, 0xC020, 0, 0x7F80, 0xFF80, 0x7FC0)),
        ("float32", "uint32", (0x3F800000, 0xC0200000, 0, 0x7F800000, 0xFF800000, 0x7FC00000)),
    ):
        found = ttnn.bitcast(_put(t, dtype, *numbers), getattr(ttnn, whole))
        assert _first(t, found, 6) == list(bits), dtype
        back = t.shadow.values(ttnn.bitcast(found, getattr(ttnn, dtype)))[0][0, :6]
        assert back[:5].tolist() == list(numbers[:5])
        assert back[5].isnan()
    signed = ttnn.bitcast(_put(t, "uint32", 2**32 - 1, 7), ttnn.int32)
    assert _first(t, signed, 2) == [-1, 7]
    assert _first(t, ttnn.bitcast(signed, ttnn.uint32), 2) == [2**32 - 1, 7]


def typecasts_of_integers(t: Env) -> None:
    ttnn = t.ttnn
    numbers = _put(t, "int32", 300, -3, 70000, -1)
    assert _first(t, ttnn.typecast(numbers, ttnn.uint8), 4) == [44, 253, 112, 255]
    assert _first(t, ttnn.typecast(numbers, ttnn.uint16), 4) == [300, 0, 65535, 0]
    assert _first(t, ttnn.typecast(numbers, ttnn.uint32), 4) == [300, 2**32 - 3, 70000, 2**32 - 1]
    back = ttnn.typecast(ttnn.typecast(numbers, ttnn.uint32), ttnn.int32)
    assert _first(t, back, 4) == [300, -3, 70000, -1]


def chains_stay_in_range(t: Env) -> None:
    """What went through a narrow dtype has lost what the dtype cannot hold."""
    ttnn = t.ttnn
    narrow = ttnn.typecast(ttnn.typecast(_put(t, "bfloat16", 300.0), ttnn.uint8), ttnn.bfloat16)
    assert _first(t, narrow, 1) == [44.0]
    unsigned = ttnn.typecast(ttnn.typecast(_put(t, "bfloat16", -3.0), ttnn.uint32), ttnn.bfloat16)
    assert _first(t, unsigned, 1) == [0.0]


def scalars_are_rounded(t: Env) -> None:
    """0.05 is no bfloat16; a binary operation takes the nearest one, and a float32 tensor the number itself."""
    ttnn = t.ttnn
    near = torch.tensor(0.05).bfloat16().float().item()
    a = _put(t, "bfloat16", 0.05)
    assert _first(t, ttnn.subtract(a, 0.05), 1) == [0.0]
    assert _first(t, a - 0.05, 1) == [0.0]
    assert _first(t, ttnn.eq(a, 0.05), 1) == [1.0]
    product = ttnn.multiply(_put(t, "bfloat16", 3.0), 0.1)
    assert _first(t, product, 1) == [(torch.tensor(0.1).bfloat16().float() * 3).bfloat16().item()]
    assert _first(t, ttnn.multiply(0.1, _put(t, "bfloat16", 3.0)), 1) == _first(t, product, 1)
    assert _first(t, ttnn.multiply(_put(t, "float32", 1.0), 0.05), 1) == [torch.tensor(0.05).item()] != [near]
    assert _first(t, ttnn.add(_put(t, "int32", 5), 2), 1) == [7]
    assert _first(t, ttnn.multiply(_put(t, "bfloat8_b", 1.0), 0.05, dtype=ttnn.float32), 1) == [near]


def floats_beside_integers(t: Env) -> None:
    """Integers become float32 before an operation whose result is; where it is of integers no fraction is dropped."""
    from tt_impl.mock.storage.errors import RefusedOption

    ttnn, numbers = t.ttnn, (7, -3, 5, 2)
    x, whole = torch.tensor(numbers).float(), _put(t, "int32", *numbers)
    for out, wanted in (
        (ttnn.multiply(whole, 2.5), x * 2.5),
        (ttnn.multiply(2.5, whole), x * 2.5),
        (ttnn.div(whole, 2.5), x / 2.5),
        (ttnn.div(whole, 2), x / 2),
        (ttnn.div_no_nan(whole, 2.5), x / 2.5),
        (ttnn.floor_div(whole, 2.5), torch.floor(x / 2.5)),
        (ttnn.remainder(whole, 2.5), torch.remainder(x, 2.5)),
        (ttnn.fmod(whole, 2.5), torch.fmod(x, 2.5)),
        (ttnn.multiply(_put(t, "uint32", 7, 2**31), 2.5), torch.tensor([17.5, 5.0 * 2**30])),
    ):
        assert out.dtype == ttnn.float32
        assert _first(t, out, len(wanted)) == wanted.tolist()
    assert _first(t, ttnn.remainder(whole, 3), 4) == [1, 0, 2, 2]
    assert _first(t, ttnn.maximum(whole, 3.0), 4) == [7, 3, 5, 3]
    refused = ttnn.maximum, ttnn.minimum, ttnn.multiply_
    for operation in refused:
        raises(RefusedOption, lambda op=operation: op(_put(t, "int32", 3), 2.5), operation.__name__, "2.5", "INT32")
    raises(RefusedOption, lambda: ttnn.eq(_put(t, "uint16", 2), 2.5), "ttnn.eq", "2.5", "UINT16")


def factors_beside_integers(t: Env) -> None:
    """A factor of 1 or 2 keeps the digits of integers that float32 has not; another one is refused."""
    from tt_impl.mock.storage.errors import RefusedOption

    ttnn, large = t.ttnn, (4097, 46339)
    zero, x = _put(t, "int32", 1, 0), _put(t, "int32", *large)
    assert _first(t, ttnn.addcmul(zero, x, x), 2) == [4097**2 + 1, 46339**2]
    assert _first(t, ttnn.addcmul(zero, x, zero, value=-2), 2) == [1 - 2 * 4097, 0]
    assert _first(t, ttnn.addcmul(zero, zero, zero, value=float(2**24 + 1)), 1) == [2**24 + 1]  # a float32
    raises(RefusedOption, lambda: ttnn.addcmul(zero, x, x, value=0.5), "ttnn.addcmul", "value=0.5")
    raises(RefusedOption, lambda: ttnn.addalpha(x, x, 2.0), "ttnn.addalpha", "integers")
    raises(RefusedOption, lambda: ttnn.subalpha(x, x, 2.0), "ttnn.subalpha", "integers")


def fast_division_by_zero_is_infinite(t: Env) -> None:
    """ttnn documents no value; its own tests want one that is not finite, as a product with 1 / 0 gives it."""
    ttnn, a, b = t.ttnn, _put(t, "bfloat16", 1.0, 2.0, 0.0), _put(t, "bfloat16", 4.0, -4.0, -4.0)
    for rounding in (None, "floor"):
        quotients = ttnn.div(b, a, fast_and_approximate_mode=True, rounding_mode=rounding)
        assert _first(t, quotients, 3) == [4.0, -2.0, -float("inf")]
    assert _first(t, ttnn.div(b, 0.0, fast_and_approximate_mode=True), 2) == [float("inf"), -float("inf")]
    assert _first(t, ttnn.div(a, b, fast_and_approximate_mode=True), 2) == [0.25, -0.5]


def shifts_by_more_bits_than_there_are(t: Env) -> None:
    """As ttnn documents them: 0 for INT32, by 31 bits for UINT32."""
    ttnn = t.ttnn
    shifted = ttnn.bitwise_right_shift(_put(t, "int32", -5, 5, -5), _put(t, "int32", 40, 40, 31))
    assert _first(t, shifted, 3) == [0, 0, -1]
    shifted = ttnn.bitwise_right_shift(_put(t, "uint32", 2**32 - 5, 5), _put(t, "uint32", 40, 40))
    assert _first(t, shifted, 2) == [1, 0]


def block_floats_at_their_ends(t: Env) -> None:
    """Of numbers below 2**-120 nothing stays; beside what is no number a block is what ttnn's host makes of it."""
    from tt_impl.mock.storage.dtypes import round_to

    ttnn = t.ttnn
    tiny = torch.tensor([2.0**-120, 2.0**-121, 2.0**-122, 0.0])[:, None].expand(4, 16).contiguous()
    for value in (tiny, tiny.bfloat16(), tiny.double()):
        kept = round_to(value, ttnn.bfloat8_b)
        assert kept.dtype == torch.bfloat16 and torch.equal(kept, tiny.bfloat16() * torch.tensor([[1], [0], [0], [0]]))
    value = torch.linspace(1, 2, 32).expand(32, 32).contiguous()
    value[1, 3] = float("inf")
    for dtype in (ttnn.bfloat8_b, ttnn.bfloat4_b):
        host = ttnn.to_torch(ttnn.from_torch(value, dtype=dtype, layout=ttnn.TILE_LAYOUT))
        assert torch.equal(round_to(value, dtype).float(), host.float()) and not torch.equal(host.float(), value)
    for value in (torch.tensor(3.0), torch.zeros(0, 16)):  # a number, and nothing
        assert torch.equal(round_to(value, ttnn.bfloat16), value.bfloat16())
    assert round_to(torch.zeros(0, 16), ttnn.bfloat8_b).shape == (0, 16)


def what_does_not_fit_is_refused(t: Env) -> None:
    from tt_impl.mock.storage.errors import ShadowError

    ttnn = t.ttnn
    small = _put(t, "uint16", 65535)
    raises(ShadowError, lambda: ttnn.add(small, small), "131070", "UINT16")
    raises(ShadowError, lambda: ttnn.typecast(_put(t, "float32", float("nan")), ttnn.int32), "NaN")


CASES = collect(globals())
