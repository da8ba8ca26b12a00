"""The training loop: `Trainer.step` is GRPO, `Trainer.run` the cadence around it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vlmrl import plugins
from vlmrl.algorithms.base import Algorithm, passes_of
from vlmrl.config import Config, PluginRef
from vlmrl.data.loader import Loader
from vlmrl.data.source import Source
from vlmrl.engines.base import RunningEngine
from vlmrl.errors import NotFinite, NothingScored
from vlmrl.forward import finite
from vlmrl.forward.packing import pack
from vlmrl.monitoring.machines import Machines, measure_use
from vlmrl.monitoring.run_checks import Checks
from vlmrl.policy import checkpoint
from vlmrl.policy.checkpoint_writer import CheckpointWriter
from vlmrl.policy.optimizers import learning_rate
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.runs.metrics import rank_value
from vlmrl.runs.rollout_rows import TrainerLogprobs
from vlmrl.runs.run_log import RunLog
from vlmrl.schema import Advantages, PromptBatch, Rewards, Rollouts, StepReport, TrainBatch
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import distributed
from vlmrl.system.interrupt import Interrupt
from vlmrl.system.seeds import seed_of
from vlmrl.system.timers import PhaseTimers
from vlmrl.training import divergence, led_weights, metrics
from vlmrl.training.dynamic_sampling import GroupSelection
from vlmrl.training.rollout_queue import RolloutQueue
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, collect_state

if TYPE_CHECKING:
    from vlmrl.monitoring.loopholes import LoopholeWatch
    from vlmrl.training.teacher import Teacher

SEED_PURPOSE, SEED_OF_MASKS = 10, 15
"""Parts of the seeds of an update and of masked media; see `BatchDraw.seed`."""


@dataclass
class Trainer:
    """A run's parts, already built by `assemble`, and how far it is."""

    config: Config
    policy: Policy
    loader: Loader
    queue: RolloutQueue
    engine: RunningEngine
    scorer: Scorer
    algorithm: Algorithm
    run_parts: RunParts
    """What strategies work with."""
    tracker: RunLog
    checkpoints: CheckpointWriter
    held_out: Callable[[], Iterable[PromptBatch]] | None
    """Fresh batches of the evaluation sources; None: no evaluation."""
    held_out_sources: Sequence[Source] = ()
    benchmarks: Sequence[Source] = ()
    """Those of the evaluation sources that are benchmarks."""
    strategies: Sequence[Strategy] = ()
    """What is added to the plain step, in this order."""
    teacher: Teacher | None = None
    """What grades completions, where the algorithm asks for it."""
    checks: Checks | None = None
    """None: the run does not check itself."""
    loopholes: LoopholeWatch | None = None
    """None: nobody compares the reward with other readings of the same answers."""
    complain: Callable[[int], Iterable[str]] = lambda step: ()
    """What there is to say after a step of what is around the run; of the main rank."""
    timers: PhaseTimers = field(default_factory=PhaseTimers)
    machines: Machines = field(default_factory=Machines)
    logprobs: TrainerLogprobs = field(default_factory=TrainerLogprobs)
    done: int = 0
    """Finished steps."""
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Step -> result of every evaluation so far; part of the checkpoint."""
    led: Mapping[str, float] = field(default_factory=dict)
    """What leads weights of the loss to a target (`led_weights`); part of the checkpoint."""
    _built: PluginRef | None = field(default=None, init=False, repr=False)
    """What `algorithm` was built from, where the config schedules anything."""

    def step(self) -> StepReport:
        """Run one GRPO step; with dynamic sampling it draws until enough groups are informative."""
        self._follow_schedules()
        checks = self._run_checks()
        torch.manual_seed(seed_of(self.config.run.seed, SEED_PURPOSE, self.done, 0))
        groups = GroupSelection(self.algorithm, self.progress)
        while groups.is_short:
            draw = self._draw_prompts(groups.num_batches)
            rollouts, rewards = self._score(self._generate(draw), draw)
            groups.add(rollouts, rewards, self.loader.learn(rollouts, rewards))
        rollouts, rewards, sampling = groups.join()
        rollouts, rewards, advantages = self._credit(rollouts, rewards, draw)
        optimizer = self._now.optimizer
        dealt, balance = self._deal(rollouts, advantages)
        batches = self._prepare(self._pack(dealt, advantages))
        stored = self.config.run.stores_rollouts(self.done + 1)
        with self.timers("update"), self.logprobs.noting(self.policy, dealt, stored):
            lr = learning_rate(optimizer, self.done, self.config.run.steps)
            acting = led_weights.acting(self.algorithm, self.led)
            update = self.policy.update(batches, acting, lr, self.progress)
        with self.timers("sync"):
            self.engine.sync(self.policy)
        self.led = led_weights.lead(self.algorithm, self.led, update, int(advantages.kept.sum()))
        self.done += 1
        return self._report(checks | sampling | balance | update, rollouts, rewards, advantages)

    @property
    def num_held_out(self) -> int:
        """Return how many rows an evaluation asks."""
        return sum(len(source.rows) for source in self.held_out_sources)

    def run(self, interrupt: Interrupt) -> Iterator[StepReport]:
        """Train to the configured number of steps, or to an interrupt, with evaluations and checkpoints.

        A step comes when it is written and evaluated; its checkpoint, if due, when the next is asked for.

        Raises:
            NothingScored: an evaluation has no value of its metric; the checkpoint is written before.
            NotFinite: weights, logits or rewards are not finite; the message names the step.
        """
        every = self.config.evaluation.every if self.config.evaluation else self.config.run.steps
        if self.done == 0:
            self._evaluate()
        while self.done < self.config.run.steps:
            with finite.naming(f"step {self.done + 1}"), self.policy.seeing_once():
                report = self.step()
            divergence.refresh_reference(self.policy, self.config, self.done)
            self._write_report(report)
            last = self.done == self.config.run.steps
            try:
                improved = (last or self.done % every == 0) and self._evaluate()
            except NothingScored:
                self.save()  # the step itself is done
                raise
            yield report
            asked = distributed.any_rank(interrupt.asked)
            if last or improved or asked or self.done % self.config.run.save_every == 0:
                self.save()
            if asked:
                return

    @property
    def progress(self) -> float:
        """Share of training done, in [0, 1)."""
        return self.done / max(1, self.config.run.steps)

    @property
    def best(self) -> int | None:
        """The step whose evaluation was best by the configured metric."""
        if self.config.evaluation is None or not self.evaluations:
            return None
        metric = self.config.evaluation.metric
        return max(self.evaluations, key=lambda at: rank_value(self.evaluations[at], metric))

    def save(self) -> None:
        """Write a checkpoint of the state after the last step."""
        name = f"checkpoint of step {self.done}"
        saving = self.tracker.doing(f"saving the {name}")
        with self.timers("checkpoint"), finite.naming(name), saving as saved:
            state = checkpoint.Progress(
                phase="rl",
                step=self.done,
                loader=self.queue.cursor,
                extra={
                    "evaluations": self.evaluations,
                    "seconds": self.timers.state,
                    "sampler": self.loader.plan.scalars,
                    **self.led,
                },
                version=self.policy.version,
            )
            issued, observed = self.queue.collect_state()
            folder = self.checkpoints.save(
                state,
                self.best,
                issued,
                {
                    "sampler": self.loader.plan.arrays,
                    "strategies": collect_state(self.strategies),
                    "observed": observed,
                },
            )
        self.tracker.saved(self.done, "rl", folder, saved.seconds)

    # --------------------------------------------------------------------------------- step parts

    @property
    def _now(self) -> Config:
        """The config as it is for the step in hand."""
        return self.config.at(self.progress)

    def _follow_schedules(self) -> None:
        """Give the step's values of all that the config schedules to those that hold them."""
        if not self.config.is_constant:
            now = self._now
            if now.algorithm != self._built:
                self._built = ref = now.algorithm
                self.algorithm = plugins.build("algorithm", ref.name, ref.options)
            self.policy.max_grad_norm = now.optimizer.max_grad_norm
            self.policy.temperature = now.rollout.temperature
        self.algorithm = led_weights.follow(self.algorithm, self.led)

    def _run_checks(self) -> dict[str, float]:
        """Run the checks that are due, before anything of the step is drawn: they leave no trace in it."""
        if self.checks is None or not self.checks.due(self.done):
            return {}
        with self.timers("generate"):
            self.queue.drain()
        with self.timers("check"), self.tracker.doing("checking engine and media"):
            return self.checks(self.done, self.progress)

    def _draw_prompts(self, number: int) -> BatchDraw:
        """Draw prompts and issue them to the engine; the step has drawn `number` batches before."""
        with self.timers("data"):
            self.queue.fill(self.done, number)
        return BatchDraw(self.config.run.seed, self.done, number, self.progress)

    def _generate(self, draw: BatchDraw) -> Rollouts:
        """Return the batch with its completions, and what the strategies add to it before scoring."""
        with self.timers("generate"):
            rollouts = self.queue.take()
        for strategy in self.strategies:
            rollouts = strategy.prepare(rollouts, draw, self.run_parts)
        return rollouts

    def _score(self, rollouts: Rollouts, draw: BatchDraw) -> tuple[Rollouts, Rewards]:
        """Score the rollouts; the strategies may change both rollouts and rewards."""
        with self.timers("reward"):
            rewards = self.scorer.score(rollouts, draw.progress)
        for strategy in self.strategies:
            rollouts, rewards = strategy.expand(rollouts, rewards, draw, self.run_parts)
        return rollouts, rewards

    def _credit(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw
    ) -> tuple[Rollouts, Rewards, Advantages]:
        """Return what is trained on, with its advantages: the strategies select from it."""
        rewards = self.algorithm.shape(rewards, rollouts, rollouts.max_tokens, self.progress)
        advantages = self.algorithm.advantages(rewards, rollouts, self.progress)
        for strategy in self.strategies:
            known = (rollouts, rewards, advantages)
            rollouts, rewards, advantages = strategy.select(*known, draw, self.run_parts)
        bounded = self.queue.within_bound(advantages, rollouts, self.policy.version)
        return rollouts, rewards, bounded

    def _deal(
        self, rollouts: Rollouts, advantages: Advantages
    ) -> tuple[Rollouts, dict[str, float]]:
        """Return the rollouts where they are trained on, and how even that is."""
        if distributed.world() == 1:
            return rollouts, {}
        from vlmrl.forward.dealing import deal  # a process alone keeps all

        return deal(rollouts, advantages, self._now.optimizer.minibatches, self.policy.sharing)

    def _pack(self, rollouts: Rollouts, advantages: Advantages) -> list[TrainBatch]:
        optimizer = self._now.optimizer
        if not torch.isfinite(advantages.values[advantages.kept]).all():
            raise NotFinite(f"an advantage of algorithm {self._now.algorithm.name!r} is not finite")
        return pack(
            rollouts,
            advantages,
            updates=optimizer.minibatches,
            micro_tokens=optimizer.micro_batch_tokens,
            max_tokens=rollouts.max_tokens,
            ranks=distributed.sequence_ranks(),
        )

    def _prepare(self, batches: list[TrainBatch]) -> list[TrainBatch]:
        """Run the forwards that the algorithm needs before the update; it may then change the batches.

        Before it the optimizer forgets what it is to forget.
        """
        self.engine.rest()
        optimizer = self._now.optimizer
        if optimizer.reset_every and self.done % optimizer.reset_every == 0:
            self.policy.optimizer.state.clear()
        passes = passes_of(self.algorithm, optimizer.minibatches * optimizer.epochs > 1)
        seed = seed_of(self.config.run.seed, SEED_OF_MASKS, self.done)
        with self.timers("logprob"):
            batches = self.policy.run_passes(batches, passes, seed)
            if self.teacher is not None and "teacher" in passes:
                batches = self.teacher.fill(batches)
        return list(self.algorithm.prepare(batches, self.progress)) * optimizer.epochs

    def _report(
        self,
        update: dict[str, float],
        rollouts: Rollouts,
        rewards: Rewards,
        advantages: Advantages,
    ) -> StepReport:
        numbers = metrics.rollout_metrics(rollouts, rewards, advantages)
        for strategy in self.strategies:
            numbers |= strategy.metrics(rollouts, rewards)
        numbers |= self.queue.metrics(rollouts, self.policy.version - 1)
        numbers |= metrics.schedule_metrics(self.config, self._changing, self.done)
        if self.config.models:
            from vlmrl.named_models.asked import take_metrics  # few runs ask models

            numbers |= take_metrics()
        if self.loopholes is not None:
            with self.timers("check"):
                progress = (self.done - 1) / max(1, self.config.run.steps)
                line = numbers | update
                numbers |= self.loopholes(self.done, progress, rollouts, rewards, line)
        lap = self.timers.lap()
        seconds = {f"time/{phase}": s for phase, s in lap.wall.items()} | self.machines.metrics(lap)
        numbers = {**numbers, **update, **seconds, **measure_use()}
        return StepReport(self.done, numbers, rollouts, rewards, advantages)

    @functools.cached_property
    def _changing(self) -> frozenset[str]:
        return self.config.changing

    # ------------------------------------------------------------------------------------ cadence

    def _write_report(self, report: StepReport) -> None:
        self.tracker.step(report)
        for line in self.complain(self.done):
            self.tracker.message(line)
        if self.policy.refused:
            self.tracker.message(f"step {self.done}: not applied, because {self.policy.refused}")
        if self.config.run.stores_rollouts(self.done):
            folder, tokenizer = self.config.folder, self.policy.tokenizer
            run_folder.write_rollouts(folder, report)
            run_folder.write_tokens(folder, report, tokenizer, self.logprobs.by_place)

    def _evaluate(self) -> bool:
        """Evaluate and write the result; True if it is the best so far."""
        if self.held_out is None or self.config.evaluation is None:
            return False
        from vlmrl.training.evaluation import evaluate  # not every run evaluates

        with self.timers("generate"):
            self.queue.drain()
        name = f"evaluation at step {self.done}"
        exact = self.engine.capabilities.exact or self.config.evaluation.force_thinking
        with (
            self.timers("evaluate"),
            self.policy.whole(exact),
            finite.naming(name),
            self.tracker.doing(name, self.num_held_out) as activity,
        ):
            evaluation = evaluate(
                self.held_out(),
                self.engine,
                self.scorer,
                self.config.evaluation,
                self.config.last.rollout.max_tokens,
                policy=self.policy,
                step=self.done,
                progress=self.progress,
                seed=self.config.run.seed,
                benchmarks=self.benchmarks,
                told=activity.done,
            )
        self.evaluations[self.done] = evaluation.result
        rows = evaluation.rows(run_folder.media_folder(self.config.folder))
        run_folder.write_evaluation(self.config.folder, self.done, evaluation.result, rows)
        self.tracker.evaluation(self.evaluations, activity.seconds)
        return self.best == self.done
