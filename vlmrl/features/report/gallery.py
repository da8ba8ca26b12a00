"""Lay out rollouts as groups that a person can compare: image, question, completions, verdicts.

What is shown is chosen by position, never by result: evenly over steps, sources in turn.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vlmrl.features.report.rows import encode
from vlmrl.pages.media import (
    Album,
    MediaView,
    Shape,
    canvas_of,
    evenly,
    say_truth,
    shapes,
    view,
)
from vlmrl.pages.render import number
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import Row, cluster_of
from vlmrl.system.files import read_lines

ABOUT = (
    "Prompts of the steps in which the reward began to rise for another reason than better answers, those "
    "first that gave rise to it most. `strict` is a completion's score by a strict reading, `elsewhere` "
    "what it earns with another prompt's truth."
)
SIGNS = {
    "candidates": "lists several candidates",
    "fallback": "not in plain form",
    "copied": "copied from the question",
    "repeated": "says the same twice",
}


def alarm_sentences(folder: Path) -> list[str]:
    """Return a sentence for each alarm of a run, with its step.

    Raises:
        UserError: loopholes.jsonl is damaged.
    """
    return [
        f"step {line['step']}: loophole? {text}"
        for line in _lines(folder)
        for text in line["alarms"].values()
    ]


def alarm_rows(folder: Path) -> dict[int, list[Row]]:
    """Return the prompts that were kept with alarms, by step.

    Raises:
        UserError: loopholes.jsonl is damaged.
    """
    return {line["step"]: line["rows"] for line in _lines(folder)}


def odd_flags(completion: Mapping[str, Any]) -> list[str]:
    """Return in words what the watch noted of a completion; none where it did not measure it."""
    facts = completion.get("loophole") or {}
    numbers = [f"{k} {facts[k]:.2f}" for k in ("strict", "elsewhere") if facts.get(k) is not None]
    return [SIGNS.get(sign, str(sign)) for sign in facts.get("signs", ())] + numbers


def _lines(folder: Path) -> list[dict[str, Any]]:
    path = run_folder.loopholes_path(folder)
    return read_lines(path) if path.exists() else []


DISAGREEMENTS = {
    "rewards": "rewards of the group differ",
    "uniform": "rewards of the group are equal",
    "verifiers": "verifiers differ by half or more",
    "readings": "a strict reading pays less",
}
FAILURES = {
    "any": "any",
    "fault": "a verifier failed",
    "cut": "cut at a limit",
    "aborted": "aborted",
    "unread": "no readable answer",
    "form": "not in the form asked for",
}
HALF = 0.5
"""Difference of two scores of one completion from which their verifiers disagree."""
BELOW = 0.05
"""What a strict reading pays less than the reward, to be worth a look."""
FORM = "format"
"""The verifier of the form of an answer; a score below 1 is a failure."""


@dataclass(frozen=True, slots=True)
class Facets:
    """Keys of `DISAGREEMENTS` and `FAILURES` that hold of a prompt, and the verifiers that apply to it."""

    verifiers: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FacetChoice:
    """What prompts are chosen by; an empty text chooses all."""

    source: str = ""
    verifier: str = ""
    disagreement: str = ""
    failure: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> FacetChoice:
        """Return the choice that an address states."""
        return cls(**{name: query.get(name, "") for name in cls.__slots__})

    def holds(self, row: Row) -> bool:
        """Return whether a row is among the chosen."""
        facets = facets_of(row["completions"])
        wanted = (
            (self.source, (row["source"],)),
            (self.verifier, facets.verifiers),
            (self.disagreement, facets.disagreements),
            (self.failure, facets.failures),
        )
        return all(not value or value in known for value, known in wanted)


def facets_of(completions: Sequence[Row]) -> Facets:
    """Return what one prompt's completions can be chosen by."""
    verdicts = [
        (n, v)
        for completion in completions
        for n, v in completion["verdicts"].items()
        if v["applies"]
    ]
    verifiers = dict.fromkeys(name for name, _ in verdicts)
    disagreements = _disagreements(completions)
    failures = [key for completion in completions for key in _failures(completion)]
    if failures:
        failures.append("any")
    return Facets(
        tuple(verifiers),
        tuple(key for key in DISAGREEMENTS if key in disagreements),
        tuple(key for key in FAILURES if key in failures),
    )


