"""`vlmrl data rate`: how often a policy solves each row of a config's training sources.

Rows are rated in blocks, and a block is the unit of a resume: its seed depends on its number alone, so a
rating that was stopped and goes on is, for an engine that repeats itself, the one without a stop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.assemble.prompts import prompt_maker_of
from vlmrl.assemble.sources import (
    rewards_by_source,
    rewards_by_stage,
    with_audio,
)
from vlmrl.assemble.turns import with_tools_of
from vlmrl.commands.curricula.rating_manifest import begin, manifest_of
from vlmrl.commands.trained_run import find_run
from vlmrl.config import Config, EvaluationConfig, ModelConfig, SourceConfig
from vlmrl.config.sections.tracking import hide_secrets
from vlmrl.data.files.ratings import MANIFEST, Rating, read_ratings
from vlmrl.data.files.rows import View
from vlmrl.data.loader import eval_batches
from vlmrl.data.quarantine import Quarantine, row_id
from vlmrl.data.source import Source, open_configured, rated_as
from vlmrl.engines.base import Engine, Sampling
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.schema import Prompt, PromptBatch
from vlmrl.scoring.scorer import Judged, Scorer
from vlmrl.system import atomic_files
from vlmrl.system.interrupt import Interrupt
from vlmrl.system.seeds import seed_of

__all__ = ["Rated", "rate"]

SEED_PURPOSE = 15
"""Part of the seed of a block's completions."""

Told = Callable[[int, int, float], None]
"""Is told after each block the rows rated, all rows, and the seconds left."""


@dataclass(frozen=True)
class Rated:
    """What a rating came to: `finished` is False after an interrupt.

    `solved` counts rows by how they fared (`never`, `sometimes`, `always`), `faults` are the rows that
    could not be rated, named with the reason.
    """

    finished: bool
    rows: int
    solved: Counter[str]
    mean: float | None
    faults: list[str]


@dataclass(frozen=True)
class _Block:
    """Some rows of a source, by their numbers among its rows; `numbers` are the source's and the block's."""

    source: Source
    rows: range
    numbers: tuple[int, int]

    @property
    def places(self) -> list[tuple[str, str, int]]:
        """Source, whole split and row in it, of each row."""
        source, split = self.source, self.source.split.partition("[")[0]
        assert isinstance(source.rows, View)
        return [(source.name, split, source.rows.positions[row]) for row in self.rows]


@dataclass(frozen=True)
class _Rater:
    """An engine that serves a policy, and all that turns rows into ratings."""

    config: Config
    engine: Engine
    scorer: Scorer
    make: Callable[..., Prompt]
    samples: int
    metric: str
    threshold: float

    def rate(self, block: _Block) -> list[Rating]:
        """Return the ratings of a block."""
        source, rows = block.source, block.rows
        split = f"{source.split}[{rows.start}:{rows.stop}]"  # what messages number rows within
        part, bad = replace(source, split=split, rows=View(source.rows, rows)), Quarantine()
        limit = self.config.data.max_prompt_tokens
        batches = eval_batches(
            [part],
            self.make,
            len(rows),
            quarantine=bad,
            quarantine_limit=1.0,
            max_prompt_tokens=limit,
        )
        prompts = [prompt for batch in batches for prompt in batch.prompts]
        judged = iter(
            self._judge(prompts, seed_of(self.config.run.seed, SEED_PURPOSE, *block.numbers))
        )
        told, found = iter(prompts), []
        for number, place in enumerate(block.places):
            own = row_id(part, number)
            if reason := bad.reasons(part).get(number):
                found.append(Rating(*place, own, None, None, 0, reason))
                continue
            sample = next(told).sample
            found.append(self._sum_up(place, own or sample.id, next(judged)))
        return found

    def _judge(self, prompts: Sequence[Prompt], seed: int) -> list[list[Judged]]:
        """Return the verdicts on the completions of prompts, each judged by itself, as training begins."""
        if not prompts:
            return []
        draw = Sampling.of(self.config.at(0.0).rollout, self.samples, seed)
        rollouts = self.engine.generate(PromptBatch(tuple(prompts)), draw)
        samples = [prompt.sample for prompt in prompts]
        seen = [prompt.seen for prompt in prompts]
        return self.scorer.judge(rollouts.completions, samples, whole=False, staged=True, seen=seen)

    def _sum_up(self, place: tuple[str, str, int], own: str, group: Sequence[Judged]) -> Rating:
        """Return the rating of a row from its completions that have a score, or why none has."""
        scored = [(self._score(one), one.reward) for one in group]
        valid = [(s, r) for s, r in scored if s is not None and r is not None]
        if not valid:
            reasons = Counter(one.reason or f"no score of {self.metric!r}" for one in group)
            return Rating(*place, own, None, None, 0, reasons.most_common(1)[0][0])
        passed = sum(score >= self.threshold for score, _ in valid)
        reward = sum(reward for _, reward in valid) / len(valid)
        return Rating(*place, own, passed / len(valid), reward, len(valid))

    def _score(self, one: Judged) -> float | None:
        if self.metric == "reward":
            return one.reward
        verdict = one.verdicts.get(self.metric)
        return verdict.score if verdict is not None and verdict.applies else None


