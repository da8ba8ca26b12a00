"""Measure how the reward of a step's completions and other readings of the same answers part.

Nothing is generated: the answers are there. Each is judged by the strict readers of its kind of truth,
and by the run's own verifiers against another prompt's truth, which is what a guess would earn.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vlmrl.answers import templates, text
from vlmrl.config import RewardConfig
from vlmrl.errors import UserError
from vlmrl.monitoring.loopholes.signs import Signs, read_signs
from vlmrl.runs.rank_shards import numbers_here
from vlmrl.schema import Completion, Frame, PromptBatch, Rewards, Rollouts, Sample, Verdict
from vlmrl.scoring.combine import combine, touching
from vlmrl.scoring.reward_components import Component, resolve
from vlmrl.scoring.scorer import Scorer
from vlmrl.truths import prompting
from vlmrl.truths.base import kinds, known

__all__ = ["Measured", "measure"]

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
        said = text.normalised(self.answer).encode("utf-8", "replace")
        return hashlib.blake2b(said, digest_size=8).hexdigest()


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


@dataclass(slots=True)
class _Asked:
    """Judgements that are still to be made, each with what takes its verdicts."""

    calls: list[tuple[Completion, Sample, Sequence[Component]]] = field(default_factory=list)
    of: list[tuple[Measured, str]] = field(default_factory=list)

    def add(
        self,
        one: Measured,
        what: str,
        completion: Completion,
        sample: Sample,
        by: Sequence[Component],
    ) -> None:
        self.calls.append((completion, sample, by))
        self.of.append((one, what))


def measure(
    scorer: Scorer, rollouts: Rollouts, rewards: Rewards, progress: float
) -> list[Measured]:
    """Return the measured completions of this rank's prompts, in order.

    Left out are what the policy did not sample from the very prompt, masked completions, and sources
    whose reward has no verifier that compares an answer with a truth here: those of a judge, or of an
    environment.
    """
    found, asked = [], _Asked()
    prompts = {
        p: _prompt(scorer, rollouts.batch, p, progress) for p in numbers_here(rollouts.batch)
    }
    for prompt in (prompt for prompt in prompts.values() if prompt is not None):
        first = True
        for g, completion in enumerate(rollouts.completions[prompt.p]):
            if completion.origin != "policy" or not rewards.valid[prompt.p, g]:
                continue
            one = _begin(prompt, g, completion, float(rewards.total[prompt.p, g]))
            _pay(scorer, prompt, one, rewards.verdicts[prompt.p][g])
            if completion.answer is not None:
                for kind, readers in prompt.readers.items():
                    asked.add(one, kind, completion, prompt.sample, readers)
            # What runs in other processes is asked once for a group: a call costs more there.
            if prompt.elsewhere is not None and one.own is not None and (first or _is_here(prompt)):
                asked.add(one, "elsewhere", completion, prompt.elsewhere, prompt.components)
            first = False
            found.append(one)
    _answer(scorer, asked)
    return found


def _begin(prompt: _Prompt, g: int, completion: Completion, reward: float) -> Measured:
    one = Measured(prompt.p, g, reward, completion.num_tokens, completion.answer)
    if prompt.right is not None and completion.answer is not None:
        one.signs = read_signs(completion.answer, prompt.right, prompt.sample.text)
    if prompt.readers:
        one.strict = 0.0
    return one


def _pay(scorer: Scorer, prompt: _Prompt, one: Measured, verdicts: Mapping[str, Verdict]) -> None:
    """Note what item verifiers paid, and the share of it that depends on no truth."""
    one.own = _combined(scorer, prompt.components, verdicts)
    if one.own is None:
        return
    paid = [(c, c.weight * (verdicts[c.label].score or 0.0)) for c in prompt.components]
    whole = sum(value for _, value in paid)
    if whole > 0:
        one.form_share = sum(value for c, value in paid if not _reads_truth(c)) / whole


def _answer(scorer: Scorer, asked: _Asked) -> None:
    found = scorer.probe(asked.calls)
    for (one, what), (_, _, components), verdicts in zip(asked.of, asked.calls, found, strict=True):
        if what == "elsewhere":
            one.elsewhere = _combined(scorer, components, verdicts)
        elif all(verdict.score is not None for verdict in verdicts.values()):
            mean = sum(v.score or 0.0 for v in verdicts.values()) / len(verdicts)
            one.strict = max(one.strict or 0.0, mean)


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


def _is_here(prompt: _Prompt) -> bool:
    return not any(c.runs_elsewhere for c in prompt.components)


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
    told = templates.completion(right, "none", frame)
    for kind in kinds().values():
        readers = _of_kind(kind.name) if known(sample.truth, kind.name) else ()
        if readers:
            (verdicts,) = scorer.probe([(told, sample, readers)])
            paid = [verdict.score or 0.0 for verdict in verdicts.values()]
            if min(paid) >= PAID_RIGHT:
                yield kind.name, readers


@functools.cache
def _of_kind(name: str) -> tuple[Component, ...]:
    """Return the strict readers of a kind of truth."""
    readers = kinds()[name].readers.items()
    return tuple(resolve(RewardConfig(verifier=v, options=dict(o))) for v, o in readers)
