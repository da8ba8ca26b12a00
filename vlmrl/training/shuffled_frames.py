"""Does it matter in which order a video's frames come? A control group is asked with them shuffled.

Source: T-GRPO of Video-R1, Feng et al. 2025, arXiv 2503.21776, eq. 2-3. The control group is scored,
told to the verifiers of the ordered group, and forgotten: nobody trains on it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vlmrl.config import RolloutConfig
from vlmrl.data.prompt import with_media
from vlmrl.engines.base import Engine, Sampling
from vlmrl.media_types import Video
from vlmrl.runs import rank_shards
from vlmrl.schema import SHUFFLED_REWARDS, Prompt, PromptBatch, Rewards, Rollouts
from vlmrl.scoring.scorer import Scorer
from vlmrl.system.seeds import seed_of

if TYPE_CHECKING:
    from vlmrl.policy.policy import Policy


def control_group(
    batch: PromptBatch, policy: Policy, engine: Engine, draw: RolloutConfig, seed: int
) -> Rollouts | None:
    """Completions for each prompt with a video, its frames shuffled; None: nothing to do.

    There are `draw.shuffled_group_size` of them for each prompt. The frames' order and the
    draws depend on `seed` and the batch alone.
    """
    asked = _with_videos(batch.prompts)
    if not draw.shuffled_group_size or not asked:
        return None
    spoiled = tuple(_spoiled(batch.prompts[p], policy, seed_of(seed, p)) for p in asked)
    return rank_shards.generate(
        engine, PromptBatch(spoiled), Sampling.of(draw, draw.shuffled_group_size, seed)
    )


def told(
    batch: PromptBatch, control: Rollouts | None, scorer: Scorer, progress: float
) -> PromptBatch:
    """The batch with the control group's rewards in its samples' meta, for the verifiers to see.

    The rewards are those of item verifiers; masked completions are left out.
    """
    if control is None:
        return batch
    samples = [prompt.sample for prompt in control.batch.prompts]
    homes = [prompt.home for prompt in control.batch.prompts]
    judged = scorer.judge(control.completions, samples, progress, whole=False, homes=homes)
    prompts = list(batch.prompts)
    for p, group in zip(_with_videos(prompts), judged, strict=True):
        rewards = [one.reward for one in group if one.reward is not None]
        sample = prompts[p].sample
        sample = replace(sample, meta={**sample.meta, SHUFFLED_REWARDS: rewards})
        prompts[p] = replace(prompts[p], sample=sample)
    return replace(batch, prompts=tuple(prompts))


def metrics(rewards: Rewards) -> dict[str, float]:
    """What `temporal_contrast` found, over the groups that have a control group; empty: none has.

    `shuffled_frames/ordered`, `shuffled_frames/shuffled`: share of correct completions;
    `shuffled_frames/bonus_share`: of groups in which one got the bonus.
    """
    ordered, shuffled, paid = [], [], []
    for group in rewards.verdicts:
        found = [v for of_one in group for v in of_one.values() if "shuffled" in v.parts]
        if found:
            ordered.append(found[0].parts["ordered"])
            shuffled.append(found[0].parts["shuffled"])
            paid.append(any(v.score for v in found))
    if not paid:
        return {}
    return {
        "shuffled_frames/ordered": statistics.fmean(ordered),
        "shuffled_frames/shuffled": statistics.fmean(shuffled),
        "shuffled_frames/bonus_share": statistics.fmean(paid),
    }


def shuffled(video: Video, seed: int) -> Video:
    """The video's frames in another order, at the times of the old ones; two frames always swap."""
    count = len(video.frames)
    rng = np.random.default_rng(seed)
    order = rng.permutation(count)
    while count > 1 and (order == np.arange(count)).all():
        order = rng.permutation(count)
    return replace(video, frames=video.frames[order])


def _with_videos(prompts: Sequence[Prompt]) -> list[int]:
    """Which prompts have videos; told from the samples, which every rank has."""
    return [p for p, q in enumerate(prompts) if any(m.kind == "video" for m in q.sample.media)]


def _spoiled(prompt: Prompt, policy: Policy, seed: int) -> Prompt:
    """The prompt with its videos' frames shuffled; as it is where this rank has no media of it."""
    if not rank_shards.is_here(prompt):
        return prompt
    media = [
        shuffled(medium, seed_of(seed, place)) if isinstance(medium, Video) else medium
        for place, medium in enumerate(prompt.media)
    ]
    return with_media(prompt, media, policy.family, policy.processor)
