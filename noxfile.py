"""Sessions: ``nox -s parity`` is the main job, ``nox -s tests`` the test suite, ``nox -s lint`` format, lint and
types, ``nox -s docs`` makes a site of the documents, ``nox -s faults`` puts known mistakes in and sees that the gate
catches them, ``nox -s chaos`` disturbs runs in two hundred ways, ``nox -s soak`` runs two thousand jobs on the same
ranks and sees that nothing grows, ``nox -s fuzz`` tries thousands of wrong inputs, ``nox -s reports`` makes the
tables of predicted time, ``nox -s web`` opens the page of results in chromium, ``nox -s kernels`` runs the TT-Lang
kernels on their simulator, ``nox -s ttnn`` tests the device backend on ttnn's mock meshes (needs python3.12; an
interpreter that is missing is an error), ``nox -s ttnn-parity`` judges it against refsim, ``nox -s ttnn-faults``
mistakes put into it, ``nox -s numerics`` mistakes while the mock rounds as kernels do, ``nox -s ttnn-previous`` the
same mock with the version of ttnn before, ``nox -s upstream`` runs tt-metal's own tests there, ``nox -s bench``
measures ring attention and Ulysses beside other libraries', ``nox -s mutation`` and ``nox -s mutation-ttnn`` change
the source in hundreds of small ways and see that a parity case notices, ``nox -s mutation-mock`` that a case of the
mock does, ``nox -s packages`` installs the wheel with every Python there is, as a stranger would."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import nox

LINTERS = ("mypy==2.4.1", "ruff==0.17.6")
"""Pinned, so that a new rule of a new version is a change of its own; ``.pre-commit-config.yaml`` has the same."""
SITE = ("mkdocs==1.6.1", "mkdocs-material==9.8.1", "mkdocstrings-python==2.0.11", "ruff==0.17.6", "typer==0.29.2")
"""What the site of the documents is made with; ruff sets signatures, typer reads the commands."""

VERSIONS = ("-c", "constraints.txt")
"""For every session that installs the project: the versions of CI and of the committed reports."""

PEERS = ("ring-attention-pytorch==0.5.20", "yunchang==0.6.4")
"""Other libraries' sequence parallelism, beside that of torch and diffusers."""

PATIENT = {"OMP_WAIT_POLICY": "passive", "PYTHONDONTWRITEBYTECODE": ""}
"""For tests that run two at a time: torch's threads sleep while they wait. By default they spin, and two processes with
as many threads as there are cores take most of each other's time. And the many processes that tests start compile the
project once, whatever the environment says. Results do not depend on either."""

nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "parity", "faults", "kernels", "tests", "web"]
nox.options.sessions += ["ttnn", "ttnn-parity", "ttnn-faults", "ttnn-previous"]


MEMORY = (
    ("sd35-large", "t3k", "cfg2_sp2_tp2"),
    ("sd35-large", "galaxy", "cfg2_sp4_tp4"),
    ("sd35-large", "n150", "sp1"),  # does not fit, and says what to shrink
    ("cogvideox-5b", "t3k", "sp2_tp4"),
)
"""Whole models, all blocks, from shapes alone; the others: ``refsim report memory``."""

PREVIOUS_TTNN = "0.80.0"
"""The version published before the one in pyproject.toml: the mock serves both."""

TTNN_TESTS = (
    *("tests/docs/test_ttnn_tests.py", "tests/docs/test_add_a_model.py::test_a_stranger_adds_its_counterpart"),
    *("tests/harness", "tests/tt_impl"),
)
"""Of the documents those that go through ttnn; session `tests` follows the others."""

FEW_MUTATIONS = (
    *(
        "--files",
        "refsim/parallel/[kprsu]*.py",
        "-k",
        "attention and (n300 or t3k-sp4_tp2 or t3k_1x8-sp8-ring-fp32-normal)",
    ),
    *("--count", "30", "--seed", "0", "--budget", "60s", "--least", "30"),
)
"""Thirty changes of the attention schemes, or as many as a minute allows (about ten), judged by few small cases. It
fails if fewer than 30 % of those are noticed, or if none could be tried. That shows that changes are put in, run and
noticed, and that a judge which passes everything would be seen; it is no bound on what the suite misses, since a few
changes have a wide interval (printed). How good the whole suite is, `nox -s mutation` says."""


