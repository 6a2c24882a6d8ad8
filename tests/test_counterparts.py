"""``refsim`` and ``tt_impl`` are counterparts file by file; what both define takes the same arguments in one order.

A file without a counterpart has its reason in ``ALONE``, a signature that differs has it in ``DIFFERENT``. Everything
is read from syntax trees, so no ttnn is needed. What differs everywhere, on purpose:

    device (refsim), ctx (tt_impl)     a rank's device; the submesh of one cfg group. Where only one side needs it, the
                                       other leaves it out
    tokens, valid (refsim), logical_n  refsim cuts tokens itself (``TokenShards``); ttnn's mesh mapper cuts them, and
                                       its ops only ask how many are real
    prompt_tokens, text_tokens         the same for a prompt that is split over sp: ``logical_l`` in tt_impl
    shard (refsim)                     tt_impl's mapper knows which device holds what
    causal (refsim), mask (tt_impl)    tt_impl makes the mask once for all layers, refsim in each
    options (tt_impl)                  a ``ttnn.MeshDevice`` does not carry a run's options, refsim's device does
    silu (tt_impl)                     ttnn's norms go through the activation in the same op
    onto, activation, within, scales (tt_impl)  what an op of ttnn does besides the matmul; refsim does it afterwards
    stop, meta (refsim)                tt_impl decodes a given number of tokens; only refsim's programs are priced
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MIRRORED = ("layers", "blocks", "parallel", "models", "pipelines")
_NOT_YET = "tt_impl runs the transformers of SD3.5 and Flux.1 and the decoding of Qwen3 with DFlash so far"
ALONE = {
    "refsim/parallel/kv_ring.py": "the ring's transfers and buffers are inside one op of ttnn",
    "refsim/blocks/config.py": "what configurations have in common is shared",
    "refsim/blocks/shape.py": "what a model's blocks are made of is shared",
    "refsim/models/registry.py": "the list of models is shared",
    "refsim/models/spec.py": "what a model says of itself is shared",
    "refsim/models/motif/transformer.py": "only predictions know it",
    "refsim/models/warm.py": "ranks of refsim are forked; tt_impl has one process",
    "refsim/models/inputs.py": "what a model takes is checked once, by refsim",
    "refsim/pipelines/host.py": "the scheduler's step runs on the devices (tt_impl/pipelines/scheduler.py)",
    "refsim/pipelines/request.py": "what a user asks for is read once, for both",
    "tt_impl/pipelines/scheduler.py": "refsim's host runs the scheduler (refsim/pipelines/host.py)",
    "refsim/pipelines/attention.py": "attention alone is judged through the block in tt_impl",
    "tt_impl/layers/conv3d.py": "how ttnn lays out a kernel and cuts its work into blocks",
    "tt_impl/layers/pixels.py": "one head over all pixels, which refsim's decoders write out where they need it",
    "tt_impl/parallel/manager.py": "semaphores and persistent buffers, which refsim has in runtime/",
    "tt_impl/layers/matmul.py": "what ttnn does in one op with a matmul, refsim does one after the other",
    "tt_impl/parallel/programs.py": "block sizes and cores of a device's matmuls",
    "tt_impl/parallel/buffers.py": "who reads which persistent buffer, which refsim has in runtime/buffers.py",
    "tt_impl/parallel/checks.py": "what ttnn's calls are checked for; refsim's collectives check themselves",
    "tt_impl/parallel/context.py": "submesh, axes and mappers, which refsim has in runtime/device.py",
    "tt_impl/pipelines/sdpa_chunks.py": "circular buffers in L1, which only a device has",
    "tt_impl/pipelines/allocation.py": "ttnn's own allocator, which refsim has nothing like",
    "tt_impl/pipelines/ops.py": "operations of a device; refsim's are priced by refsim/timing",
}
SHARED = ("config.py", "spec.py", "figures.py", "single_file.py")
"""Files of a model's folder that both sides use."""
HOSTS = "refsim/pipelines/hosts/"
"""What the host does of a pipeline, for both sides."""
WITHOUT_TTNN: tuple[str, ...] = ()
"""What only refsim runs so far: nothing."""

