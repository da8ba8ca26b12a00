"""The contract of a verifier, and the wrapper that makes one of a plain function.

A verifier is a frozen dataclass in a file of its own under `rewards/`; its fields are its options.
It is a pure, deterministic check of a completion against a sample's truth. It may raise: the scorer
turns whatever it raises into a fault, which is never a wrong answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, SupportsFloat

from vlmrl.answers import parsing, templates
from vlmrl.schema import AnswerForm, Completion, Frame, Sample, Truth, Verdict

# --------------------------------------------------------------------------------------------------
# The contract between a control group and the verifier that compares a group with it.


SHUFFLED_REWARDS = "shuffled_rewards"
"""Key of a sample's `meta`: the rewards of its control group with shuffled frames, a list of numbers."""

SHUFFLED_SCORES = "shuffled_scores"
"""Key of a sample's meta: the scores of its control group by item verifier, {label: [score, ...]}."""

PAIR_PARTS = ("orders_agree", "first_wins", "ties")
"""Parts of a verdict by pairs: shares of its pairs in which both orders agree, of the replies with a winner
that name the first place, and of its pairs that are ties."""


# --------------------------------------------------------------------------------------------------
# What the contract test of verifiers cannot read off a verifier's class variables.
#
# Every item verifier has `laws`; the defaults suit one that grades the answer against the first kind of
# truth it needs. `tests/contracts/test_verifiers.py` runs the laws over random truths and hostile text.


Shape = Literal[
    "boxes", "one box", "points", "spans", "labelled spans", "track", "masks", "choice", "labels",
    "fields", "action", "text", "numeral", "number", "count", "yes or no", "none", "anything",
    "pointed boxes",
]  # fmt: skip
"""Truths that the contract test can draw, each with the answer that states it."""


@dataclass(frozen=True)
class Laws:
    """How a verifier's laws are tested.

    `truth`: the shapes of truth it is tested on; empty: those of the first name in `needs`.
    `best`: the completion that scores `high`; empty: the truth itself, written as an answer.
    `junk`: the best answer with something added that must not raise the score. `ANSWER` stands for
    the answer, `ITEMS` for what is inside its brackets.
    `options`: sets of options, e.g. the published ones, that obey every law; `loose`: sets that may
    pay for junk, as the docstring says. `template`: of the completions. `any_order`: whether the
    order of what an answer lists changes nothing. `of_turns`: whether it judges the calls that were
    run and not a text, so that texts say nothing of it: it has tests of its own. `of_models`: whether its
    score is the number of one of the config's `models`, which has to be there.
    """

    truth: tuple[Shape, ...] = ()
    best: str = ""
    junk: str = "ANSWER zzzz"
    options: tuple[Mapping[str, Any], ...] = ({},)
    loose: tuple[Mapping[str, Any], ...] = ()
    template: str = "none"
    any_order: bool = False
    of_turns: bool = False
    of_models: bool = False

    @property
    def needs_a_run(self) -> bool:
        """Whether texts alone say nothing of it."""
        return self.of_turns or self.of_models


# --------------------------------------------------------------------------------------------------
# The kinds of verifiers, and the wrapper that makes one of a plain function.


Scope = Literal["item", "group", "batch"]
SAID = frozenset({"text", "number", "choice", "labels"})
"""Kinds of truth that answer a question, so that "I don't know" can be the right answer."""


