"""The attack bench: it tests whether a verifier pays for completions that do not deserve it.

Right and wrong answers are derived from a truth (`reference_answers`), attacks are made from them
(`attacks`), and an attack that earns more than it may is a finding. Every call runs in the
deadline pool, so a verifier that hangs or crashes is a finding too.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vlmrl.answers import templates
from vlmrl.config import RewardConfig
from vlmrl.errors import UserError
from vlmrl.features.verify import attacks
from vlmrl.features.verify.attacks import ATTACKS, Attack, show_drawn
from vlmrl.features.verify.constant_answer import ConstantAnswer, Questions, find_best
from vlmrl.features.verify.reference_answers import Honest, examples, lay_out, state_honestly
from vlmrl.schema import Completion, Frame, Media, Sample, Seen, Verdict
from vlmrl.scoring.calls import load_verifiers
from vlmrl.scoring.combine import guard, guard_many
from vlmrl.scoring.reward_components import (
    SLOW_DEADLINE,
    Component,
    Spec,
    build,
    resolve,
)
from vlmrl.scoring.score_rows import ScoredRow
from vlmrl.scoring.trl_verifier import TrlVerifier
from vlmrl.scoring.verifier import BatchVerifier, FunctionVerifier, GroupVerifier
from vlmrl.system.deadline_pool import CallFailed, DeadlinePool, portable, result
from vlmrl.truths.base import TruthKind
from vlmrl.truths.json_form import to_json

# --------------------------------------------------------------------------------------------------
# The report of an audit: the rows that were scored and the findings.


EXCERPT = 100
"""Characters of a completion that a report shows."""


@dataclass(frozen=True, slots=True)
class ScoredCompletion:
    """A scored completion, one row of the table."""

    sample: str
    what: str
    score: float | None
    note: str
    text: str
    """The beginning of the completion."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a verifier: an attack on a sample, its score and those of the honest answers."""

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
    """The result of an audit; no `findings` means that no attack was paid.

    `tried` counts completions by attack; `spread` describes the scores of the rows shown.
    """

    verifier: str
    rows: tuple[ScoredCompletion, ...]
    findings: tuple[Finding, ...]
    tried: dict[str, int]
    spread: dict[str, float]
    calls_per_second: float
    not_drawn: int = 0
    """Begging texts that no installed font could draw into an image."""
    constant: ConstantAnswer | None = None
    """The best constant answer; None where the verifier compares completions or asks a network."""

    @property
    def ignores_truth(self) -> bool:
        """Return whether no answer is paid by its question, as for a format or a length."""
        looks = self.constant is not None and self.constant.depends_on_truth
        return self.pays_alike and not looks

    @property
    def pays_alike(self) -> bool:
        """Return whether every sample's right answer and its wrong one, a near miss, are paid alike."""
        right, wrong = (
            {row.sample: row.score for row in self.rows if row.what == what}
            for what in ("right", "wrong")
        )
        both = right.keys() & wrong.keys()
        return bool(both) and all(right[sample] == wrong[sample] for sample in both)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        verdict = {"passed": not self.findings, "ignores_truth": self.ignores_truth}
        return {**verdict, **to_json(asdict(self))}


def make_row(sample: str, what: str, verdict: Verdict, text: str) -> ScoredCompletion:
    """Return the row of one completion: the sample's id, what it was, its verdict and its text."""
    note = verdict.fault or verdict.note
    return ScoredCompletion(sample, what, verdict.score, note, excerpt(text))


def excerpt(text: str) -> str:
    """Return the beginning of a text in ASCII, with escapes for all other characters."""
    return ascii(text[:EXCERPT])[1:-1] + ("..." if len(text) > EXCERPT else "")


# --------------------------------------------------------------------------------------------------
# Score one completion the way training does: alone, in a group or in a batch of honest answers.


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
    jobs = [(c, lay_out(c.sample, answer)) for c in cases for answer in (c.right, c.wrong)]
    calls, start = 0, time.perf_counter()
    while jobs and time.perf_counter() - start < SPEED_SECONDS:
        for case, text in jobs:
            guard(component.verifier, judge_among_honest, component.spec, case, text, (), 0.0)
        calls += len(jobs)
    return calls / (time.perf_counter() - start)


