"""Media ablation: ask the same questions with other media and measure the cost to the own answers.

A model that answers from the words alone can still earn a reward, and one whose images, videos or
audio never arrive still writes fluent text. Its answers then do not depend on the media, which this
measures. Other media have the sizes, times and lengths of a prompt's own, so its ids do not change.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from vlmrl.data.prompt import with_media, without_tensors
from vlmrl.engines.base import RunningEngine, Sampling
from vlmrl.forward.logprobs import completion_logprobs
from vlmrl.forward.packing import pack_all
from vlmrl.models.base import Family
from vlmrl.schema import Completion, MediaKind, Prompt, PromptBatch, Rollouts
from vlmrl.schema.media import Audio, Decoded, Video, kind_of
from vlmrl.scoring.scorer import Scorer

if TYPE_CHECKING:
    from vlmrl.policy.policy import Policy


GRAY = 128
NAMES = {"image": "images", "video": "videos", "audio": "audio"}
MICRO_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Reliance:
    """The cost of other media to the model's own greedy completions.

    `blank_logprob_drop`, `swap_logprob_drop`: mean fall of a token's log-prob (nats, at temperature
    1) when every image and frame is mid-gray and all audio silent, or when all are those of other
    prompts (over the prompts that have others to borrow from). `blank_reward_drop`: mean reward with
    the media minus that of new greedy completions to blank ones, and its standard error, as if one
    prompt more had lost all its reward: few prompts of which none loses any show little. None: nothing to
    measure it on.
    `kinds`: for each kind, `blank_logprob_drop` with only the media of this kind blank, over the prompts
    that have any; empty where all media are of one kind.
    """

    blank_logprob_drop: float
    swap_logprob_drop: float | None
    blank_reward_drop: float | None
    kinds: Mapping[MediaKind, float] = field(default_factory=dict)
    blank_reward_error: float | None = None

    def metrics(self) -> dict[str, float]:
        """Return the measured numbers under the names of their curves."""
        named = {
            "blank_logprob_drop": self.blank_logprob_drop,
            "swap_logprob_drop": self.swap_logprob_drop,
            "blank_reward_drop": self.blank_reward_drop,
            "blank_reward_error": self.blank_reward_error,
            **{f"blank_{kind}_logprob_drop": drop for kind, drop in self.kinds.items()},
        }
        return {f"media_ablation/{name}": v for name, v in named.items() if v is not None}

    def complaint(self, floor: float) -> str | None:
        """Say in plain words what is wrong if a drop in log-prob is below the floor."""
        if self.blank_logprob_drop < floor:
            return (
                "the model hardly looks: gray images and frames, or silence, instead of the real "
                f"ones cost its own answers {self.blank_logprob_drop:.2g} nats a token "
                f"(checks.media_ablation_min_drop is {floor:g}); it guesses from the words, or its media do "
                "not reach it"
            )
        for kind, drop in self.kinds.items():
            if drop < floor:
                return (
                    f"the model hardly looks at its {NAMES[kind]}: blank ones cost its own answers "
                    f"{drop:.2g} nats a token (checks.media_ablation_min_drop is {floor:g}), and its other "
                    "media stay as they are; these do not reach it, or it does not need them"
                )
        if self.swap_logprob_drop is not None and self.swap_logprob_drop < floor:
            return (
                "the model does not tell its media apart: those of other prompts cost its own "
                f"answers {self.swap_logprob_drop:.2g} nats a token (checks.media_ablation_min_drop is "
                f"{floor:g}); it may give one answer to all"
            )
        return None


def measure_reliance(
    engine: RunningEngine,
    policy: Policy,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    max_tokens: int,
    at_once: int,
    progress: float = 0.0,
) -> Reliance:
    """Measure how much the answers to these prompts, each with at least one medium, rely on the media.

    This is deterministic and draws nothing from the training's generators. Group and batch verifiers
    do not run here, as in an evaluation. Tensors are made of `at_once` prompts at a time; those that
    `prompts` have are not used.
    """
    model = policy.family, policy.processor
    greedy = Sampling(n=1, max_tokens=max_tokens, greedy=True)

    def answer(media: Sequence[Sequence[Decoded]]) -> Rollouts:
        """Return what the policy writes with these media; the prompts keep their own."""
        groups: list[tuple[Completion, ...]] = []
        for start in range(0, len(prompts), at_once):
            part = slice(start, start + at_once)
            pairs = zip(prompts[part], media[part], strict=True)
            batch = PromptBatch(tuple(with_media(p, each, *model) for p, each in pairs))
            groups += engine.generate(batch, greedy).completions
        return Rollouts(PromptBatch(tuple(map(without_tensors, prompts))), tuple(groups))

    seen = answer([prompt.media for prompt in prompts])
    shown = [_all_shown(seen, number) for number in range(len(prompts))]
    blank_drop = _drop(policy, seen, [make_blanks(prompt) for prompt in shown], at_once)
    assert blank_drop is not None
    rewards = scorer.score(seen, progress, whole=False)
    # A verifier that looks at the media judges both by the real ones.
    guessed = scorer.score(answer([*map(make_blanks, prompts)]), progress, whole=False)
    swap_drop = _drop(policy, seen, borrow_media(shown), at_once)
    lost = error = None
    if (both := rewards.valid & guessed.valid).any():
        paid, drops = rewards.total[both], (rewards.total - guessed.total)[both]
        widened = torch.cat([drops, paid.max()[None]])
        lost, error = drops.mean().item(), (widened.std() / len(widened) ** 0.5).item()
    kinds = _by_kind(policy, seen, shown, at_once)
    return Reliance(blank_drop, swap_drop, lost, kinds, error)


def _all_shown(seen: Rollouts, number: int) -> Prompt:
    """Return a prompt as if the media of its completion's observations were its own too."""
    prompt, (completion,) = seen.batch.prompts[number], seen.completions[number]
    observed = (medium for segment in completion.segments for medium in segment.media)
    return replace(prompt, media=(*prompt.media, *observed))


