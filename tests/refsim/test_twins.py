"""The two wings mirror each other file by file; a file without a twin has its reason here."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIRRORED = ("layers", "parallel", "models", "pipelines")
_NOT_YET = "the device wing runs the transformer of SD3.5 and the decoding of Qwen3 with DFlash so far"
ALONE = {
    "refsim/parallel/cfg.py": "on the device a cfg group is a submesh and the batch is put together on the host "
    "(tt_impl/pipelines/transformer.py)",
    "refsim/parallel/kv_ring.py": "slots, semaphores and credits are inside ttnn's op",
    "refsim/parallel/sequence.py": "ttnn's mesh mapper cuts the tokens, and its ops mask from logical_n",
    "refsim/models/registry.py": "the list of models is shared",
    "refsim/models/spec.py": "what a model says of itself is shared",
    "refsim/models/warm.py": "ranks of refsim are forked; tt_impl has one process",
    "refsim/models/inputs.py": "what a model takes is checked once, by refsim",
    **dict.fromkeys(
        [f"refsim/models/{n}/config.py" for n in ("sd35", "qwen3_moe", "dflash")], "the configuration is shared"
    ),
    **{
        f"refsim/models/{path.parent.name}/spec.py": "what a model says of itself is shared"
        for path in (ROOT / "refsim/models").glob("*/spec.py")
    },
    "refsim/pipelines/attention.py": "attention alone is judged through the block in the device wing",
    "tt_impl/parallel/manager.py": "semaphores and persistent buffers, which refsim has in runtime/",
    "tt_impl/parallel/context.py": "submesh, axes and mappers, which refsim has in runtime/device.py",
    "tt_impl/pipelines/memory.py": "ttnn's own allocator, which refsim has nothing like",
    "refsim/parallel/halo.py": "autoencoders' decoders run in refsim only so far",
    "refsim/pipelines/host.py": "schedulers run on the host, which the device wing's transformer does not need",
    **dict.fromkeys(
        [
            *(f"refsim/pipelines/{n}.py" for n in ("denoise", "pipeline", "request")),
            "refsim/pipelines/wan.py",
            "refsim/models/t5/config.py",
            "refsim/models/t5/encoder.py",
            *(f"refsim/models/wan22/{n}.py" for n in ("attention", "block", "config", "embeddings", "transformer")),
            *(f"refsim/models/vae_wan/{n}.py" for n in ("config", "decoder", "layers")),
            *(f"refsim/models/{model}/{n}.py" for model in ("vae", "vae_cogvideox") for n in ("config", "decoder")),
            "refsim/layers/convolution.py",
            "refsim/layers/group_norm.py",
            *(f"refsim/models/clip/{n}.py" for n in ("config", "encoder")),
            *(f"refsim/models/cogvideox/{n}.py" for n in ("block", "config", "embeddings", "transformer")),
            "refsim/pipelines/cogvideox.py",
            "refsim/pipelines/stable_diffusion_3.py",
        ],
        _NOT_YET,
    ),
}


def files(wing: str) -> set[str]:
    return {
        str(path.relative_to(ROOT / wing))
        for folder in MIRRORED
        for path in (ROOT / wing / folder).rglob("*.py")
        if path.name != "__init__.py"
    }


def test_every_file_has_its_twin_or_a_reason():
    refsim, device = files("refsim"), files("tt_impl")
    alone = {f"refsim/{name}" for name in refsim - device} | {f"tt_impl/{name}" for name in device - refsim}
    assert not alone - ALONE.keys(), "no twin and no reason"
    assert not {name for name in ALONE if not (ROOT / name).exists()}, "a reason for a file that is gone"
    assert not ALONE.keys() - alone, "a reason for a file that has a twin"


def test_a_missing_twin_is_noticed():
    assert "parallel/ring.py" in files("refsim") & files("tt_impl")
    assert "parallel/never.py" not in files("refsim")