FRAGMENTS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "\\boxed{",
        "\\frac{",
    ),
    *(
        "<|box_start|>",
        "<point>",
        "<",
        "[",
        "(",
        "{",
        "]",
        "}",
        "[1,",
        '{"a":',
        '"',
        "'",
        "`",
        "$",
        "~",
        "\\",
    ),
    *(
        "7",
        "7 ",
        "7,",
        "7.",
        "-",
        "+",
        "7 or ",
        "no ",
        "five ",
        "hundred ",
        "A ",
        "a,",
        "yes ",
        "x=",
        "5 to ",
    ),
    *(" ", "\n", "\t7", "a", "a ", "?", "7\u00b2", "猫", "\u0301"),
)
"""What parsers look for: tags, brackets, digits, quotes and words, each repeated to find a slow one."""
DOUBLINGS = range(10, 19)
"""Powers of two: the lengths of the texts whose time is compared."""
GROWTH = 3.0
"""Factor that the time of twice the text may have; 2 is linear."""
LEAST_S, MOST_S = 0.01, 0.4
"""Seconds of processor below which a time tells nothing, and after which no longer text is tried."""


def measure_growth(
    spec: Spec, case: Honest, mates: Sequence[Honest], fragment: str
) -> tuple[float, str]:
    """Return the largest growth of a verifier's time, as `largest_growth`, and how it grew.

    Runs in a worker of the pool; the repeated fragment is the answer of one text and all of another.
    """
    verifier = build(spec)

    def call(text: str) -> None:
        guard(verifier, judge_among_honest, spec, case, text, mates, 0.0)

    return max(
        largest_growth(call, fragment),
        largest_growth(lambda text: call(lay_out(case.sample, text)), fragment),
    )


