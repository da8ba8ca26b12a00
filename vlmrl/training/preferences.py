"""Train a reward model on pairs of answers: its head scores the better one above the worse one.

A prompt has a group of two completions, the better one first, each followed by one token that only stands
for "behind the end": the state before it, which the head scores, is that of the conversation's last token,
where `vlmrl serve` scores it.

Source: Bradley and Terry as in PERL (arXiv 2403.10704, section 3.1) and Llama 2 (arXiv 2307.09288, equation
2, with its margin); TRL's RewardTrainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import logsigmoid

from vlmrl.algorithms.base import LossInputs, LossOutput
from vlmrl.answers import templates
from vlmrl.config import SftConfig
from vlmrl.errors import UserError
from vlmrl.forward.dealing import give_to_teams
from vlmrl.forward.packing import pack
from vlmrl.models.base import Family
from vlmrl.models.chat import render_answered
from vlmrl.policy.policy import Policy
from vlmrl.schema import Advantages, Completion, Frame, Prompt, PromptBatch, Rollouts, Sample
from vlmrl.schema.media import Decoded
from vlmrl.system import distributed
from vlmrl.system.seeds import seed_of
from vlmrl.training.evaluation import interval
from vlmrl.training.sft import Stage, Writer


@dataclass(frozen=True)
class BradleyTerry:
    """The loss: mean of -log sigmoid(score of the better - score of the worse - margin) of the pairs."""

    entropy_gradient: ClassVar[bool] = False

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return this micro-batch's share; `advantages` are 1 for a better answer and -1 for a worse one.

        `extra` has `pair`, a number for each, and `margin`.

        Raises:
            UserError: a pair was cut for lack of memory.
        """
        scores = last_scores(inputs.new, inputs.mask)
        signs, pair = inputs.advantages[:, 0], inputs.extra["pair"][:, 0]
        better, worse = (signs == sign for sign in (1, -1))
        if pair[better].tolist() != pair[worse].tolist():
            raise UserError(
                "out of memory with pairs of answers, whose scores are needed together; lower "
                "optimizer.micro_batch_tokens, or use model.gradient_checkpointing or smaller media"
            )
        gap = scores[better] - scores[worse]
        losses = -logsigmoid(gap - inputs.extra["margin"][better, 0]) * inputs.weights[better]
        # What a row without a pair scores is in no loss, and has a gradient of 0 all the same.
        total = losses.sum() / (inputs.num_rollouts / 2) + 0.0 * scores.sum()
        each = inputs.num_tokens / (inputs.num_rollouts / 2)  # the policy divides by the tokens
        ordered = (gap > 0).sum() * each
        return LossOutput(total, {"accuracy": ordered, "gap": gap.detach().sum() * each})