RENAMED = {"device": "ctx", "tokens": "logical_n", "prompt_tokens": "logical_l", "text_tokens": "logical_l"}
UNMATCHED = {
    "refsim": ("shard", "valid", "causal", "stop", "meta", "contexts"),
    "tt_impl": ("options", "mask", "onto", "activation", "within", "scales", "silu"),
}
_LIST = "hidden states of the target's layers are one tensor in refsim, a list of tensors on the devices"
_VALID = "a prompt on the devices has its valid tokens only, and no mask"
_GROUPS = "one process drives the submeshes of all cfg groups"
DIFFERENT = {
    "layers/linear.py:AttentionSizes.padded": "in refsim Ulysses pads for itself, in the exchange",
    "layers/norm.py:DistributedLayerNorm.__init__": "refsim's has a name, under which parity finds what it gave",
    "layers/norm.py:DistributedStreamRMSNorm.__init__": "refsim's has a name, under which parity finds what it gave",
    "layers/norm.py:DistributedRMSNorm.__call__": "ttnn's op normalises, splits into heads and turns them at once",
    "models/wan22/embeddings.py:ConditionEmbedder.time": "on the devices activations have one dtype, the context's",
    "layers/embeddings.py:TimestepEmbedding.__call__": "on the devices activations have one dtype, the context's",
    "models/dflash/draft.py:DFlashDraftModel.__call__": _LIST,
    "models/vae_cogvideox/decoder.py:SpatialNorm.__call__": "a linear on the device keeps no frames of a stream",
    "models/flux1/embeddings.py:StreamEmbedders.__call__": "the host cuts tokens evenly, padded, whatever they are",
    "models/qwenimage/embeddings.py:sequences_of": _VALID,
    "models/mochi/embeddings.py:Conditioning.__call__": _VALID,
    "models/mochi/embeddings.py:sequences_of": _VALID,
    "models/t5/encoder.py:RelativeBias.__call__": "buckets of positions lie on the devices once for all layers",
    "parallel/cfg.py:gather_batch": _GROUPS,
    "pipelines/denoise.py:denoise": _GROUPS,
    "pipelines/pipeline.py:Run.load": "the class is the part's counterpart, and parts may share a context",
    "pipelines/speculative.py:DFlashDrafter.propose": _LIST,
    "parallel/ring.py:ring_attention": "prompts on the devices are cut to their valid tokens by the host",
    "parallel/usp.py:joint_attention": "refsim's prompt may bring no queries, and simulate_attention asks for the lse",
}
"""A reason for every signature that differs all the same, by ``file:name``."""

Signatures = dict[str, list[str]]


def files(root: Path, side: str) -> set[str]:
    """Files of one side that want a counterpart, relative to the side's folder."""
    return {
        path.relative_to(root / side).as_posix()
        for folder in MIRRORED
        for path in (root / side / folder).rglob("*.py")
        if path.name != "__init__.py"
    }


def is_excused(name: str) -> bool:
    """Whether a file of refsim is one that tt_impl shares, or has no use for yet."""
    shared = name.startswith(HOSTS) or (name.startswith("refsim/models/") and name.endswith(SHARED))
    return shared or any(name.startswith(part) for part in WITHOUT_TTNN)


def file_faults(root: Path, alone: dict[str, str]) -> list[str]:
    """One line for every file without counterpart and reason, and for every reason that is not needed."""
    refsim, device = files(root, "refsim"), files(root, "tt_impl")
    single = {f"refsim/{name}" for name in refsim - device} | {f"tt_impl/{name}" for name in device - refsim}
    faults = [f"{name}: no counterpart and no reason" for name in single if name not in alone and not is_excused(name)]
    return sorted(faults + [f"{name}: a reason that is not needed" for name in alone if name not in single])


