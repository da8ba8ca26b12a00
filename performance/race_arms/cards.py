"""Drawn data of the race's tasks that no shipped card has: prompts of many images, and long thoughts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.datasets.shapes import COUNTS, GRID, Shapes
from vlmrl.schema import Frame, Sample


@dataclass(frozen=True)
class Albums(Card):
    """Twelve pictures of a shape each: where is that of the first?"""

    splits: ClassVar[tuple[str, ...]] = ("train", "demos", "val", "test")
    verifiers: ClassVar[tuple[str, ...]] = ("box_iou", "format")

    images: int = 12
    count: int | None = None
    """Rows of each split; None: as many as shapes have."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        pictures = Shapes(count=self.images * (self.count or COUNTS[split])).rows(split)
        starts = range(0, len(pictures), self.images)
        return [{"pictures": pictures[start : start + self.images]} for start in starts]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Ask about the first picture; the demonstration is as loose as that of the quickstart."""
        scenes = [Shapes().to_sample(picture, source) for picture in row["pictures"]]
        question = f"{scenes[0].parts[-1]} Look at the first picture."
        return replace(scenes[0], parts=(*(scene.media[0] for scene in scenes), question))

    def corpus(self) -> list[str]:
        return demonstrations.corpus(self, self.rows("demos")[:200], Frame(84, 84))


@dataclass(frozen=True)
class LongThoughts(Shapes):
    """The quickstart's shapes; the thought is the whole grid, cell by cell."""

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        sample = super().to_sample(row, source)
        assert sample.demo is not None
        box = sample.meta["boxes"][0]
        lines = []
        for y in range(GRID):
            inside = box.y1 <= (y + 0.5) / GRID < box.y2
            cells = [inside and box.x1 <= (x + 0.5) / GRID < box.x2 for x in range(GRID)]
            lines.append(" ".join(f"{x} {'yes' if cells[x] else 'no'}" for x in range(GRID)))
        return replace(
            sample, demo=replace(sample.demo, thought="; and in the next row: ".join(lines))
        )
