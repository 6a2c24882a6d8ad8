"""How many examples: a few hundred in the ordinary suite, thousands with ``--hypothesis-profile=fuzz``."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.fuzz.examples import MANY
from tests.refsim.tiny.sd35 import make_inputs, make_model, save

settings.register_profile(
    "fuzz", max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """A folder with a good ``checkpoint``, the same in shards as ``sharded``, and ``in.safetensors``."""
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("good")
    model = make_model(num_layers=1, dual_attention_layers=())
    save(model, folder / "checkpoint")
    save(model, folder / "sharded", max_shard_size="60KB")
    save_file(make_inputs(), folder / "in.safetensors")
    return folder
