"""Heads of the recipes: whose system it is, its data, what was published, what differs, what runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.config import Config, RewardConfig

SECTIONS = ("Data", "As published", "Differs", "Runs")
"""What follows the first sentence, in this order; a base for others was not published."""
_FIRST = re.compile(
    r"(?P<system>[^:]+): (?P<what>.+?)(?: \((?P<title>.*, )?arXiv (?P<paper>\d{4}\.\d{5})(?:, .*)?\))?\."
)
_START = re.compile(rf"(?:^|(?<=[.)`]) )(?=(?:{'|'.join(SECTIONS)})\b[^:.]{{0,40}}: )")


@dataclass(frozen=True)
class Head:
    """What the comment at the top of a recipe says, by section."""

    system: str
    what: str
    title: str
    """Of the paper; empty: not stated."""
    paper: str
    """Number on arXiv; empty: there is none."""
    sections: dict[str, str]


def read_head(file: Path) -> Head:
    """Return what a config says of itself.

    Raises:
        ValueError: the first sentence is not `SYSTEM: what is trained (title, arXiv NUMBER).`
    """
    lines = file.read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    first, *rest = _START.split(" ".join(line.lstrip("# ") for line in lines[:end]))
    found = _FIRST.fullmatch(first.strip())
    if not found:
        raise ValueError(f"{file}: expected `SYSTEM: what (title, arXiv NUMBER).`, got {first!r}")
    sections = {}
    for section in rest:
        title, _, text = section.partition(": ")
        name = next(name for name in SECTIONS if title.startswith(name))
        sections[name] = f"{title.removeprefix(name)} {text}".strip().removeprefix("and base ")
    title = (found["title"] or "").removesuffix(", ")
    return Head(found["system"], found["what"], title, found["paper"] or "", sections)


def describe_run(config: Config) -> str:
    """Return the numbers and the rewards with which a config trains, as its head has to state them."""
    rollout, optimizer = config.rollout, config.optimizer
    algorithm = plugins.build("algorithm", config.algorithm.name, _first(config.algorithm.options))
    updates = f", {optimizer.minibatches} updates a batch" if optimizer.minibatches != 1 else ""
    if config.trains_scores and (sft := config.sft) is not None:
        pairs = f"{sft.max_steps} steps of {sft.batch_size} pairs of answers"
        return f"{pairs}, rate {_say(sft.lr)}; a reward model."
    lines = [
        f"{config.run.steps} steps of {_say(rollout.prompts)} prompts by {_say(rollout.group_size)}, "
        f"{_say(rollout.max_tokens)} tokens, temperature {_say(rollout.temperature)}; "
        f"{config.algorithm.name}, rate {_say(optimizer.lr)}, "
        f"kl {_say(config.algorithm.options.get('kl', getattr(algorithm, 'kl', 0)))}{updates}"
    ]
    by_source: dict[str, list[str]] = {}
    for source in config.data.train:
        told = " + ".join(map(_reward, config.rewards_of(source)))
        by_source.setdefault(told, []).append(source.label)
    if len(by_source) == 1:
        lines.append(f"rewards {next(iter(by_source))}")
    else:
        lines += [f"{', '.join(names)}: {told}" for told, names in by_source.items()]
    if config.stages:
        lines.append(f"stages {', '.join(s.name or str(n) for n, s in enumerate(config.stages))}")
    return "; ".join(lines) + "."


def _reward(reward: RewardConfig) -> str:
    weight = "" if reward.weight == 1 else f"{_say(reward.weight)} "
    return f"{weight}{reward.label}"


def _first(options: dict[str, Any]) -> dict[str, Any]:
    """Return options without those that follow a schedule: the recipe is built with its own then."""
    return {k: v for k, v in options.items() if not (isinstance(v, dict) and "schedule" in v)}


def _say(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{value:g}"
    stated = value["schedule"]
    if isinstance(stated, list):
        return " then ".join(f"{step:g}" for _, step in stated)
    begin, end = next(iter(v for v in stated.values() if isinstance(v, list)))
    return f"{begin:g} to {end:g}"
