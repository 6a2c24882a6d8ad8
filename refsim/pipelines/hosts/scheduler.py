"""The scheduler of a pipeline folder: read, checked against what diffusers' class takes, its steps set and checked."""

from __future__ import annotations

import inspect
import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from refsim.base.errors import UserError, first_line
from refsim.base.schema import Flag, Real, Text, check, read_object, short

_MOST = 1_000_000
"""Of time steps of training, and of any other whole number: schedulers make tables and lists as long."""
FILE = "scheduler_config.json"


def read_scheduler_config(folder: Path) -> dict[str, Any]:
    """Read ``scheduler_config.json`` of a scheduler's folder; ``UserError`` if it is not one."""
    return read_object(folder / FILE)


def load_scheduler(folder: Path) -> Any:
    """Load diffusers' scheduler of a folder.

    Raises:
        UserError: the folder names none, or has a value of another kind than the scheduler's own default.
    """
    config = read_scheduler_config(folder)
    where = f"'{folder / FILE}'"
    name = config.get("_class_name")
    import diffusers

    kind = getattr(diffusers, name, None) if isinstance(name, str) and name.endswith("Scheduler") else None
    if kind is None:
        raise UserError(
            f"{where} names the scheduler {short(name)}, which diffusers {diffusers.__version__} does not have."
        )
    _check(kind, config, where)
    return _guarded(where, partial(kind.from_config, config))


def set_steps(scheduler: Any, folder: Path, steps: int, **more: Any) -> None:
    """Set a scheduler's time steps, before the first of them.

    Raises:
        UserError: the configuration makes no schedule of finite numbers of it.
    """
    where = f"'{folder / FILE}'"
    _guarded(where, partial(scheduler.set_timesteps, steps, **more))
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)
    for name in ("timesteps", "sigmas", "alphas_cumprod"):
        values = torch.as_tensor(getattr(scheduler, name, 0.0))
        if not bool(torch.isfinite(values).all()):
            raise UserError(
                f"{where} makes {name} of {steps} steps that are not finite; look at its shift, sigmas and betas."
            )
    if not 1 <= len(scheduler.timesteps):
        raise UserError(f"{where} makes no time steps of {steps}; choose another number of --steps.")


def _check(kind: Any, config: dict[str, Any], where: str) -> None:
    """Compare every value with the default that the scheduler's class has for it: diffusers checks none of them."""
    hints = get_type_hints(kind.__init__)
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name not in config or config[name] == parameter.default:
            continue
        default = parameter.default
        value = config[name]
        if get_origin(hints.get(name)) is Literal:
            if value not in get_args(hints[name]):
                check(hints[name], value, name, where)
        elif isinstance(default, bool):
            check(Flag, value, name, where)
        elif isinstance(default, int | float) or (default is None and isinstance(value, float)):
            if not (isinstance(default, float) and math.isinf(default) and value == default):
                check(Real, value, name, where)
            _check_number(name, default, value, where)
        elif isinstance(default, str):
            check(Text, value, name, where)


def _check_number(name: str, default: Any, value: float, where: str) -> None:
    if isinstance(default, int) and value != int(value):
        raise UserError(f"{where} has {name} = {value}; it must be a whole number.")
    least = 1 if name == "num_train_timesteps" else -_MOST
    if isinstance(default, int) and not least <= value <= _MOST:
        raise UserError(f"{where} has {name} = {short(value)}; it must be a whole number from {least} to {_MOST}.")
    if name in ("shift", "flow_shift") and not value > 0:
        raise UserError(f"{where} has {name} = {value}; it must be a number above 0.")


def _guarded(where: str, call: Any) -> Any:
    """Call diffusers; what its own code then trips over is a value in the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of numpy dividing by zero: what comes of it is looked at
            return call()
    except Exception as e:  # any: diffusers checks no value, so each fails in its own way
        raise UserError(f"{where} cannot be used by diffusers ({first_line(e)}).") from e
