"""What a model's folder says of itself. Everything else (loading, timing, plans, parity) asks; nothing names a model.

To add a model, fill one :class:`ModelSpec` in ``spec.py`` of its folder (:meth:`ModelSpec.of_folder`) and list the
folder in ``registry.py``, or register the object from a package of your own (entry points ``refsim.models``). Only the
first five fields are needed to run a checkpoint; each of the others opens one more door, and says which one.

Classes are named as ``"module:Name"`` and imported when they are first used, so that reading all specs loads no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from refsim.base.errors import UserError
from refsim.base.jobs import named
from refsim.files.folder import class_name_of
from refsim.models.inputs import BATCH, Dims, required

Config = dict[str, Any]
Kind = Literal["transformer", "text_encoder", "vae_decoder", "causal_lm", "drafter"]
KINDS = ("transformer", "text_encoder", "vae_decoder", "causal_lm", "drafter")
PROMPT = "prompt tokens"
"""What models call the dim of the prompt's tokens in ``input_shapes``."""
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_REFERENCES = (
    *("model", "config", "ttnn", "single_file", "block", "ttnn_block", "pipeline", "ttnn_pipeline"),
    "figures",
)


@dataclass(frozen=True)
class Companion:
    """A text encoder that works for a transformer.

    Attributes:
        stage: what the seconds it takes are called in predictions.
        published: the name of its configuration, in its own folder's spec.
        tokens: how many a prompt has.
        prompts: how many prompts it encodes for one picture; 2 with guidance.
    """

    stage: str
    published: str
    tokens: int
    prompts: int = 2


@dataclass(frozen=True)
class Published:
    """A model that exists, without its weights: for predictions, full-size random checkpoints, memory.

    Attributes:
        name: what ``refsim time`` takes, such as ``sd35-large``.
        config: its ``config.json``, with ``_class_name`` (diffusers) or ``architectures`` (transformers); of the
            project's own models that in ``published.json`` of the folder.
        parameters: how many it has (one expert, where there are several; of an autoencoder its encoder, too), counted
            on meta tensors; None of one of which that is not known.
        sizes: latent sizes by name, (height, width) or (frames, height, width), before patches.
        text: prompt tokens.
        experts: transformers of this size in the pipeline, which share its denoising steps.
        steps: denoising steps where none are given.
        branches: predictions a step needs, 2 with guidance by a negative prompt.
        encoders: the text encoders of its pipeline.
        decoder: the name of its autoencoder's configuration, in the autoencoder's own spec.
        ratios: frames and pixels per latent frame and row, of an autoencoder that has no spec.
        reported: sizes for which ``refsim report perf`` writes tables.
    """

    name: str
    config: Config = field(default_factory=dict)
    parameters: int | None = None
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    text: int = 0
    experts: int = 1
    steps: int = 0
    branches: int = 2
    encoders: tuple[Companion, ...] = ()
    decoder: str = ""
    ratios: tuple[int, int] | None = None
    reported: tuple[str, ...] = ()

    @property
    def class_name(self) -> str:
        return class_name_of(self.config)

    def but(self, **changed: Any) -> Published:
        """Return the same model but for the fields ``changed``."""
        return replace(self, **changed)


@dataclass(frozen=True)
class DiffusersParts:
    """How diffusers' object of a transformer is taken apart by :func:`refsim.parallelize`.

    Attributes:
        blocks: the attribute with the list of blocks.
        attentions: the attributes of a block that attend over all tokens.
        prompt_first: whether the processor puts the prompt before the image; None where there is no prompt in it.
        rotary: the keyword of the rotary tables and the dim of their tokens, if there are any.
    """

    blocks: str
    attentions: tuple[str, ...]
    prompt_first: bool | None
    rotary: tuple[str, int] | None = None


@dataclass(frozen=True)
class TtDit:
    """What tt_dit's pipeline of a model can be asked to run today.

    Attributes:
        cfg: guidance branches can run side by side.
        fsdp: weights can be cut over the sequence axis.
        pads_heads: heads that do not divide by tp are padded.
    """

    cfg: bool
    fsdp: bool
    pads_heads: bool


