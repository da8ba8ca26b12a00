"""The meaning of every number in metrics.jsonl, sft.jsonl and an evaluation: one line for each name.

A part describes the numbers that only it writes in its own file (`Recipe.metrics`, `Sampler.curves`,
`Strategy.curves`). `<...>` in a name stands for a part without a slash: a source, a verifier, a phase.
The page "Metrics" of the documentation is this table, and a test holds it against the names in the code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from vlmrl import plugins

__all__ = ["find"]

STEP = {
    "step": "GRPO steps done when the line was written.",
    "reward/mean": "Mean reward of the completions that are not masked.",
    "reward/std": "Standard deviation of the reward over the batch.",
    "reward/<verifier>": "Mean score of one verifier, over the completions that it applies to.",
    "source/<source>/reward": "Mean reward of the prompts of one source.",
    "source/<source>/<verifier>": "Mean score of one verifier on the prompts of one source.",
    "source/<source>/uniform_share": "`rollout/uniform_share` among the groups of one source.",
    "source/<source>/silent_share": "`rollout/silent_share` among the groups of one source.",
    "rollout/length": "Mean number of tokens of a completion.",
    "rollout/answered": "Share of completions with an answer that could be read.",
    "rollout/truncated": "Share of completions that were cut at `rollout.max_tokens`.",
    "rollout/killed_grader": "Share of completions that hung or killed a verifier, twice; they score 0.",
    "rollout/masked": "Share of completions without a valid reward: a verifier failed on them.",
    "rollout/uniform_share": "Share of groups of equal rewards: with most recipes they have no gradient.",
    "rollout/silent_share": "Share of groups without a gradient, where uniform groups may have one.",
    "rollout/turns": "Mean number of turns of the policy, in sources with tools or an environment.",
    "rollout/branched": "Share of rollouts that begin with turns of another of their group, where any does.",
    "tool/used": "Share of completions in which a tool was called.",
    "tool/crop_iou": "Mean IoU of what calls cut out with the nearest true box, where boxes are known.",
    "tool/ok": "Mean share of a completion's calls that were answered.",
    "tool/refused": "Mean share of a completion's calls that were refused, which the policy is told.",
    "tool/fault": "Mean share of a completion's calls that failed; the completion is masked.",
    "world/reward": "Mean of what the environment paid for a completion, summed over its turns.",
    "world/done": "Share of completions whose world came to its end.",
    "world/<metric>": "What the environment measures itself, after the last turn.",
    "tool/<name>/seconds": "Seconds that this tool took when it last ran in a completion, on average.",
    "model/<model>/questions": "Questions to one of `models` in this step.",
    "model/<model>/known": "Share of the questions whose reply was known: they needed no request.",
    "model/<model>/failed": "Share of the questions without a readable reply: faults, never scores.",
    "model/<model>/requests": "Requests sent to it, repeated attempts included.",
    "model/<model>/seconds": "Mean seconds of a request that was answered.",
    "model/<model>/prompt_tokens": "Tokens of the prompts it answered, as its server counts them.",
    "model/<model>/completion_tokens": "Tokens of its replies, as its server counts them.",
    "judge/<verifier>/orders_agree": "Share of pairs of which a judge said the same in both orders.",
    "judge/<verifier>/first_wins": "Share of replies naming the first of two; one half if fair.",
    "judge/<verifier>/ties": "Share of pairs that are ties, disagreeing orders among them.",
    "rollout/entropy": "Mean entropy of the policy at the loss tokens, in nats.",
    "rollout/batches": "Batches that dynamic sampling drew for this step.",
    "rollout/groups_short": "Groups still missing when dynamic sampling reached its limit.",
    "rollout/refused_share": "Share of the drawn groups that dynamic sampling refused.",
    "rollout/logprob_gap": "Mean |Δ log p| between engine and trainer at the loss tokens, in nats.",
    "rollout/logprob_kl": "Estimated KL(engine || trainer) per loss token (Schulman's k3), in nats.",
    "turn/logprob_gap/<turn>": "`rollout/logprob_gap` of one turn, counted from 1, of several.",
    "rollout/logprob_max_ratio": "Largest exp |Δ log p| between engine and trainer.",
    "rollout/staleness": "Mean number of policy versions between a token and its training.",
    "rollout/staleness_max": "Largest number of policy versions between a token and its training.",
    "rollout/off_policy": "Share of tokens that older weights sampled.",
    "rollout/stale_dropped": "Groups of a checkpoint that were too old and were generated again.",
    "rollout/trainer_waiting": "Share of the step in which the trainer waited for completions.",
    "rollout/generation_idle": "Share of the step in which nothing was being generated.",
    "sampler/difficulty": "Mean difficulty of the rows drawn: their column, or with `cdas` as learned.",
    "sampler/visited": "Share of the rows that were drawn so far, of a sampler that learns.",
    "mode/<mode>/share": "Share of completions that think, answer directly, or do neither (none).",
    "mode/<mode>/length": "Mean number of tokens of the completions in one mode.",
    "mode/<mode>/reward": "Mean reward of the completions in one mode.",
    "mode/<mode>/<verifier>": "Mean score of one verifier on the completions in one mode.",
    "hints/share": "Share of groups that failed and were asked again with a hint.",
    "hints/reward": "Mean reward of completions written with a hint.",
    "critiques/share": "Share of groups that got the best second answer to a critique.",
    "critiques/reward": "Mean reward of these second answers.",
    "shuffled_frames/ordered": "Share of correct completions to videos with their frames in order.",
    "shuffled_frames/shuffled": "Share of correct completions to the same videos with shuffled frames.",
    "shuffled_frames/bonus_share": "Share of groups with a control group in which a bonus was paid.",
    "loss/total": "The loss, averaged over the updates of the step; 0 on policy, up to rounding.",
    "loss/kl": "Mean divergence from the reference per loss token, before its coefficient.",
    "loss/teacher_kl": "Estimated KL(policy || teacher) per loss token (k1), in nats, before its weight.",
    "loss/imitation": "Weighted -log p of imitated tokens, over all loss tokens.",
    "loss/ratio": "Mean ratio of new to old probability at the loss tokens.",
    "loss/clip_low": "Share of loss tokens clipped below (a falling ratio, a negative advantage).",
    "loss/clip_high": "Share of loss tokens clipped above, or capped at `importance_cap`.",
    "update/grad_norm": "Norm of the gradient before clipping, averaged over the updates.",
    "update/lr": "Learning rate.",
    "update/kl_weight": "Weight of the divergence, where `kl_target` leads it.",
    "update/tokens": "Loss tokens of the step.",
    "update/skipped": "Updates that were not applied because the gradient was not finite.",
    "update/useful_share": "Tokens of the mean process over those of the fullest: below 1 the others wait.",
    "update/shared": "Share of loss tokens computed with the shared forward.",
    "schedule/stage": "Number of the stage of training, from 1.",
    "schedule/<key>": "Value of a key of the config that follows a schedule, at this step.",
    "parity/mean_abs": "Mean |Δ log p| between engine and trainer on the probe prompts, in nats.",
    "parity/max_abs": "Largest |Δ log p| on the probe prompts, in nats.",
    "parity/kl": "Estimated KL(engine || trainer) on the probe prompts, in nats.",
    "parity/max_ratio": "Largest exp |Δ log p| on the probe prompts.",
    "parity/tokens": "Tokens that the parity probe compared.",
    "media_ablation/blank_logprob_drop": "Log-prob per token of its own answers that the model loses "
    "when all media are gray or silent, in nats; 0 for a blind model.",
    "media_ablation/blank_<kind>_logprob_drop": "The same with only the media of one kind blank.",
    "media_ablation/swap_logprob_drop": "The same with media of other prompts in place of its own.",
    "media_ablation/blank_reward_drop": "Mean reward less that of new answers to gray and silent media.",
    "media_ablation/blank_reward_error": "Its standard error, as if one prompt more had lost all its reward.",
    "loophole/reward": "Mean reward of the completions that the loophole watch measures.",
    "loophole/strict": "Their mean score by the shipped readers of their kind of truth, in [0, 1].",
    "loophole/elsewhere": "What the verifiers of one completion pay them against another prompt's truth.",
    "loophole/margin": "What the same verifiers pay against their own truth, less `loophole/elsewhere`.",
    "loophole/form_share": "Mean share of the reward that came from verifiers which read no truth.",
    "loophole/length_correlation": "Mean correlation of reward and length within a group.",
    "loophole/commonest": "Share of the commonest answer.",
    "loophole/candidates": "Share of answers that list more than the right answer has.",
    "loophole/fallback": "Share of answers that are not in the plain form of the right answer.",
    "loophole/copied": "Share of answers that are a part of the question, where the right one is not.",
    "loophole/repeated": "Share of answers that say the same thing twice.",
    "loophole/flag/<signal>": "1 while the reward rises and `strict`, `margin` or `blind` does not, else 0.",
    "time/data": "Wall seconds spent on drawing prompts and decoding media.",
    "time/generate": "Wall seconds spent on (or waiting for) completions.",
    "time/reward": "Wall seconds spent on verdicts.",
    "time/logprob": "Wall seconds spent on reference and old log-probs.",
    "time/update": "Wall seconds spent on forward, backward and optimizer.",
    "time/sync": "Wall seconds spent on giving the engine the new weights.",
    "time/check": "Wall seconds spent on parity probe, media ablation and loophole watch.",
    "time/evaluate": "Wall seconds of an evaluation, in the line of the step that follows it.",
    "time/checkpoint": "Wall seconds of a checkpoint, in the line of the step that follows it.",
    "ranks/<part>/min": "Least own seconds of a rank in one part of the step, those of `time/<part>` without "
    "what it waited for other ranks; with several ranks.",
    "ranks/<part>/median": "Median over the ranks of these seconds.",
    "ranks/<part>/max": "Most own seconds of a rank in this part.",
    "ranks/<part>/slowest": "Number of the rank with the most; its machine is in `ranks.json`.",
    "ranks/work/min": "Least own seconds of a rank in all parts but `sync` and `checkpoint`.",
    "ranks/work/median": "Median over the ranks of these seconds.",
    "ranks/work/max": "Most own seconds of a rank in all parts but `sync` and `checkpoint`.",
    "ranks/work/slowest": "Number of the rank with the most of these seconds.",
    "ranks/excess": "How much longer the slowest rank worked than the median one, as a share.",
    "ranks/idle/min": "Least share of the step that a rank waited for other ranks.",
    "ranks/idle/median": "Median over the ranks of this share.",
    "ranks/idle/max": "Largest share of the step that a rank waited for other ranks.",
    "ranks/told_bytes": "Bytes that every rank was told by all ranks together in the step: counts, lengths, "
    "scores; neither weights nor gradients.",
    "machine/memory_mb": "Resident memory of the main process after the step, in MiB.",
    "machine/gpu_memory_mb": "Memory of its GPU that is in use, by all processes, in MiB.",
    "machine/gpu_memory_total_mb": "Memory of its GPU, in MiB.",
    "machine/gpu_use": "Share of the last moment in which its GPU computed, where nvidia-ml-py is installed.",
    "time/sft": "Wall seconds of the cold start, in the first line.",
}
"""Names in metrics.jsonl."""

SFT = {
    "step": "Steps of the cold start done when the line was written.",
    "loss": "Cross-entropy per token of the demonstrations, in nats.",
    "entropy": "Mean entropy of the policy at the tokens of the demonstrations, in nats.",
    "grad_norm": "Norm of the gradient before clipping.",
    "lr": "Learning rate.",
    "validation/<metric>": "`sft.stop_metric` on the validation sources, when it was checked.",
    "demonstrations/<metric>": "Mean score that `evaluation.metric` gives the demonstrations themselves, "
    "where it is the score of a verifier that is asked at once.",
}
"""Names in sft.jsonl."""

EVALUATION = {
    "reward": "Mean reward.",
    "answered": "Share of completions with an answer that could be read.",
    "length": "Mean number of tokens of a completion.",
    "share": "Share of completions that obeyed, where they were forced into a mode.",
    "<verifier>": "Mean score of one verifier.",
    "<source>/<metric>": "Any of these, over the prompts of one source.",
    "sampled/<metric>": "Any of these, of completions at temperature 1 instead of the greedy one.",
    "forced/think/<metric>": "Any of these, of greedy answers that were forced to think.",
    "forced/direct/<metric>": "Any of these, of greedy answers that were forced not to think.",
    "forced/gain/<metric>": "Mean difference of the same prompts: forced to think less forced not to.",
}
"""Names in `metrics` and `intervals` of evals/step-N.json, besides `mode/...` as above."""


def of_algorithms() -> dict[str, str]:
    """Return the lines on the metrics that only single recipes have, from the recipes' own files."""
    recipes = plugins.stated("algorithm", "metrics").values()
    return {name: line for metrics in recipes for name, line in metrics.items()}


