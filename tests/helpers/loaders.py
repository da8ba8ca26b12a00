"""Sources without images or with tiny ones, and ranks that are threads, for tests of the loader."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vlmrl.data.card import Card
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.schema import Encoded, Frame, Media, Prompt, Sample, Truth


@dataclass(frozen=True)
class Files(Card):
    """One sample per path; a row whose path is "" is bad, "text" has no image."""

    folder: str = ""
    paths: tuple[str, ...] = ()

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        return [{"id": f"{split}-{i}", "path": path} for i, path in enumerate(self.paths)]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        if row["path"] == "":
            raise UserError(f"{row['id']}: no path")
        media = (Media("image", path=str(Path(self.folder) / row["path"])),)
        parts = () if row["path"] == "text" else media
        return Sample(row["id"], source, (*parts, "What?"), Truth(text=("x",)))


def prompt(sample: Sample, images: list[Image.Image]) -> Prompt:
    """A prompt of 3 tokens, plus one per pixel row of its images."""
    length = 3 + sum(image.height for image in images)
    encoded = Encoded(tuple(range(length)), (0,), {}, torch.zeros(1, length), length)
    return Prompt(sample, sample.text, encoded, Frame(), tuple(images))


def numbers(count: int, name: str = "numbers", weight: float = 1.0) -> Source:
    """A source of `count` samples without images."""
    card = Files(paths=("text",) * count)
    return Source(name, card, "train", card.rows("train"), weight)


def pictures(folder: Path, paths: Sequence[str], name: str = "pictures") -> Source:
    card = Files(str(folder), tuple(paths))
    return Source(name, card, "train", card.rows("train"), access=Access(root=str(folder)))


class Meeting:
    """What `distributed.gather` does, for ranks that are threads."""

    def __init__(self, world: int) -> None:
        self.values: list[Any] = [None] * world
        self.barrier = threading.Barrier(world, timeout=30)

    def gather(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found
