"""Say in words why a run learns nothing, and what to try next, from the numbers of its steps."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

WINDOW = 10
"""Steps whose mean says what is wrong with a run now."""
UNIFORM = 0.8
"""Share of uniform groups from which a step counts as one that learns nothing."""
UNREADABLE = 0.02
"""Share of readable answers up to which there are none to learn from."""
BLIND_NATS = 1e-3
"""Log-prob a token that own answers must lose without their media."""
COLLAPSED = 0.9
"""Share of the majorities of a step that are one answer from which the policy has collapsed to it."""
RECENT = 100
"""Steps whose own complaints are counted."""
OFTEN = 0.25
"""Share of them from which a complaint is a cause."""
NO_ANSWERS = (
    "try a cold start (sft), instruct: true, a template that the model follows, or a larger "
    "rollout.max_tokens"
)


def complain(metrics: Mapping[str, float]) -> list[str]:
    """Return a sentence for every number of a step, or of the mean of some steps, that means trouble.

    A reason that explains others stands for them: without answers, rewards are constant and groups
    uniform. A recipe that learns from uniform groups says so by `rollout/silent_share`, the share of
    groups without a gradient, which then counts in place of the uniform ones.
    """
    lines = [*_nothing_to_learn(metrics)]
    if metrics.get("media_ablation/blank_logprob_drop", 1.0) < BLIND_NATS:
        lines.append(
            "blind: blank media cost the model's own answers no log-prob; try questions whose words do "
            "not give the answer away, and see that model.towers has the projector or the tower"
        )
    if metrics.get("rollout/groups_short", 0.0) > 0:
        lines.append(
            f"dynamic sampling ran out: {metrics['rollout/groups_short']:.0f} groups are missing "
            f"after {metrics['rollout/batches']:.0f} batches; the step used fewer groups"
        )
    if (cut := metrics.get("rollout/truncated", 0.0)) >= 0.5:
        lines.append(f"{100 * cut:.0f} % of completions were cut at rollout.max_tokens")
    if (share := metrics.get("majority/one_answer", 0.0)) >= COLLAPSED:
        lines.append(
            f"collapse: {100 * share:.0f} % of the majorities are one answer, which `majority` pays in full "
            "whether it is right or not; stop, or mix in rows with a truth"
        )
    if metrics.get("update/skipped", 0.0) > 0:
        lines.append("a gradient was not finite and was not applied")
    return lines


def complain_of_evaluation(evaluation: Mapping[str, Any], metric: str) -> list[str]:
    """Return a sentence if an evaluation, as in evals/step-N.json, has means that leave completions out."""
    if "with_zeros" not in evaluation:
        return []
    faults, masked = evaluation["faults"].items(), evaluation["masked"].items()
    causes = [f"verifier {name!r} failed on {count}" for name, count in faults]
    causes += [f"{count} ended with {reason!r} and were masked" for reason, count in masked]
    line = f"of {evaluation['num_asked']} held-out completions {', '.join(causes)}: they count in no mean"
    if metric in evaluation["with_zeros"]:
        value, bound = evaluation["metrics"][metric], evaluation["with_zeros"][metric]
        line += f"; with 0 for them {metric} is {bound:.3f} instead of {value:.3f}"
    return [line]


def complain_of_last(steps: Sequence[Mapping[str, float]]) -> list[str]:
    """Return what `complain` says of the mean of a run's last steps; `steps` are lines of metrics.jsonl."""
    values: dict[str, list[float]] = {}
    for step in steps[-WINDOW:]:
        for key, value in step.items():
            if isinstance(value, int | float):
                values.setdefault(key, []).append(value)
    return complain({key: statistics.fmean(numbers) for key, numbers in values.items()})


def complain_of_many(steps: Sequence[Mapping[str, float]]) -> list[str]:
    """Return what at least a quarter of the last steps gave reason to say, in its last words, and how often.

    The mean of steps may hide what the console said of each of them; `steps` are lines of metrics.jsonl.
    """
    recent, by_kind = steps[-RECENT:], dict[str, list[str]]()
    for step in recent:
        numbers = {key: v for key, v in step.items() if isinstance(v, int | float)}
        for line in complain(numbers):
            by_kind.setdefault(kind_of(line), []).append(line)
    return [
        f"in {len(lines)} of {len(recent)} steps, the last of them: {lines[-1]}"
        for lines in by_kind.values()
        if len(lines) >= OFTEN * len(recent)
    ]


def kind_of(line: str) -> str:
    """Return what a complaint has in common with those of other numbers."""
    return re.sub(r"[\d.]+", "#", line.rpartition("the last of them: ")[2])


def _nothing_to_learn(metrics: Mapping[str, float]) -> list[str]:
    """Return the one reason why groups have no gradient, if they have none."""
    answered, mean = metrics.get("rollout/answered", 1.0), metrics.get("reward/mean", 0.0)
    silent = metrics.get("rollout/silent_share")
    uniform = metrics.get("rollout/uniform_share", 0.0) if silent is None else silent
    what = "uniform" if silent is None else "without a gradient"
    if answered <= UNREADABLE:
        return [
            f"no readable answers: {100 * answered:.0f} % of completions have one; {NO_ANSWERS}"
        ]
    if uniform < UNIFORM:
        return []
    groups = (
        f"all groups are {what}" if uniform == 1 else f"{100 * uniform:.0f} % of groups are {what}"
    )
    if metrics.get("reward/std", 1.0) == 0:
        return [
            f"the reward is constant: {groups}, every completion has {mean:.3g}; try `vlmrl verify` on the "
            "verifiers, a reward with more levels, or a higher rollout.temperature"
        ]
    if mean > 0.5:
        return [
            f"too easy: {groups} at a mean reward of {mean:.3g}; try harder rows, a stricter reward, or a "
            "higher rollout.temperature"
        ]
    return [
        f"too hard: {groups} at a mean reward of {mean:.3g}; try easier rows, a cold start (sft), a larger "
        "rollout.group_size, or a reward with partial credit"
    ]
