"""Tools and environments of a config's sources: the engine that runs them, and what prompts offer."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from vlmrl import plugins
from vlmrl.config import ChunksConfig, Config, SourceConfig, TurnsConfig
from vlmrl.data.source import access_to
from vlmrl.engines.base import Engine
from vlmrl.media.access import Access
from vlmrl.schema import Space

if TYPE_CHECKING:
    from vlmrl.interaction.driver import Driver
    from vlmrl.interaction.environment import Environment
    from vlmrl.interaction.tool import Tool
    from vlmrl.interaction.tools import Runner


def with_tools(config: Config, engine: Engine) -> Engine:
    """Return the engine, with a driver around it where a source names tools or an environment.

    So it is where completions are written in chunks.
    """
    acting = [source for source in config.named_sources if source.acts]
    if not acting and config.rollout.chunks is None:
        return engine
    access = {source.label: access_to(source, config.data) for source in acting}
    return drive(engine, acting, config.rollout.turns, access, config.rollout.chunks)


def drive(
    engine: Engine,
    sources: Sequence[SourceConfig],
    turns: TurnsConfig,
    access: Mapping[str, Access],
    chunks: ChunksConfig | None = None,
) -> Driver:
    """Return a driver around the engine, with the tools and environments of the sources that act.

    `access` is by label what files their tools may open.
    """
    # A plain run loads half of the package: not what lets completions act.
    from vlmrl.interaction.chunks import Chunking
    from vlmrl.interaction.driver import Branching, Driver, TurnLimits

    limits = TurnLimits(**turns.limits())
    branching = Branching(**turns.branching.model_dump()) if turns.branching else None
    acting = {source.label: source for source in sources if source.acts}
    opened = {
        label: functools.partial(_open, s, turns, access[label]) for label, s in acting.items()
    }
    chunking = Chunking(**chunks.model_dump()) if chunks else None
    return Driver(engine, opened, limits, branching, chunking)


def tools_by_source(config: Config, space: Space) -> dict[str, tuple[Mapping[str, Any], ...]]:
    """Return by source the functions that its prompts offer, where `instruct` is on."""
    instructed = {source.label for source in config.named_sources if source.instruct}
    acting = [source for source in config.named_sources if source.acts]
    return {s.label: schemas_of(s, space) for s in acting if s.label in instructed}


def schemas_of(source: SourceConfig, space: Space) -> tuple[Mapping[str, Any], ...]:
    """Return a source's actions and tools in OpenAI's form, for a policy that writes in this space."""
    tools, environment = _build(source)
    own: list[dict[str, Any]] = []
    if environment is not None:
        own, tools = environment.schemas(space), [*environment.tools(), *tools]
    return (*own, *(schema for tool in tools for schema in tool.schemas(space)))


@contextmanager
def opened_tools(
    config: Config, sources: Sequence[SourceConfig], space: Space
) -> Iterator[dict[str, Runner]]:
    """Open the tools or worlds of a config's sources for a `with`, by label: of those that act."""
    acting = {source.label: source for source in sources if source.acts}
    turns, data = config.rollout.turns, config.data
    with ExitStack() as stack:
        yield {
            label: stack.enter_context(
                closing(_open(source, turns, access_to(source, data), space))
            )
            for label, source in acting.items()
        }


def _open(source: SourceConfig, turns: TurnsConfig, access: Access, space: Space) -> Runner:
    from vlmrl.interaction.tools import Toolbox
    from vlmrl.interaction.worlds import Worlds

    tools, environment = _build(source)
    if environment is None:
        return Toolbox(tools, space, turns.workers, access=access)
    return Worlds(environment, tools, space, turns.workers, access=access)


def _build(source: SourceConfig) -> tuple[list[Tool], Environment | None]:
    tools, named = source.tools, source.environment
    environment = plugins.build("environment", named.name, named.options) if named else None
    return [plugins.build("tool", ref.name, ref.options) for ref in tools], environment
