"""Visionary-R1's caption reward: a description must suffice to answer the question without the media.

Source: Xia et al. 2025, "Visionary-R1", arXiv 2505.14677, and its code: the policy itself answers from the
description alone, and 0.1 times the accuracy of that answer is paid. A description is refused if it has a
mark of the template or a box of an answer in it. Differs: there the policy judges whether a description
holds reasoning (`Hacking Sample`), which nobody can check; here its own final answer inside of it is
counted (`caption_sufficiency/copied`) and paid, because a good description may well name it.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.answers import templates, text
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Prompt, Rewards, Rollouts, Template, Verdict
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, of_origin, pay

SEED_PURPOSE = 22
LABEL = "caption_sufficiency"
"""Name of the verdict on a description."""


@dataclass(frozen=True)
class CaptionSufficiency(Strategy):
    """A reward for a description that suffices to answer. Example: CaptionSufficiency(weight=0.1)."""

    curves: ClassVar[Mapping[str, str]] = {
        "caption_sufficiency/missing": "Share of completions without a description that can be read.",
        "caption_sufficiency/refused": "Share of descriptions that hold a tag or a boxed answer: paid 0.",
        "caption_sufficiency/copied": "Share of descriptions with the completion's own answer in them.",
    }
    reads_completions: ClassVar[bool] = True

    weight: float = 0.1
    """What the grade of the answer from the description, mostly 0 or 1, is multiplied by."""
    tag: str = "info"
    """Tag of the template with the description."""
    template: str = "answer_only"
    """Template in which the policy answers from the description."""

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise ValueError(f"expected a weight above 0, got {self.weight:g}")
        templates.template(self.template)

    def begin(self, run: RunParts) -> None:
        """Check that there is something to read.

        Raises:
            UserError: no training source has a template with the tag.
        """
        used = {source.template for source in run.loader.sources}
        known = [templates.template(template) for template in used if template is not None]
        if None not in used and not any(map(self._has_tag, known)):
            raise UserError(
                f"strategy caption_sufficiency: expected a training source whose template has the tag "
                f"<{self.tag}>, such as caption_think_answer, got {', '.join(sorted(map(str, known)))}"
            )

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Ask again with each description in place of the media, and pay the right answers."""
        verdicts: dict[tuple[int, int], Verdict] = {}
        asked: list[tuple[tuple[int, int], Prompt, Prompt]] = []
        for p, g in of_origin(rollouts, rewards, "policy"):
            prompt = rollouts.batch.prompts[p]
            if not prompt.sample.media or not self._has_tag(prompt.sample.template):
                continue
            verdicts[p, g], caption = self._look_at(rollouts.completions[p][g], prompt)
            if caption:
                plain = prompt.sample.without_media()
                parts = (describe(caption), *plain.parts)
                sample = replace(plain, parts=parts, template=self.template)
                asked.append(((p, g), prompt, run.blind(prompt, sample)))
        if asked:
            answers = run.ask([blind for _, _, blind in asked], 1, draw, SEED_PURPOSE)
            graded = run.grade(answers, [prompt for _, prompt, _ in asked], draw)
            for (spot, _, _), (grade,) in zip(asked, graded, strict=True):
                verdicts[spot] = replace(grade, parts=verdicts[spot].parts)
        return rollouts, pay(rewards, LABEL, verdicts, self.weight)

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return the shares of completions and descriptions that `curves` names."""
        parts = [of[LABEL].parts for group in rewards.verdicts for of in group if LABEL in of]
        read = [part for part in parts if "missing" not in part]
        missing = {"caption_sufficiency/missing": 1 - len(read) / len(parts)} if parts else {}
        return missing | {
            f"caption_sufficiency/{name}": statistics.fmean(part[name] for part in read)
            for name in ("refused", "copied")
            if read
        }

    def _look_at(self, completion: Completion, prompt: Prompt) -> tuple[Verdict, str]:
        """Return what is known of a description without asking, and the description; "" if it has none."""
        start, end = completion.parsed.spans.get(self.tag, (0, 0))
        caption = completion.text[start:end].strip()
        if not caption or completion.truncated:
            return Verdict(0.0, {"missing": 1.0}, note="no description"), ""
        copied = float(_holds(caption, completion.answer))
        layout = templates.template(prompt.sample.template)
        marks = [mark for tag in layout.tags for mark in (tag.open, tag.close)]
        if any(mark in caption for mark in (*marks, r"\boxed")):
            parts = {"refused": 1.0, "copied": copied}
            return Verdict(0.0, parts, note="the description holds a tag or a boxed answer"), ""
        return Verdict(0.0, {"refused": 0.0, "copied": copied}), caption

    def _has_tag(self, template: str | Template) -> bool:
        return any(tag.name == self.tag for tag in templates.template(template).tags)


def describe(caption: str) -> str:
    """Return the line that stands in place of the media."""
    return f"Description: {caption}"


def _holds(caption: str, answer: str | None) -> bool:
    """Return whether a description has an answer in it, word for word."""
    normal_form = text.normalised(answer or "")
    return bool(normal_form) and bool(
        re.search(rf"(?<!\w){re.escape(normal_form)}(?!\w)", text.normalised(caption))
    )
