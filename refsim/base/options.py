"""One run's options in one frozen object: where it runs, in which precision, and how its schemes are carried out.

``RunOptions`` says everything about a run but what is computed (the checkpoint, its inputs, the prompt). The command
line and the Python interface build one with :meth:`RunOptions.of`; the launcher, every rank program, every layer (by
way of ``device.options``), parity's cases and the ttnn launcher take it whole. It checks itself, so that whoever holds
one may rely on it, and it survives a round trip through JSON, which is how it reaches the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from refsim.base.config import DiTParallelConfig, ParallelFactor, parse_parallel
from refsim.base.device_numerics import DeviceNumerics
from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec, get_mesh

if TYPE_CHECKING:
    import torch

Backend = Literal["cpu", "ttnn-mock", "ttnn-sim", "ttnn-device"]
Dtype = Literal["fp32", "bf16"]
WeightsDtype = Literal["bf16", "bfp8_b", "bfp4_b"]
Numerics = Literal["off", "fast", "exact"]
PromptLayout = Literal["replicated", "split"]
RingOrder = Literal["gather", "step", "block"]
Math = Literal["reference", "storage", "gemm"]
VAEParallel = Literal["spatial", "tensor"]
Transport = Literal["auto", "gloo", "shared"]

BACKENDS: tuple[Backend, ...] = get_args(Backend)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
WEIGHTS_DTYPES: tuple[WeightsDtype, ...] = get_args(WeightsDtype)
PROMPT_LAYOUTS: tuple[PromptLayout, ...] = get_args(PromptLayout)
RING_ORDERS: tuple[RingOrder, ...] = get_args(RingOrder)
MATHS: tuple[Math, ...] = get_args(Math)
VAE_PARALLEL: tuple[VAEParallel, ...] = get_args(VAEParallel)
TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
NUMERICS: tuple[Numerics, ...] = get_args(Numerics)

DEFAULT_TIMEOUT_S = 300.0
_MAX_TIMEOUT_S = 1e6
_CHUNKS_OF_DEVICE = 256, 512
_CHUNKS_OF_PROCESSOR = 2048, 2048
_SHORT = {"float32": "fp32", "bfloat16": "bf16"}
_EXAMPLE = {
    "mesh": "t3k",
    "parallel": "cfg2_sp2_tp2",
    "attention": "ring, ulysses or usp",
    "ring": "a whole number",
    "ulysses": "a whole number",
}
_FACTORS = ("attention", "ring", "ulysses")


@dataclass(frozen=True)
class RunOptions:
    """How a run is laid out, stored, ordered and bounded.

    Attributes:
        mesh: the devices; rank ``r`` plays device ``r`` in row-major order.
        parallel: the factors of the parallel schemes and the mesh axis of each.
        dtype: storage of weights and activations, ``fp32`` or ``bf16``.
        weights_dtype: storage of the matrices of linear layers on a ttnn backend: ``bf16``, or ``bfp8_b`` and
            ``bfp4_b``, blocks of 16 numbers with one exponent, which are half and a quarter as large; biases, norms and
            activations keep ``dtype``.
        prompt_layout: the prompt's tokens are ``replicated`` on every device of sp, or ``split`` over them.
        ring_order: how the ring overlaps: ``gather`` all shards first, or pass on a ``step`` or a ``block`` at a time
            (see ``refsim.parallel.ring``).
        math: how refsim's ranks compute attention to one block of keys: in the dtype of ``storage``, by torch's fused
            kernel, for ``reference`` one precision above it (bf16 in fp32, fp32 in fp64), or for ``gemm`` by two
            products of matrices in the dtype of storage with a softmax in fp32 between them; blocks are merged in fp32
            each time. The first is as fast as torch and rounds as any fused kernel does; the second leaves no rounding
            but the scheme's own; the third is faster than the first where a processor multiplies bf16 faster than that
            kernel does, but rounds scores to storage. A ttnn backend has arithmetic of its own.
        q_chunk_size, k_chunk_size: rows of queries and of keys that refsim's attention handles at a time; None: see
            :attr:`chunk_sizes`. A device's own chunk sizes are chosen by its program.
        pad_heads: heads that do not split evenly are padded with zeros, or (False) refused.
        variant: which of several sets of weights a folder's are, as in diffusers: ``fp16`` reads
            ``diffusion_pytorch_model.fp16.safetensors``; None reads those without a variant.
        lora: LoRA files that are merged into the weights, each ``FILE`` or ``FILE:SCALE``; of a pipeline's second
            expert ``transformer_2=FILE:SCALE`` (see ``refsim.files.lora``).
        vae_parallel: what tp cuts of an image's decoder, its columns (``spatial``) or its channels (``tensor``).
        backend: what computes: ``cpu`` (refsim's ranks), ``ttnn-mock``, ``ttnn-sim`` or ``ttnn-device``.
        transport: how tensors come from rank to rank: by sockets (``gloo``), out of each other's memory on one host
            (``shared``), or ``auto``, the second where every rank may read its neighbour's memory, else the first.
            Bits, trace and hazards are the same, but only gloo writes into a posted receive in the middle of an op, as
            a device does. A result says which it was.
        timeout_s: the longest wait for a peer, and the longest time without any sign of life, in seconds.
        trace: keep the events of every rank.
        delay: for tests of the harness: (seed, longest pause in seconds) of pauses and of operations that do not
            depend on each other taken in another order.
        fault: for tests of the harness: ``module:function`` of a context manager that every rank enters around its
            program, to put a mistake in and take it out again (see ``parity.faults``); keyword arguments may follow in
            JSON, after a blank.
        observe: for tests of models: folder in which every rank leaves what its layers took and gave (see
            ``refsim.runtime.watch.observe``).
        device_numerics: a device's roundings, as :class:`refsim.base.device_numerics.DeviceNumerics` reads them: the
            ranks compute every op as its kernel does, and ``math`` and chunk sizes mean nothing to attention.
        numerics: how ``ttnn-mock`` rounds values: ``fast`` or ``exact`` as kernels do, ``off`` once an operation.
        detect_hazards: log the uses of device buffers and look for hazards; off only to measure what that costs.

    Raises:
        UserError: a value that does not exist or does not go with another one, in one sentence.
    """

    mesh: MeshSpec
    parallel: DiTParallelConfig
    dtype: Dtype = "fp32"
    weights_dtype: WeightsDtype = "bf16"
    prompt_layout: PromptLayout = "replicated"
    ring_order: RingOrder = "step"
    math: Math = "storage"
    q_chunk_size: int | None = None
    k_chunk_size: int | None = None
    pad_heads: bool = True
    variant: str | None = None
    lora: tuple[str, ...] = ()
    vae_parallel: VAEParallel = "spatial"
    backend: Backend = "cpu"
    transport: Transport = "auto"
    timeout_s: float = DEFAULT_TIMEOUT_S
    trace: bool = False
    delay: tuple[int, float] | None = None
    fault: str = ""
    observe: str = ""
    device_numerics: str = ""
    numerics: Numerics = "off"
    detect_hazards: bool = True

    def __post_init__(self) -> None:
        for name, kind in (("mesh", MeshSpec), ("parallel", DiTParallelConfig)):
            if not isinstance(getattr(self, name), kind):
                raise UserError(f"{name} is {getattr(self, name)!r}; give a name, as in RunOptions.of({name}=...).")
        for name in ("pad_heads", "trace", "detect_hazards"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} is true or false, not {getattr(self, name)!r}.")
        if self.parallel.num_devices != self.mesh.num_devices:
            raise UserError(
                f"{self.parallel} uses {self.parallel.num_devices} devices but mesh {self.mesh} has "
                f"{self.mesh.num_devices}; build the factors with parse_parallel."
            )
        for name, allowed in (
            ("backend", BACKENDS),
            ("weights_dtype", WEIGHTS_DTYPES),
            ("prompt_layout", PROMPT_LAYOUTS),
            ("ring_order", RING_ORDERS),
            ("math", MATHS),
            ("vae_parallel", VAE_PARALLEL),
            ("transport", TRANSPORTS),
            ("numerics", NUMERICS),
        ):
            if getattr(self, name) not in allowed:
                flag = f"--{name.replace('_', '-')}"
                known = ", ".join(allowed)
                raise UserError(f"{flag} '{getattr(self, name)}' does not exist; choose one of {known}.")
        if not (self.variant is None or isinstance(self.variant, str)):
            raise UserError(f"variant is {self.variant!r}; it must be a text, such as fp16.")
        if not (isinstance(self.lora, tuple) and all(isinstance(file, str) for file in self.lora)):
            raise UserError(f"lora is {self.lora!r}; it must be a text FILE or FILE:SCALE, or several.")
        if self.dtype not in DTYPES:
            raise UserError(f"--dtype '{self.dtype}' is not supported; choose fp32 or bf16.")
        if self.weights_dtype != "bf16" and self.backend == "cpu":
            raise UserError(
                f"weights in {self.weights_dtype} are for ttnn; choose a ttnn backend or leave out --weights-dtype."
            )
        if self.device_numerics and self.backend != "cpu":
            raise UserError(
                f"--device-numerics is for refsim's ranks; leave it out on {self.backend} or choose --backend cpu."
            )
        if self.numerics != "off" and self.backend != "ttnn-mock":
            instead = "--device-numerics rounds on refsim's ranks" if self.backend == "cpu" else "kernels round there"
            raise UserError(f"--numerics is for ttnn-mock; leave it out on {self.backend}, {instead}.")
        DeviceNumerics.parse(self.device_numerics or "fast")
        chunks = [n for n in (self.q_chunk_size, self.k_chunk_size) if n is not None]
        if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in chunks):
            raise UserError(f"chunk sizes are 1 or more, not {self.q_chunk_size} and {self.k_chunk_size}.")
        number = isinstance(self.timeout_s, int | float) and not isinstance(self.timeout_s, bool)
        if not (number and 0 < self.timeout_s < _MAX_TIMEOUT_S):
            raise UserError(f"the timeout is a number of seconds above 0, not {self.timeout_s}.")

    @classmethod
    def of(cls, *, mesh: str | MeshSpec, parallel: str | DiTParallelConfig = "sp1", **settings: Any) -> RunOptions:
        """Build the options from what users write.

        Args:
            mesh: a mesh's name, or a spec.
            parallel: factors such as ``cfg2_sp2_tp2`` or ``sp2@0_tp4@1``, or a configuration.
            settings: ``attention``, ``ring`` and ``ulysses`` (see :func:`refsim.base.config.parse_parallel`) and any
                other field of this class. ``dtype`` may also be a torch dtype or its name; without one it is ``fp32``,
                and ``bf16`` on a ttnn backend and with ``device_numerics``.

        Raises:
            UserError: an option that does not exist, or a value that does not fit.
        """
        for name, value, kinds in (("mesh", mesh, str | MeshSpec), ("parallel", parallel, str | DiTParallelConfig)):
            if not isinstance(value, kinds):
                raise UserError(f"{name} is {value!r}; it must be a text, such as {_EXAMPLE[name]}.")
        spec = get_mesh(mesh)
        factors = {name: settings.pop(name) for name in _FACTORS if name in settings}
        known = [f.name for f in fields(cls) if f.name not in ("mesh", "parallel")]
        for name, value in factors.items():
            if value is not None and type(value) is not (str if name == "attention" else int):
                raise UserError(f"{name} is {value!r}; it must be {_EXAMPLE[name]}.")
        for name in settings:
            if name not in known:
                raise UserError(f"option '{name}' does not exist; a run takes {', '.join([*_FACTORS, *known])}.")
        if isinstance(parallel, str):
            parallel = parse_parallel(parallel, spec, **factors)
        if isinstance(settings.get("lora"), str | Path | list):
            files = settings["lora"] if isinstance(settings["lora"], list) else [settings["lora"]]
            settings["lora"] = tuple(str(file) for file in files)
        dtype = settings.pop("dtype", None)
        if dtype is None:
            on_device = settings.get("backend", "cpu") != "cpu" or settings.get("device_numerics")
            dtype = "bf16" if on_device else "fp32"
        name = str(dtype).removeprefix("torch.")
        return cls(spec, parallel, dtype=cast(Dtype, _SHORT.get(name, name)), **settings)

    def but(self, **changed: Any) -> RunOptions:
        """Return the same options but for the fields ``changed``, checked again."""
        return replace(self, **changed)

    @property
    def storage(self) -> torch.dtype:
        """Return the torch dtype of weights and activations."""
        import torch

        return {"fp32": torch.float32, "bf16": torch.bfloat16}[self.dtype]

    @property
    def chunk_sizes(self) -> tuple[int, int]:
        """Return how many rows of queries and of keys attention handles at a time on refsim's ranks.

        Where they are not given: in ``storage`` and ``gemm`` math as many as a processor is fast with; in ``reference``
        math, and where blocks travel one by one (``ring_order`` block), as many as a device's op takes.
        """
        of_device = self.math == "reference" or self.ring_order == "block"
        q, k = _CHUNKS_OF_DEVICE if of_device else _CHUNKS_OF_PROCESSOR
        return self.q_chunk_size or q, self.k_chunk_size or k

    @property
    def splits_prompt(self) -> bool:
        """Whether the prompt's tokens are cut over more than one device."""
        return self.prompt_layout == "split" and self.parallel.sp > 1

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON values, from which :meth:`from_json` makes equal ones."""
        mesh = {f.name: getattr(self.mesh, f.name) for f in fields(self.mesh)}
        factors = {f.name: getattr(self.parallel, f.name) for f in fields(self.parallel)}
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("mesh", "parallel")}
        return {"mesh": mesh, "parallel": {n: [f.factor, f.mesh_axis] for n, f in factors.items()}, **rest}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RunOptions:
        """Restore the options that :meth:`to_json` wrote, tuples included."""
        rest = {name: _tuple(x) for name, x in value.items()}
        mesh = MeshSpec(**{name: _tuple(x) for name, x in rest.pop("mesh").items()})
        factors = {name: ParallelFactor(n, _tuple(axis)) for name, (n, axis) in rest.pop("parallel").items()}
        return cls(mesh, DiTParallelConfig(**factors), **rest)


def as_options(options: RunOptions | None, settings: dict[str, Any], **usual: Any) -> RunOptions:
    """Return the one of the two that was given: a ``RunOptions``, or the keywords of :meth:`RunOptions.of`.

    Args:
        usual: keywords that hold where ``settings`` has no others.
    """
    if options is not None:
        if settings:
            raise UserError(
                f"give options or {', '.join(settings)}, not both; options.but({next(iter(settings))}=...) works."
            )
        return options
    if "mesh" not in settings:
        raise UserError("a run needs a mesh, such as mesh='t3k'; `refsim meshes` lists the names.")
    return RunOptions.of(**usual | settings)


def _tuple(x: Any) -> Any:
    return tuple(x) if isinstance(x, list) else x