def signatures(source: str) -> Signatures:
    """Names of the parameters of every public function and method of a module, ``*`` where only keywords follow."""
    found: Signatures = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            found[node.name] = _parameters(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found |= _methods(node)
    return found


def _methods(node: ast.ClassDef) -> Signatures:
    functions = [child for child in node.body if isinstance(child, ast.FunctionDef)]
    public = [f for f in functions if f.name in ("__init__", "__call__") or not f.name.startswith("_")]
    return {f"{node.name}.{f.name}": _parameters(f) for f in public}


def _parameters(node: ast.FunctionDef) -> list[str]:
    positional = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
    keywords = [a.arg for a in node.args.kwonlyargs]
    return [*positional, *(["*", *keywords] if keywords else [])]


def agree(refsim: list[str], device: list[str]) -> bool:
    """Whether two signatures say the same, but for what corresponds on purpose."""
    renamed = (name if name in device else RENAMED.get(name, name) for name in refsim)
    ours = [name for name in renamed if name not in UNMATCHED["refsim"]]
    theirs = [name for name in device if name not in UNMATCHED["tt_impl"]]
    for name in ("ctx", "logical_n", "logical_l"):
        if (name in ours) != (name in theirs):
            ours, theirs = ([n for n in side if n != name] for side in (ours, theirs))
    return _without_empty_star(ours) == _without_empty_star(theirs)


def _without_empty_star(names: list[str]) -> list[str]:
    return names[:-1] if names[-1:] == ["*"] else names


def signature_faults(root: Path, different: dict[str, str]) -> list[str]:
    """One line for every signature that differs without a reason, and for every reason that is not needed."""
    found = {}
    for name in sorted(files(root, "refsim") & files(root, "tt_impl")):
        ours, theirs = (signatures((root / side / name).read_text(encoding="utf-8")) for side in ("refsim", "tt_impl"))
        for function in ours.keys() & theirs.keys():
            if not agree(ours[function], theirs[function]):
                found[f"{name}:{function}"] = f"refsim takes {ours[function]}, tt_impl {theirs[function]}"
    faults = [f"{key}: {how}" for key, how in found.items() if key not in different]
    return sorted(faults + [f"{key}: a reason that is not needed" for key in different if key not in found])


def test_every_file_has_its_counterpart_or_a_reason():
    assert file_faults(ROOT, ALONE) == []


def test_counterparts_take_the_same_arguments_in_the_same_order():
    assert signature_faults(ROOT, DIFFERENT) == []


def test_enough_is_compared():
    """The comparison would also pass if nothing were found to compare."""
    both = files(ROOT, "refsim") & files(ROOT, "tt_impl")
    compared = {
        f"{name}:{function}"
        for name in both
        for function in signatures((ROOT / "refsim" / name).read_text(encoding="utf-8")).keys()
        & signatures((ROOT / "tt_impl" / name).read_text(encoding="utf-8")).keys()
    }
    assert {
        "layers/linear.py:ColParallelQKV.__init__",
        "blocks/double.py:DoubleStreamBlock.__call__",
        "parallel/padding.py:padded_features",
        "pipelines/transformer.py:program",
    } <= compared
    assert len(compared) >= 50


def _tree(root: Path, **sources: str) -> Path:
    """A tree of two sides with ``layers/norm.py`` in each, but for what ``sources`` (by side) replaces."""
    for side in ("refsim", "tt_impl"):
        path = root / side / "layers" / "norm.py"
        path.parent.mkdir(parents=True)
        device = "device" if side == "refsim" else "ctx"
        plain = f"class Norm:\n    def __init__(self, weights, {device}, name, *, eps): ...\n"
        path.write_text(sources.get(side, plain))
    return root


def test_a_missing_counterpart_is_noticed(tmp_path):
    root = _tree(tmp_path)
    assert file_faults(root, {}) == []
    (root / "tt_impl" / "layers" / "norm.py").unlink()
    assert file_faults(root, {}) == ["refsim/layers/norm.py: no counterpart and no reason"]
    assert file_faults(root, {"refsim/layers/norm.py": "why"}) == []


def test_a_reason_that_is_not_needed_is_noticed(tmp_path):
    root, gone = _tree(tmp_path), {"refsim/layers/norm.py": "why", "tt_impl/layers/gone.py": "why"}
    assert file_faults(root, gone) == [f"{name}: a reason that is not needed" for name in gone]
    assert signature_faults(root, {"layers/norm.py:Norm.__init__": "why"}) == [
        "layers/norm.py:Norm.__init__: a reason that is not needed"
    ]


@pytest.mark.parametrize(
    "parameters",
    ["ctx, weights, name, *, eps", "weights, ctx, prefix, *, eps", "weights, ctx, name, eps", "weights, ctx, name"],
    ids=["order", "name", "keyword", "fewer"],
)
def test_a_planted_difference_is_noticed(tmp_path, parameters):
    assert signature_faults(_tree(tmp_path / "same"), {}) == []
    root = _tree(tmp_path / "other", tt_impl=f"class Norm:\n    def __init__(self, {parameters}): ...\n")
    (fault,) = signature_faults(root, {})
    assert fault.startswith("layers/norm.py:Norm.__init__: refsim takes ['weights', 'device', 'name', '*', 'eps']")
    assert signature_faults(root, {"layers/norm.py:Norm.__init__": "why"}) == []


def test_what_one_side_does_not_need_may_be_left_out():
    assert agree(["weights", "name", "*", "eps"], ["weights", "ctx", "name", "*", "eps"])
    assert agree(["x", "*", "tokens", "prompt_tokens"], ["x", "*", "logical_n"])
    assert agree(["device", "*", "inputs"], ["device", "options", "*", "inputs"])
    assert not agree(["device", "x"], ["x", "ctx"])
