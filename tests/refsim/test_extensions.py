"""Models and meshes of a user's own package: registered by entry points, found in every process, harmless if broken."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from refsim.base.errors import UserError
from refsim.base.extensions import catalog
from tests import warm
from tests.json_output import loads
from tests.refsim.helpers import assert_one_sentence

ROOT = Path(__file__).resolve().parents[2]
SPEC = """
from refsim.mesh import MeshSpec
from refsim.models.spec import ModelSpec, Published

SPEC = ModelSpec(
    name="toy",
    class_names=("ToyTransformer",),
    kind="transformer",
    model="toyhouse.model:Toy",
    config="toyhouse.model:ToyConfig",
    latent="image",
    published=(
        Published(
            "toy-64",
            {"_class_name": "ToyTransformer", "features": 64, "num_layers": 3, "num_attention_heads": 1},
            parameters=3 * 64 * 64,
            sizes={"small": (64, 64)},
            text=1,
            steps=4,
        ),
    ),
)
BOX = MeshSpec("toybox", "Two toys", "blackhole", (1, 2), (0, 1))
"""
MODEL = '''
from dataclasses import dataclass

from refsim.layers.linear import Linear
from refsim.models.inputs import BATCH
from refsim.parallel.sequence import TokenShards, cut_tokens, gather_tokens
from refsim.runtime.tensor import MeshTensor


@dataclass(frozen=True)
class ToyConfig:
    features: int
    num_layers: int

    @classmethod
    def from_dict(cls, config):
        return cls(config["features"], config["num_layers"])


class Toy:
    """x + W x for every pixel, as often as there are layers; pixels cut over sp."""

    def __init__(self, weights, device, config):
        self._device, d = device, config.features
        names = [f"blocks.{i}" for i in range(config.num_layers)]
        self._blocks = [Linear(weights, name, in_features=d, out_features=d) for name in names]
        weights.finish("ToyTransformer")

    @staticmethod
    def input_shapes(config):
        return {"hidden_states": (BATCH, config.features, "height", "width"), "timestep": (BATCH,)}

    def __call__(self, *, hidden_states, timestep):
        pixels = hidden_states.flatten(2).transpose(1, 2)
        shards = TokenShards.of(pixels.shape[1], self._device.groups["sp"].size)
        x = cut_tokens(self._device, MeshTensor(pixels), shards, dim=1)
        for index, block in enumerate(self._blocks):
            self._device.stage(block=index)
            x = x.map("block", lambda y, block=block: y + block(y))
        x = gather_tokens(self._device, x, shards, dim=1).local
        return x.transpose(1, 2).reshape(hidden_states.shape).contiguous()
'''
TOY = "[refsim.models]\ntoy = toyhouse.spec:SPEC\n[refsim.meshes]\ntoybox = toyhouse.spec:BOX\n"


def install(site: Path, package: str, entry_points: str, **modules: str) -> None:
    """Write what ``pip install`` would leave in ``site``."""
    folder, metadata = site / package, site / f"{package}-1.0.dist-info"
    folder.mkdir(parents=True)
    metadata.mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (folder / f"{name}.py").write_text(text)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)


def refsim(*words: object, sites: tuple[Path, ...]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (*sites, ROOT)))
    return warm.run("-m", "refsim", *words, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    install(site, "toyhouse", TOY, spec=SPEC, model=MODEL)
    return site


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three packages: one that does not import, one with something else, one with names that are taken."""
    site = tmp_path_factory.mktemp("broken")
    install(site, "ruin", "[refsim.models]\nruin = ruin.spec:SPEC\n[refsim.meshes]\nruin = ruin:NOTHING\n")
    install(site, "attic", "[refsim.models]\nattic = attic.spec:SPEC\n", spec="SPEC = 3")
    clash = 'from refsim.base.mesh import MeshSpec\nBOX = MeshSpec("t3k", "Mine", "blackhole", (1, 2), (0, 1))'
    install(site, "squatter", "[refsim.meshes]\nmine = squatter.spec:BOX\n", spec=clash)
    return site


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkpoint of a toy with odd sizes, inputs, and what they give."""
    folder, d = tmp_path_factory.mktemp("files"), 5
    (folder / "toy").mkdir()
    config = {"_class_name": "ToyTransformer", "features": d, "num_layers": 2}
    (folder / "toy" / "config.json").write_text(json.dumps(config))
    g = torch.Generator().manual_seed(0)
    weights = {f"blocks.{i}.weight": torch.randn(d, d, generator=g) / 2 for i in range(2)}
    weights |= {f"blocks.{i}.bias": torch.randn(d, generator=g) for i in range(2)}
    save_file(weights, folder / "toy" / "diffusion_pytorch_model.safetensors")
    x = torch.randn(2, d, 7, 11, generator=g)
    save_file({"hidden_states": x, "timestep": torch.ones(2)}, folder / "in.safetensors")
    wanted = x
    for i in range(2):
        more = torch.einsum("oc,bchw->bohw", weights[f"blocks.{i}.weight"], wanted)
        wanted = wanted + more + weights[f"blocks.{i}.bias"][:, None, None]
    save_file({"sample": wanted}, folder / "expected.safetensors")
    return folder


def run_words(files: Path, mesh: str) -> list[object]:
    words = ["run", files / "toy", "--inputs", files / "in.safetensors", "--out", files / "out.safetensors"]
    return [*words, "--mesh", mesh, "--parallel", "sp2"]


def test_a_registered_model_runs_on_a_registered_mesh(toy, broken, files):
    """In the ranks too, and whatever other packages have done wrong."""
    for sites in ((toy,), (broken, toy)):
        done = refsim(*run_words(files, "toybox"), sites=sites)
        assert done.returncode == 0, done.stderr
        got, wanted = (load_file(files / f"{name}.safetensors")["sample"] for name in ("out", "expected"))
        torch.testing.assert_close(got, wanted)
        (files / "out.safetensors").unlink()


def test_without_the_package_there_is_no_such_model(files):
    done = refsim(*run_words(files, "n300"), sites=())
    assert done.returncode == 2
    assert "ToyTransformer" in done.stderr
    assert_one_sentence(done.stderr.strip())


def test_a_registered_model_has_predictions(toy):
    done = refsim("time", "toy-64", "--mesh", "toybox", "--parallel", "sp2", "--json", sites=(toy,))
    assert done.returncode == 0, done.stderr
    assert loads("time", done.stdout)["seconds"] > 0


def test_meshes_are_listed_and_what_is_wrong_is_noted(toy, broken):
    done = refsim("meshes", "--json", sites=(toy, broken))
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["meshes"]}
    assert rows["toybox"]["shape"] == [1, 2]
    assert rows["t3k"]["shape"] == [2, 4]
    notes = sorted(done.stderr.splitlines())
    assert len(notes) == 2
    assert "'ruin'" in notes[0] and "NOTHING" in notes[0]
    assert "'squatter'" in notes[1] and "'t3k'" in notes[1]


def test_a_contested_name_is_refused_where_it_is_used(broken, toy, files):
    done = refsim(*run_words(files, "t3k"), sites=(broken, toy))
    assert done.returncode == 2
    assert "package 'squatter' and refsim both register 't3k'" in done.stderr
    assert_one_sentence(done.stderr.strip())


def test_an_unknown_name_says_which_packages_are_broken(broken, files):
    done = refsim(*run_words(files, "n300"), sites=(broken,))
    assert done.returncode == 2
    assert all(
        text in done.stderr for text in ("package 'ruin'", "ModuleNotFoundError", "package 'attic'", "object of int")
    )
    assert_one_sentence(done.stderr.strip())


class Thing:
    def __init__(self, *names: str) -> None:
        self.names = names


def things(*own: Thing):
    return catalog(own, "refsim.tests.nothing", Thing, lambda thing: thing.names)


def test_a_catalog_finds_by_every_name():
    a, b = Thing("a", "A"), Thing("b")
    found = things(a, b)
    assert found.all == (a, b)
    assert (found.find("a"), found.find("A"), found.find("b"), found.find("c")) == (a, a, b, None)
    assert found.notes == ""


def test_two_of_the_project_with_one_name_are_a_mistake_of_ours():
    with pytest.raises(ValueError, match="'a'"):
        things(Thing("a"), Thing("b", "a"))
    assert not issubclass(UserError, ValueError)
