"""The loophole watch of a run: what it adds to metrics.jsonl, what it says, and the rows to look at.

It generates nothing and draws no random number, so the weights are those of a run without it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from vlmrl.answers import parsing, templates, text
from vlmrl.config import RewardConfig
from vlmrl.errors import UserError
from vlmrl.runs import rank_shards, run_folder
from vlmrl.runs.rank_shards import numbers_here
from vlmrl.runs.rollout_rows import rows
from vlmrl.schema import Completion, Frame, PromptBatch, Rewards, Rollouts, Sample, Verdict
from vlmrl.scoring.combine import combine, touching
from vlmrl.scoring.reward_components import Component, resolve
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import distributed
from vlmrl.system.files import append_line
from vlmrl.truths import prompting
from vlmrl.truths.base import kinds, known

# --------------------------------------------------------------------------------------------------
# Decide from the curves of a run whether its reward is rising for another reason than better answers.
#
# A pure function of the lines of metrics.jsonl: a resumed run decides as the one that was not interrupted.


REWARD = "loophole/reward"
BLIND = "media_ablation/blank_reward_drop"
BLIND_ERROR = "media_ablation/blank_reward_error"
STAGE = "schedule/stage"
SIGNALS = {
    "strict": "loophole/strict",
    "margin": "loophole/margin",
    "blind": BLIND,
}
"""What must rise with the reward, and the curve that says whether it does."""

Line = Mapping[str, float]

WINDOW = 8
"""Measured steps whose mean is compared with that of as many earlier ones."""
LEAST_RISE = 0.03
LEAST_SHARE = 0.15
"""A reward has risen by at least the one, and by this share of what it was."""
ERRORS = 3.0
"""Standard errors by which it must have risen."""
PART = 0.25
"""Share of the rise that a signal must make, too. A fair reward and a strict reader differ in scale."""
DOUBT = 2.0
"""Standard errors of the difference that are left to a signal."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A signal that does not rise with the reward: means of the earlier and of the last window."""

    signal: str
    steps: int
    """Steps between the windows."""
    reward: tuple[float, float]
    value: tuple[float, float]

    def __str__(self) -> str:
        """Return a sentence for a person, with what to look at."""
        (before, after), (was, now) = self.reward, self.value
        rise = f"the reward rose from {before:.3g} to {after:.3g} in {self.steps} steps, but"
        change = f"({was:.3g} → {now:.3g})"
        match self.signal:
            case "strict":
                return (
                    f"{rise} by a strict reading the answers are no more right {change}: see what is "
                    "paid, and try `vlmrl verify` on the verifiers"
                )
            case "margin":
                return (
                    f"{rise} its distance to what the same answers earn with other prompts' truths did "
                    f"not {change}: a guess or the form earns it; compare the best constant answer"
                )
        return (
            f"{rise} without media answers earn nearly as much: its fall is {was:.3g} → {now:.3g}; are "
            "the questions answered by their words?"
        )


def find_alarms(lines: Sequence[Line]) -> dict[str, Alarm]:
    """Return the alarms after the last of these lines, by signal.

    `lines` are those of metrics.jsonl that have `REWARD`, in order, of one stage of the training.
    """
    alarms: dict[str, Alarm] = {}
    # Earlier windows: next to the last one, further and further back, the first.
    begin, distance = len(lines) - 2 * WINDOW, WINDOW
    while begin >= 0:
        for signal in ("strict", "margin"):
            alarm = _compare(signal, lines[begin : begin + WINDOW], lines[-WINDOW:])
            if alarm is not None:
                alarms.setdefault(signal, alarm)
        begin, distance = max(0, begin - distance) if begin else -1, 2 * distance
    blind = _find_blind(lines)
    return alarms | ({"blind": blind} if blind else {})


def _compare(signal: str, then: Sequence[Line], now: Sequence[Line]) -> Alarm | None:
    key = SIGNALS[signal]
    if any(line.get(key) is None for line in (*then, *now)):
        return None
    rewards = _values(then, REWARD), _values(now, REWARD)
    values = _values(then, key), _values(now, key)
    if not _has_risen(*rewards) or (signal == "strict" and not any(values[0])):
        return None
    # What a signal lacks to the part of the rise that it must make, step by step: their noise is shared.
    lack = [
        [PART * reward - value for reward, value in zip(*pair, strict=True)]
        for pair in zip(rewards, values, strict=True)
    ]
    short = statistics.fmean(lack[1]) - statistics.fmean(lack[0])
    if short <= DOUBT * _error(*lack):
        return None
    return _alarm(signal, then, now, values)


