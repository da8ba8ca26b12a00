"""The numbers of one step that come from its rollouts and rewards, named as metrics.jsonl names them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Container, Mapping
from typing import get_args

from vlmrl.answers import geometry, templates
from vlmrl.config import Config
from vlmrl.runs import rank_shards
from vlmrl.runs.rank_shards import numbers_here
from vlmrl.schema import Advantages, CallOutcome, Completion, Prompt, Rewards, Rollouts, Verdict
from vlmrl.scoring.verifier import PAIR_PARTS
from vlmrl.system import distributed

MODES = ("think", "direct", "none")


def rollout_metrics(
    rollouts: Rollouts, rewards: Rewards, advantages: Advantages
) -> dict[str, float]:
    """Return reward, components, lengths, modes and shares, over the batch and per source.

    What the policy did not sample from its very prompt is left out.

    Keys: `reward/mean`, `reward/std`, `reward/<verifier>`, `source/<name>/reward`,
    `source/<name>/<verifier>`, `rollout/length`, `rollout/answered`, `rollout/truncated`,
    `rollout/masked`, `rollout/killed_grader`, those of `turn_metrics`, `world_metrics`,
    `branch_metrics`, `pair_metrics` and `by_mode`, and what the algorithm adds.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for p in numbers_here(rollouts.batch):
        prompt = rollouts.batch.prompts[p]
        source = f"source/{prompt.sample.source}"
        for g, completion in enumerate(rollouts.completions[p]):
            if completion.origin != "policy":
                continue
            numbers = scores(rewards, p, g)
            for name, score in numbers.items():
                values["reward/mean" if name == "reward" else f"reward/{name}"].append(score)
                values[f"{source}/{name}"].append(score)
            length = completion.num_tokens
            values["rollout/length"].append(length)
            values["rollout/answered"].append(completion.answer is not None)
            values["rollout/truncated"].append(completion.truncated)
            values["rollout/masked"].append(not rewards.valid[p, g])
            if completion.segments:
                turns = turn_metrics(completion) | world_metrics(completion)
                for key, number in (turns | crop_metrics(prompt, completion)).items():
                    values[key].append(number)
            verdicts = rewards.verdicts[p][g]
            values["rollout/killed_grader"].append(any(v.is_kill for v in verdicts.values()))
            for key, number in pair_metrics(verdicts).items():
                values[key].append(number)
            for key, number in by_mode(prompt, completion, {**numbers, "length": length}).items():
                values[key].append(number)
    means = rank_shards.average(values) | branch_metrics(rollouts)
    totals = [
        total
        for group, valid, of_group in zip(
            rollouts.completions, rewards.valid.tolist(), rewards.total.tolist(), strict=True
        )
        for completion, known, total in zip(group, valid, of_group, strict=True)
        if known and completion.origin == "policy"
    ]
    spread = {"reward/std": statistics.pstdev(totals)} if totals else {}
    return {**means, **spread, **advantages.metrics}


def scores(rewards: Rewards, p: int, g: int) -> dict[str, float]:
    """Return the scores of completion g of prompt p: `<verifier>`, and `reward` unless it is masked."""
    by_verifier = {"reward": float(rewards.total[p, g])} if rewards.valid[p, g] else {}
    for name, verdict in rewards.verdicts[p][g].items():
        if verdict.applies and verdict.score is not None:
            by_verifier[name] = verdict.score
    return by_verifier


def schedule_metrics(config: Config, changing: Container[str], done: int) -> dict[str, float]:
    """Return what the `changing` keys of the config were in step `done`, where they are numbers."""
    if config.is_constant:
        return {}
    progress = (done - 1) / max(1, config.run.steps)
    values = config.values_at(progress)
    numbers = {key: v for key, v in values.items() if isinstance(v, int | float)}
    scheduled = {f"schedule/{key}": float(v) for key, v in numbers.items() if key in changing}
    if config.stages:
        scheduled["schedule/stage"] = 1.0 + config.stage_at(progress)
    return scheduled


def pair_metrics(verdicts: Mapping[str, Verdict]) -> dict[str, float]:
    """Return `judge/<verifier>/<part>`: of a judge of pairs how its two orders and its places agree."""
    return {
        f"judge/{name}/{part}": verdict.parts[part]
        for name, verdict in verdicts.items()
        for part in PAIR_PARTS
        if part in verdict.parts
    }


def turn_metrics(completion: Completion) -> dict[str, float]:
    """Return `rollout/turns`, whether a tool was used, and the shares of calls by outcome.

    Of a completion in chunks it is `rollout/chunks` alone; empty for another one of a source without tools.
    """
    if completion.chunks:
        return {"rollout/chunks": float(len(completion.chunks))}
    if not completion.segments:
        return {}
    calls = completion.calls
    measured = {"rollout/turns": float(len(completion.turns)), "tool/used": float(bool(calls))}
    # A call that never ran took no time at all; its name may be anything that the policy wrote.
    measured |= {f"tool/{call.name}/seconds": call.seconds for call in calls if call.seconds > 0}
    shares = {f"tool/{o}": sum(c.outcome == o for c in calls) for o in get_args(CallOutcome)}
    return measured | {key: number / max(len(calls), 1) for key, number in shares.items() if calls}


def branch_metrics(rollouts: Rollouts) -> dict[str, float]:
    """Return `rollout/branched`, the share of rollouts that branched off another one; empty if none did."""
    groups = [rollouts.completions[p] for p in numbers_here(rollouts.batch)]
    firsts = [c.segments[0].shared for group in groups for c in group if c.segments]
    acting, branched = map(sum, zip(*distributed.gather((len(firsts), sum(firsts))), strict=True))
    return {"rollout/branched": branched / acting} if branched else {}


def world_metrics(completion: Completion) -> dict[str, float]:
    """Return `world/reward`, summed over the turns, and the last value of what else its world measured.

    Empty for a completion of a source without an environment.
    """
    turns = [turn for turn in completion.turns if turn.reward is not None]
    if not turns:
        return {}
    measured = {"world/reward": sum(turn.reward or 0.0 for turn in turns)}
    for turn in turns:
        measured |= {f"world/{name}": number for name, number in turn.metrics.items()}
    return measured


def crop_metrics(prompt: Prompt, completion: Completion) -> dict[str, float]:
    """Return `tool/crop_iou`: how well what the calls cut out fits the truth's boxes, over the calls.

    A call counts with its best IoU with a true box of the image that it cut from. Empty where no call
    cut something out, or no box is known.
    """
    truth = prompt.sample.truth
    seen = [medium.kind for medium in prompt.sample.media if medium.kind != "audio"]
    number = seen[: truth.image + 1].count("image")
    boxes = [call.box for call in completion.calls if call.image == number]
    overlaps = [max(geometry.iou(b, t) for t in truth.boxes) for b in boxes if b and truth.boxes]
    return {"tool/crop_iou": statistics.fmean(overlaps)} if overlaps else {}


def by_mode(
    prompt: Prompt, completion: Completion, numbers: Mapping[str, float]
) -> dict[str, float]:
    """Return `mode/<mode>/share` for every mode, 1 or 0, and `mode/<mode>/<name>` for its own mode.

    Modes are those of `schema.Parsed`; empty for a prompt whose template has no thought.
    """
    if not templates.template(prompt.sample.template).thinks:
        return {}
    own = completion.parsed.mode
    shares = {f"mode/{mode}/share": float(mode == own) for mode in MODES}
    return shares | {f"mode/{own}/{name}": number for name, number in numbers.items()}
