"""Weak on purpose: do not train with this. `vlmrl verify` shows why."""

from vlmrl.schema import Truth


def score(answer: str, truth: Truth) -> float:
    """Score 1 if the right text occurs anywhere in the answer: listing every class is paid in full."""
    assert truth.text is not None
    return float(truth.text[0].lower() in answer.lower())
