"""The tools of a config's sources: the engine that runs them, and what prompts offer."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vlmrl import plugins
from vlmrl.algorithms.base import passes_of
from vlmrl.config import Config, PluginRef, TurnsConfig
from vlmrl.engines.base import Engine
from vlmrl.errors import UserError
from vlmrl.interaction.driver import Driver, TurnLimits
from vlmrl.interaction.tools import Toolbox
from vlmrl.schema import Space
from vlmrl.system import distributed
from vlmrl.tools.base import Tool

__all__ = ["drive", "open_tools", "schemas_of", "tools_by_source", "with_tools"]


def with_tools(config: Config, engine: Engine) -> Engine:
    """Return the engine, with a driver around it where a source names tools.

    Raises:
        UserError: another part of the config does not work with several turns.
    """
    named = _tools_by_source(config)
    if not named:
        return engine
    _refuse_others(config)
    return drive(engine, named, config.rollout.turns)


def drive(engine: Engine, named: Mapping[str, Sequence[PluginRef]], turns: TurnsConfig) -> Driver:
    """Return a driver around the engine, with the tools named by source."""
    limits = TurnLimits(**turns.model_dump(exclude={"workers"}))
    opened = {label: functools.partial(_open, refs, turns) for label, refs in named.items()}
    return Driver(engine, opened, limits)


def tools_by_source(config: Config, space: Space) -> dict[str, tuple[Mapping[str, Any], ...]]:
    """Return by source the functions that its prompts offer, where `instruct` is on."""
    told = {source.label for source in config.named_sources if source.instruct}
    named = _tools_by_source(config)
    return {label: schemas_of(refs, space) for label, refs in named.items() if label in told}


def schemas_of(refs: Sequence[PluginRef], space: Space) -> tuple[Mapping[str, Any], ...]:
    """Return the functions of these tools in OpenAI's form, for a policy that writes in this space."""
    return tuple(schema for tool in _build(refs) for schema in tool.schemas(space))


def open_tools(config: Config, space: Space) -> Iterator[tuple[str, Toolbox]]:
    """Yield each source that names tools, with its tools, which the caller closes."""
    for label, refs in _tools_by_source(config).items():
        yield label, _open(refs, config.rollout.turns, space)


def _tools_by_source(config: Config) -> dict[str, list[PluginRef]]:
    return {source.label: source.tools for source in config.named_sources if source.tools}


def _open(refs: Sequence[PluginRef], turns: TurnsConfig, space: Space) -> Toolbox:
    return Toolbox(_build(refs), space, turns.workers)


def _build(refs: Sequence[PluginRef]) -> list[Tool]:
    return [plugins.build("tool", ref.name, ref.options) for ref in refs]


def _refuse_others(config: Config) -> None:
    wrong = {
        "rollout.max_staleness": config.rollout.max_staleness > 0,
        "more than one process": distributed.world() > 1,
        "strategies": bool(config.strategies),
        "evaluation.force_thinking": bool(config.evaluation and config.evaluation.force_thinking),
        "stages": bool(config.stages),
    }
    for what, used in wrong.items():
        if used:
            raise UserError(f"data.train: a source has tools, which excludes {what}")
    algorithm = plugins.build(
        "algorithm", config.at(0).algorithm.name, config.at(0).algorithm.options
    )
    if "masked_media" in passes_of(algorithm):
        raise UserError(
            f"data.train: a source has tools, which excludes algorithm {config.algorithm.name!r}: "
            "it masks the media of the prompt, not those of observations"
        )
