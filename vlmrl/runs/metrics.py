"""What every number of a run means, and how it is shown: `metrics.yaml` in this folder, one row for a name.

A part describes the numbers that only it writes in its own file (`Recipe.metrics`, `Sampler.curves`,
`Strategy.curves`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import yaml

from vlmrl import plugins

Unit = Literal["", "share", "s"]

PHASES = ("data", "generate", "reward", "logprob", "update", "sync")
"""The phases of a step, in their order."""


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table; `metrics.yaml` says what its fields are."""

    line: str = ""
    panel: str = "{key}"
    curve: str = ""
    unit: Unit = ""
    section: str = ""
    words: str = ""
    brief: str = ""


class Placement(NamedTuple):
    """Where the report draws a metric."""

    section: str
    panel: str
    curve: str
    unit: Unit


# The loader in C, where PyYAML has it, saves a tenth of a second.
_TABLE = msgspec.convert(
    yaml.load(
        Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8"),
        getattr(yaml, "CSafeLoader", yaml.SafeLoader),
    ),
    dict[Literal["groups", "step", "sft", "evaluation"], dict[str, Metric]],
)
GROUPS = _TABLE["groups"]
STEP = {name: metric.line for name, metric in _TABLE["step"].items()}
"""Names in metrics.jsonl."""
SFT = {name: metric.line for name, metric in _TABLE["sft"].items()}
"""Names in sft.jsonl."""
EVALUATION = {name: metric.line for name, metric in _TABLE["evaluation"].items()}
"""Names in `metrics` and `intervals` of evals/step-N.json, besides `mode/...` as above."""
_BRIEFS = {name: metric.brief for name, metric in _TABLE["step"].items() if metric.brief}


def of_algorithms() -> dict[str, str]:
    """Return the lines on the metrics that only single recipes have, from the recipes' own files."""
    recipes = plugins.stated("algorithm", "metrics").values()
    return {name: line for metrics in recipes for name, line in metrics.items()}


def of_samplers_and_strategies() -> dict[str, str]:
    """Return the lines on the curves that only single samplers and strategies have."""
    return {
        name: line
        for kind in ("sampler", "strategy")
        for curves in plugins.stated(kind, "curves").values()
        for name, line in curves.items()
    }


def describe(name: str) -> str | None:
    """Return the line on a name of metrics.jsonl or sft.jsonl; None if there is none."""
    entry = _nearest(SFT | _of_step(), name)
    return entry and entry[1]


def find(name: str) -> tuple[str, str] | None:
    """Return the glossary's name of a metric, and the line on it; None if there is none.

    It is one of metrics.jsonl, of sft.jsonl (`sft/...`) or of an evaluation (`evaluation/...`), and so
    is what is returned. Example: `source/shapes/reward` is `source/<source>/reward`.
    """
    kind, _, rest = name.partition("/")
    if kind not in ("sft", "evaluation"):
        return _nearest(_of_step(), name)
    if kind == "sft":
        entry = _nearest(SFT, rest)
    else:  # the name of an evaluation's metric begins with the completions that it is of
        begins = (key.removesuffix("<metric>") for key in EVALUATION if key.endswith("/<metric>"))
        of = next((begin for begin in begins if "<" not in begin and rest.startswith(begin)), "")
        modes = {key: line for key, line in STEP.items() if key.startswith("mode/")}
        entry = _nearest({**modes, **EVALUATION}, rest.removeprefix(of))
        kind = f"evaluation/{of}".rstrip("/")
    return entry and (f"{kind}/{entry[0]}", entry[1])


def placement(name: str) -> Placement:
    """Return where the report draws a name of metrics.jsonl: `More` if nothing is known of it."""
    group, _, rest = name.partition("/")
    base = GROUPS.get(name) or GROUPS.get(group) or Metric(section="More")
    pattern, values = _pattern_of(name)
    metric = _TABLE["step"].get(pattern, base)
    if metric.panel == "{key}":  # the row says nothing of its own
        metric = base
    curve = metric.curve or ("{key}" if metric is base else name.rpartition("/")[2])
    known = {"key": name, "rest": rest}
    return Placement(
        metric.section or base.section,
        metric.panel.format(*values, **known),
        curve.format(*values, **known),
        metric.unit,
    )


def rank_value(evaluation: Mapping[str, Any], metric: str) -> float:
    """Return the value by which evaluations are ranked: what has no score for a fault or a mask counts 0."""
    value: float = evaluation.get("with_zeros", {}).get(metric, evaluation["metrics"][metric])
    return value


def words_of(name: str) -> str:
    """Return the title of a panel that shows this metric alone; empty if the table has none."""
    metric = _TABLE["step"].get(name) or _TABLE["sft"].get(name)
    return metric.words if metric else ""


def facts(metrics: Mapping[str, float]) -> list[str]:
    """Return the few numbers, besides the reward, that show at a glance whether a run is healthy."""
    return [text.format(metrics[key]) for key, text in _BRIEFS.items() if key in metrics]


def step_seconds(line: Mapping[str, Any]) -> float:
    """Return the wall seconds of the phases of a step, from its metrics; null counts as 0."""
    return sum(line.get(f"time/{phase}") or 0.0 for phase in PHASES)


@functools.cache
def _of_step() -> dict[str, str]:
    return STEP | of_algorithms() | of_samplers_and_strategies()


@functools.lru_cache(4096)
def _pattern_of(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the table's name of a metric of a step, and what stands for each `<...>` in it."""
    if name in STEP:
        return name, ()
    matches = ((key, _compiled(key).fullmatch(name)) for key in STEP if "<" in key)
    return next(((key, match.groups()) for key, match in matches if match), (name, ()))


def _nearest(lines: Mapping[str, str], name: str) -> tuple[str, str] | None:
    """Return the entry of this very name, else the first whose pattern fits."""
    if name in lines:
        return name, lines[name]
    return next(((k, line) for k, line in lines.items() if _compiled(k).fullmatch(name)), None)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return the expression of a name: a source may have slashes, no other part of it has."""
    pieces = [re.escape(piece) for piece in re.split(r"(<\w+>)", pattern)]
    pieces[1::2] = ("(.+)" if piece == "<source>" else "([^/]+)" for piece in pieces[1::2])
    return re.compile("".join(pieces), re.DOTALL)
