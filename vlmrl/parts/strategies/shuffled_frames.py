"""T-GRPO: ask a control group about the same videos with their frames shuffled.

Source: Video-R1, Feng et al. 2025, arXiv 2503.21776, eq. 2-3. The control group is scored, its rewards
are shown to the verifiers of the ordered group (`temporal_contrast`), and nobody trains on it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from vlmrl.data.prompt import with_media
from vlmrl.runs import rank_shards
from vlmrl.schema import Prompt, PromptBatch, Rewards, Rollouts
from vlmrl.schema.media import Video
from vlmrl.scoring.scorer import Judged
from vlmrl.scoring.verifier import SHUFFLED_REWARDS, SHUFFLED_SCORES
from vlmrl.system import distributed
from vlmrl.system.seeds import seed_of
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy

SEED_PURPOSE = 13


@dataclass(frozen=True)
class ShuffledFrames(Strategy):
    """T-GRPO's control group, for the reward `temporal_contrast`. Example: ShuffledFrames(group_size=4)."""

    group_size: int = 4
    """Completions for each prompt with a video, whose frames are shuffled. Nobody trains on them."""

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise ValueError(f"expected group_size of at least 1, got {self.group_size}")

    def prepare(self, rollouts: Rollouts, draw: BatchDraw, run: RunParts) -> Rollouts:
        """Ask and score the control group; put its rewards into the `meta` of the samples."""
        control = self.ask_control_group(rollouts.batch, draw, run)
        if control is None:
            return rollouts
        samples = [prompt.sample for prompt in control.batch.prompts]
        judged = run.judge(control, samples, draw)
        return replace(rollouts, batch=add_control_rewards(rollouts.batch, judged))

    def ask_control_group(
        self, batch: PromptBatch, draw: BatchDraw, run: RunParts
    ) -> Rollouts | None:
        """Generate the completions for each prompt with a video, its frames shuffled.

        None if there is nothing to ask. The order of the frames and the completions depend on the draw
        and the batch alone.
        """
        asked = _indices_with_videos(batch.prompts)
        if not asked:
            return None
        seed = draw.seed(SEED_PURPOSE)
        prompts = [_shuffle_prompt(batch.prompts[p], run, seed_of(seed, p)) for p in asked]
        return run.ask(prompts, self.group_size, draw, SEED_PURPOSE)

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return what `temporal_contrast` found; empty if no group has a control group.

        `shuffled_frames/ordered`, `shuffled_frames/shuffled`: mean share of correct completions of the
        groups and of their control groups; `shuffled_frames/bonus_share`: share of groups in which a
        completion got the bonus.
        """
        ordered: list[float] = []
        shuffled: list[float] = []
        paid: list[bool] = []
        for prompt, group in zip(rollouts.batch.prompts, rewards.verdicts, strict=True):
            if not rank_shards.is_here(prompt):
                continue  # what a verdict says beside its score is known at home
            contrasts = [v for of_one in group for v in of_one.values() if "shuffled" in v.parts]
            if contrasts:
                ordered.append(contrasts[0].parts["ordered"])
                shuffled.append(contrasts[0].parts["shuffled"])
                paid.append(any(v.score for v in contrasts))
        shares = distributed.gather((ordered, shuffled, paid))
        ordered, shuffled, paid = ([*chain.from_iterable(x)] for x in zip(*shares, strict=True))
        if not paid:
            return {}
        return {
            "shuffled_frames/ordered": statistics.fmean(ordered),
            "shuffled_frames/shuffled": statistics.fmean(shuffled),
            "shuffled_frames/bonus_share": statistics.fmean(paid),
        }


def add_control_rewards(batch: PromptBatch, judged: Sequence[Sequence[Judged]]) -> PromptBatch:
    """Return the batch with the control groups' rewards in the `meta` of the samples with a video.

    The rewards are those of item verifiers; masked completions are left out.
    """
    prompts = list(batch.prompts)
    for p, group in zip(_indices_with_videos(prompts), judged, strict=True):
        known = [entry for entry in group if entry.reward is not None]
        scores: dict[str, list[float]] = {}
        for entry in known:
            for label, verdict in entry.verdicts.items():
                if verdict.score is not None:
                    scores.setdefault(label, []).append(verdict.score)
        meta: dict[str, Any] = {
            SHUFFLED_REWARDS: [entry.reward for entry in known],
            SHUFFLED_SCORES: scores,
        }
        sample = prompts[p].sample
        sample = replace(sample, meta={**sample.meta, **meta})
        prompts[p] = replace(prompts[p], sample=sample)
    return replace(batch, prompts=tuple(prompts))


def shuffle_frames(video: Video, seed: int) -> Video:
    """Return the video with its frames in another order at the same times; two frames always swap."""
    count = len(video.frames)
    rng = np.random.default_rng(seed)
    order = rng.permutation(count)
    while count > 1 and (order == np.arange(count)).all():
        order = rng.permutation(count)
    return replace(video, frames=video.frames[order])


def _indices_with_videos(prompts: Sequence[Prompt]) -> list[int]:
    """Return which prompts have videos, judged by the samples, which every rank has."""
    return [p for p, q in enumerate(prompts) if any(m.kind == "video" for m in q.sample.media)]


def _shuffle_prompt(prompt: Prompt, run: RunParts, seed: int) -> Prompt:
    """Shuffle the frames of a prompt's videos; a prompt whose media are on another rank is unchanged."""
    if not rank_shards.is_here(prompt):
        return prompt
    media = [
        shuffle_frames(medium, seed_of(seed, number)) if isinstance(medium, Video) else medium
        for number, medium in enumerate(prompt.media)
    ]
    return with_media(prompt, media, run.policy.family, run.policy.processor)
