"""What the tests say of a recipe: those that name it, its algorithm, its sampler and its strategies.

Tests are read, not run: a test is told by its name, as a sentence, with its file.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import algorithm_tables
from python_files import parse, read_table

from vlmrl import plugins
from vlmrl.config import Config

TESTS = algorithm_tables.ROOT / "tests"
RECIPES = TESTS / "test_recipes.py"


@dataclass(frozen=True)
class Test:
    """A test function: its sentence, its file, the texts and names in it, and when it runs."""

    words: str
    file: str
    texts: tuple[str, ...]
    """String constants, of its decorators too."""
    names: frozenset[str]
    at_night: bool

    def told(self) -> str:
        """Return it as an item of a list says it."""
        return f"{self.words} (`{self.file}`{', at night' if self.at_night else ''})"


def describe(name: str, config: Config) -> Iterator[str]:
    """Yield a sentence for each thing that was verified of a recipe `recipes/...`."""
    when = "in every run of the tests" if name in quick_recipes() else "in the nightly tests"
    yield "every part and stage of it is built as the config says (`tests/test_recipes.py`)"
    yield f"two steps with a small model on rows in its layout, {when} (`tests/test_recipes.py`)"
    yield from (test.told() for test in all_tests() if name in test.texts)
    for kind, part in parts_of(config):
        yield from _of_part(kind, part)


def parts_of(config: Config) -> Sequence[tuple[str, str]]:
    """Return kind and name of the algorithms, the sampler and the strategies of all stages, each once."""
    found = [("algorithm", stage.algorithm.name) for stage in config.by_stage]
    if config.data.sampler.name != "mixture":
        found.append(("sampler", config.data.sampler.name))
    found += [("strategy", strategy.name) for strategy in config.strategies]
    return list(dict.fromkeys(found))


def quick_recipes() -> Sequence[str]:
    """Return the recipes that every run of the tests trains; the others train at night."""
    return [*read_table(RECIPES, "QUICK")]


@functools.cache
def all_tests() -> Sequence[Test]:
    """Return every test function of the repository, by file."""
    return [
        _read(node, file)
        for file in sorted(TESTS.rglob("test_*.py"))
        for node in parse(file).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


@functools.cache
def _of_part(kind: str, part: str) -> tuple[str, ...]:
    """Return what was verified of a part: laws of its kind, and the tests that name it."""
    if kind == "algorithm":
        found = list(dict.fromkeys(_algorithm_tests().get(part, ())))
        many = "algorithms.md#every-recipe-and-what-was-verified"
        if len(found) > 12:
            told = [
                f"{len(found)} tests of `{part}`, see [the table of algorithms](../train/{many})"
            ]
        else:
            told = [f"`{part}`: {words}" for words in found]
        if part != "grpo":
            told += [f"`{part}`: {t.told()}" for t in all_tests() if _trains_by(t, part)]
        laws = f"`{part}`: the laws of every algorithm (`tests/contracts/test_algorithms.py`)"
        return (*told, laws)
    folder = {"sampler": "samplers", "strategy": "strategies"}[kind]
    laws = f"`{part}`: the laws of all {folder} (`tests/contracts/test_{folder}.py`)"
    named = (test for test in all_tests() if _names(test, kind, part))
    return (*(f"`{part}`: {test.told()}" for test in named), laws)


def _names(test: Test, kind: str, part: str) -> bool:
    """Whether a test names a part: its class, its name in a config, or its name in a test of its kind."""
    in_config = re.compile(rf"(name: |strategies=\[?|sampler[:=] ?){part}($|[,}}\]])")
    of_kind = kind[:6] in test.file or part in test.file
    return (
        plugins.class_name(part) in test.names
        or (of_kind and part in test.texts)
        or any(map(in_config.search, test.texts))
    )


def _trains_by(test: Test, algorithm: str) -> bool:
    """Whether a test outside of those of all algorithms is of a run or a loss by this one."""
    if test.file.startswith(("tests/algorithms/", "tests/contracts/", "tests/docs/")):
        return False
    in_config = re.compile(rf"algorithm[:=] ?({{name: )?{algorithm}($|[,}}\]])")
    named = "_" in algorithm and algorithm in test.texts
    return named or any(map(in_config.search, test.texts))


@functools.cache
def _algorithm_tests() -> dict[str, list[str]]:
    return algorithm_tables.read_tests()


def _read(node: ast.FunctionDef, file: Path) -> Test:
    inside = [*ast.walk(node)]
    constants = [n.value for n in inside if isinstance(n, ast.Constant)]
    return Test(
        words=node.name.removeprefix("test_").replace("_", " "),
        file=str(file.relative_to(algorithm_tables.ROOT)),
        texts=tuple(text for text in constants if isinstance(text, str)),
        names=frozenset(n.id for n in inside if isinstance(n, ast.Name)),
        at_night=any("nightly" in ast.unparse(mark) for mark in node.decorator_list),
    )
