"""Score one completion the way training does: alone, in a group or in a batch of honest answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmrl.answers import templates
from vlmrl.audit.drawn_begging import show_drawn
from vlmrl.audit.reference_answers import Honest, lay_out
from vlmrl.schema import Completion, Media, Seen, Verdict
from vlmrl.scoring.combine import guard, guard_many
from vlmrl.scoring.reward_components import Component, Spec, build
from vlmrl.scoring.verifier import BatchVerifier, GroupVerifier
from vlmrl.system.deadline_pool import portable

SPEED_SECONDS = 0.2


def judge_among_honest(
    spec: Spec,
    case: Honest,
    text: str,
    mates: Sequence[Honest],
    reward: float,
    tokens: int | None = None,
    drawn: str | None = None,
) -> Verdict:
    """Return the verdict on one completion; runs in a worker of the pool.

    A group verifier sees it as the last of five, after two honest pairs of `case`; a batch verifier
    sees it after one pair, with the groups of `mates`. `reward` is what item verifiers gave it,
    `tokens` its length if not that of the text. A verifier that looks sees an image with the text `drawn`
    in it; nothing where that is None.
    """
    verifier, sample = build(spec), case.sample
    shown: tuple[Seen | None, ...] = ()
    if verifier.looks:
        shown = (None if drawn is None else show_drawn(drawn),)
        image = () if drawn is None else (Media("image", path="drawn.png"),)
        sample = replace(sample, parts=(*image, *sample.parts))
    completion = _make_completion(case, text, tokens)
    if isinstance(verifier, GroupVerifier):
        group = [*_pair(case), *_pair(case), completion]
        rewards = [1.0, 0.0, 1.0, 0.0, reward]
        return guard_many(verifier, 5, verifier.judge, group, sample, rewards, *shown)[-1]
    if isinstance(verifier, BatchVerifier):
        groups = [[*_pair(case), completion], *([*_pair(m), _pair(m)[0]] for m in mates)]
        samples = [sample, *(mate.sample for mate in mates)]
        return guard_many(verifier, 3 * len(groups), verifier.judge, groups, samples)[2]
    return portable(verifier(completion, sample, *shown))


def measure_speed(component: Component, cases: Sequence[Honest]) -> float:
    """Measure completions per second in this process; the pool has shown them to be harmless."""
    jobs: list[tuple[Any, ...]] = [
        (component.spec, case, lay_out(case.sample, answer), [], 0.0)
        for case in cases
        for answer in (case.right, case.wrong)
    ]
    calls, start = 0, time.perf_counter()
    while jobs and time.perf_counter() - start < SPEED_SECONDS:
        for job in jobs:
            guard(component.verifier, judge_among_honest, *job)
        calls += len(jobs)
    return calls / (time.perf_counter() - start)


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
