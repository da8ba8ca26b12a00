"""A form in a window, drawn by us: fields, ticks, menus and a button, with a goal that can be checked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from PIL import Image, ImageDraw, ImageFont

from vlmrl.environments import Environment, Part, Point, Refused, Sample, Step
from vlmrl.environments.base import seed_for

WIDTH, HEIGHT, ROW = 280, 224, 40
"""Pixels of the window, and of a row of the form."""
LEFT, RIGHT = 110, 268
"""Pixels between which a row's widget is."""
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
    goals: int = 2
    """Rows that are to be changed."""
    max_moves: int = 16
    """Actions after which the world ends."""

    def __post_init__(self) -> None:
        if not 1 <= self.goals <= self.rows <= len(LABELS) or self.max_moves < 1:
            raise ValueError(
                f"expected 1 <= goals <= rows <= {len(LABELS)} and max_moves of at least 1, got goals "
                f"{self.goals}, rows {self.rows} and max_moves {self.max_moves}"
            )

    def reset(self, sample: Sample, seed: int) -> Form:
        """Draw a form and which of its rows are to be changed."""
        draw = random.Random(seed_for(sample, seed))
        labels = draw.sample(LABELS, self.rows)
        changed = draw.sample(range(self.rows), self.goals)
        rows = tuple(_draw_row(draw, label, place in changed) for place, label in enumerate(labels))
        return Form(rows, tuple(row.before for row in rows))

    def task(self, state: Form) -> str:
        """Return what to fill in."""
        wishes = [_wish(row) for row in state.rows if row.wanted != row.before]
        return f"Fill in the form: {', '.join(wishes)}. Then press Save."

    def observe(self, state: Form) -> Sequence[Part]:
        """Return the window."""
        page = Image.new("RGB", (WIDTH, max(HEIGHT, _height(state))), "#f4f4f4")
        pen, font = ImageDraw.Draw(page), ImageFont.load_default(15)
        for place, (row, value) in enumerate(zip(state.rows, state.values, strict=True)):
            top = place * ROW
            pen.text((10, top + 11), row.label, "black", font)
            edge = "#2060e0" if place == state.focus else "#808080"
            box = (LEFT, top + 6, LEFT + 28 if row.kind == "tick" else RIGHT, top + 34)
            pen.rectangle(box, "white", edge, 2)
            if row.kind == "tick":
                if value == "on":
                    pen.line(
                        (LEFT + 6, top + 20, LEFT + 12, top + 28, LEFT + 23, top + 11), "black", 3
                    )
                continue
            pen.text((LEFT + 8, top + 11), value, "black", font)
            if row.kind == "menu":
                pen.polygon(
                    [(RIGHT - 20, top + 16), (RIGHT - 8, top + 16), (RIGHT - 14, top + 25)], "black"
                )
        top = len(state.rows) * ROW
        pen.rectangle((LEFT, top + 6, RIGHT, top + 34), "#2060e0")
        pen.text((LEFT + 60, top + 11), "Save", "white", font)
        if state.menu is not None:
            for number, option in enumerate(OPTIONS):
                top = (state.menu + 1 + number) * ROW
                pen.rectangle((LEFT, top, RIGHT, top + ROW), "#e0e8ff", "#2060e0")
                pen.text((LEFT + 8, top + 11), option, "black", font)
        return [page.crop((0, state.top, WIDTH, state.top + HEIGHT))]

    def click(self, state: Form, point: Annotated[Point, "where"]) -> Step:
        """Click on something in the window."""
        x, place = point.x * WIDTH, int(point.y * HEIGHT + state.top) // ROW
        inside = LEFT <= x <= RIGHT
        if state.menu is not None:
            option, values = place - state.menu - 1, [*state.values]
            if inside and 0 <= option < len(OPTIONS):
                values[state.menu] = OPTIONS[option]
            return self._after(replace(state, values=tuple(values), menu=None))
        if not inside or place > len(state.rows):
            return self._after(replace(state, focus=None))
        if place == len(state.rows):
            return self._after(state, saved=True)
        row, values = state.rows[place], [*state.values]
        if row.kind == "tick":
            values[place] = "off" if values[place] == "on" else "on"
        focus = place if row.kind == "field" else None
        menu = place if row.kind == "menu" else None
        return self._after(replace(state, values=tuple(values), focus=focus, menu=menu))

    def type(self, state: Form, text: Annotated[str, "what to write"]) -> Step:
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
    ) -> Step:
        """Scroll the window by half of its height."""
        return self._after(
            replace(state, top=state.top + (HEIGHT // 2 if direction == "down" else -HEIGHT // 2))
        )

    def _after(self, state: Form, saved: bool = False) -> Step:
        top = min(max(state.top, 0), max(0, _height(state) - HEIGHT))
        found = replace(state, top=top, moves=state.moves + 1)
        right = sum(
            row.wanted == value for row, value in zip(state.rows, state.values, strict=True)
        )
        solved = saved and right == len(state.rows)
        done = saved or found.moves >= self.max_moves
        metrics = {"solved": float(solved), "progress": right / len(state.rows)}
        return Step(found, [] if done else self.observe(found), float(solved), done, metrics)


def _height(state: Form) -> int:
    """Return the pixels of the whole page: the form, and the options of an open menu."""
    rows = len(state.rows) + 1
    return ROW * (rows if state.menu is None else max(rows, state.menu + 1 + len(OPTIONS)))


def _draw_row(draw: random.Random, label: str, changed: bool) -> Row:
    kinds: tuple[Kind, ...] = ("field", "tick", "menu")
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
