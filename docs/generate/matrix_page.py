"""The matrix: medium x task x algorithm x benchmark, as it follows from configs, cards and benchmarks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from recipe_facts import FOLDER, MEDIA, OPEN, TASKS, WORLDS, asked_in, media_in, recipes, task_of
from tables import code, header, link_part, row

from vlmrl import plugins
from vlmrl.config import Config, load, tree

MANY = 12
"""More configs than this are counted instead of listed."""


@dataclass(frozen=True)
class Shipped:
    """A shipped config: its name, what it asks of which medium, and its algorithms."""

    name: str
    asked: tuple[tuple[str, str], ...]
    algorithms: tuple[str, ...]

    @property
    def link(self) -> str:
        """Its link from a page in `recipes/`; configs that are no recipes have no page."""
        short = self.name.removeprefix(FOLDER)
        return f"[`{short}`]({short}.md)" if short != self.name else code(short)


def tables() -> str:
    """Return the table of media and tasks, then that of algorithms."""
    return "\n".join([*by_task(), "", "## Algorithms", "", *by_algorithm()])


def by_task() -> Iterator[str]:
    """Yield a table: for each medium and task the configs, their algorithms, cards and benchmarks."""
    yield from header("medium", "task", "configs", "algorithms in them", "cards", "benchmarks")
    for medium in MEDIA:
        for task in dict.fromkeys([*TASKS.values(), WORLDS, OPEN]):
            configs = [c for c in shipped() if (medium, task) in c.asked]
            cards, measures = cards_of(medium, task), benchmarks_of(medium, task)
            if configs or cards or measures:
                algorithms = {name for config in configs for name in config.algorithms}
                yield row(
                    medium,
                    task,
                    _few(configs),
                    ", ".join(link_part("algorithms", name) for name in sorted(algorithms)),
                    ", ".join(link_part("cards", name) for name in cards),
                    ", ".join(link_part("benchmarks", name) for name in measures),
                )


def by_algorithm() -> Iterator[str]:
    """Yield a table: for each algorithm the configs that train by it, by medium."""
    yield from header("algorithm", *MEDIA)
    for name in plugins.names("algorithm"):
        by_medium = (
            [c for c in shipped() if name in c.algorithms and medium in dict(c.asked)]
            for medium in MEDIA
        )
        yield row(link_part("algorithms", name), *map(_few, by_medium))


@functools.cache
def shipped() -> Sequence[Shipped]:
    """Return every shipped config that says more than a machine, recipes last."""
    read = {name: one.config for name, one in recipes().items()}
    found = [
        _read(name, read.get(name) or load(name))
        for name in tree.shipped()
        if not name.startswith(("machines/", "starts/"))
    ]
    return sorted(found, key=lambda one: (one.name.startswith(FOLDER), one.name))


def cards_of(medium: str, task: str) -> Sequence[str]:
    """Return the cards of published or drawn data that hold a medium and are judged as a task."""
    found = []
    for name in plugins.names("card"):
        card = plugins.load("card", name)
        if medium in card.media and task in map(task_of, card.verifiers):
            found.append(name)
    return found


@functools.cache
def benchmarks_of(medium: str, task: str) -> Sequence[str]:
    """Return the benchmarks that show a medium and whose strict verifier is of a task."""
    return [name for name, (media, of) in _benchmarks().items() if medium in media and task == of]


@functools.cache
def _benchmarks() -> Mapping[str, tuple[tuple[str, ...], str]]:
    found = {}
    for name in plugins.names("benchmark"):
        one = plugins.load("benchmark", name)
        found[name] = (media_in(one.columns), task_of(one.strict.verifier))
    return found


def _read(name: str, config: Config) -> Shipped:
    algorithms = dict.fromkeys(stage.algorithm.name for stage in config.by_stage)
    return Shipped(name, tuple(asked_in(config)), tuple(algorithms))


def _few(configs: Sequence[Shipped]) -> str:
    links: Iterable[str] = (config.link for config in configs)
    return ", ".join(links) if len(configs) <= MANY else f"[{len(configs)} configs](index.md)"
