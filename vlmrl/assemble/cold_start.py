"""The first stage of a run: the cold start, or the training of a reward model on pairs.

A cold start may have a first part in which some towers train alone (`sft.align`). Its steps are counted on
in the second, and so a checkpoint's step says of which part it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vlmrl.assemble.prompts import (
    build_eval_batches,
    build_loader,
    pair_maker_of,
    prompt_maker_of,
)
from vlmrl.assemble.turns import opened_tools
from vlmrl.config import Config, EvaluationConfig, SftConfig
from vlmrl.data.source import Source, open_configured
from vlmrl.forward import finite
from vlmrl.policy import checkpoint
from vlmrl.policy.checkpoint import Progress
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy
from vlmrl.policy.trainable import towers_with_lr
from vlmrl.runs.metrics import rank_value
from vlmrl.schema import PromptBatch
from vlmrl.system.interrupt import Interrupt
from vlmrl.training import sft
from vlmrl.training.evaluation import PREFIX, evaluate
from vlmrl.training.sft import Stage
from vlmrl.training.trainer import Trainer

STOP_SAMPLES = 4
"""Completions of each validation prompt where a sampled metric ends the cold start."""


def run_cold_start(
    trainer: Trainer,
    settings: SftConfig,
    start: Path | None,
    progress: Progress,
    interrupt: Interrupt,
) -> bool:
    """Imitate the demonstrations, or order the pairs, from the beginning or `start`; False if interrupted."""
    align, first = settings.align, settings.aligning
    if align is None or first is None:
        return _run_part(trainer, settings, start, progress, interrupt)
    if start is None or progress.step <= align.steps:
        alone = ", ".join(align.towers)
        trainer.tracker.note(f"cold start, steps 1 to {align.steps}: of all towers {alone} alone")
        with trainer.policy.training_only(align.towers):
            if not _run_part(trainer, first, start, progress, interrupt, alone=True):
                return False
        trainer.tracker.note(f"cold start, from step {align.steps + 1} on: all that trains")
        start = None
    return _run_part(trainer, settings, start, progress, interrupt, before=align.steps)


def _run_part(
    trainer: Trainer,
    settings: SftConfig,
    start: Path | None,
    progress: Progress,
    interrupt: Interrupt,
    before: int = 0,
    alone: bool = False,
) -> bool:
    """Run one part; `before`: steps of the other; `alone`: at one rate, as only some towers train."""
    config, policy = trainer.config, trainer.policy
    scores, size = config.trains_scores, settings.batch_size
    maker = pair_maker_of if scores else prompt_maker_of
    trainer.engine.rest()
    chosen = settings.sources or config.data.train
    sources = [open_configured(config, source) for source in chosen]
    factors = {} if alone else config.optimizer.lr_factors
    policy.use_optimizer(_build_optimizer(policy, config, settings, factors), config.optimizer)
    stage = sft.Stage(**progress.extra) if start else sft.Stage()
    quarantine = trainer.loader.quarantine
    with (
        opened_tools(config, chosen, policy.family.space) as tools,
        build_loader(config, sources, policy, size, quarantine, tools=tools, maker=maker) as loader,
    ):
        if start:
            checkpoint.restore(start, policy, progress)
            loader.restore(progress.loader)

        def save(stage: Stage) -> None:
            step = before + stage.step
            state = Progress("sft", step, loader.state, asdict(stage), policy.version)
            name = f"checkpoint of the cold start, step {step}"
            with finite.naming(name), trainer.tracker.doing(f"saving the {name}") as saving:
                folder = trainer.checkpoints.save(state)
            trainer.tracker.saved(step, "sft", folder, saving.seconds)

        def report(step: int, metrics: dict[str, float]) -> None:
            trainer.tracker.sft_step(before + step, metrics)
            if policy.refused:
                line = f"cold start, step {before + step}: not applied, because {policy.refused}"
                trainer.tracker.message(line)

        with trainer.timers("sft"):
            stage = sft.cold_start(
                _build_step(trainer, settings),
                loader.next,
                settings,
                stage,
                validate=_build_measure(trainer) if scores else _build_validator(trainer),
                report=report,
                save=save,
                interrupt=interrupt,
                save_every=config.run.save_every if scores else None,
            )
        if stage.done(settings):
            save(stage)
    return stage.done(settings)


def _build_optimizer(
    policy: Policy, config: Config, settings: SftConfig, factors: Mapping[Any, float]
) -> torch.optim.Optimizer:
    """Return AdamW for what trains now, with the `factors` of towers' learning rates."""
    towers = towers_with_lr(policy.named, policy.family, factors)
    name, decay = config.optimizer.name, settings.weight_decay
    return adamw(policy.trainable, lr=settings.lr, weight_decay=decay, name=name, towers=towers)


