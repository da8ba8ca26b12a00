"""Hostile answers to compare rules on, and how a harness's function is taken out of its source."""

from __future__ import annotations

import ast
import os
import random
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "OPTIONS",
    "Quiet",
    "Rule",
    "Table",
    "any_answer",
    "any_options",
    "any_places",
    "lift",
    "on_answers",
]

Rule = Callable[[random.Random], tuple[Any, Any]]
"""Draws a case, and returns what the harness and what our rule makes of it."""


def lift(file: Path, *names: str, **given: Any) -> dict[str, Any]:
    """Run the definitions of these names in a source file, and nothing else of it."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inner = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inner = [node for node in inner if node not in tree.body]  # methods, and functions in loops
    wanted = [node for node in [*tree.body, *inner] if _name_of(node) in names]
    for node in wanted:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list.clear()  # @staticmethod
    if missing := set(names) - {_name_of(node) for node in wanted}:
        raise SystemExit(f"{file}: has no {', '.join(sorted(missing))}")
    space = {"re": re, "string": string, "random": random, "os": os, "np": np, **given}
    space |= dict.fromkeys(("List", "Optional", "Dict", "Tuple"), Any)
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *wanted], []), str(file), "exec"), space)
    return space


def _name_of(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return getattr(node, "name", "")


# ------------------------------------------------------------------------------------------ answers
WORDS = """the answer is The Answer correct option choice best a A an B C D E Z b c I think dog cat red
because yes no Yes No not nose eyes Y n none zero One two twenty 3 12 1,200 3.5 0 10 12% -4 it's dont
couldnt've somebody'd y'allll I'm id've Mr. U.S. Cannot determine option: 答案是 选 옵션 answers ANSWER
so: (A) (B) (C) A. B. C) D: [B] **B** ** \\boxed{C} <answer>B</answer> １２ Ａ"""


def any_answer(draw: random.Random) -> str:
    """Draw words of the vocabulary and punctuation in a row, with odd spaces between them."""
    words = WORDS.split()
    parts = []
    for _ in range(draw.choice((0, 1, 1, 2, 3, 4, 5, 8, 13))):
        parts += [
            draw.choice(words),
            draw.choice((" ", " ", " ", "", ". ", ", ", "\n", ": ", "  ")),
        ]
    if draw.random() < 0.1:
        parts += draw.choices(".,;:!?'\"()[]{}/\\-_@`<>=+#*\t", k=draw.randint(1, 40))
    if draw.random() < 0.05:
        draw.shuffle(parts)
    return "".join(parts)


OPTIONS = ("a red dog", "Cat", "12%", "the cat", "3", "two dogs", "A", "yes", "a", "")


def any_options(draw: random.Random) -> dict[str, str]:
    """Draw two to five options by letter."""
    count = draw.randint(2, 5)
    return dict(zip(string.ascii_uppercase, draw.sample(OPTIONS, count), strict=False))


def any_places(draw: random.Random) -> str:
    """Draw text with brackets, numbers of several spaces, times and clicks."""
    scale = draw.choice((1, 1, 1.4, 10, 999, 1000, 2000))
    numbers = [round(draw.uniform(-0.1, 1) * scale, draw.choice((0, 1, 2, 3))) for _ in range(6)]
    said = [str(int(n) if n == int(n) and draw.random() < 0.7 else n) for n in numbers]
    comma = draw.choice((", ", ",", " , ", " "))
    forms = (
        lambda: draw.choice(("[{}]", "({})", "[[{}]]", "{}", "[{}")).format(comma.join(said[:4])),
        lambda: f"x={said[0]}, y={said[1]}",
        lambda: f"{said[0]}{draw.choice((' - ', '-', ' to ', 's - ', ' s to ', '–'))}{said[1]}s",
        lambda: f"{draw.randint(0, 70)}:{draw.randint(0, 59):02}",
        lambda: f"start {said[0]}\nend {said[1]}",
        lambda: any_answer(draw)[:12],
        lambda: draw.choice(
            ("1e3", "1.2.3", "-.5", "\n", "!", "happens in ", "A specific example")
        ),
    )
    between = draw.choice((" ", "", "\n", " and "))
    return between.join(draw.choice(forms)() for _ in range(draw.choice((0, 1, 1, 2, 3))))


def on_answers(theirs: Callable[[str], Any], ours: Callable[[str], Any]) -> Rule:
    """Compare two functions of an answer alone."""

    def compare(draw: random.Random) -> tuple[Any, Any]:
        said = any_answer(draw)
        return theirs(said), ours(said)

    return compare


class Table:
    """The few lines of a pandas table that the harness uses."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.iloc = rows

    def __len__(self) -> int:
        return len(self.iloc)

    def __contains__(self, column: str) -> bool:
        return column in self.iloc[0]

    def __getitem__(self, column: str) -> list[Any]:
        return [row[column] for row in self.iloc]


class Quiet:
    """A logger that says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None
