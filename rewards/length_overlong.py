"""A penalty for completions near or beyond the token limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier, num_tokens


@dataclass(frozen=True)
class LengthOverlong(Verifier):
    """0 up to `limit - buffer` tokens, then falling linearly to -1 at `limit` and beyond.

    Published sets: DAPO: `limit: 20480, buffer: 4096`.

    Source: DAPO, arXiv 2503.14476, eq. 13.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(LengthOverlong(limit=10, buffer=4), "a b c d e f g h", Truth()).score
    -0.5
    """

    low: ClassVar[float] = -1.0
    high: ClassVar[float] = 0.0
    laws: ClassVar[Laws] = Laws(best="short", options=({"limit": 20, "buffer": 10},))

    limit: int = 1024
    """Tokens from which on the score is -1."""
    buffer: int = 256
    """Tokens before the limit over which the score falls."""

    def __post_init__(self) -> None:
        """Refuse a buffer that does not fit."""
        if not 0 < self.buffer <= self.limit:
            raise ValueError(f"expected 0 < buffer <= limit, got {self.buffer} and {self.limit}")

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Measure one completion."""
        beyond = num_tokens(completion) - (self.limit - self.buffer)
        return Verdict(0.0 if beyond <= 0 else -min(1.0, beyond / self.buffer))
