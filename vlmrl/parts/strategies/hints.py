"""Guide-GRPO: a group that failed altogether is asked again with a hint.

Source: Nath et al. 2025, "Adaptive Guidance Accelerates Reinforcement Learning of Reasoning Models",
arXiv 2506.13923. What was written with the hint is trained on as if there had been none, and is added to
the failed group. Every group has places for it, which have no part in anything where they stay empty.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from vlmrl.schema import Prompt, Rewards, Rollouts, Sample
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, of_origin, put_in, widen

SEED_PURPOSE = 17


@dataclass(frozen=True)
class Hints(Strategy):
    """A hint from the data, for groups that failed altogether. Example: Hints(column="hint", count=4)."""

    column: str = "hint"
    """Key of a row's `meta` with the text of its hint; a row without one gets none."""
    count: int = 4
    """Completions with the hint that are added to a failed group."""
    failed_at: float = 0.0
    """A group has failed if no valid reward exceeds this."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"expected count of at least 1, got {self.count}")

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Ask failed groups again with their hints; the answers are judged as answers without, and added."""
        prompts = enumerate(rollouts.batch.prompts)
        asked = [p for p, prompt in prompts if self._has_failed(rewards, p) and self._hint(prompt)]
        wide = widen(rollouts, rewards, self.count, "hint")
        if not asked:
            return wide
        plain = [rollouts.batch.prompts[p] for p in asked]
        hinted = [run.retell(prompt, self._with_hint(prompt)) for prompt in plain]
        answers = run.ask(hinted, self.count, draw, SEED_PURPOSE)
        judged = run.judge(answers, [prompt.sample for prompt in plain], draw)
        pairs = (
            list(zip(group, of_group, strict=True))
            for group, of_group in zip(answers.completions, judged, strict=True)
        )
        return put_in(*wide, dict(zip(asked, pairs, strict=True)), "hint")

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return `hints/share`, of groups that got a hint, and `hints/reward`, the mean with it."""
        hinted = of_origin(rollouts, rewards, "hint")
        share = len({p for p, _ in hinted}) / max(1, len(rollouts.completions))
        paid = [float(rewards.total[p, g]) for p, g in hinted]
        reward = {"hints/reward": statistics.fmean(paid)} if paid else {}
        return {"hints/share": share, **reward}

    def _has_failed(self, rewards: Rewards, p: int) -> bool:
        valid = rewards.valid[p]
        return bool(valid.any()) and bool((rewards.total[p][valid] <= self.failed_at).all())

    def _hint(self, prompt: Prompt) -> str:
        return str(prompt.sample.meta.get(self.column) or "")

    def _with_hint(self, prompt: Prompt) -> Sample:
        sample = prompt.sample
        return replace(sample, parts=(*sample.parts, f"Hint: {self._hint(prompt)}"))