@dataclass(frozen=True)
class Verifier:
    """Base of item verifiers: `__call__(completion, sample) -> Verdict`.

    Class variables a subclass may set: `low`, `high` the declared range of the score; `needs` the
    kinds of truth without which the verifier does not apply: any one of them is enough, and a tuple
    among them means all of its kinds (`(("points", "boxes"), "masks")`: points and boxes, or
    masks); `slow`
    whether calls must run in the deadline pool; `waits` whether a call spends its time waiting (on
    a network): calls then run in threads, and the verifier itself bounds their time.
    """

    scope: ClassVar[Scope] = "item"
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 1.0
    needs: ClassVar[tuple[str | tuple[str, ...], ...]] = ()
    slow: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    laws: ClassVar[Laws] = Laws()

    @property
    def concurrency(self) -> int:
        """Calls of one that `waits` that may wait at the same time."""
        return 16

    @property
    def looks(self) -> bool:
        """Whether it looks at the media: its call gets what the policy saw as one more argument.

        That is a `schema.Seen`, or None where it is not at hand (rows that are scored from a file).
        """
        return False

    @property
    def reads_truth(self) -> bool:
        """Whether it says something of what is answered, not of the form of the answer alone."""
        return bool(self.needs)

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Judge one completion."""
        raise TypeError(f"{type(self).__name__} must define __call__")

    def warm_up(self) -> None:
        """Load what the first call needs (a worker's imports must not count as the call's time)."""

    def applies_to(self, sample: Sample) -> bool:
        """Return True if the sample's truth has what this verifier needs."""
        return (
            not self.needs
            or sample.truth.none
            or any(all(sample.truth.value(k) is not None for k in n) for n in self._needs())
        )

    def answer_form(self) -> AnswerForm:
        """Return how an answer must be written for this verifier to read it.

        Prompts ask for it and demonstrations show it. Default: in a form of the truths it `needs`.
        """
        return AnswerForm(tuple(dict.fromkeys(kind for need in self._needs() for kind in need)))

    def describe_needs(self) -> str:
        """Say what the truth must have: "points and boxes, or masks"."""
        needs = [" and ".join(need) for need in self._needs()]
        return (", or " if any(" and " in need for need in needs) else " or ").join(needs)

    def _needs(self) -> list[tuple[str, ...]]:
        return [(need,) if isinstance(need, str) else need for need in self.needs]


@dataclass(frozen=True)
class AnswerVerifier(Verifier):
    """Base of verifiers that judge the answer span: a subclass defines `grade`.

    No answer scores 0, and so does one of over `parsing.MAX_CHARS` characters. Where the truth is
    declared "none", an explicit nothing (`[]`, `none`) scores 1, and so does declining to answer
    ("I don't know") where the verifier grades what is said, not places; everything else scores 0,
    and `grade` is not asked.
    """

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Settle what needs no grading, else grade."""
        if not self.applies_to(sample):
            return Verdict.not_applicable(f"the truth has no {self.describe_needs()}")
        answer = completion.answer
        if not answer:
            return Verdict(0.0, note="no answer")
        if len(answer) > parsing.MAX_CHARS:
            return Verdict(0.0, note=f"answer longer than {parsing.MAX_CHARS} characters")
        if sample.truth.none:
            nothing = parsing.says_nothing(answer) or (
                bool(SAID.intersection(self.needs)) and parsing.declines(answer)
            )
            return Verdict(
                float(nothing), answer=answer, note="" if nothing else "nothing is right"
            )
        return self.grade(answer, sample.truth, completion)

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Judge a non-empty answer against a truth that has what this verifier needs."""
        raise TypeError(f"{type(self).__name__} must define grade")


