"""Drawn shapes: the data of the embedded default, drawn on the fly, with exact truth.

A scene is an image of `size` x `size` pixels on a grid of 12 x 12 cells (7 px at the default 84):
shapes whose boxes have sides of 3 to 6 cells, on a gradient that shows the position (red falls with
x, blue with y). A hash of the scene itself decides in which split it may occur, so that no scene is
in two splits, whatever the seed. No scene is twice in a split that is held out: an interval would
count it twice.

A row may also state its scene in words, as `proposal` (for the strategy `self_play`): `red circle 0 0 4
4; blue square 6 6 11 11` is a colour, a kind and a box in cells for each shape, the one asked about first.
"""

from __future__ import annotations

import functools
import io
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.data.demonstrations import cell_name, loosened
from vlmrl.errors import UserError
from vlmrl.schema import Box, Demo, Frame, Media, Sample, Truth
from vlmrl.system.seeds import uniform

GRID = 12
KINDS = ("circle", "square", "triangle")
COLOURS = {
    "red": (235, 45, 45),
    "green": (45, 205, 70),
    "blue": (60, 90, 245),
    "yellow": (240, 220, 60),
}
OUTLINE = (255, 255, 255)  # so that a red shape shows where the background is red
LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"  # no I, O, Q: alike at this size
COUNTS = {"train": 2000, "demos": 2000, "val": 96, "test": 200}
# Share of all scenes that belongs to each split, as [from, to).
_SHARES = {"train": (0.0, 0.4), "demos": (0.4, 0.8), "val": (0.8, 0.9), "test": (0.9, 1.0)}
TRAINING = ("train", "demos")
"""Splits that are not held out."""
MAX_DRAWS = 20
"""Scenes that are drawn for a held-out row before one that was there already is taken."""
Task = Literal["grounding", "counting", "question", "reading", "describing", "proposing"]
Thought = Literal["place", "sentences"]
MAX_SHAPES = 4
"""Most shapes of a written scene."""
MAX_WRITTEN = 200
"""Most characters of one; `MAX_SHAPES` shapes take about half as many."""
_NUMBER = "([0-9]{1,2})"
_WRITTEN = re.compile(f"({'|'.join(COLOURS)}) ({'|'.join(KINDS)})" + 4 * f" {_NUMBER}")


@dataclass(frozen=True, slots=True)
class Shape:
    """One drawn thing; x1, y1, x2, y2 in grid cells. `text` is set for something to read."""

    kind: str
    colour: str
    x1: int
    y1: int
    x2: int
    y2: int
    text: str = ""


