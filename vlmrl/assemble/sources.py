"""The sources of a config, and what it says about each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmrl.config import Config
from vlmrl.data.source import Source, open_configured, open_held_out
from vlmrl.models.base import Family
from vlmrl.schema import AnswerForm
from vlmrl.scoring.answer_forms import form_of

__all__ = [
    "all_sources",
    "forms_by_source",
    "instruct_by_source",
    "rewards_by_source",
    "with_audio",
]


def all_sources(config: Config) -> list[Source]:
    """Open every source of a run: to train, to evaluate, and for the cold start."""
    train = [open_configured(config, source) for source in config.data.train]
    cold = [open_configured(config, source) for source in config.sft.sources] if config.sft else []
    return [*train, *open_held_out(config), *cold]


def with_audio(sources: Sequence[Source], family: Family) -> list[Source]:
    """Return the sources, their videos with audio if the family hears it and `data.video.audio` allows it."""
    readings = [source.reading for source in sources]
    heard = [family.hears_videos and reading.video.audio is not False for reading in readings]
    made = zip(sources, readings, heard, strict=True)
    return [replace(source, reading=replace(reading, with_audio=h)) for source, reading, h in made]


def rewards_by_source(config: Config) -> dict[str, Any]:
    """Return the rewards by source name, over training, validation and held-out sources."""
    sources = list(config.data.train)
    sources += config.evaluation.sources if config.evaluation else []
    sources += config.sft.validation if config.sft else []
    return {s.label: config.rewards_of(s) for s in reversed(sources)}


def instruct_by_source(config: Config) -> dict[str, bool]:
    """Return by source name whether the template's instruction is appended to its questions."""
    return {s.label: s.instruct for s in reversed(config.named_sources)}


def forms_by_source(config: Config) -> dict[str, AnswerForm]:
    """Return by source name how its verifiers read an answer."""
    sources = reversed(config.named_sources)
    return {source.label: form_of(config.rewards_of(source)) for source in sources}
