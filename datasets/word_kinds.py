"""Which of four words is an animal? Made of lists of English words; those of test rows are in no other row.

It needs no picture and no sound: what a language model knows answers it, so that a model of random weights
cannot, for words that it has not seen.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.errors import UserError
from vlmrl.schema import Demo, Sample, Truth

KINDS: Mapping[str, str] = {
    "an animal": "dog cat horse cow sheep goat lion tiger bear wolf rabbit mouse elephant monkey duck eagle",
    "a color": "red blue green yellow purple orange pink brown black white gray violet crimson beige "
    "turquoise gold",
    "a food": "bread cheese rice soup butter pasta pizza salad honey egg cake sausage potato tomato onion "
    "carrot",
    "a part of the body": "hand foot head nose ear eye arm leg knee elbow finger toe shoulder mouth neck "
    "chin",
    "a piece of clothing": "shirt hat coat shoe sock dress skirt glove scarf jacket belt sweater jeans boot "
    "vest cap",
    "a vehicle": "car bus train truck bicycle boat ship airplane motorcycle taxi tractor helicopter van "
    "tram ferry scooter",
    "a country": "France Germany Japan China Brazil Canada Mexico Egypt India Italy Spain Norway Kenya Peru "
    "Poland Greece",
    "a job": "teacher doctor farmer nurse lawyer baker pilot soldier painter plumber judge chef dentist "
    "singer miner tailor",
    "a musical instrument": "piano violin guitar drum flute trumpet harp cello clarinet banjo trombone "
    "accordion organ tuba saxophone ukulele",
    "a piece of furniture": "chair table bed sofa desk shelf cupboard stool bench wardrobe couch bookcase "
    "dresser armchair cabinet crib",
}
KNOWN = 10
"""Words of each kind that all splits but `test` have; the others are of `test` alone."""
SPLITS: Mapping[str, tuple[int, int]] = {
    "demos": (96, 1),
    "train": (400, 2),
    "val": (64, 4),
    "test": (160, 3),
}
"""Split -> number of rows, seed."""


@dataclass(frozen=True)
class WordKinds(Card):
    """Questions that are drawn from lists of words, the same each time."""

    origin: ClassVar[str] = "this card's own lists"
    licence: ClassVar[str] = "Apache-2.0"
    splits: ClassVar[tuple[str, ...]] = tuple(SPLITS)
    verifiers: ClassVar[tuple[str, ...]] = ("exact", "format")

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Draw the rows of a split: a kind, four words of which one is of it, and no question twice."""
        if split not in SPLITS:
            raise UserError(f"card 'word_kinds' has no split {split!r}: {', '.join(SPLITS)}")
        count, seed = SPLITS[split]
        cut = slice(KNOWN, None) if split == "test" else slice(KNOWN)
        words = {kind: text.split()[cut] for kind, text in KINDS.items()}
        rng, drawn = random.Random(seed), dict[str, str]()
        while len(drawn) < count:
            kinds = rng.sample(sorted(words), 4)
            shown = [rng.choice(words[kind]) for kind in kinds]
            answer = shown[0]
            rng.shuffle(shown)
            drawn.setdefault(f"Which of these is {kinds[0]}: {', '.join(shown)}?", answer)
        return [
            {"id": f"{split}-{number:03d}", "question": question, "answer": answer}
            for number, (question, answer) in enumerate(drawn.items())
        ]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn a question and its word into a sample without media."""
        return Sample(
            id=row["id"],
            source=source,
            parts=(row["question"],),
            truth=Truth(text=(row["answer"],)),
            template="answer_only",
            demo=Demo(text=row["answer"]),
        )

    def corpus(self) -> list[str]:
        """Return questions and answers."""
        return demonstrations.corpus(self, self.rows("train"))
