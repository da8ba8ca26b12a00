"""The first screen of a run's page: did it work, in one sentence, one large curve, samples before and after.

Which samples are shown is decided by position, never by result. Where it did not work, it says what to try.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vlmrl.features.report import held_out
from vlmrl.features.report.curves import LARGE, NARROW, Drawing, draw
from vlmrl.features.report.gallery import GalleryPrompt
from vlmrl.features.report.growing import Line, Series, StepLines, Stretch, mean_of
from vlmrl.features.report.held_out import (
    BEST_CONSTANT,
    CORRECTED,
    DEMONSTRATIONS,
    Change,
    score_name,
)
from vlmrl.features.report.series import MAIN_COLOUR, CurvePanel
from vlmrl.pages.media import evenly
from vlmrl.runs.complaints import (
    BLIND_NATS,
    WINDOW,
    complain_of_evaluation,
    complain_of_last,
    complain_of_many,
    kind_of,
)
from vlmrl.runs.rollout_rows import Row

MOVED = 0.02
"""A change of a share that is worth a word."""
HALF = 0.5
SHORT_RUN = 50
"""Steps below which a run may just have been too short."""
BLANK_LOGPROB = "media_ablation/blank_logprob_drop"
BLANK_REWARD = "media_ablation/blank_reward_drop"


@dataclass
class RunFacts:
    """How far a run has come: what the sentence is made of. `lines` are those of metrics.jsonl."""

    metric: str = "reward"
    planned: int = 0
    steps: int = 0
    ended: bool = False
    evaluations: Sequence[Line] = ()
    """The contents of evals/step-N.json, ascending."""
    change: Change | None = None
    """From the first to the last evaluation, sample by sample."""
    levels: Mapping[str, float] = field(default_factory=dict)
    first_lines: Sequence[Line] = ()
    last_lines: Sequence[Line] = ()
    newest: Mapping[str, Any] = field(default_factory=dict)
    """The last known value of what blank media cost."""
    alarms: Sequence[str] = ()
    """Sentences of the loophole watch."""
    complaints: Sequence[str] = ()
    """What was wrong with many of its steps."""

    @classmethod
    def of(cls, config: Line, metrics: StepLines, **more: Any) -> RunFacts:
        """Gather what the config and all lines of metrics.jsonl say."""
        return cls(
            metric=(config.get("evaluation") or {}).get("metric") or "reward",
            planned=config["run"]["steps"],
            steps=metrics.steps[-1] if metrics.steps else 0,
            first_lines=metrics.lines[:WINDOW],
            last_lines=metrics.lines[-WINDOW:],
            complaints=complain_of_many(metrics.lines),
            newest={key: metrics.newest(key) for key in (BLANK_LOGPROB, BLANK_REWARD)},
            **more,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The sentence of the first screen with its colour, facts that support it, and what to try next."""

    state: Literal["rose", "fell", "same", "open"]
    sentence: str
    facts: tuple[str, ...]
    advice: tuple[str, ...]


def describe(progress: RunFacts) -> Outcome:
    """Return the outcome of a run, finished or not."""
    state, sentence = _compare(progress)
    last = progress.evaluations[-1] if progress.evaluations else {}
    advice = [
        *complain_of_evaluation(last, progress.metric),
        *complain_of_last(progress.last_lines),
        *progress.alarms,
    ]
    if state in ("same", "fell"):
        known = {*map(kind_of, advice)}
        causes = [line for line in progress.complaints if kind_of(line) not in known]
        advice = [*causes, *advice] or _advise(progress, state)
    facts = (*_of_answers(progress), *_of_levels(progress), *_of_sight(progress))
    return Outcome(state, sentence, facts, tuple(advice))


def say_metric(metric: str) -> str:
    """Return a metric as a reader says it: `sampled/shapes/box_iou` is "box IoU of shapes, sampled"."""
    rest = metric.removeprefix("sampled/")
    source, _, name = rest.rpartition("/")
    words = re.sub(r"\biou\b", "IoU", name.replace("_", " "))
    return f"{words}{f' of {source}' if source else ''}{', sampled' if rest != metric else ''}"