def _find_blind(lines: Sequence[Line]) -> Alarm | None:
    """Compare the last media ablation with earlier ones; only the step that has one is asked."""
    measured = [i for i, line in enumerate(lines) if line.get(BLIND) is not None]
    if not measured or measured[-1] != len(lines) - 1:
        return None
    now, drop = lines[-WINDOW:], lines[-1][BLIND]
    for begin in measured:
        if begin + 2 * WINDOW > len(lines):
            break
        then, was = lines[begin : begin + WINDOW], lines[begin][BLIND]
        rewards = _values(then, REWARD), _values(now, REWARD)
        rise = statistics.fmean(rewards[1]) - statistics.fmean(rewards[0])
        doubt = DOUBT * math.hypot(
            *(line.get(BLIND_ERROR, 0.0) for line in (lines[begin], now[-1]))
        )
        if _has_risen(*rewards) and drop <= min(was, PART * rise) and drop - was < rise - doubt:
            return _alarm("blind", then, now, ([was], [drop]))
    return None


def _has_risen(then: Sequence[float], now: Sequence[float]) -> bool:
    before, after = statistics.fmean(then), statistics.fmean(now)
    least = max(LEAST_RISE, LEAST_SHARE * abs(before), ERRORS * _error(then, now))
    return after - before >= least


def _error(then: Sequence[float], now: Sequence[float]) -> float:
    """Return the standard error of the difference of two means of steps."""
    return math.sqrt(sum(statistics.variance(values) / len(values) for values in (then, now)))


def _values(lines: Sequence[Line], key: str) -> list[float]:
    return [line[key] for line in lines]


def _alarm(
    signal: str, then: Sequence[Line], now: Sequence[Line], values: Sequence[Sequence[float]]
) -> Alarm:
    rewards = [statistics.fmean(_values(lines, REWARD)) for lines in (then, now)]
    means = [statistics.fmean(of) for of in values]
    steps = int(now[-1]["step"] - then[-1]["step"])
    return Alarm(signal, steps, (rewards[0], rewards[1]), (means[0], means[1]))


# --------------------------------------------------------------------------------------------------
# Signs in one answer that a loose reader would understand it otherwise than a strict one.


