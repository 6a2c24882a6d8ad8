"""Read what a command printed with ``--json``, which must be what its schema says."""

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from refsim.cli.result_schemas import result_of


@cache
def adapter(command: str) -> TypeAdapter:
    return TypeAdapter(result_of(command))


def loads(command: str, text: str) -> Any:
    """The value; pydantic's ``ValidationError`` if a key is missing, unknown or of another type."""
    adapter(command).validate_json(text)
    return json.loads(text)
