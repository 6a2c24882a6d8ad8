"""What a model takes, dim by dim, and what its results are called.

A number is a fixed size; a name may have any size, the same wherever it stands. Last dims in brackets may be left out.

hidden_states   ("batch", 16, "height", "width")     cut over cfg, rounded to the storage dtype
timestep        ("batch",)                           cut over cfg, one exact number a sample
timestep        ("batch", "[video tokens]")          the same, or one exact number a token
img_ids         ("image tokens", 3)                  the same for all samples: whole on every device, exact; as a
                                                     pipeline hands them on, ("batch", "image tokens", 3), too
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from refsim.base.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Answer = TypeVar("Answer")

BATCH = "batch"
SAMPLE = "sample"
"""What a model's answer is called, or the first of its answers."""
Dims = tuple[str | int, ...]


def is_per_sample(dims: Dims) -> bool:
    """Whether each sample of a batch has an input of its own, so that cfg cuts it."""
    return dims[0] == BATCH


def is_exact(dims: Dims) -> bool:
    """Whether an input is taken in fp32 whatever the storage dtype: a place in time or space rounded is another one."""
    return not is_per_sample(dims) or len(required(dims)) == 1


def required(dims: Dims) -> Dims:
    """Return the dims that no input may leave out."""
    return tuple(dim for dim in dims if not str(dim).startswith("["))


def fits(shape: tuple[int, ...], dims: Dims) -> bool:
    """Whether a tensor's shape is what ``dims`` say, and nothing of it is empty."""
    return (
        len(required(dims)) <= len(shape) <= len(dims)
        and 0 not in shape
        and all(isinstance(dim, str) or dim == size for dim, size in zip(dims, shape, strict=False))
    )


def unbatched(x: Tensor, dims: Dims) -> Tensor:
    """Return an input that is the same for all samples without the dim of a batch that it may come with.

    Raises:
        UserError: its samples differ.
    """
    if is_per_sample(dims) or x.ndim != len(dims) + 1 or not fits(tuple(x.shape[1:]), dims):
        return x
    if not (x.is_meta or bool((x == x[:1]).all())):
        raise UserError(f"an input of ({', '.join(map(str, dims))}) is another one for each sample; give the same.")
    return x[0]


def named_sizes(inputs: dict[str, Dims], shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the size of every dim that has a name.

    Raises:
        UserError: two inputs give the same dim different sizes.
    """
    by_dim: dict[str, dict[str, int]] = {}
    for name, dims in inputs.items():
        for dim, size in zip(dims[: len(shapes[name])], shapes[name], strict=True):
            if isinstance(dim, str):
                by_dim.setdefault(dim, {})[name] = size
    for dim, sizes in by_dim.items():
        if len(set(sizes.values())) > 1:
            each = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise UserError(f"the inputs disagree about the {dim} ({each}); give every tensor the same.")
    return {dim: next(iter(sizes.values())) for dim, sizes in by_dim.items()}


def by_name(answer: Answer | dict[str, Answer]) -> dict[str, Answer]:
    """Return the results of a forward by name: a model with one result gives it as it is, one with more names them."""
    return answer if isinstance(answer, dict) else {SAMPLE: answer}