def _disagreements(completions: Sequence[Row]) -> set[str]:
    rewards = {completion["reward"] for completion in completions if completion["valid"]}
    kinds = {"rewards"} if len(rewards) > 1 else {"uniform"} if len(completions) > 1 else set()
    for completion in completions:
        scores = [v["score"] for v in completion["verdicts"].values() if v["score"] is not None]
        if scores and max(scores) - min(scores) >= HALF:
            kinds.add("verifiers")
        strict: Any = (completion.get("loophole") or {}).get("strict")
        if strict is not None and strict < completion["reward"] - BELOW:
            kinds.add("readings")
    return kinds


def _failures(completion: Row) -> list[str]:
    verdicts, reason = completion["verdicts"], completion["finish_reason"]
    form = verdicts.get(FORM, {}).get("score")
    signs = {
        "fault": any(verdict["fault"] for verdict in verdicts.values()),
        "cut": reason not in ("stop", "abort"),
        "aborted": reason == "abort",
        "unread": completion["answer"] is None,
        "form": form is not None and form < 1.0,
    }
    return [key for key, is_so in signs.items() if is_so]


MAX_STEPS = 12
MAX_PROMPTS = 12
"""Per step."""
MAX_PAIRS = 24
MAX_SHAPES = 30
"""More predicted shapes than these hide the image: then only the best completion's are drawn."""
MAX_TEXT = 4000
"""Characters of one text; what is longer is cut, visibly."""


@dataclass(frozen=True, slots=True)
class GalleryScore:
    """One verdict: its name, its score or why there is none, its parts and its note."""

    name: str
    score: float | None
    state: str
    """Empty, or why there is no score: "fault" or "n/a"."""
    detail: str


@dataclass(frozen=True, slots=True)
class CallView:
    """One call of a tool, with the image that it cut from, if it is in the report."""

    name: str
    arguments: str
    outcome: str
    note: str
    seconds: float
    view: MediaView | None
    shapes: tuple[Shape, ...]
    """The place that it asked for, in pixels of the view's image."""


@dataclass(frozen=True, slots=True)
class SegmentView:
    """What the policy wrote in one turn, or what it was shown after it."""

    by: str
    text: str
    views: tuple[MediaView, ...]
    calls: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class GalleryCompletion:
    """One completion; its `label` is its number in the group, or the step of the policy."""

    label: str
    reward: float | None
    """None where it is masked."""
    advantage: float | None
    thought: str | None
    answer: str | None
    text: str
    tokens: int
    scores: dict[str, GalleryScore]
    flags: tuple[str, ...]
    shapes: tuple[Shape, ...]
    segments: tuple[SegmentView, ...]
    """Of a completion of several turns, in order; empty for one turn."""


@dataclass(frozen=True, slots=True)
class GalleryPrompt:
    """One prompt with the completions to compare."""

    step: int
    source: str
    id: str
    turns: tuple[tuple[str, str], ...]
    """Role and text of the turns before the question."""
    question: str
    prompt: str
    views: tuple[MediaView, ...]
    canvas: MediaView | None
    """The one of `views` on which places and spans are drawn."""
    truth: str
    right: str
    """The right answer where it is a text, a choice or a number; else empty."""
    truth_shapes: tuple[Shape, ...]
    attempts: tuple[GalleryCompletion, ...]
    verifiers: tuple[str, ...]
    alone: int | None
    """Index of the attempt whose shapes are drawn at first; None: all."""
    mean: float
    spread: float
    facets: Facets
    """What it can be chosen by."""
    numbered: bool = False
    """Whether the places of each attempt are drawn in its own colour, with its number."""

    @property
    def anchor(self) -> str:
        """Return the name by which an address finds the card in its gallery."""
        source, name = (quote(text, "", errors="replace") for text in (self.source, self.id))
        return f"{self.step}-{source}-{name}"

    @property
    def query(self) -> str:
        """Return what an address of `vlmrl watch` states of its row."""
        return encode({"source": self.source, "id": self.id, "step": self.step})

    @property
    def has_spans(self) -> bool:
        """Return whether there is something to show on a timeline."""
        drawn = chain(self.truth_shapes, *(attempt.shapes for attempt in self.attempts))
        return any(shape.kind == "span" for shape in drawn)


