"""Sums that are spread over an axis: from the matmul that makes them to the collective that must add them up.

    x cut along its columns  @  weight cut along its rows  -->  every device holds a part of the sum
    part --> reshape, add, scale, ... --> reduce_scatter, all_reduce      right
    part --> gelu, layer_norm, attention, ...                             wrong: not the function of the sum
    part of one device --> host                                           wrong: one part only
    parts of all devices --> host                                         a note: the host has to add them up
    part + what all devices hold --> reduce_scatter                       wrong: counted once per device

Only weights that came from the host are known to be cut as ttnn says; what it says of results is often nominal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tt_impl.harness.checks import NOTE
from tt_impl.harness.checks.fabric import groups
from tt_impl.harness.checks.finding import Finding, at
from tt_impl.harness.checks.reads import HOST, is_output, succeeded
from tt_impl.mock.log.events import Event, EventLog, TensorUse

_MATMULS = frozenset(f"ttnn.{name}" for name in ("linear", "matmul", "experimental.minimal_matmul"))
_FROM_HOST = frozenset(f"ttnn.{name}" for name in ("from_torch", "as_tensor", "to_device", "Tensor.to"))
_ADDS = frozenset(f"ttnn.{name}" for name in ("add", "add_", "subtract", "subtract_"))
_NONLINEAR = frozenset(
    f"ttnn.{name}"
    for name in """
    gelu silu relu relu6 leaky_relu elu celu selu mish hardswish hardsigmoid softplus sigmoid sigmoid_accurate tanh exp
    exp2 expm1 log log2 log10 log1p sqrt rsqrt square pow reciprocal abs sin cos softmax softmax_in_place argmax topk
    layer_norm rms_norm group_norm layer_norm_pre_all_gather rms_norm_pre_all_gather swiglu geglu glu
    experimental.dit_layernorm_pre_allgather experimental.wan_fused_rmsnorm_pre_allgather
    experimental.dit_fused_distributed_rmsnorm experimental.dit_fused_distributed_layernorm
    transformer.scaled_dot_product_attention transformer.joint_scaled_dot_product_attention
    transformer.ring_joint_scaled_dot_product_attention transformer.exp_ring_joint_scaled_dot_product_attention
    """.split()
)
_SUMS_UP = frozenset({"reduce_scatter", "all_reduce"})


@dataclass(frozen=True)
class _Part:
    """A part of a sum: over which axis it is spread, who made it, and who added what all devices hold."""

    axis: int
    made: Event
    added: Event | None = None


def partial_sums(log: EventLog) -> Iterator[Finding]:
    """Find parts of sums that are used as sums, and what is added to each part although it belongs to the sum once."""
    weights: dict[int, TensorUse] = {}
    parts: dict[int, _Part] = {}
    read: dict[int, tuple[_Part, Event, set[int]]] = {}
    for event in succeeded(log):
        if event.op in _FROM_HOST and not event.inputs:
            weights |= {use.buffer: use for use in event.outputs}
        operands = [parts[use.buffer] for use in event.inputs if use.buffer in parts and not is_output(use)]
        part = operands[0] if operands else None
        made = _made(event, weights)
        if part is not None and event.op in HOST:
            _, _, devices = read.setdefault(part.made.number, (part, event, set()))
            devices.update(*(use.devices for use in event.inputs))
        elif part is not None:
            yield from _misused(event, part, len(operands))
            wholes = [use for use in event.inputs if use.buffer not in parts and cut_dims(use)[part.axis] is None]
            part = _onwards(event, part, len(operands), wholes)
        if made is not None and event.options.get("activation", event.options.get("fused_activation")) is not None:
            yield _nonlinear(event, made)
            made = None
        result = part or made
        for use in (*event.outputs, *(use for use in event.inputs if use.buffer in event.written)):
            parts.pop(use.buffer, None)
            if result is not None:
                parts[use.buffer] = result
    for part, event, devices in read.values():
        yield _left_by_the_host(event, part, devices)


def _left_by_the_host(event: Event, part: _Part, devices: set[int]) -> Finding:
    """Say that parts of a sum are read to the host: some of them, or all, which the host can still add up."""
    made = part.made
    axes = [set(group) & devices for group in groups(made.mesh, made.devices, part.axis)]
    size = len(made.devices) // len(axes)
    cut = f"of {at(made)}, whose weight is cut along axis {part.axis} of the mesh in the dim that is summed over"
    if all(len(seen) in (0, size) for seen in axes):
        sentence = f"{event.op} reads parts of the sum {cut}: add all {size} of them up on the host."
        return Finding.of("partial-sum", event, sentence, NOTE)
    remedy = "reduce_scatter or all_reduce along it before"
    return Finding.of("partial-sum", event, f"{event.op} reads one part of {size} of the sum {cut}: {remedy}.")


def _made(event: Event, weights: dict[int, TensorUse]) -> _Part | None:
    """Return the part of a sum that a matmul makes, by a weight that is cut along the dim that is summed over."""
    if event.op not in _MATMULS or len(event.inputs) < 2:
        return None
    x, weight, *rest = event.inputs
    if weight.buffer not in weights or weight.tensor != weights[weight.buffer].tensor or len(weight.shape) < 2:
        return None
    inner = -1 if event.options.get("transpose_b") else -2
    for axis, dim in enumerate(cut_dims(weight)):
        if is_dim(weight, dim, inner) and cut_dims(x)[axis] is not None:
            bias = next((use for use in rest if use.argument in ("bias", "bias_tensor", "2")), None)
            part = _Part(axis, event)
            return replace(part, added=event) if bias is not None and cut_dims(bias)[axis] is None else part
    return None


def cut_dims(use: TensorUse) -> tuple[int | None, ...]:
    """Return the dim that is cut along each of two axes; over a mesh of one row a dim is cut along its columns."""
    if len(use.placements) == len(use.mesh) == 2:
        return use.placements
    dim = use.placements[0] if use.placements else None
    return (dim if use.mesh[-1:] == (1,) else None, dim if use.mesh[:1] == (1,) else None)


def is_dim(use: TensorUse, dim: int | None, wanted: int) -> bool:
    """Say whether ``dim``, counted from either end, is dim ``wanted`` of a tensor, counted from its last (-1)."""
    return dim is not None and dim % len(use.shape) == len(use.shape) + wanted


def _onwards(event: Event, part: _Part, operands: int, wholes: list[TensorUse]) -> _Part | None:
    """Return what is left of a part after ``event``; None if it became a sum, or was reported.

    ``wholes`` are its other operands that all devices of the axis hold.
    """
    if any(c["axis"] in (None, part.axis) for c in event.collectives) or _is_nonlinear(event, operands):
        return None
    if event.op in _ADDS and part.added is None and operands < 2:
        return replace(part, added=event) if wholes else part
    return part


def _is_nonlinear(event: Event, operands: int) -> bool:
    both = event.op in ("ttnn.multiply", "ttnn.multiply_") and operands > 1
    fused = any("activation" in name and value for name, value in event.options.items())
    return event.op in _NONLINEAR or both or fused


def _misused(event: Event, part: _Part, operands: int) -> Iterator[Finding]:
    if _is_nonlinear(event, operands):
        yield _nonlinear(event, part)
    elif part.added is not None and any(
        c["collective"] in _SUMS_UP and c["axis"] in (None, part.axis) for c in event.collectives
    ):
        yield Finding.of(
            "bias-summed", part.added,
            f"{part.added.op} adds on every device of axis {part.axis} what {at(event)} then adds up, once per device: "
            "add it after the sum, or on one device of the axis only.",
        )  # fmt: skip


def _nonlinear(event: Event, part: _Part) -> Finding:
    made = "this matmul" if part.made is event else at(part.made)
    return Finding.of(
        "partial-sum", event,
        f"{event.op} takes for a sum what is part of one: {made} multiplies by a weight that is cut along axis "
        f"{part.axis} in the dim that is summed over; reduce_scatter or all_reduce along it before.",
    )  # fmt: skip
