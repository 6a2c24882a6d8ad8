"""One denoising step of a full-size model on a simulated mesh, on the machine at hand.

    weights    random, in the published architecture, written once as sharded bf16 safetensors
    ranks      one process per device; every rank maps the same files and reads its slices, so the weights lie in
               memory once (page cache) however many ranks share them
    measured   seconds of the step, on the clock and of the processors, and the peak over time of the summed
               proportional set size (PSS) of all ranks; with ``--check`` beside diffusers' own step, in turn

``refsim bench full-size sd35-large --mesh t3k --parallel cfg2_sp2_tp2 --out reports``
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from benchmarks.sim import cpu_s, medians, utc_date
from refsim import api
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files import output
from refsim.files.keys import Beside, Document, Loose, Sometimes, as_json
from refsim.files.tables import as_markdown
from refsim.models.registry import latent, published, spec_of
from refsim.models.spec import Published

_SHARD_BYTES = 2 << 30
_STEM = "diffusion_pytorch_model"
MIB = 1 << 20


def write_checkpoint(folder: Path, model: Published, *, layers: int | None, seed: int, say=print) -> int:
    """Write a diffusers folder of random bf16 weights in several files; return the weights' bytes.

    A folder written earlier for the same model, layers and seed is kept.
    """
    import diffusers

    config = model.config | ({"num_layers": layers} if layers else {})
    cls = getattr(diffusers, config["_class_name"])
    with torch.device("meta"):
        architecture = cls.from_config(config)
    state = {n: t for n, t in architecture.state_dict().items()}
    total = sum(t.numel() * 2 for t in state.values())
    stamp = {"seed": seed, "config": {k: list(v) if isinstance(v, tuple) else v for k, v in config.items()}}
    done = folder / "written.json"
    if done.exists() and json.loads(done.read_text()) == stamp:
        return total
    folder.mkdir(parents=True, exist_ok=True)
    architecture.save_config(folder)
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, t in state.items():
        if size + t.numel() * 2 > _SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = t
        size += t.numel() * 2
    where: dict[str, str] = {}
    g = torch.Generator().manual_seed(seed)
    for i, shard in enumerate(shards):
        say(f"writing weights, file {i + 1} of {len(shards)}")
        file = f"{_STEM}-{i + 1:05}-of-{len(shards):05}.safetensors"
        tensors = {name: _random(name, t.shape, g) for name, t in shard.items()}
        safetensors.torch.save_file(tensors, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, file)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / f"{_STEM}.safetensors.index.json").write_text(json.dumps(index, indent=1))
    done.write_text(json.dumps(stamp))
    return total


def _random(name: str, shape: torch.Size, g: torch.Generator) -> Tensor:
    x = torch.empty(shape, dtype=torch.bfloat16).uniform_(-1.0, 1.0, generator=g)
    if len(shape) == 1:
        return x.mul_(0.2).add_(1.0) if name.endswith("weight") else x.mul_(0.2)
    return x.mul_((3.0 / shape[1:].numel()) ** 0.5)


def make_inputs(model: Published, latent: tuple[int, ...], batch: int, seed: int) -> dict[str, Tensor]:
    """Return the diffusers forward arguments: latent (H, W) or (F, H, W), ``batch`` prompts, time step 500."""
    g = torch.Generator().manual_seed(seed + 1)
    shapes = spec_of(model).input_shapes(model, latent, batch)
    made = {n: torch.randn(shape, generator=g).bfloat16() for n, shape in shapes.items() if n != "timestep"}
    return made | {"timestep": torch.full((batch,), 500.0)}


class PssSampler:
    """Peak of the summed PSS of this process's descendants, asked every ``every_s`` seconds."""

    def __init__(self, every_s: float = 2.0) -> None:
        self.every_s = every_s
        self.peak = 0
        self.peak_anonymous = 0
        self.samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> PssSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        import psutil

        while not self._stop.wait(self.every_s):
            pss = 0
            anonymous = 0
            for process in psutil.Process().children(recursive=True):
                try:
                    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                        key, _, value = line.partition(":")
                        if key == "Pss":
                            pss += int(value.split()[0]) << 10
                        elif key == "Pss_Anon":
                            anonymous += int(value.split()[0]) << 10
                except OSError:
                    continue
            self.samples += 1
            self.peak = max(self.peak, pss)
            self.peak_anonymous = max(self.peak_anonymous, anonymous)


