"""What a case gets: an open mesh, its shadow, and short ways to make tensors and compare them with torch."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Dims = tuple[int | None, int | None]
REPLICATED: Dims = (None, None)
ULP = {"bfloat16": 2.0**-8, "float32": 1e-5, "bfloat8_b": 2.0**-6, "bfloat4_b": 2.0**-2}

STORED = {"FLOAT32": torch.float32} | dict.fromkeys(("BFLOAT16", "BFLOAT8_B", "BFLOAT4_B"), torch.bfloat16)
"""What values of a dtype are kept as; integers as int64."""


class Env:
    """``put`` rounds to bfloat16 before it hands out, so expectations are made from what the device holds."""

    def __init__(self, mesh: Any, shadow: Any) -> None:
        import ttnn

        self.ttnn = ttnn
        self.mesh = mesh
        self.device = mesh.device
        self.shape = mesh.spec.shape
        self.shadow = shadow
        self.linear = ttnn.Topology.Linear
        self.random = torch.Generator().manual_seed(0)
        self.drawn: Counter[str] = Counter()
        """Operations by how often properties called them."""

    def run(self, case: Callable[[Env], None]) -> None:
        """Run a case; what it emulated is counted, no call more than once."""
        case(self)
        counts = self.shadow.emulated.items()
        wrong = {name: count for name, count in counts if not 0 < count <= self.shadow.calls.get(name, count)}
        assert not wrong, wrong

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """What is called while it is open counts as called by a property."""
        before = self.shadow.calls.copy()
        yield
        self.drawn += self.shadow.calls - before

    @property
    def n(self) -> int:
        return self.mesh.spec.num_devices

    def rand(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal values that bfloat16 stores exactly."""
        return (torch.randn(*shape, generator=self.random) * scale).bfloat16().float()

    def put(self, value: Tensor, dims: Dims = REPLICATED, dtype: str = "bfloat16", layout: str = "TILE") -> Any:
        """``value`` on the mesh, cut along ``dims`` of (axis 0, axis 1)."""
        ttnn = self.ttnn
        return ttnn.from_torch(
            value,
            dtype=getattr(ttnn, dtype),
            layout=getattr(ttnn, f"{layout}_LAYOUT"),
            device=self.device,
            mesh_mapper=ttnn.ShardTensor2dMesh(self.device, mesh_shape=self.shape, dims=dims),
        )

    def integers(self, value: Tensor, dtype: str = "int32") -> Any:
        """``value`` on every device, in rows, as operations want places and tables."""
        return self.put(value.to(torch.int32), dtype=dtype, layout="ROW_MAJOR")

    def token(self, value: Tensor, first: int = 0) -> Any:
        """[1, B, Hkv, E] on every device, a user on a core from column ``first`` on, as the caches want it."""
        ttnn = self.ttnn
        ends = ttnn.CoreCoord(first, 0), ttnn.CoreCoord(first + value.shape[1] - 1, 0)
        cores = ttnn.CoreRangeSet({ttnn.CoreRange(*ends)})
        spec = ttnn.ShardSpec(cores, (32, value.shape[-1]), ttnn.ShardOrientation.ROW_MAJOR)
        config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)
        return ttnn.to_memory_config(self.put(value), config)

    def sdpa_config(self, rows: int = 0) -> Any:
        """Chunks of a tile, on all cores but the last ``rows`` of them."""
        x, y = self.mesh.grid
        return self.ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=(x, y - rows), q_chunk_size=32, k_chunk_size=32, exp_approx_mode=False
        )

    def empty(self, *shape: int, fill: float | None = None) -> Any:
        kwargs = dict(dtype=self.ttnn.bfloat16, layout=self.ttnn.TILE_LAYOUT, device=self.device)
        return self.ttnn.empty(shape, **kwargs) if fill is None else self.ttnn.full(shape, fill, **kwargs)

    def shards(self, value: Tensor, dims: Dims) -> list[Tensor]:
        """``value`` as ``put`` cuts it, per device, row-major."""
        rows = [value] * self.shape[0] if dims[0] is None else list(value.chunk(self.shape[0], dims[0]))
        return [
            part
            for row in rows
            for part in ([row] * self.shape[1] if dims[1] is None else row.chunk(self.shape[1], dims[1]))
        ]

    def whole(self, tensor: Any, dims: tuple[int, int]) -> Tensor:
        """The parts of a device tensor joined along ``dims`` of (axis 0, axis 1), read by ttnn itself."""
        ttnn = self.ttnn
        composer = ttnn.ConcatMesh2dToTensor(self.device, mesh_shape=self.shape, dims=dims)
        return ttnn.to_torch(tensor, mesh_composer=composer).float()

    def check(self, tensor: Any, expected: Tensor | Sequence[Tensor], ulps: float = 1.0) -> None:
        """Value of every device against ``expected`` (one for all, or a list), within units of rounding."""
        assert tensor is not None
        values = self.shadow.values(tensor)
        stored = {value.dtype for value in self.shadow.store.read(tensor, "check()").stored}
        assert stored == {STORED.get(tensor.dtype.name, torch.int64)}, stored
        wanted = [expected] * len(values) if isinstance(expected, Tensor) else list(expected)
        assert len(values) == len(wanted)
        tolerance = ULP.get(str(tensor.dtype.name).lower(), 0.0) * ulps
        for device, (value, want) in enumerate(zip(values, wanted, strict=True)):
            want = want.float() if want.is_floating_point() else want
            scale = want.nan_to_num().abs().max().item() if want.is_floating_point() and want.numel() else 0.0
            message = f"device {device}: "
            torch.testing.assert_close(
                value.to(want.dtype),
                want,
                rtol=tolerance,
                atol=tolerance * scale * 1e-2,
                equal_nan=True,
                msg=lambda text, m=message: m + text,
            )

    def semaphores(self, count: int) -> list[Any]:
        ttnn = self.ttnn
        x, y = self.mesh.grid
        cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(x - 1, y - 1))})
        return [ttnn.create_global_semaphore(self.device, cores, 0) for _ in range(count)]

    def groups(self, axis: int) -> list[list[int]]:
        """Devices along a mesh axis, written out independently of the shadow."""
        rows, columns = self.shape
        if axis == 1:
            return [[r * columns + c for c in range(columns)] for r in range(rows)]
        return [[r * columns + c for r in range(rows)] for c in range(columns)]


