"""Published configurations of models that upstream's tests load by name, from this project's own list."""

from __future__ import annotations

import json
import re
from typing import Any

from refsim.models import registry
from refsim.models.spec import Published

CLIP_START = 49406
CLIP_END = 49407


def published(class_name: str, where: str, layers: int | None = None) -> dict[str, Any] | None:
    """Return the configuration whose name says most of ``where``, cut to ``layers`` if that is said; None if none."""
    spec = registry.by_class_name(class_name)
    if spec is None:
        return None
    hints = re.split(r"[^a-z0-9]+", where.lower().replace(".", ""))
    hints += [class_name, "g" if "text_encoder_2" in where else "l"]  # the two CLIPs of a pipeline

    def agreement(published: Published) -> int:
        return sum(part in hints for part in (*published.name.split("-"), *published.config.get("architectures", ())))

    best = max(spec.published, key=agreement)
    config = {k: v for k, v in best.config.items() if k not in ("_class_name", "architectures", "model_type")}
    config = json.loads(json.dumps(config))  # with lists, as a file has them
    if layers is not None:
        kinds = [key for key in ("num_layers", "num_single_layers", "num_hidden_layers") if key in config]
        config |= {key: min(config[key], layers // len(kinds)) for key in kinds}
    if "text_encoder" in where and "num_hidden_layers" in config:
        config |= {"bos_token_id": CLIP_START, "eos_token_id": CLIP_END}
    return config
