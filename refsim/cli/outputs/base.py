"""What all outputs are made of."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")
Sometimes = Annotated[T, Field(default_factory=lambda: None)]
"""A key that is there only where it says something."""
Number = float | Literal["nan", "inf", "-inf"] | None
"""What is not finite is a word; what was not measured is null."""


class Object(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class Document(Object):
    version: Annotated[int, Field(alias="schema")]
    """Of the form; it grows when a key is renamed or changes its meaning."""
