"""Lay out rollouts as groups that a person can compare: image, question, completions, verdicts.

What is shown is chosen by position, never by result: evenly over steps, sources in turn.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any
from urllib.parse import quote

from vlmrl.pages.media import Album, MediaView, Shape, canvas_of, evenly, shapes, view
from vlmrl.pages.render import number
from vlmrl.report.cards.facets import Facets, facets_of
from vlmrl.report.loopholes.alarms import odd_flags
from vlmrl.report.rows.row_filter import encode
from vlmrl.runs.rollout_rows import Row

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
    """Return held-out samples as the first and the last evaluated policy answered them, greedily."""
    if not evaluations:
        return []
    first, last = min(evaluations), max(evaluations)
    greedy = {step: _greedy(evaluations[step]) for step in (first, last)}
    both = [row for key, row in greedy[last].items() if key in greedy[first]]
    steps = [first, last] if first != last else [last]
    cards = []
    for row in evenly(_sources_in_turn(both), MAX_PAIRS):
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
        truth=_cut(_truth(row["truth"])),
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
    told = completion.get("segments", ())
    if len(told) < 2:
        return ()
    kinds = [medium["kind"] for medium in media]
    images = [shown for kind, shown in zip(kinds, views, strict=True) if kind == "image"]
    found = []
    for segment in told:
        calls = tuple(_call(call, images) for call in segment["calls"])
        shown = tuple(view(_observed(name), album) for name in segment["media"])
        images += [one for one in shown if one.kind == "image"]
        found.append(SegmentView(segment["by"], _cut(segment["text"]), shown, calls))
    return tuple(found)


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


def _truth(truth: Row) -> str:
    """Return the truth in words and numbers, without what is not set."""
    known = {key: value for key, value in truth.items() if value not in (None, False)}
    return "nothing to find" if truth.get("none") else json.dumps(known, ensure_ascii=False)


def _cut(text: str) -> str:
    rest = len(text) - MAX_TEXT
    return text if rest <= 0 else f"{text[:MAX_TEXT]} … ({rest} more characters)"
