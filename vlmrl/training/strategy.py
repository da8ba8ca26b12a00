"""The contract of a strategy: what a paper or a control adds around the scoring of a batch.

`Trainer.step` is plain GRPO. Whatever asks for further completions, changes what verifiers see, or
changes rewards is a `Strategy`; the config names those of a run in the order in which they act.
What a strategy learns is arrays by name, its `state`, which every checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from vlmrl.engines.base import RunningEngine, Sampling
from vlmrl.engines.completions import Sampled
from vlmrl.errors import UserError
from vlmrl.media.decode import decode
from vlmrl.runs import rank_shards
from vlmrl.schema import (
    Advantages,
    Completion,
    Origin,
    Prompt,
    PromptBatch,
    Rewards,
    Rollouts,
    Sample,
    Verdict,
)
from vlmrl.scoring.scorer import Judged, Scorer
from vlmrl.system import distributed
from vlmrl.system.seeds import seed_of
from vlmrl.system.timers import PhaseTimers

if TYPE_CHECKING:
    from vlmrl.config import Config
    from vlmrl.data.loader import Loader
    from vlmrl.data.source import Source
    from vlmrl.policy.policy import Policy


# --------------------------------------------------------------------------------------------------
# Groups of completions as arrays, for the state of strategies: what was sampled, to the bit.


NAMES = ("rows", "sizes", "finished", "lengths", "token_ids", "logprobs", "runs", "versions")


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """The completions of one prompt: of row (source, row), whose media rank `home` holds."""

    row: tuple[int, int]
    home: int
    completions: tuple[Sampled, ...]


def store(prompt: Prompt, completions: Sequence[Completion]) -> StoredGroup:
    """Return what was sampled of a row's group; texts are functions of it."""
    assert prompt.place is not None
    sampled = [Sampled(c.token_ids, c.logprobs, c.finish_reason, c.versions) for c in completions]
    return StoredGroup(prompt.place, prompt.home, tuple(sampled))


def to_arrays(groups: Sequence[StoredGroup]) -> dict[str, np.ndarray]:
    """Return `NAMES` of R groups with C completions of N tokens in V runs of versions.

    rows [R, 3] (source, row, home), sizes [R], finished [C] (stopped by themselves), lengths [C],
    token_ids [N], logprobs [N], runs [C], versions [V, 2].
    """
    all_ = [c for group in groups for c in group.completions]
    rows = [(*group.row, group.home) for group in groups]
    return {
        "rows": np.array(rows, np.int64).reshape(-1, 3),
        "sizes": np.array([len(group.completions) for group in groups], np.int64),
        "finished": np.array([c.finish_reason == "stop" for c in all_], bool),
        "lengths": np.array([len(c.token_ids) for c in all_], np.int64),
        "token_ids": np.array([t for c in all_ for t in c.token_ids], np.int64),
        "logprobs": np.array([x for c in all_ for x in c.logprobs], np.float64),
        "runs": np.array([len(c.versions) for c in all_], np.int64),
        "versions": np.array([v for c in all_ for v in c.versions], np.int64).reshape(-1, 2),
    }


def from_arrays(
    arrays: Mapping[str, np.ndarray], chosen: Sequence[int] | None = None
) -> list[StoredGroup]:
    """Invert `to_arrays`, of the `chosen` groups by number (None: of all)."""
    sizes, rows = arrays["sizes"], arrays["rows"]
    group_begins = np.cumsum(sizes) - sizes
    token_begins = np.cumsum(arrays["lengths"]) - arrays["lengths"]
    run_begins = np.cumsum(arrays["runs"]) - arrays["runs"]

    def completion(number: int) -> Sampled:
        at, run = int(token_begins[number]), int(run_begins[number])
        tokens = slice(at, at + int(arrays["lengths"][number]))
        versions = arrays["versions"][run : run + int(arrays["runs"][number])].tolist()
        return Sampled(
            tuple(arrays["token_ids"][tokens].tolist()),
            tuple(arrays["logprobs"][tokens].tolist()),
            "stop" if arrays["finished"][number] else "length",
            tuple((version, count) for version, count in versions),
        )

    groups = []
    for group in range(len(sizes)) if chosen is None else chosen:
        source, row, home = rows[group].tolist()
        begin = int(group_begins[group])
        completions = tuple(map(completion, range(begin, begin + int(sizes[group]))))
        groups.append(StoredGroup((source, row), home, completions))
    return groups


# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchDraw:
    """One batch of a step; dynamic sampling may draw several."""

    run_seed: int
    step: int
    """Steps finished before this one."""
    number: int
    """Batches that this step has already drawn."""
    progress: float
    """Share of training done, in [0, 1)."""

    def seed(self, purpose: int) -> int:
        """Return the seed of this draw for a purpose; each purpose has a number of its own.

        Taken: 10 update, 11 rollouts (`RolloutQueue`), 12 shuffled rewards, 13 shuffled frames,
        14 rows that replace bad ones, 15 masked media, 16 choices of samplers, 17 hints, 18 critiques,
        19 rehearsal, 20 partial rollouts, 21 self-play, 22 captions, 23 blind answers, 24 descriptions,
        25 noisy images, 26 rethinking, 27 replay, 28 sampling by advantage, 29 question variants,
        30 sampling by rank.
        """
        return seed_of(self.run_seed, purpose, self.step, self.number)


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of a run that a strategy works with. All ranks call its functions alike."""

    policy: Policy
    engine: RunningEngine
    scorer: Scorer
    config: Config
    timers: PhaseTimers
    make_prompt: Callable[[Sample, list[Any]], Prompt]
    """What makes the prompt of a sample and its decoded media, as in training."""
    loader: Loader
    """The training rows; `Loader.recall` makes the prompts of any of them."""
    say: Callable[[str], None] = lambda line: None
    """Shows one line to the person who watches; silent on ranks but the main one."""
    whole: bool = False
    """Whether all ranks get all that `ask` generates, because a part of the run reads it."""

    def source(self, strategy: str, name: str) -> Source:
        """Return the training source of a name that an option of `strategy` has.

        Raises:
            UserError: there is none.
        """
        named = {source.name: source for source in self.loader.sources}
        if name not in named:
            known = [*named]
            raise UserError(
                f"strategy {strategy}: expected a training source {name!r}, got {known}"
            )
        return named[name]

    def ask(self, prompts: Sequence[Prompt], count: int, draw: BatchDraw, purpose: int) -> Rollouts:
        """Generate `count` completions for each prompt, sampled as the config says; see `BatchDraw.seed`."""
        with self.timers("generate"):
            now = self.config.at(draw.progress).rollout
            sampling = Sampling.of(now, count, draw.seed(purpose))
            batch = PromptBatch(tuple(prompts))
            return rank_shards.generate(self.engine, batch, sampling, self.whole)

    def pose(self, samples: Sequence[Sample], source: Source) -> list[Prompt]:
        """Return the prompts of samples that are of no row, read as those of `source`, dealt to the ranks.

        A rank decodes and encodes its own; of the others it knows what the loader tells of them.
        """
        rank, world = distributed.rank(), distributed.world()
        with self.timers("data"):
            own = [
                replace(
                    self.make_prompt(sample, decode(sample, source.access, source.reading)),
                    home=rank,
                    place=None,
                )
                for sample in samples[rank::world]
            ]
            prompts = distributed.from_turns([prompt.without_media() for prompt in own])
        prompts[rank::world] = own
        return prompts

    def judge(
        self, asked: Rollouts, samples: Sequence[Sample], draw: BatchDraw
    ) -> list[list[Judged]]:
        """Judge completions as answers to `samples`, by item verifiers alone."""
        homes = [prompt.home for prompt in asked.batch.prompts]
        seen = [prompt.seen for prompt in asked.batch.prompts]
        arguments = (asked.completions, samples, draw.progress)
        with self.timers("reward"):
            return self.scorer.judge(*arguments, whole=False, homes=homes, staged=True, seen=seen)

    def grade(
        self, asked: Rollouts, prompts: Sequence[Prompt], draw: BatchDraw
    ) -> list[list[Verdict]]:
        """Grade completions as answers to `prompts`, by the item verifiers that read the truth.

        A grade is the mean of their scores by their weights; that of an aborted completion, or of one on
        which a verifier failed, is a fault. It does not apply where no verifier of a positive weight reads
        the truth. What verifiers are shown is what belongs to `prompts`.
        """
        shown = replace(asked, batch=PromptBatch(tuple(prompts)))
        judged = self.judge(shown, [prompt.sample for prompt in prompts], draw)
        return [
            [
                Verdict.failed("aborted")
                if completion.finish_reason == "abort"
                else self.grade_of(prompt.sample, entry.verdicts, draw)
                for completion, entry in zip(group, of_group, strict=True)
            ]
            for prompt, group, of_group in zip(prompts, asked.completions, judged, strict=True)
        ]

    def grade_of(self, sample: Sample, verdicts: Mapping[str, Verdict], draw: BatchDraw) -> Verdict:
        """Return the grade of a completion with these verdicts; see `grade`."""
        weights = self.scorer.graders(sample, draw.progress)
        known = {label: verdicts[label] for label in weights if label in verdicts}
        for label, verdict in known.items():
            if verdict.fault is not None:
                return Verdict.failed(f"{label}: {verdict.fault}")
        scores = [(weights[label], v.score) for label, v in known.items() if v.score is not None]
        if not scores:
            return Verdict.not_applicable("no verifier of its source reads the truth")
        total = sum(weight for weight, _ in scores)
        return Verdict(sum(weight * score for weight, score in scores) / total)

    def blind(self, prompt: Prompt, sample: Sample) -> Prompt:
        """Return the prompt of a sample of words alone, in place of a prompt with media.

        Coordinates in its answers stay those of the prompt's media. On other ranks it stands for itself.
        """
        if not rank_shards.is_here(prompt):
            return replace(prompt, sample=sample)
        made = self.make_prompt(sample, [])
        return replace(made, home=prompt.home, place=prompt.place, frame=prompt.frame)

    def retell(self, prompt: Prompt, sample: Sample) -> Prompt:
        """Return the prompt of another sample with the same media; without them on other ranks."""
        if not rank_shards.is_here(prompt):
            return replace(prompt, sample=sample)
        made = self.make_prompt(sample, list(prompt.media))
        return replace(made, home=prompt.home, place=prompt.place)


@dataclass(frozen=True)
class Strategy:
    """A part of the step beside GRPO itself; a subclass overrides what it needs.

    `prepare` and `expand` are called for every batch that a step draws, with the same `draw`, on
    every rank.

    Class variables: `curves`, a line on each curve that only this strategy has, by its name;
    `state_names`, the names of the arrays in `state`; `of_turns`, whether it works with rollouts of
    several turns; `reads_completions`, whether it reads tokens, texts or log-probs of completions: with
    several ranks all then get those of all, else only the numbers (`RemoteCompletion`).
    """

    of_turns: ClassVar[bool] = False
    reads_completions: ClassVar[bool] = False
    curves: ClassVar[Mapping[str, str]] = {}
    state_names: ClassVar[tuple[str, ...]] = ()
    state: dict[str, np.ndarray] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What it has learned, alike on every rank: all that the next step may depend on."""

    def begin(self, run: RunParts) -> None:
        """Fill `state` as RL begins, with the policy's first weights; a resumed run has it already."""

    def prepare(self, rollouts: Rollouts, draw: BatchDraw, run: RunParts) -> Rollouts:
        """Return the rollouts to score: with more completions, or with more in a sample's `meta`."""
        return rollouts

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Return the scored rollouts from which groups are selected and advantages computed.

        A completion that the policy did not sample from its very prompt says so (`Completion.origin`):
        it then has no part in pass rates, curves and importance weights. Groups keep their size, or all
        of every batch grow by the same (`widen`); further ones may come behind them (`add_groups`).
        """
        return rollouts, rewards

    def select(
        self,
        rollouts: Rollouts,
        rewards: Rewards,
        advantages: Advantages,
        draw: BatchDraw,
        run: RunParts,
    ) -> tuple[Rollouts, Rewards, Advantages]:
        """Return what is trained on, once the advantages are known: fewer completions, or more groups.

        Called once a step, with the draw of its last batch.
        """
        return rollouts, rewards, advantages

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return what the strategy adds to the step's line of metrics.jsonl."""
        return {}


