"""What the page of a benchmark says beside its declaration: data to bring, how its rules were compared.

All of it is read off the benchmark, `tests/reference` and `tests/data/benchmarks`.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from python_files import assigned, parse, read_table
from tables import code, escape, header, row

from vlmrl.benchmarking.base import Benchmark, Official, repository_of

ROOT = Path(__file__).parents[2]
SCORES = ROOT / "vlmrl/benchmarking/scores.py"
SCORERS = tuple(sorted((ROOT / "vlmrl/benchmarking/scorers").glob("*.py")))
REFERENCE = ROOT / "tests/reference"
FIXTURES = ROOT / "tests/data/benchmarks"
RULES = ROOT / "vlmrl/benchmark_rules"


def describe(name: str, benchmark: type[Benchmark]) -> Iterator[str]:
    """Yield the lines of a benchmark's page below its protocols."""
    yield from _data(name, benchmark)
    yield from _compared(name, benchmark)
    if benchmark.known:
        yield from ("## Published values", "")
        yield from header("model", "value", "protocol", "source")
        for one in benchmark.known:
            yield row(escape(one.model), f"{one.value:g}", code(one.protocol), escape(one.source))
        yield ""


def _data(name: str, benchmark: type[Benchmark]) -> Iterator[str]:
    """Yield what a user brings, and where it lies."""
    files = ", ".join(map(code, benchmark.files)) or code(f"data/{benchmark.split}-*.parquet")
    on_hub = benchmark.hub and ":" not in benchmark.hub
    data = f"{code(benchmark.hub)} of the hub" if on_hub else benchmark.hub or benchmark.origin
    yield from ("## Data", "")
    if repository_of(benchmark.hub) is not None:
        yield f"{code(f'vlmrl data fetch {name}')} gets it."
    yield f"You bring {data} as folder {code(f'DATA_ROOT/{name}')}, files {files}."
    if benchmark.columns:
        told = (f"{code(column)} ({key})" for key, column in benchmark.columns.items())
        yield f"Read as: {', '.join(told)}."
    if benchmark.splits:
        others = (f"{code(f'{name}:{s}')} ({count} rows)" for s, count in benchmark.splits.items())
        yield f"Other splits: {', '.join(others)}."
    if benchmark.cluster:
        yield f"Rows with the same {code(benchmark.cluster)} are resampled together in intervals."
    if benchmark.groups:
        yield f"Reported also by {', '.join(map(code, benchmark.groups))}."
    yield ""


def _compared(name: str, benchmark: type[Benchmark]) -> Iterator[str]:
    """Yield how each official rule was compared with its harness."""
    yield from ("## How the official numbers were compared", "")
    if not benchmark.officials:
        yield from ("No harness asks it: there is a strict number only.", "")
        return
    yield from header(
        "protocol", "compared by `make reference`", "digits compared by `make replay`"
    )
    for one in benchmark.officials:
        rules = [code(rule) for rule in rules_of(one.scorer) if rule in compared_rules()]
        if one.aggregate in _stated_in_reference() - {"mean"}:
            rules.append(f"aggregate {code(one.aggregate)}")
        replayed = "on a few rows" if is_replayed(name, one) else "not"
        yield row(code(one.protocol), ", ".join(rules) or "none of its own", replayed)
    rows = hand_scored(name)
    if rows:
        file = code(f"tests/data/benchmarks/{name}.json")
        yield from (
            "",
            f"{rows} rows in its layout were scored by hand for each protocol ({file}).",
        )
    judges = dict.fromkeys(one.judge for one in benchmark.officials if one.judge)
    if judges:
        asked = ", ".join(map(code, judges))
        yield from (
            "",
            f"Its harness asks {asked} what its rule cannot read; without `--judge` the",
        )
        yield "official number is a lower bound."
    yield ""


def is_replayed(name: str, official: Official) -> bool:
    """Whether `make replay` scores answers to this benchmark by the harness itself."""
    if name not in fixtures() or not official.task:
        return False
    if official.protocol.startswith("vlmevalkit"):
        return True
    return official.protocol.startswith("lmms_eval") and official.task in _replayed_tasks()


def rules_of(scorer: str) -> tuple[str, ...]:
    """Return the functions of `benchmark_rules` that an official scorer calls, by name."""
    return _rules_by_scorer().get(scorer, ())


@functools.cache
def compared_rules() -> frozenset[str]:
    """Return the rules that the scripts of `make reference` name."""
    return frozenset(name for tree in _reference() for name in _names(tree)) & _rule_names()


@functools.cache
def _stated_in_reference() -> frozenset[str]:
    """Return the texts of one word in the scripts of `make reference`."""
    nodes = (node for tree in _reference() for node in ast.walk(tree))
    return frozenset(
        n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )


def _reference() -> Sequence[ast.Module]:
    """Return the scripts of `make reference`."""
    return [parse(f) for f in REFERENCE.glob("*.py") if not f.name.startswith("replay")]


@functools.cache
def fixtures() -> frozenset[str]:
    """Return the benchmarks with rows in their layout in the tests."""
    rows = assigned(ROOT / "tests/helpers/published.py")["ROWS"]
    assert isinstance(rows, ast.Dict)
    keys = {key.value for key in rows.keys if isinstance(key, ast.Constant)}
    return frozenset({*keys, *(file.stem for file in FIXTURES.glob("*.json"))})


def hand_scored(name: str) -> int:
    """Return how many rows of a benchmark were scored by hand; 0: none."""
    file = FIXTURES / f"{name}.json"
    if not file.exists():
        return 0
    found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return max((len(scored) for scored in found.get("hand", {}).values()), default=0)


@functools.cache
def _replayed_tasks() -> frozenset[str]:
    return frozenset(read_table(REFERENCE / "replay_lmms_eval.py", "METRICS"))


@functools.cache
def _rules_by_scorer() -> Mapping[str, tuple[str, ...]]:
    """Return scorer -> the rules that it calls, in its own lines and in functions of its file or `SCORES`."""
    found: dict[str, tuple[str, ...]] = {}
    for file in SCORERS:
        nodes = (node for source in (SCORES, file) for node in parse(source).body)
        helpers = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        for name, scorers in assigned(file).items():
            if "SCORERS" in name and isinstance(scorers, ast.Dict):
                for key, value in zip(scorers.keys, scorers.values, strict=True):
                    if isinstance(key, ast.Constant):
                        found[key.value] = tuple(sorted(_reached(value, helpers) & _rule_names()))
    return found


def _reached(node: ast.AST, helpers: Mapping[str, ast.FunctionDef]) -> frozenset[str]:
    """Return the names in a piece of code, and in the functions of its file that it names."""
    found: set[str] = set()
    waiting, seen = [node], {""}
    while waiting:
        names = set(_names(waiting.pop()))
        found |= names
        fresh = names & helpers.keys() - seen
        seen |= fresh
        waiting += [helpers[name] for name in fresh]
    return frozenset(found)


@functools.cache
def _rule_names() -> frozenset[str]:
    nodes = (n for f in (*RULES.rglob("*.py"), SCORES, *SCORERS) for n in parse(f).body)
    return frozenset(
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    )


def _names(node: ast.AST) -> Iterator[str]:
    for inside in ast.walk(node):
        if isinstance(inside, ast.Name):
            yield inside.id
        elif isinstance(inside, ast.Attribute):
            yield inside.attr