_NUMBER = re.compile(r"(?<![\w.])[-+]?[0-9]{1,20}(?:\.[0-9]{1,20})?", re.ASCII)
_ITEM = re.compile(r"[\[({][^\[\](){}]*[\])}]")
_BREAK = re.compile(r"[,;\n]")
MANY_WORDS = 2
"""How many times the words of the right answer make a list of guesses, where it has no numbers."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What is odd about an answer, beside the right one as a model should write it.

    `candidates`: it lists more numbers than the right answer has, or more than twice its words where
    that has no number. `fallback`: it is not in the plain form of the right answer, so that whoever
    reads it looks for the answer inside; None where the right answer has no number. `copied`: it is a
    part of the question, of which the right answer is none. `repeated`: it says the same thing twice.

    Example: Signs(candidates=True, fallback=True, copied=False, repeated=False)
    """

    candidates: bool
    fallback: bool | None
    copied: bool
    repeated: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of those that it shows."""
        return tuple(sign.name for sign in fields(self) if getattr(self, sign.name))


def read_signs(answer: str, right: str, question: str) -> Signs:
    """Compare an answer with the right one as a model should write it; time is linear in their lengths.

    An answer too long for any reader shows only its beginning.
    """
    answer = answer[: parsing.MAX_CHARS]
    stated, wanted = _NUMBER.findall(answer), _NUMBER.findall(right)
    if wanted:
        many = len(stated) > len(wanted)
    else:
        many = len(answer.split()) > MANY_WORDS * len(right.split())
    return Signs(
        candidates=many,
        fallback=_shape(answer) != _shape(right) if wanted else None,
        copied=_occurs(answer, question) and not _occurs(right, question),
        repeated=_repeats(answer),
    )


def _shape(answer: str) -> str:
    """Return an answer with every number as 0, a list of like items as its first one, white space gone."""
    shape = "".join(_NUMBER.sub("0", answer).split())
    items = _ITEM.findall(shape)
    return f"[{items[0]}]" if len(items) > 1 and len(set(items)) == 1 else shape


def _occurs(answer: str, question: str) -> bool:
    normal_form = text.normalised(answer)
    return bool(normal_form) and f" {normal_form} " in f" {_words(question)} "


@functools.lru_cache(maxsize=64)  # one question, many answers
def _words(question: str) -> str:
    return " ".join(filter(None, map(text.normalised, question.split())))


def _repeats(answer: str) -> bool:
    items = [item for item in _ITEM.findall(answer) if _NUMBER.search(item)]
    if len(items) < 2:
        items = [part.strip() for part in _BREAK.split(answer) if part.strip()]
        if _ITEM.search(answer):
            return False  # the numbers of one place may be equal
    return len(set(items)) < len(items)


# --------------------------------------------------------------------------------------------------
# Measure how the reward of a step's completions and other readings of the same answers part.
#
# Nothing is generated: the answers are there. Each is judged by the strict readers of its kind of truth,
# and by the run's own verifiers against another prompt's truth, which is what a guess would earn.


PAID_RIGHT = 0.9
"""A strict reader counts where it pays at least this for the right answer in the form of the run."""


@dataclass(slots=True)
class Measured:
    """One completion; `p`, `g` are its place in the rollouts.

    `strict`: the mean score of the strict readers of its kinds of truth, the best kind's, in [0, 1].
    `own`, `elsewhere`: what the verifiers that judge one completion alone pay it, against its own
    truth and against that of another prompt of its source. None: not known.
    """

    p: int
    g: int
    reward: float
    length: int
    answer: str | None
    signs: Signs | None = None
    strict: float | None = None
    own: float | None = None
    elsewhere: float | None = None
    form_share: float | None = None
    """Share of its reward that verifiers gave which read no truth (format, length)."""

    @property
    def key(self) -> str | None:
        """Return what equal answers have in common."""
        if self.answer is None:
            return None
        normal_form = text.normalised(self.answer).encode("utf-8", "replace")
        return hashlib.blake2b(normal_form, digest_size=8).hexdigest()

    @property
    def facts(self) -> dict[str, object]:
        """Return what loopholes.jsonl says of it."""
        signs = list(self.signs.names) if self.signs else []
        return {"strict": self.strict, "elsewhere": self.elsewhere, "signs": signs}


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt that can be measured."""

    p: int
    sample: Sample
    components: Sequence[Component]
    readers: Mapping[str, Sequence[Component]]
    right: str | None
    elsewhere: Sample | None
    """The sample with the truth of another prompt of its source."""


def measure(
    scorer: Scorer, rollouts: Rollouts, rewards: Rewards, progress: float
) -> list[Measured]:
    """Return the measured completions of this rank's prompts, in order.

    Left out are what the policy did not sample from the very prompt, masked completions, and sources
    whose reward has no verifier that compares an answer with a truth here: those of a judge, or of an
    environment.
    """
    measured: list[Measured] = []
    calls: list[tuple[Completion, Sample, Sequence[Component]]] = []
    of: list[tuple[Measured, bool]] = []
    """For each call what takes its verdicts, and whether they are those of the own truth."""
    prompts = [_prompt(scorer, rollouts.batch, p, progress) for p in numbers_here(rollouts.batch)]
    for prompt in filter(None, prompts):
        # What runs in other processes is asked once for a group: a call costs more there.
        every = not any(c.runs_elsewhere for c in prompt.components)
        ask_elsewhere = True
        for g, completion in enumerate(rollouts.completions[prompt.p]):
            if completion.origin != "policy" or not rewards.valid[prompt.p, g]:
                continue
            reward, answer = float(rewards.total[prompt.p, g]), completion.answer
            entry = Measured(prompt.p, g, reward, completion.num_tokens, answer)
            measured.append(entry)
            entry.strict = 0.0 if prompt.readers else None
            if answer is not None:
                if prompt.right is not None:
                    entry.signs = read_signs(answer, prompt.right, prompt.sample.text)
                calls += [(completion, prompt.sample, by) for by in prompt.readers.values()]
                of += [(entry, True)] * len(prompt.readers)
            _pay(scorer, prompt, entry, rewards.verdicts[prompt.p][g])
            if prompt.elsewhere is not None and entry.own is not None and ask_elsewhere:
                calls.append((completion, prompt.elsewhere, prompt.components))
                of.append((entry, False))
            ask_elsewhere = every
    for (entry, own), (*_, by), verdicts in zip(of, calls, scorer.probe(calls), strict=True):
        if not own:
            entry.elsewhere = _combined(scorer, by, verdicts)
        elif all(verdict.score is not None for verdict in verdicts.values()):
            mean = sum(v.score or 0.0 for v in verdicts.values()) / len(verdicts)
            entry.strict = max(entry.strict or 0.0, mean)
    return measured


