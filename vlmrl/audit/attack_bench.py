"""The attack bench: is a verifier ever paid for a completion that does not deserve it?

Honest right and wrong answers are derived from a truth (`honest`), attacks are thrown at the
verifier (`attacks`), and whatever earns more than it may is a finding. Every call runs in the
deadline pool, so a verifier that hangs or crashes is a finding too.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.audit.attacks import ATTACKS, Attack
from vlmrl.audit.reference_answers import Honest, examples, lay_out, state_honestly
from vlmrl.config import RewardConfig
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Frame, Sample, Verdict
from vlmrl.scoring.combine import guarded, guarded_many
from vlmrl.scoring.reward_components import SLOW_DEADLINE, Component, Spec, build, resolve
from vlmrl.scoring.score_rows import ScoredRow
from vlmrl.scoring.trl_function import TrlVerifier
from vlmrl.scoring.verifier import BatchVerifier, FunctionVerifier, GroupVerifier
from vlmrl.system.deadline_pool import DeadlinePool, result
from vlmrl.truths.base import TruthKind
from vlmrl.truths.json_form import to_json

__all__ = ["Finding", "Report", "verify"]

TOLERANCE = 0.05
"""Share of the range that an attack may earn above an honest wrong answer: partial credit."""
SAME = 1e-9
WAIT_DEADLINE = 120.0
"""Seconds one call of a verifier that waits (on a network) may take."""
TOTAL_S = 600.0
"""Seconds that the audit of one verifier may take, after which it reports what it has."""
MAX_CASES = 10
EXCERPT = 100
SPEED_SECONDS = 0.2
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Scored:
    """One scored completion, as the table shows it."""

    sample: str
    what: str
    score: float | None
    note: str
    text: str
    """The beginning of the completion."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong: an attack on a sample and what it was paid beside the honest answers."""

    attack: str
    sample: str
    problem: str
    score: float | None
    wrong: float | None
    right: float | None
    text: str
    """The beginning of the completion."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the bench saw; no `findings` means that no attack was paid.

    `tried` counts completions by attack; `spread` describes the scores of the rows shown.
    """

    verifier: str
    rows: tuple[Scored, ...]
    findings: tuple[Finding, ...]
    tried: dict[str, int]
    spread: dict[str, float]
    calls_per_second: float

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {"passed": not self.findings, **to_json(asdict(self))}


@dataclass(frozen=True, slots=True)
class _Case:
    """An honest pair with what the verifier pays for it."""

    honest: Honest
    right: Verdict
    wrong: Verdict
    untidy: Verdict
    """The right answer, laid out well but with a word after the end."""


def verify(reward: RewardConfig, rows: Sequence[ScoredRow] = ()) -> Report:
    """Attack a verifier on the truths of `rows`, or on built-in examples where none are given.

    Raises:
        UserError: no such verifier or option, or nothing to attack it with: no truth to which it
            applies, or no built-in example whose right answer it pays.
    """
    with DeadlinePool(WORKERS) as pool:
        return _verify(reward, rows, pool)


def verify_shipped(options: Mapping[str, Mapping[str, Any]]) -> Iterator[Report]:
    """A report on every shipped verifier in the order of their names.

    `options` by name, for those that cannot do without (a judge needs an endpoint).
    """
    with DeadlinePool(WORKERS) as pool:
        for name in plugins.names("verifier"):
            reward = RewardConfig(verifier=name, options=dict(options.get(name, {})))
            yield _verify(reward, (), pool)


def _verify(reward: RewardConfig, rows: Sequence[ScoredRow], pool: DeadlinePool) -> Report:
    component = resolve(reward)
    questions = [(row.sample, row.completion.frame) for row in rows] or examples()
    bench = _Bench(component, pool, questions)
    cases = bench.cases(own_rows=bool(rows))[:MAX_CASES]
    if not cases:
        raise UserError(
            f"verifier {reward.verifier!r} pays no right answer to the built-in examples; give "
            f"rows of your own (--data rows.jsonl)"
        )
    findings = list(bench.honest_findings(cases))
    for attack in ATTACKS:
        for case in cases[:1] if attack.once else cases:
            if bench.is_late():
                break
            findings += bench.attacked(attack, case)
    if bench.is_late():
        problem = f"stopped after {TOTAL_S:g} s: not all attacks were tried"
        findings.append(Finding("time", "all", problem, None, None, None, ""))
    shown = bench.score(rows) if rows else list(_honest_rows(cases))
    return Report(
        verifier=reward.verifier,
        rows=tuple(shown),
        findings=tuple(findings),
        tried=dict(bench.tried),
        spread=_spread([row.score for row in shown if row.score is not None]),
        calls_per_second=_speed(component, cases),
    )


