"""From a config to a run: the one module that knows all the parts. It builds them and calls them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import Config, EvaluationConfig, SourceConfig
from vlmrl.data.loader import Loader, eval_batches
from vlmrl.data.prompt import make_prompt
from vlmrl.data.quarantine import Quarantine
from vlmrl.data.source import Source, open_source, reading_of
from vlmrl.engines.base import Engine, require_concurrent
from vlmrl.errors import UserError
from vlmrl.media_types import Decoded
from vlmrl.models.base import Family
from vlmrl.models.loading import Loaded, load_model
from vlmrl.monitoring.run_checks import Checks
from vlmrl.policy import checkpoint
from vlmrl.policy.checkpoint import Progress
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.runs.run_log import RunLog, SilentLog
from vlmrl.schema import Prompt, PromptBatch, Sample
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import distributed
from vlmrl.system.interrupt import Interrupt
from vlmrl.system.timers import PhaseTimers
from vlmrl.training import sft
from vlmrl.training.evaluation import evaluate
from vlmrl.training.rollout_queue import RolloutQueue
from vlmrl.training.shuffled_frames import ShuffledFrames
from vlmrl.training.shuffled_rewards import ShuffledRewards
from vlmrl.training.step_extension import StepExtension
from vlmrl.training.summary import summarise
from vlmrl.training.trainer import Trainer


def train(config: Config) -> dict[str, Any]:
    """Run a config to its end, or to an interrupt, and return its summary (also in summary.json).

    Cold start (if any), GRPO, evaluations, checkpoints, report. `resume` continues from the last whole
    checkpoint, bit-identically on one CPU thread; a finished run is left as it is.
    `summary["finished"]` is False after an interrupt.

    Raises:
        UserError: the user's mistakes, before anything is written where that can be known.
    """
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    with distributed.session(config.distributed.timeout_s):
        return _train(config)


def _train(config: Config) -> dict[str, Any]:
    start = distributed.from_main(checkpoint.resolve(config.resume, config.folder))
    progress = checkpoint.read_progress(start) if start else Progress()
    if progress.phase == "rl" and progress.step >= config.run.steps:
        summary = run_folder.read_summary(config.folder)
        # Without one the run was killed after its last checkpoint: it goes on to its end.
        if summary and summary["finished"] and summary["steps"] == progress.step:
            return summary
    with ExitStack() as stack, Interrupt() as interrupt:
        trainer = _trainer(config, start, progress, stack)
        finished = _cold_start(trainer, start, progress, interrupt)
        if finished:
            _begin_rl(trainer, start, progress)
            finished = trainer.run(interrupt)
        result = {"finished": finished, **summarise(trainer)}
    if distributed.is_main():
        run_folder.write_summary(config.folder, result)
        if config.run.report:
            from vlmrl.report import build_report  # brings matplotlib, needed only here

            build_report(config.folder)
    return result


# --------------------------------------------------------------------------------------- training


def _trainer(config: Config, start: Path | None, progress: Progress, stack: ExitStack) -> Trainer:
    """All parts of a run; what must be closed is on the stack."""
    train_sources = [opened(config, source) for source in config.data.train]
    held_out = held_out_sources(config)
    scorer = Scorer(rewards_by_source(config), config.scoring)
    stack.callback(scorer.close)
    engine = plugins.build("engine", config.engine.name, config.engine.options)
    require_concurrent(engine, config.engine.name, config.rollout.max_staleness)
    refuse_together(config, engine)
    stack.callback(engine.close)
    algorithm = plugins.build("algorithm", config.algorithm.name, config.algorithm.options)
    loaded = load(config, start, train_sources)
    if distributed.is_main():
        if start is None:
            run_folder.move_aside(config.folder)
        run_folder.write_config(config.folder, config)
    shard = distributed.world() > 1 and config.distributed.strategy == "fsdp2"
    policy = Policy(*loaded, config.model, config.rollout.temperature, shard)
    engine.start(policy)
    quarantine = Quarantine(config.folder / "quarantine.jsonl")
    loader = _loader(config, train_sources, policy, config.rollout.prompts, quarantine)
    stack.callback(loader.close)
    done = progress.step if progress.phase == "rl" else 0
    tracker: RunLog = SilentLog()
    if distributed.is_main():
        tracker = RunLog(config, config.folder, config.run.steps, done)
    stack.enter_context(tracker)
    batches = _batches(config, held_out, policy, config.evaluation, quarantine, shared=True)
    shown = media_prompts(config, held_out or train_sources, policy, quarantine)
    checks = Checks(
        config.checks, policy, engine, scorer, shown, config.rollout.max_tokens, tracker.message
    )
    queue = RolloutQueue(loader, engine, policy, config)
    stack.callback(queue.close)
    timers = PhaseTimers()
    trainer = Trainer(
        config=config,
        policy=policy,
        loader=loader,
        queue=queue,
        engine=engine,
        scorer=scorer,
        algorithm=algorithm,
        tracker=tracker,
        held_out=batches if held_out else None,
        extensions=step_extensions(config, policy, engine, scorer, timers),
        checks=checks,
        timers=timers,
    )
    return trainer


def step_extensions(
    config: Config, policy: Policy, engine: Engine, scorer: Scorer, timers: PhaseTimers
) -> list[StepExtension]:
    """Build what the config adds to the plain step, in the order in which it acts."""
    extensions: list[StepExtension] = []
    if config.rollout.shuffled_group_size:
        extensions.append(ShuffledFrames(policy, engine, scorer, config.rollout, timers))
    if config.control.shuffle_rewards:
        extensions.append(ShuffledRewards())
    return extensions


def refuse_together(config: Config, engine: Engine) -> None:
    """Refuse what several processes cannot do.

    Raises:
        UserError: an engine that works in one process only, rollouts ahead of the trainer, what
            cannot be sharded, or fewer prompts than processes.
    """
    world = distributed.world()
    if world > 1 and not engine.every_rank:
        raise UserError(
            f"engine {config.engine.name!r} works in one process, and there are {world}; use 'hf' "
            "or 'vllm_server'"
        )
    if world > 1 and config.rollout.max_staleness:
        raise UserError(
            f"rollout.max_staleness is {config.rollout.max_staleness}, but there are {world} processes, and "
            "rollouts ahead of the trainer work in one only; use 0"
        )
    sharded = world > 1 and config.distributed.strategy == "fsdp2"
    if sharded and (config.model.quantization or config.optimizer.name != "adamw"):
        raise UserError(
            "distributed.strategy: fsdp2 shards neither model.quantization nor the optimizers of "
            "bitsandbytes; use ddp"
        )
    if config.rollout.prompts < world:
        raise UserError(
            f"rollout.prompts ({config.rollout.prompts}) is less than the {world} processes that "
            "share them"
        )


def _cold_start(
    trainer: Trainer, start: Path | None, progress: Progress, interrupt: Interrupt
) -> bool:
    """Imitate the demonstrations, if the config says so and it is not already done; False if interrupted."""
    config, policy = trainer.config, trainer.policy
    if config.sft is None or progress.phase == "rl":
        return True
    settings = config.sft
    sources = [opened(config, s) for s in settings.sources or config.data.train]
    name, decay = config.optimizer.name, settings.weight_decay
    optimizer = adamw(policy.trainable, lr=settings.lr, weight_decay=decay, name=name)
    policy.use_optimizer(optimizer, config.optimizer)
    stage = sft.Stage(**progress.extra) if start else sft.Stage()
    quarantine = trainer.loader.quarantine
    with _loader(config, sources, policy, settings.batch_size, quarantine) as loader:
        if start:
            checkpoint.restore(start, policy, progress)
            loader.restore(progress.loader)

        def save(stage: sft.Stage) -> None:
            state = Progress("sft", stage.step, loader.state, asdict(stage), policy.version)
            checkpoint.save(config.folder, policy, state, config.run.keep_checkpoints, None)

        with trainer.timers("sft"):
            stage = sft.cold_start(
                policy,
                loader.next,
                settings,
                stage,
                validate=_validator(trainer),
                report=trainer.tracker.sft_step,
                save=save,
                interrupt=interrupt,
                micro_tokens=config.optimizer.micro_batch_tokens,
                seed=config.run.seed,
            )
        if stage.done(settings):
            save(stage)
    return stage.done(settings)


def _begin_rl(trainer: Trainer, start: Path | None, progress: Progress) -> None:
    """A fresh optimizer and reference, or those of the checkpoint."""
    config, policy = trainer.config, trainer.policy
    if trainer.algorithm.kl:
        # After a resume the reference is again the model that RL began with, not today's.
        policy.keep_reference(config.folder / "reference.safetensors")
    o = config.optimizer
    policy.use_optimizer(adamw(policy.trainable, o.lr, o.betas, o.eps, o.weight_decay, o.name), o)
    if start and progress.phase == "rl":
        checkpoint.restore(start, policy, progress)
        trainer.queue.restore(progress.loader, checkpoint.read_queue(start))
        trainer.done = progress.step
        trainer.timers.restore(progress.extra["seconds"])
        trainer.evaluations = {int(k): v for k, v in progress.extra["evaluations"].items()}
    trainer.engine.sync(policy)


def _validator(trainer: Trainer) -> Callable[[], float]:
    """Measures the cold start's stopping metric on its validation sources."""
    config = trainer.config
    settings = config.sft
    assert settings is not None
    chosen = settings.validation or [
        s.model_copy(update={"split": "val"}) for s in config.data.train
    ]
    limited = [s.model_copy(update={"limit": settings.validation_limit}) for s in chosen]
    sources = [opened(config, s) for s in limited] if settings.stop_at is not None else []
    plan = EvaluationConfig(bootstrap_resamples=100)
    quarantine = trainer.loader.quarantine
    batches = _batches(config, sources, trainer.policy, plan, quarantine, shared=True)

    def measure() -> float:
        trainer.engine.sync(trainer.policy)
        with trainer.policy.whole():
            found = evaluate(
                batches(), trainer.engine, trainer.scorer, plan, config.rollout.max_tokens
            )
        return found.result["metrics"][settings.stop_metric]

    return measure


