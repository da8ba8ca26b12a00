"""Say in words why a run learns nothing, and what to try next, from the numbers of its steps."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

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


def complain_of_last(steps: Sequence[Mapping[str, float]]) -> list[str]:
    """Return what `complain` says of the mean of a run's last steps; `steps` are lines of metrics.jsonl."""
    values: dict[str, list[float]] = {}
    for step in steps[-WINDOW:]:
        for key, value in step.items():
            if isinstance(value, int | float):
                values.setdefault(key, []).append(value)
    return complain({key: statistics.fmean(numbers) for key, numbers in values.items()})


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
