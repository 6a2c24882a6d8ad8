"""The command line: ``refsim meshes``, ``refsim run``, ``refsim parity``.

Exit codes: 0 done, 1 a check failed or a rank did, 2 the user's mistake (one sentence on stderr), 130 interrupted,
141 whoever read stdout went away, 143 terminated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from refsim.errors import RankFailure, RefsimError, UserError

if TYPE_CHECKING:
    from refsim.config import DiTParallelConfig
    from refsim.mesh import MeshSpec

app = typer.Typer(
    name="refsim",
    help="Run parallel diffusion-transformer inference on CPU, one process per mesh device, and judge it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
BACKENDS = ("cpu", "ttnn-mock", "ttnn-sim", "ttnn-device")
_INTERRUPTED, _STDOUT_CLOSED, _TERMINATED = 130, 141, 143
_RANK_0_FIRST_S = 2.0  # how long torchrun's other ranks wait for rank 0 to say the same
# Typer's base of all command-line mistakes; some versions carry their own copy of click, so it is reached by way of
# the one subclass that every version exports.
_CommandLineError = typer.BadParameter.__mro__[2]


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, those of failing ranks too.")] = False,
) -> None:
    if debug:
        os.environ["REFSIM_DEBUG"] = "1"


@app.command()
def meshes(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """The named meshes: architecture, shape, links, wrap-around and topology per axis."""
    from refsim.mesh import MESHES

    rows = [
        {
            "name": m.name,
            "system": m.system,
            "arch": m.arch,
            "shape": list(m.shape),
            "devices": m.num_devices,
            "links": list(m.links),
            "wrap_around": [topology == "Ring" for topology in _topologies(m)],
            "topology": _topologies(m),
        }
        for m in MESHES.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Meshes (axis 0 = rows, axis 1 = columns)")
    for heading in ("name", "system", "arch", "shape", "devices", "links/axis", "wrap/axis", "topology/axis"):
        table.add_column(heading, justify="right" if heading == "devices" else "left")
    for r in rows:
        table.add_row(
            r["name"],
            r["system"],
            r["arch"],
            f"{r['shape'][0]}x{r['shape'][1]}",
            str(r["devices"]),
            " / ".join(map(str, r["links"])),
            " / ".join("yes" if w else "no" for w in r["wrap_around"]),
            " / ".join(t or "none" for t in r["topology"]),
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _topologies(mesh) -> list[str | None]:
    return [t.value if t else None for t in (mesh.topology(0), mesh.topology(1))]


@app.command()
def run(
    checkpoint_dir: Annotated[Path, typer.Argument(help="Folder saved by diffusers: one model, or a whole pipeline.")],
    mesh: Annotated[str, typer.Option(help="Mesh name; see `refsim meshes`.")],
    out: Annotated[Path, typer.Option(help="Model: safetensors for `sample` (and `guided`). Pipeline: a folder.")],
    inputs: Annotated[
        Path | None, typer.Option(help="Model: safetensors with the diffusers forward arguments.")
    ] = None,
    parallel: Annotated[str, typer.Option(help="Factors, e.g. cfg2_sp2_tp2 or sp2@0_tp4@1.")] = "sp1",
    attention: Annotated[str, typer.Option(help="ring, ulysses or usp.")] = "ring",
    ring: Annotated[int | None, typer.Option("--ring", "--ring-degree", help="Ring factor of usp.")] = None,
    ulysses: Annotated[int | None, typer.Option("--ulysses", "--ulysses-degree", help="Ulysses factor of usp.")] = None,
    guidance: Annotated[
        float | None, typer.Option(help="Model: also write guided = uncond + S (cond - uncond). Pipeline: the scale.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Storage: fp32 or bf16.", show_default="fp32; bf16 on ttnn backends")
    ] = None,
    prompt_tokens: Annotated[str, typer.Option(help="Prompt tokens over sp: replicated or split.")] = "replicated",
    schedule: Annotated[str, typer.Option(help="Ring schedule: gather, step or block.")] = "step",
    pad_heads: Annotated[bool, typer.Option(help="Pad heads that do not split evenly, or refuse them.")] = True,
    q_chunk_size: Annotated[int, typer.Option(help="Query rows per attention chunk.")] = 256,
    k_chunk_size: Annotated[int, typer.Option(help="Key rows per attention chunk.")] = 512,
    vae_parallel: Annotated[
        str, typer.Option(help="What tp cuts of an image's decoder: spatial (columns) or tensor (channels).")
    ] = "spatial",
    backend: Annotated[str, typer.Option(help="Who computes: cpu, ttnn-mock, ttnn-sim or ttnn-device.")] = "cpu",
    timeout: Annotated[float, typer.Option(help="Longest wait for a peer, in seconds.")] = 300.0,
    trace: Annotated[Path | None, typer.Option(help="Write the event trace of all ranks here (JSON lines).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    prompt: Annotated[str | None, typer.Option(help="Pipeline: what to show.")] = None,
    negative_prompt: Annotated[str, typer.Option(help="Pipeline: what not to show.")] = "",
    steps: Annotated[int, typer.Option(help="Pipeline: denoising steps.")] = 50,
    guidance_2: Annotated[float | None, typer.Option("--guidance-2", help="Pipeline: of the second expert.")] = None,
    height: Annotated[int | None, typer.Option(help="Pipeline: pixels.")] = None,
    width: Annotated[int | None, typer.Option(help="Pipeline: pixels.")] = None,
    frames: Annotated[int | None, typer.Option(help="Pipeline: of a video.")] = None,
    max_text: Annotated[int | None, typer.Option(help="Pipeline: tokens the prompt is padded or cut to.")] = None,
    seed: Annotated[int, typer.Option(help="Pipeline: of the noise it starts from.")] = 0,
    check: Annotated[bool, typer.Option("--check", help="Pipeline: compare every step with one process.")] = False,
    interactive: Annotated[bool, typer.Option("--interactive", help="Pipeline: ask for prompts until q.")] = False,
) -> None:
    """One forward of a model on real inputs, or a pipeline from prompt to pictures; every device is a process."""
    from refsim import launch
    from refsim.config import parse_parallel
    from refsim.mesh import get_mesh
    from refsim.output import check_target
    from refsim.pipelines.request import PipelineRequest, is_pipeline

    if backend not in BACKENDS:
        raise UserError(f"backend '{backend}' does not exist; choose one of {', '.join(BACKENDS)}.")
    spec = get_mesh(mesh)
    config = parse_parallel(parallel, spec, attention=attention, ring=ring, ulysses=ulysses)
    if is_pipeline(checkpoint_dir):
        if backend != "cpu":
            raise UserError(f"a pipeline runs on backend cpu, not {backend}; give the folder of its transformer.")
        if prompt is None and not interactive:
            raise UserError(f"'{checkpoint_dir}' is a pipeline; give --prompt TEXT or --interactive.")
        if inputs is not None or trace is not None:
            raise UserError("a pipeline takes --prompt and writes pictures; leave out --inputs and --trace.")
        launch.warm_up()
        from refsim.cli_pipeline import run_pipeline
        from refsim.cli_progress import StepProgress

        scale = {} if guidance is None else {"guidance": guidance}
        sizes = {"height": height, "width": width, "frames": frames, "max_text": max_text}
        code = run_pipeline(
            checkpoint_dir,
            PipelineRequest(prompt or "", negative_prompt, steps, guidance_2=guidance_2, seed=seed, **scale, **sizes),
            out,
            interactive=interactive,
            as_json=as_json,
            progress=StepProgress(f"{checkpoint_dir.name} on {spec}, {config}, {config.attention}", quiet=as_json),
            mesh=mesh,
            parallel=parallel,
            attention=attention,
            ring=ring,
            ulysses=ulysses,
            dtype=dtype or "fp32",
            schedule=schedule,
            pad_heads=pad_heads,
            prompt_tokens=prompt_tokens,
            q_chunk_size=q_chunk_size,
            k_chunk_size=k_chunk_size,
            vae_parallel=vae_parallel,
            timeout_s=timeout,
            check=check,
        )
        if code:
            raise typer.Exit(code)
        return
    if prompt is not None or interactive:
        raise UserError(
            f"'{checkpoint_dir}' is one model and no pipeline (no model_index.json); give --inputs instead."
        )
    if inputs is None:
        raise UserError(f"'{checkpoint_dir}' is one model; give --inputs FILE with the arguments of its forward.")
    check_target(out, "--out", inputs, checkpoint_dir)
    if trace is not None:
        check_target(trace, "--trace", inputs, checkpoint_dir, out)
    if guidance is not None and not math.isfinite(guidance):
        raise UserError(f"--guidance is a finite number, not {guidance}.")
    if backend != "cpu":
        if dtype not in (None, "bf16", "bfloat16"):
            raise UserError(f"backend {backend} stores bf16, not {dtype}; leave --dtype out or say bf16.")
        if prompt_tokens != "replicated":
            raise UserError(f"backend {backend} holds the prompt on every device; leave out --prompt-tokens.")
        if vae_parallel != "spatial":
            raise UserError(f"backend {backend} runs transformers, which have no decoder; leave out --vae-parallel.")
        _run_ttnn(checkpoint_dir, inputs, spec, config, backend, guidance, out, timeout, trace, as_json, pad_heads)
        return
    dtype = dtype or "fp32"
    launch.warm_up()
    with _progress(f"{checkpoint_dir.name} on {spec}, {config}, {config.attention}", quiet=as_json):
        from refsim.api import run as run_checkpoint

        result = run_checkpoint(
            checkpoint_dir,
            inputs=inputs,
            mesh=spec,
            parallel=parallel,
            attention=attention,
            ring=ring,
            ulysses=ulysses,
            guidance=guidance,
            dtype=dtype,
            prompt=prompt_tokens,
            schedule=schedule,
            pad_heads=pad_heads,
            q_chunk_size=q_chunk_size,
            k_chunk_size=k_chunk_size,
            vae_parallel=vae_parallel,
            out=out,
            timeout_s=timeout,
            trace=trace is not None,
        )
    if result is None:
        return
    if trace is not None:
        from refsim.runtime.trace import write_jsonl

        write_jsonl(result.trace, trace)
    summary = {
        "mesh": spec.name,
        "parallel": str(config),
        "factors": {k: dataclasses.asdict(v) for k, v in vars(config).items()},
        "attention": config.attention,
        "dtype": dtype,
        "backend": backend,
        "ranks": spec.num_devices,
        "replicas_equal": len(set(result.value["digests"])) == 1,
        "hazards": [str(hazard) for hazard in result.hazards],
        "outputs": {name: list(t.shape) for name, t in result.tensors.items()},
        "out": str(out),
        "trace": str(trace) if trace else None,
        "bytes_by_collective": result.bytes_by_collective,
        "wall_s": round(result.wall_s, 3),
    }
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in summary["outputs"].items())
        sent = sum(result.bytes_by_collective.values()) / 1e6
        same = "all ranks agree" if summary["replicas_equal"] else "RANKS DISAGREE"
        typer.echo(f"{shapes} -> {out}  ({spec.num_devices} ranks, {same}, {sent:.1f} MB sent, {result.wall_s:.2f} s)")
        if trace is not None:
            typer.echo(f"trace of {len(result.trace)} events -> {trace}")
    for hazard in summary["hazards"]:
        sys.stderr.write(f"refsim: {hazard}\n")
    if summary["hazards"] or not summary["replicas_equal"]:
        raise typer.Exit(1)


def _run_ttnn(
    checkpoint_dir: Path,
    inputs: Path,
    spec: MeshSpec,
    config: DiTParallelConfig,
    backend: str,
    guidance: float | None,
    out: Path,
    timeout: float,
    trace: Path | None,
    as_json: bool,
    pad_heads: bool,
) -> None:
    """``refsim run`` on a ttnn backend: the device wing, in a process of its own."""
    import time

    from tt_impl.api import run as run_wing

    started = time.monotonic()
    with _progress(f"{checkpoint_dir.name} on {backend} {spec}, {config}, {config.attention}", quiet=as_json):
        from refsim.validate import check_run

        check_run(checkpoint_dir, inputs, spec, config, split_prompt=False, pad_heads=pad_heads, guidance=guidance)
        outcome = run_wing(
            checkpoint_dir,
            inputs=inputs,
            mesh=spec,
            config=config,
            backend=backend,
            guidance=guidance,
            out=out,
            timeout_s=timeout,
        )
    if trace is not None:
        from refsim import output

        output.write(trace, "".join(json.dumps(op) + "\n" for op in outcome.ops).encode(), "--trace")
    summary = {
        "mesh": spec.name,
        "parallel": str(config),
        "factors": {k: dataclasses.asdict(v) for k, v in vars(config).items()},
        "attention": config.attention,
        "dtype": "bf16",
        "backend": backend,
        "ran": outcome.ran,
        "outputs": {name: list(t.shape) for name, t in outcome.tensors.items()},
        "out": str(out),
        "trace": str(trace) if trace else None,
        "operations": len(outcome.ops),
        "collectives": outcome.collectives,
        "wall_s": round(time.monotonic() - started, 3),
    }
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in summary["outputs"].items())
    values = "golden values, kernels not run" if backend == "ttnn-mock" else "computed by the device's kernels"
    typer.echo(f"{shapes} -> {out}  ({len(outcome.ops)} operations, {summary['wall_s']:.2f} s)")
    typer.echo(f"ran on {outcome.ran} ({values})")


class _progress:
    """A spinner on a terminal while ranks work; nothing elsewhere."""

    def __init__(self, text: str, *, quiet: bool) -> None:
        from rich.console import Console

        self._status = None
        if not quiet and sys.stderr.isatty():
            self._status = Console(stderr=True).status(text)

    def __enter__(self) -> None:
        if self._status:
            self._status.start()

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()


def _mount_parity() -> None:
    if any(group.name == "parity" for group in app.registered_groups):
        return
    from parity.cli import app as parity_app
    from refsim.timing.cli import mount

    mount(app)
    with contextlib.suppress(ModuleNotFoundError):  # benchmarks come with a clone
        from benchmarks.cli import app as bench_app

        app.add_typer(bench_app, name="bench", help="Benchmarks of this machine, and predictions beside measurements.")
    from refsim.cli_decode import generate

    app.command()(generate)
    app.add_typer(parity_app, name="parity", help="Judge the simulator against code nobody here wrote.")
    from parity.faults.cli import app as faults_app
    from parity.schedules_cli import app as schedules_app

    app.add_typer(faults_app, name="faults", help="Put known mistakes in and see that the gate catches them.")
    app.add_typer(schedules_app, name="schedules", help="Same bits under every schedule; which buffer policy is safe.")


class _Signals:
    """Ctrl-C and SIGTERM while a command runs: an exception, so that everything is put away, and a note of it.

    The note is needed because libraries turn an exception in the wrong moment (an import, say) into another one.
    Torchrun's ranks are left alone: torchrun ends them.
    """

    def __init__(self) -> None:
        self.code = 0

    def install(self) -> None:
        from refsim.launch import under_torchrun

        if under_torchrun():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # background jobs ignore it
            signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGTERM, self._stop)

    def ignore(self) -> None:
        """From here on this process only puts things away, which is bounded."""
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) == self._stop:
                signal.signal(number, signal.SIG_IGN)

    def _stop(self, number: int, frame: object) -> None:
        self.code = _INTERRUPTED if number == signal.SIGINT else _TERMINATED
        raise KeyboardInterrupt


_signals = _Signals()


def main(argv: list[str] | None = None) -> None:
    """Entry point of the console script; never returns."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with a closed one, whose number the next file opened would get
            setattr(sys, name, open(os.devnull, "w"))
    _signals.install()
    code = _main(argv)
    _signals.ignore()
    if code in (_INTERRUPTED, _TERMINATED):
        _leave(code)
    sys.exit(code)


