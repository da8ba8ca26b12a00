"""Ask a question twice, forced to think and forced not to: the difference is what a thought is worth.

The model's turn begins with an opened thought or with an empty one, and the model continues from
there. That beginning is part of the prompt, so every engine can do it. Nothing is trained on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from vlmrl.answers import templates
from vlmrl.data.prompt import continue_prompt
from vlmrl.engines.base import RunningEngine, Sampling
from vlmrl.schema import Completion, Prompt, PromptBatch, Rollouts

if TYPE_CHECKING:
    from vlmrl.policy.policy import Policy

__all__ = ["can_be_forced", "generate"]

Mode = Literal["think", "direct"]
MODES: tuple[Mode, ...] = ("think", "direct")


def can_be_forced(prompt: Prompt) -> bool:
    """Return True if the template of the prompt begins with a thought."""
    tags = templates.template(prompt.sample.template).tags
    return bool(tags) and tags[0].name == "think"


def generate(
    engine: RunningEngine, policy: Policy, batch: PromptBatch, mode: Mode, max_tokens: int
) -> Rollouts:
    r"""Generate one greedy completion for every prompt; each must pass `can_be_forced`.

    `direct` begins it with `<think>\n\n</think>`, as demonstrations do that leave the thought out.
    `think` begins it with `<think>` and the first word of a thought: the likeliest token that is
    neither blank nor a tag. Without that word a policy could still leave the thought empty.

    The beginning counts towards `max_tokens` and is part of the completion's text, of its token ids
    and, as certain (0 nats), of its log-probs.
    """
    begun = [_encode_beginning(policy, prompt, mode) for prompt in batch.prompts]
    left = max(1, max_tokens - max(map(len, begun)))
    prompts = (continue_prompt(p, ids) for p, ids in zip(batch.prompts, begun, strict=True))
    rollouts = engine.generate(
        PromptBatch(tuple(prompts)), Sampling(n=1, max_tokens=left, greedy=True)
    )
    whole = (
        (_join_completion(policy, prompt, ids, group[0]),)
        for prompt, ids, group in zip(batch.prompts, begun, rollouts.completions, strict=True)
    )
    return replace(rollouts, batch=batch, completions=tuple(whole))


def _encode_beginning(policy: Policy, prompt: Prompt, mode: Mode) -> tuple[int, ...]:
    """Return the token ids with which the completion begins."""
    tag = templates.template(prompt.sample.template).tags[0]
    text = tag.open if mode == "think" else f"{tag.open}{templates.EMPTY_THOUGHT}{tag.close}"
    ids = tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
    return (
        ids
        if mode == "direct"
        else (*ids, _choose_first_word(policy, continue_prompt(prompt, ids)))
    )


@torch.no_grad()
def _choose_first_word(policy: Policy, prompt: Prompt) -> int:
    """Return the likeliest next token that is a word: no white space, stop or media token, no tag."""
    family, encoded = policy.family, prompt.encoded
    with policy.generating():
        features = family.tower_features(policy.base, [encoded])
        hidden = family.decode(
            policy.base,
            torch.tensor([encoded.ids], device=policy.device),
            None,
            encoded.position_ids[:, None].to(policy.device),
            family.spread(features, [encoded], [0]),
        )
        logits = family.head(policy.base)(hidden[0, -1]).float()
    silent = {*policy.stop_ids, *policy.banned.tolist()}
    for token in logits.argsort(descending=True).tolist():
        text = policy.tokenizer.decode([token]).strip()
        if token not in silent and text and not text.startswith("<"):
            return token
    raise ValueError("the vocabulary has no word that a thought could begin with")


def _join_completion(
    policy: Policy, prompt: Prompt, begun: Sequence[int], rest: Completion
) -> Completion:
    ids = (*begun, *rest.token_ids)
    text = policy.tokenizer.decode([t for t in ids if t not in set(policy.stop_ids)])
    return templates.completion(
        text,
        prompt.sample.template,
        prompt.frame,
        token_ids=ids,
        logprobs=(*(0.0 for _ in begun), *rest.logprobs),
        finish_reason=rest.finish_reason,
        versions=rest.versions,
    )