def _observe_instead(
    completion: Completion, media: Sequence[Decoded], family: Family, processor: object
) -> Completion:
    """Return the completion with other media, of the same kinds and sizes, in its observations."""
    if completion.suffix is None or not media:
        return completion
    left, shown = iter(media), [s for s in completion.segments if s.media]
    observed = [family.extend(processor, s.text, [next(left) for _ in s.media], 0) for s in shown]
    tensors = functools.reduce(family.join, observed).tensors
    suffix = completion.suffix
    changed = replace(suffix, encoded=replace(suffix.encoded, tensors=tensors))
    return replace(completion, suffix=changed)


def make_blanks(prompt: Prompt, only: MediaKind | None = None) -> list[Decoded]:
    """Return for each of the prompt's media one of its size, times and length without content.

    Images and frames are mid-gray; audio, that of videos too, is silent. With `only`, media of other
    kinds are unchanged.
    """

    def silent(audio: Audio) -> Audio:
        return replace(audio, samples=np.zeros_like(audio.samples))

    def blank(medium: Decoded) -> Decoded:
        if isinstance(medium, Audio):
            return silent(medium)
        if isinstance(medium, Video):
            audio = medium.audio and silent(medium.audio)
            return replace(medium, frames=np.full_like(medium.frames, GRAY), audio=audio)
        return Image.new("RGB", medium.size, (GRAY,) * 3)

    return [blank(m) if only in (None, kind_of(m)) else m for m in prompt.media]


def borrow_media(prompts: Sequence[Prompt]) -> list[list[Decoded] | None]:
    """Return for each prompt the media of others, fitted to its own in size, times and length.

    For each kind of medium they are those of the next prompt that shows something else. A prompt
    whose media of that kind have the same sizes is preferred, and its media are used unchanged. The
    entry is None where for one of the prompt's kinds all others show the same, or nothing.
    """
    by_kind: list[dict[str, list[Decoded]]] = []
    for prompt in prompts:
        by_kind.append(defaultdict(list))
        for medium in prompt.media:
            by_kind[-1][kind_of(medium)].append(medium)
    digests = [{kind: _digest(media) for kind, media in kinds.items()} for kinds in by_kind]
    borrowed: list[list[Decoded] | None] = []
    for at, prompt in enumerate(prompts):
        following = [*range(at + 1, len(prompts)), *range(at)]
        lent = {}
        for kind, own in by_kind[at].items():
            same = (None, digests[at][kind])
            different = [by_kind[n][kind] for n in following if digests[n].get(kind) not in same]
            if not different:
                break
            donor = min(different, key=lambda other: _sizes(other) != _sizes(own))
            lent[kind] = iter([_fit(donor[i % len(donor)], m) for i, m in enumerate(own)])
        whole = len(lent) == len(by_kind[at])
        borrowed.append([next(lent[kind_of(m)]) for m in prompt.media] if whole else None)
    return borrowed


