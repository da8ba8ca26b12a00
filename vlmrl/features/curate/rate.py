"""`vlmrl data rate`: how often a policy solves each row of a config's training sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vlmrl import plugins
from vlmrl.assemble.prompts import prompt_maker_of
from vlmrl.assemble.sources import rewards_by_source, rewards_by_stage, with_audio
from vlmrl.assemble.turns import with_tools
from vlmrl.config import Config, EvaluationConfig
from vlmrl.config.sections.run import hide_secrets
from vlmrl.data.ratings import Rating, read_ratings
from vlmrl.data.source import open_configured
from vlmrl.engines.base import RunningEngine, Sampling
from vlmrl.errors import UserError
from vlmrl.features.curate.row_blocks import (
    MAX_NAMED,
    RowBlock,
    begin,
    cut_blocks,
    fault_of,
    judge,
    keep_whole,
    load_asked,
    manifest_of,
    require_metric,
    score_of,
    sources_of,
    write_blocks,
)
from vlmrl.runs.output.events import Rated
from vlmrl.runs.output.outputs import Output
from vlmrl.runs.run_log import SILENT
from vlmrl.schema import Prompt, PromptBatch
from vlmrl.scoring.scorer import Judged, Scorer
from vlmrl.system.seeds import seed_of

SEED_PURPOSE = 15
"""Part of the seed of a block's completions."""


@dataclass(frozen=True)
class _Rater:
    """An engine that serves a policy, and all that turns rows into ratings."""

    config: Config
    engine: RunningEngine
    scorer: Scorer
    make: Callable[..., Prompt]
    samples: int
    metric: str
    threshold: float

    def rate(self, block: RowBlock) -> list[Rating]:
        """Return the ratings of a block."""
        read = block.read(self.make, self.config.data.max_prompt_tokens)
        prompts = [row.prompt for row in read if row.prompt is not None]
        seed = seed_of(self.config.run.seed, SEED_PURPOSE, *block.numbers)
        draw = Sampling.of(self.config.at(0.0).rollout, self.samples, seed)
        batch = PromptBatch(tuple(prompts))
        groups = self.engine.generate(batch, draw).completions if prompts else ()
        judged = iter(judge(self.scorer, prompts, groups))
        ratings = []
        for row in read:
            if row.prompt is None:
                ratings.append(Rating(*row.address, row.own, None, None, 0, row.reason))
                continue
            ratings.append(self._sum_up(row.address, row.own or row.prompt.sample.id, next(judged)))
        return ratings

    def _sum_up(self, address: tuple[str, str, int], own: str, group: Sequence[Judged]) -> Rating:
        """Return the rating of a row from its completions that have a score, or why none has."""
        scored = [(score_of(verdict, self.metric), verdict.reward) for verdict in group]
        valid = [(s, r) for s, r in scored if s is not None and r is not None]
        if not valid:
            return Rating(*address, own, None, None, 0, fault_of(group, self.metric))
        passed = sum(score >= self.threshold for score, _ in valid)
        reward = sum(reward for _, reward in valid) / len(valid)
        return Rating(*address, own, passed / len(valid), reward, len(valid))


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
    output: Output = SILENT,
) -> Rated:
    """Rate each row of a config's training sources by `samples` completions; write them to `out`.

    `model` is a checkpoint folder, a run folder or a hub name instead of the config's own. A completion
    passes when its `metric` (`reward` or a verifier's name) is at least `threshold`; both are the
    evaluation's if absent. The sources' `where` and `ratings` are left out: all rows are rated, of each
    source the first `limit`. `output` says how far it is.

    Raises:
        UserError: the file exists and `resume` is False, or it was made in another way; the metric is none
            of the rewards of all sources.
    """
    plan = config.evaluation or EvaluationConfig()
    metric = require_metric(config, metric or plan.metric.rpartition("/")[2])
    threshold = plan.pass_threshold if threshold is None else threshold
    if out.exists() and not resume:
        raise UserError(f"{out}: exists; --resume goes on with it, --out takes another file")
    chosen = sources_of(config)
    with output.doing("opening the data"):
        sources = [open_configured(stage, source) for stage, source in chosen]
    with output.doing("loading model"):
        policy = load_asked(config, model, sources)
    asked = {"samples": samples, "metric": metric, "threshold": threshold, "block": block}
    manifest = manifest_of(config, policy, chosen, sources, {"model": model, **asked})
    with ExitStack() as stack:
        before = begin(out, hide_secrets(manifest), read_ratings)
        options = with_tools(
            config, plugins.build("engine", config.engine.name, config.engine.options)
        )
        with output.doing(f"starting engine {config.engine.name}"):
            engine = options.start(policy)
        stack.callback(engine.close)
        scorer = Scorer(rewards_by_source(config), config.scoring, rewards_by_stage(config))
        stack.callback(scorer.close)
        make = prompt_maker_of(config, policy)
        rater = _Rater(config, engine, scorer, make, samples, metric, threshold)
        blocks = cut_blocks(with_audio(sources, policy.family), limit, block)
        kept = keep_whole(out, before, blocks, read_ratings)
        finished = write_blocks(rater.rate, blocks, out, kept, output, "rating")
    return _sum_up(out, kept, finished)


def _sum_up(out: Path, ratings: Sequence[Rating], finished: bool) -> Rated:
    rates = [rating.pass_rate for rating in ratings if rating.pass_rate is not None]
    solved = Counter(
        "never" if rate == 0 else "always" if rate == 1 else "sometimes" for rate in rates
    )
    faults = [f"{r.source} {r.split} row {r.row}: {r.fault}" for r in ratings if r.fault]
    return Rated(
        file=out,
        finished=finished,
        rows=len(ratings),
        mean=sum(rates) / len(rates) if rates else None,
        solved={how: solved[how] for how in ("never", "sometimes", "always")},
        not_rated=len(faults),
        faults=faults[:MAX_NAMED],
    )
