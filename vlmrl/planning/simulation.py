"""What large numbers do to a step, simulated from a seed: unequal groups, slow ranks, failures.

Groups go to ranks by the function that a run deals them with (`forward.dealing`). Nothing here knows a
machine: the same arguments give the same numbers everywhere.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from vlmrl.forward.dealing import plan_homes, useful_share

__all__ = ["Failures", "Imbalance", "draw_costs", "simulate_failures", "simulate_imbalance"]

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Useful shares of an update, in (0, 1]: the mean rank's time over that of the one all wait for."""

    undealt: float
    """Each rank trains on what it generated."""
    dealt: float
    """Groups were dealt to the ranks by their tokens."""
    with_stragglers: float
    """Dealt, and some ranks are slower than others."""


@dataclass(frozen=True, slots=True)
class Failures:
    """What failures cost a run."""

    count: int
    lost_steps: int
    """Steps that were done twice."""
    goodput: float
    """Share of the time that went into steps that count and their checkpoints."""


def draw_costs(
    groups: int, group_size: int, mean: float, sigma: float, prompt: int, seed: int
) -> list[int]:
    """Return the tokens of groups whose completions have lognormal lengths of this mean, in tokens.

    `sigma` is the standard deviation of the logarithm, of a group's own mean: some questions take long.
    Lengths within a group vary as much again by half of it.
    """
    rng, spread = random.Random(seed), sigma / 2
    costs = []
    for _ in range(groups):
        level = rng.lognormvariate(-(sigma**2) / 2, sigma)
        lengths = [rng.lognormvariate(-(spread**2) / 2, spread) for _ in range(group_size)]
        costs.append(round(prompt + mean * level * sum(lengths)))
    return costs


def simulate_imbalance(
    ranks: int,
    groups_per_rank: float,
    group_size: int = 8,
    mean: float = 400.0,
    sigma: float = 0.6,
    prompt: int = 0,
    slow_share: float = 0.01,
    slowness: float = 1.2,
    draws: int = 5,
    seed: int = 0,
) -> Imbalance:
    """Return the mean useful shares over some draws of lengths.

    `slow_share` of the ranks takes `slowness` times as long for the same tokens.
    """
    found = []
    groups = round(ranks * groups_per_rank)
    for draw in range(draws):
        costs = draw_costs(groups, group_size, mean, sigma, prompt, seed + draw)
        homes = [number % ranks for number in range(groups)]
        dealt = plan_homes(costs, homes, ranks)
        rng = random.Random(f"slow {seed + draw}")
        factors = [slowness if rng.random() < slow_share else 1.0 for _ in range(ranks)]
        loads = [0.0] * ranks
        for cost, home in zip(costs, dealt, strict=True):
            loads[home] += cost * factors[home]
        worst = sum(costs) / (ranks * max(loads)) if max(loads) else 1.0
        found.append((useful_share(costs, homes, ranks), useful_share(costs, dealt, ranks), worst))
    undealt, dealt_share, slow = (sum(column) / draws for column in zip(*found, strict=True))
    return Imbalance(undealt, dealt_share, slow)


def simulate_failures(
    gpus: int,
    step_s: float,
    save_every: int,
    hours: float = 24 * 54,
    gpu_hours_per_failure: float = 50677.0,
    detect_s: float = 60.0,
    restart_s: float = 300.0,
    seed: int = 0,
) -> Failures:
    """Run a job for `hours` hours: failures at random, each back to the last checkpoint.

    A failure costs its detection, a restart, and all since the last checkpoint. Failures that come while a
    restart is under way begin it anew.
    """
    rng = random.Random(seed)
    mean_s = gpu_hours_per_failure / gpus * HOUR
    end, now, useful, count, lost = hours * HOUR, 0.0, 0.0, 0, 0
    while now < end:
        lasts = min(rng.expovariate(1 / mean_s), end - now)
        failed = now + lasts < end
        steps = math.floor(lasts / step_s)
        kept = steps - steps % save_every if failed else steps
        useful += kept * step_s
        lost += steps - kept
        now += lasts
        if failed:
            count += 1
            down = detect_s + restart_s
            while (next_one := rng.expovariate(1 / mean_s)) < down and now < end:
                count, now = count + 1, now + next_one
            now += down
    return Failures(count, lost, useful / end)
