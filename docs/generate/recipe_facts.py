"""What a recipe's config says, for its page and for the matrix: media, tasks, group, parts, settings.

All of it is read off the config, the cards and the verifiers; nothing is stated twice.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from recipe_heads import Head, read_head

from vlmrl import plugins
from vlmrl.config import Config, SourceConfig, load, tree

FOLDER = "recipes/"
BASE = "recipes/geometry3k"
"""The recipe that recipes of text algorithms extend."""
MEDIA = ("image", "video", "audio")
TASKS: Mapping[str, str] = {
    "boxes": "where: boxes",
    "rotated_boxes": "where: boxes",
    "points": "where: points, masks, keypoints",
    "masks": "where: points, masks, keypoints",
    "keypoints": "where: points, masks, keypoints",
    "track": "where: tracks",
    "spans": "when: spans of time",
    "choice": "which: options",
    "number": "how many, how much",
    "labels": "labels",
    "fields": "actions and objects",
    "text": "free answers, reading, mathematics",
    "none": "refusals",
}
"""Kind of truth -> the task that has it."""
WORLDS = "environments"
OPEN = "judged by a model"
"""Tasks without a kind of truth."""
GROUPS = (
    "Places in images",
    "Answers about images",
    "Videos and audio",
    "Tools and environments",
    "With a second model",
    "Algorithms, samplers, choice of rows",
)
"""Sections of the gallery, in this order."""


@dataclass(frozen=True)
class Recipe:
    """A shipped recipe: its name in a config, its file, its head and its config."""

    name: str
    file: Path
    head: Head
    config: Config

    @property
    def short(self) -> str:
        """The name without the folder."""
        return self.name.removeprefix(FOLDER)

    @property
    def title(self) -> str:
        """What the page is called: the system and what is trained."""
        return f"{self.head.system}: {self.head.what}"

    @property
    def written(self) -> Mapping[str, Any]:
        """What stands in the file, without what it extends."""
        read = yaml.safe_load(self.file.read_text(encoding="utf-8"))
        assert isinstance(read, dict)
        return read

    @property
    def extends(self) -> str:
        """The recipe that it extends; empty: none."""
        return str(self.written.get("extends", ""))

    @functools.cached_property
    def tasks(self) -> tuple[str, ...]:
        """Its tasks, by the truths that its verifiers need."""
        return tuple(dict.fromkeys(task for _, task in asked_in(self.config)))

    @functools.cached_property
    def group(self) -> str:
        """The section of the gallery that it belongs to."""
        places, answers, moving, acting, judged, algorithms = GROUPS
        sources = sources_of(self.config)
        if any(source.tools or source.environment for source in sources):
            return acting
        if self.config.models:
            return judged
        if self._is_of_an_algorithm():
            return algorithms
        if {medium for source in sources for medium in media_of(source)} - {"image"}:
            return moving
        return places if any(task.startswith("where") for task in self.tasks) else answers

    def _is_of_an_algorithm(self) -> bool:
        """Whether it is about how to train: its data are the base's, or are chosen by what is learned."""
        config, base = self.config, recipes()[BASE].config
        if self.short in plugins.names("algorithm"):
            return True
        same = sources_of(config)[0].options.get("path") == sources_of(base)[0].options["path"]
        chosen = config.strategies or config.data.sampler.name != "mixture" or config.teacher
        return self._root == BASE and bool(
            same
            or chosen
            or config.algorithm.name != "grpo"
            or any(s.where for s in sources_of(config))
        )

    @functools.cached_property
    def _root(self) -> str:
        return recipes()[self.extends]._root if self.extends in recipes() else self.name


@functools.cache
def recipes() -> Mapping[str, Recipe]:
    """Return every shipped recipe by its name."""
    shipped = {name: file for name, file in tree.shipped().items() if name.startswith(FOLDER)}
    return {n: Recipe(n, file, read_head(file), load(n)) for n, file in sorted(shipped.items())}


def sources_of(config: Config) -> Sequence[SourceConfig]:
    """Return the training sources of all stages, each once."""
    found = {s.label: s for stage in config.by_stage for s in stage.data.train}
    return [*{**{s.label: s for s in config.data.train}, **found}.values()]


def asked_in(config: Config) -> Sequence[tuple[str, str]]:
    """Return each medium with each task that a source of a config has for it."""
    pairs = [
        (medium, task)
        for source in sources_of(config)
        for medium in media_of(source)
        for task in _tasks(source, config)
    ]
    return list(dict.fromkeys(pairs))


@functools.cache
def task_of(verifier: str) -> str:
    """Return the task of which a verifier is; empty: it needs no truth (a format, a length)."""
    if verifier == "refusal":  # it also judges samples that have another truth
        return TASKS["none"]
    needs = getattr(plugins.load("verifier", verifier), "needs", ())
    first = needs[0] if needs else ""
    return TASKS.get(first if isinstance(first, str) else first[0], "") if first else ""


def media_in(columns: Container[str]) -> tuple[str, ...]:
    """Return the media that columns are named after."""
    return tuple(kind for kind in MEDIA if kind in columns)


def media_of(source: SourceConfig) -> tuple[str, ...]:
    """Return the media of a source: those of its columns, its layout or its card, or images."""
    columns = source.options.get("columns")
    if isinstance(columns, Mapping):
        return media_in(columns)
    if layout := source.options.get("layout"):
        return media_in(plugins.load("layout", layout).fields) or ("image",)
    declared: tuple[str, ...] = plugins.load("card", source.card).media
    return declared or ("image",)


def settings(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield option, value and GRPO's default of each option of the algorithm that is not GRPO's."""
    plain = {k: o.default for k, o in plugins.options_of(plugins.load("algorithm", "grpo")).items()}
    chosen = config.algorithm
    options = plugins.options_of(plugins.load("algorithm", chosen.name))
    for key, option in options.items():
        value = chosen.options.get(key, option.default)
        if key not in plain:
            yield key, say(value), "no such option"
        elif value != plain[key]:
            yield key, say(value), f"`{say(plain[key])}`"


def say(value: Any) -> str:
    """Return a value as YAML writes it on one line."""
    written = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    return written.removesuffix("...").strip()


def _tasks(source: SourceConfig, config: Config) -> list[str]:
    if source.environment:
        return [WORLDS]
    found = []
    for reward in config.rewards_of(source):
        waits = getattr(plugins.load("verifier", reward.verifier), "waits", False)
        if task := OPEN if waits else task_of(reward.verifier):
            found.append(task)
    return found
