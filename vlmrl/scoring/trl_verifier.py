"""A TRL reward function as our verifier."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.schema import Completion, Sample, Truth, Verdict
from vlmrl.scoring.verifier import Verifier, to_score


@dataclass(frozen=True)
class TrlVerifier(Verifier):
    """A TRL reward function `f(completions, **columns) -> list[float | None]` as a verifier.

    It is called with one completion at a time, in TRL's conversational form, so a function that
    compares the completions of a batch with each other is not supported. It receives `prompts`,
    `completions`, `completion_ids`, every entry of the sample's `meta` as a column, and `solution`:
    the truth as text, unless `meta` has its own. None means "does not apply". The declared range is
    [-1, 1], that of TRL's own functions.

    Source: huggingface/trl, `GRPOTrainer._calculate_rewards`, version 1.16.
    """

    low: ClassVar[float] = -1.0

    function: Callable[..., Any]
    name: str = "reward"

    @property
    def reads_truth(self) -> bool:
        """Whether the function asks for the solution."""
        return "solution" in inspect.signature(self.function).parameters

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Call the function with a batch of one."""
        messages = [{"role": turn.role, "content": turn.text} for turn in sample.turns]
        if sample.system:
            messages.insert(0, {"role": "system", "content": sample.system})
        columns: dict[str, Any] = {"solution": solution(sample.truth), **sample.meta}
        result = self.function(
            prompts=[messages],
            completions=[[{"role": "assistant", "content": completion.text}]],
            completion_ids=[list(completion.token_ids)],
            **{key: [value] for key, value in columns.items()},
        )
        if inspect.isawaitable(result):
            import asyncio  # takes longer to import than all else here

            async def wait(awaitable: Any) -> Any:
                return await awaitable

            result = asyncio.run(wait(result))
        (reward,) = result
        if reward is None:
            return Verdict.not_applicable()
        return Verdict(to_score(reward), answer=completion.answer)


def solution(truth: Truth) -> str | None:
    """Return the truth as the text that TRL calls `solution`; None if it is no text or number."""
    if truth.text:
        return truth.text[0]
    if truth.choice is not None:
        return truth.choice
    if truth.number is not None:
        return f"{truth.number:g}"
    return None