def _compare(progress: RunFacts) -> tuple[Literal["rose", "fell", "same", "open"], str]:
    metric = progress.metric
    known = [evaluation for evaluation in progress.evaluations if metric in evaluation["metrics"]]
    subject = f"Held-out {say_metric(metric)}"
    if not known:
        return "open", _without_evaluation(progress)
    first, last = known[0], known[-1]
    before, after = first["metrics"][metric], last["metrics"][metric]
    bounds = last["intervals"].get(metric)
    interval = f" (95 % {_said(bounds[0])}–{_said(bounds[1])})" if bounds else ""
    if first is last:
        when = "before the first step" if last["step"] == 0 else f"after {_steps(last['step'])}"
        return "open", f"{subject} is {_said(after)}{interval} {when}; nothing to compare with yet"
    when = f"in {_steps(last['step'] - first['step'])}"
    if not progress.ended:
        when += f" so far (of {progress.planned:,})"
    moved = _moved(progress, first, last)
    if moved == "same":
        if progress.change and progress.change.low is not None:
            low, high = progress.change.low, progress.change.high or 0.0
            interval = f" (the difference is {low:+.2f} to {high:+.2f}, 95 %)".replace("-", "−")
        return (
            moved,
            f"{subject} did not change: {_said(before)} to {_said(after)}{interval} {when}",
        )
    return moved, f"{subject} {moved} from {_said(before)} to {_said(after)}{interval} {when}"


def _moved(progress: RunFacts, first: Line, last: Line) -> Literal["rose", "fell", "same"]:
    """Return where the metric went beyond chance: by the paired difference, else by the intervals."""
    metric, change = progress.metric, progress.change
    before, after = first["metrics"][metric], last["metrics"][metric]
    if change is not None and change.low is not None:
        beyond = change.is_known
    else:
        low, high = last["intervals"].get(metric) or (after, after)
        beyond = not low <= before <= high
    if not beyond or before == after:
        return "same"
    return "rose" if after > before else "fell"


def _without_evaluation(progress: RunFacts) -> str:
    first, last = (
        mean_of(lines, "reward/mean") for lines in (progress.first_lines, progress.last_lines)
    )
    if first is None or last is None:
        return "Nothing has been measured yet"
    return (
        f"Nothing held out was evaluated; the training reward went from {_said(first)} to {_said(last)} "
        f"in {_steps(progress.steps)}, which says nothing of new samples: set evaluation"
    )


def _of_answers(progress: RunFacts) -> list[str]:
    """Return whether the form of the answers held."""
    known = [evaluation["metrics"] for evaluation in progress.evaluations]
    for name, what in (("format", "format"), ("answered", "the share of readable answers")):
        values = [metrics[name] for metrics in known if name in metrics]
        if len(values) > 1:
            first, last = values[0], values[-1]
            if last < first - MOVED:
                return [f"{what} fell from {_said(first)} to {_said(last)}"]
            return [f"{what} {'held' if last >= HALF else 'is low'} ({_said(last)})"]
    return []


def _of_levels(progress: RunFacts) -> list[str]:
    known = [evaluation["metrics"].get(progress.metric) for evaluation in progress.evaluations]
    values = [value for value in known if value is not None]
    phrases = []
    if len(values) > 1 and CORRECTED in progress.levels and values[-1] > values[0]:
        share = (progress.levels[CORRECTED] - values[0]) / (values[-1] - values[0])
        if share > 0:
            phrases.append(f"a constant correction would earn {min(share, 1.0):.0%} of the gain")
    if values and BEST_CONSTANT in progress.levels:
        over = values[-1] - progress.levels[BEST_CONSTANT]
        word = "above" if over >= 0 else "below"
        phrases.append(f"{_said(abs(over))} {word} the best constant answer")
    return phrases


def _of_sight(progress: RunFacts) -> list[str]:
    """Return whether the policy looks at its media, as its last ablation saw it."""
    drop = progress.newest.get(BLANK_LOGPROB)
    if drop is None:
        return ["whether it looks was not measured (checks.media_ablation_every)"]
    if drop < BLIND_NATS:
        return ["blind answers: blank media cost it nothing"]
    lost = progress.newest.get(BLANK_REWARD)
    cost = f" (blank media cost it {_said(lost)} of its reward)" if lost and lost > 0 else ""
    return [f"no sign of blind answers{cost}"]