def last_scores(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the numbers [B] at the last token of each row, of those at all tokens [B, T]."""
    last = (mask.sum(1) - 1).clamp_min(0)
    return values.gather(1, last[:, None])[:, 0]


def make_prompt(
    family: Family, processor: object, sample: Sample, media: Sequence[Decoded]
) -> Prompt:
    """Return the conversation up to the answer, without an instruction, as `reward_model` shows it.

    Raises:
        UserError: as `data.prompt.make_prompt`.
    """
    text, _ = render_answered(family, processor, sample)
    try:
        encoded = family.encode(processor, text, media)
    except UserError as error:
        raise UserError(f"sample {sample.id!r}: {error}") from error
    return Prompt(sample, text, encoded, Frame(), tuple(media))


def pairs(policy: Policy, batch: PromptBatch) -> Rollouts:
    """Return the two answers of each prompt as if the policy had written them, the better one first.

    Raises:
        UserError: a sample states no two answers.
    """
    writer = Writer(policy.family, policy.processor)
    groups = []
    for prompt in batch.prompts:
        demo = prompt.sample.demo
        if demo is None or demo.text is None or demo.rejected is None:
            raise UserError(
                f"sft.objective: sample {prompt.sample.id!r} of source {prompt.sample.source!r} states no "
                "two answers: use card preferences with the option answers: apart"
            )
        _, behind = render_answered(policy.family, policy.processor, prompt.sample)
        ends = policy.tokenizer(behind, add_special_tokens=False)["input_ids"]
        groups.append(
            tuple(_completion(writer, prompt, text, ends) for text in (demo.text, demo.rejected))
        )
    return Rollouts(batch, tuple(groups))


def _completion(writer: Writer, prompt: Prompt, text: str, ends: Sequence[int]) -> Completion:
    *ids, end = writer.encode(prompt.sample, text, ())
    whole = (*ids, *ends, end)
    return templates.completion(
        text, "none", prompt.frame, token_ids=whole, logprobs=(0.0,) * len(whole)
    )


def step(
    policy: Policy,
    batch: PromptBatch,
    config: SftConfig,
    stage: Stage,
    micro_tokens: int,
    seed: int,
) -> dict[str, float]:
    """Take one update on a batch of pairs; return its metrics."""
    torch.manual_seed(seed_of(seed, 1, stage.step))
    rollouts = give_to_teams(pairs(policy, batch))
    longest, fits = _sizes(rollouts)
    batches = pack(
        rollouts,
        _signs(rollouts),
        updates=1,
        micro_tokens=max(micro_tokens, fits),
        max_tokens=longest,
        ranks=distributed.sequence_ranks(),
    )
    metrics = policy.update(batches, BradleyTerry(), lr=stage.lr(config), progress=0.0)
    return {
        "loss": metrics["loss/total"],
        "accuracy": metrics["accuracy"],
        "gap": metrics["gap"],
        "grad_norm": metrics["update/grad_norm"],
        "lr": metrics["update/lr"],
    }


def _sizes(rollouts: Rollouts) -> tuple[int, int]:
    """Return the tokens of the longest answer, and of a forward of the largest pair, which is never cut."""
    longest = [max(c.num_tokens for c in group) for group in rollouts.completions]
    prompts = [len(prompt.encoded.ids) for prompt in rollouts.batch.prompts]
    return max(longest), max(2 * (p + c) for p, c in zip(prompts, longest, strict=True))


def _signs(rollouts: Rollouts) -> Advantages:
    """Return 1 for the better answer and -1 for the worse one, [P, 2], with what the loss needs besides."""
    samples = [prompt.sample for prompt in rollouts.batch.prompts]
    demos = [sample.demo for sample in samples if sample.demo is not None]
    both = torch.ones(len(samples), 2)
    return Advantages(
        both * torch.tensor([1.0, -1.0]),
        both.bool(),
        both * torch.tensor([[sample.weight] for sample in samples]),
        extra={
            "pair": both * torch.arange(len(samples))[:, None],
            "margin": both * torch.tensor([[demo.margin] for demo in demos]),
        },
    )


def measure(policy: Policy, batches: Iterable[PromptBatch], micro_tokens: int) -> dict[str, float]:
    """Return the share of pairs whose better answer scores higher, with its 95 % interval.

    Pairs on the same media, or without any on the same question, are one cluster of it. All ranks call it,
    each with its own batches.

    Raises:
        UserError: there are no pairs.
    """
    own: list[tuple[str, float]] = []
    with policy.generating():
        for batch in batches:
            rollouts = pairs(policy, batch)
            longest, fits = _sizes(rollouts)
            (whole,) = pack(
                rollouts,
                _signs(rollouts),
                updates=1,
                micro_tokens=max(micro_tokens, fits),
                max_tokens=longest,
            )
            for micro in whole.micro:
                scores = last_scores(policy.logprobs(micro)[0], micro.mask.to(policy.device)).cpu()
                better = micro.advantages[:, 0] > 0
                ordered = (scores[better] > scores[~better]).tolist()
                for pair, right in zip(
                    micro.extra["pair"][better, 0].tolist(), ordered, strict=True
                ):
                    own.append((_cluster(batch.prompts[int(pair)].sample), float(right)))
    ordered_pairs = [pair for of_rank in distributed.gather(own) for pair in of_rank]
    if not ordered_pairs:
        raise UserError("sft.validation: expected pairs of answers, got none")
    low, high = interval(ordered_pairs, resamples=100)
    share = sum(right for _, right in ordered_pairs) / len(ordered_pairs)
    return {
        "accuracy": share,
        "accuracy/low": low,
        "accuracy/high": high,
        "pairs": len(ordered_pairs),
    }


def _cluster(sample: Sample) -> str:
    return (sample.media[0].path if sample.media else None) or sample.text
