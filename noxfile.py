"""Sessions: ``nox -s parity`` is the main job, ``nox -s tests`` the test suite, ``nox -s lint`` format and lint."""

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "parity", "tests"]


@nox.session
def parity(session: nox.Session) -> None:
    """The main job: every parallel scheme on every mesh of the smoke suite, judged against independent code."""
    session.install("-e", ".[oracle]")
    session.run("refsim", "parity", "run", *(session.posargs or ["--suite", "smoke", "--out", "out/parity"]))


@nox.session
def tests(session: nox.Session) -> None:
    """The tests, on two cores."""
    session.install("-e", ".[dev]")
    session.run("pytest", "-n", "2", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: format and lint."""
    session.install("ruff")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
