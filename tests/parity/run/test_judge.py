"""Who judges the judge: answers that are wrong by a known amount must fail, and a judge that was spoilt must be seen.

Each check below plants an error and asks the gate for a verdict. Each spoil makes the judge blind in one way, and at
least one check must then fail: a gate whose own tests pass whatever it compares proves nothing.
"""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import parity.kinds
from parity.cases import AttentionShape, GenerationShape, Layout, ModelShape, make_case
from parity.cases.kinds import KINDS
from parity.cases.oracles import formulas
from parity.cases.store import CheckpointStore
from parity.kinds import load, thresholds_for
from parity.kinds.base import Measured
from parity.kinds.cpu import collectives, generation, transformer
from parity.kinds.cpu.generation import Expected, Generation, GenerationOracle
from parity.measure import metrics as m
from parity.measure import thresholds, traces
from parity.measure.digests import rank_digest
from parity.run import case as run_case_module
from parity.run.case import run_case
from parity.run.runner import Runner
from refsim.api.text import TextResult
from refsim.pipelines.speculative import Decoded, Step
from refsim.runtime.group import parallel_groups
from refsim.runtime.launch import Result

LIMITS = json.loads(Path(__file__).with_name("limits.json").read_text())
"""The largest value of every bound there has ever been: bounds may become tighter, never looser."""

LAYOUT = Layout("bh-qb-1x4", "sp4")
ATTENTION = AttentionShape(heads=2, n=240, text=20, head_dim=16, logical_n=230)
GENERATION = make_case("generation", "dflash_tiny", Layout("n300", "tp2"), GenerationShape(prompts=2))
PROMPTS = [[5, 6, 7], [8, 9]]


@pytest.fixture(scope="module")
def store():
    pytest.importorskip("diffusers")
    with CheckpointStore() as store:
        yield store


LATE = torch.arange(128, 192)
"""The rows of a shard."""


def verdict(case, metrics):
    """Of the gate, on a case whose run gave these metrics."""

    class Answered(Runner):
        def run(self, case, seed):
            return Measured(metrics)

    return run_case(Answered(), case, "cpu", 0)