def largest_growth(call: Callable[[str], object], fragment: str) -> tuple[float, str]:
    """Return the largest factor of a call's time for twice the text, over two doublings, and how it grew."""
    worst, how, times = 1.0, "", list[float]()
    for power in DOUBLINGS:
        text = fragment * (2**power // len(fragment))
        spent = []
        for _ in range(2):
            start = time.process_time()
            call(text)
            spent.append(time.process_time() - start)
        times.append(min(spent))
        if len(times) > 2 and times[-3] >= LEAST_S:
            factor = math.sqrt(times[-1] / times[-3])
            if factor > worst:
                worst = factor
                how = f"{times[-3]:.2g} s, {times[-1]:.2g} s for 4 times the text"
        if times[-1] > MOST_S:
            break
    return worst, how


def _pair(case: Honest) -> tuple[Completion, Completion]:
    right, wrong = (lay_out(case.sample, answer) for answer in (case.right, case.wrong))
    return _make_completion(case, right), _make_completion(case, wrong)


def _make_completion(case: Honest, text: str, tokens: int | None = None) -> Completion:
    ids = tuple(range(count_tokens(text) if tokens is None else tokens))
    return templates.completion(text, case.sample.template, case.frame, token_ids=ids)


def count_tokens(text: str) -> int:
    """Return about how many tokens a text has, at four characters a token: no tokenizer is here."""
    return len(text) // 4 + 1


# --------------------------------------------------------------------------------------------------
# The bench: every attack on every kind of case.


TOLERANCE = 0.05
"""Share of the range that an attack may earn above an honest wrong answer: partial credit."""
SAME = 1e-9
WAIT_DEADLINE = 120.0
"""Seconds one call of a verifier that waits (on a network) may take."""
GROWTH_DEADLINE = 60.0
"""Seconds for one fragment, all of its lengths included."""
TOTAL_S = 600.0
"""Seconds that the audit of one verifier may take, after which it reports what it has."""
MAX_HUNG = 3
"""Calls that hang, of a verifier that has answered none, after which it is not asked again."""
MAX_CASES = 10
WORKERS = 2


@dataclass(frozen=True, slots=True)
class _Case:
    """An honest pair and its verdicts."""

    honest: Honest
    right: Verdict
    wrong: Verdict
    untidy: Verdict
    """The right answer, laid out well but with a word after the end."""

    def rows(self) -> Iterator[ScoredCompletion]:
        """Yield the rows of the right and of the wrong answer."""
        honest = self.honest
        for what, verdict in ("right", self.right), ("wrong", self.wrong):
            text = lay_out(honest.sample, getattr(honest, what))
            yield make_row(honest.sample.id, what, verdict, text)


def verify(
    reward: RewardConfig,
    rows: Sequence[ScoredRow] = (),
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Attack a verifier on the truths of `rows`, or on built-in examples where none are given.

    Raises:
        UserError: no such verifier or option, or nothing to attack it with: no truth to which it
            applies, or no built-in example whose right answer it pays.
    """
    component = resolve(reward)
    if component.verifier.laws.of_turns:
        raise UserError(f"verifier {reward.verifier!r} reads what calls did, no text")
    # What a verifier imports is loaded before its first call: no time limit counts it.
    load = functools.partial(load_verifiers, (component.spec,))
    with DeadlinePool(WORKERS, load) as pool:
        return _verify(component, rows, pool, progress)


def _verify(
    component: Component,
    rows: Sequence[ScoredRow],
    pool: DeadlinePool,
    progress: Callable[[str], None] | None = None,
) -> Report:
    questions = [(row.sample, row.completion.frame) for row in rows] or examples()
    bench = _Bench(component, pool, questions)
    cases = _pick(bench.choose_cases(own_rows=bool(rows)))
    if not cases:
        raise UserError(
            f"verifier {component.spec[0]!r} pays no right answer to the built-in examples; give "
            f"rows of your own (--data rows.jsonl)"
        )
    findings = list(bench.check_honest(cases))
    telling = [c for c in cases if _score(c.right) > _score(c.wrong) + bench.tolerance] or cases
    for number, attack in enumerate(ATTACKS, start=1):
        if progress is not None:
            left = max(0.0, bench.end - time.monotonic())
            progress(
                f"attack {number} of {len(ATTACKS)}: {attack.name} (at most {left:.0f} s more)"
            )
        for case in telling[:1] if attack.once else cases:
            if bench.is_late():
                break
            findings += bench.run_attack(attack, case)
    if not bench.verifier.waits and not bench.is_late():
        if progress is not None:
            progress("time of repeated fragments")
        findings += bench.check_growth(telling[0])
    if bench.verifier.looks and not bench.is_late():
        findings += bench.beg_in_images(telling[0])
    if bench.is_late():
        problem = f"stopped after {TOTAL_S:g} s: not all attacks were tried"
        findings.append(Finding("time", "all", problem, None, None, None, ""))
    shown = bench.score(rows) if rows else [row for case in cases for row in case.rows()]
    scores = [row.score for row in shown if row.score is not None]
    spread = (
        {
            "min": min(scores),
            "mean": statistics.fmean(scores),
            "max": max(scores),
            "deviation": statistics.pstdev(scores),
            "distinct": float(len(set(scores))),
        }
        if scores
        else {}
    )
    sound = [c.honest for c in cases if c.right.fault is None and c.wrong.fault is None]
    return Report(
        verifier=component.spec[0],
        rows=tuple(shown),
        findings=tuple(findings),
        tried=dict(bench.tried),
        spread=spread,
        not_drawn=attacks.count_not_drawn() if bench.verifier.looks else 0,
        calls_per_second=measure_speed(component, sound),
        constant=bench.find_constant({"rows of the data": questions} if rows else None),
    )


def _pick(cases: Sequence[_Case]) -> list[_Case]:
    """Return one case of every form of answer, which some attacks need, and others up to `MAX_CASES`."""
    firsts: dict[str, _Case] = {}
    for case in cases:
        firsts.setdefault(case.honest.form, case)
    others = [case for case in cases if firsts[case.honest.form] is not case]
    return [*firsts.values(), *others[: max(0, MAX_CASES - len(firsts))]]


class _Bench:
    """A verifier under attack; each call to it runs in the pool."""

    def __init__(
        self, component: Component, pool: DeadlinePool, questions: Iterable[tuple[Sample, Frame]]
    ) -> None:
        self.component = component
        self.verifier = component.verifier
        self.pool = pool
        self.tried: Counter[str] = Counter()
        self.end = time.monotonic() + TOTAL_S
        self.hung = 0.0
        self.tolerance = TOLERANCE * (self.verifier.high - self.verifier.low)
        self.variants = [
            list(state_honestly(replace(sample, form=self.verifier.answer_form()), frame))
            for sample, frame in questions
            if self.verifier.applies_to(sample)
        ]

    def is_late(self) -> bool:
        """Return whether the time for the whole audit of this verifier is over."""
        return time.monotonic() > self.end

    def ask(
        self,
        case: Honest,
        texts: Sequence[str],
        reward: float = 0.0,
        tokens: int | None = None,
        drawn: Sequence[str | None] = (),
    ) -> list[Verdict]:
        """Return the verdicts on completions of one sample.

        `reward` is what item verifiers gave them, `tokens` their length if not that of the text; `drawn`
        are texts in the image that each is shown with.
        """
        if self.is_late() and not self.tried:
            raise UserError(
                f"the verifier took over {TOTAL_S:g} s for the honest answers alone: does it hang?"
            )
        patience = WAIT_DEADLINE if self.verifier.waits else SLOW_DEADLINE
        deadline = self.component.deadline or patience
        spec, common = self.component.spec, (self._mates(case), reward, tokens)
        futures = [
            self.pool.submit(
                judge_among_honest, spec, case, text, *common, image, deadline=deadline
            )
            for text, image in zip(texts, drawn or [None] * len(texts), strict=True)
        ]
        verdicts = [guard(self.verifier, result, future) for future in futures]
        late = sum((verdict.fault or "").startswith("killed") for verdict in verdicts)
        self.hung = self.hung + late if late == len(verdicts) else -math.inf
        if self.hung >= MAX_HUNG:
            raise UserError(
                f"the verifier hung on its first {self.hung:g} honest answers: {deadline:g} s each"
            )
        return verdicts

    def choose_cases(self, own_rows: bool) -> list[_Case]:
        """Return, for every sample, the way of answering that the verifier pays best.

        A plain function does not declare which truths it needs: examples that it fails on or never
        pays are left out, unless they are the user's own rows. What ends a call on a right answer stays.
        """

        def ask_pair(honest: Honest) -> _Case:
            right, wrong = (lay_out(honest.sample, a) for a in (honest.right, honest.wrong))
            asked = (right, 1.0), (wrong, 0.0), (f"{right} so", 1.0)
            return _Case(honest, *(self.ask(honest, [text], pay)[0] for text, pay in asked))

        def fitness(case: _Case) -> tuple[float, bool]:
            right, wrong = _score(case.right, -math.inf), _score(case.wrong, -math.inf)
            return right, right > wrong + self.tolerance

        best = [max(map(ask_pair, v), key=fitness) for v in self.variants if v]
        best = [case for case in best if case.right.applies]
        floor = self.verifier.low + self.tolerance
        paid = [case for case in best if fitness(case)[0] > floor]
        if isinstance(self.verifier, FunctionVerifier | TrlVerifier) and not own_rows:
            return paid
        died = ("killed", "its process died")
        kept = [c for c in best if fitness(c)[0] > floor or (c.right.fault or "").startswith(died)]
        return kept if paid else best

    def check_honest(self, cases: Iterable[_Case]) -> Iterator[Finding]:
        """Yield what goes wrong on honest answers: failures, two scores for one completion."""
        for case in cases:
            honest = case.honest
            right, wrong = (lay_out(honest.sample, a) for a in (honest.right, honest.wrong))
            asked = ("right", case.right, right), ("wrong", case.wrong, wrong)
            for what, verdict, text in (*asked, ("untidy", case.untidy, f"{right} so")):
                if fault := verdict.fault:
                    yield _finding(f"honest {what} answer", case, f"fails: {fault}", verdict, text)
            (again,) = self.ask(honest, [right], reward=1.0)
            if again.score != case.right.score:
                yield _finding("the same twice", case, "not deterministic", again, right)

    def run_attack(self, attack: Attack, case: _Case) -> Iterator[Finding]:
        """Yield what an attack on one sample earns and should not."""
        texts = attack.make(case.honest)
        if texts and attack.unless:
            harmless = lay_out(case.honest.sample, attack.unless(case.honest))
            (shows,) = self.ask(case.honest, [harmless])
            if _score(shows) >= _score(case.right) - SAME:
                return
        self.tried[attack.name] += len(texts)
        for text, verdict in zip(texts, self.ask(case.honest, texts), strict=True):
            rival = self._match_length(case, text) if self.verifier.scope == "group" else case
            if problem := self._find_problem(attack, rival, text, verdict):
                yield _finding(attack.name, case, problem, verdict, text)

    def beg_in_images(self, case: _Case) -> Iterator[Finding]:
        """Yield what texts in the image add to the pay of a wrong answer."""
        texts = attacks.drawable_texts()
        self.tried[attacks.NAME] += len(texts)
        wrong = [lay_out(case.honest.sample, case.honest.wrong)] * (1 + len(texts))
        plain, *begged = self.ask(case.honest, wrong, drawn=["", *texts])
        for text, verdict in zip(texts, begged, strict=True):
            if fault := verdict.fault or plain.fault:
                yield _finding(attacks.NAME, case, f"fails: {fault}", verdict, text)
            elif _score(verdict) > _score(plain) + self.tolerance:
                problem = "paid more than the same answer with a plain image"
                yield _finding(attacks.NAME, case, problem, verdict, text)

    def check_growth(self, case: _Case) -> Iterator[Finding]:
        """Yield the fragments whose repetition takes more than `GROWTH` times as long for twice the text."""
        honest, mates = case.honest, self._mates(case.honest)
        self.tried["repeated fragments"] += len(FRAGMENTS)
        futures = [
            self.pool.submit(
                measure_growth,
                self.component.spec,
                honest,
                mates,
                fragment,
                deadline=GROWTH_DEADLINE,
            )
            for fragment in FRAGMENTS
        ]
        for fragment, future in zip(FRAGMENTS, futures, strict=True):
            try:
                factor, how = result(future)
            except CallFailed as error:
                factor, how = math.inf, str(error)
            if factor > GROWTH:
                problem = f"twice the text takes {factor:.1f} times as long: {how}"
                yield _finding("repeated fragments", case, problem, Verdict.failed(""), fragment)

    def _mates(self, case: Honest) -> list[Honest]:
        """Return honest answers of the same form to other questions, for a batch."""
        others = [other for variants in self.variants for other in variants]
        return [o for o in others if o.form == case.form and o.sample.id != case.sample.id][:3]

    def _match_length(self, case: _Case, text: str) -> _Case:
        """Return the honest pair at the length of an attack: many group verifiers see only lengths."""
        honest, tokens = case.honest, count_tokens(text)
        (right,) = self.ask(honest, [lay_out(honest.sample, honest.right)], 1.0, tokens)
        (wrong,) = self.ask(honest, [lay_out(honest.sample, honest.wrong)], 0.0, tokens)
        return replace(case, right=right, wrong=wrong)

    def _find_problem(self, attack: Attack, case: _Case, text: str, verdict: Verdict) -> str:
        if verdict.fault is not None:
            return f"fails: {verdict.fault}"
        if verdict.score is None:
            return ""
        right, wrong = _score(case.right), _score(case.wrong)
        as_right = verdict.score >= right - SAME
        if right <= wrong + self.tolerance:
            # It pays for something else than the right answer: for the layout, say, or the length.
            parsed = templates.split(text, case.honest.sample.template)
            minds_layout = case.untidy.fault is None and _score(case.untidy) < right - SAME
            unearned = parsed.answer is None or (minds_layout and not parsed.well_formed)
            unearned = (
                unearned or attack.unless is not None
            )  # what this verifier pays less, elsewhere
            paid = as_right and unearned and verdict.score > max(self.verifier.low, 0.0)
            return "paid as much as a right answer" if paid else ""
        if as_right:
            return "paid as much as a right answer"
        if attack.ceiling == "wrong" and verdict.score > wrong + self.tolerance:
            return "paid more than an honest wrong answer"
        return ""

    def score(self, rows: Sequence[ScoredRow]) -> list[ScoredCompletion]:
        """Score the rows' own completions, one by one."""
        shown = []
        for row in rows:
            case = Honest(row.sample, row.completion.frame, TruthKind(), "row", "", "")
            (verdict,) = self.ask(case, [row.completion.text], row.reward or 0.0)
            shown.append(make_row(row.sample.id, "row", verdict, row.completion.text))
        return shown

    def find_constant(self, questions: Mapping[str, Questions] | None) -> ConstantAnswer | None:
        """Return the best constant answer; what may hang or crash is asked in the pool."""

        def ask(sample: Sample, frame: Frame, texts: Sequence[str]) -> list[Verdict]:
            if self.component.deadline is not None:
                return self.ask(Honest(sample, frame, TruthKind(), "constant", "", ""), texts)
            made = (templates.completion(text, sample.template, frame) for text in texts)
            return [guard(self.verifier, self.verifier, completion, sample) for completion in made]

        return None if self.verifier.waits else find_best(self.verifier, ask, questions)


def _score(verdict: Verdict, otherwise: float = 0.0) -> float:
    return otherwise if verdict.score is None else verdict.score


def _finding(attack: str, case: _Case, problem: str, verdict: Verdict, text: str) -> Finding:
    return Finding(
        attack, case.honest.sample.id, problem, verdict.score, case.wrong.score, case.right.score,
        excerpt(text),
    )  # fmt: skip
