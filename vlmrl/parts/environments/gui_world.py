"""A form in a window, drawn by us: fields, ticks, menus and a button, with a goal that can be checked."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vlmrl.interaction.environment import (
    Environment,
    MoveOutcome,
    Part,
    Point,
    Refused,
    Sample,
    seed_for,
)

WIDTH, HEIGHT, ROW = 280, 224, 40
"""Pixels of the window, and of a row of the form, unless options say otherwise."""
LEFT, RIGHT = 110, 268
"""Pixels between which a row's widget is, in a window of that width."""
MAX_CHARS = 20
WORDS = ("Ada", "Oslo", "maple", "seven", "Kim", "north", "blue", "tram")
LABELS = ("Name", "City", "Street", "Note", "Team", "Code", "Group", "Title")
OPTIONS = ("small", "medium", "large")
Kind = Literal["field", "tick", "menu"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the form: what it is, what it is called, and what is in it at first and in the end."""

    kind: Kind
    label: str
    before: str
    wanted: str


@dataclass(frozen=True, slots=True)
class Form:
    """The window: `values` by row, the row that is written in, the open menu, and what is scrolled away."""

    rows: tuple[Row, ...]
    values: tuple[str, ...]
    places: tuple[int, ...]
    """Lines of the page: that of each row, and that of the button."""
    focus: int | None = None
    menu: int | None = None
    top: int = 0
    moves: int = 0


@dataclass(frozen=True)
class GuiWorld(Environment):
    """A form to fill in by clicking, typing and scrolling, then to save.

    Saving ends the world; it pays 1 if every row holds what was asked for and the others are as they
    were. `progress` is the share of rows that are right.
    """

    actions: ClassVar[tuple[str, ...]] = ("click", "type", "scroll")

    rows: int = 4
    """Rows of the form; beyond 4, some are scrolled away."""
    gaps: int = 0
    """Empty lines strewn between the rows and above the button, so that those are anywhere."""
    goals: int = 2
    """Rows that are to be changed."""
    max_moves: int = 16
    """Actions after which the world ends."""
    kinds: tuple[Kind, ...] = ("field", "tick", "menu")
    """What a row may be."""
    width: int = WIDTH
    """Pixels of the window's width."""
    height: int = HEIGHT
    """Pixels of its height."""
    row_px: int = ROW
    """Pixels of the height of a row of the form."""

    def __post_init__(self) -> None:
        if not 1 <= self.goals <= self.rows <= len(LABELS) or self.max_moves < 1 or self.gaps < 0:
            raise ValueError(
                f"expected 1 <= goals <= rows <= {len(LABELS)}, gaps >= 0 and max_moves >= 1, "
                f"got goals {self.goals}, rows {self.rows}, gaps {self.gaps} and max_moves {self.max_moves}"
            )
        if not self.kinds or min(self.width, self.height) < 56 or self.row_px < 16:
            raise ValueError(
                f"expected a kind, a window of at least 56 x 56 pixels and rows of at least 16, got "
                f"{self.kinds}, {self.width} x {self.height} and {self.row_px}"
            )

    def reset(self, sample: Sample, seed: int) -> Form:
        """Draw a form and which of its rows are to be changed."""
        draw = random.Random(seed_for(sample, seed))
        labels = draw.sample(LABELS, self.rows)
        changed = draw.sample(range(self.rows), self.goals)
        rows = tuple(
            _draw_row(draw, label, number in changed, self.kinds)
            for number, label in enumerate(labels)
        )
        lines = range(self.rows + 1 + self.gaps)
        places = sorted(draw.sample(lines, self.rows + 1)) if self.gaps else lines
        return Form(rows, tuple(row.before for row in rows), tuple(places))

    def task(self, state: Form) -> str:
        """Return what to fill in."""
        wishes = [_wish(row) for row in state.rows if row.wanted != row.before]
        return f"Fill in the form: {', '.join(wishes)}. Then press Save."

    def observe(self, state: Form) -> Sequence[Part]:
        """Return the window."""
        page = Image.new("RGB", (self.width, max(self.height, self._height(state))))
        page.paste(_background(self.width, self.height), (0, state.top))
        pen, font = ImageDraw.Draw(page), ImageFont.load_default(self.row_px * 3 // 8)
        for number, (row, value) in enumerate(zip(state.rows, state.values, strict=True)):
            line = state.places[number]
            pen.rectangle((*self._at(4, line, 4), *self._at(LEFT - 6, line, 36)), "#202020")
            pen.text(self._at(10, line, 11), row.label, "white", font)
            edge = "#2060e0" if number == state.focus else "#808080"
            right = LEFT + 28 if row.kind == "tick" else RIGHT
            box = (*self._at(LEFT, line, 6), *self._at(right, line, 34))
            pen.rectangle(box, "white", edge, 2)
            if row.kind == "tick":
                if value == "on":
                    marks = ((LEFT + 6, 20), (LEFT + 12, 28), (LEFT + 23, 11))
                    pen.line([self._at(x, line, y) for x, y in marks], "black", 3)
                continue
            pen.text(self._at(LEFT + 8, line, 11), value, "black", font)
            if row.kind == "menu":
                corners = ((RIGHT - 20, 16), (RIGHT - 8, 16), (RIGHT - 14, 25))
                pen.polygon([self._at(x, line, y) for x, y in corners], "black")
        last = state.places[-1]
        pen.rectangle((*self._at(LEFT, last, 6), *self._at(RIGHT, last, 34)), "#2060e0")
        pen.text(self._at(LEFT + 60, last, 11), "Save", "white", font)
        if state.menu is not None:
            for line, option in enumerate(OPTIONS, start=state.places[state.menu] + 1):
                box = (*self._at(LEFT, line, 0), *self._at(RIGHT, line, ROW))
                pen.rectangle(box, "#e0e8ff", "#2060e0")
                pen.text(self._at(LEFT + 8, line, 11), option, "black", font)
        return [page.crop((0, state.top, self.width, state.top + self.height))]

    def demonstrate(self, state: Form) -> tuple[str, dict[str, Any]]:
        """Return what to do next: put the first wrong row right, then save."""
        wrong = [i for i, row in enumerate(state.rows) if row.wanted != state.values[i]]
        row = state.rows[wrong[0]] if wrong else None
        line = state.places[wrong[0] if wrong else -1]
        if state.menu is not None:
            line = state.places[state.menu] + 1 + OPTIONS.index(state.rows[state.menu].wanted)
        elif row and row.kind == "field" and state.focus == wrong[0]:
            return "type", {"text": row.wanted}
        tick = row is not None and row.kind == "tick" and state.menu is None
        x, y = self._at(LEFT + 14 if tick else (LEFT + RIGHT) // 2, line, 20)
        if not 0 <= y - state.top < self.height:
            return "scroll", {"direction": "down" if y > state.top else "up"}
        return "click", {"point": Point(x / self.width, (y - state.top) / self.height)}

    def click(self, state: Form, point: Annotated[Point, "where"]) -> MoveOutcome:
        """Click on something in the window."""
        x, line = point.x * WIDTH, int(point.y * self.height + state.top) // self.row_px
        inside = LEFT <= x <= RIGHT
        if state.menu is not None:
            option, values = line - state.places[state.menu] - 1, [*state.values]
            if inside and 0 <= option < len(OPTIONS):
                values[state.menu] = OPTIONS[option]
            return self._after(replace(state, values=tuple(values), menu=None))
        if not inside or line not in state.places:
            return self._after(replace(state, focus=None))
        number = state.places.index(line)
        if number == len(state.rows):
            return self._after(state, saved=True)
        row, values = state.rows[number], [*state.values]
        if row.kind == "tick":
            values[number] = "off" if values[number] == "on" else "on"
        focus = number if row.kind == "field" else None
        menu = number if row.kind == "menu" else None
        return self._after(replace(state, values=tuple(values), focus=focus, menu=menu))

    def type(self, state: Form, text: Annotated[str, "what to write"]) -> MoveOutcome:
        """Write a text into the field that was clicked; what was in it is replaced."""
        if state.focus is None:
            raise Refused("no field was clicked")
        if len(text) > MAX_CHARS or not text.isprintable():
            raise Refused(f"expected a text of at most {MAX_CHARS} characters on one line")
        values = [*state.values]
        values[state.focus] = text
        return self._after(replace(state, values=tuple(values)))

    def scroll(
        self, state: Form, direction: Annotated[Literal["up", "down"], "where to go"]
    ) -> MoveOutcome:
        """Scroll the window by half of its height."""
        return self._after(
            replace(state, top=state.top + self.height // (2 if direction == "down" else -2))
        )

    def _after(self, state: Form, saved: bool = False) -> MoveOutcome:
        top = min(max(state.top, 0), max(0, self._height(state) - self.height))
        after = replace(state, top=top, moves=state.moves + 1)
        right = sum(
            row.wanted == value for row, value in zip(state.rows, state.values, strict=True)
        )
        solved = saved and right == len(state.rows)
        done = saved or after.moves >= self.max_moves
        metrics = {"solved": float(solved), "progress": right / len(state.rows)}
        return MoveOutcome(after, [] if done else self.observe(after), float(solved), done, metrics)

    def _at(self, x: int, place: int, y: int) -> tuple[int, int]:
        """Return a place in a row in pixels of the page; x and y are those of a row of the default size."""
        return x * self.width // WIDTH, place * self.row_px + y * self.row_px // ROW

    def _height(self, state: Form) -> int:
        """Return the pixels of the whole page: the form, and the options of an open menu."""
        opened = 0 if state.menu is None else state.places[state.menu] + 1 + len(OPTIONS)
        return self.row_px * max(len(state.rows) + 1 + self.gaps, opened)


@functools.lru_cache(maxsize=8)
def _background(width: int, height: int) -> Image.Image:
    """Return the window's background, which shows the place: red falls to the right, blue to the bottom.

    A small model has nothing else to read an absolute place from.
    """
    across, down = np.linspace(220, 10, width), np.linspace(220, 10, height)
    image = np.full((height, width, 3), 160, np.uint8)
    image[:, :, 0] = across.round()[None, :]
    image[:, :, 2] = down.round()[:, None]
    return Image.fromarray(image)


def _draw_row(draw: random.Random, label: str, changed: bool, kinds: tuple[Kind, ...]) -> Row:
    kind = draw.choice(kinds)
    if kind == "field":
        before, wanted = "", draw.choice(WORDS)
    elif kind == "tick":
        before, wanted = draw.choice((("off", "on"), ("on", "off")))
    else:
        before, wanted = draw.sample(OPTIONS, 2)
    return Row(kind, label, before, wanted if changed else before)


def _wish(row: Row) -> str:
    if row.kind == "tick":
        return f"switch {row.label} {row.wanted}"
    return f'set {row.label} to "{row.wanted}"'