@nox.session
def parity(session: nox.Session) -> None:
    """Run the main job: every parallel scheme on every mesh of the smoke suite, judged against independent code."""
    session.install(*VERSIONS, "-e", ".[oracle]")
    session.run("refsim", "parity", "run", *(session.posargs or ["--suite", "smoke", "--out", "out/parity"]))


@nox.session
def faults(session: nox.Session) -> None:
    """Wrong programs, one mistake each: the gate must catch every one of them and alarm on none that is right."""
    session.install(*VERSIONS, "-e", ".[mutation]")
    session.run("refsim", "faults", "run", "--out", "out/faults", *session.posargs)
    if "-k" not in session.posargs and not {f"{turn}/6" for turn in range(2, 7)} & {
        *session.posargs
    }:  # CI's other turns
        session.run("refsim", "faults", "mutate", *FEW_MUTATIONS, "--out", "out/faults")


def _mutate(session: nox.Session, name: str, files: list[str], backend: str) -> None:
    """Three hundred mutations of files, and the lines that the same cases execute, into reports/."""
    out, chosen = f"out/{name}", [word for file in files for word in ("--files", file)]
    session.run("refsim", "parity", "coverage", "--backend", backend, *chosen, "--out", out)
    limits = session.posargs or ["--count", "300", "--seed", "0", "--budget", "6h"]
    session.run("refsim", "faults", "mutate", *chosen, "--least", "0", *limits, "--out", out)
    for kind in ("mutation", "coverage"):
        shutil.copy(Path(out, f"{kind}.md"), Path("reports", name.replace("mutation", kind) + ".md"))


@nox.session
def mutation(session: nox.Session) -> None:
    """Hours: three hundred small changes of refsim's source, each judged by the cases that execute it."""
    session.install(*VERSIONS, "-e", ".[mutation]")
    folders = ["parallel", "ccl", "layers", "models", "pipelines"]
    _mutate(session, "mutation", [f"refsim/{folder}" for folder in folders], "cpu")


@nox.session(name="mutation-ttnn", python="3.12")
def mutation_ttnn(session: nox.Session) -> None:
    """Do the same of the TTNN programs, judged on ttnn's mock."""
    session.install(*VERSIONS, "-e", ".[ttnn,mutation]")
    _mutate(session, "mutation_ttnn", [f"tt_impl/{folder}" for folder in ("parallel", "layers", "models")], "ttnn-mock")


@nox.session(name="mutation-mock", python="3.12")
def mutation_mock(session: nox.Session) -> None:
    """Two hours: two hundred changes of the mock, and as many of the checks, judged by their own cases and tests. CI
    tries five, judged by some cases: it shows that changes are put in and noticed.
    """
    session.install(*VERSIONS, "-e", ".[ttnn,dev,mutation]")
    program = ["python", "-m", "benchmarks.mock_mutation", "--recorded", "out/mutation_mock/lines.json"]
    if session.posargs:
        session.run(*program, "--out", "out/mutation_mock", *session.posargs)
        return
    for name in ("mock", "harness"):
        out = f"out/mutation_{name}"
        limits = ["--count", "200", "--budget", "1h"]
        session.run(*program, "--files", f"tt_impl/{name}", *limits, "--out", out)
        shutil.copy(Path(out, "mutation.md"), Path("reports", f"mutation_{name}.md"))
    shutil.copy("out/mutation_mock/coverage.md", "reports/coverage_mock.md")


@nox.session
def tests(session: nox.Session) -> None:
    """The tests, on two cores."""
    session.install(*VERSIONS, "-e", ".[dev]")
    session.run("pytest", "-n", "2", "--dist", "worksteal", *session.posargs, env=PATIENT)


@nox.session
def chaos(session: nox.Session) -> None:
    """Two hundred seeded disturbances: every one reported in time, nothing left behind."""
    session.install(*VERSIONS, "-e", ".[dev]")
    session.run("python", "-m", "tests.chaos", *(session.posargs or ["--runs", "200", "--seed", "0"]))


@nox.session
def soak(session: nox.Session) -> None:
    """Two thousand runs on the same ranks: memory and open files stay flat."""
    session.install(*VERSIONS, "-e", ".[dev]")
    session.run("python", "-m", "tests.soak", *(session.posargs or ["--runs", "2000"]))


