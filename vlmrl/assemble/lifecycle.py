"""The life of a run: resume, cold start, GRPO, summary and report."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from vlmrl.algorithms.base import needs_reference
from vlmrl.assemble.build import LOCAL, Pools, build_algorithms, build_trainer
from vlmrl.config import Config
from vlmrl.data.source import other_splits
from vlmrl.errors import LostRank, UserError
from vlmrl.forward import finite
from vlmrl.policy import checkpoint
from vlmrl.policy.checkpoint import Progress
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.trainable import towers_with_lr
from vlmrl.runs import run_folder, run_lock
from vlmrl.runs.output.events import Noted
from vlmrl.runs.output.outputs import Output
from vlmrl.schema import StepReport
from vlmrl.system import distributed, files, processes
from vlmrl.system.interrupt import Interrupt
from vlmrl.training.divergence import set_reference
from vlmrl.training.led_weights import LED
from vlmrl.training.strategy import restore_state
from vlmrl.training.trainer import Trainer

if TYPE_CHECKING:
    from vlmrl.runs.mirror import Mirror


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
    steps = run_steps(config, pools, until, output, write_report)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            summary: dict[str, Any] = end.value
            return summary


def run_steps(
    config: Config,
    pools: Pools = LOCAL,
    until: int | None = None,
    output: Output | None = None,
    write_report: Callable[[Path], object] | None = None,
) -> Generator[StepReport, None, dict[str, Any]]:
    """Yield the GRPO steps of a run as they are done, and return its summary: `train`, step by step.

    The cold start comes before the first. A loop that is left early (`close`) ends the run as Ctrl-C does.
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
        if config.run.cpu_products == "onednn":
            from vlmrl.system import cpu_products

            stack.enter_context(cpu_products.by_onednn())
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
        return (yield from _run(config, pools, copies, until, output, write_report))


def _run(
    config: Config,
    pools: Pools,
    copies: Mirror | None,
    until: int | None,
    output: Output,
    write_report: Callable[[Path], object] | None,
) -> Generator[StepReport, None, dict[str, Any]]:
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
            _look_first(trainer, start, output)
        trainer.checkpoints.mirror = copies
        if until is not None:
            interrupt.when = lambda: trainer.done >= until
        finished = _run_first_stage(trainer, start, progress, interrupt)
        if finished and not config.trains_scores:
            begin_rl(trainer, start, progress)
            for step in trainer.run(interrupt):
                try:
                    yield step
                except GeneratorExit:  # the caller's loop is left
                    interrupt.when = lambda: True
            finished = trainer.done >= config.run.steps
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


def _look_first(trainer: Trainer, start: Path | None, output: Output) -> None:
    """Say what there is to say before the first step of a run, and hear of models that fall silent later."""
    from vlmrl.assemble.first_look import SilentModels, epochs, repeats, warnings

    config = trainer.config
    trainer.complain = SilentModels(config).complain
    if start is None:
        for line in (epochs(config, trainer.loader.sources), *other_splits(config)):
            output.say(Noted(line))
        for line in warnings(config, trainer.loader.sources):
            trainer.tracker.message(line)
        for line in repeats(trainer.held_out_sources):
            trainer.tracker.message(line)


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


def _run_first_stage(
    trainer: Trainer, start: Path | None, progress: Progress, interrupt: Interrupt
) -> bool:
    """Run the cold start if the config asks for it and it is not done yet; False if interrupted."""
    if trainer.config.sft is None or progress.phase == "rl":
        if start and progress.phase == "sft":  # the cold start of another config
            checkpoint.restore_adapter(start, trainer.policy)
        return True
    from vlmrl.assemble.cold_start import run_cold_start  # not every run has one

    return run_cold_start(trainer, trainer.config.sft, start, progress, interrupt)


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
        trainer.done = progress.step
        trainer.led = {name: progress.extra[name] for name in LED if name in progress.extra}
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
