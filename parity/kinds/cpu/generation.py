"""Generation of text by target and drafter, judged by what transformers' two do, everything computed again every step.

    tokens      the target's greedy ones, whatever the drafter says
    proposals   what transformers' drafter says to the hidden states of transformers' target
    steps       how many of them were accepted
    rows        in both caches after every step: those of tokens that are final
    margins     by how much the best logit won, which sees what the tokens do not

A prompt at which two logits are within rounding of each other decides nothing and is left out, and counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any, ClassVar

import torch
from torch import Tensor

from parity.cases import Case, Layout
from parity.cases.checkpoints import MODELS
from parity.cases.inputs import generator
from parity.cases.linked import linked, rewrite
from parity.cases.model_folders import load_oracle, transformers_model
from parity.cases.store import CheckpointStore
from parity.explain import decoding
from parity.explain.places import Evidence
from parity.kinds.base import CpuKind, Kind, Metrics, is_refused
from parity.measure import metrics as m
from parity.measure.thresholds import REPLICAS, SECONDS, Threshold
from refsim.api.text import TextRequest, TextResult, generate_text
from refsim.base.options import RunOptions
from refsim.pipelines.speculative import Decoded

PAGE = 32
"""Rows of a page, a tile."""
UNDECIDED = 1e-4
"""Logits are of order 1 and fp32 rounds them by 1e-6; what is closer than a hundred times that is a toss-up."""


class Generation(CpuKind):
    """Speculative decoding of several prompts; the model of a case is the drafter, which names its target."""

    thresholds: ClassVar = {
        "fp32": (
            Threshold(
                "wrong_tokens", 0, "a drafter can change the speed, never the tokens: they are the target's alone"
            ),
            Threshold(
                "wrong_proposals", 0, "every proposal is what transformers' drafter says to the same hidden states"
            ),
            Threshold("wrong_steps", 0, "the longest prefix that matches is accepted, and the target's own token"),
            Threshold("wrong_rows", 0, "both caches hold the rows of final tokens, no more and no fewer"),
            Threshold("wrong_pages", 0, "a text takes the pages that the rows of its last pass fill, as vLLM's blocks"),
            SECONDS,
            Threshold(
                "margin_max_abs",
                1e-4,
                "logits of up to 10 after some thirty sums in fp32, each rounded by 6e-8 of its size, leave some 1e-5; "
                "a head or an expert too few moves a margin by 1e-3 and more",
            ),
            Threshold(
                "undecided_share", 0.5, "prompts whose logits tie within rounding decide nothing; most must decide"
            ),
            Threshold("accepted", 0, "a drafter of another target is refused, or it is not"),
            REPLICAS,
        )
    }

    def inputs(self, case: Case, seed: int) -> list[list[int]]:
        """Return ids of the prompts, of many lengths; never the drafter's mask."""
        return draw_prompts(case, case.shape.prompts, seed)

    def run(self, case: Case, layout: Layout, seed: int, *, trace: bool = False, **more: Any) -> TextResult:
        """Generate with refsim; there is no trace of a whole loop."""
        options = layout.options(case.dtype, **more)
        return generate(case, seed, self.store, self.inputs(case, seed), options)

    def measure(self, case: Case, seed: int, result: TextResult) -> Metrics:
        """Count what is wrong over all prompts, and find the largest error of a margin."""
        oracle = oracle_of(self, case, seed)
        prompts = self.inputs(case, seed)
        metrics: Metrics = {"wrong_tokens": 0, "wrong_proposals": 0, "wrong_steps": 0, "wrong_rows": 0}
        margin = 0.0
        least = math.inf
        undecided = 0
        with one_thread():
            for prompt, text in zip(prompts, result.texts, strict=True):
                expected = expected_of(case, oracle, prompt, text)
                if expected.closest < UNDECIDED:
                    undecided += 1
                    continue
                proposals = zip(text.steps, expected.proposed, strict=False)
                wanted = up_to_stop(expected.tokens, case.shape.stop)
                metrics["wrong_tokens"] += differences(text.tokens, wanted)
                metrics["wrong_proposals"] += sum(differences(a.proposed, b) for a, b in proposals)
                accepted = rounds(expected.accepted, len(wanted), before=int(case.shape.drafted))
                metrics["wrong_steps"] += differences([step.accepted for step in text.steps], accepted)
                errors = [abs(a.margin - b) for a, b in zip(text.steps, expected.margins, strict=False)]
                errors += [abs(text.prefill_margin - expected.first_margin)] if case.shape.drafted else []
                least = min(least, expected.first_margin, *expected.margins[: len(text.steps)])
                margin = m.worst([margin, *errors])  # max would drop a NaN behind a number
                steps = [asdict(step) for step in text.steps]
                rows = rows_before(case, prompt)
                cache = case.shape.cache
                noise = block_of(case) if cache == "noise" else 0
                cached = cache in ("context", "noise", "paged")
                metrics["wrong_rows"] += wrong_rows(rows, steps, draft=cached, noise=noise)
        metrics["wrong_steps"] += abs(result.block - block_of(case))
        replicas = 1 if result.replicas_equal else math.nan
        share = undecided / len(prompts)
        if not undecided:
            margin = m.worst([margin, abs(result.margin - least)])
        metrics["wrong_pages"] = abs(result.pages - pages(case, prompts, result))
        metrics["accepted"] = int(case.shape.drafted and not self.refuses_another(case, seed))
        steps_s = [step.seconds for text in result.texts for step in text.steps]
        metrics["wrong_seconds"] = m.wrong_seconds(result.seconds.values(), result.wall_s)
        metrics["wrong_seconds"] += m.wrong_seconds(steps_s, result.seconds["decode"])
        return metrics | {"margin_max_abs": margin, "undecided_share": share, "distinct_replicas": replicas}

    def refuses_another(self, case: Case, seed: int) -> bool:
        """Whether a drafter with another vocabulary than the target is refused for that, before any rank begins."""
        target = self.store.folder(MODELS[case.model].target, seed)
        options = case.layout.options("fp32")
        with linked(self.store.folder(case.model, seed)) as draft:
            config = json.loads((draft / "config.json").read_text())
            size = config["vocab_size"]
            rewrite(draft / "config.json", config | {"vocab_size": size + 1})
            request = TextRequest(draft=draft, cache=case.shape.cache, max_new_tokens=1)
            refusal = f"the drafter has vocab_size {size + 1} but the target {size}"
            return is_refused(lambda: generate_text(target, [[1]], request, options=options), refusal)

    def explain(self, case: Case, seed: int, result: TextResult, limits: Mapping[str, float]) -> Evidence:
        oracle = oracle_of(self, case, seed)
        prompts = self.inputs(case, seed)
        with one_thread():
            expected = [expected_of(case, oracle, p, text) for p, text in zip(prompts, result.texts, strict=True)]
        known = [None if e.closest < UNDECIDED else e for e in expected]
        rows = [rows_before(case, prompt) for prompt in prompts]
        return decoding.find(result.texts, known, rows, limits["margin_max_abs"])

    def answers(self, result: TextResult) -> dict[str, Tensor]:
        """Return everything about all prompts, one after the other: tokens, and of every step what made it."""
        steps = [step for text in result.texts for step in text.steps]
        return {
            "tokens": torch.tensor([token for text in result.texts for token in text.tokens]),
            "proposed": torch.tensor([token for step in steps for token in step.proposed]),
            "accepted": torch.tensor([step.accepted for step in steps]),
            "rows": torch.tensor([[step.target_rows, step.draft_rows] for step in steps]),
            "margins": torch.tensor([step.margin for step in steps], dtype=torch.float64),
        }