def _advise(progress: RunFacts, state: str) -> list[str]:
    """Return what to try where no number of the last steps explains the outcome."""
    first, last = (
        mean_of(lines, "reward/mean") for lines in (progress.first_lines, progress.last_lines)
    )
    rose = first is not None and last is not None and last > first + MOVED
    if rose:
        return [
            f"the training reward rose ({_said(first)} to {_said(last)}) and the held-out metric did not: "
            "see the answers below for what is rewarded, try `vlmrl verify` on the verifiers, and rows that "
            "are like the held-out ones"
        ]
    if state == "fell":
        return [
            "try a lower optimizer.lr, or a divergence (kl of the algorithm); the best checkpoint is kept"
        ]
    if progress.steps < SHORT_RUN:
        return [f"{_steps(progress.steps)} are few: try more (run.steps)"]
    return [
        "the training reward stands still, too: try a higher optimizer.lr, or a longer cold start"
    ]


def _said(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if abs(value) < 100 else f"{value:.3g}"


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


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
    truth: str
    """The right answer, where nothing that is drawn shows it; else empty."""
    halves: tuple[Half, ...]


@dataclass(frozen=True, slots=True)
class FirstScreen:
    """What the page begins with; `charts` are the same curve for a wide screen and for a narrow one."""

    outcome: Outcome
    charts: tuple[Drawing, ...]
    metric: str
    pairs: tuple[AnswerPair, ...]


def first_screen(
    config: Mapping[str, object],
    progress: RunFacts,
    cards: Sequence[GalleryPrompt],
    stages: Sequence[Stretch] = (),
) -> FirstScreen:
    """Return the first screen; `cards` are held-out samples with their first and last answer."""
    panel = _curve(config, progress)
    known = {**MAIN_COLOUR, GREEDY: 0}
    charts = [draw(panel, known.copy(), stages, size) for size in (LARGE, NARROW)] if panel else []
    score = score_name(progress.metric)
    pairs = tuple(_pair(card, score) for card in evenly(cards, PAIRS))
    return FirstScreen(describe(progress), tuple(charts), say_metric(progress.metric), pairs)


def compare_ends(
    metric: str, ends: Mapping[int, Sequence[Row]], demonstrated: float | None
) -> dict[str, Any]:
    """Return the `levels` and the `change` that the samples of the first and last evaluation tell.

    `demonstrated` is what the metric gave the demonstrations of the cold start; None: it is not known.
    """
    levels = held_out.levels(metric, ends[min(ends)]) if ends else {}
    if demonstrated is not None:
        levels[DEMONSTRATIONS] = demonstrated
    pair = (ends[min(ends)], ends[max(ends)]) if len(ends) > 1 else None
    return {"levels": levels, "change": pair and held_out.change(metric, *pair)}


def _curve(config: Mapping[str, object], progress: RunFacts) -> CurvePanel | None:
    """Return the chosen metric over the evaluations, else the training reward; None without either."""
    metric = progress.metric
    wanted = [metric] if metric.startswith("sampled/") else [metric, f"sampled/{metric}"]
    series = tuple(
        curve for name in wanted if (curve := _series(name, progress.evaluations)) is not None
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
    known = [evaluation for evaluation in evaluations if metric in evaluation["metrics"]]
    if not known:
        return None
    values = [evaluation["metrics"][metric] for evaluation in known]
    bounds = [
        evaluation["intervals"].get(metric) or (v, v)
        for evaluation, v in zip(known, values, strict=True)
    ]
    low, high = zip(*bounds, strict=True)
    name = "sampled" if metric.startswith("sampled/") else GREEDY
    return Series(name, tuple(evaluation["step"] for evaluation in known), tuple(values), low, high)


def _pair(card: GalleryPrompt, score: str) -> AnswerPair:
    """Return a sample with the named score of each answer."""
    halves = []
    for attempt in card.attempts:
        verdict = attempt.scores.get(score)
        value = attempt.reward if verdict is None else verdict.score
        answer = "no answer" if attempt.answer is None else attempt.answer
        cut = answer if len(answer) <= MAX_ANSWER else f"{answer[:MAX_ANSWER]}…"
        alone = replace(card, attempts=(attempt,), alone=None)
        halves.append(Half(attempt.label, "–" if value is None else f"{value:.2f}", cut, alone))
    truth = "" if card.truth_shapes else card.right[:MAX_ANSWER]
    return AnswerPair(card.question, truth, tuple(halves))