def _build_step(
    trainer: Trainer, settings: SftConfig
) -> Callable[[PromptBatch, Stage], dict[str, float]]:
    """Return what takes a step on a batch: to imitate its demonstrations, or to order its pairs."""
    config, policy = trainer.config, trainer.policy
    tokens, seed = config.optimizer.micro_batch_tokens, config.run.seed
    if config.trains_scores:
        from vlmrl.training import preferences  # few runs train a reward model

        return lambda batch, stage: preferences.step(policy, batch, settings, stage, tokens, seed)
    metric = config.evaluation.metric if config.evaluation else "reward"
    score = functools.partial(sft.score_demonstrations, trainer.scorer, metric)
    return lambda batch, stage: sft.step(policy, batch, settings, stage, tokens, seed, score)


def _open_validation(config: Config, settings: SftConfig) -> list[Source]:
    chosen = settings.validation or [source.whole("val") for source in config.data.train]
    limited = [s.model_copy(update={"limit": settings.validation_limit}) for s in chosen]
    return [open_configured(config, source) for source in limited]


def _build_measure(trainer: Trainer) -> Callable[[], dict[str, float]]:
    """Return a function that measures how many held-out pairs a reward model has in their order."""
    from vlmrl.training import preferences

    config, policy, settings = trainer.config, trainer.policy, trainer.config.sft
    assert settings is not None
    sources, quarantine = _open_validation(config, settings), trainer.loader.quarantine
    plan = EvaluationConfig(batch_size=settings.batch_size)
    batches = build_eval_batches(
        config, sources, policy, plan, quarantine, shared=True, maker=pair_maker_of
    )

    def measure() -> dict[str, float]:
        with trainer.tracker.doing("scoring the held-out pairs"):
            return preferences.measure(policy, batches(), config.optimizer.micro_batch_tokens)

    return measure


def _build_validator(trainer: Trainer) -> Callable[[], dict[str, float]]:
    """Return a function that measures the cold start's stopping metric on its validation sources."""
    config = trainer.config
    settings = config.sft
    assert settings is not None
    sources = _open_validation(config, settings) if settings.stop_at is not None else []
    rows = sum(len(source.rows) for source in sources)
    samples = STOP_SAMPLES if settings.stop_metric.startswith(PREFIX["sampled"]) else 0
    plan = EvaluationConfig(metric=settings.stop_metric, samples=samples, bootstrap_resamples=100)
    quarantine = trainer.loader.quarantine
    batches = build_eval_batches(config, sources, trainer.policy, plan, quarantine, shared=True)

    def measure() -> dict[str, float]:
        trainer.engine.sync(trainer.policy)
        with (
            trainer.policy.whole(trainer.engine.capabilities.exact),
            trainer.tracker.doing("validating the cold start", rows) as activity,
        ):
            evaluation = evaluate(
                batches(),
                trainer.engine,
                trainer.scorer,
                plan,
                config.last.rollout.max_tokens,
                policy=trainer.policy,
                seed=config.run.seed,
                told=activity.done,
            )
        trainer.engine.rest()
        return {settings.stop_metric: rank_value(evaluation.result, settings.stop_metric)}

    return measure
