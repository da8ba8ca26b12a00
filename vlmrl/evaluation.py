"""Evaluation: the same cards, the same verifiers, greedy and k samples, with confidence intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.config import EvaluationConfig
from vlmrl.engines.base import Engine, Sampling
from vlmrl.rows import rows
from vlmrl.schema import PromptBatch, Rewards, Rollouts
from vlmrl.scoring import Scorer


@dataclass(frozen=True)
class Evaluation:
    """`result` is what evals/step-N.json holds; `scored` are the batches behind it.

    Each batch comes with how it was drawn: "greedy" or "sampled".
    """

    result: dict[str, Any]
    scored: list[tuple[str, Rollouts, Rewards]]

    def rows(self, media_folder: Path) -> Iterator[dict[str, Any]]:
        """One row per prompt and way of drawing, as evals/step-N.jsonl holds them."""
        for drawn, rollouts, rewards in self.scored:
            for row in rows(media_folder, rollouts, rewards):
                yield {"drawn": drawn, **row}


def evaluate(
    batches: Iterable[PromptBatch],
    engine: Engine,
    scorer: Scorer,
    config: EvaluationConfig,
    max_tokens: int,
    step: int = 0,
    progress: float = 1.0,
    seed: int = 0,
) -> Evaluation:
    """Score one greedy completion per prompt, and `config.samples` sampled ones at temperature 1.

    The metrics are means over prompts: `reward`, `<verifier>`, `answered` (an answer was found at
    all), and the same behind `<source>/`; of the sampled completions behind `sampled/`. Each has a
    95 % bootstrap interval, resampled by image where several prompts share one (they are not
    independent). `pass_at_k` is the chance that at least one of k samples reaches
    `config.pass_at` in `config.metric`.
    """
    scored = []
    greedy: dict[str, list[tuple[str, float]]] = defaultdict(list)
    sampled: dict[str, list[tuple[str, float]]] = defaultdict(list)
    passes: list[tuple[int, int]] = []
    for batch in batches:
        rollouts = engine.generate(batch, Sampling(n=1, max_tokens=max_tokens, greedy=True))
        rewards = scorer.score(rollouts, progress, whole=False)
        _collect(greedy, rollouts, rewards)
        scored.append(("greedy", rollouts, rewards))
        if config.samples:
            draw = Sampling(n=config.samples, max_tokens=max_tokens, seed=seed + len(scored))
            rollouts = engine.generate(batch, draw)
            rewards = scorer.score(rollouts, progress, whole=False)
            _collect(sampled, rollouts, rewards)
            passes += _passes(rewards, config)
            scored.append(("sampled", rollouts, rewards))
    if not greedy:
        raise ValueError("nothing to evaluate: no batch came")
    metrics = {key: _mean(values) for key, values in greedy.items()}
    intervals = {key: interval(values, config.bootstrap) for key, values in greedy.items()}
    for key, values in sampled.items():
        metrics[f"sampled/{key}"] = _mean(values)
        intervals[f"sampled/{key}"] = interval(values, config.bootstrap)
    result = {
        "step": step,
        "metrics": metrics,
        "intervals": intervals,
        "num_samples": len(greedy["reward"]),
        "pass_at_k": _pass_at_k(passes, config.samples) if passes else None,
    }
    return Evaluation(result, scored)


def interval(values: Sequence[tuple[str, float]], resamples: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of (cluster, value) pairs, clusters resampled whole."""
    clusters: dict[str, list[float]] = defaultdict(list)
    for cluster, value in values:
        clusters[cluster].append(value)
    sums = np.array([sum(v) for v in clusters.values()])
    counts = np.array([len(v) for v in clusters.values()])
    picks = np.random.default_rng(0).integers(0, len(sums), (resamples, len(sums)))
    means = sums[picks].sum(1) / counts[picks].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased chance that one of k draws out of n, `correct` of them right, is right.

    Source: Chen et al. 2021, arXiv 2107.03374, eq. 1.
    """
    if n - correct < k:
        return 1.0
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def _collect(
    into: dict[str, list[tuple[str, float]]], rollouts: Rollouts, rewards: Rewards
) -> None:
    """Per prompt, the mean over its completions of every score that was given."""
    for p, prompt in enumerate(rollouts.batch.prompts):
        sample = prompt.sample
        cluster = sample.media[0].path if sample.media and sample.media[0].path else sample.id
        valid = [float(r) for r, ok in zip(rewards.total[p], rewards.valid[p], strict=True) if ok]
        answered = [float(c.answer is not None) for c in rollouts.completions[p]]
        scores: dict[str, list[float]] = {"reward": valid, "answered": answered}
        for verdicts in rewards.verdicts[p]:
            for name, verdict in verdicts.items():
                if verdict.applies and verdict.score is not None:
                    scores.setdefault(name, []).append(verdict.score)
        for name, given in scores.items():
            if given:
                mean = sum(given) / len(given)
                into[name].append((cluster, mean))
                into[f"{sample.source}/{name}"].append((cluster, mean))


def _passes(rewards: Rewards, config: EvaluationConfig) -> list[tuple[int, int]]:
    """(samples scored, samples that pass) per prompt."""
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
        counts.append((len(scores), sum(score >= config.pass_at for score in scores)))
    return counts


def _pass_at_k(passes: Sequence[tuple[int, int]], samples: int) -> dict[str, float]:
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= samples]
    return {str(k): float(np.mean([pass_at_k(n, c, k) for n, c in passes if n >= k])) for k in ks}


def _mean(values: Sequence[tuple[str, float]]) -> float:
    return sum(v for _, v in values) / len(values)
