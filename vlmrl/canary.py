"""Does the model look? The same questions with other pictures, and what that costs its own answers.

A model that answers from the words alone can still earn a reward, and one whose pictures never
arrive still writes fluent text. Its answers then do not depend on the pictures, which shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from PIL import Image

from vlmrl.batching import pack
from vlmrl.data.prompt import with_media
from vlmrl.engines.base import Engine, Sampling
from vlmrl.forward import completion_logprobs
from vlmrl.schema import Advantages, Prompt, PromptBatch, Rewards, Rollouts
from vlmrl.scoring import Scorer

if TYPE_CHECKING:
    from vlmrl.policy import Policy

GRAY = (128, 128, 128)
MICRO_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Reliance:
    """What other pictures cost the model's own greedy completions.

    `blank_logprob_drop`, `swap_logprob_drop`: mean fall of a token's log-prob (nats, at temperature
    1) when every picture is mid-gray, or is another prompt's. `blank_reward_drop`: mean reward with
    the pictures less that of new greedy completions without. None: nothing to measure it on.
    """

    blank_logprob_drop: float
    swap_logprob_drop: float | None
    blank_reward_drop: float | None

    def metrics(self) -> dict[str, float]:
        """The numbers there are, under the names of their curves."""
        named = {f"canary/{name}": getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in named.items() if value is not None}

    def complaint(self, floor: float) -> str | None:
        """What is wrong, in plain words, where a drop in log-prob is below the floor."""
        if self.blank_logprob_drop < floor:
            return (
                "the model hardly looks: gray pictures instead of the real ones cost its own "
                f"answers {self.blank_logprob_drop:.2g} nats a token (checks.canary_floor is "
                f"{floor:g}); it guesses from the words, or the pictures do not reach it"
            )
        if self.swap_logprob_drop is not None and self.swap_logprob_drop < floor:
            return (
                "the model does not tell pictures apart: those of other prompts cost its own "
                f"answers {self.swap_logprob_drop:.2g} nats a token (checks.canary_floor is "
                f"{floor:g}); it may give one answer to all"
            )
        return None


def reliance(
    engine: Engine,
    policy: Policy,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    max_tokens: int,
    progress: float = 0.0,
) -> Reliance:
    """How much the answers to these prompts, each with at least one picture, rest on the pictures.

    Deterministic; draws nothing from any generator of the training. Group and batch verifiers do
    not speak here, as in an evaluation.
    """
    greedy = Sampling(n=1, max_tokens=max_tokens, greedy=True)
    seen = engine.generate(PromptBatch(tuple(prompts)), greedy)
    own = _mean_logprob(policy, seen)
    model = (policy.family, policy.processor)
    blank = PromptBatch(tuple(with_media(p, blanks(p), *model) for p in prompts))
    blank_drop = own - _mean_logprob(policy, replace(seen, batch=blank))
    others = donors(prompts)
    swap_drop = None
    if all(donor is not None for donor in others):
        pairs = zip(prompts, others, strict=True)
        swapped = PromptBatch(tuple(with_media(p, d, *model) for p, d in pairs if d is not None))
        swap_drop = own - _mean_logprob(policy, replace(seen, batch=swapped))
    rewards = scorer.score(seen, progress, whole=False)
    guessed = scorer.score(engine.generate(blank, greedy), progress, whole=False)
    return Reliance(blank_drop, swap_drop, _reward_drop(rewards, guessed))


def blanks(prompt: Prompt) -> list[Image.Image]:
    """A mid-gray picture for each of the prompt's, of its size."""
    return [Image.new("RGB", image.size, GRAY) for image in prompt.images]


def donors(prompts: Sequence[Prompt]) -> list[list[Image.Image] | None]:
    """For each prompt the pictures of the next one that shows something else, in its own sizes.

    The next prompt with pictures of the same sizes is preferred: its pictures are used as they are.
    None where all other prompts show the same.
    """
    found: list[list[Image.Image] | None] = []
    for at, prompt in enumerate(prompts):
        following = [*prompts[at + 1 :], *prompts[:at]]
        different = [p for p in following if _content(p) != _content(prompt)]
        different.sort(key=lambda p: _sizes(p) != _sizes(prompt))
        found.append(_fitted(different[0], prompt) if different else None)
    return found


def _fitted(donor: Prompt, prompt: Prompt) -> list[Image.Image]:
    given = [donor.images[i % len(donor.images)] for i in range(len(prompt.images))]
    return [
        image if image.size == own.size else image.resize(own.size)
        for image, own in zip(given, prompt.images, strict=True)
    ]


def _sizes(prompt: Prompt) -> list[tuple[int, int]]:
    return [image.size for image in prompt.images]


def _content(prompt: Prompt) -> list[bytes]:
    return [image.tobytes() for image in prompt.images]


def _mean_logprob(policy: Policy, rollouts: Rollouts) -> float:
    """Mean log-prob of the completions' tokens, by the plain forward."""
    shape = rollouts.shape
    everything = Advantages(
        torch.zeros(shape), torch.ones(shape, dtype=torch.bool), torch.ones(shape)
    )
    (batch,) = pack(rollouts, everything, updates=1, micro_tokens=MICRO_TOKENS, max_tokens=1)
    total = 0.0
    for micro in batch.micro:
        with policy.generating():
            logprobs, _ = completion_logprobs(policy.base, policy.family, micro, 1.0, policy.pad_id)
        total += logprobs.sum(dtype=torch.float64).item()
    return total / batch.num_tokens


def _reward_drop(seen: Rewards, blank: Rewards) -> float | None:
    both = seen.valid & blank.valid
    if not both.any():
        return None
    return (seen.total - blank.total)[both].mean().item()
