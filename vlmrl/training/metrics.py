"""The numbers of one step that come from its rollouts and rewards, named as metrics.jsonl names them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping

from vlmrl.answers import templates
from vlmrl.schema import Advantages, Completion, Prompt, Rewards, Rollouts
from vlmrl.scoring.calls import KILLED

MODES = ("think", "direct", "none")


def rollout_metrics(
    rollouts: Rollouts, rewards: Rewards, advantages: Advantages
) -> dict[str, float]:
    """Return reward, components, lengths, modes and shares, over the batch and per source.

    Keys: `reward/mean`, `reward/std`, `reward/<verifier>`, `source/<name>/reward`,
    `source/<name>/<verifier>`, `rollout/length`, `rollout/truncated`, `rollout/masked`,
    `rollout/killed_grader`, those of `by_mode`, and what the algorithm adds.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for p, prompt in enumerate(rollouts.batch.prompts):
        source = f"source/{prompt.sample.source}"
        for g, completion in enumerate(rollouts.completions[p]):
            found = scores(rewards, p, g)
            for name, score in found.items():
                values["reward/mean" if name == "reward" else f"reward/{name}"].append(score)
                values[f"{source}/{name}"].append(score)
            length = len(completion.token_ids)
            values["rollout/length"].append(length)
            values["rollout/truncated"].append(completion.finish_reason == "length")
            values["rollout/masked"].append(not rewards.valid[p, g])
            verdicts = rewards.verdicts[p][g].values()
            values["rollout/killed_grader"].append(any(KILLED in v.parts for v in verdicts))
            for key, number in by_mode(prompt, completion, {**found, "length": length}).items():
                values[key].append(number)
    means = {key: statistics.fmean(v) for key, v in values.items()}
    totals = values.get("reward/mean", [])
    spread = {"reward/std": statistics.pstdev(totals)} if totals else {}
    return {**means, **spread, **advantages.metrics}


def scores(rewards: Rewards, p: int, g: int) -> dict[str, float]:
    """Return the scores of completion g of prompt p: `<verifier>`, and `reward` unless it is masked."""
    found = {"reward": float(rewards.total[p, g])} if rewards.valid[p, g] else {}
    for name, verdict in rewards.verdicts[p][g].items():
        if verdict.applies and verdict.score is not None:
            found[name] = verdict.score
    return found


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


def plain_words(history: Mapping[str, float]) -> list[str]:
    """Return a sentence for every number of a step that means trouble."""
    lines = []
    if history.get("rollout/uniform_share", 0.0) >= 0.8:
        mean = history.get("reward/mean", 0.0)
        why = (
            "too easy (or the reward too coarse)"
            if mean > 0.5
            else "too hard (or the reward too strict)"
        )
        share = 100 * history["rollout/uniform_share"]
        lines.append(f"{share:.0f} % of groups have one reward for all: the data is {why}")
    if history.get("rollout/groups_short", 0.0) > 0:
        lines.append(
            f"dynamic sampling ran out: {history['rollout/groups_short']:.0f} groups are missing "
            f"after {history['rollout/batches']:.0f} batches; the step used fewer groups"
        )
    if history.get("rollout/truncated", 0.0) >= 0.5:
        lines.append(
            f"{100 * history['rollout/truncated']:.0f} % of completions were cut at rollout.max_tokens"
        )
    return lines