class _Bench:
    """Asks one verifier about completions, each call in the pool."""

    def __init__(
        self, component: Component, pool: DeadlinePool, questions: Iterable[tuple[Sample, Frame]]
    ) -> None:
        self.component = component
        self.verifier = component.verifier
        self.pool = pool
        self.tried: Counter[str] = Counter()
        self.end = time.monotonic() + TOTAL_S
        self.tolerance = TOLERANCE * (self.verifier.high - self.verifier.low)
        self.variants = [
            list(state_honestly(sample, frame))
            for sample, frame in questions
            if self.verifier.applies_to(sample)
        ]

    def is_late(self) -> bool:
        """Return whether the time for the whole audit of this verifier is over."""
        return time.monotonic() > self.end

    def ask(
        self, case: Honest, texts: Sequence[str], reward: float = 0.0, tokens: int | None = None
    ) -> list[Verdict]:
        """Verdicts on completions of one sample.

        `reward` is what item verifiers gave them, `tokens` their length if not that of the text.
        """
        if self.is_late() and not self.tried:
            raise UserError(
                f"the verifier took over {TOTAL_S:g} s for the honest answers alone: does it hang?"
            )
        patience = WAIT_DEADLINE if self.verifier.waits else SLOW_DEADLINE
        deadline = self.component.deadline or patience
        mates = [
            other
            for others in self.variants
            for other in others
            if other.form == case.form and other.sample.id != case.sample.id
        ][:3]
        futures = [
            self.pool.submit(
                _judge, self.component.spec, case, text, mates, reward, tokens, deadline=deadline
            )
            for text in texts
        ]
        return [guarded(self.verifier, result, future) for future in futures]

    def cases(self, own_rows: bool) -> list[_Case]:
        """For every sample the way of answering that the verifier pays best.

        A plain function says nothing of what it needs: examples that it fails on or never pays are
        not its kind, unless they are the user's own rows.
        """
        best = [max(map(self._case, v), key=self._fitness) for v in self.variants if v]
        best = [case for case in best if case.right.applies]
        floor = self.verifier.low + self.tolerance
        paid = [case for case in best if case.right.score is not None and case.right.score > floor]
        plain = isinstance(self.verifier, FunctionVerifier | TrlVerifier)
        return paid if plain and not own_rows else paid or best

    def _fitness(self, case: _Case) -> tuple[float, bool]:
        right, wrong = _score(case.right, -math.inf), _score(case.wrong, -math.inf)
        return right, right > wrong + self.tolerance

    def _case(self, case: Honest) -> _Case:
        name = case.sample.template
        (right,) = self.ask(case, [lay_out(name, case.right)], reward=1.0)
        (wrong,) = self.ask(case, [lay_out(name, case.wrong)])
        (untidy,) = self.ask(case, [f"{lay_out(name, case.right)} so"], reward=1.0)
        return _Case(case, right, wrong, untidy)

    def honest_findings(self, cases: Iterable[_Case]) -> Iterator[Finding]:
        """What goes wrong on honest answers: failures, unlike scores for the same completion."""
        for case in cases:
            right = lay_out(case.honest.sample.template, case.honest.right)
            for what, verdict in (("right", case.right), ("wrong", case.wrong)):
                if verdict.fault is not None:
                    problem = f"fails: {verdict.fault}"
                    yield _finding(f"honest {what} answer", case, problem, verdict, right)
            (again,) = self.ask(case.honest, [right], reward=1.0)
            if again.score != case.right.score:
                yield _finding("the same twice", case, "not deterministic", again, right)

    def attacked(self, attack: Attack, case: _Case) -> Iterator[Finding]:
        """What an attack earns that it should not, on one sample."""
        texts = attack.make(case.honest)
        if texts and attack.unless:
            (shows,) = self.ask(case.honest, [attack.unless(case.honest)])
            if _score(shows) >= _score(case.right) - SAME:
                return
        self.tried[attack.name] += len(texts)
        for text, verdict in zip(texts, self.ask(case.honest, texts), strict=True):
            beside = self._as_long_as(case, text) if self.verifier.scope == "group" else case
            problem = self._problem(attack, beside, text, verdict)
            if problem:
                yield _finding(attack.name, case, problem, verdict, text)

    def _as_long_as(self, case: _Case, text: str) -> _Case:
        """The honest pair, as long as an attack: many group verifiers look at lengths alone."""
        name, tokens = case.honest.sample.template, _num_tokens(text)
        right_text, wrong_text = (lay_out(name, a) for a in (case.honest.right, case.honest.wrong))
        (right,) = self.ask(case.honest, [right_text], 1.0, tokens)
        (wrong,) = self.ask(case.honest, [wrong_text], 0.0, tokens)
        return replace(case, right=right, wrong=wrong)

    def _problem(self, attack: Attack, case: _Case, text: str, verdict: Verdict) -> str:
        if verdict.fault is not None:
            return f"fails: {verdict.fault}"
        if verdict.score is None:
            return ""
        right, wrong = _score(case.right), _score(case.wrong)
        as_right = verdict.score >= right - SAME
        if right <= wrong + self.tolerance:
            # It pays for something else than the right answer: for the layout, say, or the length.
            parsed = templates.split(text, case.honest.sample.template)
            minds_layout = _score(case.untidy) < right - SAME
            unearned = parsed.answer is None or (minds_layout and not parsed.well_formed)
            paid = as_right and unearned and verdict.score > max(self.verifier.low, 0.0)
            return "paid as much as a right answer" if paid else ""
        if as_right:
            return "paid as much as a right answer"
        if attack.ceiling == "wrong" and verdict.score > wrong + self.tolerance:
            return "paid more than an honest wrong answer"
        return ""

    def score(self, rows: Sequence[ScoredRow]) -> list[Scored]:
        """The rows' own completions, scored one by one."""
        shown = []
        for row in rows:
            case = Honest(row.sample, row.completion.frame, TruthKind(), "row", "", "")
            (verdict,) = self.ask(case, [row.completion.text], row.reward or 0.0)
            shown.append(_scored(row.sample.id, "row", verdict, row.completion.text))
        return shown


