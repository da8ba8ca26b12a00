"""The contract of a kind of truth: one file a kind, and everything that is special about it there.

A kind says how its value is stated in a row (`parse`), asked for in a prompt (`instruct`), written
by a model (`write`), turned into the space of a row (`convert`), stored (`to_json`), drawn (`draw`)
and attacked (`mistake`, `cover`). All other rooms loop over `kinds()` and name none of them.

To add one, write `vlmrl/truths/<name>.py` with a class of that name. Its value is in
`Truth.more[<name>]`; a verifier reads it with `truth.value("<name>")`.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vlmrl import plugins
from vlmrl.answers import geometry
from vlmrl.schema import Frame, Space, Truth

# --------------------------------------------------------------------------------------------------
# Checks of what a row states, shared by the kinds of truth: each raises "expected X, got Y".


def check_list(value: object) -> list[Any]:
    """Return a list or tuple as a list."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list, got {value!r:.80}")
    return list(value)


def check_text(value: object) -> str:
    """Return a text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text, got {value!r:.80}")
    return value


def check_texts(value: object) -> tuple[str, ...]:
    """Return a list of texts."""
    return tuple(map(check_text, check_list(value)))


def check_names(value: object) -> tuple[str, ...]:
    """Return a list of names; a whole number is one."""
    return check_texts([str(v) if type(v) is int else v for v in check_list(value)])


def check_number(value: Any) -> float:
    """Return a finite number; a bool is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not -sys.float_info.max <= value <= sys.float_info.max:  # nor NaN
        raise ValueError(f"expected a finite number, got {value!r:.80}")
    return float(value)


def check_object(value: object) -> dict[str, Any]:
    """Return an object that is not empty."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"expected an object, got {value!r:.80}")
    return dict(value)


def check_label(value: object) -> str | None:
    """Return the label of an item, None if it has none."""
    label = value.get("label") if isinstance(value, Mapping) else None
    return None if label is None else check_text(label)


def check_numbers(value: object, key: str, count: int) -> list[float]:
    """Return the `count` finite numbers of `{key: [...]}` or of a bare list."""
    numbers = value.get(key) if isinstance(value, Mapping) else value
    if not isinstance(numbers, list | tuple) or len(numbers) != count:
        raise ValueError(f"expected {count} numbers for a {key}, got {numbers!r:.80}")
    return [check_number(n) for n in numbers]


# --------------------------------------------------------------------------------------------------


PLACES: dict[Space, str] = {
    "pixel": "in pixels of the image",
    "resized": "in pixels of the image",
    "norm1000": "from 0 to 1000 across and down the image",
    "norm1": "from 0 to 1 across and down the image",
}
"""How a prompt names the space of coordinates."""

STRANGERS = ("pneumothorax", "traffic cone", "ace of spades")
"""Names that no example's truth has."""