def rollout_cards(rollouts: Mapping[int, Sequence[Row]], album: Album) -> list[GalleryPrompt]:
    """Return the training groups, newest step first: at most MAX_STEPS steps of MAX_PROMPTS prompts."""
    steps = evenly(sorted(rollouts), MAX_STEPS)
    return [
        _card(step, row, _best_first(row["completions"]), album)
        for step in reversed(steps)
        for row in _sources_in_turn(rollouts[step])[:MAX_PROMPTS]
    ]


def evaluation_cards(evaluations: Mapping[int, Sequence[Row]], album: Album) -> list[GalleryPrompt]:
    """Return held-out samples as the first and the last evaluated policy answered them, greedily.

    The same question of the same medium is shown once.
    """
    if not evaluations:
        return []
    first, last = min(evaluations), max(evaluations)
    greedy = {step: _greedy(evaluations[step]) for step in (first, last)}
    distinct: dict[tuple[str, str], Row] = {}
    for key, row in greedy[last].items():
        if key in greedy[first]:
            distinct.setdefault((cluster_of(row), row["question"]), row)
    steps = [first, last] if first != last else [last]
    cards = []
    for row in evenly(_sources_in_turn([*distinct.values()]), MAX_PAIRS):
        key = (row["source"], row["id"])
        attempts = [(f"step {step}", greedy[step][key]["completions"][0]) for step in steps]
        cards.append(_card(last, row, attempts, album))
    return cards


def row_card(step: int, row: Row, album: Album) -> GalleryPrompt:
    """Return one group with its completions in order, the places of each in a colour of its own."""
    numbered = [(str(g + 1), completion) for g, completion in enumerate(row["completions"])]
    return replace(_card(step, row, numbered, album), numbered=True, alone=None)


def _best_first(completions: Sequence[Row]) -> list[tuple[str, Row]]:
    numbered = [(str(g + 1), completion) for g, completion in enumerate(completions)]
    return sorted(numbered, key=lambda pair: (not pair[1]["valid"], -pair[1]["reward"]))


