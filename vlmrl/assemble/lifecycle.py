"""The life of a run: resume, cold start, GRPO, summary and report."""

from __future__ import annotations

import functools
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from vlmrl.algorithms.base import needs_reference
from vlmrl.assemble.build import LOCAL, Pools, build_algorithms, build_trainer
from vlmrl.assemble.prompts import (
    build_eval_batches,
    build_loader,
    pair_maker_of,
    prompt_maker_of,
)
from vlmrl.assemble.turns import opened_tools
from vlmrl.config import Config, EvaluationConfig, SftConfig
from vlmrl.data.source import Source, open_configured
from vlmrl.errors import LostRank, UserError
from vlmrl.forward import finite
from vlmrl.policy import checkpoint
from vlmrl.policy.checkpoint import Progress
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.trainable import towers_with_lr
from vlmrl.runs import run_folder, run_lock
from vlmrl.runs.output.events import Noted
from vlmrl.runs.output.outputs import Output
from vlmrl.schema import PromptBatch
from vlmrl.system import distributed, files, processes
from vlmrl.system.interrupt import Interrupt
from vlmrl.training.divergence import set_reference
from vlmrl.training.strategy import restore_state
from vlmrl.training.trainer import Trainer

if TYPE_CHECKING:
    from vlmrl.runs.mirror import Mirror
    from vlmrl.training.sft import Stage


# --------------------------------------------------------------------------------------------------
# The result of a run: the content of summary.json.


def summarise(trainer: Trainer) -> dict[str, Any]:
    """Return evaluations (first, last, best), seconds per phase, peak memory, dropped rows and faults."""
    evaluations, best, counts = trainer.evaluations, trainer.best, trainer.scorer.counts
    return {
        "steps": trainer.done,
        "metric": trainer.config.evaluation.metric if trainer.config.evaluation else None,
        "first_evaluation": evaluations[min(evaluations)] if evaluations else None,
        "last_evaluation": evaluations[max(evaluations)] if evaluations else None,
        "best_evaluation": evaluations[best] if best is not None else None,
        "wall_seconds": {k: round(v, 3) for k, v in trainer.timers.wall.items()},
        "cpu_seconds": {k: round(v, 3) for k, v in trainer.timers.cpu.items()},
        "peak_memory_mb": peak_memory_mb(),
        "parameters": sum(p.numel() for p in trainer.policy.base.parameters()),
        "dropped": dict(trainer.loader.quarantine.counts),
        "faulted": {
            f"{source}/{label}": of["faults"]
            for (source, label), of in counts.items()
            if of["faults"]
        },
    }


def peak_memory_mb() -> dict[str, float]:
    """Return the peak resident memory of this process and, with CUDA, of the device, in MiB."""
    peak = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if torch.cuda.is_available():
        peak["device"] = torch.cuda.max_memory_allocated() / 2**20
    return peak


# --------------------------------------------------------------------------------------------------
# A rank that ended while others waited for it: they say which one, in one line.
#
# What torch knows of it is the address of a socket. Ranks on one machine look for each other's
# processes instead.


LOOK_S = 5.0
"""Seconds in which a process whose sockets are closed is gone, too."""


@contextmanager
def naming_lost_ranks() -> Iterator[None]:
    """Inside, with several ranks, the loss of another one is a line that says which it is.

    All ranks enter it together.

    Raises:
        LostRank: another rank has ended or cannot be reached.
    """
    if distributed.world() == 1:
        yield
        return
    from torch.distributed import DistError

    try:  # containers of one machine share a kernel, but not their processes
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        own = boot, os.readlink("/proc/self/ns/pid")
    except OSError:  # no Linux: processes of one launcher know each other by process id
        own = socket.gethostname(), str(os.getppid())
    places = distributed.gather((own, os.getpid()))
    neighbours = {rank: pid for rank, (machine, pid) in enumerate(places) if machine == own}
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, DistError) and "gloo" not in str(error):
            raise
        others = {rank: pid for rank, pid in neighbours.items() if rank != distributed.rank()}
        end, lost = time.monotonic() + LOOK_S, list[int]()
        while others and not lost and time.monotonic() <= end:
            time.sleep(0.05)
            lost = [rank for rank, pid in others.items() if _is_dead(pid)]
        again = "continue from the last checkpoint with resume=auto"
        if not lost:
            raise LostRank(
                f"rank {distributed.rank()} lost another rank ({str(error).splitlines()[0]}); {again}"
            ) from error
        who = " and ".join(f"rank {rank} (process {others[rank]})" for rank in lost)
        raise LostRank(
            f"{who} ended while rank {distributed.rank()} waited for it; where it gave no reason itself, "
            f"it was killed (kill -9, or no memory was left); {again}"
        ) from error


