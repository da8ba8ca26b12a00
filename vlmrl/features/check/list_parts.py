"""What `vlmrl list` says of the parts that a config can name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlmrl import plugins
from vlmrl.assemble.part_source import read_part
from vlmrl.errors import UserError

if TYPE_CHECKING:
    from vlmrl.benchmarking.base import Benchmark


def describe(kind: str, chosen: str | None = None) -> list[str]:
    """Return lines on the parts of a kind, or a chosen one: what it does, options with defaults.

    The name of one that is not shipped is followed by that of its package. Imports
    none of them.

    Raises:
        UserError: there is no such part.
    """
    lines = []
    for name in _chosen(kind, plugins.names(kind), chosen):
        part = read_part(kind, name)
        lines.append(f"{name}{_package(kind, name)}: {_first_sentence(part.docstring)}")
        for key, option in part.options.items():
            default = "required" if option.default is None else f"= {option.default}"
            lines.append(f"    {key}: {option.type} {default}")
            if option.description:
                lines.append(f"        {' '.join(option.description.split())}")
    return lines


def describe_configs(chosen: str | None = None) -> list[str]:
    """Return a line for each shipped config, its name and the first comment of its file, or a chosen file.

    Raises:
        UserError: there is no such config.
    """
    from vlmrl.config import tree  # the sections' models, for this kind alone

    paths = tree.shipped()
    if chosen is not None:
        (name,) = _chosen("config", sorted(paths), chosen)
        return paths[name].read_text(encoding="utf-8").splitlines()
    lines = []
    for name, path in sorted(paths.items()):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        lines.append(f"{name}: {first.lstrip('# ')}")
    return lines


def describe_benchmarks(chosen: str | None = None) -> list[str]:
    """Return two lines on each benchmark, or all that a chosen one declares.

    Raises:
        UserError: there is no such benchmark.
    """
    from vlmrl.benchmarking.base import OURS  # numpy, for this kind alone

    lines = []
    for name in _chosen("benchmark", plugins.names("benchmark"), chosen):
        benchmark: type[Benchmark] = plugins.load("benchmark", name)
        protocols = ", ".join((*(each.protocol for each in benchmark.officials), OURS))
        splits = {benchmark.split: benchmark.count, **benchmark.splits}
        rows = ", ".join(f"{split} {count:,} rows" for split, count in splits.items())
        lines.append(f"{name}{_package('benchmark', name)}: {first_sentence(benchmark)}")
        if chosen is None:
            lines.append(f"    {benchmark.hub or benchmark.origin}; {rows}; {protocols}")
            continue
        lines += _page(name, benchmark, rows)
    return lines


def _page(name: str, benchmark: type[Benchmark], rows: str) -> list[str]:
    """Return what a benchmark declares: its data, and how each protocol asks and scores."""
    from vlmrl.benchmarking.base import repository_of

    by_hub = repository_of(benchmark.hub) is not None
    files = ", ".join(benchmark.files)
    strict = benchmark.strict
    options = ", ".join(f"{key}={value!r}" for key, value in strict.options.items())
    lines = [
        *(inspect.getdoc(benchmark) or "").splitlines()[1:],
        "",
        f"data: {benchmark.hub or benchmark.origin}",
        *([f"get it: vlmrl data fetch {name}"] if by_hub else []),
        *([f"files: {files}"] if files else []),
        f"licence: {benchmark.licence or 'not stated'}",
        f"splits: {rows}",
        f"checked: {benchmark.checked or 'nothing but the harness'}",
        f"strict: {strict.verifier}" + f"({options})" * bool(options),
    ]
    for official in benchmark.officials:
        judge = f", judge {official.judge}" if official.judge else ""
        limit = f"up to {official.max_tokens} tokens"
        lines += ["", f"{official.protocol}: rule {official.scorer}, {limit}{judge}"]
        lines += [f"    {line}" for line in official.ask.splitlines()]
    return lines


def _package(kind: str, name: str) -> str:
    part = plugins.added(kind).get(name)
    return f" ({part.origin})" if part else ""


def _chosen(kind: str, names: Sequence[str], chosen: str | None) -> Sequence[str]:
    if chosen is None:
        return names
    if chosen not in names:
        raise UserError(f"no {kind} is named {chosen!r}{plugins.nearest(chosen, names)}")
    return [chosen]


def first_sentence(plugin: type) -> str:
    """Return the first sentence of a class's docstring, on one line."""
    return _first_sentence(inspect.getdoc(plugin) or "")


def _first_sentence(docstring: str) -> str:
    text = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text)[0]
