"""What it costs to play a mesh: attention on N ranks beside one process that has the same cores.

    one process    torch's attention on whole tensors, all cores
    mesh           the same tensors by a scheme on ranks of refsim, which share those cores

Both are run in turn, one first in every other pair, after a pair that does not count; a ratio is the median over pairs,
since what else the machine does changes both. Time on the mesh is of the whole call: inputs are checked and handed to
the ranks, read and cut, the answer is gathered, handed back and checked.
Beside each time stands the error of its answer against float64, on some rows of every head, and the seconds of CPU that
it took: of this process, and for the mesh of its ranks too.

``refsim bench sim --ranks 8 --rows 16384 --heads 24 --dtype bf16``
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.api.attention import attention_options, attention_result
from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec
from refsim.base.options import RunOptions
from refsim.files.keys import Beside, Document
from refsim.runtime.host_memory import check_fits
from refsim.runtime.launch import Result
from refsim.runtime.ranks.pool import ForkServer

SCHEMES = ("ring", "ulysses")
WORST = 4.0
"""An answer is right if its error is no more than this many times that of torch's own attention in the storage dtype,
as in parity's cases of ``storage`` math."""
_JUDGED_ROWS = 16
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Setup:
    """One comparison: q, k and v of (1, heads, rows, head_dim) in ``dtype``, cut over ``ranks``.

    Raises:
        UserError: a number that is too small.
    """

    fewest_ranks: ClassVar[int] = 2

    ranks: int = 8
    rows: int = 2048
    heads: int = 8
    head_dim: int = 64
    dtype: str = "bf16"
    math: str = "storage"
    repetitions: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rows", "heads", "head_dim", "repetitions"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is 1 or more, not {getattr(self, name)}.")
        if not self.fewest_ranks <= self.ranks <= 1024:
            raise UserError(f"ranks is a number from {self.fewest_ranks} to 1024, not {self.ranks}.")

    def options(self, scheme: str) -> RunOptions:
        """Return the options of a run on that many devices; ``UserError`` if this machine cannot hold it."""
        options = attention_options(scheme, mesh=row_of_devices(self.ranks), dtype=self.dtype, math=self.math)
        numbers = self.rows * self.heads * self.head_dim
        needed = {"q, k and v": 3 * numbers * options.storage.itemsize, "answers": 2 * numbers * 4}
        check_fits(f"attention of {self.rows} rows", needed, instead="choose fewer --rows or --heads")
        return options

    def inputs(self) -> dict[str, Tensor]:
        """Draw ``q``, ``k`` and ``v``, normally distributed, rounded to the dtype."""
        g = torch.Generator().manual_seed(self.seed)
        shape = (1, self.heads, self.rows, self.head_dim)
        return {name: torch.randn(shape, generator=g).to(_DTYPES[self.dtype]) for name in "qkv"}


def row_of_devices(ranks: int) -> MeshSpec:
    """Return a 1-D mesh of any size."""
    return MeshSpec(f"1x{ranks}", "a row of devices", "wormhole_b0", (1, ranks), (0, 1))


@dataclass
class Machine:
    """What times are of: processor, cores, threads of one process, memory, versions, day."""

    arch: str
    cores: int
    threads: int
    memory_gib: int
    python: str
    torch: str
    measured: str


@dataclass
class Ratio:
    """The median over rounds, least and most."""

    ratio: float
    range: list[float]

    @classmethod
    def of(cls, rounds: Iterable[tuple[float, float]]) -> Ratio:
        """Compare what is over and what is under, round by round."""
        ratios = [over / under for over, under in rounds]
        return cls(statistics.median(ratios), [min(ratios), max(ratios)])


@dataclass
class Simulated:
    """One scheme.

    Attributes:
        ratio: the mesh's seconds over those of one process, the median over pairs.
        cpu_seconds: Of this process; of the mesh with its ranks.
    """

    scheme: str
    setup: Beside[Setup]
    seconds: dict[str, float]
    ratio: float
    ratio_range: list[float]
    cpu_seconds: dict[str, float]
    cpu_ratio: float
    rel_rmse: dict[str, float]
    right: bool
    hazards: int
    sent_bytes: int
    load_before: float


@dataclass
class Simulations(Document):
    """Every scheme that was asked for."""

    machine: Machine
    records: list[Simulated]