@nox.session
def fuzz(session: nox.Session) -> None:
    """Thousands of wrong configurations, checkpoints, inputs and flags: one sentence and exit code 2 every time; ten
    thousand operations of each kind: none is predicted below its roofline, none gets faster with more to do; two
    hundred prompts on each mesh: the tokens of speculative decoding are the target's.
    """
    session.install(*VERSIONS, "-e", ".[dev]")
    session.run("pytest", "tests/fuzz", "-n", "2", "--hypothesis-profile=fuzz", "--timeout=1800", *session.posargs)
    if not session.posargs:
        ten_thousand = {"REFSIM_EXAMPLES": "10000"}
        session.run("pytest", "tests/refsim/timing/test_properties.py", "--timeout=1800", env=ten_thousand)
        decoding = ("tests/refsim/pipelines/test_speculative.py", "-k", "many_prompts")
        session.run("pytest", *decoding, env={"REFSIM_EXAMPLES": "200"})


@nox.session
def reports(session: nox.Session) -> None:
    """Predicted performance: tables and plots, the same bytes every time."""
    session.install(*VERSIONS, "-e", ".[report]")
    session.run("refsim", "report", "perf", *(session.posargs or ["--out", "reports/perf"]))
    session.run("refsim", "bench", "draft", "--predicted-only", "--out", "reports/draft")


@nox.session
def bench(session: nox.Session) -> None:
    """Ring attention and Ulysses beside other libraries' on the same ranks, then cost by size; a quarter of an hour."""
    session.install(*VERSIONS, "-e", ".[oracle,report]", *PEERS)
    session.run("refsim", "bench", "peers", *(session.posargs or ["--rows", "4096"]))
    if not session.posargs:
        session.run("refsim", "bench", "scale", "--out", "reports/sim")


PYTHONS = ("3.10", "3.11", "3.12", "3.13")
OUTSIDE = (
    ("--version",),
    ("parity", "run", "-k", "attention-n300-sp2-ring-fp32-normal or sd35_tiny-n300-sp2-ring-fp32", "--out", "results"),
    ("faults", "run", "-k", "lse-sign", "--out", "results"),
    ("time", "flux1-schnell", "--mesh", "n300", "--parallel", "tp2"),
    ("report", "html", "--only-records", "--results", "results", "--out", "page"),
)
"""Commands of seconds, for an installed refsim: the first two judge and are judged, the others need data files."""


def _answers(python: str) -> bool:
    """Whether an interpreter runs: pyenv puts a name on the search path that fails unless its version is in use."""
    return bool(shutil.which(python)) and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


@nox.session
def packages(session: nox.Session) -> None:
    """Try the wheel, made from the sdist, in new environments, with the newest versions that it allows; run elsewhere.

    A Python that is not on the search path is skipped aloud; it is an error if none is there.
    """
    session.install("build>=1.2")
    asked = session.posargs or PYTHONS
    there = [version for version in asked if _answers(f"python{version}")]
    with tempfile.TemporaryDirectory() as outside:
        session.run("python", "-m", "build", "--outdir", outside, silent=True)
        (wheel,) = Path(outside).glob("*.whl")
        for version in there:
            with tempfile.TemporaryDirectory(dir=session.virtualenv.location) as environment, session.chdir(outside):
                session.run(f"python{version}", "-m", "venv", environment, external=True)
                session.run(f"{environment}/bin/pip", "install", "-q", f"{wheel}[oracle]", external=True)
                session.run(f"{environment}/bin/python", "-c", "import refsim", external=True)
                for words in OUTSIDE:
                    session.run(f"{environment}/bin/refsim", *words, external=True)
    missing = ", ".join(version for version in asked if version not in there)
    session.log(f"{len(there)} of {len(asked)} Pythons: {', '.join(there)}; not there, skipped: {missing or 'none'}")
    if not there:
        session.error("no Python of these is on the search path.")


@nox.session
def web(session: nox.Session) -> None:
    """Open the page of `refsim report html` in the chromium on the search path.

    Without one it is skipped aloud, in CI (`CI` is set) it fails.
    """
    session.install(*VERSIONS, "-e", ".[web]")
    session.run("pytest", "tests/web", *session.posargs)


@nox.session(python="3.12")
def kernels(session: nox.Session) -> None:
    """TT-Lang kernels on the functional simulator, alone and in programs on the mock."""
    session.install(*VERSIONS, "-e", ".[ttnn,kernels,dev]")
    session.run("pytest", "tests/kernels", *session.posargs)


