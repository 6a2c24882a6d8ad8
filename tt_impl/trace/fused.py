"""What an operation of ttnn does besides what its name says: work that would otherwise be an operation of its own.

A matmul that adds its bias, applies the activation, gates and adds the residual while the product is still in L1 saves
a read and a write of the whole tensor each time.
"""

from __future__ import annotations

from typing import Any

from tt_impl.trace.collectives import TABLE
from tt_impl.trace.intercept import Invocation

_BY_ARGUMENT = {
    "bias": "bias",
    "bias_tensor": "bias",
    "activation": "activation",
    "fused_activation": "activation",
    "residual_input_tensor": "residual",
    "rope_cos": "rope",
    "input_tensor_a_activations": "activation",
    "activations": "activation",
}
_BY_NAME = {
    "minimal_matmul_split": ("split",),
    "dit_minimal_matmul_addcmul_fused": ("gate", "residual"),
    "wan_fused_rmsnorm_post_allgather": ("heads",),
    "dit_fused_distributed_rmsnorm": ("heads",),
    "addcmul": ("multiply",),
}
_NORMS = ("layer_norm", "layernorm", "rms_norm", "rmsnorm")
_GATED = "addcmul_input_tensor1"


def fuses(call: Invocation, device_ops: list[str]) -> list[list[str]]:
    """For every device operation that ``call`` became, what it does besides; all of it falls to the first.

    An activation that ttnn runs as an operation of its own is not fused, whatever the call looks like:
    ``ttnn.linear(activation=...)`` without a program config is a matmul and a unary operation.
    """
    name = call.name.rpartition(".")[2]
    collective = TABLE.get(call.name)
    words = [collective.kind] if collective is not None and collective.part else []
    words += _BY_NAME.get(name, ())
    if _is_set(call.kwargs.get(_GATED)):
        words += ["gate", "residual"]
    words += [word for key, word in _BY_ARGUMENT.items() if _is_set(call.kwargs.get(key))]
    if any(norm in name for norm in _NORMS) and _is_set(call.kwargs.get("weight")):
        words.append("scale and shift" if _is_set(call.kwargs.get("bias")) else "scale")
        words = [word for word in words if word != "bias"]
    if len(device_ops) > 1 and "UnaryDeviceOperation" in device_ops[1:]:
        words = [word for word in words if word != "activation"]
    return [list(dict.fromkeys(words))] * bool(device_ops) + [[] for _ in device_ops[1:]]


def _is_set(value: Any) -> bool:
    return value is not None and not (isinstance(value, list | tuple | str) and not value)
