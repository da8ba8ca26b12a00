"""The scorer: every verifier on every completion, and one reward out of their verdicts.

A fault (an exception, a call past its deadline, a value out of range) masks its completion and is
counted per verifier and source; it never becomes a reward of 0 and never ends the run, unless
faults exceed a set share. A completion that hangs or kills its verifier, twice, while the verifier
answers on another text, is no fault: it gets the lowest score. torch is imported only where rewards
become tensors.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.errors import NotFinite, UserError
from vlmrl.schema import (
    Completion,
    Prompt,
    RemoteVerdict,
    Rewards,
    Rollouts,
    RowReward,
    Sample,
    Seen,
    Verdict,
)
from vlmrl.scoring.calls import Calls
from vlmrl.scoring.combine import check_verdict, combine, deciding, guard, guard_many, touching
from vlmrl.scoring.reward_components import (
    Component,
    Spec,
    check_tags,
    components_of,
    from_rows,
    resolve,
)
from vlmrl.scoring.verifier import BatchVerifier, GroupVerifier, Verifier
from vlmrl.system import distributed
from vlmrl.system.deadline_pool import DeadlinePool, MakePool, was_killed

# --------------------------------------------------------------------------------------------------
# Verdicts between ranks: what all must know of them, as arrays.
#
# That is scores, what does not apply, faults and kills: all that rewards, counts and the fault limit are
# made of. What a verdict says beside them (`answer`, `note`, `parts`) stays with the rank that judged.


Table = list[dict[str, Verdict]]
"""The verdicts on the completions of one prompt, each by label."""

APPLIES, SCORED, KILLS = 1, 2, 4
"""Bits of a verdict's state."""


def exchange(
    tables: Sequence[Table], labels: Sequence[Sequence[str]], homes: Sequence[int]
) -> None:
    """Fill in the verdicts of other ranks' prompts; `tables[p]` was filled on rank `homes[p]`.

    `labels[p]` are those of the verdicts on prompt p. A verdict is 9 bytes, a fault 8 more and its text,
    which is sent once.
    """
    if distributed.world() == 1:
        return
    own = [table[label] for table, label in _cells(tables, labels, homes, distributed.rank())]
    for home, arrays in enumerate(distributed.gather_arrays(_encode(own))):
        if home == distributed.rank():
            continue
        verdicts = _decode(home, arrays)
        for table, label in _cells(tables, labels, homes, home):
            table[label] = next(verdicts)


def collect_rows(
    groups: Sequence[Sequence[Completion]],
    samples: Sequence[Sample],
    wanted: Collection[int],
    homes: Sequence[int],
) -> tuple[list[Sequence[Completion]], list[Sample]]:
    """Return groups and samples, on the main rank the `wanted` ones with all that their homes have of them.

    That is what was written, and bytes of media that are in a row; not what tools showed.
    """
    rank, completions, shown = distributed.rank(), list(groups), list(samples)
    own = {
        p: ([c.without_media() for c in groups[p]], samples[p]) for p in wanted if homes[p] == rank
    }
    for share in distributed.gather_to_main(own if rank else {}):
        for p, (group, sample) in share.items():
            completions[p], shown[p] = group, sample
    return completions, shown


def _cells(
    tables: Sequence[Table], labels: Sequence[Sequence[str]], homes: Sequence[int], home: int
) -> Iterator[tuple[dict[str, Verdict], str]]:
    """Yield the place of every verdict on the prompts of a rank, in one order on all ranks."""
    for table, of_prompt, at in zip(tables, labels, homes, strict=True):
        if at == home:
            yield from ((of_one, label) for of_one in table for label in of_prompt)


def _encode(verdicts: Sequence[Verdict]) -> list[np.ndarray]:
    """Return scores [N] float64, states [N] uint8, places and texts of the faults [F], and the texts."""
    texts: dict[str, int] = {}
    faults = [
        (n, texts.setdefault(v.fault, len(texts)))
        for n, v in enumerate(verdicts)
        if v.fault is not None
    ]
    return [
        np.array([v.score or 0.0 for v in verdicts], np.float64),
        np.array(
            [
                APPLIES * v.applies + SCORED * (v.score is not None) + KILLS * v.is_kill
                for v in verdicts
            ],
            np.uint8,
        ),
        np.array([n for n, _ in faults], np.int32),
        np.array([text for _, text in faults], np.int32),
        np.frombuffer(json.dumps([*texts]).encode() if texts else b"", np.uint8),
    ]


