"""Evaluation: the same cards, the same verifiers, greedy and k samples, with confidence intervals."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from vlmrl.answers import templates
from vlmrl.config import EvaluationConfig
from vlmrl.data.prompt import continue_prompt
from vlmrl.data.source import Source
from vlmrl.engines.base import RunningEngine, Sampling
from vlmrl.errors import NothingScored, UserError
from vlmrl.runs.intervals import mean_interval
from vlmrl.runs.rollout_rows import rows
from vlmrl.schema import Completion, Prompt, PromptBatch, Rewards, Rollouts
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import distributed
from vlmrl.training import metrics

if TYPE_CHECKING:
    from vlmrl.benchmarking.scoring import Figure, RowScore
    from vlmrl.policy.policy import Policy


# --------------------------------------------------------------------------------------------------
# Ask a question twice, forced to think and forced not to: the difference is what a thought is worth.
#
# The model's turn begins with an opened thought or with an empty one, and the model continues from
# there. That beginning is part of the prompt, so every engine can do it. Nothing is trained on it.


Mode = Literal["think", "direct"]
MODES: tuple[Mode, ...] = ("think", "direct")


def can_be_forced(prompt: Prompt) -> bool:
    """Return True if the template of the prompt begins with a thought."""
    tags = templates.template(prompt.sample.template).tags
    return bool(tags) and tags[0].name == "think"


def generate(
    engine: RunningEngine, policy: Policy, batch: PromptBatch, mode: Mode, max_tokens: int
) -> Rollouts:
    r"""Generate one greedy completion for every prompt; each must pass `can_be_forced`.

    `direct` begins it with `<think>\n\n</think>`, as demonstrations do that leave the thought out.
    `think` begins it with `<think>` and the first word of a thought: the likeliest token that is
    neither blank nor a tag. Without that word a policy could still leave the thought empty.

    The beginning counts towards `max_tokens` and is part of the completion's text, of its token ids
    and, as certain (0 nats), of its log-probs.
    """
    begun = [_encode_beginning(policy, prompt, mode) for prompt in batch.prompts]
    left = max(1, max_tokens - max(map(len, begun)))
    prompts = (continue_prompt(p, ids) for p, ids in zip(batch.prompts, begun, strict=True))
    rollouts = engine.generate(
        PromptBatch(tuple(prompts)), Sampling(n=1, max_tokens=left, greedy=True)
    )
    whole = (
        (_join_completion(policy, prompt, ids, group[0]),)
        for prompt, ids, group in zip(batch.prompts, begun, rollouts.completions, strict=True)
    )
    return replace(rollouts, batch=batch, completions=tuple(whole))


def _encode_beginning(policy: Policy, prompt: Prompt, mode: Mode) -> tuple[int, ...]:
    """Return the token ids with which the completion begins."""
    tag = templates.template(prompt.sample.template).tags[0]
    text = tag.open if mode == "think" else f"{tag.open}{templates.EMPTY_THOUGHT}{tag.close}"
    ids = tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
    if mode == "think":
        ids = (*ids, _choose_first_word(policy, continue_prompt(prompt, ids)))
    return ids


@torch.no_grad()
def _choose_first_word(policy: Policy, prompt: Prompt) -> int:
    """Return the likeliest next token that is a word: no white space, stop or media token, no tag."""
    family, encoded = policy.family, prompt.encoded
    with policy.generating():
        features = family.tower_features(policy.base, [encoded])
        hidden = family.decode(
            policy.base,
            torch.tensor([encoded.ids], device=policy.device),
            None,
            encoded.position_ids[:, None].to(policy.device),
            family.spread(features, [encoded], [0]),
        )
        logits = family.head(policy.base)(hidden[0, -1]).float()
    silent = {*policy.stop_ids, *policy.banned.tolist()}
    for token in logits.argsort(descending=True).tolist():
        text = policy.tokenizer.decode([token]).strip()
        if token not in silent and text and not text.startswith("<"):
            return token
    raise ValueError("the vocabulary has no word that a thought could begin with")


def _join_completion(
    policy: Policy, prompt: Prompt, begun: Sequence[int], rest: Completion
) -> Completion:
    ids = (*begun, *rest.token_ids)
    text = policy.tokenizer.decode([t for t in ids if t not in set(policy.stop_ids)])
    return templates.completion(
        text,
        prompt.sample.template,
        prompt.frame,
        token_ids=ids,
        logprobs=(*(0.0 for _ in begun), *rest.logprobs),
        finish_reason=rest.finish_reason,
        versions=rest.versions,
    )


# --------------------------------------------------------------------------------------------------
# The numbers of public benchmarks in an evaluation: those that `vlmrl eval --benchmark` prints.
#
# The strict score of a row is that of the very verdict that the run's scorer gave as a reward.


def sum_up_all(
    benchmarks: Sequence[Source], scored: Sequence[tuple[str, Rollouts, Rewards]]
) -> dict[str, Figure]:
    """Return the figures of benchmarks as `<source>/<number>`, from this rank's scored batches.

    Each batch comes with how it was drawn; the greedy ones count. With several ranks every rank gets
    the figures of all rows.
    """
    if not benchmarks:
        return {}
    # Rules of benchmarks are a tenth of the package, and few runs evaluate on one.
    from vlmrl.benchmarking.base import BenchmarkCard
    from vlmrl.benchmarking.rows import INDEX
    from vlmrl.benchmarking.scoring import score_row, sum_up

    cards = {
        source.name: source.card for source in benchmarks if isinstance(source.card, BenchmarkCard)
    }
    own: list[tuple[str, RowScore]] = []
    for drawn, rollouts, rewards in scored:
        for p, prompt in enumerate(rollouts.batch.prompts):
            if drawn == "greedy" and (card := cards.get(prompt.sample.source)):
                (verdict,) = rewards.verdicts[p][0].values()  # the strict one, or the row's own
                index, completion = prompt.sample.meta[INDEX], rollouts.completions[p][0]
                row = score_row(
                    card.benchmark, card.official, index, prompt.sample, completion, verdict
                )
                own.append((prompt.sample.source, row))
    rows = [pair for share in distributed.gather(own) for pair in share] if cards else []
    figures: dict[str, Figure] = {}
    for name, card in cards.items():
        scores = sorted((row for source, row in rows if source == name), key=lambda row: row.index)
        if scores:
            numbers = sum_up(card.benchmark, card.official, scores).figures
            figures |= {f"{name}/{number}": figure for number, figure in numbers.items()}
    return figures


# --------------------------------------------------------------------------------------------------
# The evaluation of a run: its rows are drawn, answered, scored and summed up.


PREFIX = {
    "greedy": "",
    "sampled": "sampled/",
    "forced_think": "forced/think/",
    "forced_direct": "forced/direct/",
}
"""How a completion was drawn -> the prefix of its metrics."""

SEED_STRIDE = 2**32
"""Distance between the seeds of two ranks."""

Row = tuple[str, dict[str, float]]
"""A prompt's numbers, after its cluster: the media file that it shares with dependent prompts, or its id."""


