"""The training loop: `Trainer.step` is the algorithm, `Trainer.run` the cadence around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from vlmrl.algorithms.base import Algorithm
from vlmrl.config import Config
from vlmrl.data.loader import Loader
from vlmrl.engines.base import Engine
from vlmrl.forward.packing import pack
from vlmrl.monitoring.run_checks import Checks
from vlmrl.policy import checkpoint
from vlmrl.policy.optimizers import learning_rate
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.runs.run_log import RunLog
from vlmrl.schema import Advantages, PromptBatch, Rewards, Rollouts, StepReport, TrainBatch
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import distributed
from vlmrl.system.interrupt import Interrupt
from vlmrl.system.seeds import seed_of
from vlmrl.system.timers import PhaseTimers
from vlmrl.training import metrics, shuffled_frames
from vlmrl.training.dynamic_sampling import refill
from vlmrl.training.evaluation import Evaluation, evaluate
from vlmrl.training.rollout_queue import Ahead


@dataclass
class Trainer:
    """A run's parts, already built (`assemble.trainer`), and where it stands."""

    config: Config
    policy: Policy
    loader: Loader
    engine: Engine
    scorer: Scorer
    algorithm: Algorithm
    tracker: RunLog
    held_out: Callable[[], Iterable[PromptBatch]] | None
    """Fresh batches of the evaluation sources; None: no evaluation."""
    checks: Checks | None = None
    """None: the run asks nothing of itself."""
    timers: PhaseTimers = field(default_factory=PhaseTimers)
    done: int = 0
    """Finished steps."""
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Step -> result of every evaluation so far; part of the checkpoint."""
    extra_draws: int = 0

    def __post_init__(self) -> None:
        self.ahead = Ahead(self.loader, self.engine, self.policy, self.config)

    def step(self) -> StepReport:
        """One GRPO step."""
        checked = self._checked()
        torch.manual_seed(self._seed(0))
        rollouts, rewards = self._rolled_out()
        rollouts, rewards, refilled = refill(self.algorithm, rollouts, rewards, self._another)
        rewards = self.algorithm.shape(rewards, rollouts, self.config.rollout.max_tokens)
        advantages = self.algorithm.advantages(rewards, rollouts)
        batches = self._packed(rollouts, advantages)
        with self.timers("update"):
            update = self.policy.update(batches, self.algorithm, self._lr(), self.progress)
        with self.timers("sync"):
            self.engine.sync(self.policy)
        self.done += 1
        return self._report({**checked, **refilled, **update}, rollouts, rewards, advantages)

    def run(self, interrupt: Interrupt) -> bool:
        """Steps until the configured number, with evaluations and checkpoints; False if interrupted."""
        if self.done == 0:
            self._evaluate()
        while self.done < self.config.run.steps:
            report = self.step()
            self._write(report)
            last = self.done == self.config.run.steps
            improved = (last or self._due(self._evaluation_every())) and self._evaluate()
            asked = distributed.any_rank(interrupt.asked)
            if last or improved or asked or self._due(self.config.run.save_every):
                self.save()
            if asked and not last:
                return False
        return True

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
        return max(self.evaluations, key=lambda step: self.evaluations[step]["metrics"][metric])

    def save(self) -> None:
        """Write a checkpoint of the state after the last step."""
        with self.timers("checkpoint"):
            state = checkpoint.Progress(
                phase="rl",
                step=self.done,
                loader=self.ahead.cursor,
                extra={"evaluations": self.evaluations, "seconds": self.timers.state},
                version=self.policy.version,
            )
            checkpoint.save(
                self.config.folder,
                self.policy,
                state,
                self.config.run.keep_checkpoints,
                self.best,
                self.ahead.state,
            )

    # --------------------------------------------------------------------------------- step parts

    def _checked(self) -> dict[str, float]:
        """Before anything of the step is drawn: a check leaves no trace in it."""
        if self.checks is None or not self.checks.due(self.done):
            return {}
        with self.timers("generate"):
            self.ahead.drain()
        with self.timers("check"):
            return self.checks(self.done, self.progress)

    def _rolled_out(self) -> tuple[Rollouts, Rewards]:
        with self.timers("data"):
            self.ahead.fill(self.done, self.extra_draws)
        with self.timers("generate"):
            rollouts = self.ahead.take()
            batch, draw = rollouts.batch, self.config.rollout
            control = shuffled_frames.control_group(
                batch, self.policy, self.engine, draw, self._seed(3)
            )
        with self.timers("reward"):
            batch = shuffled_frames.told(batch, control, self.scorer, self.progress)
            rollouts = replace(rollouts, batch=batch)
            rewards = self.scorer.score(rollouts, self.progress)
            if self.config.control.shuffle_rewards:
                rewards = _shuffled(rewards, self._seed(2))
        return rollouts, rewards

    def _another(self) -> tuple[Rollouts, Rewards]:
        self.extra_draws += 1
        return self._rolled_out()

    def _packed(self, rollouts: Rollouts, advantages: Advantages) -> list[TrainBatch]:
        """The updates of this step, with reference and old log-probs where they are needed."""
        cut = self.config.optimizer
        batches = pack(
            rollouts,
            advantages,
            updates=cut.minibatches,
            micro_tokens=cut.micro_batch_tokens,
            max_tokens=self.config.rollout.max_tokens,
            rank=distributed.rank(),
        )
        with self.timers("logprob"):
            if self.algorithm.kl:
                batches = self.policy.with_reference(batches)
            if cut.minibatches * cut.epochs > 1:
                batches = self.policy.with_old(batches)
        return list(batches) * cut.epochs

    def _report(
        self,
        update: dict[str, float],
        rollouts: Rollouts,
        rewards: Rewards,
        advantages: Advantages,
    ) -> StepReport:
        numbers = metrics.rollout_metrics(rollouts, rewards, advantages)
        numbers |= shuffled_frames.metrics(rewards)
        numbers |= self.ahead.metrics(rollouts, self.policy.version - 1)
        seconds = {f"time/{phase}": s for phase, s in self.timers.lap().items()}
        return StepReport(
            self.done, {**numbers, **update, **seconds}, rollouts, rewards, advantages
        )

    def _seed(self, purpose: int) -> int:
        return seed_of(self.config.run.seed, 10 + purpose, self.done, self.extra_draws)

    def _lr(self) -> float:
        return learning_rate(self.config.optimizer, self.done, self.config.run.steps)

    # ------------------------------------------------------------------------------------ cadence

    def _write(self, report: StepReport) -> None:
        self.extra_draws = 0
        self.tracker.step(report)
        for line in metrics.plain_words(report.metrics):
            self.tracker.message(line)
        first_or_last = self.done in (1, self.config.run.steps)
        if first_or_last or self._due(self.config.run.rollouts_every):
            run_folder.write_rollouts(self.config.folder, report)

    def _evaluate(self) -> bool:
        """Evaluate, write the result; True if it is the best so far."""
        if self.held_out is None or self.config.evaluation is None:
            return False
        with self.timers("generate"):
            self.ahead.drain()
        with self.timers("evaluate"), self.policy.whole():
            evaluation = evaluate(
                self.held_out(),
                self.engine,
                self.scorer,
                self.config.evaluation,
                self.config.rollout.max_tokens,
                policy=self.policy,
                step=self.done,
                progress=self.progress,
                seed=self.config.run.seed,
            )
        self._note(evaluation)
        return self.best == self.done

    def _note(self, evaluation: Evaluation) -> None:
        self.evaluations[self.done] = evaluation.result
        run_folder.write_evaluation(
            self.config.folder,
            self.done,
            evaluation.result,
            evaluation.rows(run_folder.media_folder(self.config.folder)),
        )
        self.tracker.evaluation(self.done, evaluation.result)

    def _due(self, every: int) -> bool:
        return self.done % every == 0

    def _evaluation_every(self) -> int:
        return self.config.evaluation.every if self.config.evaluation else self.config.run.steps


def _shuffled(rewards: Rewards, seed: int) -> Rewards:
    """A control: the same rewards, dealt out anew over the whole batch."""
    order = torch.randperm(
        rewards.total.numel(), generator=torch.Generator().manual_seed(seed)
    ).view(rewards.total.shape)
    total, valid = rewards.total.flatten()[order], rewards.valid.flatten()[order]
    return Rewards(total, valid, rewards.verdicts)
