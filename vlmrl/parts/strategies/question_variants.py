"""Share-GRPO: a row is asked in other words too, and both wordings are trained on the answers to either.

Source: Yao et al. 2025, "R1-ShareVL", arXiv 2505.16673, and its code (dataset, core_algos): of a row's
wordings two are drawn; with a chance of 0.3 the images of one are turned, mirrored or noisy, which its
prompt says. Each completion is trained on behind both prompts; advantages are those of the algorithm
`share_grpo`. Differs: the row's own question, its images as they are, is always one of the two; its
completions beyond half of the group make room; a quarter turn is named by its direction, there by the other.
"""

from __future__ import annotations

import ast
import contextlib
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from PIL import Image
from PIL.Image import Transpose

from vlmrl.data.row_forms import place_media
from vlmrl.errors import UserError
from vlmrl.runs import rank_shards
from vlmrl.schema import Completion, Media, Prompt, Rewards, Rollouts, Sample
from vlmrl.schema.media import PilImage
from vlmrl.scoring.scorer import Judged
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, add_groups, of_origin, put_in

SEED_PURPOSE = 29

Change = Callable[[PilImage, np.random.Generator], PilImage]


def _moved(how: Transpose) -> Change:
    return lambda image, rng: image.transpose(how)


def _noisy(deviation: float) -> Change:
    """Return what adds normal noise of this deviation, of 255, to each colour of each pixel."""

    def change(image: PilImage, rng: np.random.Generator) -> PilImage:
        values = np.asarray(image.convert("RGB"), np.float32)
        noisy = values + rng.normal(0, deviation, values.shape)
        return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))

    return change


BACK = "Please restore it and solve the question based on the corrected image."
NOISE = "The image has been corrupted with noise. Please solve the question based on this image."
CHANGES: tuple[tuple[str, Change], ...] = (
    (f"The image is rotated by 90 degrees clockwise. {BACK}", _moved(Transpose.ROTATE_270)),
    (f"The image is rotated by 90 degrees counterclockwise. {BACK}", _moved(Transpose.ROTATE_90)),
    (f"The image is rotated by 180 degrees. {BACK}", _moved(Transpose.ROTATE_180)),
    (NOISE, _noisy(10)),
    (NOISE, _noisy(25)),
    (NOISE, _noisy(50)),
    (f"The image is flipped vertically. {BACK}", _moved(Transpose.FLIP_TOP_BOTTOM)),
    (f"The image is flipped horizontally. {BACK}", _moved(Transpose.FLIP_LEFT_RIGHT)),
    (f"The image is flipped vertically and horizontally. {BACK}", _moved(Transpose.ROTATE_180)),
)
"""What is said of the images, and what is done to each; all have the same chance."""


@dataclass(frozen=True)
class QuestionVariants(Strategy):
    """Each row in two wordings that share their completions. Example: QuestionVariants(chance=0.3)."""

    curves: ClassVar[Mapping[str, str]] = {
        "question_variants/reward": "Mean reward of the answers to other wordings.",
    }

    column: str = "new_questions"
    """Key of a row's `meta` with its other wordings: a text, a list of texts, or that list as a text. A row
    without any is trained on as it is."""
    chance: float = 0.3
    """Chance that the images are changed, in rows whose truth has no places."""

    def __post_init__(self) -> None:
        if not 0 <= self.chance <= 1:
            raise ValueError(f"expected chance in [0, 1], got {self.chance}")

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Ask other wordings; half of each group becomes their answers, and each gets a group like it."""
        size = rollouts.shape[1]
        count, rng = size // 2, np.random.default_rng(draw.seed(SEED_PURPOSE))
        drawn = [self._draw(prompt, run, rng) for prompt in rollouts.batch.prompts]
        variants = {p: variant for p, variant in enumerate(drawn) if variant is not None}
        if not variants or not count:
            return rollouts, rewards
        answers = run.ask([*variants.values()], count, draw, SEED_PURPOSE)
        judged = run.judge(answers, [prompt.sample for prompt in variants.values()], draw)
        replacements, groups = {}, []
        for (p, prompt), own, of_own in zip(
            variants.items(), answers.completions, judged, strict=True
        ):
            replacements[p] = list(zip(own, of_own, strict=True))
            kept, of_kept = _first(rollouts, rewards, p, size - count)
            groups.append((prompt, (*own, *kept), (*of_own, *of_kept)))
        return add_groups(*put_in(rollouts, rewards, replacements, "distortion"), groups)

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return the mean reward that `curves` names; empty if no row was asked otherwise."""
        paid = [
            float(rewards.total[p, g])
            for p, g in of_origin(rollouts, rewards, "distortion")
            if rollouts.batch.prompts[p].place is not None
        ]
        return {"question_variants/reward": statistics.fmean(paid)} if paid else {}

    def _draw(self, prompt: Prompt, run: RunParts, rng: np.random.Generator) -> Prompt | None:
        """Return a prompt in other words, of no row; None if its row has none."""
        sample = prompt.sample
        worded = read_variants(sample, self.column)
        if not worded:
            return None
        changed = replace(sample, parts=worded[rng.integers(len(worded))].parts)
        shows = any(medium.kind == "image" for medium in sample.media)
        if not shows or sample.truth.has_places or rng.random() >= self.chance:
            return replace(run.retell(prompt, changed), place=None)
        line, change = CHANGES[rng.integers(len(CHANGES))]
        seed = int(rng.integers(2**32))
        if rank_shards.is_here(prompt):
            own = np.random.default_rng(seed)
            media = (change(m, own) if isinstance(m, Image.Image) else m for m in prompt.media)
            prompt = replace(prompt, media=tuple(media))
        return replace(run.retell(prompt, _said(changed, line)), place=None)


def read_variants(sample: Sample, column: str) -> list[Sample]:
    """Return a sample in each of the wordings that its `meta` has.

    One without text, or whose marks do not fit the media, is left out. Media stand where a wording has
    their marks, without marks first.
    """
    stated = sample.meta.get(column) or []
    if isinstance(stated, str) and stated.startswith("["):  # what Python prints of a list
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            stated = ast.literal_eval(stated)
    stated = stated if isinstance(stated, list) else [stated]
    media = [part for part in sample.parts if isinstance(part, Media)]
    worded = []
    for text in stated:
        with contextlib.suppress(UserError):
            worded.append(replace(sample, parts=place_media(str(text), media)))
    return [each for each in worded if each.text]


def _said(sample: Sample, line: str) -> Sample:
    """Return a sample with a line before its first text."""
    at = next(n for n, part in enumerate(sample.parts) if isinstance(part, str))
    return replace(sample, parts=(*sample.parts[:at], line, *sample.parts[at:]))


def _first(
    rollouts: Rollouts, rewards: Rewards, p: int, count: int
) -> tuple[list[Completion], list[Judged]]:
    """Return the first completions of a group as ones of another prompt, and what was made of them."""
    completions = [c.with_origin("distortion") for c in rollouts.completions[p][:count]]
    judged = [
        Judged(float(rewards.total[p, g]) if rewards.valid[p, g] else None, rewards.verdicts[p][g])
        for g in range(count)
    ]
    return completions, judged