def put_in(
    rollouts: Rollouts,
    rewards: Rewards,
    groups: dict[int, list[tuple[Completion, Judged]]],
    origin: Origin,
) -> tuple[Rollouts, Rewards]:
    """Return the rollouts with the last completions of groups replaced by those found for them.

    `groups` is by prompt; a masked completion (no reward) is left out. Groups keep their size.
    """
    completions, verdicts = [*rollouts.completions], [*rewards.verdicts]
    total, valid = rewards.total.clone(), rewards.valid.clone()
    for p, pairs in groups.items():
        known = [(c, j.verdicts, j.reward) for c, j in pairs if j.reward is not None]
        known = known[: len(completions[p])]
        first = len(completions[p]) - len(known)
        replacements = tuple(c.with_origin(origin) for c, _, _ in known)
        completions[p] = (*completions[p][:first], *replacements)
        verdicts[p] = (*verdicts[p][:first], *(of_one for _, of_one, _ in known))
        for column, (_, _, reward) in enumerate(known, first):
            total[p, column], valid[p, column] = reward, True
    changed = replace(rollouts, completions=tuple(completions))
    return changed, Rewards(total, valid, tuple(verdicts))


def widen(
    rollouts: Rollouts, rewards: Rewards, count: int, origin: Origin
) -> tuple[Rollouts, Rewards]:
    """Return the rollouts with `count` further places behind each group, for `put_in`.

    What fills a place until then is a copy of the group's last completion, neither valid nor judged.
    """
    fill = rewards.total.new_zeros(len(rollouts.completions), count)
    longer = [(*g, *[g[-1].with_origin(origin)] * count) for g in rollouts.completions]
    verdicts: list[tuple[Mapping[str, Verdict], ...]] = [
        (*v, *[{}] * count) for v in rewards.verdicts
    ]
    return replace(rollouts, completions=tuple(longer)), Rewards(
        torch.cat([rewards.total, fill], dim=1),
        torch.cat([rewards.valid, fill.bool()], dim=1),
        tuple(verdicts),
    )


