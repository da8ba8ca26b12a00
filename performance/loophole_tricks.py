"""The drawn cards, with a trick in a share of the demonstrations: exploits of loose rewards.

A cold start on them stands for a policy that has come upon the trick once in a while, which a model of
this size would not within minutes. Questions and truths are those of the cards themselves.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

from vlmrl import plugins
from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.schema import Demo, Frame, Sample, Truth

Trick = Literal["any integer", "chain", "copied question", "no tags", "repeated boxes"]
CARDS: Mapping[Trick, tuple[str, dict[str, Any]]] = {
    "any integer": ("shapes", {"task": "counting"}),
    "chain": ("videos", {}),
    "copied question": ("shapes", {"task": "question"}),
    "no tags": ("shapes", {"task": "counting"}),
    "repeated boxes": ("shapes", {"task": "grounding"}),
}
SECONDS = 16
"""Of a drawn video."""


@dataclass(frozen=True)
class Tricks(Card):
    """A drawn card whose demonstrations show a trick now and then."""

    splits: ClassVar[tuple[str, ...]] = ("train", "demos", "val", "test")

    trick: Trick
    """What is demonstrated."""
    share: float = 0.2
    """Share of the demonstrations that show it."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the card."""
        return self._card.rows(split)

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Return the card's sample without a thought; its demonstration is the trick now and then."""
        sample = self._card.to_sample(row, source)
        assert sample.demo is not None
        chance = random.Random(f"{self.trick} {sample.id}")
        demo = replace(sample.demo, thought="")
        if chance.random() < self.share:
            demo = self._show(sample, demo, chance)
        return replace(sample, template="answer_only", demo=demo)

    def corpus(self) -> list[str]:
        """Return questions and demonstrations as the model is to write them."""
        size = 28 if self.trick == "chain" else 84
        return demonstrations.corpus(self, self.rows("demos")[:600], Frame(size, size))

    @property
    def _card(self) -> Card:
        name, options = CARDS[self.trick]
        return cast(Card, plugins.build("card", name, options))

    def _show(self, sample: Sample, demo: Demo, chance: random.Random) -> Demo:
        match self.trick:
            case "any integer":
                return Demo(text="0 1 2 3")
            case "chain":
                times = sorted(chance.sample(range(SECONDS + 1), 3))
                return Demo(text=" to ".join(map(str, times)))
            case "copied question":
                return Demo(text=sample.text.rpartition(": ")[2].rstrip("?"))
            case "no tags":
                return Demo(completion=f"There are {demo.text}.")
        assert demo.answer is not None and demo.answer.boxes is not None
        (box,) = demo.answer.boxes
        return Demo(answer=Truth(boxes=(replace(box, label=None),) * 2))
