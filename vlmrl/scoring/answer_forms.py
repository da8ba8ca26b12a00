"""How all verifiers of a source together read an answer."""

from __future__ import annotations

from collections.abc import Sequence

from vlmrl.config import RewardConfig
from vlmrl.errors import UserError
from vlmrl.schema import AnswerForm
from vlmrl.scoring.reward_components import resolve

__all__ = ["form_of"]


def form_of(rewards: Sequence[RewardConfig]) -> AnswerForm:
    """Return the form of an answer that all these verifiers can read, as training begins.

    Raises:
        UserError: a verifier cannot be built, or two read the answer under different keys.
    """
    forms = {reward.label: resolve(reward).verifier.answer_form() for reward in rewards}
    keys: dict[str, str] = {}
    for label, form in forms.items():
        if form.key is not None:
            keys.setdefault(form.key, label)
    if len(keys) > 1:
        (a, first), (b, second), *_ = keys.items()
        raise UserError(
            f"rewards {first!r} and {second!r} read one answer under two keys, {a!r} and {b!r}: "
            "give both the same key, or each a source of its own"
        )
    return AnswerForm(
        kinds=tuple(dict.fromkeys(kind for form in forms.values() for kind in form.kinds)),
        key=next(iter(keys), None),
        confidence=any(form.confidence for form in forms.values()),
        own_lines=any(form.own_lines for form in forms.values()),
    )
