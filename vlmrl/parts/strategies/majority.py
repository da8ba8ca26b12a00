"""TTRL: the most frequent answer of a group is taken for the truth; nobody labels anything.

Source: Zuo et al. 2025, "TTRL: Test-Time Reinforcement Learning", arXiv 2504.16084. Differs by default:
where two answers are equally frequent nobody is paid (theirs takes the first), all completions are
trained on (theirs train on the first half), and only equal texts are paid (theirs verify by mathematics).
**A policy that gives one answer to everything is paid in full**: `majority/one_answer` and
`majority/entropy` show it, and the run says so.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from vlmrl.answers import text
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Rewards, Rollouts, Sample, Truth, Verdict
from vlmrl.system import distributed
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, pay

LABEL = "majority"
"""Name of the verdict on a completion."""
FEWEST = 4
"""Fewest groups with a majority of which `majority/one_answer` says something."""


@dataclass(frozen=True)
class Majority(Strategy):
    """A reward for the answer that most of the group give, without labels. Example: Majority(weight=1.0)."""

    curves: ClassVar[Mapping[str, str]] = {
        "majority/share": "Mean share of a group that gives its most frequent answer.",
        "majority/none": "Share of groups in which no answer was given more often than all others.",
        "majority/entropy": "Entropy of the answers to all prompts of the step, in nats: 0 if all are one.",
        "majority/one_answer": "Share of the step's majorities that are one answer: 1 is collapse.",
    }
    reads_completions: ClassVar[bool] = True

    weight: float = 1.0
    """What is paid for the majority's answer."""
    ties: Literal["nobody", "first"] = "nobody"
    """Who is paid where no answer is the most frequent one: nobody, or the first of those that are."""
    trained: int = 0
    """How many completions of a group, its first, are trained on; the others vote alone. 0: all are."""
    by: str | None = None
    """Name of a reward of the source that decides which answers equal the majority's, such as `math`.
    Absent: equal texts are."""

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise ValueError(f"expected a weight above 0, got {self.weight:g}")
        if self.trained < 0:
            raise ValueError(f"trained: expected 0 or more, got {self.trained}")

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Pay the completions whose answer is that of most of their group."""
        paid: dict[tuple[int, int], Verdict] = {}
        asked: dict[tuple[int, int], tuple[Completion, Sample]] = {}
        for p, group in enumerate(rollouts.completions):
            votes = {
                g: "" if completion.truncated else text.normalised(completion.answer or "")
                for g, completion in enumerate(group)
                if rewards.valid[p, g] and completion.origin == "policy"
            }
            chosen = most_frequent([vote for vote in votes.values() if vote], self.ties == "first")
            for g, vote in votes.items():
                note = "" if chosen else "no answer has a majority"
                paid[p, g] = Verdict(float(vote == chosen != ""), answer=vote or None, note=note)
                if self.by and chosen and vote not in ("", chosen):
                    sample = rollouts.batch.prompts[p].sample
                    asked[p, g] = group[g], replace(sample, truth=Truth(text=(chosen,)))
        paid |= self._judge(asked, draw, run)
        rewards = pay(rewards, LABEL, paid, self.weight)
        if self.trained:
            valid = rewards.valid.clone()
            valid[:, self.trained :] = False
            rewards = replace(rewards, valid=valid)
        return rollouts, rewards

    def _judge(
        self,
        asked: Mapping[tuple[int, int], tuple[Completion, Sample]],
        draw: BatchDraw,
        run: RunParts,
    ) -> dict[tuple[int, int], Verdict]:
        """Ask the reward `by` of other answers than the majority's; the main rank decides for all."""
        if not asked:  # so it is on all ranks
            return {}
        verdicts: list[Verdict] = []
        if distributed.is_main():
            calls = []
            for completion, sample in asked.values():
                components = run.scorer.components(sample, draw.progress, draw.progress)
                named = [c for c in components if c.label == self.by]
                if not named:
                    raise UserError(
                        f"strategy majority: by: source {sample.source!r} has no reward {self.by!r}"
                    )
                calls.append((completion, sample, named))
            verdicts = [of_one[str(self.by)] for of_one in run.scorer.probe(calls)]
            verdicts = [
                replace(verdict, answer=text.normalised(completion.answer or ""))
                for verdict, (completion, _) in zip(verdicts, asked.values(), strict=True)
            ]
        return dict(zip(asked, distributed.from_main(verdicts), strict=True))

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return how much the answers agree, within groups and over the batch; see `curves`."""
        groups = [[of[LABEL] for of in group if LABEL in of] for group in rewards.verdicts]
        groups = [group for group in groups if group]
        votes = [[str(v.answer) for v in group if v.answer] for group in groups]
        if not any(votes):
            return {}
        chosen = [most_frequent(group) for group in votes]
        agreed = Counter(answer for answer in chosen if answer)
        every = Counter(vote for group in votes for vote in group)
        total = every.total()
        numbers = {
            "majority/share": statistics.fmean(
                max(Counter(answers).values(), default=0) / len(group)
                for answers, group in zip(votes, groups, strict=True)
            ),
            "majority/none": statistics.fmean(not answer for answer in chosen),
            "majority/entropy": -sum(n / total * math.log(n / total) for n in every.values()) + 0.0,
        }
        if agreed.total() >= FEWEST:
            numbers["majority/one_answer"] = max(agreed.values()) / agreed.total()
        return numbers


def most_frequent(votes: Sequence[str], takes_first: bool = False) -> str:
    """Return the answer that was given most often, more than once; "" if there is not one such.

    With `takes_first` it is the first of the most frequent ones.
    """
    if takes_first:
        return Counter(votes).most_common(1)[0][0] if votes else ""
    (first, most), (_, next_) = [*Counter(votes).most_common(2), ("", 0), ("", 0)][:2]
    return first if most > max(next_, 1) else ""
