"""Turn sampled token ids into completions, alike for every engine.

The public way for an engine to make its result:

    groups = [[Sampled(ids, logprobs, "stop", ((policy.version, len(ids)),))] for ids in ...]
    return Rollouts(batch, tuple(make_completions(policy, batch.prompts, groups)), policy.version)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlmrl.answers import templates
from vlmrl.schema import Completion, Experts, FinishReason, Prompt

if TYPE_CHECKING:
    from vlmrl.engines.base import ServedPolicy


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens sampled for one completion; the fields are those of `Completion`.

    `logprobs`: one per token, in nats, at the temperature, before top_p and top_k. `versions`: which
    weights sampled how many tokens, in order; the counts add up to the number of tokens. `experts`: of an
    engine that `routes`, for a policy with `router_replay`.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    versions: tuple[tuple[int, int], ...]
    experts: Experts | None = None


def make_completions(
    policy: ServedPolicy, prompts: Sequence[Prompt], groups: Sequence[Sequence[Sampled]]
) -> list[tuple[Completion, ...]]:
    """Return the completions of each prompt: text decoded without the stop token, and parsed.

    `groups[p]` is what was sampled for `prompts[p]`.
    """
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
                experts=w.experts,
            )
            for w in group
        )
        for prompt, group in zip(prompts, groups, strict=True)
    ]