class Alone:
    """diffusers' model in this process, weights mapped from the same files, bf16."""

    def __init__(self, folder: Path) -> None:
        import diffusers

        config = json.loads((folder / "config.json").read_text())
        cls = getattr(diffusers, config["_class_name"])
        with torch.device("meta"):
            self._model = cls.from_config(config)
        state: dict[str, Tensor] = {}
        for path in sorted(folder.glob("*.safetensors")):
            state |= safetensors.torch.load_file(path)
        self._model.load_state_dict(state, strict=True, assign=True)
        self._model.eval()

    def run(self, inputs: dict[str, Tensor]) -> tuple[Tensor, float, float]:
        """Return the sample of a forward, and its seconds on the clock and of the processors."""
        began = time.monotonic()
        used = time.process_time()
        with torch.inference_mode():
            sample = self._model(**inputs, return_dict=False)[0]
        return sample, time.monotonic() - began, time.process_time() - used


def compare(ours: Tensor, theirs: Tensor, seconds: list[tuple[float, float]], alone: list[tuple[float, float]]) -> dict:
    """Return how far the mesh's sample is from diffusers', and what it took in units of that.

    Args:
        seconds, alone: of every round on the mesh and in one process, on the clock and of the processors.
    """
    from parity.measure.metrics import one_minus_pcc, rel_rmse

    ratios = [[mesh / one for mesh, one in zip(*pair, strict=True)] for pair in zip(seconds, alone, strict=True)]
    oracle_s, oracle_cpu_s = medians(alone)
    times_oracle, cpu_times_oracle = medians(ratios)
    a = ours.float()
    b = theirs.float()
    return {
        "one_minus_pcc": one_minus_pcc(a, b),
        "rel_rmse": rel_rmse(a, b),
        "oracle_s": oracle_s,
        "oracle_cpu_s": oracle_cpu_s,
        "times_oracle": times_oracle,
        "cpu_times_oracle": cpu_times_oracle,
    }


@contextmanager
def _progress(devices: int, say: Callable[[str], None]) -> Iterator[None]:
    """While open, ``say`` what rank 0 is doing every ten seconds."""
    from refsim.runtime.ranks.pool import pool

    board = pool(devices).board
    done = threading.Event()
    begun = time.monotonic()

    def tell() -> None:
        while not done.wait(10.0):
            say(f"{time.monotonic() - begun:6.0f} s, rank 0: {board.get(0)[1]}")

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        done.set()


@dataclass(frozen=True)
class Step:
    """The step to be measured.

    Attributes:
        model: name of a published model.
        size: of the latent, before patches.
        batch: 2 for both guidance branches.
        layers: fewer than published, if given.
        seed: of weights and inputs.
        checked: compare with diffusers on the same weights, round by round.
        rounds: of several, the first does not count, and seconds are medians of the others.
    """

    model: str
    size: tuple[int, ...]
    batch: int = 2
    layers: int | None = None
    seed: int = 0
    checked: bool = False
    rounds: int = 1


@dataclass
class FullSize:
    """One denoising step; seconds and memory are those of all ranks."""

    model: str
    layers: int
    mesh: str
    parallel: str
    attention: str
    latent: tuple[int, ...]
    batch: int
    dtype: str
    math: str
    transport: str
    seed: int
    weights_bytes: int
    write_s: float
    rounds: int
    step_s: float
    step_cpu_s: float
    peak_pss_bytes: int
    peak_pss_anonymous_bytes: int
    pss_over_weights: float
    pss_samples: int
    finite: bool
    ranks_agree: bool
    sent_bytes: dict[str, int]
    machine: str
    load_before: float
    measured: str
    check: Sometimes[dict[str, float]]


@dataclass
class FullSizeDocument(Document):
    """One denoising step."""

    record: Beside[FullSize]


