"""GOT-10k: follow one object through a video; boxes ten times a second.

Source: Huang et al. 2021, "GOT-10k: A Large High-Diversity Benchmark for Generic Object Tracking in
the Wild", arXiv:1810.11981. `<split>/list.txt` names the videos; each is a folder with 00000001.jpg ...,
`groundtruth.txt` (x,y,width,height in pixels, a line a frame), `absence.label` (a line a frame, 1
where the object is out of sight) and `meta_info.ini`. Of the test split only the first box is public.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError
from vlmrl.schema import Box, BoxTrack, Demo, Media, Sample, Truth

FPS = 10.0


@dataclass(frozen=True)
class Got10k(Card):
    """Follow an object, told by its name and its first box in percent; GOT-10k as published."""

    origin: ClassVar[str] = "arXiv:1810.11981"
    licence: ClassVar[str] = "CC BY-NC-SA 4.0"
    splits: ClassVar[tuple[str, ...]] = ("train", "val")
    media: ClassVar[tuple[str, ...]] = ("video",)
    verifiers: ClassVar[tuple[str, ...]] = ("track", "format")

    path: str
    """Folder that holds `train` and `val`."""
    every: float = 1.0
    """Seconds between two boxes of the true track, at least 0.1."""
    most: int = 8
    """Most boxes asked for, from the start of the video, which is cut there; at least 1."""

    def __post_init__(self) -> None:
        if round(self.every * FPS) < 1 or self.most < 1:
            raise ValueError(
                f"expected every of at least {1 / FPS} s and most of at least 1, "
                f"got {self.every} and {self.most}"
            )

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one row for each video in the list of the split."""
        if split not in self.splits:
            raise UserError(f"got10k has no split {split!r}; there are: train, val")
        file = Path(self.path) / split / "list.txt"
        try:
            names = file.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: {error}") from error
        return [
            {"id": name, "split": split, WHERE: f"{file}:{number}"}
            for number, name in enumerate(names, start=1)
        ]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one video into a sample."""
        name = row["id"]
        if Path(name).name != name:
            raise UserError(f"expected the name of a video, got {name!r}")
        folder = Path(self.path) / row["split"] / name
        boxes = _boxes(folder / "groundtruth.txt")
        absent = [line.strip() == "1" for line in _lines(folder / "absence.label")]
        kind, (width, height) = _meta(folder / "meta_info.ini")
        if len(absent) != len(boxes):
            raise UserError(f"{folder}: expected {len(boxes)} labels of absence, got {len(absent)}")
        step = round(self.every * FPS)
        most = step * (self.most - 1) + 1
        last = (min(len(boxes), most) - 1) // step * step + 1
        track = [
            (number / FPS, _unit(boxes[number], width, height))
            for number in range(0, last, step)
            if not absent[number]
        ]
        seen = [(time, box) for time, box in track if box is not None]
        if not seen:
            raise UserError(f"{folder}: expected the object in sight at least once, got no box")
        first = [round(100 * v) for v in seen[0][1].xyxy]
        question = (
            f"Follow the {kind} that at {seen[0][0]:g} s is inside x {first[0]} to {first[2]} %, "
            f"y {first[1]} to {first[3]} % of the picture: where is it every {self.every:g} s?"
        )
        frames = tuple(str(folder / f"{n:08d}.jpg") for n in range(1, last + 1))
        followed = BoxTrack(tuple(t for t, _ in seen), tuple(b for _, b in seen), kind)
        return Sample(
            id=name,
            source=source,
            parts=(Media("video", frames=frames, fps=FPS), question),
            truth=Truth(track=followed),
            demo=Demo(answer=Truth(track=followed)),
            meta={"where": row[WHERE], "size": (width, height)},
        )

    def media_root(self) -> str:
        """Return the folder of the data."""
        return self.path

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the video."""
        return str(row["id"])

    def corpus(self) -> list[str]:
        """Return questions and answers of the split `train`."""
        return demonstrations.corpus(self, self.rows("train"))


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {error}") from error


def _boxes(file: Path) -> list[list[float]]:
    boxes = []
    for number, line in enumerate(_lines(file), start=1):
        try:
            numbers = [float(v) for v in line.split(",")]
        except ValueError as error:
            raise UserError(f"{file}:{number}: {error}") from error
        if len(numbers) != 4:
            raise UserError(f"{file}:{number}: expected x,y,width,height, got {line!r:.60}")
        boxes.append(numbers)
    return boxes


def _unit(box: Sequence[float], width: int, height: int) -> Box | None:
    """Return the part of a box inside the image, in the unit square; None if there is none."""
    x, y, w, h = box
    x1, x2 = (min(1.0, max(0.0, v / width)) for v in (x, x + w))
    y1, y2 = (min(1.0, max(0.0, v / height)) for v in (y, y + h))
    return Box(x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def _meta(file: Path) -> tuple[str, tuple[int, int]]:
    """Return the name of the object, and the images' (width, height) in pixels."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string("\n".join(_lines(file)))
        meta = parser["METAINFO"]
        kind = meta["object_class"]
        width, height = (int(v) for v in meta["resolution"].strip("() ").split(","))
    except (configparser.Error, KeyError, ValueError) as error:
        raise UserError(
            f"{file}: expected object_class and resolution in [METAINFO]: {error}"
        ) from error
    return kind, (width, height)