def _pay(scorer: Scorer, prompt: _Prompt, entry: Measured, verdicts: Mapping[str, Verdict]) -> None:
    """Note what item verifiers paid, and the share of it that depends on no truth."""
    entry.own = _combined(scorer, prompt.components, verdicts)
    if entry.own is None:
        return
    paid = [(c, c.weight * (verdicts[c.label].score or 0.0)) for c in prompt.components]
    whole = sum(value for _, value in paid)
    if whole > 0:
        entry.form_share = sum(value for c, value in paid if not _reads_truth(c)) / whole


def _combined(
    scorer: Scorer, components: Sequence[Component], verdicts: Mapping[str, Verdict]
) -> float | None:
    """Return the reward of these components alone; None where one failed or none applies."""
    own = {c.label: verdicts[c.label] for c in components if c.label in verdicts}
    if len(own) < len(components) or any(verdict.fault is not None for verdict in own.values()):
        return None
    scores = {label: v.score for label, v in own.items() if v.applies and v.score is not None}
    try:
        return combine(scorer.scoring.combine, components, scores)
    except UserError:  # without those of groups the weights are no mean
        return None


# ------------------------------------------------------------------------------------ prompts


def _prompt(scorer: Scorer, batch: PromptBatch, p: int, progress: float) -> _Prompt | None:
    prompt = batch.prompts[p]
    sample = prompt.sample
    counted = touching(scorer.components(sample, progress, progress))
    if any(c.verifier.waits for c in counted):
        return None
    components = [c for c in counted if c.verifier.scope == "item"]
    if not any(_reads_truth(c) and c.verifier.applies_to(sample) for c in components):
        return None
    right = prompting.write(sample.truth, prompt.frame, sample.form)
    return _Prompt(
        p=p,
        sample=sample,
        components=components,
        readers=dict(_readers(scorer, sample, components, prompt.frame, right)),
        right=right,
        elsewhere=_with_other_truth(batch, p),
    )


def _reads_truth(c: Component) -> bool:
    """Return whether a verifier may compare an answer with a truth: one of the user's always may."""
    return (bool(c.verifier.needs) or ":" in c.spec[0]) and not c.verifier.laws.of_turns


def _with_other_truth(batch: PromptBatch, p: int) -> Sample | None:
    """Return the sample with the truth of the next prompt of its source that has one of the same kinds."""
    sample = batch.prompts[p].sample
    wanted = _stated(sample)
    for step in range(1, len(batch)):
        other = batch.prompts[(p + step) % len(batch)].sample
        same = other.source == sample.source and _stated(other) == wanted
        if same and other.id != sample.id:
            return replace(sample, truth=replace(other.truth, image=sample.truth.image))
    return None


def _stated(sample: Sample) -> set[str]:
    return {name for name in sample.truth.stated() if known(sample.truth, name)}


def _readers(
    scorer: Scorer, sample: Sample, components: Sequence[Component], frame: Frame, right: str | None
) -> Iterator[tuple[str, Sequence[Component]]]:
    """Yield by kind the strict readers that pay the right answer, as the run's prompts ask for it."""
    if right is None or sample.truth.none:
        return
    completion = templates.completion(right, "none", frame)
    for kind in kinds().values():
        readers = _of_kind(kind.name) if known(sample.truth, kind.name) else ()
        if readers:
            (verdicts,) = scorer.probe([(completion, sample, readers)])
            paid = [verdict.score or 0.0 for verdict in verdicts.values()]
            if min(paid) >= PAID_RIGHT:
                yield kind.name, readers


@functools.cache
def _of_kind(name: str) -> tuple[Component, ...]:
    readers = kinds()[name].readers.items()
    return tuple(resolve(RewardConfig(verifier=v, options=dict(o))) for v, o in readers)


# --------------------------------------------------------------------------------------------------
# The watch of a run: it measures at intervals and tells of new alarms.


NUM_ROWS = 6
"""Prompts that are kept of a step with a new alarm."""


