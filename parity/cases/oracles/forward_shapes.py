"""A forward of the library's model of two blocks of each kind, on meta tensors of the sizes that refsim says it takes.

Nothing is computed: a size that does not fit raises, one that fits by chance gives an answer of another size.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config
from torch.overrides import TorchFunctionMode

from parity.cases.oracles import oracle_of
from parity.cases.oracles.library import blocks_of, library_model
from parity.cases.oracles.meta import empty
from refsim.base.options import RunOptions
from refsim.models.spec import ModelSpec, Published
from refsim.timing.read.reading import read

Size = tuple[int, ...]
BATCH = 2
_SMALL = {"image": (6, 10), "video": (3, 6, 10)}
"""A latent whose sides all differ, an odd number of frames; the only one of a decoder, whose spec names no sizes."""
_TOKENS = 7


def wrong_shapes(spec: ModelSpec, published: Published) -> list[str]:
    """List what of a model's inputs and of its answer the library's class does not take or give, a clause each."""
    judge = {"transformer": _transformer, "vae_decoder": _decoder, "text_encoder": _encoder}.get(spec.kind)
    return list(judge(spec, published)) if judge else []  # experts are dealt out by value, of which meta has none


def _few_blocks(spec: ModelSpec, published: Published) -> dict[str, Any]:
    """Return the published configuration with two blocks of each kind at most."""
    counts = {kind: min(count, 2) for kind, count in spec.block_counts(published.config).items()}
    return spec.with_block_counts(published.config, counts)


def _transformer(spec: ModelSpec, published: Published) -> Iterator[str]:
    model = library_model(published, _few_blocks(spec, published))
    for name, size in (published.sizes | {"a small one": _SMALL[str(spec.latent)]}).items():
        seen = _Seen(model)
        shapes = spec.input_shapes(published, size, BATCH)
        tensors = {key: empty(shape, torch.int64 if key == "input_ids" else None) for key, shape in shapes.items()}
        try:
            tensors |= oracle_of(published.class_name).pipeline_inputs(model, tensors, size)
            with seen, _config.patch(meta_nonzero_assume_all_nonzero=True), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of autocast to fp32
                answer = model(**tensors, return_dict=False)[0]
        except Exception as e:  # whatever torch raises of sizes that do not fit
            yield f"{name}: {type(e).__name__}: {e}"
            continue
        if not spec.timing_only and shapes["hidden_states"][spec.channel_dim] != published.config["in_channels"]:
            yield f"{name}: its channels are not dim {spec.channel_dim}"
        if answer.shape != tensors["hidden_states"].shape:
            yield f"{name}: an answer of {tuple(answer.shape)} to {tuple(tensors['hidden_states'].shape)}"
        if len(shapes["hidden_states"]) == 3 and shapes["hidden_states"][1] not in seen.rows:
            yield f"{name}: {shapes['hidden_states'][1]} tokens of a latent, blocks are given {sorted(seen.rows)}"
        yield from _wrong_parts(spec, model, seen, published.text)
        if spec.timing_only and size == _SMALL[str(spec.latent)]:
            yield from _wrong_reading(spec, published, shapes, seen)


def _wrong_reading(spec: ModelSpec, published: Published, shapes: dict[str, Size], seen: _Seen) -> Iterator[str]:
    """Yield what attention has for keys in what predictions read, other than the rows of the class's streams."""
    try:
        ops = read(_few_blocks(spec, published), shapes, RunOptions.of(mesh="n150")).ops
    except Exception as e:  # whatever torch raises of sizes that do not fit
        yield f"not to be read: {type(e).__name__}: {e}"
        return
    keys = {op.inputs[1][2] for op in ops if op.kind == "sdpa"}
    if not keys <= seen.rows or seen.arguments["hidden_states"].shape[1] not in keys:
        yield f"attention over {sorted(keys)} rows where blocks are given {sorted(seen.rows)}"


class _Seen(TorchFunctionMode):
    """What is seen of a forward: the arguments of its first block, and the rows of two tensors put one after the other.

    Attributes:
        arguments: of the block by name.
        joined: (rows of the first, rows of the second) of every such pair.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {}
        self.joined: set[tuple[int, int]] = set()
        self._hook = blocks_of(model)[0].register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.arguments = dict(inspect.signature(block.forward).bind(*args, **kwargs).arguments)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hook.remove()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.cat and len(args[0]) == 2:
            dim = (args[1:] or ((kwargs or {}).get("dim", 0),))[0]
            self.joined.add(tuple(x.shape[dim] for x in args[0]))
        return function(*args, **(kwargs or {}))

    @property
    def rows(self) -> set[int]:
        """How many rows the streams have."""
        return {x.shape[1] for x in self.arguments.values() if isinstance(x, Tensor) and x.ndim == 3}


def _wrong_parts(spec: ModelSpec, model: nn.Module, seen: _Seen, prompt: int) -> Iterator[str]:
    """Yield what ``spec.diffusers`` says otherwise than the class: blocks, their attention, the order of streams."""
    parts = spec.diffusers
    if parts is None:
        return
    blocks = getattr(model, parts.blocks)
    if list(blocks) != blocks_of(model):
        yield f"{parts.blocks} are not its blocks"
    image = seen.arguments["hidden_states"].shape[1]
    for name in parts.attentions:
        if not all(hasattr(block, name) for block in blocks):
            yield f"not every block has {name}"
    first = {(prompt, image): True, (image, prompt): False}
    orders = {order for joined, order in first.items() if joined in seen.joined} or {None}
    if orders != {parts.prompt_first}:
        yield f"the prompt stands first: {orders}"
    if parts.rotary is not None:
        name, dim = parts.rotary
        tables = seen.arguments.get(name) or ()
        if name not in inspect.signature(blocks[0].forward).parameters or any(x.shape[dim] != image for x in tables):
            yield f"{name} has not a row a token in dim {dim}"


def _decoder(spec: ModelSpec, published: Published) -> Iterator[str]:
    """Compare the pixels of a latent by the library with those by the ratios that refsim reads from config.json."""
    size = _SMALL[str(spec.latent)]
    shapes = spec.input_shapes(published, size, 1)
    model = library_model(published, published.config)
    pixels = model.decode(empty(shapes["z"]), return_dict=False)[0].shape
    frames, rows = spec.config_class.from_dict(published.config).ratios
    wanted = [(n - 1) * frames + 1 for n in size[:-2]] + [n * rows for n in size[-2:]]
    if list(pixels[2:]) != wanted:
        yield f"pixels of {tuple(pixels)} where {wanted} are read from config.json"


def _encoder(spec: ModelSpec, published: Published) -> Iterator[str]:
    """Check that rows are as wide as config.json says by the spec's keys, and count a feed-forward's linears."""
    keys = spec.encoder_keys
    assert keys is not None
    width, inner = (published.config[key] for key in (keys.width, keys.inner))
    model = library_model(published, published.config | {keys.layers: 2})
    answer = model(input_ids=empty((BATCH, _TOKENS), torch.int64)).last_hidden_state
    if answer.shape != (BATCH, _TOKENS, width):
        yield f"an answer of {tuple(answer.shape)}"
    into = sum(x.shape == (inner, width) for name, x in model.named_parameters())
    if into != 2 * (1 + keys.gated):
        yield f"{into} linears into the feed-forwards of two blocks"