def of_samplers_and_strategies() -> dict[str, str]:
    """Return the lines on the curves that only single samplers and strategies have."""
    parts = [
        curves
        for kind in ("sampler", "strategy")
        for curves in plugins.stated(kind, "curves").values()
    ]
    return {name: line for curves in parts for name, line in curves.items()}


def describe(name: str) -> str | None:
    """Return the line on a name of metrics.jsonl or sft.jsonl; None if there is none."""
    found = _nearest(SFT | _of_step(), name)
    return found and found[1]


def find(name: str) -> tuple[str, str] | None:
    """Return the glossary's name of a metric, and the line on it; None if there is none.

    It is one of metrics.jsonl, of sft.jsonl (`sft/...`) or of an evaluation (`evaluation/...`), and so
    is what is returned. Example: `source/shapes/reward` is `source/<source>/reward`.
    """
    kind, _, rest = name.partition("/")
    if kind not in ("sft", "evaluation"):
        return _nearest(_of_step(), name)
    found = _nearest(SFT, rest) if kind == "sft" else _of_evaluation(rest)
    return found and (f"{kind}/{found[0]}", found[1])


def _of_evaluation(name: str) -> tuple[str, str] | None:
    """Return the entry of an evaluation's metric; its name begins with the completions that it is of."""
    begins = (key.removesuffix("<metric>") for key in EVALUATION if key.endswith("/<metric>"))
    of = next((begin for begin in begins if "<" not in begin and name.startswith(begin)), "")
    modes = {key: line for key, line in STEP.items() if key.startswith("mode/")}
    found = _nearest({**modes, **EVALUATION}, name.removeprefix(of))
    return found and (f"{of}{found[0]}", found[1])


@functools.cache
def _of_step() -> dict[str, str]:
    return STEP | of_algorithms() | of_samplers_and_strategies()


def _nearest(lines: Mapping[str, str], name: str) -> tuple[str, str] | None:
    """Return the entry of this very name, else the first whose pattern fits."""
    if name in lines:
        return name, lines[name]
    return next(((key, line) for key, line in lines.items() if _matches(key, name)), None)


def _matches(pattern: str, name: str) -> bool:
    pieces = [re.escape(piece) for piece in re.split(r"<\w+>", pattern)]
    return re.fullmatch("[^/]+".join(pieces), name) is not None