@nox.session(name="kernels-full", python="3.12")
def kernels_full(session: nox.Session) -> None:
    """Do the same at the drafter's own shapes, which takes minutes; writes reports/kernels.md."""
    session.install(*VERSIONS, "-e", ".[ttnn,kernels]")
    session.run("refsim", "kernels", "--real", *(session.posargs or ["--out", "reports"]))


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: format and lint; mypy: types, strictly on the public surface."""
    session.install(*LINTERS)
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documents as a site in out/site, which opens from the file; a broken link is an error."""
    session.install(*VERSIONS, "-e", ".", *SITE)  # what --json of a command holds is read off its classes
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"PYTHONPATH": "."})


@nox.session(python="3.12")
def ttnn(session: nox.Session) -> None:
    """Test the device backend and the mock: real ttnn on meshes without hardware."""
    session.install(*VERSIONS, "-e", ".[ttnn,dev]")
    session.run("pytest", "-n", "2", "--dist", "loadfile", *TTNN_TESTS, *session.posargs, env=PATIENT)
    for model, mesh, parallel in MEMORY:
        session.run("refsim", "memory", model, "--mesh", mesh, "--parallel", parallel)


@nox.session(name="ttnn-parity", python="3.12")
def ttnn_parity(session: nox.Session) -> None:
    """Judge the device backend against refsim: the smoke suite on ttnn's mock meshes."""
    session.install(*VERSIONS, "-e", ".[ttnn,dev]")
    suite = ("--backend", "ttnn-mock", "--suite", "smoke", "--out", "out/parity-ttnn")
    session.run("refsim", "parity", "run", *suite, *session.posargs)


@nox.session(name="ttnn-previous", python="3.12")
def ttnn_previous(session: nox.Session) -> None:
    """Test the mock with the version of ttnn before the pinned one."""
    session.install(*VERSIONS, "-e", ".[ttnn,dev]")
    folder = Path(session.create_tmp(), f"ttnn-{PREVIOUS_TTNN}").absolute()
    session.run("pip", "install", "-q", "--no-deps", "--upgrade", "--target", str(folder), f"ttnn=={PREVIOUS_TTNN}")
    with_previous = PATIENT | {"PYTHONPATH": str(folder), "REFSIM_TTNN_VERSION": PREVIOUS_TTNN}
    # What programs go through, and operations of a few modules; all of them are of the pinned version.
    chosen = "plugin or runner or findings or version or [matmul or [collectives or [layout or [host or [norm-"
    session.run(
        "pytest", "-n", "2", "tests/tt_impl/mock/test_shadow.py", "tests/harness", "-k", chosen, env=with_previous
    )


@nox.session(name="ttnn-faults", python="3.12")
def ttnn_faults(session: nox.Session) -> None:
    """Mistakes in the device backend: its gate must catch every one of them and alarm on no program that is right."""
    session.install(*VERSIONS, "-e", ".[ttnn,dev]")
    session.run("pytest", "tests/parity/faults/test_ttnn_faults.py")
    session.run("refsim", "faults", "run", "--backend", "ttnn-mock", "--out", "out/faults-ttnn", *session.posargs)


@nox.session(python="3.12")
def numerics(session: nox.Session) -> None:
    """Mistakes in the device backend while the mock rounds as kernels do: how many hide, by dtype of weights.

    A quarter of an hour; writes reports/numerics/hidden_faults.md.
    """
    session.install(*VERSIONS, "-e", ".[ttnn,dev,numerics]")
    chosen = session.posargs or ["--count", "40", "--cases", "8", "--seed", "0", "--out", "reports/numerics"]
    session.run("refsim", "numerics", "hidden", *chosen)


@nox.session(python="3.12")
def upstream(session: nox.Session) -> None:
    """tt-metal's own tests on the mock, three hours on two cores; TT_METAL_TREE names a checkout, without one it is
    skipped aloud. Writes reports/upstream.md.
    """
    session.install(*VERSIONS, "-e", ".[ttnn,dev]")
    session.run("python", "-m", "benchmarks.upstream", *(session.posargs or ["all", "--out", "out/upstream"]))


@nox.session(python="3.12")
def programs(session: nox.Session) -> None:
    """Run published programs on the mock, about two hours on two cores; DFLASH_TREE and TT_METAL_TREE name checkouts,
    without one it is skipped aloud. Writes reports/programs.md.
    """
    wanted = ("ftfy>=6", "torchvision", "tabulate", "pytz")  # by Wan of tt_dit, and by tests of other models
    session.install(*VERSIONS, "-e", ".[ttnn,kernels,dev]", *wanted)
    session.run("python", "-m", "benchmarks.programs", *session.posargs)