def draw_prompts(case: Case, count: int, seed: int) -> list[list[int]]:
    """Draw ids of ``count`` prompts of ``case.shape.least`` to ``case.shape.text`` tokens."""
    g = generator(seed, "prompts")
    vocabulary = MODELS[case.model].config["mask_token_id"]
    least = case.shape.least
    most = case.shape.text
    lengths = [least + (7 * i) % (most - least + 1) for i in range(count)]
    return [torch.randint(vocabulary, (length,), generator=g).tolist() for length in lengths]


def generate(
    case: Case, seed: int, store: CheckpointStore, prompts: list[list[int]], options: RunOptions
) -> TextResult:
    """Generate refsim's tokens after every prompt."""
    shape = case.shape
    length = {"max_new_tokens": case.shape.max_new_tokens, "stop": case.shape.stop}
    drafter = {"draft": store.folder(case.model, seed), "cache": shape.cache} if shape.drafted else {}
    request = TextRequest(**drafter, **length)
    target = store.folder(MODELS[case.model].target, seed)
    return generate_text(target, prompts, request, options=options)


@dataclass
class Expected:
    """What the oracle gives after one prompt; ``closest`` is the least of all margins, proposals' included."""

    tokens: list[int]
    proposed: list[list[int]]
    accepted: list[int]
    margins: list[float]
    closest: float
    first_margin: float = math.inf
    proposal_margins: list[list[float]] = field(default_factory=list)