def measure(step: Step, options: RunOptions, folder: Path, *, say: Callable[[str], None] = print) -> FullSize:
    """Return the record of one step; ``folder`` holds, or gets, the weights."""
    import psutil

    model = published()[step.model]
    started = time.monotonic()
    weights = write_checkpoint(folder, model, layers=step.layers, seed=step.seed, say=say)
    written_s = time.monotonic() - started
    inputs = make_inputs(model, step.size, step.batch, step.seed)
    busy = os.getloadavg()[0]
    memory = PssSampler()
    seconds: list[tuple[float, float]] = []
    alone: list[tuple[float, float]] = []
    oracle = Alone(folder) if step.checked else None
    for number in range(step.rounds + (step.rounds > 1)):
        with _progress(options.mesh.num_devices, say), memory if number == 0 else nullcontext():
            used = cpu_s()
            result = api.run(folder, inputs=inputs, options=options)
        seconds.append((result.wall_s, cpu_s() - used))
        if oracle is not None:
            say("the same forward by diffusers")
            theirs, *taken = oracle.run(inputs)
            alone.append((taken[0], taken[1]))
    seconds = seconds[-step.rounds :]
    alone = alone[-step.rounds :]
    step_s, step_cpu_s = medians(seconds)
    memory_gib = psutil.virtual_memory().total / 2**30
    return FullSize(
        model=step.model,
        layers=step.layers or model.config["num_layers"],
        mesh=options.mesh.name,
        parallel=str(options.parallel),
        attention=options.parallel.attention,
        latent=step.size,
        batch=step.batch,
        dtype=options.dtype,
        math=options.math,
        transport=result.transport,
        seed=step.seed,
        weights_bytes=weights,
        write_s=written_s,
        rounds=step.rounds,
        step_s=step_s,
        step_cpu_s=step_cpu_s,
        peak_pss_bytes=memory.peak,
        peak_pss_anonymous_bytes=memory.peak_anonymous,
        pss_over_weights=memory.peak / weights,
        pss_samples=memory.samples,
        finite=bool(torch.isfinite(result.tensors["sample"]).all()),
        ranks_agree=len(set(result.value["digests"])) == 1,
        sent_bytes=result.bytes_by_collective,
        machine=f"{platform.machine()}, {psutil.cpu_count()} cores, {memory_gib:.0f} GiB",
        load_before=busy,
        measured=utc_date(),
        check=compare(result.tensors["sample"], theirs, seconds, alone) if oracle is not None else None,
    )


_COLUMNS = (
    *(
        "model",
        "layers",
        "mesh",
        "parallel",
        "attention",
        "transport",
        "latent",
        "batch",
        "weights GiB",
        "step s",
        "peak PSS GiB",
    ),
    *("of it private GiB", "PSS / weights", "1 - PCC to diffusers bf16", "s / diffusers'", "CPU s / diffusers'"),
    *("machine", "its load before", "date"),
)


def markdown(records: list[dict[str, Any]]) -> str:
    """Return the records as a table."""
    head = (
        "# One denoising step at full size\n\n"
        "**Measured** by `refsim bench full-size` (random weights, bf16, one process per device).\n"
        "PSS: the proportional set size summed over all ranks, so that a page of weights that n ranks map counts "
        "once.\n\n"
    )
    rows = []
    for r in records:
        latent = "x".join(map(str, r["latent"]))
        checked = r.get("check", {})  # older records have no seconds of diffusers' in turn with the mesh's
        pcc = f"{checked['one_minus_pcc']:.1e}" if checked else "not checked"
        times = (f"{checked[name]:.2f}" if name in checked else "-" for name in ("times_oracle", "cpu_times_oracle"))
        busy = f"{r['load_before']:.1f}" if "load_before" in r else "not read"
        label = (r[name] for name in ("model", "layers", "mesh", "parallel", "attention"))
        sizes = (f"{r[name] / 2**30:.2f}" for name in ("peak_pss_bytes", "peak_pss_anonymous_bytes"))
        cells = (f"{r['weights_bytes'] / 2**30:.2f}", f"{r['step_s']:.0f}", *sizes, f"{r['pss_over_weights']:.2f}")
        transport = r.get("transport", "gloo")  # older records lack it, when gloo was the only one in use here
        rows.append((*label, transport, latent, r["batch"], *cells, pcc, *times, r["machine"], busy, r["measured"]))
    return head + as_markdown(rows, _COLUMNS) + "\n"


def parse_size(size: str | None, name: str) -> tuple[int, ...]:
    """Return the latent of a size of a published model, see :func:`refsim.models.registry.latent`."""
    if name not in (known := published()):
        raise UserError(f"'{name}' is measured by its published name only; choose one of {', '.join(known)}.")
    return latent(known[name], size)[1]


def write(record: FullSize, folder: Path) -> None:
    """Add a record to full_size.json, in place of one of the same step, and make full_size.md of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "full_size.json"
    known = json.loads(path.read_text())["records"] if path.exists() else []
    key = ("model", "layers", "mesh", "parallel", "attention", "latent", "batch")
    new = as_json(record)
    records = [r for r in known if any(r[k] != new[k] for k in key)] + [new]
    output.write(path, (output.document(Loose({"records": records})) + "\n").encode())
    output.write(folder / "full_size.md", markdown(records).encode())
