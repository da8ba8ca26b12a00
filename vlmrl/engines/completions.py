"""From sampled ids to completions: the same for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlmrl.answers import templates
from vlmrl.schema import Completion, FinishReason, Prompt

if TYPE_CHECKING:
    from vlmrl.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Written:
    """What was sampled for one completion; the fields are those of `Completion`."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    versions: tuple[tuple[int, int], ...]


def completions(
    policy: Policy, prompts: Sequence[Prompt], groups: Sequence[Sequence[Written]]
) -> list[tuple[Completion, ...]]:
    """The completions of each prompt: text decoded without the stop token, and parsed."""
    stop_ids = set(policy.stop_ids)
    texts = iter(
        policy.tokenizer.batch_decode(
            [[t for t in w.token_ids if t not in stop_ids] for group in groups for w in group]
        )
    )
    return [
        tuple(
            templates.completion(
                next(texts),
                prompt.sample.template,
                prompt.frame,
                token_ids=w.token_ids,
                logprobs=w.logprobs,
                finish_reason=w.finish_reason,
                versions=w.versions,
            )
            for w in group
        )
        for prompt, group in zip(prompts, groups, strict=True)
    ]
