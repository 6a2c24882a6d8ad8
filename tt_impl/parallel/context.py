"""One cfg group as its program sees it: the submesh, which axis is sp and which tp, and how tensors get there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import ttnn

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from tt_impl.parallel.manager import CCLManager
from tt_impl.run import copies

DTYPES = {"fp32": ttnn.float32, "bf16": ttnn.bfloat16}
WEIGHTS = {"bf16": None, "bfp8_b": ttnn.bfloat8_b, "bfp4_b": ttnn.bfloat4_b}
"""Storage of linear layers' matrices by option; None is that of everything else."""


def filled(x: torch.Tensor) -> torch.Tensor:
    """Return the same tensor, or zeros in place of a meta tensor: for what ttnn lays out on the host."""
    return torch.zeros(x.shape, dtype=x.dtype) if x.is_meta else x


@dataclass
class Context:
    """Placement of everything on one submesh.

    Attributes:
        device: the submesh.
        tp_axis, ring_axis, ulysses_axis: mesh axes; ring and ulysses share one, or take both if tp is 1.
        sp_axis: the mesh axis of sp; None if it lies on both.
        sp, tp, ring, ulysses: the factors; sp = ring * ulysses.
        dtype: storage of activations and weights.
        chunks: rows of q and of k that attention over sp takes at a time, in place of the table's (``sdpa.py``).
    """

    device: ttnn.MeshDevice
    options: RunOptions

    def __post_init__(self) -> None:
        parallel = self.options.parallel
        self.dtype = DTYPES[self.options.dtype]
        self.shape = tuple(self.device.shape)
        self.chunks: tuple[int, int] | None = None
        self.sp = parallel.sp
        self.tp = parallel.tp
        self.ring = parallel.ring
        self.ulysses = parallel.ulysses
        self.tp_axis = parallel.tensor_parallel.mesh_axis
        self.ring_axis = parallel.ring_parallel.mesh_axis
        self.ulysses_axis = parallel.ulysses_parallel.mesh_axis
        self._both_axes = isinstance(parallel.sequence_parallel.mesh_axis, tuple)
        alone = 1 - self.tp_axis if self.tp > 1 else self.ring_axis
        self.sp_axis = None if self._both_axes else alone
        if self.ring > 1 and self.ulysses > 1 and not self._both_axes:
            raise UserError(
                f"ring {self.ring} x ulysses {self.ulysses} on one mesh axis has no TTNN collective; put them on two "
                "axes (sp over the whole mesh), or use ring or ulysses alone."
            )
        self.ccl = CCLManager(self.device, self.options.mesh, self.shape)
        self._reciprocals: dict[int, ttnn.Tensor] = {}
        config = partial(ttnn.init_device_compute_kernel_config, self.device.arch())
        low, high = ({"math_fidelity": level} for level in (ttnn.MathFidelity.HiFi2, ttnn.MathFidelity.HiFi4))
        self.linear_config = config(**low, math_approx_mode=True, fp32_dest_acc_en=True, packer_l1_acc=True)
        self.norm_config = config(**high, math_approx_mode=False, fp32_dest_acc_en=True, packer_l1_acc=False)
        self.sdpa_config = config(**low, math_approx_mode=False, fp32_dest_acc_en=False)

    def put_weight(self, x: torch.Tensor, **where: int | None) -> ttnn.Tensor:
        """Do as :meth:`put` with a linear layer's matrix, in the dtype of weights."""
        return self.put(x, dtype=WEIGHTS[self.options.weights_dtype] or self.dtype, **where)

    def put(
        self,
        x: torch.Tensor,
        *,
        sp_dim: int | None = None,
        tp_dim: int | None = None,
        dtype: ttnn.DataType | None = None,
        layout: ttnn.Layout = ttnn.TILE_LAYOUT,
        padding: float = 0.0,
    ) -> ttnn.Tensor:
        """Put a host tensor on every device: cut along ``sp_dim`` over sp and ``tp_dim`` over tp, else replicated.

        ``padding`` fills up its last tiles.

        A meta tensor is allocated like any other and holds nothing.
        """
        dtype = dtype or self.dtype
        dims: list[int | None] = [None, None]
        if sp_dim is not None and self._both_axes:
            dims = [sp_dim, sp_dim]
        elif sp_dim is not None and self.sp > 1:
            dims[1 - self.tp_axis if self.tp > 1 else self.ring_axis] = sp_dim
        if self.tp > 1:
            dims[self.tp_axis] = tp_dim
        if x.is_meta:
            return ttnn.empty(self._local_shape(x, dims), dtype=dtype, layout=layout, device=self.device)
        return ttnn.to_device(self._host(x, dims, sp_dim, dtype, layout, padding), self.device)

    def host(self, x: torch.Tensor, *, tp_dim: int | None = None) -> ttnn.Tensor:
        """Make a host tensor that stays there, row by row, cut along ``tp_dim`` over tp or the same for all devices."""
        dims: list[int | None] = [None, None]
        if self.tp > 1:
            dims[self.tp_axis] = tp_dim
        return self._host(filled(x), dims, None, self.dtype, ttnn.ROW_MAJOR_LAYOUT)

    def _host(
        self,
        x: torch.Tensor,
        dims: list[int | None],
        sp_dim: int | None,
        dtype: ttnn.DataType,
        layout: ttnn.Layout,
        padding: float = 0.0,
    ) -> ttnn.Tensor:
        """Lay a host tensor out as the devices will hold it, cut along ``dims`` of (axis 0, axis 1)."""
        if sp_dim is not None and self._both_axes:
            mapper = ttnn.ShardTensorToMesh(self.device, dim=sp_dim)
            x = self._in_device_order(x, sp_dim)
        else:
            mapper = ttnn.ShardTensor2dMesh(self.device, mesh_shape=self.shape, dims=tuple(dims))
        # Told a device, from_torch sends what it gets and lays out tiles there; here they are made on the host.
        return ttnn.from_torch(x, dtype=dtype, layout=layout, mesh_mapper=mapper, pad_value=padding)

    def put_rows(self, x: torch.Tensor, dtype: ttnn.DataType, *, tp_dim: int | None = None) -> ttnn.Tensor:
        """Put a host tensor on every device row by row instead of in tiles: ids, and tables they pick from.

        It is whole on every device, or cut along ``tp_dim`` over tp.
        """
        dims: list[int | None] = [None, None]
        if self.tp > 1:
            dims[self.tp_axis] = tp_dim
        if x.is_meta:
            shape = self._local_shape(x, dims)
            rows = ttnn.ROW_MAJOR_LAYOUT
            return ttnn.empty(shape, dtype=dtype, layout=rows, device=self.device)
        mapper = ttnn.ShardTensor2dMesh(self.device, mesh_shape=self.shape, dims=tuple(dims))
        host = ttnn.from_torch(x, dtype=dtype, mesh_mapper=mapper)
        return ttnn.to_device(host, self.device)

    def reciprocals(self, count: int) -> ttnn.Tensor:
        """1, 1/2, ... 1/count in every core's L1, which norms of that many features multiply by; made once."""
        if count not in self._reciprocals:
            grid = self.device.compute_with_storage_grid_size()
            last = ttnn.CoreCoord(grid.x - 1, grid.y - 1)
            cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), last)})
            self._reciprocals[count] = ttnn.create_layer_norm_reciprocals(self.device, cores, count)
        return self._reciprocals[count]

    def _local_shape(self, x: torch.Tensor, dims: list[int | None]) -> list[int]:
        """Shape of one device's shard of ``x``, cut along ``dims`` of (axis 0, axis 1)."""
        shape = list(x.shape)
        for dim, parts in zip(dims, self.shape, strict=True):
            if dim is not None:
                if shape[dim] % parts:
                    raise ValueError(f"dim {dim} of {tuple(x.shape)} does not divide into {parts} shards")
                shape[dim] //= parts
        return shape

    def get(self, x: ttnn.Tensor, *, sp_dim: int, tp_dim: int | None = None) -> torch.Tensor:
        """Fetch a tensor cut over sp, and over tp (replicated where ``tp_dim`` is None), whole to the host."""
        if self._both_axes:
            whole = ttnn.to_torch(x, mesh_composer=ttnn.ConcatMeshToTensor(self.device, dim=sp_dim))
            return self._in_device_order(whole, sp_dim, back=True)
        dims = [0, 0]
        dims[1 - self.tp_axis if self.tp > 1 else self.ring_axis] = sp_dim
        if tp_dim is not None:
            dims[self.tp_axis] = tp_dim
        composer = ttnn.ConcatMesh2dToTensor(self.device, mesh_shape=self.shape, dims=tuple(dims))
        return ttnn.to_torch(x, mesh_composer=composer)[: x.shape[0]]

    def get_equal(self, x: ttnn.Tensor) -> torch.Tensor:
        """Fetch a tensor that every device holds whole, device 0's copy where kernels round each otherwise.

        Raises:
            InvariantError: two copies differ, by more than rounding where kernels round (:mod:`tt_impl.run.copies`).
        """
        whole = ttnn.to_torch(x, mesh_composer=ttnn.ConcatMeshToTensor(self.device, dim=0))
        rounds = self.options.backend in ("ttnn-sim", "ttnn-device") or self.options.numerics != "off"
        return copies.first(whole.split(x.shape[0]), rounds=rounds)

    def _in_device_order(self, x: torch.Tensor, dim: int, *, back: bool = False) -> torch.Tensor:
        """Shards in the order of ranks (row-major) where ring lies on axis 1: shard r * ulysses + u sits at (u, r)."""
        if self.ring_axis == 0:
            return x
        grid = (self.shape[0], self.shape[1]) if back else (self.shape[1], self.shape[0])
        return x.unflatten(dim, (*grid, -1)).transpose(dim, dim + 1).flatten(dim, dim + 2)