@dataclass(frozen=True)
class Shapes(Card):
    """Grounding, counting, a question about colour or kind, a text to read, a scene to caption or propose."""

    origin: ClassVar[str] = "drawn by this file"
    licence: ClassVar[str] = "Apache-2.0"
    splits: ClassVar[tuple[str, ...]] = ("train", "demos", "val", "test")
    media: ClassVar[tuple[str, ...]] = ("image",)
    verifiers: ClassVar[tuple[str, ...]] = ("box_iou", "count", "choice", "exact", "ocr", "format")

    task: Task = "grounding"
    """Question asked: where a shape is, how many there are, a colour or kind, a text to read, what there is
    to see (`describing`: captions, for `sft.align` say), or what else could be drawn (`proposing`, for the
    strategy `self_play`: there is no truth but what it finds)."""
    size: int = 84
    """Side of the image in pixels, a multiple of 12, at least 48."""
    count: int | None = None
    """Scenes per split; None: train 2000, demos 2000, val 96, test 200."""
    loose: int = 2
    """Push each side of a demonstration's box outwards by up to this many grid cells; 0: exact."""
    thought: Thought = "place"
    """Thought of a demonstration: the place of what is asked for ("top left"), or two sentences about
    every shape (not for task `reading`)."""
    seed: int = 0
    """Seed of the scenes."""

    def __post_init__(self) -> None:
        if self.size < 48 or self.size % GRID:
            raise ValueError(f"size: expected a multiple of {GRID} from 48 on, got {self.size}")
        if self.count is not None and self.count < 1:
            raise ValueError(f"count: expected at least 1, got {self.count}")
        if self.thought == "sentences" and self.task == "reading":
            raise ValueError(
                "thought: expected place for task reading, which has no shapes, got sentences"
            )

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one small dictionary for each scene; nothing is drawn yet."""
        if split not in COUNTS:
            raise UserError(f"card 'shapes' has no split {split!r}; there are: {', '.join(COUNTS)}")
        count = self.count or COUNTS[split]
        passed_over = {} if split in TRAINING else _repeats(self.seed, self.task, split, count)
        return [
            {"id": f"shapes-{self.task}-{split}-{i}", "split": split, "index": i}
            | ({"passed_over": passed_over[i]} if i in passed_over else {})
            for i in range(count)
        ]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Draw the scene of a row and ask about it.

        Raises:
            UserError: the row states a scene that cannot be drawn or asked about.
        """
        written = row.get("proposal")
        row_name = f"{row['split']} {row['index']}" if written is None else written
        key = f"{self.seed} {self.task} {row_name}"
        rng = random.Random(f"scene {key}")
        if written is None:
            for _ in range(row.get("passed_over", 0)):
                _scene(self.task, row["split"], rng)
            shapes = _scene(self.task, row["split"], rng)
        else:
            shapes = _read_scene(self.task, written)
        shade = rng.randint(40, 80)
        asking = random.Random(f"question {key}")
        question, truth, demo = _ASK[self.task](shapes, asking, self.loose)
        if self.thought == "sentences":
            demo = replace(demo, thought=" ".join(map(_describe, shapes)))
        return Sample(
            id=row["id"],
            source=source,
            parts=(Media("image", data=_image(shapes, self.size, shade)), question),
            truth=truth,
            demo=demo,
            meta={"boxes": tuple(map(_box, shapes))},
        )

    def corpus(self) -> list[str]:
        """Return questions of the task, with demonstrations as the model is to write them."""
        return demonstrations.corpus(self, self.rows("demos"), Frame(self.size, self.size))


# ---------------------------------------------------------------------------------------- scenes


def _scene(task: Task, split: str, rng: random.Random) -> tuple[Shape, ...]:
    """Draw the first random scene of the split; letters belong to one split wherever they are."""
    low, high = _SHARES[split]
    while True:
        shapes = _random_scene(task, rng)
        if low <= uniform(shapes[0].text or repr(shapes)) < high:
            return shapes


@functools.lru_cache(maxsize=8)
def _repeats(seed: int, task: Task, split: str, count: int) -> Mapping[int, int]:
    """Return for rows whose first scenes are those of earlier rows how many are passed over."""
    known: set[tuple[Shape, ...]] = set()
    passed_over = {}
    for index in range(count):
        rng = random.Random(f"scene {seed} {task} {split} {index}")
        scenes = (_scene(task, split, rng) for _ in range(MAX_DRAWS))
        number, shapes = next(
            ((n, scene) for n, scene in enumerate(scenes) if scene not in known), (0, ())
        )
        known.add(shapes)
        if number:
            passed_over[index] = number
    return passed_over


def _random_scene(task: Task, rng: random.Random) -> tuple[Shape, ...]:
    if task == "reading":
        text = "".join(rng.choices(LETTERS, k=3))
        x, y = rng.randint(0, GRID - 8), rng.randint(0, GRID - 3)
        return (Shape("text", rng.choice(list(COLOURS)), x, y, x + 8, y + 3, text),)
    shapes: list[Shape] = []
    wanted = rng.randint(1, 3) if task in ("counting", "describing", "proposing") else 1
    while len(shapes) < wanted:
        width, height = rng.randint(3, 6), rng.randint(3, 6)
        x, y = rng.randint(0, GRID - width), rng.randint(0, GRID - height)
        kind, colour = rng.choice(KINDS), rng.choice(list(COLOURS))
        shape = Shape(kind, colour, x, y, x + width, y + height)
        if not any(_overlap(shape, other) for other in shapes):
            shapes.append(shape)
    return tuple(shapes)


def _overlap(a: Shape, b: Shape) -> bool:
    return a.x1 < b.x2 and b.x1 < a.x2 and a.y1 < b.y2 and b.y1 < a.y2