def measure(setup: Setup, scheme: str, *, say: Callable[[str], None] = print) -> Simulated:
    """Return the record of one scheme; ``seconds`` are medians, a ratio is the median over pairs.

    Raises:
        UserError: this machine cannot hold it.
        RankFailure: a rank died, raised or hung.
    """
    options = setup.options(scheme)
    tensors = setup.inputs()
    load = os.getloadavg()[0]
    pairs = []
    cpu_pairs = []  # seconds of one process and of the mesh
    for number in range(setup.repetitions + 1):
        if number % 2:
            alone, alone_s, alone_cpu_s = one_process(tensors)
        result, mesh_s, mesh_cpu_s = on_the_mesh(tensors, options)
        if not number % 2:
            alone, alone_s, alone_cpu_s = one_process(tensors)
        if number:
            pairs.append((alone_s, mesh_s))
            cpu_pairs.append((alone_cpu_s, mesh_cpu_s))
            say(f"{scheme}, pair {number}: one process {alone_s:.3f} s, mesh {mesh_s:.3f} s")
    rows, expected = exact(tensors)
    answers = {"one_process": alone, "mesh": result.tensors["out"]}
    errors = {name: error(answer[:, :, rows], expected) for name, answer in answers.items()}
    ratio = Ratio.of((mesh, one) for one, mesh in pairs)
    return Simulated(
        scheme=scheme,
        setup=setup,
        seconds=dict(zip(answers, medians(pairs), strict=True)),
        ratio=ratio.ratio,
        ratio_range=ratio.range,
        cpu_seconds=dict(zip(answers, medians(cpu_pairs), strict=True)),
        cpu_ratio=Ratio.of((mesh, one) for one, mesh in cpu_pairs).ratio,
        rel_rmse=errors,
        right=errors["mesh"] <= WORST * errors["one_process"],
        hazards=len(result.hazards),
        sent_bytes=sum(result.bytes_by_collective.values()),
        load_before=load,
    )


def medians(rounds: Iterable[Sequence[float]]) -> list[float]:
    """Return the median of each column."""
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def cpu_s() -> float:
    """Return the seconds of CPU that the ranks have used so far."""
    import psutil

    ranks = psutil.Process(ForkServer.get()._process.pid).children()
    tasks = (task for rank in ranks for task in Path(f"/proc/{rank.pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def machine() -> Machine:
    """Describe this machine."""
    import psutil

    memory_gib = round(psutil.virtual_memory().total / 2**30)
    processor = (platform.machine(), psutil.cpu_count(), torch.get_num_threads())
    return Machine(*processor, memory_gib, platform.python_version(), torch.__version__, utc_date())


def utc_date() -> str:
    """Return the day in UTC, as records have it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def elapsed_s(result: Result) -> float:
    """Return the seconds from the first rank that ``began`` to the last that ``ended``, as values of a run say it."""
    return max(value["ended"] for value in result.values) - min(value["began"] for value in result.values)


def text(record: Simulated) -> str:
    """Return a record in a line for people."""
    low, high = record.ratio_range
    setup = record.setup
    return (
        f"{record.scheme:8} {setup.ranks} ranks, {setup.rows} x {setup.heads} x {setup.head_dim} {setup.dtype}, "
        f"{setup.math} math: {record.seconds['mesh']:.3f} s, {record.ratio:.2f} times one process ({low:.2f} to "
        f"{high:.2f}), {record.cpu_ratio:.2f} times its CPU seconds; error {record.rel_rmse['mesh']:.1e}, of one "
        f"process {record.rel_rmse['one_process']:.1e}{'' if record.right else ': WRONG'}"
    )


def one_process(tensors: dict[str, Tensor]) -> tuple[Tensor, float, float]:
    """Run torch's attention on whole tensors while the ranks wait; return its answer, its wall and CPU seconds."""
    started = time.monotonic()
    cpu = time.process_time()
    out = F.scaled_dot_product_attention(tensors["q"], tensors["k"], tensors["v"])
    return out, time.monotonic() - started, time.process_time() - cpu


def on_the_mesh(tensors: dict[str, Tensor], options: RunOptions) -> tuple[Result, float, float]:
    """Run the same on ranks, from the call to the answer; return the result, its wall and CPU seconds."""
    of_ranks = cpu_s()
    started = time.monotonic()
    cpu = time.process_time()
    result = attention_result(tensors, options=options)
    wall_s = time.monotonic() - started
    own_cpu_s = time.process_time() - cpu  # before the ranks are asked for theirs, which takes a while
    return result, wall_s, own_cpu_s + cpu_s() - of_ranks


def exact(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the numbers of some rows, and the answer to them in float64, (1, heads, rows, head_dim)."""
    q, k, v = (tensors[name] for name in "qkv")
    rows = torch.linspace(0, q.shape[2] - 1, min(_JUDGED_ROWS, q.shape[2])).long()
    heads = [
        F.scaled_dot_product_attention(*(x.double() for x in (q[:, [h]][:, :, rows], k[:, [h]], v[:, [h]])))
        for h in range(q.shape[1])
    ]  # one at a time: float64 is large
    return rows, torch.cat(heads, 1)


def error(answer: Tensor, expected: Tensor) -> float:
    """Return the RMSE in units of the standard deviation of the exact answer."""
    return float((answer.double() - expected).square().mean().sqrt() / expected.std())