@dataclass(frozen=True)
class GroupVerifier(Verifier):
    """Base of verifiers that see all G completions of a prompt, with the item rewards so far.

    `judge(completions, sample, rewards)`: `rewards[g]` is the combined item reward of completion g,
    or None where it is masked. Returns one verdict per completion. Called only with whole groups.
    """

    scope: ClassVar[Scope] = "group"

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Judge a group."""
        raise TypeError(f"{type(self).__name__} must define judge")


@dataclass(frozen=True)
class CorrectnessVerifier(GroupVerifier):
    """Base of group verifiers that treat correct completions unlike wrong ones."""

    correct_by: str | None = None
    """Label of the item verifier whose score decides; None: the combined reward of all of them.
    The scorer passes these scores to `judge` as `rewards`."""
    correct_above: float = 0.5
    """A completion is correct if that score exceeds this."""

    def is_correct(self, rewards: Sequence[float | None]) -> list[bool]:
        """Return which completions are correct; a masked one (None) is not."""
        return [reward is not None and reward > self.correct_above for reward in rewards]


@dataclass(frozen=True)
class BatchVerifier(Verifier):
    """Base of verifiers that see all P x G completions of a batch.

    `judge(groups, samples)`: `groups[p]` are the G completions of `samples[p]`. Returns verdicts
    [P][G].
    """

    scope: ClassVar[Scope] = "batch"

    def judge(
        self, groups: Sequence[Sequence[Completion]], samples: Sequence[Sample]
    ) -> list[list[Verdict]]:
        """Judge a batch."""
        raise TypeError(f"{type(self).__name__} must define judge")


@dataclass(frozen=True)
class FunctionVerifier(Verifier):
    """A user's `def score(answer, truth) -> float | Verdict | None` as a verifier.

    The function receives only the arguments it names, out of: `answer` (the answer span, None if
    there is none), `truth` (`schema.Truth`), `completion`, `sample`, `text` (the whole completion),
    `thought`. Returning None means "does not apply". A completion without an answer scores 0
    without a call, unless the function asks for `text`, or for `completion` and not for `answer`.
    """

    function: Callable[..., Any]
    name: str = "score"

    @property
    def reads_truth(self) -> bool:
        """Whether the function asks for the truth, or for the sample that has it."""
        return bool({"truth", "sample"} & set(inspect.signature(self.function).parameters))

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Call the function with what it names."""
        offered = {
            "answer": completion.answer,
            "truth": sample.truth,
            "completion": completion,
            "sample": sample,
            "text": completion.text,
            "thought": completion.parsed.thought,
        }
        wanted = inspect.signature(self.function).parameters
        reads_whole = "text" in wanted or ("completion" in wanted and "answer" not in wanted)
        if completion.answer is None and not reads_whole:
            return Verdict(0.0, note="no answer")
        result = self.function(**{k: v for k, v in offered.items() if k in wanted})
        if isinstance(result, Verdict):
            return result
        if result is None:
            return Verdict.not_applicable()
        return Verdict(to_score(result), answer=completion.answer)


def to_score(value: object) -> float:
    """Return the number that a plain function returned, of any library; raise TypeError if it is none."""
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        raise TypeError(f"expected a number, a Verdict or None, got {value!r:.80}")
    return float(value)


def num_tokens(completion: Completion) -> int:
    """Return a completion's tokens, or its words where no token ids are known (`vlmrl score`)."""
    return len(completion.token_ids) or len(completion.text.split())


def judge(
    verifier: Verifier,
    text: str,
    truth: Truth,
    template: str = "none",
    frame: Frame = Frame(100, 100, duration=100.0),  # frozen
) -> Verdict:
    """Return the verdict of an item verifier on a text, e.g. to try it out or in its examples."""
    sample = Sample("example", "example", (), truth, template)
    return verifier(templates.completion(text, template, frame), sample)


def judge_group(
    verifier: GroupVerifier,
    texts: Sequence[str],
    rewards: Sequence[float | None],
    meta: Mapping[str, object] | None = None,
) -> list[Verdict]:
    """Return the verdicts of a group verifier on some texts with their item rewards."""
    sample = Sample("example", "example", (), Truth(), "none", meta=meta or {})
    completions = [templates.completion(text, "none", Frame()) for text in texts]
    return verifier.judge(completions, sample, rewards)


def judge_batch(
    verifier: BatchVerifier, texts: Sequence[Sequence[str]], truths: Sequence[Truth]
) -> list[list[Verdict]]:
    """Return the verdicts of a batch verifier on groups of texts of one source, with their truths."""
    samples = [Sample(f"example-{p}", "example", (), truth) for p, truth in enumerate(truths)]
    groups = [[templates.completion(text, "none", Frame()) for text in group] for group in texts]
    return verifier.judge(groups, samples)