def _greedy(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    return {(r["source"], r["id"]): r for r in rows if r.get("drawn", "greedy") == "greedy"}


def _sources_in_turn(rows: Sequence[Row]) -> list[Row]:
    by_source: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_source[row["source"]].append(row)
    return [row for row in chain(*zip_longest(*by_source.values())) if row is not None]


def _card(step: int, row: Row, attempts: Sequence[tuple[str, Row]], album: Album) -> GalleryPrompt:
    views = tuple(view(medium, album) for medium in row["media"])
    # Coordinates belong to the sample's main medium (schema.Prompt.frame).
    canvas = canvas_of(views, row.get("main_medium"))
    made = [
        _attempt(
            label,
            completion,
            shapes(_answers(completion), canvas),
            _segments(completion, row["media"], views, album),
        )
        for label, completion in attempts
    ]
    rewards = [a.reward for a in made if a.reward is not None]
    crowded = sum(len(a.shapes) for a in made) > MAX_SHAPES
    return GalleryPrompt(
        step=step,
        source=row["source"],
        id=row["id"],
        turns=tuple(map(_turn, row.get("turns", ()))),
        question=_cut(row["question"]),
        prompt=_cut(row["prompt"]),
        views=views,
        canvas=canvas,
        truth=_cut(say_truth(row["truth"], row.get("frame"))),
        right=_right(row["truth"]),
        truth_shapes=shapes(row["truth"], canvas),
        attempts=tuple(made),
        verifiers=tuple(dict.fromkeys(name for a in made for name in a.scores)),
        alone=_best(made) if crowded else None,
        mean=statistics.fmean(rewards) if rewards else 0.0,
        spread=statistics.pstdev(rewards) if rewards else 0.0,
        facets=facets_of([completion for _, completion in attempts]),
    )


def _turn(turn: Row) -> tuple[str, str]:
    media = "" if not turn["media"] else f"[{turn['media']} media] "
    return turn["role"], _cut(f"{media}{turn['text']}")


def _best(attempts: Sequence[GalleryCompletion]) -> int:
    rewards = [-math.inf if a.reward is None else a.reward for a in attempts]
    return rewards.index(max(rewards))


def _segments(
    completion: Row, media: Sequence[Row], views: Sequence[MediaView], album: Album
) -> tuple[SegmentView, ...]:
    """Return the segments of several turns; a call's box is drawn on the image that it was cut from."""
    segments = completion.get("segments", ())
    if len(segments) < 2:
        return ()
    kinds = [medium["kind"] for medium in media]
    images = [shown for kind, shown in zip(kinds, views, strict=True) if kind == "image"]
    segment_views = []
    for segment in segments:
        calls = tuple(_call(call, images) for call in segment["calls"])
        shown = tuple(view(_observed(name), album) for name in segment["media"])
        images += [image for image in shown if image.kind == "image"]
        segment_views.append(SegmentView(segment["by"], _cut(segment["text"]), shown, calls))
    return tuple(segment_views)


def _observed(name: str | None) -> Row:
    """Return an observation's medium as a row's media are stated; of a video no file is kept."""
    kind = "video" if name is None else "audio" if name.endswith(".wav") else "image"
    return {"kind": kind, "name": f"{kind} of a tool", "thumbnail": name}


def _call(call: Row, images: Sequence[MediaView]) -> CallView:
    box, number = call.get("box"), call.get("image")
    on = images[number - 1] if box and number and number <= len(images) else None
    return CallView(
        name=call["name"],
        arguments=_cut(json.dumps(call["arguments"], ensure_ascii=False)),
        outcome=call["outcome"],
        note=_cut(call["note"]),
        seconds=call["seconds"],
        view=on if on and on.image else None,
        shapes=shapes(box, on),
    )


def _attempt(
    label: str, completion: Row, drawn: tuple[Shape, ...], segments: tuple[SegmentView, ...]
) -> GalleryCompletion:
    thought, answer = completion["thought"], completion["answer"]
    return GalleryCompletion(
        label=label,
        reward=completion["reward"] if completion["valid"] else None,
        advantage=completion["advantage"],
        thought=None if thought is None else _cut(thought),
        answer=None if answer is None else _cut(answer),
        text=_cut(completion["text"]),
        tokens=completion["tokens"],
        scores={name: _score(name, v) for name, v in completion["verdicts"].items()},
        flags=tuple(_flags(completion)),
        shapes=drawn,
        segments=segments,
    )


def _score(name: str, verdict: Row) -> GalleryScore:
    parts = " · ".join(f"{key} {number(value)}" for key, value in verdict["parts"].items())
    state = "fault" if verdict["fault"] else "" if verdict["applies"] else "n/a"
    details = (verdict["fault"], parts, verdict["note"])
    return GalleryScore(name, verdict["score"], state, _cut(" · ".join(d for d in details if d)))


_CUT_AT = {
    "length": "cut at the token limit",
    "turns": "cut at the last turn",
    "budget": "cut where an observation would not fit",
}


def _flags(completion: Row) -> list[str]:
    """Return why a completion is out of the ordinary."""
    flags = []
    if completion["finish_reason"] != "stop":
        flags.append(_CUT_AT.get(completion["finish_reason"], "aborted"))
    if not completion["valid"]:
        flags.append("masked from the loss")
    elif completion["kept"] is False:
        flags.append("not in the update")
    return flags + odd_flags(completion)


def _answers(completion: Row) -> list[Any]:
    return [verdict["answer"] for verdict in completion["verdicts"].values()]


def _right(truth: Row) -> str:
    """Return a right answer as one would write it; empty: the truth has no text, choice or number."""
    texts = truth.get("text") or [truth.get("choice")]
    value = truth.get("number") if texts[0] is None else texts[0]
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _cut(text: str) -> str:
    rest = len(text) - MAX_TEXT
    return text if rest <= 0 else f"{text[:MAX_TEXT]} … ({rest} more characters)"


GROUPS = (
    "Prompts with all their completions. Point at a completion to see its boxes alone, "
    "open it for its thought, its verdicts and their notes."
)
ENDS = (
    "The same held-out samples as the first and the last evaluated policy answered them, "
    "greedily; chosen by position, not by result."
)


@dataclass(frozen=True, slots=True)
class Gallery:
    """Cards of one kind; `keys` name the colours of what is drawn.

    `options` has for each thing that cards can be chosen by its values with what is said of them, and
    `chosen` the value at first, if any.
    """

    kind: str
    title: str
    about: str
    keys: tuple[str, ...]
    cards: tuple[GalleryPrompt, ...]
    options: Mapping[str, Mapping[str, str]]
    chosen: Mapping[str, str]
    rows: str = ""
    """Where `vlmrl watch` has the pages of its rows; empty: nowhere, as in a file."""

    @property
    def first(self) -> list[GalleryPrompt]:
        """Return the cards of the step that is chosen at first, all if none is."""
        step = self.chosen.get("step")
        return [card for card in self.cards if step in (None, str(card.step))]

    @property
    def later(self) -> list[GalleryPrompt]:
        """Return the other cards."""
        step = self.chosen.get("step")
        return [card for card in self.cards if step not in (None, str(card.step))]


def galleries(
    ends: Mapping[int, Sequence[Row]],
    album: Album,
    rows: Mapping[int, Sequence[Row]],
    odd: Mapping[int, Sequence[Row]],
) -> list[Gallery]:
    """Return what a report shows: the held-out ends, the prompts behind alarms, and groups of training."""
    drawn = ("predicted",)
    labels = tuple(f"step {step}" for step in sorted(ends))
    candidates = (
        _gallery("pairs", "Held out", ENDS, labels, evaluation_cards(ends, album)),
        _gallery("groups", "Behind an alarm", ABOUT, drawn, rollout_cards(odd, album)),
        _gallery("groups", "Training groups", GROUPS, drawn, rollout_cards(rows, album)),
    )
    return [gallery for gallery in candidates if gallery.cards]


def current_gallery(
    step: int, rows: Sequence[Row], choice: FacetChoice, album: Album, address: str
) -> Gallery:
    """Return the chosen prompts of one step as cards; all choices are offered, whatever there is now.

    The pages of the rows are at this address.
    """
    chosen = [row for row in rows if choice.holds(row)]
    about = f"Step {step}: {len(chosen)} of {len(rows)} prompts"
    about += f", of which {MAX_PROMPTS} are shown. " if len(chosen) > MAX_PROMPTS else ". "
    known = {choice.verifier, *(v for row in rows for v in facets_of(row["completions"]).verifiers)}
    options = {
        "source": _same({choice.source, *(row["source"] for row in rows)} - {""}),
        "verifier": _same(known - {""}),
        "disagreement": DISAGREEMENTS,
        "failure": FAILURES,
    }
    cards = tuple(rollout_cards({step: chosen}, album))
    about += GROUPS
    chosen_at_first = asdict(choice)
    return Gallery("groups", "Now", about, ("predicted",), cards, options, chosen_at_first, address)


def _gallery(
    kind: str, title: str, about: str, keys: tuple[str, ...], cards: Sequence[GalleryPrompt]
) -> Gallery:
    steps = [str(step) for step in sorted({card.step for card in cards}, reverse=True)]
    facets = [card.facets for card in cards]
    disagreements = {key for choice in facets for key in choice.disagreements if kind == "groups"}
    failures = {key for choice in facets for key in choice.failures}
    options = {
        "source": _several(_same({card.source for card in cards})),
        "step": _several({step: step for step in steps}),
        "verifier": _several(_same({name for choice in facets for name in choice.verifiers})),
        "disagreement": {k: label for k, label in DISAGREEMENTS.items() if k in disagreements},
        "failure": {key: label for key, label in FAILURES.items() if key in failures},
    }
    chosen = {"step": steps[0]} if len(steps) > 1 else {}
    return Gallery(kind, title, about, keys, tuple(cards), options, chosen)


def _same(values: Iterable[str]) -> dict[str, str]:
    return {value: value for value in sorted(values)}


def _several(options: dict[str, str]) -> dict[str, str]:
    """Return the options if there is something to choose."""
    return options if len(options) > 1 else {}
