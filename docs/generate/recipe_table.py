"""The table of recipes: every published system with its config, what was verified here, and what differs."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

import algorithm_tables
from recipe_heads import read_head
from tables import code, escape, header, row

from vlmrl.config import Config, load, tree

FOLDER = "recipes/"
TESTS = Path(__file__).parents[2] / "tests/test_recipes.py"
VERIFIED = "algorithms.md#every-recipe-and-what-was-verified"


def table() -> str:
    """Return a row for each config of `configs/recipes`, from its head, its parts and the tests."""
    quick, tests = _quick(), algorithm_tables.read_tests()
    lines = header("system", "command", "paper", "verified here", "differs")
    for name, path in sorted(tree.shipped().items()):
        if name.startswith(FOLDER):
            head = read_head(path)
            paper = head.paper and f"[{head.paper}](https://arxiv.org/abs/{head.paper})"
            lines.append(
                row(
                    escape(f"**{head.system}**: {head.what}"),
                    code(f"vlmrl train {name}"),
                    paper,
                    _verified(load(name), name in quick, tests),
                    escape(head.sections["Differs"]),
                )
            )
    return "\n".join(lines)


def _quick() -> Sequence[str]:
    """Return the recipes that every run of the tests trains; the others train at night."""
    for node in ast.parse(TESTS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "QUICK":
            return [*ast.literal_eval(node.value)]
    raise ValueError(f"{TESTS}: expected a table QUICK")


def _verified(config: Config, is_quick: bool, tests: Mapping[str, Sequence[str]]) -> str:
    said = ["two steps" if is_quick else "two steps (at night)"]
    names = dict.fromkeys(stage.algorithm.name for stage in config.by_stage)
    for name in names:
        count = len(dict.fromkeys(tests.get(name, ())))
        what = {0: "laws", 1: "1 test"}.get(count, f"{count} tests")
        said.append(f"{what} of [`{name}`]({VERIFIED})")
    if config.data.sampler.name != "mixture":
        sampler = config.data.sampler.name
        said.append(f"laws of [`{sampler}`](../reference/samplers/{sampler}.md)")
    for strategy in config.strategies:
        said.append(f"laws of [`{strategy.name}`](../reference/strategies/{strategy.name}.md)")
    return "; ".join(said)
