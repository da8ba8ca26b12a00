"""Partial rollouts: a completion that reaches a step's token limit goes on in a later step.

Source: Kimi Team 2025, "Kimi k1.5", arXiv 2501.12599, section 2.6.2. `rollout.max_tokens` is what a step
spends on a completion; one that is cut is continued from its prefix by the newer policy, and every
token keeps the log-prob and the version of the weights that sampled it, which `correction` weighs.
Differs: a group is trained on when all of its completions are done. It then takes the place of a
fresh group that is cut; until one is done, a cut group has no part in the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.data.prompt import continue_prompt
from vlmrl.engines.completions import Sampled, make_completions
from vlmrl.schema import Completion, Prompt, PromptBatch, Rewards, Rollouts
from vlmrl.training.strategy import (
    NAMES,
    BatchDraw,
    RunParts,
    Strategy,
    from_arrays,
    store,
    to_arrays,
)

SEED_PURPOSE = 20

Group = tuple[Prompt, tuple[Completion, ...]]


@dataclass(frozen=True)
class PartialRollouts(Strategy):
    """Long completions are written over several steps. Example: PartialRollouts(max_tokens=8192)."""

    curves: ClassVar[Mapping[str, str]] = {
        "partial_rollouts/waiting": "Groups with a completion that is to be continued in a later step.",
        "partial_rollouts/continued": "Share of completions that were written in several steps.",
    }
    state_names: ClassVar[tuple[str, ...]] = NAMES
    reads_completions: ClassVar[bool] = True

    max_tokens: int = 4096
    """Longest completion, in tokens, over all of its steps."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"expected max_tokens of at least 1, got {self.max_tokens}")

    def begin(self, run: RunParts) -> None:
        """Begin with no group that waits."""
        self.state.update(to_arrays([]))

    def prepare(self, rollouts: Rollouts, draw: BatchDraw, run: RunParts) -> Rollouts:
        """Continue what waits; put groups that are done in the places of fresh ones that are cut."""
        waiting = self._continue(self._recall(run), draw, run)
        done = [group for group in waiting if self._is_done(group[1])]
        waiting = [group for group in waiting if not self._is_done(group[1])]
        prompts, groups = [*rollouts.batch.prompts], [*rollouts.completions]
        for p, group in enumerate(groups):
            if self._is_done(group):
                continue
            waiting.append((prompts[p], group))
            if done:
                prompts[p], groups[p] = done.pop(0)
            else:
                groups[p] = tuple(replace(c, finish_reason="abort") for c in group)
        kept = [store(prompt, group) for prompt, group in [*done, *waiting]]
        self.state.update(to_arrays(kept))
        return replace(
            rollouts,
            batch=PromptBatch(tuple(prompts), rollouts.batch.cursor),
            completions=tuple(groups),
            max_tokens=max(self.max_tokens, rollouts.max_tokens),
        )

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return `partial_rollouts/waiting`, groups, and `partial_rollouts/continued`, a share."""
        every = [c for group in rollouts.completions for c in group if c.finish_reason != "abort"]
        continued = sum(len(c.versions) > 1 for c in every) / max(1, len(every))
        waiting = float(len(self.state["rows"])) if self.state else 0.0
        return {"partial_rollouts/waiting": waiting, "partial_rollouts/continued": continued}

    def _is_done(self, group: Sequence[Completion]) -> bool:
        return not any(self._is_cut(c) for c in group)

    def _is_cut(self, completion: Completion) -> bool:
        return completion.finish_reason == "length" and completion.num_tokens < self.max_tokens

    def _recall(self, run: RunParts) -> list[Group]:
        """Return the groups that wait; one whose row has become bad is left out."""
        stored = from_arrays(self.state) if self.state else []
        places, homes = [group.row for group in stored], [group.home for group in stored]
        made = run.loader.recall(places, homes) if stored else []
        waiting = [(prompt, group) for prompt, group in zip(made, stored, strict=True) if prompt]
        prompts = [prompt for prompt, _ in waiting]
        groups = make_completions(run.policy, prompts, [group.completions for _, group in waiting])
        return list(zip(prompts, groups, strict=True))

    def _continue(self, waiting: Sequence[Group], draw: BatchDraw, run: RunParts) -> list[Group]:
        """Return the groups with their cut completions longer by what a step spends on one."""
        cut = [(prompt, c) for prompt, group in waiting for c in group if self._is_cut(c)]
        if not cut:
            return list(waiting)
        prefixed = [continue_prompt(prompt, c.token_ids) for prompt, c in cut]
        rest = run.ask(prefixed, 1, draw, SEED_PURPOSE).completions
        joined = [[self._join(c, more[0])] for (_, c), more in zip(cut, rest, strict=True)]
        longer = iter(make_completions(run.policy, [prompt for prompt, _ in cut], joined))
        return [
            (prompt, tuple(next(longer)[0] if self._is_cut(c) else c for c in group))
            for prompt, group in waiting
        ]

    def _join(self, begun: Completion, rest: Completion) -> Sampled:
        """Return a completion and what continues it as one, cut at the longest."""
        ids = (*begun.token_ids, *rest.token_ids)[: self.max_tokens]
        versions, left = [], len(ids)
        for version, count in (*begun.versions, *rest.versions):
            if left:
                versions.append((version, min(count, left)))
            left -= min(count, left)
        whole = len(ids) == len(begun.token_ids) + len(rest.token_ids)
        return Sampled(
            ids,
            (*begun.logprobs, *rest.logprobs)[: self.max_tokens],
            rest.finish_reason if whole else "length",
            tuple(versions),
        )