@dataclass(frozen=True)
class Evaluation:
    """An evaluation: `result` is the content of evals/step-N.json, `scored` this rank's batches.

    Each batch comes with how it was drawn, a key of `PREFIX`.
    """

    result: dict[str, Any]
    scored: list[tuple[str, Rollouts, Rewards]]

    def rows(self, media_folder: Path) -> Iterator[dict[str, Any]]:
        """Yield the rows of evals/step-N.jsonl: one per prompt and way of drawing."""
        for drawn, rollouts, rewards in self.scored:
            for row in rows(media_folder, rollouts, rewards):
                yield {"drawn": drawn, **row}


def evaluate(
    batches: Iterable[PromptBatch],
    engine: RunningEngine,
    scorer: Scorer,
    config: EvaluationConfig,
    max_tokens: int,
    *,
    policy: Policy | None = None,
    step: int = 0,
    progress: float = 1.0,
    seed: int = 0,
    benchmarks: Sequence[Source] = (),
    told: Callable[[int], None] = lambda rows: None,
) -> Evaluation:
    """Score one greedy completion per prompt, and `config.samples` sampled ones at temperature 1.

    The metrics are means over prompts: `reward`, `<verifier>`, `answered` (share with an answer),
    `length` (tokens), the same with the prefix `<source>/`, and those of `metrics.by_mode`; those
    of the sampled completions have the prefix `sampled/`. Each has a 95 % bootstrap interval,
    resampled by media file where several prompts share one, because they are not independent.
    `pass_at_k` is the chance that at least one of k samples reaches `config.pass_threshold` in
    `config.metric`. With several ranks the batches are this rank's rows; all get the result of all.

    With `config.force_thinking`, which needs the `policy`, every prompt whose template begins with a
    thought is also answered greedily, forced to think and forced not to: `forced/think/...`,
    `forced/direct/...` with the share that obeyed, and `forced/gain/...`, the mean of think - direct.

    The greedy completions of `benchmarks`, sources with a `BenchmarkCard`, also give its own numbers:
    `<source>/strict` from the verdicts of its reward, `<source>/official` by the harness's rule.
    `told` is told after each batch how many rows are done, if all ranks are as fast.

    Raises:
        UserError: `config.force_thinking`, and no prompt can be forced.
        NothingScored: no completion has a reward, or a value of `config.metric`.
    """
    scored: list[tuple[str, Rollouts, Rewards]] = []
    answered: dict[str, list[Row]] = {drawn: [] for drawn in PREFIX}
    passes: list[tuple[int, int]] = []
    own_seed = seed + SEED_STRIDE * distributed.rank()
    for number, batch in enumerate(batches):
        draws = _generate(engine, policy, batch, config, max_tokens, own_seed + 2 * number + 1)
        for drawn, rollouts in draws:
            rewards = scorer.score(rollouts, progress, whole=False)
            scored.append((drawn, rollouts, rewards))
            answered[drawn] += _average_by_prompt(rollouts, rewards)
            passes += _count_passes(rewards, config) if drawn == "sampled" else []
        told(len(answered["greedy"]) * distributed.world())
    answered = {drawn: distributed.from_turns(rows) for drawn, rows in answered.items()}
    passes = distributed.from_turns(passes)
    if not answered["greedy"]:
        raise ValueError("expected at least one batch to evaluate, got none")
    if config.force_thinking and not answered["forced_think"]:
        raise UserError("evaluation.force_thinking: no source's template begins with a thought")
    values = _collect_by_metric(answered)
    figures = sum_up_all(benchmarks, scored)
    for name in ("reward", config.metric):
        if name not in values and name not in figures:
            raise NothingScored(f"evaluation: no completion has a {name!r}{_explain(scored)}")
    result = _sum_up(step, values, figures, passes, config) | _count_unscored(scored, values)
    return Evaluation(result, scored)