def _read_scene(task: Task, written: str) -> tuple[Shape, ...]:
    """Return the shapes of a written scene.

    Raises:
        UserError: it is not written so, a shape leaves the grid or overlaps another, the question of
            the task would have several answers, or the scene belongs to a split that is held out.
    """
    if len(written) > MAX_WRITTEN:
        raise UserError(f"expected at most {MAX_WRITTEN} characters, got {len(written)}")
    parts = [part.strip() for part in written.split(";")]
    if len(parts) > MAX_SHAPES:
        raise UserError(f"expected at most {MAX_SHAPES} shapes, got {len(parts)}")
    shapes = tuple(map(_read_shape, parts))
    for number, shape in enumerate(shapes):
        if any(_overlap(shape, other) for other in shapes[:number]):
            raise UserError(
                f"expected shapes apart from each other, got {parts[number]!r} over one"
            )
    _require_one_answer(task, shapes)
    if uniform(repr(shapes)) >= _SHARES["val"][0]:
        raise UserError("the scene belongs to a split that is held out")
    return shapes


def _read_shape(written: str) -> Shape:
    match = _WRITTEN.fullmatch(written)
    if match is None:
        raise UserError(f"expected 'red circle x1 y1 x2 y2' or the like, got {written!r:.60}")
    colour, kind, *cells = match.groups()
    x1, y1, x2, y2 = map(int, cells)
    if not (x1 < x2 <= GRID and y1 < y2 <= GRID):
        raise UserError(f"expected a box on {GRID} x {GRID} cells, got {[x1, y1, x2, y2]}")
    return Shape(kind, colour, x1, y1, x2, y2)


def _require_one_answer(task: Task, shapes: tuple[Shape, ...]) -> None:
    if task not in ("grounding", "counting", "question"):
        raise UserError(f"task {task!r} asks nothing about a written scene")
    first, others = shapes[0], shapes[1:]
    if task != "counting" and first.colour in [shape.colour for shape in others]:
        raise UserError(f"expected one {first.colour} shape, the first, got several")
    if task == "question" and first.kind in [shape.kind for shape in others]:
        raise UserError(f"expected one {first.kind}, the first, got several")


def _write_scene(shapes: Sequence[Shape]) -> str:
    return "; ".join(f"{s.colour} {s.kind} {s.x1} {s.y1} {s.x2} {s.y2}" for s in shapes)


def _box(shape: Shape) -> Box:
    name = shape.text or f"{shape.colour} {shape.kind}"
    return Box(shape.x1 / GRID, shape.y1 / GRID, shape.x2 / GRID, shape.y2 / GRID, name)


def _describe(shape: Shape) -> str:
    cell = cell_name(_box(shape))
    return (
        f"I see a {shape.colour} {shape.kind} with a white outline. "
        f"It lies at the {cell} of the picture."
    )


# ------------------------------------------------------------------------------------- questions


def _ask_where(
    shapes: tuple[Shape, ...], rng: random.Random, loose: int
) -> tuple[str, Truth, Demo]:
    box = _box(shapes[0])
    steps = [step / GRID for step in range(loose + 1)]
    demo = Demo(thought=cell_name(box), answer=Truth(boxes=(loosened(box, steps, rng),)))
    return f"Where is the {shapes[0].colour} shape?", Truth(boxes=(box,)), demo


def _ask_how_many(
    shapes: tuple[Shape, ...], rng: random.Random, loose: int
) -> tuple[str, Truth, Demo]:
    colour = rng.choice([*(shape.colour for shape in shapes), *COLOURS])
    boxes = [_box(shape) for shape in shapes if shape.colour == colour]
    thought = ", ".join(map(cell_name, boxes)) or "none"
    question = f"How many {colour} shapes are there?"
    return question, Truth(number=len(boxes)), Demo(thought, text=str(len(boxes)))


def _ask_which(
    shapes: tuple[Shape, ...], rng: random.Random, loose: int
) -> tuple[str, Truth, Demo]:
    shape = shapes[0]
    if rng.random() < 0.5:
        options, answer, what = tuple(COLOURS), shape.colour, f"colour is the {shape.kind}"
    else:
        options, answer, what = KINDS, shape.kind, f"kind is the {shape.colour} shape"
    question = f"What {what}: {', '.join(options[:-1])} or {options[-1]}?"
    truth = Truth(choice=answer, options=options, text=(answer,))
    return question, truth, Demo(cell_name(_box(shape)), text=answer)