# ------------------------------------------------------------------------------------------ parts


def load(config: Config, start: Path | None, sources: Sequence[Source]) -> Loaded:
    """The model to train, in float32 (`Policy` lowers what need not be); from the checkpoint at resume.

    With LoRA the base model is loaded again and the checkpoint's adapter is put on it later.
    """
    update: dict[str, Any] = {"dtype": "float32"}
    if start and config.model.lora is None:
        update |= {"path": str(start), "build": None}
    model = config.model.model_copy(update=update)
    corpus: list[str] = []
    if model.build is not None:
        corpus = [text for card in _cards(config, sources) for text in card.corpus()]
    loaded = load_model(model, corpus, config.run.seed)
    if config.data.video.audio and not loaded.family.hears_videos:
        kind = loaded.family.model_types[0]
        raise UserError(f"data.video.audio is true, but {kind} does not hear videos")
    return loaded


def _cards(config: Config, sources: Sequence[Source]) -> list[Any]:
    extra = config.sft.sources if config.sft else []
    return [s.card for s in sources] + [opened(config, s).card for s in extra]


def opened(config: Config, source: SourceConfig) -> Source:
    """The source of a config, under its rules of where media may lie."""
    data = config.data
    return open_source(source, data.media_root, data.allow_urls, reading_of(data))