Readers = Mapping[str, Mapping[str, Any]]
"""Shipped verifiers by name, each with its options."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A shape to draw on a medium: unit square, or seconds for a span.

    `numbers`: x1, y1, x2, y2 of a box; x, y of a point; x, y of each corner of an outline in turn;
    start, end of a span. `time` (seconds) selects the frame of a video.
    """

    shape: Literal["box", "point", "outline", "span"]
    numbers: tuple[Any, ...]
    label: Any = None
    time: Any = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A right and a wrong answer in one form; `everything` lists all that could be right."""

    form: str
    right: str
    wrong: str
    everything: str = ""


@dataclass(frozen=True)
class TruthKind:
    """Base of the kinds of truth, with defaults for a value that is only stated.

    Class variables: `key` names the kind in a row and in a truth (the file's name where empty);
    `rank` orders the kinds, and a truth of several kinds is asked for and
    demonstrated as the first of them; `form` is an answer with words for its values; `types` are
    the classes of its values. `placed`: its values have coordinates in an image. `listed`: its
    answer lists instances, so that an empty list says that there is nothing. `words`: its answer is
    words. `graded`: a list that holds the right answer may earn a part of the score. `readers`: the
    verifiers that read an answer of this kind strictly; a run compares its reward with their mean.
    """

    key: ClassVar[str] = ""
    rank: ClassVar[int] = 100
    form: ClassVar[str] = ""
    types: ClassVar[tuple[type, ...]] = ()
    placed: ClassVar[bool] = False
    listed: ClassVar[bool] = False
    words: ClassVar[bool] = False
    graded: ClassVar[bool] = False
    readers: ClassVar[Readers] = {}

    @property
    def name(self) -> str:
        """The kind's key in a row and in a truth."""
        return self.key or plugins.name_of(type(self))

    def parse(self, value: object, frame: Frame) -> Any:
        """Return the typed value that a row states, in the unit square and in seconds.

        The base class expects a list of what `parse_item` reads.

        Raises:
            ValueError: the row states no such value; the message says "expected X, got Y".
        """
        return tuple(self.parse_item(item, frame) for item in check_list(value))

    def parse_item(self, value: object, frame: Frame) -> Any:
        """Return one value of `types` that a row states in a list; see `parse`."""
        raise TypeError(f"{type(self).__name__} must define parse or parse_item")

    def to_json(self, item: Any) -> dict[str, Any]:
        """Return one value of `types` as `parse` reads it, in the coordinates that it has."""
        raise TypeError(f"{type(self).__name__} must define to_json")

    def convert(self, item: Any, frame: Frame) -> Any:
        """Return one value of `types` in the frame's space instead of the unit square."""
        return item

    def instruct(self, truth: Truth, space: Space) -> str:
        """Say how to write the answer; depends on what kind it is, never on its value."""
        return ""

    def can_state(self, truth: Truth) -> bool:
        """Return whether a truth can be written as this kind: it has a value of it, or one to derive."""
        return truth.value(self.name) is not None

    def write(self, truth: Truth, frame: Frame) -> str | None:
        """Write a truth that has this kind as a model should, in the frame's space.

        None if a model cannot write it.

        Raises:
            ValueError: the frame lacks the size that its space needs.
        """
        return None

    def draw(self, item: Mapping[str, object]) -> Iterable[Mark]:
        """Yield the marks of what `to_json` returned; none for any other JSON object."""
        return ()

    def examples(self) -> Iterable[tuple[str, Truth]]:
        """Yield questions with a truth of this kind, on an image of 640 x 480 pixels or 60 s."""
        return ()

    def mistake(self, truth: Truth) -> Truth | None:
        """Return a truth that has this kind with a plausible wrong value; None: there is none."""
        return None

    def enumerate(self, truth: Truth, frame: Frame) -> str:
        """Write all that could be right at once; empty where that makes no sense."""
        return ""

    def claim(self, truth: Truth, frame: Frame) -> Iterator[Claim]:
        """Yield the ways of stating a truth as an answer of this kind, each with a wrong one."""
        if not known(truth, self.name) or (wrong := self.mistake(truth)) is None:
            return
        right, mistaken = self.write(truth, frame), self.write(wrong, frame)
        if right is not None and mistaken is not None:
            yield Claim(self.name, right, mistaken, self.enumerate(truth, frame))

    def cover(self, x1: float, y1: float, x2: float, y2: float) -> dict[str, Any] | None:
        """Return an answer's JSON item that fills a region, the four numbers written unchecked.

        Attacks cover an image with a grid of these, and fill them with nan. None: it has no place.
        """
        return None

    def share(self, truth: Truth) -> float:
        """Return how much of the image the largest instance covers, in [0, 1]."""
        items = truth.value(self.name) if self.types else None
        items = items if isinstance(items, tuple) else () if items is None else (items,)
        marks = [mark for item in items for mark in self.draw(self.to_json(item))]
        return max((_area(mark.numbers) for mark in marks if mark.shape != "span"), default=0.0)


@functools.cache
def kinds() -> dict[str, TruthKind]:
    """Return every kind of truth by name, in the order of their ranks."""
    built = [plugins.build("truth", name) for name in plugins.names("truth")]
    return {kind.name: kind for kind in sorted(built, key=lambda kind: (kind.rank, kind.name))}


def known(truth: Truth, name: str) -> bool:
    """Return True if a truth says something of this kind; an empty list says nothing."""
    value = truth.value(name)
    return value is not None and value is not False and value != ()


def list_items(items: Sequence[dict[str, Any]]) -> str:
    """Write JSON as a model should: one item alone, several (or none) as a list."""
    return json.dumps(items[0] if len(items) == 1 else list(items), ensure_ascii=False)


def round_place(numbers: Iterable[float], space: Space) -> list[float]:
    """Round coordinates as a model should write them: whole, but three decimals in `norm1`."""
    return [round(n, 3) if space == "norm1" else round(n) for n in numbers]


def scale(points: Iterable[Sequence[float]], frame: Frame) -> list[tuple[float, float]]:
    """Return points of the unit square in the frame's space."""
    width, height = geometry.extent(frame)
    return [(x * width, y * height) for x, y in points]


def write_corners(points: Iterable[Sequence[float]], frame: Frame) -> list[list[float]]:
    """Return points of the unit square as a model should write them in the frame's space."""
    return [round_place(point, frame.space) for point in scale(points, frame)]


def label_of(item: Any, several: bool = True) -> dict[str, str]:
    """Return `{"label": ...}` of a value that has a label and company, else nothing."""
    return {"label": item.label} if several and item.label is not None else {}


def _area(numbers: Sequence[float]) -> float:
    xs, ys = numbers[::2], numbers[1::2]
    return (max(xs) - min(xs)) * (max(ys) - min(ys))