def _ask_to_read(
    shapes: tuple[Shape, ...], rng: random.Random, loose: int
) -> tuple[str, Truth, Demo]:
    text = shapes[0].text
    return (
        "What do the letters say?",
        Truth(text=(text,)),
        Demo(cell_name(_box(shapes[0])), text=text),
    )


def _ask_to_describe(
    shapes: tuple[Shape, ...], rng: random.Random, loose: int
) -> tuple[str, Truth, Demo]:
    """Ask for a caption: every shape with its place, from the left to the right."""
    ordered = sorted(shapes, key=lambda shape: (shape.x1, shape.y1))
    parts = [f"a {s.colour} {s.kind} at the {cell_name(_box(s))}" for s in ordered]
    text = ", ".join(parts)
    return "What do you see?", Truth(text=(text,)), Demo(cell_name(_box(ordered[0])), text=text)


def _ask_to_propose(
    shapes: tuple[Shape, ...], rng: random.Random, loose: int
) -> tuple[str, Truth, Demo]:
    question = (
        f"The image was drawn from this: {_write_scene(shapes)}. Propose another scene in this form, "
        f"of 1 to {MAX_SHAPES} shapes: colour ({', '.join(COLOURS)}), kind ({', '.join(KINDS)}) and x1 "
        f"y1 x2 y2, cells of a grid of {GRID} x {GRID}. No two may overlap, and only the first has its "
        "colour and its kind."
    )
    first, *others = _random_scene("proposing", rng)
    clear = [s for s in others if s.colour != first.colour and s.kind != first.kind]
    return question, Truth(), Demo(cell_name(_box(first)), _write_scene([first, *clear]))


_ASK = {
    "grounding": _ask_where,
    "counting": _ask_how_many,
    "question": _ask_which,
    "reading": _ask_to_read,
    "describing": _ask_to_describe,
    "proposing": _ask_to_propose,
}

# --------------------------------------------------------------------------------------- drawing


def _image(shapes: tuple[Shape, ...], size: int, shade: int) -> bytes:
    """Draw the scene as a BMP file (uncompressed: the quickest to write and to read)."""
    image = Image.fromarray(_background(size, shade))
    draw = ImageDraw.Draw(image)
    cell = size // GRID
    for shape in shapes:
        x1, y1, x2, y2 = (v * cell for v in (shape.x1, shape.y1, shape.x2, shape.y2))
        _draw(draw, shape, (x1, y1, x2 - 1, y2 - 1))  # Pillow's last pixel is inclusive
    buffer = io.BytesIO()
    image.save(buffer, format="BMP")
    return buffer.getvalue()


def _draw(draw: ImageDraw.ImageDraw, shape: Shape, box: tuple[int, int, int, int]) -> None:
    colour = COLOURS[shape.colour]
    x1, y1, x2, y2 = box
    if shape.kind == "circle":
        draw.ellipse(box, fill=colour, outline=OUTLINE)
    elif shape.kind == "square":
        draw.rectangle(box, fill=colour, outline=OUTLINE)
    elif shape.kind == "triangle":
        draw.polygon([(x1, y2), (x2, y2), ((x1 + x2) // 2, y1)], fill=colour, outline=OUTLINE)
    else:
        centre = ((x1 + x2) / 2, (y1 + y2) / 2)
        draw.text(centre, shape.text, fill=colour, font=_font(6 * (y2 - y1) // 7), anchor="mm")


@functools.lru_cache(maxsize=4)
def _font(height: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(height)


@functools.lru_cache(maxsize=64)
def _background(size: int, shade: int) -> np.ndarray:
    """Return [size, size, 3] uint8: red falls by 210 levels to the right, blue to the bottom."""
    fall = np.linspace(220, 10, size).round().astype(np.uint8)
    image = np.full((size, size, 3), shade, np.uint8)
    image[:, :, 0] = fall[None, :]
    image[:, :, 2] = fall[:, None]
    return image
