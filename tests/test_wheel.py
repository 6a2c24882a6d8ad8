"""The built wheel, installed outside of the checkout, runs what needs its data files."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.tree import PRODUCT, ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with nothing but the installed wheel; it is built from a copy, as a build writes into its source."""
    folder = tmp_path_factory.mktemp("wheel")
    source, site = folder / "source", folder / "site"
    listed = subprocess.run(["git", "ls-files", *PRODUCT], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in [*listed.stdout.split(), "pyproject.toml", "README.md", "LICENSE"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    (wheel,) = folder.glob("refsim-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    return site


def installed(site, *words, code=None):
    environment = {**os.environ, "PYTHONPATH": str(site)}
    arguments = ["-c", code] if code else ["-m", "refsim", *words]
    ran = subprocess.run([sys.executable, *arguments], cwd=site.parent, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_it_is_the_installed_copy_that_runs(site):
    found = installed(
        site, code="import parity, refsim, tt_impl; print(parity.__file__, refsim.__file__, tt_impl.__file__)"
    )
    assert all(path.startswith(str(site)) for path in found.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--version"], "refsim 0."),
        (["parity", "list", "-k", "attention and n300"], "attention-n300"),
        (["faults", "list", "--backend", "cpu", "-k", "one-row"], "one-row"),
        (["report", "html", "--only-records", "--out", "page"], "page/index.html"),
        (["time", "flux1-schnell", "--mesh", "n300", "--parallel", "tp2"], "flux1-schnell"),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else None,
)
def test_a_command_runs_outside_of_the_checkout(site, words, says):
    assert says in installed(site, *words)


def test_data_files_are_in_it(site):
    code = (
        "from parity.explain import causes; from parity import thresholds as t; t.calibration(); print(causes.stored())"
    )
    assert "signatures" in installed(site, code=code)
