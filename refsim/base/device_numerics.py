"""Which of a device's roundings a run of the reference has, as ``--device-numerics`` spells them.

fast                                            everything as tt_impl's programs run it
fast:weights=bfloat8_b,fidelity=LoFi            the same with other weights and a cheaper fidelity
exact:ops=sdpa+norm,activations=bfloat16        attention and norms alone, everything else as the run's dtype has it
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from refsim.base.errors import UserError

Level = Literal["fast", "exact"]
Fidelity = Literal["LoFi", "HiFi2", "HiFi3", "HiFi4"]
Destination = Literal["bf16", "fp32"]
WeightsFormat = Literal["bfloat16", "bfloat8_b", "bfloat4_b", "float32"]
Activations = Literal["bfloat16", "float32", "dtype"]
Arch = Literal["wormhole_b0", "blackhole", "mesh"]
Op = Literal["weights", "linear", "conv", "sdpa", "norm", "activation", "rope", "eltwise", "ccl"]

OPS: tuple[Op, ...] = get_args(Op)
_SHORT = {"bf16": "bfloat16", "bfp8_b": "bfloat8_b", "bfp4_b": "bfloat4_b", "fp32": "float32"}
_FORMATS = ("weights", "activations")
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class DeviceNumerics:
    """Rules of rounding, each as ttnn's compute configs name it; defaults are those of tt_impl's programs.

    Attributes:
        level: ``exact`` gives the simulator's bits, ``fast`` as much error (see ``refsim.numerics``).
        weights: what matrices of linears and convolutions are stored as, by the host's conversion.
        fidelity, dest: of linears and convolutions; the destination has 32 or 16 bits.
        k_block: values of K that a linear adds up before it packs.
        sdpa_fidelity, sdpa_dest: of attention; 16 bits run the streaming kernel, 32 the legacy one.
        k_chunk: keys of a chunk of attention.
        norm_fidelity, norm_dest: of norms and softmax.
        approximate: functions of the vector unit take their cheap variant.
        activations: what results are packed as; ``dtype`` is the run's. In a run in fp32 ``bfloat16`` rounds what goes
            in and out of each op in ``ops`` and leaves everything else in fp32.
        arch: of the chip; ``mesh`` is that of the run's mesh.
        ops: those that are computed as a device does; the others stay as they are without.

    Raises:
        UserError: a value that does not exist, in one sentence.
    """

    level: Level = "fast"
    weights: WeightsFormat = "bfloat16"
    fidelity: Fidelity = "HiFi2"
    dest: Destination = "fp32"
    k_block: int = 256
    sdpa_fidelity: Fidelity = "HiFi2"
    sdpa_dest: Destination = "bf16"
    k_chunk: int = 128
    norm_fidelity: Fidelity = "HiFi4"
    norm_dest: Destination = "fp32"
    approximate: bool = False
    activations: Activations = "dtype"
    arch: Arch = "mesh"
    ops: tuple[Op, ...] = OPS

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise UserError(f"--device-numerics {name}={value} does not exist; choose one of {', '.join(choices)}.")
        for name in ("k_block", "k_chunk"):
            value = getattr(self, name)
            if type(value) is not int or value < 32 or value % 32:
                raise UserError(f"--device-numerics {name}={value} is no multiple of 32, the side of a tile.")
        if type(self.approximate) is not bool:
            raise UserError(f"--device-numerics approximate={self.approximate} is neither true nor false.")
        unknown = [op for op in self.ops if op not in OPS]
        if unknown or not self.ops:
            wrong = unknown[0] if unknown else ""
            raise UserError(f"--device-numerics ops={wrong} does not exist; join some of {'+'.join(OPS)}.")

    @classmethod
    def parse(cls, text: str) -> DeviceNumerics:
        """Read ``LEVEL`` or ``LEVEL:KEY=VALUE,KEY=VALUE...``, the keys being the fields of this class.

        Raises:
            UserError: no such level, key or value.
        """
        level, _, rest = text.partition(":")
        if level not in get_args(Level):
            raise UserError(
                f"--device-numerics '{text}' names no level; write fast or exact, and options after a colon, as in "
                "fast:weights=bfloat8_b,fidelity=HiFi2,dest=fp32."
            )
        keys = [field.name for field in fields(cls) if field.name != "level"]
        options: dict = {}
        for item in rest.split(",") if rest else []:
            key, equals, value = (part.strip() for part in item.partition("="))
            if key not in keys or not equals:
                raise UserError(f"--device-numerics has no '{item}'; write KEY=VALUE of {', '.join(keys)}.")
            options[key] = _read(key, value)
        return cls(level, **options)

    def __str__(self) -> str:
        """Return the text that :meth:`parse` reads, without what is usual."""
        items = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "level" or value == field.default:
                continue
            written = "+".join(value) if isinstance(value, tuple) else str(value).lower() if value is True else value
            items.append(f"{field.name}={written}")
        return f"{self.level}:{','.join(items)}" if items else self.level


_CHOICES: dict[str, tuple[str, ...]] = {
    "level": get_args(Level),
    "weights": get_args(WeightsFormat),
    "fidelity": get_args(Fidelity),
    "dest": get_args(Destination),
    "sdpa_fidelity": get_args(Fidelity),
    "sdpa_dest": get_args(Destination),
    "norm_fidelity": get_args(Fidelity),
    "norm_dest": get_args(Destination),
    "activations": get_args(Activations),
    "arch": get_args(Arch),
}


def _read(key: str, value: str) -> object:
    if key in ("k_block", "k_chunk"):
        return int(value) if value.isdecimal() else value
    if key == "approximate":
        return _BOOLEANS.get(value, value)
    if key == "ops":
        return tuple(value.split("+"))
    return _SHORT.get(value, value) if key in _FORMATS else value
