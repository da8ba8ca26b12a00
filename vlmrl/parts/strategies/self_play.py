"""Absolute Zero: the policy proposes questions, and is paid for those that it answers now and then.

Source: Zhao et al. 2025, "Absolute Zero", arXiv 2505.03335, eq. 4: with s the share of right answers
to what was proposed, a proposal's reward is 0 where s is 0 or 1, else 1 - s. A card takes the place of
their Python interpreter: a row {id, proposal} of the source `solve` becomes a sample, or is refused.
Differs: proposals to one prompt are a group with a baseline of its own, and so are answers to one
proposal; theirs has one baseline for each role. What a batch proposes twice is asked once.
"""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Prompt, Rewards, Rollouts, Sample, Verdict
from vlmrl.scoring.scorer import Judged
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, add_groups, of_origin, pay

SEED_PURPOSE = 21
LABEL = "self_play"
"""Name of the verdict on a proposal."""

Group = tuple[Prompt, Sequence[Completion], Sequence[Judged]]


@dataclass(frozen=True)
class SelfPlay(Strategy):
    """Questions that the policy itself proposes, and its answers. Example: SelfPlay(groups=16)."""

    curves: ClassVar[Mapping[str, str]] = {
        "self_play/valid": "Share of proposals that became a question.",
        "self_play/learnable": "Share of proposals of which some answers were right, but not all.",
        "self_play/solved": "Share of right answers, averaged over the proposals that became a question.",
        "self_play/faulted": "Share of proposals that could not be judged and have no part in the loss.",
        "self_play/pool": "Proposals that are kept to be asked again.",
    }
    state_names: ClassVar[tuple[str, ...]] = ("texts", "lengths")
    reads_completions: ClassVar[bool] = True

    propose: str = "self_play/propose"
    """Training source whose rows ask for a proposal. What its verifiers give is paid, too."""
    solve: str = "self_play/solve"
    """Training source whose card makes a sample of a proposal, and whose verifiers judge the answers.
    With weight 0 none of its own rows are drawn."""
    groups: int = 4
    """Groups of answers that a step trains on: to new proposals, then to ones of the pool."""
    pool: int = 256
    """Latest proposals that are kept."""
    correct_above: float = 0.5
    """An answer is right if its reward exceeds this."""
    refused: float = 0.0
    """What is paid for a proposal that cannot become a question."""

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise ValueError(f"expected groups of at least 1, got {self.groups}")
        if self.pool < 0:
            raise ValueError(f"expected a pool of at least 0, got {self.pool}")

    def begin(self, run: RunParts) -> None:
        """Begin with an empty pool.

        Raises:
            UserError: `propose` or `solve` is no training source.
        """
        for name in (self.propose, self.solve):
            run.source(LABEL, name)
        self._keep([])

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Ask what was proposed, pay the proposals, and put groups of answers behind the batch."""
        proposals = {
            (p, g): rollouts.completions[p][g].answer
            for p, g in of_origin(rollouts, rewards, "policy")
            if rollouts.batch.prompts[p].sample.source == self.propose
        }
        if not proposals:
            return rollouts, rewards
        source = run.source(LABEL, self.solve)
        read = {text: self._read(source, text) for text in proposals.values()}
        chance = np.random.default_rng(draw.seed(SEED_PURPOSE))
        new = [text for text, outcome in read.items() if text and isinstance(outcome, Sample)]
        new = [new[n] for n in chance.permutation(len(new))]
        kept = [text for text in self._kept() if text not in read]
        old = [kept[n] for n in chance.permutation(len(kept))][: max(0, self.groups - len(new))]
        self._keep([*kept, *new])
        read |= {text: self._read(source, text) for text in old}
        posed = {t: outcome for t in [*new, *old] if isinstance(outcome := read[t], Sample)}
        groups: list[Group] = []
        if samples := [*posed.values()]:
            prompts = run.pose(samples, source)
            answers = run.ask(prompts, rollouts.shape[1], draw, SEED_PURPOSE)
            judgements = run.judge(answers, samples, draw)
            groups = list(zip(prompts, answers.completions, judgements, strict=True))
        for text, (_, _, judged) in zip(posed, groups, strict=True):
            read[text] = self._learnability(judged)
        outcomes = ((key, read[text]) for key, text in proposals.items())
        verdicts = {key: outcome for key, outcome in outcomes if isinstance(outcome, Verdict)}
        return add_groups(rollouts, pay(rewards, LABEL, verdicts), groups[: self.groups])

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return the shares of proposals by what became of them, and the size of the pool."""
        verdicts = [of[LABEL] for group in rewards.verdicts for of in group if LABEL in of]
        pool = {"self_play/pool": float(len(self._kept()))}
        if not verdicts:
            return pool
        solved = [v.parts["solved"] for v in verdicts if "solved" in v.parts]
        of_solved = {"self_play/solved": statistics.fmean(solved)} if solved else {}
        return {
            "self_play/valid": len(solved) / len(verdicts),
            "self_play/learnable": sum(0 < s < 1 for s in solved) / len(verdicts),
            "self_play/faulted": sum(v.fault is not None for v in verdicts) / len(verdicts),
            **of_solved,
            **pool,
        }

    def _read(self, source: Source, text: str | None) -> Sample | Verdict:
        """Return the sample that a proposal becomes, or why it becomes none."""
        if not text:
            return Verdict(self.refused, note="nothing is proposed")
        row = {"id": f"proposed-{zlib.crc32(text.encode()):08x}", "proposal": text}
        try:
            return replace(source, rows=[row]).sample(0)
        except UserError as error:
            if isinstance(error.__cause__, UserError):
                return Verdict(self.refused, answer=text, note=str(error.__cause__))
            return Verdict.failed(str(error))  # the card's doing, not the policy's

    def _learnability(self, judged: Sequence[Judged]) -> Verdict:
        right = [entry.reward > self.correct_above for entry in judged if entry.reward is not None]
        if not right:
            return Verdict.failed("none of its answers could be judged")
        solved = statistics.fmean(right)
        return Verdict(1 - solved if 0 < solved < 1 else 0.0, {"solved": solved})

    def _kept(self) -> list[str]:
        """Return the pool, oldest first."""
        ends = np.cumsum(self.state["lengths"])[:-1]
        texts = [part.tobytes().decode() for part in np.split(self.state["texts"], ends)]
        return texts[: len(self.state["lengths"])]

    def _keep(self, texts: Sequence[str]) -> None:
        latest = [text.encode() for text in texts[max(0, len(texts) - self.pool) :]]
        self.state["texts"] = np.frombuffer(b"".join(latest), np.uint8)
        self.state["lengths"] = np.array([len(text) for text in latest], np.int64)
