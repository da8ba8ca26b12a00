"""The first screen of a run's page: the answer, one large curve, and samples before and after.

Which samples are shown is decided by position, never by result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlmrl.pages.media import evenly
from vlmrl.report.drawing import LARGE, NARROW, Drawing, draw
from vlmrl.report.gallery import GalleryCompletion, GalleryPrompt
from vlmrl.report.held_out.levels import DEMONSTRATIONS, levels
from vlmrl.report.held_out.scores import change, score_name
from vlmrl.report.series import MAIN_COLOUR, CurvePanel, Series
from vlmrl.report.stages import Stretch
from vlmrl.report.words.outcome import Outcome, RunFacts, describe, say_metric
from vlmrl.runs.rollout_rows import Row

__all__ = ["FirstScreen", "compare_ends", "first_screen"]

GREEDY = "greedy"
PAIRS = 8
MAX_ANSWER = 90
"""Characters of an answer below its image."""


@dataclass(frozen=True, slots=True)
class Half:
    """One answer to a sample: the card holds it alone, for the macros that draw media."""

    label: str
    score: str
    answer: str
    card: GalleryPrompt


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """A sample as the first and the last evaluated policy answered it."""

    question: str
    halves: tuple[Half, ...]


@dataclass(frozen=True, slots=True)
class FirstScreen:
    """What the page begins with; `charts` are the same curve for a wide screen and for a narrow one."""

    outcome: Outcome
    charts: tuple[Drawing, ...]
    metric: str
    pairs: tuple[AnswerPair, ...]


def first_screen(
    config: Mapping[str, Any],
    progress: RunFacts,
    cards: Sequence[GalleryPrompt],
    stages: Sequence[Stretch] = (),
) -> FirstScreen:
    """Return the first screen; `cards` are held-out samples with their first and last answer."""
    panel = _curve(config, progress)
    charts = (
        [draw(panel, {**MAIN_COLOUR, GREEDY: 0}, stages, size) for size in (LARGE, NARROW)]
        if panel
        else []
    )
    name = say_metric(progress.metric)
    return FirstScreen(
        describe(progress), tuple(charts), name, pairs_of(cards, score_name(progress.metric))
    )


def compare_ends(
    progress: RunFacts, ends: Mapping[int, Sequence[Row]], demonstrated: float | None
) -> None:
    """Fill in what the samples of the first and the last evaluation, by step, tell.

    `demonstrated` is what the metric gave the demonstrations of the cold start; None: it is not known.
    """
    if ends:
        progress.levels = levels(progress.metric, ends[min(ends)])
    if demonstrated is not None:
        progress.levels = {**progress.levels, DEMONSTRATIONS: demonstrated}
    if len(ends) > 1:
        progress.change = change(progress.metric, ends[min(ends)], ends[max(ends)])


def _curve(config: Mapping[str, Any], progress: RunFacts) -> CurvePanel | None:
    """Return the chosen metric over the evaluations, else the training reward; None without either."""
    metric = progress.metric
    wanted = [metric] if metric.startswith("sampled/") else [metric, f"sampled/{metric}"]
    series = tuple(
        found for name in wanted if (found := _series(name, progress.evaluations)) is not None
    )
    if not series:
        return None
    first = progress.evaluations[0]
    begun = first["metrics"].get(metric)
    marked = dict(progress.levels)
    if begun is not None and len(series[0].steps) > 1:
        imitated = config.get("sft") and first["step"] == 0
        marked["after imitation alone" if imitated else "before training"] = begun
    return CurvePanel(f"Held-out {say_metric(metric)}", series, levels=tuple(marked.items()))


def _series(metric: str, evaluations: Sequence[Mapping[str, Any]]) -> Series | None:
    known = [one for one in evaluations if metric in one["metrics"]]
    if not known:
        return None
    values = [one["metrics"][metric] for one in known]
    bounds = [one["intervals"].get(metric) or (v, v) for one, v in zip(known, values, strict=True)]
    low, high = zip(*bounds, strict=True)
    name = "sampled" if metric.startswith("sampled/") else GREEDY
    return Series(name, tuple(one["step"] for one in known), tuple(values), low, high)


def pairs_of(cards: Sequence[GalleryPrompt], score: str) -> tuple[AnswerPair, ...]:
    """Return at most `PAIRS` samples with the named score of each answer."""
    return tuple(
        AnswerPair(card.question, tuple(_half(card, attempt, score) for attempt in card.attempts))
        for card in evenly(cards, PAIRS)
    )


def _half(card: GalleryPrompt, attempt: GalleryCompletion, score: str) -> Half:
    found = attempt.scores.get(score)
    value = attempt.reward if found is None else found.score
    answer = "no answer" if attempt.answer is None else attempt.answer
    return Half(
        attempt.label,
        "–" if value is None else f"{value:.2f}",
        answer if len(answer) <= MAX_ANSWER else f"{answer[:MAX_ANSWER]}…",
        replace(card, attempts=(attempt,), alone=None),
    )
