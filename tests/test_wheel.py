"""The built wheel, installed outside of the checkout, runs what needs its data files; the sdist builds the same one."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.tree import PRODUCT, ROOT, imports

PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
LEFT_OUT = ("benchmarks/programs/", "benchmarks/upstream/")
"""Of the packages what users of a wheel never run."""
NOT_SOURCE = (
    *("out/results.json", "parity-out/results.json", "parity/out/results.json", ".nox/tests/bin/refsim.py"),
    *("parity/__pycache__/gate.pyc", "tests/__pycache__/tree.pyc", ".pytest_cache/README.md", "tests/test_tree.py"),
)
"""What a checkout collects, and tests: for neither wheel nor sdist."""


def product():
    """The files of the packages that a wheel holds, as git knows them."""
    return [name for name in checked_in() if not name.startswith(LEFT_OUT)]


def checked_in():
    listed = subprocess.run(["git", "ls-files", *PRODUCT], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def build_wheel(source, folder):
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    (wheel,) = folder.glob("refsim-*.whl")
    return wheel


def once(tmp_path_factory, name, make):
    """A folder that ``make`` fills once for all workers of a run of pytest."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # for seconds, or until the worker that makes it ends
        folder = root / name
        if not (folder / "complete").exists():
            folder.mkdir()
            make(folder)
            (folder / "complete").touch()
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, sdist), built from a copy, as a build writes into its source."""

    def build(folder):
        source = folder / "source"
        for name in [*checked_in(), "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"]:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
        for name in NOT_SOURCE:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text("{}")
        subprocess.run([sys.executable, "-c", SDIST, folder], cwd=source, check=True, stdout=subprocess.DEVNULL)
        build_wheel(source, folder)

    folder = once(tmp_path_factory, "built", build)
    return *folder.glob("refsim-*.whl"), *folder.glob("refsim-*.tar.gz")


@pytest.fixture(scope="module")
def site(built, tmp_path_factory):
    """A folder with nothing but the installed wheel."""

    def install(folder):
        subprocess.run([*PIP, "install", "--no-deps", "--target", folder / "site", built[0]], check=True)

    return once(tmp_path_factory, "wheel", install) / "site"


def test_a_wheel_holds_the_packages_and_nothing_else(built):
    names = zipfile.ZipFile(built[0]).namelist()
    assert sorted(name for name in names if ".dist-info/" not in name) == sorted(product())


def test_what_is_left_out_is_imported_by_nothing_in_it():
    packages = tuple(name.rstrip("/").replace("/", ".") for name in LEFT_OUT)
    for path in product():
        if path.endswith(".py"):
            found = imports(path.removesuffix(".py").replace("/", "."), (ROOT / path).read_text(encoding="utf-8"))
            assert [one.name for one in found if one.name.startswith(packages)] == [], path


def test_an_sdist_holds_what_the_wheel_is_built_from_and_nothing_else(built):
    with tarfile.open(built[1]) as archive:
        names = {Path(*Path(member.name).parts[1:]).as_posix() for member in archive if member.isfile()}
    written = {"PKG-INFO", "setup.cfg"}
    own = {"pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"}
    assert {name for name in names if not name.startswith("refsim.egg-info/")} == {*product(), *own, *written}


def test_an_sdist_builds_the_same_wheel(built, tmp_path):
    def contents(wheel):
        return {file.filename: file.CRC for file in zipfile.ZipFile(wheel).infolist()}

    assert contents(build_wheel(built[1], tmp_path)) == contents(built[0])


COMMANDS = {
    "--version": "refsim 0.",
    "parity list -k attention": "attention-n300",
    "faults list --backend cpu -k one-row": "one-row",
    "report html --only-records --out page": "page/index.html",
    "time flux1-schnell --mesh n300 --parallel tp2": "flux1-schnell",
}
"""What each says; all are run in one process."""
OUTSIDE = """
import contextlib, io, json, sys
import parity, refsim, tt_impl
from parity.explain import causes
from parity.measure import thresholds
from refsim.cli import process
thresholds.calibration()
said = {"stored": str(causes.stored())}
for command in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = process.run_command(command.split())
    said[command] = f"{code} {out.getvalue()}"
print(json.dumps([said, [parity.__file__, refsim.__file__, tt_impl.__file__]]))
"""


@pytest.fixture(scope="module")
def installed(site, tmp_path_factory):
    """(what commands said and a data file holds, where packages lie) of the wheel, outside of the checkout."""

    def run(folder):
        command = [sys.executable, "-c", OUTSIDE, *COMMANDS]
        environment = {**os.environ, "PYTHONPATH": str(site)}
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        (folder / "said.json").write_text(ran.stdout)

    return json.loads((once(tmp_path_factory, "outside", run) / "said.json").read_text())


def test_it_is_the_installed_copy_that_runs(installed, site):
    assert all(path.startswith(str(site)) for path in installed[1])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_outside_of_the_checkout(installed, command):
    assert installed[0][command].startswith("0 ") and COMMANDS[command] in installed[0][command]


def test_data_files_are_in_it(installed):
    assert "signatures" in installed[0]["stored"]
