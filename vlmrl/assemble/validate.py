"""Check that what a config names exists and accepts its options, before torch is loaded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vlmrl import config, plugins
from vlmrl.assemble.part_source import missing_options
from vlmrl.config import Config, NamedModel, PluginRef, whole
from vlmrl.config.exclusions import refuse_parts
from vlmrl.data.card import read_split
from vlmrl.data.source import (
    known_rows,
    open_card,
    open_source,
    read_condition,
    read_template,
    require_published,
)
from vlmrl.errors import UserError
from vlmrl.scoring import reward_components
from vlmrl.scoring.reward_components import form_of

PATH_OPTIONS = ("path", "root")
"""Options of shipped cards that are files or folders, or map splits to them."""


def load_valid(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config by path or shipped name and check it whole.

    Raises:
        UserError: one line per problem of keys, else one line for the first of the other problems.
    """
    settings = config.load(name, overrides)
    require_valid(settings, name)
    return settings


def require_valid(settings: Config, name: str) -> None:
    """Check a config whole.

    Raises:
        UserError: one line, which begins with `name`.
    """
    try:
        validate(settings)
        check_paths(settings)
        _check_column(settings)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def validate(config: Config) -> None:
    """Build the verifiers, cards and trackers of a config; look for its templates and other parts.

    Engines and algorithms import torch, so they are built only where they have options.

    Raises:
        UserError: an unknown name or option, a missing option, or a wrong value; the message
            suggests the nearest.
    """
    _check_sources(config)
    if config.model.build:
        _check_part("model.build.family", "family", config.model.build.family)
        for tower, name in config.model.build.weights.items():
            if "/" not in name and not Path(name).is_dir():  # else a folder or a hub name
                _check_part(f"model.build.weights.{tower}", "weight", name)
    _check_part("engine", "engine", config.engine.name, config.engine.options)
    for index, stage in enumerate(config.by_stage):
        try:
            if config.stages:
                _check_sources(stage)
            for moment in stage.moments:
                now = stage.at(moment)
                _check_part("algorithm", "algorithm", now.algorithm.name, now.algorithm.options)
        except UserError as error:
            where = f"{whole.label(config.stages, index)}: " if config.stages else ""
            raise UserError(f"{where}{error}") from error
    sampler = config.data.sampler
    _check_part("data.sampler", "sampler", sampler.name, sampler.options)
    _check_parts("strategies", "strategy", config.strategies)
    refuse_parts(config)
    for name, options in config.tracking.items():
        if isinstance(options, dict):
            plugins.build("tracker", name, options)


def describe_questions(config: Config) -> Iterator[str]:
    """Yield a line for each of `models` that rewards ask: its questions for one batch of rollouts at most.

    The batch may be of one source, in the stage that asks most. Attempts that are repeated are not in it.
    """
    if not config.models:
        return
    from vlmrl.scoring.model_judge import ModelJudge  # asks over HTTP: seldom needed

    most: Counter[str] = Counter()
    for stage in config.by_stage:
        for source in stage.data.train:
            asked: Counter[str] = Counter()
            for reward in stage.rewards_of(source):
                verifier = reward_components.resolve(reward).verifier
                if isinstance(verifier, ModelJudge) and isinstance(verifier.model, NamedModel):
                    each = verifier.questions(stage.rollout.group_size)
                    asked[verifier.model.name] += stage.rollout.prompts * each
            most |= asked
    for name, count in sorted(most.items()):
        limit = config.models[name].max_requests_per_step
        few = "" if limit is None else f"; max_requests_per_step of each process: {limit:,}"
        yield f"models.{name}: at most {count:,} questions for a batch of rollouts{few}"


def _check_sources(config: Config) -> None:
    """Build cards and verifiers of all sources that a config names, and look for their templates."""
    for source in config.named_sources:
        open_card(source.card, source.options)
        template = read_template(source)
        where = f"source {source.label!r}"
        _check_parts(f"{where}, tools", "tool", source.tools)
        if (world := source.environment) is not None:
            _check_part(f"{where}, environment", "environment", world.name, world.options)
        for split in filter(None, (source.split, source.few_shot)):
            read_split(split)
        read_condition(source)
        rewards = config.rewards_of(source)
        moments = [(reward, at) for reward in rewards for at in reward_components.moments(reward)]
        reward_components.check_joined([reward_components.resolve(*each) for each in moments])
        form_of(rewards)
        if template is not None:
            reward_components.check_tags(rewards, template)


