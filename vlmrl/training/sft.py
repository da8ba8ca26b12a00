"""Cold start: imitate the cards' demonstrations until a validation metric is reached.

RL cannot start before the model sees anything at all, and a model that imitates for too long leaves RL
nothing to explore. So a metric ends the cold start, not a step count; a short decay of the lr follows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vlmrl.algorithms.base import LossInputs, LossOutput
from vlmrl.answers import templates
from vlmrl.config import SftConfig
from vlmrl.errors import UserError
from vlmrl.forward import finite
from vlmrl.forward.dealing import give_to_teams
from vlmrl.forward.packing import pack
from vlmrl.media.decode import decode
from vlmrl.models.base import Family
from vlmrl.models.chat import space_in_calls
from vlmrl.policy.policy import Policy
from vlmrl.schema import Advantages, Frame, Prompt, PromptBatch, Rollouts, Sample
from vlmrl.schema.media import Decoded
from vlmrl.scoring.reward_components import resolve
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import distributed
from vlmrl.system.interrupt import Interrupt
from vlmrl.system.seeds import seed_of
from vlmrl.truths import prompting

if TYPE_CHECKING:
    from vlmrl.data.source import Source
    from vlmrl.interaction.tools import Runner


# --------------------------------------------------------------------------------------------------
# Demonstrations as a policy would have written them.


@dataclass(frozen=True)
class Writer:
    """What demonstrations are encoded for: a family, and a processor of the thread in which it is done."""

    family: Family
    processor: Any

    @property
    def end(self) -> int:
        """Return the id that ends a turn."""
        return self.family.stop_token_ids(self.processor)[0]

    @cached_property
    def _special(self) -> set[int]:
        tokenizer = self.processor.tokenizer
        added = tokenizer.added_tokens_decoder
        return {i for i, token in added.items() if token.special} | {*tokenizer.all_special_ids}

    @cached_property
    def call_space(self) -> str:
        """Return what the chat template writes between the marks of a call and the call."""
        return space_in_calls(self.processor)

    def encode(self, sample: Sample, text: str, tags: Sequence[str]) -> tuple[int, ...]:
        """Return the ids of a demonstrated turn, its end included.

        Special tokens that its data spell out are ordinary text; those of the `tags` stay tokens.

        Raises:
            UserError: the text holds a media token.
        """
        tokenizer = self.processor.tokenizer
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        if self._special.intersection(ids) - {tokenizer.convert_tokens_to_ids(tag) for tag in tags}:
            ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if media := {*self.family.media_token_ids(self.processor)}.intersection(ids):
            token = tokenizer.convert_ids_to_tokens(min(media))
            raise UserError(
                f"sft: the demonstration of sample {sample.id!r} of source {sample.source!r} contains "
                f"the media token {token}"
            )
        return (*ids, self.end)


def demonstrating(
    make: Callable[[Sample, list[Decoded]], Prompt],
    writer: Writer,
    runners: Mapping[str, Runner],
    sources: Sequence[Source] = (),
) -> Callable[[Sample, list[Decoded]], Prompt]:
    """Return `make` with the turns of the sample's demonstration played; `runners` are by source.

    `sources` say how the media are read that rows state as what a call returned.
    """
    by_name = {source.name: source for source in sources}

    def made(sample: Sample, media: list[Decoded]) -> Prompt:
        prompt = make(sample, media)
        demo = prompt.sample.demo
        if demo is None or not demo.turns:
            return prompt
        from vlmrl.training.demonstrated_calls import play  # all that tools need

        runner = runners.get(sample.source)
        if runner is None and (run := [turn for turn in demo.turns if turn.returned is None]):
            raise UserError(
                f"sample {sample.id!r}: its demonstration calls {run[0].name!r}, but "
                f"source {sample.source!r} of the cold start names no `tools`"
            )
        shown: list[Decoded] = []
        if demo.media:
            source = by_name[sample.source]
            returned = Sample(sample.id, sample.source, demo.media, sample.truth)
            shown = decode(returned, source.access, source.reading)
        return replace(prompt, demonstrated=play(writer, prompt, runner, shown))

    return made


# --------------------------------------------------------------------------------------------------
# The stages of the cold start and their steps.


@dataclass(frozen=True)
class Imitation:
    """The loss of the cold start: mean negative log-likelihood of the demonstrations' tokens."""

    entropy_gradient: ClassVar[bool] = False

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return this micro-batch's share of -mean log p, weighted by the samples' weights."""
        weighted = inputs.new * inputs.mask * inputs.weights[:, None]
        if "token_weight" in inputs.extra:
            weighted = weighted * inputs.extra["token_weight"]
        return LossOutput(-weighted.sum() / inputs.num_tokens)


@dataclass(frozen=True)
class Stage:
    """How far the cold start is; part of the checkpoint. `stopped_at`: the step at which the decay began."""

    step: int = 0
    stopped_at: int | None = None

    def done(self, config: SftConfig) -> bool:
        """Return whether nothing is left to do."""
        if self.stopped_at is not None:
            return self.step >= self.stopped_at + self._decay_steps(config)
        return self.step >= config.max_steps

    def lr(self, config: SftConfig) -> float:
        """Return the learning rate of the next step: warm-up, constant, linear decay to a tenth."""
        if self.stopped_at is not None:
            share = (self.step - self.stopped_at + 1) / max(1, self._decay_steps(config))
            return config.lr * (1 - 0.9 * min(1.0, share))
        return config.lr * min(1.0, (self.step + 1) / max(1, config.warmup_steps))

    def _decay_steps(self, config: SftConfig) -> int:
        """Return the steps of the decay: fewer than configured where `max_steps` ends them."""
        assert self.stopped_at is not None
        return min(config.decay_steps, config.max_steps - self.stopped_at)


def step(
    policy: Policy,
    batch: PromptBatch,
    config: SftConfig,
    stage: Stage,
    micro_tokens: int,
    seed: int,
    score: Callable[[Rollouts], dict[str, float]] = lambda _: {},
) -> dict[str, float]:
    """Take one update on the demonstrations of a batch of prompts; return its metrics, `score` among them."""
    torch.manual_seed(seed_of(seed, 1, stage.step))
    rollouts = demonstrations(policy, batch, config.thought_dropout, seed_of(seed, 2, stage.step))
    scored = score(rollouts)
    rollouts = give_to_teams(rollouts)
    count = (len(batch), 1)
    weights = torch.tensor([[p.sample.weight] for p in batch.prompts])
    ones = Advantages(
        torch.ones(count),
        torch.ones(count, dtype=torch.bool),
        weights,
        extra=_token_weights(rollouts, config.last_turn_weight),
    )
    longest = max(len(group[0].token_ids) for group in rollouts.completions)
    batches = pack(
        rollouts,
        ones,
        updates=1,
        micro_tokens=micro_tokens,
        max_tokens=longest,
        ranks=distributed.sequence_ranks(),
    )
    with policy.seeing_once():
        metrics = policy.update(batches, Imitation(), lr=stage.lr(config), progress=0.0)
    return {
        "loss": metrics["loss/total"],
        "entropy": metrics["rollout/entropy"],
        "grad_norm": metrics["update/grad_norm"],
        "lr": metrics["update/lr"],
        **scored,
    }


def score_demonstrations(scorer: Scorer, metric: str, rollouts: Rollouts) -> dict[str, float]:
    """Return `demonstrations/<metric>`: the mean score that an evaluation's metric gives demonstrations.

    Empty where that cannot be said at once and without cost: the metric is no verifier's score, a source
    has no such reward, or the verifier asks elsewhere, looks at media, or sees more than one completion.
    """
    name, asked = metric.removeprefix("sampled/"), []
    for prompt, (completion,) in zip(rollouts.batch.prompts, rollouts.completions, strict=True):
        sample = prompt.sample
        rewards = scorer.rewards.get(sample.source, ()) if not sample.rewards else ()
        known = [resolve(reward) for reward in rewards if reward.label == name]
        if not known or known[0].runs_elsewhere or known[0].verifier.looks:
            return {}
        if known[0].verifier.scope != "item":
            return {}
        asked.append((completion, sample, known))
    scores = [verdicts[name].score for verdicts in scorer.probe(asked)]
    known_scores = [score for score in scores if score is not None]
    return {f"demonstrations/{name}": fmean(known_scores)} if known_scores else {}


def _token_weights(rollouts: Rollouts, last: float) -> dict[str, torch.Tensor]:
    """Return `token_weight` [P, 1, T]: `last` in the last of several turns, else 1; empty if that is 1."""
    if last == 1:
        return {}
    longest = max(len(group[0].token_ids) for group in rollouts.completions)
    weights = torch.ones(len(rollouts.completions), 1, longest)
    for row, (completion,) in zip(weights, rollouts.completions, strict=True):
        if len(completion.turns) > 1:
            row[0, len(completion.token_ids) - len(completion.turns[-1].token_ids) :] = last
    return {"token_weight": weights}


def check(
    stage: Stage, config: SftConfig, measure: Callable[[], Mapping[str, float]]
) -> tuple[Stage, Mapping[str, float]]:
    """Validate when it is due and note the stop; return what was measured, perhaps nothing.

    A reward model is measured to its end, and there.
    """
    due = stage.step >= config.validate_from and stage.step % config.validate_every == 0
    if config.objective == "preferences":
        asked = due or stage.done(config)
    else:
        asked = due and config.stop_at is not None and stage.stopped_at is None
    measured = measure() if asked else {}
    if stage.stopped_at is not None:
        return stage, measured
    reached = bool(measured) and config.stop_at is not None
    reached = reached and measured[config.metric] >= (config.stop_at or 0.0)
    # At the cap an unfinished cold start ends with the same decay as at a reached metric.
    capped = stage.step >= config.max_steps - config.decay_steps
    return (replace(stage, stopped_at=stage.step) if reached or capped else stage), measured


def demonstrations(
    policy: Policy, batch: PromptBatch, thought_dropout: float, seed: int
) -> Rollouts:
    """Return the batch's demonstrations as if the policy had generated them, one per prompt.

    Raises:
        UserError: a sample has no demonstration, or none that its template accepts.
    """
    rng = random.Random(seed)
    writer = Writer(policy.family, policy.processor)
    groups = []
    for prompt in batch.prompts:
        drop_thought = rng.random() < thought_dropout
        sample, played = prompt.sample, prompt.demonstrated
        if played is not None and sample.demo is not None and not sample.demo.has_answer:
            groups.append((played,))
            continue
        text = _write_demonstration(prompt, drop_thought)
        tags = [tag for t in templates.template(sample.template).tags for tag in (t.open, t.close)]
        ids = writer.encode(sample, text, tags)
        answer = templates.completion(
            text, sample.template, prompt.frame, token_ids=ids, logprobs=(0.0,) * len(ids)
        )
        if played is not None:
            from vlmrl.training.demonstrated_calls import join_answer

            answer = join_answer(writer, prompt, played, answer)
        groups.append((answer,))
    return Rollouts(batch, tuple(groups))


def _write_demonstration(prompt: Prompt, drop_thought: bool) -> str:
    sample = prompt.sample
    if sample.demo is None:
        raise UserError(
            f"sft: sample {sample.id!r} of source {sample.source!r} has no demonstration to imitate"
        )
    tags = templates.template(sample.template).tags
    required = any(t.name == "think" and t.presence == "required" for t in tags)
    if required and (drop_thought or not sample.demo.thought.strip()):
        # The verifier `format` would penalize what the cold start teaches.
        why = "sft.thought_dropout" if drop_thought else f"sft: sample {sample.id!r} has no thought"
        raise UserError(
            f"{why}: template '{sample.template}' of source {sample.source!r} requires a thought; "
            "in think_or_not it is optional, and answer_only has none"
        )
    demo = replace(sample.demo, thought="") if drop_thought else sample.demo
    if demo.frame is not None and demo.frame != prompt.frame:
        raise UserError(
            f"sft: sample {sample.id!r} of source {sample.source!r}: its demonstration was written for "
            f"{_describe(demo.frame)}, but this model sees {_describe(prompt.frame)}: write them again"
        )
    try:
        return prompting.demonstrate(demo, sample.template, prompt.frame, form=sample.form)
    except UserError as error:
        raise UserError(
            f"sft: sample {sample.id!r} of source {sample.source!r}: {error}"
        ) from error


def _describe(frame: Frame) -> str:
    """Return the space of a frame, and what is seen in it, for a message."""
    seen = f"{frame.resized_width or frame.width} x {frame.resized_height or frame.height}"
    return f"{seen} pixels in space {frame.space!r}"


def cold_start(
    take_step: Callable[[PromptBatch, Stage], dict[str, float]],
    next_batch: Callable[[], PromptBatch],
    config: SftConfig,
    stage: Stage,
    *,
    validate: Callable[[], Mapping[str, float]],
    report: Callable[[int, dict[str, float]], None],
    save: Callable[[Stage], None],
    interrupt: Interrupt,
    save_every: int | None = None,
) -> Stage:
    """Call `take_step` until done or interrupted, and return the stage; an interrupted one is saved.

    The policy already has its optimizer; `stage` is where an earlier run stopped.
    """
    while not stage.done(config):
        with finite.naming(f"cold start, step {stage.step + 1}"):
            metrics = take_step(next_batch(), stage)
            stage = replace(stage, step=stage.step + 1)
            stage, measured = check(stage, config, validate)
        report(stage.step, metrics | {f"validation/{name}": v for name, v in measured.items()})
        if distributed.any_rank(interrupt.asked):
            save(stage)
            break
        if save_every is not None and stage.step % save_every == 0 and not stage.done(config):
            save(stage)
    return stage
