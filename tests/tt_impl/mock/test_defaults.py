"""What a call leaves out means to a rule what it means to ttnn, and what it names is taken."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tt_impl.defaults import REQUIRED, same
from tests.tt_impl.worker import launch

UNKNOWN = {"ttnn.add_bw": ["alpha"], "ttnn.sub_bw": ["alpha"]}
"""Arguments that a rule refuses by their keywords."""
MISPLACED = {
    "ttnn.experimental.deepseek_prefill.offset_cumsum": ["memory_config"],
    "ttnn.experimental.deepseek_prefill.rotary_embedding_indexed": ["memory_config", "memory_config"],
    "ttnn.fold": ["collapse_output"],
    "ttnn.kv_cache.update_cache_for_token_": ["compute_kernel_config"],
    "ttnn.mac": ["value", "value"],
    "ttnn.prod": ["output_tensor"],
    "ttnn.transformer.flash_mla_prefill": ["head_dim_v", "input_tensor_v"],
}
"""Arguments that a rule refuses in their place, or, in the last three and mac, whose other meaning there it sees."""


def test_defaults_of_rules_are_those_of_ttnn(tmp_path: Path) -> None:
    ran = launch("tests.tt_impl.defaults", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["different"] == []
    assert told["unnamed"] == UNKNOWN
    assert told["misplaced"] == MISPLACED
    assert told["compared"] > 450


def test_what_may_stand_for_a_default() -> None:
    assert same(1e-5, 9.999999747378752e-06) and same(None, REQUIRED) and same(None, "Variant.Accurate")
    assert not same(0, REQUIRED)  # no call leaves it out
    assert not same(1e-5, 1e-6) and not same(True, False) and not same(1, 2) and not same((1, 1), (1, 2))