class GenerationOracle:
    """transformers' target and drafter of one seed, which compute everything again at every step."""

    def __init__(self, target: Any, drafter: Any) -> None:
        self._known: dict[tuple, Expected] = {}
        self._target = target
        self._drafter = drafter

    @classmethod
    def of_case(cls, store: CheckpointStore, drafter: str, seed: int) -> GenerationOracle:
        """Make the two models of a drafter's name in the table of models."""
        spec = MODELS[drafter]
        target = load_oracle(store.folder(spec.target, seed), torch.float32)
        return cls(target, transformers_model(spec, generator(seed, "weights")))

    def expect(self, prompt: list[int], max_new_tokens: int, *, drafted: bool = True) -> Expected:
        """Run the loop of speculative decoding, or the target alone, without any cache; computed once per prompt."""
        key = tuple(prompt), max_new_tokens, drafted
        if key not in self._known:
            self._known[key] = (self._loop if drafted else self._alone)(prompt, max_new_tokens)
        return self._known[key]

    @torch.inference_mode()
    def _alone(self, prompt: list[int], max_new_tokens: int) -> Expected:
        expected = Expected([], [[]] * max_new_tokens, [1] * max_new_tokens, [], float("inf"))
        ids = list(prompt)
        for _ in range(max_new_tokens):
            token, margin = _best(self._logits([*ids, *expected.tokens])[-1])
            expected.tokens.append(int(token))
            expected.margins.append(float(margin))
        expected.closest = min(expected.margins)
        return expected

    @torch.inference_mode()
    def _loop(self, prompt: list[int], max_new_tokens: int) -> Expected:
        final = list(prompt)
        expected = Expected([], [], [], [], float("inf"))
        token, margin = _best(self._logits(final)[-1])
        expected.tokens.append(int(token))
        expected.closest = float(margin)
        expected.first_margin = expected.closest
        while len(expected.tokens) < max_new_tokens:
            proposed, by = _best(self.propose(final, expected.tokens[-1]))
            tokens, margins = _best(self.verify(final, [expected.tokens[-1], *proposed.tolist()]))
            matched = _matching(proposed.tolist(), tokens.tolist())
            final += [expected.tokens[-1], *proposed[:matched].tolist()]
            expected.tokens += [*proposed[:matched].tolist(), int(tokens[matched])]
            expected.proposed.append(proposed.tolist())
            expected.proposal_margins.append(by.tolist())
            expected.accepted.append(matched + 1)
            expected.margins.append(float(margins[: matched + 1].min()))
            expected.closest = min(expected.closest, expected.margins[-1], float(by.min()))
        expected.tokens = expected.tokens[:max_new_tokens]
        return expected

    @torch.inference_mode()
    def propose(self, final: list[int], last: int) -> Tensor:
        """Return the drafter's logits (block - 1, vocabulary) of the tokens after ``last``, which follows ``final``."""
        states = self._target(torch.tensor([final]), output_hidden_states=True).hidden_states
        return self._target.lm_head(self._draft(states, last)[0, 1:])

    @torch.inference_mode()
    def verify(self, final: list[int], block: list[int]) -> Tensor:
        """Return the target's logits (tokens of the block, vocabulary) of what follows each token of a block."""
        return self._logits([*final, *block])[len(final) :]

    @torch.inference_mode()
    def context(self, prompt: list[int]) -> Tensor:
        """Return the target's hidden states (rows, layers x D) that the drafter reads of a prompt."""
        states = self._target(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        return self._context(states)[0]

    @torch.inference_mode()
    def states(self, prompt: list[int]) -> dict[str, Tensor]:
        """Return ``layers`` (layers - 1, rows, D) of a prompt before the final norm, ``last`` (rows, D) after it,
        ``logits`` (rows, vocabulary), and ``draft`` (block, D), the drafter's first answer after its final norm."""
        forward = self._target(torch.tensor([prompt]), output_hidden_states=True)
        draft = self._draft(forward.hidden_states, int(forward.logits[0, -1].argmax()))[0]
        layers = torch.cat(forward.hidden_states[1:-1])
        return {"layers": layers, "last": forward.hidden_states[-1][0], "logits": forward.logits[0], "draft": draft}

    @torch.inference_mode()
    def router_gap(self, ids: list[int]) -> float:
        """Return by how much the last expert chosen for a row beats the first one left out; the least of all rows."""
        chosen = self._target.config.num_experts_per_tok
        routers = self._target(torch.tensor([ids]), output_router_logits=True).router_logits
        best = torch.cat(routers).topk(chosen + 1, -1).values
        return float((best[:, -2] - best[:, -1]).min())

    def _draft(self, states: tuple[Tensor, ...], last: int) -> Tensor:
        config = self._drafter.config
        mask = [config.mask_token_id] * (config.block_size - 1)
        noise = self._target.model.embed_tokens(torch.tensor([[last, *mask]]))
        return self._drafter(noise_embeds=noise, context_hidden_states=self._context(states)).last_hidden_state

    def _context(self, states: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([states[layer + 1] for layer in self._drafter.config.target_layer_ids], -1)

    def _logits(self, ids: list[int]) -> Tensor:
        return self._target(torch.tensor([ids])).logits[0]


def expected_of(case: Case, oracle: GenerationOracle, prompt: list[int], text: Decoded) -> Expected:
    """Return what is right after a prompt. A drafter that caches the noise is another model than transformers':
    its proposals are taken as they are, and what the target makes of them is judged.
    """
    shape = case.shape
    if shape.cache != "noise":
        return oracle.expect(prompt, shape.max_new_tokens, drafted=shape.drafted)
    block = MODELS[case.model].config["block_size"]
    alone = oracle.expect(prompt, shape.max_new_tokens + block, drafted=False)
    proposed = [step.proposed for step in text.steps]
    start = 1
    expected = Expected(alone.tokens[: shape.max_new_tokens], proposed, [], [], alone.closest, alone.margins[0])
    for proposals in proposed:
        matched = _matching(proposals, alone.tokens[start:])
        expected.accepted.append(matched + 1)
        expected.margins.append(min(alone.margins[start : start + matched + 1]))
        start += matched + 1
    return expected


def oracle_of(kind: Kind, case: Case, seed: int) -> GenerationOracle:
    """Return the oracle of a case's drafter and its target, made once."""
    return kind.once(case, seed, GenerationOracle, lambda: GenerationOracle.of_case(kind.store, case.model, seed))


def wrong_rows(start: int, steps: list[dict[str, Any]], *, draft: bool = True, noise: int = 0) -> int:
    """Count how often a cache did not hold exactly the rows of final tokens; ``draft``: the drafter's counts too, with
    ``noise`` rows behind them.
    """
    wrong = 0
    for step in steps:
        wrong += draft and step["draft_rows"] != start + noise
        start += step["accepted"]
        wrong += step["target_rows"] != start
    return wrong


def block_of(case: Case) -> int:
    """Return how many tokens the target verifies in one pass."""
    return MODELS[case.model].config["block_size"] if case.shape.drafted else 1


def pages(case: Case, prompts: list[list[int]], result: TextResult) -> int:
    """Count pages of 32 rows that all texts take of a paged cache: a round's rows, rejected ones too, are written."""
    if case.shape.cache != "paged":
        return 0
    rows = [len(prompt) for prompt in prompts]
    for index, text in enumerate(result.texts):
        if text.steps:
            rows[index] = text.steps[-1].target_rows - text.steps[-1].accepted + block_of(case)
    return sum(math.ceil(each / PAGE) for each in rows)


def differences(a: list[int], b: list[int]) -> int:
    """Count positions at which two lists differ, those that only one of them has included."""
    return abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b, strict=False))


def up_to_stop(tokens: list[int], stop: tuple[int, ...]) -> list[int]:
    """Return the tokens up to and with the first that ends a text."""
    end = next((index + 1 for index, token in enumerate(tokens) if token in stop), len(tokens))
    return tokens[:end]


def rows_before(case: Case, prompt: list[int]) -> int:
    """Return the rows in the caches before the first round, which without a drafter reads the prompt's last row."""
    return len(prompt) - (not case.shape.drafted)


def rounds(accepted: list[int], tokens: int, *, before: int = 1) -> list[int]:
    """Return what the rounds accepted that a text of so many tokens takes; ``before``: tokens that come before them."""
    count_so_far = before
    taken = []
    for count in accepted:
        if count_so_far >= tokens:
            break
        taken.append(count)
        count_so_far += count
    return taken


def _matching(proposed: list[int], tokens: list[int]) -> int:
    """Count the first proposals that are the tokens."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(proposed, tokens, strict=False)))


def _best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best token and its margin over the second best of every row."""
    two = logits.topk(2, -1)
    return two.indices[..., 0], two.values[..., 0] - two.values[..., 1]


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: the oracle computes a row at a time, which is too little for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