def _is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# --------------------------------------------------------------------------------------------------


def train(
    config: Config,
    pools: Pools = LOCAL,
    until: int | None = None,
    output: Output | None = None,
    write_report: Callable[[Path], object] | None = None,
) -> dict[str, Any]:
    """Run a config to its end, or to an interrupt, and return its summary (also in summary.json).

    Cold start (if any), GRPO, evaluations, checkpoints, report. `resume` continues from the last whole
    checkpoint, bit-identically on one CPU thread; a finished run is left as it is.
    `summary["finished"]` is False after an interrupt; after step `until` the run stops as after one.
    `output` says how it goes; None: one that fits standard output. `write_report` is called with the run
    folder at the end, unless `run.report` is off: pages are a matter of whoever starts the run.

    Raises:
        UserError: the user's mistakes, before anything is written where that can be known.
        Superseded: `vlmrl launch` has begun another attempt at this run.
    """
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    if not torch.cuda.is_available():  # activations are in this process's memory
        processes.keep_freed_memory()
    together = config.distributed
    with (
        run_lock.fenced(config.folder),
        distributed.session(together.timeout_s, together.sequence_parallel, together.replicas),
        naming_lost_ranks(),
        ExitStack() as stack,
    ):
        if output is None:
            # A plain run loads half of the package: what it may not need is imported where it is built.
            from vlmrl.runs.output.terminal import choose

            output = stack.enter_context(choose())
        is_main, speaker, copies = distributed.is_main(), output, None

        def say(line: str) -> None:
            if is_main:
                speaker.say(Noted(line))

        if is_main and not distributed.attempt():  # the launcher owns the folder of its run
            stack.enter_context(run_lock.own(config.folder))
        if config.run.on_full_disk == "wait":
            stack.enter_context(files.pausing(say))
        if config.run.mirror is not None:
            from vlmrl.runs import mirror

            copies = stack.enter_context(mirror.opened(config, say))
        return _run(config, pools, copies, until, output, write_report)


def _run(
    config: Config,
    pools: Pools,
    copies: Mirror | None,
    until: int | None,
    output: Output,
    write_report: Callable[[Path], object] | None,
) -> dict[str, Any]:
    start = None
    if distributed.is_main() or config.run.mirror is None:
        start = checkpoint.resolve(config.resume.start, config.folder)
        if copies is not None and config.resume.start == "auto":
            start = copies.restore(start)
    start = distributed.from_main(start)
    progress = checkpoint.read_progress(start) if start else Progress()
    if _is_done(config, progress):
        summary = run_folder.read_summary(config.folder)
        # Without one the run was killed after its last checkpoint: it goes on to its end.
        steps = 0 if config.trains_scores else progress.step
        if summary and summary["finished"] and summary["steps"] == steps:
            if copies is not None:
                copies.finish()
            return summary
    with ExitStack() as stack, Interrupt() as interrupt:
        if config.models:
            from vlmrl.named_models.asked import keeping_replies

            stack.enter_context(keeping_replies(run_folder.replies_folder(config.folder)))
        _require_models(config, output)
        trainer = build_trainer(config, start, progress, stack, pools, output)
        if distributed.is_main():
            from vlmrl.assemble.first_look import SilentModels, epochs, warnings

            trainer.complain = SilentModels(config).complain
            if start is None:
                output.say(Noted(epochs(config, trainer.loader.sources)))
                for line in warnings(config, trainer.loader.sources):
                    trainer.tracker.message(line)
        trainer.checkpoints.mirror = copies
        if until is not None:
            interrupt.when = lambda: trainer.done >= until
        finished = run_cold_start(trainer, start, progress, interrupt)
        if finished and not config.trains_scores:
            begin_rl(trainer, start, progress)
            finished = trainer.run(interrupt)
        result = {"finished": finished, **summarise(trainer)}
    if distributed.is_main():
        if config.trains_scores:
            result["validation"] = run_folder.last_validation(config.folder)
        run_folder.write_summary(config.folder, result)
        if config.run.report and write_report is not None:
            with output.doing("writing the report"):
                write_report(config.folder)
    if copies is not None and copies.finish():
        trainer.checkpoints.prune()  # what was spared while it was copied
    return result


def _is_done(config: Config, progress: Progress) -> bool:
    if config.trains_scores and progress.phase == "sft" and progress.step:
        from vlmrl.training.sft import Stage

        assert config.sft is not None
        return Stage(**progress.extra).done(config.sft)
    return progress.phase == "rl" and progress.step >= config.run.steps


def _require_models(config: Config, output: Output) -> None:
    """Ask the models of the rewards once, from the main rank.

    Raises:
        UserError: one does not answer, on every rank.
    """
    from vlmrl.assemble.first_look import ask_models

    fault = None
    if distributed.is_main():
        try:
            with output.doing("asking the models of the rewards"):
                ask_models(config)
        except UserError as error:
            fault = str(error)
    if (fault := distributed.from_main(fault)) is not None:
        raise UserError(fault)