def _decode(home: int, arrays: Sequence[np.ndarray]) -> Iterator[Verdict]:
    scores, states, places, numbers, spelled = arrays
    texts = json.loads(spelled.tobytes()) if len(spelled) else []
    faults = {p: texts[n] for p, n in zip(places.tolist(), numbers.tolist(), strict=True)}
    for index, (score, state) in enumerate(zip(scores.tolist(), states.tolist(), strict=True)):
        known = score if state & SCORED else None
        applies, is_kill = bool(state & APPLIES), bool(state & KILLS)
        yield RemoteVerdict(home, known, applies, faults.get(index), is_kill)


# --------------------------------------------------------------------------------------------------
# How often each verifier was called, skipped and failed, and when that is too often.


WINDOW = 200
"""How many of a verifier's latest calls the limit looks at."""
MIN_CALLS = 20
"""The limit says nothing before a verifier was called this often."""


class FaultLimit:
    """Counts by source and verifier, and the share of recent calls that may fail.

    `counts[source, label]` counts by completion: `calls`, `faults`, `skipped` (did not apply) and
    `kills` (the completion ended its verifier).
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self.counts: dict[tuple[str, str], Counter[str]] = {}
        self._recent: dict[tuple[str, str], deque[str | None]] = {}

    def count(self, source: str, verdicts: Iterable[Mapping[str, Verdict]]) -> None:
        """Count the verdicts on some completions, each by label."""
        for of_one in verdicts:
            for label, verdict in of_one.items():
                key = (source, label)
                counter = self.counts.get(key)
                if counter is None:
                    counter = self.counts[key] = Counter(calls=0, faults=0, skipped=0, kills=0)
                if not verdict.applies:
                    counter["skipped"] += 1
                    continue
                counter["calls"] += 1
                counter["faults"] += verdict.fault is not None
                counter["kills"] += verdict.is_kill
                self._recent.setdefault(key, deque(maxlen=WINDOW)).append(verdict.fault)

    def enforce(self) -> None:
        """Raise UserError where too many recent calls of a verifier failed: on what, most often."""
        for (source, label), recent in self._recent.items():
            faults = [fault for fault in recent if fault is not None]
            share = len(faults) / len(recent)
            if len(recent) < MIN_CALLS or share <= self._share:
                continue
            commonest, times = Counter(faults).most_common(1)[0]
            raise UserError(
                f"verifier {label!r} failed on {len(faults)} of its last {len(recent)} completions "
                f"of source {source!r}; scoring.fault_limit allows a share of {self._share:g}; "
                f"most often ({times} times): {commonest}"
            )


# --------------------------------------------------------------------------------------------------
# The scorer: every verifier on every completion.


@dataclass(frozen=True, slots=True)
class Judged:
    """What the scorer made of one completion; `reward` is None where it is masked, see `reason`.

    Example: Judged(0.62, {"box_iou": Verdict(0.62), "format": Verdict(1.0)})
    """

    reward: float | None
    verdicts: Mapping[str, Verdict]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Row:
    """A prompt's completions on their way through the scorer; `verdicts[g]` fills up by label."""

    sample: Sample
    group: Sequence[Completion]
    components: Sequence[Component]
    verdicts: list[dict[str, Verdict]] = field(default_factory=list)
    seen: Seen | None = None

    def shown_to(self, verifier: Verifier) -> tuple[Seen | None, ...]:
        """Return the last arguments of a call: what the policy saw, for a verifier that looks at it."""
        return (self.seen,) if verifier.looks else ()

    def of_scope(self, scope: str) -> list[Component]:
        return [c for c in self.components if c.verifier.scope == scope]

    def all_here(self) -> bool:
        return all(c.finish_reason != "abort" for c in self.group)

    def note(self, component: Component, judged: Sequence[Verdict]) -> None:
        for verdicts, verdict in zip(self.verdicts, judged, strict=True):
            verdicts[component.label] = verdict


