"""The page of algorithms: a picture of the seams of a step, and a table of recipes from code and tests."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from python_files import assigned, parse
from tables import code, escape, header, link_paper, link_part, row

from vlmrl import plugins
from vlmrl.features.check.list_parts import first_sentence

ROOT = Path(__file__).parents[2]
SEAMS = (
    ("draw", "sampler", "rows"),
    ("generate", "engine", "completions"),
    ("score", "verifiers", "rewards [P, G]"),
    ("shape", "algorithm.shape", "rewards by length"),
    ("select groups", "algorithm.keep", "dynamic sampling"),
    ("advantages", "algorithm.advantages", "[P, G] or [P, G, T]"),
    ("passes", "algorithm.passes", "old, reference, entropy"),
    ("prepare", "algorithm.prepare", "token weights"),
    ("loss", "algorithm.policy_loss", "[B, T]"),
    ("divergence", "kl, kl_estimator", "[B, T]"),
    ("aggregate", "aggregation", "global denominators"),
    ("update", "optimizer", "weights to the engine"),
)
"""Of each moment of a step: its name, what a config or a recipe chooses there, and what it makes."""
COLUMNS, WIDTH, BOX_WIDTH, BOX_HEIGHT, ROW = 4, 900, 196, 62, 96
STYLE = """
.seams { --ink: var(--md-default-fg-color, #1f2328); --line: #00897b; --fill: #00897b22; }
.seams text { fill: var(--ink); font: 13px sans-serif; text-anchor: middle; }
.seams text.name { font-weight: bold; }
.seams text.made { opacity: .7; font-size: 12px; }
.seams rect { fill: none; stroke: var(--line); }
.seams rect.own { fill: var(--fill); }
.seams path { fill: none; stroke: var(--line); opacity: .7; }
@media (prefers-color-scheme: dark) { .seams { --ink: var(--md-default-fg-color, #e6edf3); } }
"""
LAWS = "laws of every recipe"
"""What the contract tests of all algorithms verify."""


def draw() -> str:
    """Return the picture as SVG, to be put into a page; what a recipe decides is filled."""
    height = ROW * -(-len(SEAMS) // COLUMNS)
    lines = [
        f'<svg class="seams" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        ' role="img" aria-label="The moments of a step, and what chooses them">',
        f"<style>{STYLE}</style>",
    ]
    places = [_place(number) for number in range(len(SEAMS))]
    for (x, y), (nx, ny) in itertools.pairwise(places):
        middle = y + BOX_HEIGHT / 2
        if y == ny:
            lines.append(f'<path d="M{x + BOX_WIDTH:g} {middle:g} H{nx:g}"/>')
        else:
            lines.append(
                f'<path d="M{x + BOX_WIDTH / 2:g} {y + BOX_HEIGHT:g} V{ny - 16:g} '
                f'H{nx + BOX_WIDTH / 2:g} V{ny:g}"/>'
            )
    for (x, y), (name, chosen, made) in zip(places, SEAMS, strict=True):
        own = ' class="own"' if chosen.startswith(("algorithm", "kl", "aggregation")) else ""
        size = f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"'
        lines.append(f'<rect{own} x="{x:g}" y="{y:g}" {size}/>')
        centre = x + BOX_WIDTH / 2
        for offset, kind, text in ((19, "name", name), (37, "chosen", chosen), (54, "made", made)):
            lines.append(
                f'<text class="{kind}" x="{centre:g}" y="{y + offset:g}">{escape(text)}</text>'
            )
    return "\n".join([*lines, "</svg>"])


def _place(number: int) -> tuple[float, float]:
    line, column = divmod(number, COLUMNS)
    return 8 + column * (WIDTH / COLUMNS), 17 + line * ROW


def matrix() -> str:
    """Return the table of recipes: paper, shipped configs, tests that name it, what they verify."""
    tests = read_tests()
    configs = read_configs()
    lines = header("recipe", "what it is", "paper", "configs", "verified by")
    for name in plugins.names("algorithm"):
        recipe = plugins.load("algorithm", name)
        module = inspect.getmodule(recipe)
        papers = re.findall(r"arXiv (\d{4}\.\d{5})", inspect.getdoc(module) or "")
        verified = tests.get(name, [])
        lines.append(
            row(
                link_part("algorithms", name),
                escape(first_sentence(recipe)),
                ", ".join(map(link_paper, dict.fromkeys(papers))),
                ", ".join(code(config) for config in configs.get(name, [])) or "any",
                "; ".join(dict.fromkeys([*verified, LAWS])),
            )
        )
    return "\n".join(lines)


def read_tests() -> dict[str, list[str]]:
    """Return recipe -> the tests of tests/algorithms that are given it, in words, without refusals.

    A test is given a recipe by a row of `parametrize` whose column is `name`, or asks for it by `recipe_of`.
    """
    found: dict[str, list[str]] = {}
    helpers = assigned(ROOT / "tests/helpers/losses.py")
    for file in sorted((ROOT / "tests/algorithms").glob("test_*.py")):
        tables = {**helpers, **assigned(file)}
        for test in parse(file).body:
            if isinstance(test, ast.FunctionDef) and "refused" not in test.name:
                for name in dict.fromkeys([*_given(test, tables), *_asked(test)]):
                    words = test.name.removeprefix("test_").replace("_", " ")
                    found.setdefault(name, []).append(words)
    return found


def _given(test: ast.FunctionDef, tables: dict[str, ast.expr]) -> Iterator[str]:
    for mark in test.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize"):
            columns = ast.literal_eval(mark.args[0])
            columns = (columns,) if isinstance(columns, str) else columns
            for entry in _rows(mark.args[1], tables) if "name" in columns else ():
                cell = entry.elts[columns.index("name")] if isinstance(entry, ast.Tuple) else entry
                if isinstance(cell, ast.Constant):
                    yield cell.value


def _rows(node: ast.expr, tables: dict[str, ast.expr]) -> list[ast.expr]:
    """Return the rows of a table: a list, a name of one, or chosen rows of one."""
    if isinstance(node, ast.Name):
        return _rows(tables[node.id], tables) if node.id in tables else []
    if isinstance(node, ast.Subscript):
        return [_rows(node.value, tables)[ast.literal_eval(node.slice)]]
    if isinstance(node, ast.List):
        return [entry for element in node.elts for entry in _rows(element, tables)]
    return [node]


def _asked(test: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("recipe_of", "plugins.build"):
            first = node.args[-1 if ast.unparse(node.func) == "recipe_of" else 1]
            if isinstance(first, ast.Constant):
                yield first.value


def read_configs() -> dict[str, list[str]]:
    """Return recipe -> shipped configs that train by it."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "configs").rglob("*.yaml")):
        algorithm = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("algorithm", {})
        name = algorithm if isinstance(algorithm, str) else algorithm.get("name", "grpo")
        found.setdefault(name, []).append(str(file.relative_to(ROOT / "configs")))
    return found