def _judge(
    spec: Spec,
    case: Honest,
    text: str,
    mates: Sequence[Honest],
    reward: float,
    tokens: int | None = None,
) -> Verdict:
    """Runs in a worker: the verdict on one completion, among honest ones where it takes several."""
    verifier = build(spec)
    completion = _completion(case, text, tokens)
    if isinstance(verifier, GroupVerifier):
        group = [*_pair(case), *_pair(case), completion]
        return guarded_many(
            verifier, 5, verifier.judge, group, case.sample, [1.0, 0.0, 1.0, 0.0, reward]
        )[-1]
    if isinstance(verifier, BatchVerifier):
        groups = [[*_pair(case), completion], *([*_pair(m), _pair(m)[0]] for m in mates)]
        samples = [case.sample, *(mate.sample for mate in mates)]
        return guarded_many(verifier, 3 * len(groups), verifier.judge, groups, samples)[2]
    return verifier(completion, case.sample)


def _pair(case: Honest) -> tuple[Completion, Completion]:
    name = case.sample.template
    return (
        _completion(case, lay_out(name, case.right)),
        _completion(case, lay_out(name, case.wrong)),
    )


def _completion(case: Honest, text: str, tokens: int | None = None) -> Completion:
    ids = tuple(range(_num_tokens(text) if tokens is None else tokens))
    return templates.completion(text, case.sample.template, case.frame, token_ids=ids)


def _num_tokens(text: str) -> int:
    """About four characters a token: there is no tokenizer here."""
    return len(text) // 4 + 1


def _score(verdict: Verdict, otherwise: float = 0.0) -> float:
    return otherwise if verdict.score is None else verdict.score


def _finding(attack: str, case: _Case, problem: str, verdict: Verdict, text: str) -> Finding:
    return Finding(
        attack, case.honest.sample.id, problem, verdict.score, case.wrong.score, case.right.score,
        _excerpt(text),
    )  # fmt: skip


def _honest_rows(cases: Iterable[_Case]) -> Iterator[Scored]:
    for case in cases:
        name, which = case.honest.sample.template, case.honest
        yield _scored(which.sample.id, "right", case.right, lay_out(name, which.right))
        yield _scored(which.sample.id, "wrong", case.wrong, lay_out(name, which.wrong))


def _scored(sample: str, what: str, verdict: Verdict, text: str) -> Scored:
    return Scored(sample, what, verdict.score, verdict.fault or verdict.note, _excerpt(text))


def _excerpt(text: str) -> str:
    return ascii(text[:EXCERPT])[1:-1] + ("..." if len(text) > EXCERPT else "")


def _spread(scores: Sequence[float]) -> dict[str, float]:
    if not scores:
        return {}
    return {
        "min": min(scores),
        "mean": statistics.fmean(scores),
        "max": max(scores),
        "deviation": statistics.pstdev(scores),
        "distinct": float(len(set(scores))),
    }


def _speed(component: Component, cases: Sequence[_Case]) -> float:
    """Completions a second, in line on this core; they have proved harmless in the pool before."""
    jobs: list[tuple[Any, ...]] = [
        (component.spec, case.honest, lay_out(case.honest.sample.template, answer), [], 0.0)
        for case in cases
        for answer in (case.honest.right, case.honest.wrong)
        if case.right.fault is None and case.wrong.fault is None
    ]
    calls, start = 0, time.perf_counter()
    while jobs and time.perf_counter() - start < SPEED_SECONDS:
        for job in jobs:
            guarded(component.verifier, _judge, *job)
        calls += len(jobs)
    return calls / (time.perf_counter() - start)