def _fit(other: Decoded, own: Decoded) -> Decoded:
    """Return the other medium in the size of `own`, which is of the same kind."""
    if isinstance(own, Audio):
        assert isinstance(other, Audio)
        return replace(own, samples=np.resize(other.samples, len(own.samples)))
    if isinstance(own, Video):
        assert isinstance(other, Video)
        places = np.linspace(0, len(other.frames) - 1, len(own.frames)).round().astype(int)
        frames = [_resize(Image.fromarray(other.frames[i]), own.size) for i in places]
        audio = own.audio
        if audio is not None and other.audio is not None:
            audio = replace(audio, samples=np.resize(other.audio.samples, len(audio.samples)))
        return replace(own, frames=np.stack([np.asarray(frame) for frame in frames]), audio=audio)
    assert isinstance(other, Image.Image)
    return _resize(other, own.size)


def _resize(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image if image.size == size else image.resize(size)


def _sizes(media: Sequence[Decoded]) -> list[tuple[int, ...]]:
    return [m.size if isinstance(m, Image.Image) else _pixels(m).shape for m in media]


def _digest(media: Sequence[Decoded]) -> str:
    whole = hashlib.sha256()
    for medium in media:
        whole.update(_pixels(medium).tobytes())
    return whole.hexdigest() + str(_sizes(media))


def _pixels(medium: Decoded) -> np.ndarray:
    """Return the values that a person would see or hear."""
    if isinstance(medium, Video):
        return medium.frames
    return medium.samples if isinstance(medium, Audio) else np.asarray(medium)


def _by_kind(
    policy: Policy, seen: Rollouts, prompts: Sequence[Prompt], at_once: int
) -> dict[MediaKind, float]:
    """Measure `Reliance.kinds`; `prompts` have all media that were shown."""
    by_prompt = [{kind_of(medium) for medium in prompt.media} for prompt in prompts]
    kinds = sorted(set[MediaKind]().union(*by_prompt))
    if len(kinds) < 2:
        return {}
    drops: dict[MediaKind, float] = {}
    for kind in kinds:
        pairs = zip(prompts, by_prompt, strict=True)
        blanks = [make_blanks(p, kind) if kind in own else None for p, own in pairs]
        drop = _drop(policy, seen, blanks, at_once)
        assert drop is not None  # some prompt has a medium of this kind
        drops[kind] = drop
    return drops


def _drop(
    policy: Policy,
    seen: Rollouts,
    others: Sequence[Sequence[Decoded] | None],
    at_once: int,
) -> float | None:
    """Return the mean fall of log-prob with other media over the prompts that have any, or None.

    `others`: for each prompt as many as it and its completion's observations have, in order.
    """
    model = (policy.family, policy.processor)
    pairs = zip(seen.batch.prompts, seen.completions, others, strict=True)
    kept = [(prompt, group[0], media) for prompt, group, media in pairs if media is not None]
    fall = 0.0
    for start in range(0, len(kept), at_once):
        part = kept[start : start + at_once]
        fall += _logprob(policy, [(with_media(p, p.media, *model), c) for p, c, _ in part])
        changed = [
            (
                with_media(prompt, media[: len(prompt.media)], *model),
                _observe_instead(completion, media[len(prompt.media) :], *model),
            )
            for prompt, completion, media in part
        ]
        fall -= _logprob(policy, changed)
    return fall / sum(completion.num_tokens for _, completion, _ in kept) if kept else None


def _logprob(policy: Policy, pairs: Sequence[tuple[Prompt, Completion]]) -> float:
    """Return the sum of the log-probs of the completions' tokens, computed with the plain forward."""
    rollouts = Rollouts(PromptBatch(tuple(p for p, _ in pairs)), tuple((c,) for _, c in pairs))
    total = 0.0
    for micro in pack_all(rollouts, MICRO_TOKENS, max_tokens=1).micro:
        with policy.generating():
            logprobs, _ = completion_logprobs(
                policy.base, policy.family, micro.rerouted, 1.0, policy.pad_id
            )
        total += logprobs.sum(dtype=torch.float64).item()
    return total
