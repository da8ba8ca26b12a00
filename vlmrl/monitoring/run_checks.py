"""The checks of a run at intervals: parity of engine and trainer, and the media ablation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vlmrl.config import ChecksConfig
from vlmrl.engines.base import RunningEngine
from vlmrl.errors import UserError
from vlmrl.monitoring.engine_parity import make_probe_prompts, measure_parity, tolerance
from vlmrl.monitoring.media_ablation import measure_reliance
from vlmrl.policy.policy import Policy
from vlmrl.schema import Prompt
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import distributed

__all__ = ["Checks"]

PARITY_PROMPTS = 2
"""Prompts of the run that the parity probe uses in addition to its fixed ones of noise."""


@dataclass(frozen=True)
class Checks:
    """The checks of a run; `prompts` are a few fixed ones with media (perhaps none)."""

    config: ChecksConfig
    policy: Policy
    engine: RunningEngine
    scorer: Scorer
    prompts: Sequence[Prompt]
    max_tokens: int
    tell: Callable[[str], None]
    """A function that shows the user a message."""
    turns: bool = False
    """Whether rollouts have several turns."""

    def __call__(self, done: int, progress: float) -> dict[str, float]:
        """Run what is due after `done` steps, with the weights that the next step draws with; return metrics.

        Changes neither weights nor any generator, so a resumed run goes on the same.

        Raises:
            UserError: the engine differs from the trainer, or the model ignores its media and
                `checks.media_ablation_stop` is set.
        """
        found: dict[str, float] = {}
        if self._parity_due(done):
            found |= self._parity(done)
            distributed.barrier()  # the media ablation may set another temperature for all ranks
        if self.prompts and _due(done, self.config.media_ablation_every):
            found |= self._ablate_media(done, progress)
        return found

    def due(self, done: int) -> bool:
        """Return whether a check is due after `done` steps."""
        ablation = bool(self.prompts) and _due(done, self.config.media_ablation_every)
        return ablation or self._parity_due(done)

    def _parity_due(self, done: int) -> bool:
        every = self.config.parity_every
        wanted = self.config.parity_exact or not self.engine.capabilities.exact
        return wanted and every > 0 and (done == 1 or _due(done, every))

    def _parity(self, done: int) -> dict[str, float]:
        prompts = (*make_probe_prompts(self.policy, self.turns), *self.prompts[:PARITY_PROMPTS])
        found = measure_parity(self.engine, self.policy, prompts)
        allowed = self.config.parity_tolerance or tolerance(self.policy)
        found.require(allowed, f"parity after {done} steps")
        return found.metrics()

    def _ablate_media(self, done: int, progress: float) -> dict[str, float]:
        found = measure_reliance(
            self.engine, self.policy, self.scorer, self.prompts, self.max_tokens, progress
        )
        floor = self.config.media_ablation_min_drop
        complaint = found.complaint(floor) if floor is not None else None
        if complaint and self.config.media_ablation_stop:
            raise UserError(f"after {done} steps: {complaint}")
        if complaint:
            self.tell(f"after {done} steps: {complaint}")
        return found.metrics()


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0