def raises(kind: type[Exception] | tuple, action: Callable[[], Any], *parts: str) -> None:
    """``action`` must raise ``kind`` with all ``parts`` in its message, which is one sentence."""
    try:
        action()
    except kind as error:
        text = str(error)
        missing = [part for part in parts if part not in text]
        assert not missing, f"{missing} not in '{text}'"
        assert text.endswith(".") and "\n" not in text, f"not a sentence: {text!r}"
    else:
        raise AssertionError(f"nothing was raised, expected {parts}")


def packed(x: Tensor, bits: int) -> Tensor:
    """[..., W] as a device packs block floats: sixteen neighbours of a row share the largest exponent; 7 bits,
    ties away from zero, of which bfp4_b keeps the upper 3. Zeros fill the last block up."""
    blocks = F.pad(x.double(), (0, -x.shape[-1] % 16)).unflatten(-1, (-1, 16))
    step = 2.0 ** (torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True))) - 6)
    steps = torch.floor(blocks.abs() / step + 0.5).clamp(max=127)
    kept = (steps - steps % 2 ** (7 - bits)) * step * blocks.sign()
    return torch.where(step > 0, kept, 0.0).flatten(-2)[..., : x.shape[-1]].float()


def collect(namespace: dict[str, Any]) -> dict[str, Callable[[Env], None]]:
    """The cases of a module: its public functions whose one argument is called ``t``."""
    return {name: function for name, function in namespace.items() if not name.startswith("_") and _is_case(function)}


def _is_case(function: Any) -> bool:
    return inspect.isfunction(function) and list(inspect.signature(function).parameters) == ["t"]