def attention_verdict(dtype, change, kind="attention", trace=(), change_lse=lambda x: x):
    """On an answer that is the formula's but for ``change`` of its (B, H, rows, E), and the events of a run."""
    case = make_case(kind, "attention", LAYOUT, ATTENTION, dtype=dtype)
    kind, n, rows = load(kind)(None), ATTENTION.n, ATTENTION.rows
    out, lse = formulas.attention_float64(kind.inputs(case, 0), ATTENTION)
    out, lse = change(out.clone()).to({"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]), change_lse(lse).float()
    image = torch.nn.functional.pad(out[:, :, :rows], (0, 0, 0, n - rows))
    lses = torch.cat([lse[:, :, :rows], lse.new_zeros(*lse.shape[:2], n - rows), lse[:, :, rows:]], -1)
    tensors = {"out": image, "joint_out": out[:, :, rows:], "lse": lses}
    result = Result([{}], tensors, {}, [], trace=list(trace))
    return verdict(case, kind.measure(case, 0, result))


def model_verdict(store, dtype, change, digests=lambda own: [own] * 4):
    """On an answer that is the oracle's but for ``change`` of its (B, C, H, W); four ranks say what they hold."""
    case = make_case("transformer", "sd35_tiny", LAYOUT, ModelShape(text=9, batch=1), dtype=dtype)
    kind = load("transformer")(store)
    sample = change(kind.reference(case, 0).double())
    result = Result([{"digests": digests(rank_digest({"sample": sample}))}], {"sample": sample}, {}, [])
    return verdict(case, kind.measure(case, 0, result))


def generation_verdict(
    *, tokens=(1, 2, 3), step=(), replicas_equal=True, pages=0, first=0.7, block=None, decode_s=0.0, refuses=True
):
    """On texts that are the oracle's but for ``tokens``, ``step`` and the ``first`` margin of the second one."""
    expected = Expected([1, 2, 3], [[2, 4]], [2], [0.5], closest=0.5, first_margin=0.7)
    right = {"proposed": [2, 4], "accepted": 2, "margin": 0.5, "target_rows": 5, "draft_rows": 3, "seconds": 0.0}
    second = {**right, "target_rows": 4, "draft_rows": 2, **dict(step)}
    texts = [Decoded([1, 2, 3], [Step(**right)], 0.7), Decoded(list(tokens), [Step(**second)], first)]
    kind = Generation(None)
    oracle = SimpleNamespace(expect=lambda prompt, count, drafted: expected)
    kind.once(GENERATION, 0, GenerationOracle, lambda: oracle)
    kind.inputs = lambda case, seed: PROMPTS
    kind.refuses_another = lambda case, seed: refuses
    block = generation.block_of(GENERATION) if block is None else block
    result = TextResult(texts, {"decode": decode_s}, replicas_equal, [], {}, 0.0, pages=pages, block=block)
    return verdict(GENERATION, kind.measure(GENERATION, 0, result))


COLLECTIVES = make_case("collectives", "collectives", Layout("t3k-1x8", "sp8"), ModelShape((), 0, 1), dtype="bf16")


@cache
def collectives_trace():
    """The events of a run, in order."""
    return load("collectives")(None).run(COLLECTIVES, COLLECTIVES.layout, 0).trace


def collectives_verdict(change, events=lambda trace: trace):
    """On the answers of eight members of a Ring that are right but for ``change`` of the last one's digests, and the
    ``events`` left of a run."""
    case = COLLECTIVES
    options, whole = (
        case.layout.options("bf16"),
        [collectives.draw(0, member, 8, torch.bfloat16) for member in range(8)],
    )
    answers = []
    for rank in range(8):
        right = collectives.expected(whole, parallel_groups(options.mesh, options.parallel, rank)["sp"].index)
        answers.append({name: collectives.digest(x) for name, x in right.items()})
    change(answers[-1])
    trace = events(list(collectives_trace()))
    handed = [collectives.handed_over(parallel_groups(options.mesh, options.parallel, rank)["sp"]) for rank in range(8)]
    values = [{"digests": x, "handed_over": n} for x, n in zip(answers, handed, strict=True)]
    result = Result(values, {}, {}, [], trace=trace)
    return verdict(case, load("collectives")(None).measure(case, 0, result))


def noise(x, size):
    """``x`` and noise of ``size`` times its spread."""
    return x + size * x.std() * torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)


def spoil_rows(x, rows, size):
    """(B, H, N, E) with noise on ``rows``."""
    x[:, :, rows] = noise(x[:, :, rows], size)
    return x


def passes(record):
    assert record.verdict == "passed", record.reason


def fails(record, *metrics):
    assert record.verdict == "failed", "the gate passes a wrong answer"
    for metric in metrics:
        assert metric in record.reason, (metric, record.reason)


def check_attention(store):
    for dtype, error in (("fp32", 4e-5), ("bf16", 0.1)):
        passes(attention_verdict(dtype, lambda x: x))
        fails(attention_verdict(dtype, lambda x, e=error: noise(x, e)), "rel_rmse", "one_minus_pcc")
        fails(attention_verdict(dtype, lambda x, e=error: x * (1 + e)), "rel_rmse", "one_minus_ccc")
    fails(attention_verdict("fp32", lambda x: spoil_rows(x, slice(128, 129), 0.1)), "seam", "worst_token")
    found = attention_verdict("fp32", lambda x: x * torch.ones(x.shape[2], 1).index_fill_(0, LATE, 1 + 1.6e-6))
    fails(found, "merged_gain")
    assert "rel_rmse" not in found.reason, "the rows of other shards hide a factor on those of one"


def check_schedule(store):
    """A shard that walks a Ring to the left, whatever the values."""
    sent = {"rank": 0, "op": "send", "step": 1, "start": 0.0, "end": 1.0, "collective": "ring_attention", "peer": 3}
    sent |= {"group": "ring", "axis": 1, "topology": "Ring"}
    for kind in ("attention", "attention_storage", "attention_gemm"):
        fails(attention_verdict("fp32", lambda x: x, kind, [sent]), "trace_wrong_direction 1")


def check_storage_math(store):
    """In units of the error of torch's own call in the storage dtype, which here is ``noise``."""
    case = make_case("attention_storage", "attention", LAYOUT, ATTENTION)
    tensors = load("attention_storage")(None).inputs(case, 0)
    noise = formulas.attention_noise(tensors, ATTENTION, "fp32") - formulas.attention_float64(tensors, ATTENTION)[0]
    passes(attention_verdict("fp32", lambda x: x + noise, "attention_storage"))
    fails(attention_verdict("fp32", lambda x: x + 5 * noise, "attention_storage"), "over_noise")
    worse = noise.clone()
    worse[:, :, 192:230] *= 20  # the last shard alone
    fails(attention_verdict("fp32", lambda x: x + worse, "attention_storage"), "over_noise")


def check_gemm_math(store):
    """In units of the error of two products in the storage dtype, which here is ``noise``."""
    case = make_case("attention_gemm", "attention", LAYOUT, ATTENTION, dtype="bf16")
    tensors = load("attention_gemm")(None).inputs(case, 0)
    exact = formulas.attention_float64(tensors, ATTENTION)
    rounded = formulas.attention_gemm_noise(tensors, ATTENTION, "bf16")
    noise, lse_noise = (x - y for x, y in zip(rounded, exact, strict=True))
    passes(attention_verdict("bf16", lambda x: x + noise, "attention_gemm"))
    fails(attention_verdict("bf16", lambda x: x + 2.5 * noise, "attention_gemm"), "over_noise")
    passes(attention_verdict("bf16", lambda x: x, "attention_gemm", change_lse=lambda x: x + lse_noise))
    fails(
        attention_verdict("bf16", lambda x: x, "attention_gemm", change_lse=lambda x: x + 1.5 * lse_noise),
        "lse_over_noise",
    )


def check_one_shard(store):
    found = attention_verdict("bf16", lambda x: spoil_rows(x, slice(192, 230), 0.04))
    fails(found, "one_minus_pcc_shard")
    assert "one_minus_pcc " not in found.reason, "an average over shards hides what one of them has wrong"


def check_models(store):
    for dtype, error in (("fp32", 1e-5), ("bf16", 0.1)):
        passes(model_verdict(store, dtype, lambda x: x))
        fails(model_verdict(store, dtype, lambda x, e=error: noise(x, e)), "rel_rmse")
        fails(model_verdict(store, dtype, lambda x, e=error: x * (1 + e)), "rel_rmse")


def check_nan(store):
    fails(model_verdict(store, "fp32", lambda x: torch.where(x > x.mean(), torch.nan, x)), "rel_rmse nan", "non_finite")
    fails(generation_verdict(step={"margin": math.nan}), "margin_max_abs nan")


def check_replicas(store):
    for digests in (["", "", "b", ""], [""], ["b"] * 4):  # another copy, ranks that say nothing, other bits than came
        fails(
            model_verdict(store, "fp32", lambda x: x, lambda own, d=digests: [x or own for x in d]), "distinct_replicas"
        )
    fails(generation_verdict(replicas_equal=False), "distinct_replicas")


def check_generation(store):
    passes(generation_verdict())
    fails(generation_verdict(tokens=[1, 2, 4]), "wrong_tokens")
    fails(generation_verdict(tokens=[1, 2]), "wrong_tokens")
    fails(generation_verdict(step={"proposed": [3, 4]}), "wrong_proposals")
    fails(generation_verdict(step={"accepted": 1}), "wrong_steps")
    fails(generation_verdict(step={"draft_rows": 3}), "wrong_rows")
    fails(generation_verdict(step={"margin": 0.501}), "margin_max_abs")
    fails(generation_verdict(first=0.8), "margin_max_abs")
    fails(generation_verdict(pages=1), "wrong_pages")
    fails(generation_verdict(block=2), "wrong_steps")
    fails(generation_verdict(refuses=False), "accepted 1")
    fails(generation_verdict(decode_s=-0.1), "wrong_seconds 2")
    fails(generation_verdict(decode_s=0.1), "wrong_seconds 1")
    fails(generation_verdict(step={"seconds": 0.1}), "wrong_seconds 1")


def check_collectives(store):
    passes(collectives_verdict(lambda digests: None))
    fails(collectives_verdict(lambda digests: digests.pop("shift")), "wrong_answers 1")
    fails(collectives_verdict(lambda digests: digests.pop("all_reduce")), "wrong_answers 1")
    fails(collectives_verdict(lambda digests: digests.update(broadcast=digests["shift"])), "wrong_answers 1")
    sends = [event for event in collectives_trace() if event["op"] == "send"]
    fails(
        collectives_verdict(lambda digests: None, lambda trace: [e for e in trace if e is not sends[0]]), "transfers 1"
    )
    left = [e | {"peer": (e["rank"] - 1) % 8} if e is sends[0] else e for e in collectives_trace()]
    fails(collectives_verdict(lambda digests: None, lambda trace: left), "transfers 1")


def check_unmeasured(store):
    case = make_case("attention", "attention", LAYOUT, ATTENTION)
    for bound in thresholds_for("attention", "fp32"):
        rest = {t.metric: 0.0 for t in thresholds_for("attention", "fp32") if t.metric != bound.metric}
        if not bound.optional:
            fails(verdict(case, rest), f"{bound.metric} was not measured")


def check_limits(store):
    every = {f"{kind} {dtype}" for kind in KINDS for dtype in load(kind).thresholds}
    assert LIMITS.keys() == every, "every kind of case is pinned"
    for key, pinned in LIMITS.items():
        found = {t.metric: t.limit for t in thresholds_for(*key.split())}
        for metric, limit in pinned.items():
            assert found.get(metric, math.inf) <= limit, f"{key}: the bound of {metric} was loosened or dropped"


CHECKS: tuple[Callable[[CheckpointStore], None], ...] = (
    check_attention,
    check_schedule,
    check_storage_math,
    check_gemm_math,
    check_one_shard,
    check_models,
    check_nan,
    check_replicas,
    check_generation,
    check_collectives,
    check_unmeasured,
    check_limits,
)

compare, judge, tightened = m.compare, thresholds.judge, parity.kinds.tightened


def thousandfold(allowed, key):
    return tuple(thresholds.replace(t, limit=t.limit * 1e3) for t in tightened(allowed, key))


def numbers_only(metrics, bounds):
    return judge({k: 0.0 if v is not None and math.isnan(v) else v for k, v in metrics.items()}, bounds)


SPOILS: dict[str, list[tuple[Any, str, Any]]] = {
    "oracle against oracle": [(m, "compare", lambda out, ref, *at, **more: compare(ref, ref, *at, **more))],
    "answer against answer": [(m, "compare", lambda out, ref, *at, **more: compare(out, out, *at, **more))],
    "first row only": [(m, "compare", lambda out, ref, *at, **more: compare(out[:, :1], ref[:, :1], [(0, 1)], **more))],
    "whole tensor only": [(m, "worst_shard", lambda out, ref, shards: m.one_minus_pcc(out, ref))],
    "no schedule": [(traces, "check", lambda trace, layout: {bound.metric: 0 for bound in traces.BOUNDS})],
    "no seam": [(m, "seam", lambda out, ref, shards: None)],
    "correlation only": [(m, "rel_rmse", lambda out, ref: math.sqrt(2 * m.one_minus_pcc(out, ref)))],
    "bound x 1000": [(parity.kinds, "tightened", thousandfold)],
    "NaN lost in max": [(m, "worst", lambda values: max([0.0, *values]))],
    "NaN is no failure": [(run_case_module, "judge", numbers_only)],
    "unmeasured is no failure": [
        (run_case_module, "judge", lambda got, bounds: judge({t.metric: 0.0 for t in bounds} | got, bounds))
    ],
    "nothing is judged": [(run_case_module, "judge", lambda metrics, bounds: [])],
    "replicas always one": [(transformer, "distinct_replicas", lambda case, digests, answers: 1.0)],
    "missing replicas are equal": [
        (transformer, "distinct_replicas", lambda case, digests, answers: len(set(digests)))
    ],
    "digests as they come": [
        (
            transformer,
            "distinct_replicas",
            lambda case, digests, answers: len(set(digests)) if digests[1:] else math.nan,
        )
    ],
    "rows only": [(generation, "differences", lambda a, b: 0)],
    "collectives by name only": [(collectives, "digest", lambda x: 0)],
    "tokens only": [(generation, "wrong_rows", lambda start, steps, **more: 0)],
    "bytes as they come": [(collectives, "unlike_formula", lambda trace, group, x: 0)],
    "sent to anybody": [(collectives, "misled", lambda trace, group: 0)],
    "shorter is equal": [(generation, "differences", lambda a, b: sum(x != y for x, y in zip(a, b, strict=False)))],
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_the_judge(check, store):
    check(store)


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_spoilt_judge_is_seen(spoil, store, monkeypatch):
    for owner, name, blind in SPOILS[spoil]:
        monkeypatch.setattr(owner, name, blind)
    thresholds_for.cache_clear()
    try:
        assert any(not _holds(check, store) for check in CHECKS), f"no check notices a judge with: {spoil}"
    finally:
        thresholds_for.cache_clear()


def _holds(check, store):
    try:
        check(store)
    except AssertionError:
        return False
    return True
