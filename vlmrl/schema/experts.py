"""The experts that an engine chose for the tokens of a rollout, for the trainer to choose them again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Experts", "expert_dtype"]


def expert_dtype(num_experts: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest dtype for the numbers of experts; its largest value says "not known"."""
    return np.dtype(np.uint8 if num_experts < np.iinfo(np.uint8).max else np.uint16)


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """Numbers of the experts of each token in each layer that has any, of an `expert_dtype`.

    Where a number is the dtype's largest, the trainer makes its own choice.
    """

    prompt: np.ndarray
    """[P, layers, k]; completions of a group may hold the same array."""
    written: np.ndarray
    """[F, layers, k] of the first tokens that follow the prompt; an engine computes nothing of the last."""

    def then(self, later: Experts) -> Experts:
        """Return the choices of a rollout of which `later` is a further turn, asked for with all before it.

        What was chosen when a token was sampled counts, not what was when it was read again.
        """
        known = len(self.prompt) + len(self.written)
        written = (self.written, later.prompt[known:], later.written)
        return Experts(self.prompt, np.concatenate(written))