def _sum_up(
    step: int,
    values: Mapping[str, Sequence[tuple[str, float]]],
    figures: Mapping[str, Figure],
    passes: Sequence[tuple[int, int]],
    config: EvaluationConfig,
) -> dict[str, Any]:
    """Return the content of evals/step-N.json."""
    means = {key: sum(v for _, v in pairs) / len(pairs) for key, pairs in values.items()}
    intervals = {k: interval(v, config.bootstrap_resamples) for k, v in values.items()}
    return {
        "step": step,
        "metrics": means | {key: figure.value for key, figure in figures.items()},
        "intervals": intervals | {key: _interval(figure) for key, figure in figures.items()},
        "num_samples": len(values["reward"]),
        "pass_at_k": average_pass_at_k(passes, config.samples) if passes else None,
    }


def _interval(figure: Figure) -> tuple[float, float]:
    """Return the bounds of a figure; of too few rows both are the figure itself."""
    if figure.low is None or figure.high is None:
        return figure.value, figure.value
    return figure.low, figure.high


def interval(values: Sequence[tuple[str, float]], resamples: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean of (cluster, value) pairs: see `mean_interval`.

    Clusters are resampled whole, `resamples` times.
    """
    clusters: dict[str, list[float]] = defaultdict(list)
    for cluster, value in values:
        clusters[cluster].append(value)
    return mean_interval(list(clusters.values()), resamples)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of k draws is right, from n with `correct` right.

    Source: Chen et al. 2021, arXiv 2107.03374, eq. 1.
    """
    if n - correct < k:
        return 1.0
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def _generate(
    engine: RunningEngine,
    policy: Policy | None,
    batch: PromptBatch,
    config: EvaluationConfig,
    max_tokens: int,
    seed: int,
) -> list[tuple[str, Rollouts]]:
    """Generate greedy, sampled and forced completions, as configured, each with its key of `PREFIX`.

    Frozen towers of the policy see each medium once.
    """
    with nullcontext() if policy is None else policy.seeing_once():
        sampling = Sampling(n=config.samples, max_tokens=max_tokens, seed=seed)
        draws = [("greedy", engine.generate(batch, Sampling(1, max_tokens, greedy=True)))]
        draws += [("sampled", engine.generate(batch, sampling))] if config.samples else []
        if config.force_thinking:
            assert policy is not None, "config.force_thinking needs the policy"
            forcible = PromptBatch(
                tuple(prompt for prompt in batch.prompts if can_be_forced(prompt))
            )
            for mode in MODES if forcible.prompts else ():
                forced = generate(engine, policy, forcible, mode, max_tokens)
                draws.append((f"forced_{mode}", forced))
    return draws


def _average_by_prompt(rollouts: Rollouts, rewards: Rewards) -> list[Row]:
    """Return for each prompt the mean of every number over the completions that have it."""
    averages = []
    for p, prompt in enumerate(rollouts.batch.prompts):
        sample = prompt.sample
        main = None if sample.main_medium is None else sample.media[sample.main_medium].path
        cluster = main or sample.id
        values: dict[str, list[float]] = defaultdict(list)
        for g, completion in enumerate(rollouts.completions[p]):
            numbers = metrics.scores(rewards, p, g)
            numbers["answered"] = float(completion.answer is not None)
            numbers["length"] = len(completion.token_ids)
            turns = metrics.turn_metrics(completion)
            shown = ("rollout/turns", "rollout/chunks", "tool/used")
            numbers |= {name: turns[name] for name in shown if name in turns}
            numbers |= metrics.world_metrics(completion)
            numbers |= metrics.crop_metrics(prompt, completion)
            of_source = {f"{sample.source}/{name}": number for name, number in numbers.items()}
            modes = metrics.by_mode(prompt, completion, numbers)
            for name, number in [*numbers.items(), *of_source.items(), *modes.items()]:
                values[name].append(number)
        averages.append((cluster, {name: sum(v) / len(v) for name, v in values.items()}))
    return averages


def _collect_by_metric(answered: Mapping[str, Sequence[Row]]) -> dict[str, list[tuple[str, float]]]:
    """Return (cluster, value) pairs by metric, over all ways of drawing."""
    values: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for drawn, rows_of_prompts in answered.items():
        for cluster, numbers in rows_of_prompts:
            for name, number in numbers.items():
                if not drawn.startswith("forced") or not name.startswith("mode/"):
                    values[f"{PREFIX[drawn]}{name}"].append((cluster, number))
                elif name == f"mode/{drawn.removeprefix('forced_')}/share":
                    values[f"{PREFIX[drawn]}share"].append((cluster, number))
    both = zip(answered["forced_think"], answered["forced_direct"], strict=True)
    for (cluster, think), (_, direct) in both:
        for name in think:
            if name in direct and not name.startswith("mode/"):
                values[f"forced/gain/{name}"].append((cluster, think[name] - direct[name]))
    return values


def _explain(scored: Sequence[tuple[str, Rollouts, Rewards]]) -> str:
    """Name the commonest reason why completions have no score; empty if none is known."""
    reasons: Counter[str] = Counter()
    total = 0
    for _, rollouts, rewards in scored:
        for p, group in enumerate(rollouts.completions):
            for g, completion in enumerate(group):
                total += 1
                verdicts = rewards.verdicts[p][g].items()
                faults = [f"verifier {k!r} failed: {v.fault}" for k, v in verdicts if v.fault]
                masked = not rewards.valid[p, g]
                if masked and not faults:
                    faults = [f"masked, finish reason {completion.finish_reason!r}"]
                reasons.update(faults[:1])
    shares = distributed.gather((reasons, total))
    reasons, total = sum((r for r, _ in shares), Counter()), sum(count for _, count in shares)
    if not reasons:
        return ""
    reason, times = reasons.most_common(1)[0]
    return f"; {times} of {total} completions: {reason}"


def _count_unscored(
    scored: Sequence[tuple[str, Rollouts, Rewards]],
    values: Mapping[str, Sequence[tuple[str, float]]],
) -> dict[str, Any]:
    """Return what the means of greedy completions leave out; empty if that is nothing.

    `faults` counts those on which a verifier failed, by verifier, and `masked` the others, by how they ended;
    `with_zeros` has the means in which all of them are 0, and `num_asked` counts the prompts.
    """
    faults: Counter[str] = Counter()
    masked: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for drawn, rollouts, rewards in scored:
        for p, prompt in enumerate(rollouts.batch.prompts) if drawn == "greedy" else ():
            completion, verdicts = rollouts.completions[p][0], rewards.verdicts[p][0]
            names = [name for name, verdict in verdicts.items() if verdict.fault is not None]
            faults.update(names)
            applies = any(verdict.applies for verdict in verdicts.values())
            if not rewards.valid[p, 0] and applies:
                masked.update([] if names else [completion.finish_reason])
                names = ["reward", *names]
            missing.update(names)
            missing.update(f"{prompt.sample.source}/{name}" for name in names)
    shares = distributed.gather((faults, masked, missing))
    faults, masked, missing = (sum(counts, Counter()) for counts in zip(*shares, strict=True))
    sums = {name: sum(value for _, value in values.get(name, ())) for name in missing}
    counts = {name: len(values.get(name, ())) + missing[name] for name in missing}
    means = {name: sums[name] / counts[name] for name in sorted(missing)}
    counted = {"faults": dict(faults), "masked": dict(masked), "with_zeros": means}
    return {"num_asked": len(values["answered"]), **counted} if faults or masked else {}


def _count_passes(rewards: Rewards, config: EvaluationConfig) -> list[tuple[int, int]]:
    """Return (samples scored, samples that pass) for each prompt."""
    name = config.metric.rpartition("/")[2]
    counts = []
    for p, group in enumerate(rewards.verdicts):
        if name == "reward":
            scores = [
                float(r) for r, ok in zip(rewards.total[p], rewards.valid[p], strict=True) if ok
            ]
        else:
            verdicts = (v[name] for v in group if name in v)
            scores = [v.score for v in verdicts if v.applies and v.score is not None]
        counts.append((len(scores), sum(score >= config.pass_threshold for score in scores)))
    return counts


def average_pass_at_k(passes: Sequence[tuple[int, int]], samples: int) -> dict[str, float]:
    """Return the mean of `pass_at_k` over prompts (n, correct), for the powers of two and `samples`.

    A prompt with fewer than k scored samples is left out; a k that none has is absent.
    """
    means = {}
    for k in sorted({2**i for i in range(samples.bit_length())} | {samples}):
        if values := [pass_at_k(n, c, k) for n, c in passes if n >= k]:
            means[str(k)] = float(np.mean(values))
    return means
