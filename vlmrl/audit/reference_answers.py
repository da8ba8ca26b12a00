"""What an honest model might answer: right and wrong answers derived from a truth, and examples.

The attack bench measures every attack against these two. A wrong answer is a plausible one: a box
half beside its object, a number off by half, a text half misread, another option.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlmrl.answers import geometry
from vlmrl.answers.templates import template
from vlmrl.schema import Box, Frame, Point, Sample, Span, Track, Truth
from vlmrl.scoring.control_group import SHUFFLED_REWARDS

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
STRANGERS = ("pneumothorax", "traffic cone", "ace of spades")
"""Labels that no example's truth has."""
OPPOSITES = {"yes": "no", "no": "yes"}
_QUANTITY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ([A-Za-z]{1,9})")
CONTROL = {SHUFFLED_REWARDS: [1.0, 0.0]}
"""What the sample's meta holds for verifiers that compare with a control group."""


@dataclass(frozen=True, slots=True)
class Honest:
    """A question with a right and a wrong answer to it, as the content of the answer tag.

    `kind` says what the answers are; `everything` lists all that could be right, at once.
    """

    sample: Sample
    frame: Frame
    kind: str
    right: str
    wrong: str
    everything: str = ""


def lay_out(template_name: str, answer: str, thought: str = "I see it.") -> str:
    """A completion in the layout of a template; its other tags hold the thought too.

    Raises:
        UserError: no such template.
    """
    layout = template(template_name)
    if layout.answer == "boxed":
        return f"{thought} \\boxed{{{answer}}}"
    if layout.answer == "text":
        return answer
    contents = {layout.answer: answer, "glue": "0 to 1"}
    return "".join(f"{t.open}{contents.get(t.name, thought)}{t.close}" for t in layout.tags)


def honest(sample: Sample, frame: Frame) -> Iterator[Honest]:
    """Every way to state the sample's truth as an answer, each with a wrong counterpart."""
    truth = sample.truth
    for kind, right, wrong, everything in _stated(truth, frame):
        yield Honest(sample, frame, kind, right, wrong, everything)


def examples() -> list[tuple[Sample, Frame]]:
    """Small questions with every kind of truth, in the layout `think_answer`, in pixels."""
    frame = Frame(640, 480, resized_width=644, resized_height=476, duration=60.0)
    dog, cat, bird = (
        Box(0.22, 0.31, 0.37, 0.52, "dog"),
        Box(0.10, 0.62, 0.24, 0.80, "cat"),
        Box(0.75, 0.08, 0.86, 0.22, "dog"),
    )
    unlabelled = replace(dog, label=None)
    walk = tuple(Box(0.1 + 0.08 * i, 0.4, 0.22 + 0.08 * i, 0.6) for i in range(5))
    outline = ((0.22, 0.31), (0.37, 0.33), (0.35, 0.52), (0.24, 0.50))
    click = {"action": "click", "text": "OK"}
    truths = [
        ("Where is the dog?", Truth(boxes=(unlabelled,))),
        ("Find every dog and cat.", Truth(boxes=(dog, cat, bird))),
        ("Point at the dog.", Truth(points=(Point(0.29, 0.41),), boxes=(unlabelled,))),
        ("When does the door open?", Truth(spans=(Span(12.0, 19.5),))),
        ("When does it rain?", Truth(spans=(Span(3.0, 8.0), Span(31.0, 40.0)))),
        ("What is heard, and when?", Truth(spans=(Span(3, 8, "dog"), Span(31, 40, "rain")))),
        ("Follow the ball.", Truth(track=Track((0.0, 0.5, 1.0, 1.5, 2.0), walk))),
        ("Outline the dog.", Truth(masks=(outline,))),
        ("What does the sign say?", Truth(text=("Kingsland Road Market 1847",))),
        ("What breed is it?", Truth(text=("golden retriever",), labels=("golden retriever",))),
        ("Is the door open?", Truth(text=("yes",))),
        ("Is it day or night?", Truth(choice="night", options=("day", "night"))),
        ("How many cells?", Truth(number=7.0, text=("7",))),
        ("How long is it?", Truth(text=("5 cm",))),
        ("How good is the image, from 1 to 5?", Truth(number=3.4)),
        ("How good is this one, from 1 to 5?", Truth(number=1.9)),
        ("And this one, from 1 to 5?", Truth(number=4.6)),
        ("Which one? (A) cat (B) dog (C) owl (D) ant", _dog_of_four()),
        ("What does the X-ray show?", Truth(labels=("edema", "effusion"))),
        ("What to do next?", Truth(fields=click, points=(Point(0.29, 0.41),), boxes=(dog,))),
        ("Where is the zebra?", Truth(none=True)),
    ]
    return [
        (Sample(f"example {i}", "examples", (question,), truth, meta=CONTROL), frame)
        for i, (question, truth) in enumerate(truths, start=1)
    ]


def _dog_of_four() -> Truth:
    return Truth(choice="B", options=("cat", "dog", "owl", "ant"))