def check_paths(config: Config) -> None:
    """Check that the files and folders that a config names exist; nothing is read but their names.

    Raises:
        UserError: one does not, or `model.path` is a run folder; the message names the key.
    """
    from vlmrl.data import example_data

    if config.model.path is not None:
        _check_model(config.model.path)
    if config.resume.start not in ("never", "auto") and not Path(config.resume.start).is_dir():
        raise UserError(
            f"resume: expected never, auto or a checkpoint folder, got {config.resume.start!r}"
        )
    if config.data.media_root is not None:
        _require_path("data.media_root", config.data.media_root)
    _require_path("data.sampler, option 'path'", config.data.sampler.options.get("path"))
    for benchmark in config.evaluation.benchmarks if config.evaluation else ():
        where = f"evaluation.benchmarks: {benchmark.name}"
        _require_path(where, benchmark.folder)
    for source in [s for each in (config, *config.by_stage) for s in each.named_sources]:
        require_published(source)
        if ":" not in source.card:
            for key in PATH_OPTIONS:
                option = example_data.resolve(source.options.get(key))
                for path in option.values() if isinstance(option, Mapping) else (option,):
                    _require_path(f"source {source.label!r}, option {key!r}", path)


def _check_column(config: Config) -> None:
    """Check that first rows have the column that a shipped sampler reads, where no download is needed."""
    column = config.data.sampler.options.get("difficulty")
    if column is None or ":" in config.data.sampler.name:
        return
    for source in [s for each in (config, *config.by_stage) for s in each.data.train]:
        if source.ratings is not None or ":" in f"{source.card} {source.options.get('path', '')}":
            continue  # a file of ratings has columns of its own
        first = source.model_copy(update={"limit": 1, "where": None, "few_shot": None})
        try:
            known_rows(open_source(first)).column(column)
        except UserError as error:
            raise UserError(f"data.sampler: {error}") from error


def _check_part(
    key: str, kind: str, name: str, options: Mapping[str, object] | None = None
) -> None:
    """Check the part at a key; a shipped one without options is read, not imported."""
    try:
        if options or ":" in name:
            plugins.build(kind, name, options)
        elif missing := missing_options(kind, name):
            raise UserError(f"{kind} {name!r}: option {missing[0]!r} is required")
    except UserError as error:
        raise UserError(f"{key}: {error}") from error


def _check_parts(key: str, kind: str, parts: Sequence[PluginRef]) -> None:
    """Check a list of parts, of which none may be there twice."""
    for number, part in enumerate(parts):
        where = f"{key}.{number}"
        if part in parts[:number]:
            raise UserError(f"{where}: {kind} {part.name!r} is named twice")
        _check_part(where, kind, part.name, part.options)


def _check_model(path: str) -> None:
    folder = Path(path).expanduser()
    if (folder / "checkpoints").is_dir():
        raise UserError(f"model.path: {path} is a run folder{_best_of(folder)}")
    if folder.is_file():
        raise UserError(
            f"model.path: expected a checkpoint folder or a name on the hub, got {path!r}"
        )
    owner, _, name = path.partition("/")
    is_hub_name = owner not in ("", ".", "..", "~") and "/" not in name and not Path(owner).is_dir()
    if not is_hub_name:
        _require_path("model.path", path, folder)


def _best_of(run: Path) -> str:
    """Return the end of a message: which checkpoint of a run to use."""
    steps = [int(f.name[5:]) for f in run.glob("checkpoints/step-*") if f.name[5:].isdecimal()]
    if not steps:
        return " without a GRPO checkpoint"
    summary = run / "summary.json"
    best = json.loads(summary.read_text())["best_evaluation"] if summary.is_file() else None
    which, step = "best", best["step"] if best else None
    if step not in steps:
        which, step = "last", max(steps)
    return f": use one of its checkpoints, e.g. {run}/checkpoints/step-{step} (its {which})"


def _require_path(where: str, path: object, expanded: Path | None = None) -> None:
    if isinstance(path, str) and not (expanded or Path(path)).exists():
        raise UserError(f"{where}: there is no file or folder {path!r}")
