"""The tokens of stored rollouts: what the engine sampled beside what the trainer thinks of it.

A line of tokens/step-N.jsonl belongs to the line of the same number in rollouts/step-N.jsonl. The trainer's
log-probs are those of the forward that the loss compares with the engine's, so that they cost no forward of
their own; completions that took no part in the update have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from vlmrl.schema import Completion, MicroBatch, Prompt, Rollouts

if TYPE_CHECKING:
    import torch


DECIMALS = 4
"""Of a stored log-prob, in nats."""

Place = tuple[int, int]
"""Numbers of a prompt, and of a completion in its group."""


class Updated(Protocol):
    """What `TrainerLogprobs` asks of a policy."""

    observe: Callable[[MicroBatch, torch.Tensor], object] | None


@dataclass
class TrainerLogprobs:
    """The trainer's own log-probs of one step's completions, noted while they are trained on."""

    by_place: dict[Place, list[float]] = field(default_factory=dict)
    """Those of the last step, by prompt and completion; empty where they were not wanted."""
    _noted: list[tuple[Prompt, tuple[int, ...], list[float]]] = field(default_factory=list)

    @contextmanager
    def noting(self, policy: Updated, rollouts: Rollouts, wanted: bool) -> Iterator[None]:
        """Note the log-probs of the rollouts that the policy is updated with, if they are wanted."""
        policy.observe = self._note if wanted else None
        try:
            yield
        finally:
            policy.observe = None
        self.by_place = self._places(rollouts)
        self._noted.clear()

    def _note(self, micro: MicroBatch, logprobs: torch.Tensor) -> None:
        """Keep the log-probs [B, T] of a micro-batch's tokens of the policy."""
        values = logprobs.detach().float().cpu()
        group = micro.group.tolist()
        for row, mask in enumerate(micro.mask.cpu()):
            if mask.any():
                ids = tuple(micro.token_ids[row].cpu()[mask].tolist())
                found = values[row][mask].tolist()
                self._noted.append((micro.prompts[group[row]], ids, found))

    def _places(self, rollouts: Rollouts) -> dict[Place, list[float]]:
        """Return what was noted by place; equal completions of a prompt have equal log-probs."""
        numbers = {id(prompt): p for p, prompt in enumerate(rollouts.batch.prompts)}
        noted = {
            (numbers[id(prompt)], ids): values
            for prompt, ids, values in self._noted
            if id(prompt) in numbers
        }
        found = {}
        for p in sorted({p for p, _ in noted}):
            for g, completion in enumerate(rollouts.completions[p]):
                values = noted.get((p, completion.token_ids))
                if values is not None:
                    found[p, g] = values
        return found


def token_row(tokenizer: Any, completions: Sequence[Completion], prompt: Prompt) -> dict[str, Any]:
    """Return the texts of the tokens of a prompt's completions, and the engine's log-probs, as JSON values.

    `engine` is null where the engine did not sample the completion, or said nothing of it.
    """
    return {
        "id": prompt.sample.id,
        "source": prompt.sample.source,
        "completions": [
            {
                "texts": tokenizer.batch_decode([[token] for token in one.token_ids]),
                "engine": _engine(one),
                "trainer": None,
            }
            for one in completions
        ],
    }


def rounded(values: Sequence[float]) -> list[float | None]:
    """Return log-probs as they are stored; one that is not finite is null."""
    return [round(v, DECIMALS) if v - v == 0 else None for v in values]


def _engine(completion: Completion) -> list[float | None] | None:
    known = completion.origin == "policy" and completion.logprobs
    return rounded(completion.logprobs) if known else None