def with_audio(sources: Sequence[Source], family: Family) -> list[Source]:
    """The sources, their videos with sound if the family hears it and `data.video.audio` allows it."""
    readings = [source.reading for source in sources]
    heard = [family.hears_videos and reading.video.audio is not False for reading in readings]
    made = zip(sources, readings, heard, strict=True)
    return [replace(source, reading=replace(reading, with_audio=h)) for source, reading, h in made]


def all_sources(config: Config) -> list[Source]:
    """Every source that a run opens: to train, to evaluate, for the cold start."""
    train = [opened(config, source) for source in config.data.train]
    cold = [opened(config, source) for source in config.sft.sources] if config.sft else []
    return [*train, *held_out_sources(config), *cold]


def held_out_sources(config: Config) -> list[Source]:
    """The sources of the evaluation; none if the config has none."""
    if config.evaluation is None:
        return []
    chosen = config.evaluation.sources or [
        s.model_copy(update={"split": "test"}) for s in config.data.train
    ]
    limit = config.evaluation.limit
    if limit is not None:
        chosen = [s.model_copy(update={"limit": min(limit, s.limit or limit)}) for s in chosen]
    return [opened(config, s) for s in chosen]


def rewards_by_source(config: Config) -> dict[str, Any]:
    """Verifiers by source name, over training, validation and held-out sources."""
    sources = list(config.data.train)
    sources += config.evaluation.sources if config.evaluation else []
    sources += config.sft.validation if config.sft else []
    return {s.label: config.rewards_of(s) for s in reversed(sources)}


