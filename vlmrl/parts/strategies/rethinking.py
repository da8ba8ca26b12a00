"""Forced rethinking: a completed answer is made to go on with a trigger text, and joins its group if right.

Source: Wang et al. 2025, "VL-Rethinker", arXiv 2504.08837, section 3.2, and its code (experience_maker): a
share of the completions that ended by themselves go on behind a trigger, at most two of a group are kept,
and none that is wrong. The trigger is trained on as if the policy had written it. Differs: a completion
takes the place of the last one of its group, there it is added; the answer is never cut before the trigger,
as half of them are there; there is no loss of imitation beside.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from vlmrl.data.prompt import continue_prompt
from vlmrl.engines.completions import Sampled, make_completions
from vlmrl.schema import Completion, Rewards, Rollouts
from vlmrl.scoring.scorer import Judged
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, of_origin, put_in

SEED_PURPOSE = 26


@dataclass(frozen=True)
class Rethinking(Strategy):
    """Answers that go on behind a trigger. Example: Rethinking(share=0.65, count=2)."""

    curves: ClassVar[Mapping[str, str]] = {
        "rethinking/share": "Share of groups that got a completion that was told to think again.",
        "rethinking/reward": "Mean reward of completions that were told to think again and kept.",
    }
    reads_completions: ClassVar[bool] = True

    triggers: tuple[str, ...] = (
        "\n\nWait",
        "\n\nWait, does it seem right?",
        "\n\nWait, let's double check",
        "\n\nWait, there might be a mistake",
    )
    """Texts, of which one is put behind each answer that goes on."""
    share: float = 0.65
    """Share of the completions that ended by themselves which go on."""
    count: int = 2
    """Most completions of a group that are kept."""
    correct_above: float = 0.5
    """A completion is right if its reward exceeds this."""

    def __post_init__(self) -> None:
        if not self.triggers or not all(self.triggers):
            raise ValueError("expected at least one trigger, and none empty")
        if not 0 < self.share <= 1 or self.count < 1:
            raise ValueError(
                f"expected share in (0, 1] and count of at least 1, got {self.share} and {self.count}"
            )

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Let completions go on; right ones take the places of the last of their group."""
        rng = np.random.default_rng(draw.seed(SEED_PURPOSE))
        limit = run.config.at(draw.progress).rollout.max_tokens
        asked: list[tuple[int, Sampled]] = []
        for p, group in enumerate(rollouts.completions):
            for c in group:
                if c.finish_reason != "stop" or c.origin != "policy" or rng.random() >= self.share:
                    continue
                begun = _with_trigger(c, self.triggers[rng.integers(len(self.triggers))], run)
                if len(begun.token_ids) < limit:
                    asked.append((p, begun))
        if not asked:
            return rollouts, rewards
        prompts = [rollouts.batch.prompts[p] for p, _ in asked]
        longer = [
            continue_prompt(prompt, begun.token_ids)
            for prompt, (_, begun) in zip(prompts, asked, strict=True)
        ]
        rest = run.ask(longer, 1, draw, SEED_PURPOSE)
        joined = [
            [_join(begun, more, limit)]
            for (_, begun), (more,) in zip(asked, rest.completions, strict=True)
        ]
        groups = make_completions(run.policy, prompts, joined)
        batch = replace(rest.batch, prompts=tuple(prompts))
        whole = replace(rest, batch=batch, completions=tuple(groups))
        judged = run.judge(whole, [prompt.sample for prompt in prompts], draw)
        right: dict[int, list[tuple[Completion, Judged]]] = {}
        for (p, _), (completion,), (entry,) in zip(asked, groups, judged, strict=True):
            if entry.reward is not None and entry.reward > self.correct_above:
                right.setdefault(p, []).append((completion, entry))
        kept = {p: pairs[: self.count] for p, pairs in right.items()}
        return put_in(rollouts, rewards, kept, "refinement")

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return the share and the mean reward that `curves` names; no mean where none was kept."""
        kept = of_origin(rollouts, rewards, "refinement")
        share = len({p for p, _ in kept}) / max(1, len(rollouts.completions))
        paid = [float(rewards.total[p, g]) for p, g in kept]
        reward = {"rethinking/reward": statistics.fmean(paid)} if paid else {}
        return {"rethinking/share": share, **reward}


def _with_trigger(completion: Completion, trigger: str, run: RunParts) -> Sampled:
    """Return a completion without its stop token, with the trigger behind it, certain as nobody drew it."""
    stops = set(run.policy.stop_ids)
    count = len(completion.token_ids) - (completion.token_ids[-1] in stops)
    ids = run.policy.tokenizer(trigger, add_special_tokens=False)["input_ids"]
    version = completion.versions[-1][0] if completion.versions else run.policy.version
    return Sampled(
        (*completion.token_ids[:count], *ids),
        (*completion.logprobs[:count], *[0.0] * len(ids)),
        "length",
        ((version, count + len(ids)),),
    )


def _join(begun: Sampled, rest: Completion, limit: int) -> Sampled:
    """Return a completion and what continues it as one, cut at `limit` tokens."""
    left = limit - len(begun.token_ids)
    whole = rest.num_tokens <= left
    versions = rest.versions if whole else ((rest.versions[0][0], left),)
    return Sampled(
        (*begun.token_ids, *rest.token_ids[:left]),
        (*begun.logprobs, *rest.logprobs[:left]),
        rest.finish_reason if whole else "length",
        (*begun.versions, *versions),
    )