class Scorer:
    """Scores completions with the verifiers of their sample's source. Close it to end its workers.

    `counts` are those of `FaultLimit`.
    """

    def __init__(
        self,
        rewards_by_source: Mapping[str, Sequence[RewardConfig]],
        scoring: ScoringConfig,
        by_stage: Mapping[float, Mapping[str, Sequence[RewardConfig]]] | None = None,
        make_pool: MakePool = DeadlinePool,
    ) -> None:
        """Build every verifier at every step of its schedules, so that mistakes show at once.

        `by_stage` has the rewards by source of each stage of training, by the progress at which it
        begins; `rewards_by_source` are then those of evaluations alone. `make_pool`: see `Calls`.

        Raises:
            UserError: see `reward_components.resolve`; two rewards of one source with one name; a gate
                without `combine: gate` or the reverse.
        """
        self.rewards = dict(rewards_by_source)
        self.by_stage = dict(sorted((by_stage or {}).items()))
        self.scoring = scoring
        self._faults = FaultLimit(scoring.fault_limit)
        self.counts = self._faults.counts
        self._named: set[RowReward] = set()
        components: dict[Spec, Component] = {}
        for each in (self.rewards, *self.by_stage.values()):
            for source, rewards in each.items():
                components |= {c.spec: c for c in components_of(source, rewards, scoring)}
        specs = [spec for spec, c in components.items() if c.deadline]
        waiting = [c.verifier for c in components.values() if not c.deadline and c.verifier.waits]
        threads = sum(verifier.concurrency for verifier in waiting)
        self._calls = Calls(scoring.workers, specs, scoring.worker_memory_mb, make_pool, threads)

    def rewards_of(self, sample: Sample, stage: float | None = None) -> list[RewardConfig]:
        """Return the rewards of a sample: its own and the gates of its source, else its source's.

        `stage` is the progress of training that they are for; None: those of an evaluation.
        """
        begun = [rewards for start, rewards in self.by_stage.items() if start <= (stage or 0.0)]
        by_source = begun[-1] if begun and stage is not None else self.rewards
        if sample.source not in by_source:
            raise UserError(f"sample {sample.id!r}: its source {sample.source!r} has no rewards")
        of_source = list(by_source[sample.source])
        return from_rows(sample, of_source, self._named) if sample.rewards else of_source

    def graders(self, sample: Sample, progress: float) -> dict[str, float]:
        """Return by label the weights, above 0, of the item verifiers that read the sample's truth."""
        components = [resolve(reward, progress) for reward in self.rewards_of(sample, progress)]
        return {
            c.label: c.weight
            for c in components
            if c.weight > 0 and c.verifier.scope == "item" and c.verifier.reads_truth
        }

    def score(self, rollouts: Rollouts, progress: float = 0.0, whole: bool = True) -> Rewards:
        """Rewards of P groups of G completions: total [P, G] float32 and valid [P, G] bool.

        `progress`, the share of training done, in [0, 1], drives the schedules; `whole` and errors
        as in `judge`. With several ranks every rank judges whole groups of its own prompts, and all
        get all rewards.

        Raises:
            NotFinite: a reward does not fit float32.
        """
        import torch

        prompts = rollouts.batch.prompts
        samples = [prompt.sample for prompt in prompts]
        homes = [prompt.home for prompt in prompts] if whole and distributed.world() > 1 else None
        seen = [prompt.seen for prompt in prompts]
        judged = self.judge(rollouts.completions, samples, progress, whole, homes, seen=seen)
        total = torch.tensor(
            [[j.reward or 0.0 for j in group] for group in judged], dtype=torch.float32
        ).reshape(rollouts.shape)
        for p, g in (~torch.isfinite(total)).nonzero().tolist():
            raise NotFinite(
                f"the reward of sample {samples[p].id!r} of source {samples[p].source!r} is "
                f"{judged[p][g].reward}: expected weights of its verifiers whose sum fits float32"
            )
        valid = [[j.reward is not None for j in group] for group in judged]
        return Rewards(
            total=total,
            valid=torch.tensor(valid, dtype=torch.bool).reshape(rollouts.shape),
            verdicts=tuple(tuple(j.verdicts for j in group) for group in judged),
        )

    def begin(self, prompt: Prompt, group: Sequence[Completion], progress: float) -> None:
        """Start the calls of a group that run elsewhere, while other groups are generated; any thread may.

        `score` takes their results. What it finds otherwise by then (another completion, another stage or
        value of a schedule) it starts itself.
        """
        sample = prompt.sample
        for c in self.components(sample, progress, progress):
            if c.runs_elsewhere and c.verifier.scope == "item" and c.verifier.applies_to(sample):
                shown = (prompt.seen,) if c.verifier.looks else ()
                for completion in group:
                    self._calls.begin(c, completion, sample, *shown)

    def judge(
        self,
        groups: Sequence[Sequence[Completion]],
        samples: Sequence[Sample],
        progress: float = 0.0,
        whole: bool = True,
        homes: Sequence[int] | None = None,
        staged: bool | None = None,
        seen: Sequence[Seen] | None = None,
    ) -> list[list[Judged]]:
        """Judge `groups[p]`, the completions of `samples[p]`: item, group, then batch verifiers.

        `whole=False` says that these are not the whole groups of a batch (evaluation, single rows):
        group and batch verifiers then do not apply. An aborted completion leaves its group, and its
        batch, unwhole too. `homes[p]` is the rank that judges the group (None: this one judges all);
        what looks at the whole batch, the main rank judges. `staged` asks for the rewards of the stage
        at `progress`, which an evaluation does not take (None: as `whole`). `seen[p]` is what the policy
        was shown, for verifiers that look at it; None: it is not at hand.

        Raises:
            UserError: a source without rewards, a sample that no verifier can speak of, or more
                faults of one verifier than `fault_limit` allows.
        """
        stage = progress if (whole if staged is None else staged) else None
        shown: Sequence[Seen | None] = seen or [None] * len(samples)
        rows = [
            _Row(sample, group, self.components(sample, progress, stage), [{} for _ in group], own)
            for sample, group, own in zip(samples, groups, shown, strict=True)
        ]
        here = [p for p in range(len(rows)) if homes is None or homes[p] == distributed.rank()]
        self._judge_items([rows[p] for p in here])
        self._judge_groups([rows[p] for p in here], whole)
        if homes is not None:
            labels = [
                [c.label for c in row.components if c.verifier.scope != "batch"] for row in rows
            ]
            exchange([row.verdicts for row in rows], labels, homes)
        self._judge_batch(rows, whole, homes)
        for row in rows:
            self._faults.count(row.sample.source, row.verdicts)
        self._faults.enforce()
        return [self._judged(row) for row in rows]

    def probe(
        self, calls: Sequence[tuple[Completion, Sample, Sequence[Component]]]
    ) -> list[dict[str, Verdict]]:
        """Return what item components say, by label, of completions to any samples; nothing is counted."""
        rows = [
            _Row(sample, (completion,), components, [{}])
            for completion, sample, components in calls
        ]
        self._judge_items(rows)
        return [row.verdicts[0] for row in rows]

    def close(self) -> None:
        """End the worker processes; a thread that still waits ends with its call."""
        self._calls.close()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def components(self, sample: Sample, progress: float, stage: float | None) -> list[Component]:
        """Return a sample's components at a progress; `stage` as in `rewards_of`."""
        rewards = self.rewards_of(sample, stage)
        check_tags(rewards, sample.template)
        components = [resolve(reward, progress) for reward in rewards]
        if not any(c.verifier.applies_to(sample) for c in components):
            needs = (f"{c.label} needs {c.verifier.describe_needs()}" for c in components)
            raise UserError(
                f"sample {sample.id!r} of source {sample.source!r}: its truth has nothing that a "
                f"verifier of this source could check ({'; '.join(needs)})"
            )
        return components

    def _judge_items(self, rows: Sequence[_Row]) -> None:
        waiting = []
        # Calls that run elsewhere start first and go on while the fast ones run here.
        for elsewhere in (True, False):
            for row in rows:
                for c in row.of_scope("item"):
                    if c.runs_elsewhere != elsewhere:
                        continue
                    applies = c.verifier.applies_to(row.sample)
                    for completion, verdicts in zip(row.group, row.verdicts, strict=True):
                        call: tuple[Any, ...] = (completion, row.sample, *row.shown_to(c.verifier))
                        if not applies:
                            verdicts[c.label] = Verdict.not_applicable("not in the truth")
                        elif elsewhere:
                            waiting.append((verdicts, c, call, self._calls.start(c, *call)))
                        else:
                            verdicts[c.label] = guard(c.verifier, c.judge, *call)
        for verdicts, c, _, future in waiting:
            verdicts[c.label] = guard(c.verifier, self._calls.result, c, future)
        for verdicts, c, call, future in waiting:
            if was_killed(future) and (again := self._calls.is_kill(c, *call)) is not None:
                verdicts[c.label] = check_verdict(c.verifier, again)

    def _judge_groups(self, rows: Sequence[_Row], whole: bool) -> None:
        waiting = []
        for row in rows:
            components = row.of_scope("group")
            paid = [judged.reward for judged in self._judged(row)] if components else []
            for c in components:
                if whole and row.all_here() and c.verifier.applies_to(row.sample):
                    call = (row.group, row.sample, deciding(c.verifier, paid, row.verdicts))
                    started = self._start(c, len(row.group), *call, *row.shown_to(c.verifier))
                    waiting.append((row, c, started))
                else:
                    row.note(c, [Verdict.not_applicable("not a whole group")] * len(row.group))
        for row, c, started in waiting:
            row.note(c, started())

    def _judge_batch(self, rows: Sequence[_Row], whole: bool, homes: Sequence[int] | None) -> None:
        # Sources that share a reward are judged together, as one batch.
        batches: dict[tuple[str, Spec], tuple[Component, list[int]]] = {}
        for p, row in enumerate(rows):
            for c in row.of_scope("batch"):
                batches.setdefault((c.label, c.spec), (c, []))[1].append(p)
        groups, samples = [row.group for row in rows], [row.sample for row in rows]
        if homes is not None and whole and batches:
            wanted = {p for _, of_one in batches.values() for p in of_one}
            groups, samples = collect_rows(groups, samples, wanted, homes)
        for c, members in batches.values():
            slots = [verdicts for p in members for verdicts in rows[p].verdicts]
            if whole and all(rows[p].all_here() for p in members):
                judgements = []
                if homes is None or distributed.is_main():
                    judged = [groups[p] for p in members], [samples[p] for p in members]
                    judgements = self._start(c, len(slots), *judged)()
                if homes is not None:
                    judgements = distributed.from_main(judgements)
            else:
                judgements = [Verdict.not_applicable("not a whole batch")] * len(slots)
            for verdicts, verdict in zip(slots, judgements, strict=True):
                verdicts[c.label] = verdict

    def _start(self, c: Component, count: int, *arguments: Any) -> Callable[[], list[Verdict]]:
        assert isinstance(c.verifier, GroupVerifier | BatchVerifier)
        if not c.runs_elsewhere:
            return functools.partial(guard_many, c.verifier, count, c.verifier.judge, *arguments)
        future = self._calls.start(c, *arguments)
        return functools.partial(guard_many, c.verifier, count, self._calls.result, c, future)

    def _judged(self, row: _Row) -> list[Judged]:
        counted = touching(row.components)
        return [
            self._judge_one(row, completion, verdicts, counted)
            for completion, verdicts in zip(row.group, row.verdicts, strict=True)
        ]

    def _judge_one(
        self,
        row: _Row,
        completion: Completion,
        verdicts: Mapping[str, Verdict],
        counted: list[Component],
    ) -> Judged:
        """Add up the verdicts so far; `counted` are the components that the reward depends on."""
        truncated = completion.truncated
        if completion.finish_reason == "abort":
            return Judged(None, verdicts, "aborted")
        if truncated and self.scoring.truncated == "mask":
            return Judged(None, verdicts, "truncated")
        present = [(c, verdicts[c.label]) for c in counted if c.label in verdicts]
        for c, verdict in present:
            if verdict.fault is not None:
                return Judged(None, verdicts, f"{c.label}: {verdict.fault}")
        scores = {c.label: v.score for c, v in present if v.applies and v.score is not None}
        reward = combine(self.scoring.combine, row.components, scores)
        if not any(c.weight for c in row.components if c.reward.counts_in is None):
            reward = 0.0  # none counts: a strategy pays
        if reward is None:
            return Judged(None, verdicts, "no verifier applies")
        return Judged(0.0 if truncated and self.scoring.truncated == "zero" else reward, verdicts)