def prompt_maker(
    policy: Policy, instruct: dict[str, bool], processor: Any = None
) -> Callable[[Sample, list[Decoded]], Prompt]:
    """What turns a sample and its media into a prompt; `instruct` says per source whether to instruct.

    `processor` is used instead of the policy's own.
    """
    processor = policy.processor if processor is None else processor

    def make(sample: Sample, media: list[Decoded]) -> Prompt:
        text = ""
        if instruct.get(sample.source, True):
            text = templates.instruction(sample.template, sample.truth, policy.family.space)
        return make_prompt(sample, media, policy.family, processor, text)

    return make


def _loader(
    config: Config,
    sources: Sequence[Source],
    policy: Policy,
    size: int,
    quarantine: Quarantine,
) -> Loader:
    # The loader's thread has its own: two threads may not use one tokenizer at once.
    processor = copy.deepcopy(policy.processor) if config.data.workers else None
    return Loader(
        with_audio(sources, policy.family),
        prompt_maker(policy, instructed(config), processor),
        size,
        seed=config.run.seed,
        rank=distributed.rank(),
        world=distributed.world(),
        quarantine=quarantine,
        quarantine_limit=config.data.quarantine_limit,
        max_prompt_tokens=config.data.max_prompt_tokens,
        workers=config.data.workers,
        prefetch_mb=config.data.prefetch_mb,
    )


def media_prompts(
    config: Config, sources: Sequence[Source], policy: Policy, quarantine: Quarantine
) -> list[Prompt]:
    """The prompts that `monitoring.run_checks` asks again and again: the first of each source with media."""
    prompts: list[Prompt] = []
    for number, source in enumerate(sources, start=1):
        wanted = config.checks.media_ablation_prompts * number // len(sources) - len(prompts)
        first = replace(source, rows=source.rows[: 4 * config.checks.media_ablation_prompts])
        batches = _batches(config, [first], policy, None, quarantine)()
        shown = (p for batch in batches for p in batch.prompts if p.media)
        prompts += itertools.islice(shown, wanted)
    return prompts


def instructed(config: Config) -> dict[str, bool]:
    """By source name, whether the template's instruction is appended to its questions."""
    sources = list(config.data.train)
    sources += config.evaluation.sources if config.evaluation else []
    sources += [*config.sft.sources, *config.sft.validation] if config.sft else []
    return {s.label: s.instruct for s in reversed(sources)}


def _batches(
    config: Config,
    sources: Sequence[Source],
    policy: Policy,
    plan: EvaluationConfig | None,
    quarantine: Quarantine,
    shared: bool = False,
) -> Callable[[], Iterable[PromptBatch]]:
    """Fresh batches of held-out prompts, each time it is called; shared, of this rank's share."""
    sources = with_audio(sources, policy.family)
    make = prompt_maker(policy, instructed(config))
    size = plan.batch_size if plan else 1
    share = {"rank": distributed.rank(), "world": distributed.world()} if shared else {}
    return lambda: eval_batches(
        sources,
        make,
        size,
        **share,
        quarantine=quarantine,
        quarantine_limit=config.data.quarantine_limit,
        max_prompt_tokens=config.data.max_prompt_tokens,
    )