def add_groups(
    rollouts: Rollouts,
    rewards: Rewards,
    groups: Sequence[tuple[Prompt, Sequence[Completion], Sequence[Judged]]],
) -> tuple[Rollouts, Rewards]:
    """Return the rollouts with further groups of G completions behind their own."""
    total = torch.tensor([[entry.reward or 0.0 for entry in judged] for _, _, judged in groups])
    valid = torch.tensor(
        [[entry.reward is not None for entry in judged] for _, _, judged in groups]
    )
    verdicts = (tuple(entry.verdicts for entry in judged) for _, _, judged in groups)
    prompts = (*rollouts.batch.prompts, *(prompt for prompt, _, _ in groups))
    longer = replace(
        rollouts,
        batch=replace(rollouts.batch, prompts=prompts),
        completions=(*rollouts.completions, *(tuple(group) for _, group, _ in groups)),
    )
    shape = (len(groups), rollouts.shape[1])
    return longer, Rewards(
        torch.cat([rewards.total, total.reshape(shape)]),
        torch.cat([rewards.valid, valid.reshape(shape).bool()]),
        (*rewards.verdicts, *verdicts),
    )


def pay(
    rewards: Rewards,
    label: str,
    verdict_of: Mapping[tuple[int, int], Verdict],
    weight: float = 1.0,
) -> Rewards:
    """Return the rewards with a further verdict, `label`, on completion (p, g) for each found.

    `weight` times its score is added to the reward; a fault masks the completion.
    """
    total, valid = rewards.total.clone(), rewards.valid.clone()
    verdicts = [list(group) for group in rewards.verdicts]
    for (p, g), verdict in verdict_of.items():
        verdicts[p][g] = {**verdicts[p][g], label: verdict}
        if verdict.applies:
            valid[p, g] = verdict.score is not None
            total[p, g] = 0.0 if verdict.score is None else total[p, g] + weight * verdict.score
    return Rewards(total, valid, tuple(map(tuple, verdicts)))


def of_origin(rollouts: Rollouts, rewards: Rewards, origin: Origin) -> list[tuple[int, int]]:
    """Return the place (p, g) of every valid completion of an origin."""
    return [
        (p, g)
        for p, group in enumerate(rollouts.completions)
        for g, completion in enumerate(group)
        if completion.origin == origin and rewards.valid[p, g]
    ]


def collect_state(strategies: Sequence[Strategy]) -> dict[str, np.ndarray]:
    """Return the arrays of all strategies under names that tell them apart, for a checkpoint."""
    return {
        f"{prefix}.{name}": strategy.state[name]
        for prefix, strategy in _named(strategies).items()
        for name in strategy.state_names
    }


def restore_state(strategies: Sequence[Strategy], arrays: Mapping[str, np.ndarray]) -> None:
    """Give each strategy the arrays that `collect_state` took of it.

    Raises:
        UserError: they are those of other strategies.
    """
    named = _named(strategies)
    wanted = {f"{prefix}.{name}" for prefix, of in named.items() for name in of.state_names}
    if wanted != arrays.keys():
        raise UserError(
            f"resume: expected the state of strategies {sorted(wanted)}, got {sorted(arrays)}: set "
            "`strategies` as it was, or start anew"
        )
    for prefix, strategy in named.items():
        own = {name: arrays[f"{prefix}.{name}"] for name in strategy.state_names}
        strategy.state.update(own)


def _named(strategies: Sequence[Strategy]) -> dict[str, Strategy]:
    return {f"{number}.{type(s).__name__}": s for number, s in enumerate(strategies)}
