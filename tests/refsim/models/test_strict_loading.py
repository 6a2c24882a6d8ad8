"""Checkpoint folders that do not fit: one sentence that names the key or the file, before any rank starts."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import refsim
from refsim.api.text import TextRequest, generate_text
from refsim.base.errors import UserError
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.sd35 import make_inputs, make_model, save

FILE = "diffusion_pytorch_model.safetensors"
INDEX = f"{FILE}.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save(make_model(), tmp_path_factory.mktemp("whole"))


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def run(folder, inputs=None, **options):
    options = {"mesh": "t3k", "parallel": "cfg2_sp2_tp2", **options}
    return refsim.run(folder, inputs=inputs if inputs is not None else make_inputs(), **options)


def says(*words: str):
    return pytest.raises(UserError, match=".*".join(words))


def edit(folder, change) -> None:
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE)


def configure(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_missing_key(folder):
    key = "transformer_blocks.1.attn.add_k_proj.bias"
    edit(folder, lambda tensors: tensors.pop(key))
    with says("lacks", key):
        run(folder)


def test_unused_key(folder):
    edit(folder, lambda tensors: tensors.update({"transformer_blocks.9.spare": torch.zeros(1)}))
    with says("transformer_blocks.9.spare", "does not use"):
        run(folder)


def test_wrong_shape(folder):
    edit(folder, lambda tensors: tensors.update({"proj_out.bias": torch.zeros(3)}))
    with says("proj_out.bias", r"\(3,\)", r"\(64,\)"):
        run(folder)


def test_fewer_layers_than_the_checkpoint_has(folder):
    configure(folder, num_layers=2)
    with says("transformer_blocks"):
        run(folder)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"_class_name": "HunyuanVideoTransformer3DModel"}, "HunyuanVideoTransformer3DModel"),
        ({"qk_norm": "layer_norm"}, "qk_norm"),
        ({"num_layers": "many"}, "num_layers"),
        ({"num_attention_heads": 5}, "caption_projection_dim"),
    ],
)
def test_config_that_cannot_be(folder, changes, word):
    configure(folder, **changes)
    with says(word):
        run(folder)


def test_not_json(folder):
    (folder / "config.json").write_text("{")
    with says("config.json", "JSON"):
        run(folder)


def test_truncated_file(folder):
    data = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(data[: len(data) // 2])
    with says("safetensors"):
        run(folder)


def test_a_folder_that_is_not_there_is_named_before_options_that_are_wrong(tmp_path):
    with says("nowhere", "does not exist"):
        run(tmp_path / "nowhere", mesh="moon")
    with says("nowhere", "does not exist"):
        generate_text(tmp_path / "nowhere", [[1]], TextRequest(), mesh="moon")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda folder: (folder / FILE).rename(folder / "pytorch_model.bin"),
            ("pytorch_model.bin", "pickle", "save_pre"),
        ),
        (lambda folder: configure(folder, _class_name="HunyuanDiT2DModel"), ("HunyuanDiT2DModel", "supported: SD3")),
        (lambda folder: (folder / "config.json").rename(folder / "model_index.json"), ("whole pipeline",)),
    ],
    ids=["pickle", "class", "pipeline"],
)
def test_what_a_folder_is_comes_before_options_that_are_wrong(folder, change, words):
    change(folder)
    with says(*words):
        run(folder, mesh="moon")


@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "200KB"}], ids=["one_file", "shards"])
def test_a_variant_is_read_by_its_name(tmp_path, shards):
    model, inputs = make_model(), make_inputs()
    model.half().save_pretrained(tmp_path, variant="fp16", **shards)
    with torch.no_grad():
        expected = model.float()(**inputs, return_dict=False)[0]
    assert relative_rmse(run(tmp_path, inputs, variant="fp16").tensors["sample"], expected) <= 5e-6
    with says("weights of a variant only; give variant fp16"):
        run(tmp_path, inputs)
    with says("no weights of variant ema; it has those of variant fp16"):
        run(tmp_path, inputs, variant="ema")


def test_sharded_index(tmp_path):
    model, inputs = make_model(), make_inputs()
    folder = save(model, tmp_path, max_shard_size="200KB")
    assert (folder / INDEX).exists()
    with torch.no_grad():
        expected = model(**inputs, return_dict=False)[0]
    assert relative_rmse(run(folder, inputs).tensors["sample"], expected) <= 5e-6
    shard = sorted(folder.glob("*-00002-of-*"))[0]
    shard.unlink()
    with says("lacks the file", shard.name):
        run(folder)


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "/dev/null"])
def test_index_that_leaves_the_folder(folder, file):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"proj_out.bias": file}}))
    with says("not a file inside the folder"):
        run(folder)


def test_link_that_leaves_the_folder(folder, tmp_path):
    (folder / FILE).rename(tmp_path / "outside.safetensors")
    (folder / FILE).symlink_to(tmp_path / "outside.safetensors")
    with says("a link to a file outside of the folder"):
        run(folder)


def test_a_snapshot_in_the_cache_of_the_hub_is_links_to_its_blobs(folder, tmp_path):
    """The layout of huggingface_hub: ``models--X/snapshots/REVISION/name -> ../../blobs/hash``."""
    cache = tmp_path / "models--someone--sd3"
    snapshot = cache / "snapshots" / "0123abcd" / "transformer"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for path in folder.iterdir():
        path.rename(cache / "blobs" / f"hash-of-{path.name}")
        (snapshot / path.name).symlink_to(f"../../../blobs/hash-of-{path.name}")
    assert run(snapshot).tensors["sample"].isfinite().all()
    (cache / "blobs" / f"hash-of-{FILE}").rename(tmp_path / "outside.safetensors")
    (cache / "blobs" / f"hash-of-{FILE}").symlink_to(tmp_path / "outside.safetensors")
    with says("a link to a file outside of the folder"):
        run(snapshot)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("hidden_states", torch.zeros(2, 16, 13, 20), "13x20"),
        ("hidden_states", torch.zeros(2, 16, 64, 20), "pos_embed_max_size"),
        ("hidden_states", torch.zeros(2, 4, 12, 20), "hidden_states"),
        ("hidden_states", torch.full((2, 16, 12, 20), float("nan")), "non-finite"),
        ("timestep", torch.tensor([1.0, float("inf")]), "non-finite"),
        ("timestep", torch.zeros(3), "batch"),
        ("encoder_hidden_states", torch.zeros(2, 7, 64, dtype=torch.int64), "one of float32"),
        ("guidance", torch.zeros(2), "takes exactly"),
    ],
    ids=["odd", "too_large", "channels", "nan", "inf", "batch", "dtype", "unknown_name"],
)
def test_inputs_that_do_not_fit(whole, name, value, word):
    with says(word):
        run(whole, {**make_inputs(), name: value})


def test_missing_input(whole):
    inputs = make_inputs()
    del inputs["timestep"]
    with says("lacks 'timestep'"):
        run(whole, inputs)


def test_batch_of_one_for_two_groups(whole):
    with says("cfg2", "batch of 1"):
        run(whole, make_inputs(batch=1))


def test_uneven_heads_are_refused_on_request(whole):
    with says("tp2 cannot split 3 heads"):
        run(whole, pad_heads=False)
    with says("ulysses 8 cannot split 3 heads"):
        run(whole, mesh="t3k-1x8", parallel="sp8", attention="ulysses", pad_heads=False)
