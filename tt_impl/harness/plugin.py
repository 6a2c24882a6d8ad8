"""pytest plugin: ``pytest --ttnn-mock t3k THEIR_TESTS`` runs anyone's TTNN tests on a mesh that is not there.

Without the option nothing happens and nothing is imported. With it the mock is prepared before any ``conftest.py`` can
import ttnn, the tests run in processes of their own (``tt_impl.harness.pytest.runner``), and a summary says on which
evidence they passed and what the others met.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tt_impl.harness.pytest.runner import Runner

_RUNNER = "ttnn-mock-runner"
_STRICT = "--ttnn-mock-strict"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ttnn-mock", "TTNN tests without hardware")
    group.addoption(
        "--ttnn-mock",
        metavar="MESH",
        help="run on a mock of this mesh (see `refsim meshes`), or 'auto': the mesh that each test asks for",
    )
    group.addoption(
        "--ttnn-mock-fallback",
        action="store_true",
        help="let ttnn's golden functions answer operations that have no rule: circular evidence, counted apart",
    )
    group.addoption("--ttnn-mock-sample", type=int, default=0, metavar="N", help="at most N cases of a test function")
    group.addoption("--ttnn-mock-cases", type=int, default=0, metavar="N", help="at most N cases in all")
    group.addoption("--ttnn-mock-seed", default="0", metavar="TEXT", help="another seed draws another sample")
    group.addoption(
        "--ttnn-mock-isolate",
        choices=("file", "test", "none"),
        default="file",
        help="a process for each file (after a crash another one), for each test, or none of their own",
    )
    group.addoption(
        "--ttnn-mock-timeout",
        type=float,
        default=900.0,
        metavar="SECONDS",
        help="end a test's process after so long, where pytest-timeout sets no limit",
    )
    group.addoption(
        _STRICT,
        nargs="?",
        const="all",
        metavar="KINDS",
        help="fail a test whose program has findings: every error, or findings of these kinds, apart by commas",
    )
    parser.addini("ttnn_mock_strict", "findings that fail a test: 'all', or kinds apart by commas", default="")
    group.addoption(
        "--ttnn-mock-numerics",
        choices=("exact", "fast", "off"),
        help="round values as the device's kernels do: bit for bit, or as much in less time; off rounds once",
    )
    parser.addini("ttnn_mock_numerics", "how values are rounded: exact, fast or off", default="off")
    group.addoption(
        "--ttnn-mock-values",
        choices=("on", "off"),
        default="on",
        help="off computes no values: shapes, memory and ttnn's checks alone, at any size; what is read are zeros",
    )
    group.addoption(
        "--ttnn-mock-weights",
        metavar="random[:SEED]",
        default="",
        help="models and safetensors files from their configuration or header alone, with random weights",
    )
    group.addoption("--ttnn-mock-json", metavar="FILE", help="write one JSON object per test, a line each")
    group.addoption("--ttnn-report", metavar="DIR", help="write what each test used: memory, collectives, time")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Prepare the mock: some suites ask ttnn for the architecture while their options are added."""
    if _STRICT in args:  # argparse would take a file behind it for its kinds
        args[:] = [f"{_STRICT}=all" if word == _STRICT else word for word in args]
        early_config.known_args_namespace = parser.parse_known_args(args)
    options = early_config.known_args_namespace
    if getattr(options, "ttnn_mock", None):
        from refsim.base.errors import UserError
        from refsim.files import output
        from tt_impl.harness.checks.strict import Strict
        from tt_impl.harness.pytest import machine
        from tt_impl.mock.hardware import check_numerics

        if options.ttnn_mock_json and "PYTEST_XDIST_WORKER" not in os.environ:
            _forget(Path(options.ttnn_mock_json))
        for option in ("ttnn_mock_sample", "ttnn_mock_cases"):
            if (count := getattr(options, option)) < 0:
                raise pytest.UsageError(f"--{option.replace('_', '-')} {count} is no number of cases; 0 takes all.")
        try:
            if options.ttnn_report:
                output.check_folder(Path(options.ttnn_report), "--ttnn-report")
            Strict.of(options.ttnn_mock_strict or early_config.getini("ttnn_mock_strict"))
            check_numerics(options.ttnn_mock_numerics or early_config.getini("ttnn_mock_numerics"))
            machine.prepare(options.ttnn_mock)
            _install_weights(options)
        except UserError as error:
            raise pytest.UsageError(error.with_flags) from error


def _install_weights(options: Any) -> None:
    """Have models and checkpoints come without their weights, if that is asked for."""
    if options.ttnn_mock_weights:
        from tt_impl.harness import weights
        from tt_impl.mock.hardware import seed_of

        seed = seed_of(options.ttnn_mock_weights)
        weights.install(weights.RandomWeights(seed or 0, options.ttnn_mock_values == "on"))


def _forget(verdicts: Path) -> None:
    """Remove an older run's verdicts, so that a run that comes to nothing leaves none; never a device or a link."""
    try:
        if verdicts.is_file() and not verdicts.is_symlink():
            verdicts.unlink()
    except OSError as error:
        raise pytest.UsageError(f"--ttnn-mock-json {verdicts}: {error.strerror}.") from error


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "ttnn_mock_allow(*kinds): findings of these kinds do not fail the test under --ttnn-mock-strict"
    )
    if not config.getoption("ttnn_mock"):
        return
    from tt_impl.harness.pytest import fixtures, machine
    from tt_impl.harness.pytest.runner import Runner
    from tt_impl.harness.pytest.summary import Summary

    if not machine.is_prepared():
        raise pytest.UsageError(
            "--ttnn-mock was found too late, after conftest files were loaded; with xdist and without the installed "
            f"plugin, set PYTEST_PLUGINS={__name__} instead of using -p."
        )
    config.pluginmanager.register(fixtures, "ttnn-mock-fixtures")
    config.pluginmanager.register(Runner(config), _RUNNER)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(config), "ttnn-mock-summary")


def pytest_unconfigure(config: pytest.Config) -> None:
    if runner := _runner(config):
        from tt_impl.harness.pytest import machine

        runner.close()
        machine.clean_up()


def _runner(config: Any) -> Runner | None:
    return config.pluginmanager.get_plugin(_RUNNER)
