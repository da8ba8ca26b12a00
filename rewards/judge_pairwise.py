"""Ask another model which of two completions of a prompt is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.schema import Completion, Sample, Seen, Verdict
from vlmrl.scoring import model_judge
from vlmrl.scoring.model_judge import Better, PairJudge, PairJudgement
from vlmrl.scoring.verifier import GroupVerifier
from vlmrl.system.chat_endpoint import Invalid, Unavailable
from vlmrl.system.seeds import seed_of, uniform

Pair = tuple[int, int]


@dataclass(frozen=True)
class JudgePairwise(PairJudge, GroupVerifier):
    """The mean of what a completion's comparisons with others of its group pay, by a judge.

    The judge is asked as `judge` asks it, by a named model, `url` or `callable`, which of two candidates
    is better: `first`, `second` or `tie`. Each pair is asked in both orders; where they disagree, it is a
    tie. `pays` says what a win, a tie and a loss pay. Equal texts tie and a completion without a
    `part` loses, both without asking; such a completion is paid as a loss whatever the others are.

    `against: each_other` is a tournament of all pairs, G·(G - 1) questions for G completions, or with
    `opponents`, an even number, of a seeded circle in which each meets that many: G·`opponents`
    questions. `against: reference` draws one completion of the group by the seed and compares the others
    with it, 2·(G - 1) questions; it is paid the mean of a win and a loss. All are the same for the same
    completions, so that a resumed run asks nothing twice.

    A completion is masked if a question about it got no reply that could be read. The parts
    `orders_agree`, `ties` and `first_wins` are curves of the run: a judge without a bias of position
    names the first place in half of its replies.

    Published sets: Writing-Zero: `against: reference`, `pays: [1, -1, -1]` (a win counts only where all
    votes agree; what is drawn is paid 0) as the advantage itself: `baseline: none`, `scale: none`.

    Refuses: prose around the JSON, another word than the three, no reply in one of the orders.

    Source: Writing-Zero (Bootstrapped Relative Policy Optimization), arXiv 2506.00103.
    Differs: two votes, one an order; groups that nearly all win or lose stay.

    Raises: ValueError: as `judge`; an odd number of opponents, or opponents beside a reference.
    """

    low: ClassVar[float] = -1.0

    against: Literal["each_other", "reference"] = "each_other"
    """`each_other`: a tournament; `reference`: one completion of the group, drawn by the seed."""
    opponents: int | None = None
    """How many others each completion of a tournament meets, an even number; None: all."""
    pays: tuple[float, float, float] = (1.0, 0.5, 0.0)
    """What a win, a tie and a loss pay, each from -1 to 1."""
    seed: int = 0
    """What the circle and the reference are drawn by, with the prompt and the completions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.opponents is not None and (self.opponents < 2 or self.opponents % 2):
            raise ValueError(f"opponents: expected an even number, got {self.opponents}")
        if self.opponents is not None and self.against == "reference":
            raise ValueError("opponents are those of a tournament: expected against: each_other")
        win, tie, loss = self.pays
        if not 1 >= win >= tie >= loss >= -1 or win == loss:
            raise ValueError(
                f"pays: expected what a win, a tie and a loss pay, from 1 down to -1, got {self.pays}"
            )

    def questions(self, group_size: int) -> int:
        """Return how many questions a group of completions takes at most, repeated attempts not counted."""
        return 2 * len(self._pairs(group_size, 0))

    def judge(
        self,
        completions: Sequence[Completion],
        sample: Sample,
        rewards: Sequence[float | None],
        seen: Seen | None = None,
    ) -> list[Verdict]:
        """Judge a group."""
        if lack := self.lacks_media(sample, seen):
            return [Verdict.failed(lack)] * len(completions)
        if len(completions) < 2:
            return [Verdict.not_applicable("nothing to compare with")] * len(completions)
        texts = [self.candidate(completion) for completion in completions]
        # By the texts, not by their places: the same for any order of the group.
        order = sorted(range(len(texts)), key=texts.__getitem__)
        drawn = int(2**32 * uniform("\0".join([sample.id, *sorted(texts)])))
        places = self._pairs(len(texts), seed_of(self.seed, drawn))
        met = [(order[left], order[right]) for left, right in places]
        asked = [pair for pair in met if _is_open(texts, pair)]
        shown = self.shows(seen) if asked else ()
        marked = [self.marks(each, sample, seen) if asked else None for each in completions]

        def ask(first: int, second: int) -> Better:
            images = zip((marked[first], marked[second]), ("the first", "the second"), strict=True)
            parts = [part for image, who in images if image for part in image.parts(who)]
            return self.prefer(texts[first], texts[second], sample, [*shown, *parts])

        judgements = self._compare(asked, ask)
        return [self._verdict(g, met, texts, judgements) for g in range(len(texts))]

    def _pairs(self, size: int, seed: int) -> list[Pair]:
        if self.against == "reference":
            return model_judge.against_one(size, seed)
        return model_judge.each_other(size, self.opponents, seed)

    def _compare(
        self, asked: Sequence[Pair], ask: Callable[[int, int], Better]
    ) -> dict[Pair, PairJudgement | str]:
        """Ask about pairs in both orders, side by side; what got no reply has the fault in its place."""
        if not asked:
            return {}
        with ThreadPoolExecutor(min(self.concurrency, 2 * len(asked))) as threads:
            replies = [
                (pair, threads.submit(ask, *pair), threads.submit(ask, *pair[::-1]))
                for pair in asked
            ]
        return {pair: _read(straight, swapped) for pair, straight, swapped in replies}

    def _verdict(
        self,
        g: int,
        met: Sequence[Pair],
        texts: Sequence[str],
        judgements: Mapping[Pair, PairJudgement | str],
    ) -> Verdict:
        win, tie, loss = self.pays
        own = [pair for pair in met if g in pair]
        if not texts[g]:
            return Verdict(loss, note=f"no {self.part}")
        if self.against == "reference" and all(pair[1] == g for pair in own):
            return Verdict((win + loss) / 2, note="the group's reference")
        asked = [judgements[pair] for pair in own if pair in judgements]
        for judgement in asked:
            if isinstance(judgement, str):
                return Verdict.failed(judgement)
        outcomes = [_outcome(pair, texts, judgements) * (1 if pair[0] == g else -1) for pair in own]
        paid = [{1: win, 0: tie, -1: loss}[outcome] for outcome in outcomes]
        parts = model_judge.pair_parts(
            [judgement for judgement in asked if isinstance(judgement, PairJudgement)]
        )
        note = ", ".join(f"{outcomes.count(n)} {what}" for n, what in _WORDS.items())
        return Verdict(sum(paid) / len(paid), parts, note=note)


_WORDS = {1: "won", 0: "tied", -1: "lost"}


def _is_open(texts: Sequence[str], pair: Pair) -> bool:
    """Return whether a pair must be asked about: two texts that are not the same."""
    left, right = (texts[index] for index in pair)
    return bool(left and right) and left != right


def _outcome(
    pair: Pair, texts: Sequence[str], judgements: Mapping[Pair, PairJudgement | str]
) -> int:
    """Return 1 where the left one of a pair is better, -1 where the right one is, 0 for a tie."""
    judgement = judgements.get(pair)
    if isinstance(judgement, PairJudgement):
        return judgement.outcome
    return bool(texts[pair[0]]) - bool(texts[pair[1]])


def _read(straight: Future[Better], swapped: Future[Better]) -> PairJudgement | str:
    try:
        return PairJudgement(straight.result(), swapped.result())
    except (Unavailable, Invalid) as error:
        return model_judge.describe_failure(error)
