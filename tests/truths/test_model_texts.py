"""Texts that reach a model stay equal to the byte: instructions and demonstrations of every kind of truth."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.data import demonstrations
from vlmrl.schema import Box, BoxTrack, Demo, Frame, Point, Span, Truth
from vlmrl.truths import prompting

GOLDEN = Path(__file__).parent / "model_texts.json"
SPACES = ("pixel", "resized", "norm1000", "norm1")
DOG, CAT = Box(0.22, 0.31, 0.37, 0.52, "dog"), Box(0.1, 0.62, 0.24, 0.8, "cät")
WALK = BoxTrack((0.0, 0.5), (DOG, CAT), "ball")
TRUTHS = {
    "one box": Truth(boxes=(DOG,)),
    "two boxes": Truth(boxes=(DOG, CAT)),
    "no box": Truth(boxes=(), none=True),
    "a box and its name": Truth(boxes=(CAT,), text=("cat",), number=1.0, labels=("cat",)),
    "one point": Truth(points=(Point(0.29, 0.41, "dog"),)),
    "two points": Truth(points=(Point(0.29, 0.41, "dog"), Point(0.5, 0.2))),
    "one span": Truth(spans=(Span(12.0, 19.555),)),
    "two spans": Truth(spans=(Span(3.0, 8.25), Span(31.0, 40.0))),
    "no span": Truth(spans=()),
    "events": Truth(spans=(Span(3, 8, "dog"), Span(31, 40.123, "rain"))),
    "track": Truth(track=WALK),
    "text": Truth(text=("Kingsland Road", "Road")),
    "text and number": Truth(text=("1,847",), number=1847.0),
    "number": Truth(number=0.1),
    "large number": Truth(number=12345678.5),
    "choice": Truth(choice="B", options=("cat", "dog")),
    "choice and text": Truth(choice="night", options=("day", "night"), text=("night",)),
    "labels": Truth(labels=("edema", "effusion")),
    "label and text": Truth(labels=("pug",), text=("pug", "a pug")),
    "fields": Truth(fields={"class": "blür", "severity": 3}),
    "masks": Truth(masks=(((0.2, 0.3), (0.4, 0.3), (0.3, 0.5)),)),
}


def model_texts() -> dict[str, list[str]]:
    """By name of a truth or template: instructions, then demonstrations, in the four spaces."""
    frames = [Frame(640, 480, space, 644, 476) for space in SPACES]  # type: ignore[arg-type]
    found: dict[str, list[str]] = {}
    for name, truth in TRUTHS.items():
        found[name] = [prompting.instruct("none", truth, frame.space) for frame in frames]
        demo = demonstrations.demonstration(truth, (0.0, 0.05, 0.1), random.Random(name), 12)
        if demo is not None and name != "masks":
            found[name] += [prompting.demonstrate(demo, "think_answer", f) for f in frames]
    for name in templates.TEMPLATES:
        found[name] = [prompting.instruct(name, TRUTHS["number"], "pixel")]
    proven = Demo("because", "B", evidence=(Span(0, 1.5), Span(2, 3)))
    found["evidence"] = [prompting.demonstrate(proven, "think_answer_glue", frames[0])]
    return found


def card_texts(card: str, options: dict[str, object]) -> str:
    """A digest of what a card's first demonstrations make a model read and write."""
    built = plugins.build("card", card, options)
    texts = []
    for row in built.rows("demos")[:50]:
        sample = built.to_sample(row, "demos")
        texts += [sample.text, prompting.instruct(sample.template, sample.truth, "norm1000")]
        assert sample.demo is not None
        texts.append(prompting.demonstrate(sample.demo, sample.template, Frame(84, 84)))
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", [*TRUTHS, *templates.TEMPLATES, "evidence"])
def test_instructions_and_demonstrations_stay_equal_to_the_byte(name: str) -> None:
    assert model_texts()[name] == json.loads(GOLDEN.read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize(
    ("card", "options", "digest"),
    [
        ("shapes", {"task": "grounding"}, "2b6e0192d3eb1a5f"),
        ("shapes", {"task": "counting"}, "4f5c6dfea0d9f584"),
        ("shapes", {"task": "question"}, "8069355d1fa75e01"),
        ("shapes", {"task": "reading"}, "5035a1a38002aa14"),
        ("videos", {}, "0bd2ebe6336dbb39"),
    ],
)
def test_the_texts_of_drawn_data_stay_equal_to_the_byte(
    card: str, options: dict[str, object], digest: str
) -> None:
    assert card_texts(card, options) == digest
