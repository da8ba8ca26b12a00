"""Cycle consistency: a description of a box must lead the policy back to the box.

Completions of one source describe what is in the box that their question names; the policy is then asked
where that is, in the prompt of another source, whose verifiers compare what it finds with the box. It is
the listener of Yu et al. 2017, "A Joint Speaker-Listener-Reinforcer Model for Referring Expressions",
arXiv 1612.09542, as a reward; here speaker and listener are one policy. A description that states a
place in numbers is refused: it would lead back without a look at the image.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.data.source import Source
from vlmrl.schema import Completion, Media, Rewards, Rollouts, Sample, Verdict
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, of_origin, pay

SEED_PURPOSE = 24
LABEL = "cycle_consistency"
"""Name of the verdict on a description."""
MAX_NUMBERS = 1
"""Most numbers in a description: two are a place."""


@dataclass(frozen=True)
class CycleConsistency(Strategy):
    """A reward for descriptions that lead back to their box. Example: CycleConsistency(weight=1.0)."""

    curves: ClassVar[Mapping[str, str]] = {
        "cycle_consistency/missing": "Share of completions of the describing source without a description.",
        "cycle_consistency/refused": "Share of descriptions that state a place in numbers: paid 0.",
    }
    reads_completions: ClassVar[bool] = True

    describe: str = "cycle/describe"
    """Training source whose answers are descriptions; its truth has the box. What its verifiers give is
    paid, too."""
    ground: str = "cycle/ground"
    """Training source whose template and verifiers are those of the way back. With weight 0 none of its
    own rows are drawn."""
    question: str = "Where is {}?"
    """What is asked on the way back; {} is the description."""
    weight: float = 1.0
    """What the grade of the way back is multiplied by."""

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise ValueError(f"expected a weight above 0, got {self.weight:g}")
        if self.question.count("{}") != 1:
            raise ValueError(f"expected a question with one {{}}, got {self.question!r:.80}")

    def begin(self, run: RunParts) -> None:
        """Check that both sources are there.

        Raises:
            UserError: `describe` or `ground` is no training source.
        """
        for name in (self.describe, self.ground):
            run.source(LABEL, name)

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Ask where each description is, and pay what leads back."""
        source = run.source(LABEL, self.ground)
        verdicts: dict[tuple[int, int], Verdict] = {}
        questions = []
        for p, g in of_origin(rollouts, rewards, "policy"):
            prompt = rollouts.batch.prompts[p]
            if prompt.sample.source != self.describe or not prompt.sample.truth.boxes:
                continue
            verdicts[p, g], description = _look_at(rollouts.completions[p][g])
            if description:
                sample = self._way_back(prompt.sample, description, source)
                questions.append(((p, g), run.retell(prompt, sample)))
        if questions:
            prompts = [prompt for _, prompt in questions]
            graded = run.grade(run.ask(prompts, 1, draw, SEED_PURPOSE), prompts, draw)
            for (key, _), (grade,) in zip(questions, graded, strict=True):
                verdicts[key] = replace(grade, parts=verdicts[key].parts)
        return rollouts, pay(rewards, LABEL, verdicts, self.weight)

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return the shares that `curves` names; empty without a completion of the describing source."""
        parts = [of[LABEL].parts for group in rewards.verdicts for of in group if LABEL in of]
        if not parts:
            return {}
        return {
            f"cycle_consistency/{name}": statistics.fmean(part[name] for part in parts)
            for name in ("missing", "refused")
        }

    def _way_back(self, sample: Sample, description: str, source: Source) -> Sample:
        media = [part for part in sample.parts if isinstance(part, Media)]
        return replace(
            sample,
            source=self.ground,
            parts=(*media, self.question.replace("{}", description)),
            template=source.template or sample.template,
            rewards=(),
        )


def _look_at(completion: Completion) -> tuple[Verdict, str]:
    """Return what is known of a description without asking, and the description; "" if it has none."""
    description = completion.answer
    if not description or completion.truncated:
        return Verdict(0.0, {"missing": 1.0, "refused": 0.0}, note="no description"), ""
    if len(re.findall(r"\d+(?:\.\d+)?", description)) > MAX_NUMBERS:
        parts = {"missing": 0.0, "refused": 1.0}
        return Verdict(0.0, parts, note="the description states a place in numbers"), ""
    return Verdict(0.0, {"missing": 0.0, "refused": 0.0}), description
