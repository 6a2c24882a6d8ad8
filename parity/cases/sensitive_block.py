"""Weights and inputs of a single block on which every constant of its arithmetic shows in bf16.

With ordinary numbers an epsilon of 1e-2 passes for one of 1e-6, and the exact GELU for tanh's: bf16 rounds more off.

    a norm's epsilon    some tokens, and the queries and keys that one norm sees together, have a mean square of 1e-6
    GELU's kind         an eighth of the hidden features lie where tanh's is 40 % less than the exact one, and weigh
                        so much on the way out that they count
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SHARP = 1.5
"""Norm weights of queries and keys are multiplied by it: scores of spread 2 make a few keys count in every row. With
spread 1 attention averages 100 keys to a tenth of the feed-forward's size, and what the block adds would hardly show
it."""
FAINT = 1e-3
"""Spread of faint values: their mean square is the epsilon of the models' norms."""
FAINT_TOKENS = slice(3, None, 8)
"""One token of eight."""
_TAIL = -3.9
_SLOPE = 0.05
_OUT = 5e3
"""Hidden features in GELU's tail: their bias, and the factors on what goes in and on what comes out."""
_PROJECTIONS = {"norm_q": "to_q", "norm_k": "to_k", "norm_added_q": "add_q_proj", "norm_added_k": "add_k_proj"}


def make_sensitive(state: dict[str, Tensor]) -> None:
    """Change the weights of a block of diffusers, by name, in place."""
    for name in list(state):
        path, _, kind = name.rpartition(".")
        parent, _, layer = path.rpartition(".")
        if layer in _PROJECTIONS and kind == "weight":
            seen = len(state[name])  # features of one head, or of all
            for part in ("weight", "bias"):
                projection = f"{parent}.{_PROJECTIONS[layer]}.{part}"
                if projection in state:
                    state[projection][:seen] *= FAINT
        if ".norm_" in name and ".attn" in name:
            state[name] *= SHARP
        if name.endswith("net.0.proj.weight") and f"{path}.bias" in state:  # without one it is gated
            _bend(state, path, f"{parent.removesuffix('.0')}.2")
        if name.endswith("proj_mlp.weight"):
            _bend(state, path, f"{parent}.proj_out")


def _bend(state: dict[str, Tensor], inner: str, outer: str) -> None:
    """Move hidden features of a feed-forward into GELU's tail; they are the last ones that ``outer`` takes."""
    hidden = len(state[f"{inner}.weight"])
    tail = slice(hidden - hidden // 8, hidden)
    state[f"{inner}.weight"][tail] *= _SLOPE
    state[f"{inner}.bias"][tail] = _TAIL + _SLOPE * state[f"{inner}.bias"][tail]
    state[f"{outer}.weight"][:, -(hidden // 8) :] *= _OUT