def _main(argv: list[str] | None) -> int:
    try:
        try:
            code = _run(argv)
            sys.stdout.flush()
        except BaseException:
            if _signals.code:
                return _stopped(_signals.code)
            raise
        return _stopped(code) if code in (_INTERRUPTED, _TERMINATED) else code
    except SystemExit as e:  # rich's answer to a closed stdout
        if not isinstance(e.__context__, BrokenPipeError):
            raise
        return _stdout_closed()
    except BrokenPipeError:
        return _stdout_closed()
    except OSError as e:
        if "REFSIM_DEBUG" in os.environ:
            traceback.print_exc()
        what = f"'{e.filename}'" if e.filename else "the output"
        return _report(f"{what} could not be read or written ({e.strerror or e}).", 1)


def _run(argv: list[str] | None) -> int:
    try:
        _mount_parity()
        code = app(args=argv, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Exit as e:
        return e.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except _CommandLineError as e:
        return _report(f"{e.format_message().rstrip('.')}; see --help.", 2)
    except RankFailure as e:
        if "REFSIM_DEBUG" in os.environ and e.traceback:
            sys.stderr.write(e.traceback)
        return _report(str(e), e.exit_code, e.events_table())
    except RefsimError as e:
        if "REFSIM_DEBUG" in os.environ:
            traceback.print_exc()
        return _report(str(e), e.exit_code)


def _leave(code: int) -> NoReturn:
    """End with this very code: Python, once Ctrl-C met it inside an ``exec``, would end itself by SIGINT instead."""
    from refsim import launch

    launch.shut_down()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _stopped(code: int) -> int:
    """Typer turns Ctrl-C into an exit code without a word, whichever signal it was."""
    code = _signals.code or code
    return _report("interrupted." if code == _INTERRUPTED else "terminated.", code)


def _stdout_closed() -> int:
    """As a program that SIGPIPE ends: no word; what is still buffered goes nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return _STDOUT_CLOSED


def _report(sentence: str, code: int, details: str = "") -> int:
    """One line on stderr, whatever control characters a name or a library's message holds, then the details.

    torchrun ends every rank as soon as one has failed. A rank above 0 therefore leaves rank 0 the time to say what it
    has most likely met too, and then says it itself: rank 0 may be slow, or may not have met it at all.
    """
    from refsim.launch import is_main

    name = "refsim"
    if not is_main():
        if code in (_INTERRUPTED, _TERMINATED):
            return code
        time.sleep(_RANK_0_FIRST_S)
        name = f"refsim, rank {os.environ['RANK']}"
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{name}: {line}\n{details}")
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    main()