def run_cold_start(
    trainer: Trainer, start: Path | None, progress: Progress, interrupt: Interrupt
) -> bool:
    """Imitate the demonstrations if the config asks for it and it is not done yet; False if interrupted."""
    config, policy, settings = trainer.config, trainer.policy, trainer.config.sft
    if settings is None or progress.phase == "rl":
        if start and progress.phase == "sft":  # the cold start of another config
            checkpoint.restore_adapter(start, policy)
        return True
    from vlmrl.training import sft

    scores, size = config.trains_scores, settings.batch_size
    maker = pair_maker_of if scores else prompt_maker_of
    trainer.engine.rest()
    chosen = settings.sources or config.data.train
    sources = [open_configured(config, source) for source in chosen]
    name, decay = config.optimizer.name, settings.weight_decay
    optimizer = adamw(policy.trainable, lr=settings.lr, weight_decay=decay, name=name)
    policy.use_optimizer(optimizer, config.optimizer)
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
            state = Progress("sft", stage.step, loader.state, asdict(stage), policy.version)
            name = f"checkpoint of the cold start, step {stage.step}"
            with finite.naming(name), trainer.tracker.doing(f"saving the {name}") as saving:
                folder = trainer.checkpoints.save(state)
            trainer.tracker.saved(stage.step, "sft", folder, saving.seconds)

        def report(step: int, metrics: dict[str, float]) -> None:
            trainer.tracker.sft_step(step, metrics)
            if policy.refused:
                line = f"cold start, step {step}: not applied, because {policy.refused}"
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


def _build_step(
    trainer: Trainer, settings: SftConfig
) -> Callable[[PromptBatch, Stage], dict[str, float]]:
    """Return what takes a step on a batch: to imitate its demonstrations, or to order its pairs."""
    from vlmrl.training import preferences, sft

    config, policy = trainer.config, trainer.policy
    tokens, seed = config.optimizer.micro_batch_tokens, config.run.seed
    if config.trains_scores:
        return lambda batch, stage: preferences.step(policy, batch, settings, stage, tokens, seed)
    metric = config.evaluation.metric if config.evaluation else "reward"
    score = functools.partial(sft.score_demonstrations, trainer.scorer, metric)
    return lambda batch, stage: sft.step(policy, batch, settings, stage, tokens, seed, score)


def begin_rl(trainer: Trainer, start: Path | None, progress: Progress) -> None:
    """Set up optimizer and reference: fresh ones, or those of the checkpoint to resume from."""
    config, policy = trainer.config, trainer.policy
    if any(map(needs_reference, build_algorithms(config))):
        resumed = start if progress.phase == "rl" else None
        set_reference(policy, config, resumed, progress.step)
    o = config.optimizer
    towers = towers_with_lr(policy.named, policy.family, o.lr_factors)
    optimizer = adamw(policy.trainable, o.lr, o.betas, o.eps, o.weight_decay, o.name, towers)
    policy.use_optimizer(optimizer, o)
    if start and progress.phase == "rl":
        checkpoint.restore(start, policy, progress)
        sampler = progress.extra.get("sampler", {})
        trainer.loader.plan.restore(sampler, checkpoint.read_arrays(start, "sampler"))
        restore_state(trainer.strategies, checkpoint.read_arrays(start, "strategies"))
        observed = checkpoint.read_arrays(start, "observed")
        trainer.queue.restore(progress.loader, checkpoint.read_queue(start), observed)
        trainer.done, trainer.kl = progress.step, progress.extra.get("kl")
        trainer.timers.restore(progress.extra["seconds"])
        trainer.evaluations = {int(k): v for k, v in progress.extra["evaluations"].items()}
        if trainer.loopholes is not None and distributed.is_main():
            trainer.loopholes.restore(run_folder.read_metrics(config.folder))
    with finite.naming("before the first step"):
        policy.require_finite()
    trainer.engine.sync(policy)
    if trainer.done == 0:
        for strategy in trainer.strategies:
            strategy.begin(trainer.run_parts)


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
    from vlmrl.training.evaluation import evaluate

    config = trainer.config
    settings = config.sft
    assert settings is not None
    sources = _open_validation(config, settings) if settings.stop_at is not None else []
    rows = sum(len(source.rows) for source in sources)
    plan = EvaluationConfig(metric=settings.stop_metric, bootstrap_resamples=100)
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
                told=activity.done,
            )
        trainer.engine.rest()
        return {settings.stop_metric: evaluation.result["metrics"][settings.stop_metric]}

    return measure
