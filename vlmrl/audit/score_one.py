"""Score one completion the way training does: alone, in a group or in a batch of honest answers."""

from __future__ import annotations

from collections.abc import Sequence

from vlmrl.answers import templates
from vlmrl.audit.reference_answers import Honest, lay_out
from vlmrl.schema import Completion, Verdict
from vlmrl.scoring.combine import guard_many
from vlmrl.scoring.reward_components import Spec, build
from vlmrl.scoring.verifier import BatchVerifier, GroupVerifier
from vlmrl.system.deadline_pool import portable


def judge_among_honest(
    spec: Spec,
    case: Honest,
    text: str,
    mates: Sequence[Honest],
    reward: float,
    tokens: int | None = None,
) -> Verdict:
    """Return the verdict on one completion; runs in a worker of the pool.

    A group verifier sees it as the last of five, after two honest pairs of `case`; a batch verifier
    sees it after one pair, with the groups of `mates`. `reward` is what item verifiers gave it,
    `tokens` its length if not that of the text.
    """
    verifier = build(spec)
    completion = _make_completion(case, text, tokens)
    if isinstance(verifier, GroupVerifier):
        group = [*_pair(case), *_pair(case), completion]
        return guard_many(
            verifier, 5, verifier.judge, group, case.sample, [1.0, 0.0, 1.0, 0.0, reward]
        )[-1]
    if isinstance(verifier, BatchVerifier):
        groups = [[*_pair(case), completion], *([*_pair(m), _pair(m)[0]] for m in mates)]
        samples = [case.sample, *(mate.sample for mate in mates)]
        return guard_many(verifier, 3 * len(groups), verifier.judge, groups, samples)[2]
    return portable(verifier(completion, case.sample))


def _pair(case: Honest) -> tuple[Completion, Completion]:
    return (
        _make_completion(case, lay_out(case.sample, case.right)),
        _make_completion(case, lay_out(case.sample, case.wrong)),
    )


def _make_completion(case: Honest, text: str, tokens: int | None = None) -> Completion:
    ids = tuple(range(count_tokens(text) if tokens is None else tokens))
    return templates.completion(text, case.sample.template, case.frame, token_ids=ids)


def count_tokens(text: str) -> int:
    """Return about how many tokens a text has, at four characters a token: no tokenizer is here."""
    return len(text) // 4 + 1