def rate(
    config: Config,
    out: Path,
    *,
    samples: int = 8,
    model: str | None = None,
    limit: int | None = None,
    metric: str | None = None,
    threshold: float | None = None,
    block: int = 32,
    resume: bool = False,
    tell: Told = lambda done, total, left: None,
) -> Rated:
    """Rate each row of a config's training sources by `samples` completions; write them to `out`.

    `model` is a checkpoint folder, a run folder or a hub name instead of the config's own. A completion
    passes when its `metric` (`reward` or a verifier's name) is at least `threshold`; both are the
    evaluation's if absent. The sources' `where` and `ratings` are left out: all rows are rated, of each
    source the first `limit`.

    Raises:
        UserError: the file exists and `resume` is False, or it was made in another way; the metric is none
            of the rewards of all sources.
    """
    plan = config.evaluation or EvaluationConfig()
    metric = _metric(config, metric or plan.metric.rpartition("/")[2])
    threshold = plan.pass_threshold if threshold is None else threshold
    if out.exists() and not resume:
        raise UserError(f"{out}: exists; --resume goes on with it, --out takes another file")
    chosen = _sources(config)
    sources = [open_configured(stage, source) for stage, source in chosen]
    policy = _policy(config, model, sources)
    asked = {"samples": samples, "metric": metric, "threshold": threshold, "block": block}
    manifest = manifest_of(config, policy, chosen, sources, {"model": model, **asked})
    with ExitStack() as stack:
        before = begin(out, hide_secrets(manifest))
        engine = with_tools_of(
            config, plugins.build("engine", config.engine.name, config.engine.options)
        )
        stack.callback(engine.close)
        engine.start(policy)
        scorer = Scorer(rewards_by_source(config), config.scoring, rewards_by_stage(config))
        stack.callback(scorer.close)
        make = prompt_maker_of(config, policy)
        rater = _Rater(config, engine, scorer, make, samples, metric, threshold)
        blocks = _blocks(with_audio(sources, policy.family), limit, block)
        kept = _keep_whole(out, before, blocks)
        return _rate_blocks(rater, blocks, out, kept, tell)


def _rate_blocks(
    rater: _Rater, blocks: Sequence[_Block], out: Path, kept: list[Rating], tell: Told
) -> Rated:
    """Rate the blocks that are not kept, until all are or somebody interrupts."""
    done = {(r.source, r.split, r.row) for r in kept}
    total, begun, fresh = sum(len(block.rows) for block in blocks), time.monotonic(), 0
    with Interrupt() as interrupt:
        for block in blocks:
            if block.places[0] in done:
                continue
            if interrupt.asked:
                break
            found = rater.rate(block)
            atomic_files.append_lines(out, [asdict(rating) for rating in found])
            kept += found
            fresh += len(found)
            tell(len(kept), total, (time.monotonic() - begun) / fresh * (total - len(kept)))
    return _sum_up(kept, finished=len(kept) == total)


def _metric(config: Config, metric: str) -> str:
    """Return the metric; refuse one that is not a reward of every source."""
    for stage in config.by_stage:
        for source in stage.data.train:
            known = ["reward", *(reward.label for reward in stage.rewards_of(source))]
            if metric not in known:
                raise UserError(
                    f"--metric: expected a reward of source {source.label!r} ({', '.join(known)}), got "
                    f"{metric!r}"
                )
    return metric


def _sources(config: Config) -> list[tuple[Config, SourceConfig]]:
    """Return the training sources of all stages without their choice of rows, each once.

    Raises:
        UserError: two differ in their data, and ratings could not tell them apart.
    """
    found: dict[tuple[str, str], tuple[Config, SourceConfig]] = {}
    for stage in config.by_stage:
        for source in stage.data.train:
            plain = source.model_copy(update={"where": None, "ratings": None})
            named = rated_as(source)
            known = found.setdefault((named["name"], named["split"]), (stage, plain))
            if _identity(known[1]) != _identity(plain):
                raise UserError(
                    f"data.train: two sources of split {named['split']!r} are named {source.label!r}: "
                    "give one of them a `name`"
                )
    return list(found.values())


def _identity(source: SourceConfig) -> str:
    return source.model_dump_json(include={"card", "options", "split", "limit"})


def _policy(config: Config, model: str | None, sources: Sequence[Source]) -> Policy:
    update: dict[str, Any] = {"lora": None, "quantization": None}
    settings = config.model.model_copy(update=update)
    if model is not None:
        settings = ModelConfig(path=str(find_run(model)[1] or model), dtype=config.model.dtype)
    corpus = [text for s in sources for text in s.card.corpus()] if settings.build else []
    loaded = load_model(settings, corpus, config.run.seed)
    return Policy(*loaded, settings, config.at(0.0).rollout.temperature)


def _blocks(sources: Sequence[Source], limit: int | None, size: int) -> list[_Block]:
    """Return the blocks of the first `limit` rows of each source."""
    found = []
    for which, source in enumerate(sources):
        rows = range(len(source.rows))[:limit]
        for number, first in enumerate(range(0, len(rows), size)):
            found.append(_Block(source, rows[first : first + size], (which, number)))
    return found


def _keep_whole(out: Path, before: Sequence[Rating], blocks: Sequence[_Block]) -> list[Rating]:
    """Return the ratings of blocks that are whole, and leave no others in the file."""
    by_place = {(r.source, r.split, r.row): r for r in before}
    found = []
    for block in blocks:
        if all(place in by_place for place in block.places):
            found += [by_place[place] for place in block.places]
    if len(found) < len(before):
        manifest, _ = read_ratings(out)
        lines = [{MANIFEST: manifest}, *(asdict(rating) for rating in found)]
        atomic_files.write_lines(out, lines)
    return found


def _sum_up(ratings: Sequence[Rating], finished: bool) -> Rated:
    rates = [rating.pass_rate for rating in ratings if rating.pass_rate is not None]
    solved = Counter(
        "never" if rate == 0 else "always" if rate == 1 else "sometimes" for rate in rates
    )
    faults = [f"{r.source} {r.split} row {r.row}: {r.fault}" for r in ratings if r.fault]
    mean = sum(rates) / len(rates) if rates else None
    return Rated(finished, len(ratings), solved, mean, faults)