@dataclass(frozen=True)
class EncoderKeys:
    """The keys of a text encoder's config.json that give its sizes; ``gated``: the feed-forward has two linears in."""

    layers: str
    width: str
    heads: str
    inner: str
    gated: bool = False


def blocks_alike(config: Config) -> dict[str, int]:
    """Count ``num_layers`` blocks of one kind, the last one by itself: what follows it is read as part of it."""
    counts = {"block": config["num_layers"] - 1, "last": 1}
    return {kind: count for kind, count in counts.items() if count}


def with_num_layers(config: Config, counts: dict[str, int]) -> Config:
    """Return the configuration with as many layers as ``counts`` has blocks."""
    return config | {"num_layers": sum(counts.values())}


def no_more_dims(config: Config, size: tuple[int, ...]) -> dict[str, int]:
    """Return no dims but those of the latent, the batch and the prompt."""
    return {}


@dataclass(frozen=True)
class ModelSpec:
    """One model: its folder, its classes, the sizes it is published in, and what others need to know of it.

    Attributes:
        name: the folder's, the same in ``refsim.models`` and ``tt_impl.models``.
        class_names: what config.json of its checkpoints says, ``_class_name`` or the first of ``architectures``.
        kind: what it is, one of ``KINDS``.
        model: its class, ``Model(weights, device, config)`` with ``input_shapes(config)`` and, where an input of these
            dims may still not fit, ``check_inputs(shapes)``.
        config: the class of its configuration, ``from_dict(config)``.
        ttnn: its counterpart in TTNN, ``Model(weights, context, config)``, if there is one.
        single_file: what reads checkpoints in one file with names of their own, a function of the file that returns its
            :class:`refsim.files.single_file.Layout`, or None for another model's.
        block: of a transformer, what makes one of its blocks for cases that judge a block by itself:
            ``bind_block(weights, device, config, index, inputs)`` gives a function of both streams and the time step,
            for as many tokens as the case's ``inputs`` have.
        ttnn_block: the same in TTNN, with a context in place of the device.
        pipeline: of a transformer, the class that runs whole pipeline folders, see :mod:`refsim.pipelines.pipeline`.
        ttnn_pipeline: the same in TTNN, see :mod:`tt_impl.pipelines.pipeline`.
        pipeline_classes: what ``model_index.json`` of these folders says.
        published: the published configurations, of which the first stands for the model.
        figures: where the seconds stand that others measured, a tuple of :class:`refsim.models.figures.Figure` and
            ``Pair``.
        latent: of a transformer or a decoder, what its latent becomes.
        channel_dim: of a transformer, the dim of ``hidden_states`` that has the channels.
        vae_forms: forms of ``vae_parallel`` that a decoder has.
        frames_per_pass: of a video's decoder, latent frames it decodes at a time.
        diffusers: for :func:`refsim.parallelize`.
        tt_dit: what tt_dit runs of it, for ``refsim plan --today``; None if tt_dit has no such model.
        encoder_keys: of a text encoder, for predictions.
        timing_only: ``model`` can be read for time, but not run.
        block_counts: of a configuration, the kinds of blocks in the order they run and how many of each there are,
            without zeros; predictions read two of each kind.
        with_block_counts: the configuration with other numbers of blocks, for the same.
        more_dims: sizes of the input dims that follow from configuration and latent size, such as packed tokens.
    """

    name: str
    class_names: tuple[str, ...]
    kind: Kind
    model: str
    config: str
    ttnn: str | None = None
    single_file: str | None = None
    block: str | None = None
    ttnn_block: str | None = None
    pipeline: str | None = None
    ttnn_pipeline: str | None = None
    pipeline_classes: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    figures: str | None = None
    latent: Literal["image", "video"] | None = None
    channel_dim: int = 1
    vae_forms: tuple[str, ...] = ("spatial",)
    frames_per_pass: int = 1
    diffusers: DiffusersParts | None = None
    tt_dit: TtDit | None = None
    encoder_keys: EncoderKeys | None = None
    timing_only: bool = False
    block_counts: Callable[[Config], dict[str, int]] = blocks_alike
    with_block_counts: Callable[[Config, dict[str, int]], Config] = with_num_layers
    more_dims: Callable[[Config, tuple[int, ...]], dict[str, int]] = no_more_dims

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"model '{self.name}' is a '{self.kind}'; choose one of {', '.join(KINDS)}.")
        if not self.class_names:
            raise UserError(f"model '{self.name}' has no class_names; give what its config.json says.")
        for name in _REFERENCES:
            reference = getattr(self, name)
            if reference is not None and not _REFERENCE.fullmatch(reference):
                raise UserError(f"model '{self.name}' names '{reference}'; write module:Name.")
        for published in self.published:
            if published.class_name not in self.class_names:
                raise UserError(
                    f"model '{self.name}' has {published.name} of class {published.class_name}, which is not among its "
                    f"class_names {', '.join(self.class_names)}."
                )

    @classmethod
    def of_folder(cls, name: str, *, model: str, config: str, pipeline: str = "", **fields: Any) -> ModelSpec:
        """Return the spec of one of the project's own models, whose references follow from where its files lie.

        Both implementations have the same files and names. A ``bind_block`` goes with a pipeline, in ``block.py`` if
        there is one and else in the file of the model.

        Args:
            name: the folder's.
            model: file and class in the folder, ``"transformer:Transformer"``; whole, with dots, if it is another
                folder's.
            config: the class in ``config.py`` of the folder.
            pipeline: file and class in ``pipelines``, ``"file:Pipeline"``; the class has the name of diffusers'.
            fields: of :class:`ModelSpec`; one that is given counts. Published models without a configuration have
                that of their name in ``published.json`` of the folder.
        """
        code = f"refsim.models.{name}"
        counterpart = f"tt_impl.models.{name}"
        numeric = "." not in model
        names: dict[str, Any] = {"model": f"{code}.{model}" if numeric else model, "config": f"{code}.config:{config}"}
        if numeric:
            names["ttnn"] = f"{counterpart}.{model}"
        if pipeline:
            file = "block" if (Path(__file__).parent / name / "block.py").exists() else model.partition(":")[0]
            names |= {
                side: f"{place}.{file}:bind_block" for side, place in (("block", code), ("ttnn_block", counterpart))
            }
            names |= {"pipeline": f"refsim.pipelines.{pipeline}", "ttnn_pipeline": f"tt_impl.pipelines.{pipeline}"}
            names["pipeline_classes"] = (pipeline.partition(":")[2],)
        if any(not known.config for known in fields.get("published", ())):
            configs = json.loads((Path(__file__).parent / name / "published.json").read_text(encoding="utf-8"))
            fields["published"] = tuple(known.but(config=configs[known.name]) for known in fields["published"])
        return cls(name, **names | fields)

    @property
    def claims(self) -> tuple[str, ...]:
        """Return every name it is found by: its own, its classes', its pipelines', its published configurations'."""
        return (self.name, *self.class_names, *self.pipeline_classes, *(p.name for p in self.published))

    @property
    def model_class(self) -> Any:
        return resolve(self.model)

    @property
    def config_class(self) -> Any:
        return resolve(self.config)

    def inputs(self, config: Config) -> dict[str, Dims]:
        """Return the dims of the ``forward`` arguments by name, per sample or not, exact or not (``inputs.py``)."""
        return self.model_class.input_shapes(self.config_class.from_dict(config))

    def input_shapes(self, model: Published, size: tuple[int, ...], batch: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the ``forward`` arguments of a published model for a latent ``size`` and ``batch``."""
        known = dict(zip(("width", "height", "frames"), reversed(size), strict=False))
        known |= {BATCH: batch, PROMPT: model.text} | self.more_dims(model.config, size)
        shapes = {}
        for name, dims in self.inputs(model.config).items():
            dims = required(dims)
            if unknown := [dim for dim in dims if isinstance(dim, str) and dim not in known]:
                raise UserError(f"model '{self.name}' does not say how many {unknown[0]} a latent has (more_dims).")
            shapes[name] = tuple(known[dim] if isinstance(dim, str) else dim for dim in dims)
        return shapes


def resolve(reference: str) -> Any:
    """Return what ``"module:Name"`` stands for; ``UserError`` if it cannot be imported."""
    try:
        return named(reference)
    except (ImportError, AttributeError) as error:
        raise UserError(f"'{reference}' cannot be imported ({error}); correct the model's spec.") from error
