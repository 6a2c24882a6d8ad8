"""Sessions: ``nox -s parity`` is the main job, ``nox -s tests`` the test suite, ``nox -s lint`` format and lint.

All sessions share one virtual environment in .nox, so torch is installed once.
"""

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "tests", "parity"]
nox.options.error_on_missing_interpreters = True
_SHARED = {"venv_location": ".nox/refsim", "reuse_venv": True}


def _install(session: nox.Session) -> None:
    session.install("-e", ".[dev]")


@nox.session(**_SHARED)
def parity(session: nox.Session) -> None:
    """The main job: every parallel scheme on every mesh of the smoke suite, judged against independent code."""
    _install(session)
    session.run("refsim", "parity", "run", *(session.posargs or ["--suite", "smoke", "--out", "out/parity"]))


@nox.session(**_SHARED)
def tests(session: nox.Session) -> None:
    """The tests, on two cores."""
    _install(session)
    session.run("pytest", "-n", "2", *session.posargs)


@nox.session(**_SHARED)
def lint(session: nox.Session) -> None:
    """ruff: format and lint."""
    _install(session)
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