def _stated(truth: Truth, frame: Frame) -> Iterator[tuple[str, str, str, str]]:
    """(kind, right, wrong, everything) of every field of a truth."""
    if truth.none:
        yield "nothing", "[]", _boxes([Box(0.1, 0.1, 0.3, 0.3)], frame), ""
        yield "nothing", "I don't know.", "seven", ""
    if truth.boxes:
        beside = [_beside(b) for b in truth.boxes]
        yield "boxes", _boxes(truth.boxes, frame), _boxes(beside, frame), ""
        sure = [replace(b, score=0.9) for b in truth.boxes]
        unsure = [replace(b, score=0.6) for b in beside]
        yield "confident boxes", _boxes(sure, frame), _boxes(unsure, frame), ""
    if truth.points or truth.boxes:
        right = truth.points or tuple(geometry.centre(b) for b in truth.boxes or ())
        away = [Point((p.x + 0.5) % 1, (p.y + 0.5) % 1) for p in right]
        yield "points", _points(right, frame), _points(away, frame), ""
    if truth.fields is not None:
        yield from _typed(truth, frame)
    if truth.spans:
        later = [
            Span(s.start + (s.end - s.start) / 2, s.end + (s.end - s.start) / 2, s.label)
            for s in truth.spans
        ]
        labels = list(dict.fromkeys(s.label for s in truth.spans))
        starts = range(0, int(frame.duration or 60), 5)
        every = _spans([Span(s, s + 5, label) for label in labels for s in starts])
        kind = "spans" if labels == [None] else "events"
        yield kind, _spans(truth.spans), _spans(later), every
    if truth.track:
        aside = replace(truth.track, boxes=tuple(map(_beside, truth.track.boxes)))
        yield "track", _track(truth.track, frame), _track(aside, frame), ""
    if truth.masks and not any(isinstance(mask, dict) for mask in truth.masks):
        moved = tuple(tuple((min(x + 0.1, 1.0), y) for x, y in mask) for mask in truth.masks)
        yield "polygons", _polygons(truth.masks, frame), _polygons(moved, frame), ""
    if truth.number is not None:
        wrong = truth.number + max(1.0, abs(truth.number) / 2)
        every = " ".join(str(n) for n in range(101))
        yield "number", f"{truth.number:g}", f"{wrong:g}", f"{every} {truth.number:g}"
    if truth.choice is not None:
        yield from _choices(truth)
    if truth.text:
        every = " ".join([*STRANGERS, "yes no true false", *truth.text, *LETTERS])
        if quantity := _QUANTITY.fullmatch(truth.text[0]):
            yield "quantity", truth.text[0], f"{float(quantity[1]) + 3:g} {quantity[2]}", ""
        else:
            yield "text", truth.text[0], _misread(truth.text[0]), every
    if truth.labels:
        every = ", ".join([*STRANGERS, *truth.labels, *(f"finding {i}" for i in range(9))])
        yield "labels", ", ".join(truth.labels), STRANGERS[0], every


def _choices(truth: Truth) -> Iterator[tuple[str, str, str, str]]:
    assert truth.choice is not None
    options = truth.options or ()
    if truth.choice in options:
        wrong = next((option for option in options if option != truth.choice), "none of them")
        yield "choice", truth.choice, wrong, " ".join(options)
    else:
        wrong = next(letter for letter in LETTERS if letter != truth.choice.strip("() .").upper())
        every = [f"{letter}. {text}" for letter, text in zip(LETTERS, options, strict=False)]
        yield "choice", truth.choice, wrong, " ".join(every or LETTERS[:5])


def _typed(truth: Truth, frame: Frame) -> Iterator[tuple[str, str, str, str]]:
    """A JSON object with every field; with a place where the truth has one (GUI actions)."""
    assert truth.fields is not None
    wrong: dict[str, Any] = dict.fromkeys(truth.fields, "something else")
    yield "fields", json.dumps(dict(truth.fields)), json.dumps(wrong), ""
    if truth.points or truth.boxes:
        place = truth.points[0] if truth.points else geometry.centre((truth.boxes or ())[0])
        x, y = (round(n) for n in geometry.point_from_unit(place, frame))
        right = {**truth.fields, "point": [x, y]}
        yield "action", json.dumps(right), json.dumps({**wrong, "point": [0, 0]}), ""


def _misread(text: str) -> str:
    """A text with every other letter and digit read wrong."""
    if text in OPPOSITES:
        return OPPOSITES[text]
    other = codecs.encode(text, "rot13").translate(str.maketrans("0123456789", "1234567890"))
    return "".join(b if i % 2 == 0 else a for i, (a, b) in enumerate(zip(text, other, strict=True)))


def _beside(box: Box) -> Box:
    """The box moved by half its width, away from the nearer edge: an IoU of 1/3."""
    half = (box.x2 - box.x1) / 2
    shift = half if box.x2 + half <= 1 else -half
    return replace(box, x1=max(0.0, box.x1 + shift), x2=min(1.0, box.x2 + shift))


def _boxes(boxes: Sequence[Box], frame: Frame) -> str:
    items = []
    for box in boxes:
        item: dict[str, Any] = {"bbox_2d": [round(n, 2) for n in geometry.from_unit(box, frame)]}
        if box.label is not None:
            item["label"] = box.label
        if box.score is not None:
            item["confidence"] = box.score
        items.append(item)
    return json.dumps(items)


def _points(points: Sequence[Point], frame: Frame) -> str:
    places = [geometry.point_from_unit(p, frame) for p in points]
    return json.dumps([{"point_2d": [round(x, 2), round(y, 2)]} for x, y in places])


def _spans(spans: Sequence[Span]) -> str:
    if any(s.label is not None for s in spans):
        return json.dumps([{"start": s.start, "end": s.end, "label": s.label} for s in spans])
    return ", ".join(f"{s.start:g} to {s.end:g}" for s in spans)


def _track(track: Track, frame: Frame) -> str:
    pairs = zip(track.times, track.boxes, strict=True)
    places = [(t, [round(n, 2) for n in geometry.from_unit(b, frame)]) for t, b in pairs]
    return json.dumps([{"time": t, "bbox_2d": place} for t, place in places])


def _polygons(masks: Sequence[Any], frame: Frame) -> str:
    width, height = geometry.extent(frame)
    corners = [[[round(x * width), round(y * height)] for x, y in mask] for mask in masks]
    return json.dumps([{"polygon": polygon} for polygon in corners])
