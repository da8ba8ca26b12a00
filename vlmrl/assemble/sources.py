"""The sources of a config, and what it says about each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from vlmrl import plugins
from vlmrl.config import BenchmarkConfig, Config, RewardConfig, SourceConfig, whole
from vlmrl.data.files.rows import RowsView
from vlmrl.data.source import Source, open_configured, open_held_out, reading_of, run_template
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.models.base import Family
from vlmrl.schema import AnswerForm
from vlmrl.scoring.reward_components import form_of


def all_sources(config: Config) -> list[Source]:
    """Open every source of a run: to train, to evaluate, and for the cold start."""
    train = open_training(config)
    named = config.sft.named_sources if config.sft else []
    cold = [open_configured(config, source) for source in named]
    return [*train, *open_held_out(config), *open_benchmarks(config), *cold]


def open_benchmarks(config: Config) -> list[Source]:
    """Open the benchmarks of a run's evaluation, each a source whose card is a `BenchmarkCard`.

    Completions are split by the run's template: see `run_template`.

    Raises:
        UserError: there is no such benchmark, protocol or data, or the data have another number of rows.
    """
    return [_open_benchmark(config, benchmark) for benchmark in _benchmarks(config)]


def _open_benchmark(config: Config, chosen: BenchmarkConfig) -> Source:
    # A plain run loads half of the package: benchmarks and their rules only where a config names one.
    from vlmrl.benchmarking.base import BenchmarkCard, open_benchmark

    benchmark = open_benchmark(chosen.name, chosen.folder)
    card = BenchmarkCard(benchmark, chosen.protocol)
    rows = card.rows(benchmark.split)
    if rows.published != benchmark.count and chosen.limit is None:
        raise UserError(
            f"evaluation.benchmarks: {chosen.name}: expected {benchmark.count} rows in split "
            f"{benchmark.split!r}, got {rows.published} in {benchmark.path}; set `limit` to evaluate on fewer"
        )
    kept = min(len(rows), chosen.limit or len(rows))
    spread = [number * len(rows) // kept for number in range(kept)]
    return Source(
        chosen.label,
        card,
        benchmark.split,
        RowsView(rows, spread),
        template=run_template(config),
        access=Access(root=card.media_root()),
        reading=reading_of(config.data),
    )


def _benchmarks(config: Config) -> Sequence[BenchmarkConfig]:
    return config.evaluation.benchmarks if config.evaluation else ()


def _strict_reward(config: Config, chosen: BenchmarkConfig) -> RewardConfig:
    """Return the strict verifier as a reward; by `combine: gate` it is its own gate, at the same score."""
    strict = plugins.load("benchmark", plugins.split_of(chosen.name)[0]).strict
    reward: RewardConfig = strict.reward()
    return reward.model_copy(update={"gate": config.scoring.combine == "gate"})


def open_training(config: Config) -> list[Source]:
    """Open the training sources of all stages; one that several stages have alike is one source."""
    return [open_configured(stage, source) for stage, source in _training(config).values()]


def weights_at(config: Config, progress: float) -> list[float]:
    """Return the weight at `progress` of each of `open_training`; 0 for those of other stages.

    Within a line or wave a weight moves at hundredths of training, so that prompts can be made ahead.

    Raises:
        UserError: all are 0.
    """
    begun = max(moment for moment in config.moments if moment <= progress)
    now = config.at(max(begun, math.floor(100 * progress) / 100))
    weights = {_identity(now, source): source.weight for source in now.data.train}
    by_source = [weights.get(identity, 0.0) for identity in _training(config)]
    if not any(by_source):
        raise UserError(
            f"data.train: expected a source whose weight is above 0 at {100 * progress:g} % of training"
        )
    return by_source


def _training(config: Config) -> dict[str, tuple[Config, SourceConfig]]:
    training: dict[str, tuple[Config, SourceConfig]] = {}
    for stage in config.by_stage:
        for source in stage.data.train:
            training.setdefault(_identity(stage, source), (stage, source))
    return training


def _identity(config: Config, source: SourceConfig) -> str:
    """Return what makes it the same source: all but its weight and its rewards."""
    own = source.model_dump_json(exclude={"weight", "rewards"})
    return own + config.data.model_dump_json(include={"system", "video", "audio"})


def with_audio(sources: Sequence[Source], family: Family) -> list[Source]:
    """Return the sources, their videos with audio if the family hears it and `data.video.audio` allows it."""
    readings = [source.reading for source in sources]
    heard = [family.hears_videos and reading.video.audio is not False for reading in readings]
    made = zip(sources, readings, heard, strict=True)
    return [replace(source, reading=replace(reading, with_audio=h)) for source, reading, h in made]


def rewards_by_source(config: Config) -> dict[str, list[RewardConfig]]:
    """Return the rewards by source name, over training, validation and held-out sources.

    Where stages have others, these are the config's own: what evaluations take.
    """
    sources = list(config.data.train)
    sources += config.evaluation.sources if config.evaluation else []
    sources += config.sft.validation if config.sft else []
    own = {s.label: config.rewards_of(s) for s in reversed(sources)}
    for stage in config.by_stage:
        own = {**{s.label: stage.rewards_of(s) for s in stage.data.train}, **own}
    return own | {b.label: [_strict_reward(config, b)] for b in _benchmarks(config)}


def rewards_by_stage(config: Config) -> dict[float, dict[str, list[RewardConfig]]]:
    """Return the rewards of training by the progress at which a stage begins; empty without stages."""
    starts = whole.starts(config.stages) if config.stages else []
    return {
        start: {source.label: stage.rewards_of(source) for source in stage.data.train}
        for start, stage in zip(starts, config.by_stage, strict=False)
    }


def instruct_by_source(config: Config) -> dict[str, bool]:
    """Return by source name whether the template's instruction is appended to its questions."""
    instructed = {s.label: s.instruct for _, s in reversed(_named(config))}
    if benchmarks := _benchmarks(config):
        from vlmrl.benchmarking.base import OURS  # see `_open_benchmark`

        instructed |= {b.name: b.protocol == OURS for b in benchmarks}
    return instructed


def forms_by_source(config: Config) -> dict[str, AnswerForm]:
    """Return by source name how its verifiers read an answer; in all stages it is asked for alike."""
    forms = {s.label: form_of(own.rewards_of(s)) for own, s in reversed(_named(config))}
    return forms | {b.label: form_of([_strict_reward(config, b)]) for b in _benchmarks(config)}


def _named(config: Config) -> list[tuple[Config, SourceConfig]]:
    """Every source that a config names with the config that says so: its own, then the stages'."""
    own = [(config, source) for source in config.named_sources]
    return own + [(stage, s) for stage in config.by_stage for s in stage.data.train]
