"""Names of device operations, as profilers of several years write them, and the class that the model prices each as.

``MatmulDeviceOperation``, ``Matmul`` and ``MinimalMatmulOp`` beside ``MinimalMatmulDeviceOperation``: an ending says
nothing, nor does the case. A name that is not here has no class; nothing is priced as a copy because it is unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KINDS = ("matmul", "conv", "norm", "elementwise", "layout", "collective", "sdpa")
_AS: dict[str, dict[str, tuple[str, ...]]] = {
    "matmul": {"Matmul": (), "MinimalMatmulOp": ("MinimalMatmulSplit",), "AllGatherMinimalMatmulAsyncOp": (),
        "matmul_reduce_scatter": (),
    },
    "conv": {"Conv2dDeviceOperation": ("OptimizedConvNew",)},
    "norm": {
        "LayerNormDeviceOperation": (
            "LayerNormPreAllGather", "LayerNormPostAllGather", "FusedRMSNormPreAllGather", "FusedRMSNormPostAllGather",
            "PreAllGather", "PostAllGather",
        ),
        "SoftmaxDeviceOperation": (), "Pool2D": (),
    },
    "elementwise": {
        "BinaryNgDeviceOperation": ("Ternary", "RotaryEmbeddingLlama", "RotaryEmbedding", "FastReduceNC", "Where"),
        "UnaryDeviceOperation": (), "TypecastDeviceOperation": (), "BinaryDeviceOperation": (),
    },
    "layout": {
        "TilizeDeviceOperation": ("TilizeCodegen",), "UntilizeDeviceOperation": ("UntilizeCodegen",),
        "UntilizeWithUnpaddingDeviceOperation": (), "TilizeWithValPaddingDeviceOperation": (),
        "ReshapeDeviceOperation": ("ReshapeView",),
        "TransposeDeviceOperation": (
            "NlpCreateHeads", "NLPConcatHeads", "CreateQKVHeads", "ConcatenateHeads", "SplitFusedQKVAndSplitHeads",
            "CreateQKVHeadsSeparateTensors", "Pad",
        ),
        "CopyDeviceOperation": ("Clone", "Repeat", "UpdateKVCache", "PagedUpdateCache", "PagedFillCache"),
        "SliceDeviceOperation": ("Split", "MeshPartition"), "PaddedSliceDeviceOperation": (),
        "SliceWriteDeviceOperation": (), "HaloDeviceOperation": (),
        "PermuteDeviceOperation": (), "ConcatDeviceOperation": (), "EmbeddingsDeviceOperation": (),
        "InterleavedToShardedDeviceOperation": ("InterleavedToShardedPartial",),
        "ShardedToInterleavedDeviceOperation": ("ShardedToInterleavedPartial",),
        "ReshardDeviceOperation": (), "MoveDeviceOperation": (), "UpsampleOperation": (),
    },
    "collective": {
        "all_gather": ("AllGather", "AllGatherAsync", "RingAttentionAllGatherAsync"),
        "reduce_scatter": ("ReduceScatter", "ReduceScatterMinimalAsync"),
        "all_reduce": ("AllReduce", "AllReduceAsync"),
        "all_to_all": ("AllToAllAsync", "AllToAllAsyncGeneric"),
    },
    "sdpa": {"SDPAOperation": ("ScaledDotProductAttention",), "JointSDPA": (), "RingJointSDPA": ()},
}  # fmt: skip
"""By class and by the name of what the model has a formula for: other names that are priced like it."""
_COMPARED = ("all_gather", "reduce_scatter", "RingJointSDPA")
"""Collectives and attention that there are measurements of; of the other classes, what has a formula of its own has."""


@dataclass(frozen=True)
class OpName:
    """What a name stands for.

    Attributes:
        kind: one of ``KINDS``.
        code: what has a formula of its own.
        compared: predictions of this very operation have been compared with measurements.
    """

    kind: str
    code: str
    compared: bool


def plain(name: str) -> str:
    """Return a name without what follows a blank, without its ending, in lower case."""
    return re.sub(r"(DeviceOperation|Operation|Op)$", "", name.split()[0]).casefold() if name.strip() else ""


def _known() -> dict[str, OpName]:
    names = {}
    for kind, codes in _AS.items():
        for code, alike in codes.items():
            for name in (code, *alike):
                compared = code in _COMPARED if kind in ("collective", "sdpa") else name == code
                names[plain(name)] = OpName(kind, code, compared)
    return names


_KNOWN = _known()


def op_name(name: str) -> OpName | None:
    """Return what a device operation's name stands for; None if the model has no class for it."""
    return _KNOWN.get(plain(name))
