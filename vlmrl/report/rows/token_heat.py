"""The tokens of a completion as cells of a heat map: how probable, and how far engine and trainer part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["DIFFERENCES", "PROBABILITIES", "Heat", "heat_of"]

DIFFERENCES = (0.01, 0.05, 0.2, 1.0)
"""Nats by which engine and trainer part from which on a token has the next level, 0 to 4."""
PROBABILITIES = (0.99, 0.9, 0.5, 0.1)
"""Probabilities below which a token has the next level."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its text, and its levels of both heat maps; None where they are not known."""

    text: str
    far: int | None
    rare: int | None
    said: str
    """Its numbers in words."""


@dataclass(frozen=True, slots=True)
class Heat:
    """The tokens of a completion turn by turn, with what is known of them in a sentence."""

    turns: tuple[tuple[Token, ...], ...]
    summary: str
    known_engine: bool


def heat_of(stored: Mapping[str, Any], lengths: Sequence[int]) -> Heat | None:
    """Return the cells of what tokens/step-N.jsonl says of a completion; None if it is of another.

    `lengths` are the tokens of the policy's turns.
    """
    texts = stored.get("texts") or []
    if len(texts) != sum(lengths):
        return None
    engine, trainer = (_of_tokens(stored.get(key), len(texts)) for key in ("engine", "trainer"))
    cells = [
        _token(number, str(text), *pair)
        for number, (text, *pair) in enumerate(zip(texts, engine, trainer, strict=True), start=1)
    ]
    turns, at = [], 0
    for length in lengths:
        turns.append(tuple(cells[at : at + length]))
        at += length
    known = any(value is not None for value in engine)
    return Heat(tuple(turns), _summary(engine, trainer), known)


def _of_tokens(values: Any, length: int) -> list[float | None]:
    return values if isinstance(values, list) and len(values) == length else [None] * length


def _token(number: int, text: str, engine: float | None, trainer: float | None) -> Token:
    known = engine if engine is not None else trainer
    rare = None if known is None else sum(math.exp(known) < p for p in PROBABILITIES)
    words = [f"token {number}: {text!r}"]
    words += [f"engine {engine:.4f} ({math.exp(engine):.3f})"] if engine is not None else []
    words += [f"trainer {trainer:.4f} ({math.exp(trainer):.3f})"] if trainer is not None else []
    far = None
    if engine is not None and trainer is not None:
        gap = trainer - engine
        far = sum(abs(gap) >= limit for limit in DIFFERENCES)
        words.append(f"trainer - engine {gap:+.4f}")
    shown = "".join(c if c.isprintable() or c == "\n" else "·" for c in text)
    return Token(shown, far, rare, " · ".join(words))


def _summary(engine: Sequence[float | None], trainer: Sequence[float | None]) -> str:
    """Return what is known of the log-probs, and how far they part."""
    if not any(value is not None for value in engine):
        return (
            "What the engine thought of these tokens is not known: the policy did not sample them."
        )
    gaps = [
        abs(a - b) for a, b in zip(engine, trainer, strict=True) if a is not None and b is not None
    ]
    if not gaps:
        return (
            "The trainer computed no log-probs of this answer: it took no part in the update. Colours show "
            "the engine's."
        )
    mean = sum(gaps) / len(gaps)
    return f"Engine and trainer part by {mean:.4f} nats on average, by {max(gaps):.4f} at most."