@dataclass
class LoopholeWatch:
    """Measures every `every` steps; 0: never. Call it on all ranks alike."""

    scorer: Scorer
    every: int
    folder: Path
    tell: Callable[[str], None]
    """A function that shows the user a message."""
    _lines: list[dict[str, float]] = field(default_factory=list, init=False, repr=False)
    """Of each measured step of this stage what the alarms look at."""
    _told: set[str] = field(default_factory=set, init=False, repr=False)
    """Signals of this stage that were told."""

    def restore(self, lines: Sequence[Mapping[str, float]]) -> None:
        """Go on after these lines of metrics.jsonl."""
        for line in lines:
            if line.get(REWARD) is not None:
                self._append(line)
                self._told |= {s for s in SIGNALS if line.get(f"loophole/flag/{s}")}

    def _append(self, line: Mapping[str, float]) -> None:
        """Note a step; with a new stage, whose rewards are others, all begins anew."""
        if self._lines and self._lines[-1].get(STAGE) != line.get(STAGE):
            self._lines, self._told = [], set()
        keys = ("step", REWARD, STAGE, BLIND_ERROR, *SIGNALS.values())
        self._lines.append({key: line[key] for key in keys if line.get(key) is not None})

    def __call__(
        self,
        step: int,
        progress: float,
        rollouts: Rollouts,
        rewards: Rewards,
        line: Mapping[str, float],
    ) -> dict[str, float]:
        """Return what is added to the line of a step; `progress` is that with which it was scored.

        A new alarm is told, and appended to loopholes.jsonl with the prompts that gave rise to it most.
        """
        if not self.every or step % self.every:
            return {}
        measured = measure(self.scorer, rollouts, rewards, progress)
        numbers = _average(measured)
        if REWARD not in numbers:
            return {}
        self._append({**line, **numbers, "step": step})
        alarms = find_alarms(self._lines) if distributed.is_main() else {}
        flags = {f"loophole/flag/{signal}": float(signal in alarms) for signal in SIGNALS}
        new = [alarm for signal, alarm in alarms.items() if signal not in self._told]
        self._told |= alarms.keys()
        if new:
            self._say(step, new, measured, rollouts, rewards)
        return numbers | flags

    def _say(
        self,
        step: int,
        alarms: Sequence[Alarm],
        measured: Sequence[Measured],
        rollouts: Rollouts,
        rewards: Rewards,
    ) -> None:
        for alarm in alarms:
            self.tell(f"step {step}: loophole? {alarm}")

        def excess(entry: Measured) -> float:
            """Return how much more a completion earns than the signal says it should."""
            if alarms[0].signal == "strict":
                return entry.reward - (entry.strict if entry.strict is not None else entry.reward)
            return entry.elsewhere if entry.elsewhere is not None else -1.0

        ranked = sorted(measured, key=excess, reverse=True)
        prompts = list(dict.fromkeys(entry.p for entry in ranked))[:NUM_ROWS]
        shown = rows(run_folder.media_folder(self.folder), rollouts, rewards, None, prompts)
        by_place = {(entry.p, entry.g): entry for entry in measured}
        for p, row in zip(prompts, shown, strict=True):
            for g, completion in enumerate(row["completions"]):
                entry = by_place.get((p, g))
                completion["loophole"] = entry.facts if entry else {}
        line = {"step": step, "alarms": {a.signal: str(a) for a in alarms}, "rows": shown}
        append_line(run_folder.loopholes_path(self.folder), line)


# -------------------------------------------------------------------------------------- numbers


def _average(measured: Sequence[Measured]) -> dict[str, float]:
    """Return the means over the completions of all ranks."""
    values: dict[str, list[float]] = defaultdict(list)
    for entry in measured:
        values[REWARD].append(entry.reward)
        of_entry = {name: getattr(entry, name) for name in ("strict", "elsewhere", "form_share")}
        if entry.own is not None and entry.elsewhere is not None:
            of_entry["margin"] = entry.own - entry.elsewhere
        if entry.signs is not None:
            of_entry |= {f.name: getattr(entry.signs, f.name) for f in fields(entry.signs)}
        for name, value in of_entry.items():
            if value is not None:
                values[f"loophole/{name}"].append(value)
    # For each group Pearson's correlation of reward and length, where both vary.
    for _, of_prompt in itertools.groupby(measured, lambda entry: entry.p):
        group = list(of_prompt)
        paid, lengths = [o.reward for o in group], [float(o.length) for o in group]
        if len(set(paid)) > 1 and len(set(lengths)) > 1:
            values["loophole/length_correlation"].append(statistics.correlation(paid, lengths))
    means = rank_shards.average(values)
    counts: Counter[str] = Counter()
    for share in distributed.gather(Counter(e.key for e in measured if e.key is not None)):
        counts.update(share)
    return means | ({"loophole/commonest": max(counts.values()) / counts.total()} if counts else {})
