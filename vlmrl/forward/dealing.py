"""Deal the groups of a step to the ranks by their tokens, so that no rank waits long for another.

The ranks tell each other what their groups cost and come to the same plan; of the groups only those
travel that change their home, each from its old home to its new one. Where several ranks share the
tokens of a micro-batch (`sequence_parallel`), such a team is dealt to as one, and all of it gets them.

Five groups by their tokens on two ranks, as they were generated and as they are dealt:

              rank 0                 rank 1                 fullest    useful share
    before    A 900  B 700  C 400    D 300  E 200           2000       1250 / 2000 = 0.625
    after     A 900  C 400           B 700  D 300  E 200    1300       1250 / 1300 = 0.962

Only B travels: no other move, and no exchange of two groups, makes the fuller rank emptier after that.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vlmrl.forward.logprobs import Sharing
from vlmrl.schema import Advantages, Completion, Prompt, Rollouts
from vlmrl.system import distributed

EVEN_ENOUGH = 0.97
"""The useful share from which on nothing is moved: what moves takes time, too."""

Group = tuple[Prompt, tuple[Completion, ...]]


def deal(
    rollouts: Rollouts, advantages: Advantages, updates: int, sharing: Sharing
) -> tuple[Rollouts, dict[str, float]]:
    """Return the rollouts with a home for each prompt by the tokens of its kept completions.

    Each of the step's `updates` is dealt for itself. What a rank gets from another one it has whole, as
    if it had been its own. `update/useful_share`, in (0, 1], is the mean rank's tokens over those of the
    fullest. Alone a process keeps all and measures nothing.
    """
    if distributed.world() == 1:
        return rollouts, {}
    world = distributed.world() // len(distributed.sequence_ranks())
    costs = _gather_costs(rollouts, advantages, sharing)
    old = _teams(rollouts)
    new: list[int] = []
    shares = []
    for number in range(updates):
        part = slice(*(len(costs) * n // updates for n in (number, number + 1)))
        homes = plan_homes(costs[part], old[part], world)
        shares.append(useful_share(costs[part], homes, world))
        new += homes
    teams = [team if cost else None for team, cost in zip(new, costs, strict=True)]
    return _given_to(rollouts, teams), {"update/useful_share": sum(shares) / updates}


def give_to_teams(rollouts: Rollouts) -> Rollouts:
    """Return the rollouts where all ranks that share a prompt's tokens have all of it."""
    return _given_to(rollouts, _teams(rollouts))


def _teams(rollouts: Rollouts) -> list[int]:
    """Return the number of the team of ranks that each prompt's home is in."""
    return [p.home // len(distributed.sequence_ranks()) for p in rollouts.batch.prompts]


def plan_homes(costs: Sequence[int], homes: Sequence[int], world: int) -> list[int]:
    """Return a home for each group, the present one where that is even enough.

    Groups move from the fullest rank to the emptiest, or two change places, as long as the fuller of
    the two ranks gets emptier by it.
    """
    homes = list(homes)
    loads = _loads(costs, homes, world)
    groups: list[list[int]] = [[] for _ in range(world)]
    for n, home in enumerate(homes):
        groups[home].append(n)
    while sum(loads) < EVEN_ENOUGH * world * max(loads):
        full, empty = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[full] - loads[empty]
        movable, taken = groups[full], groups[empty]
        changes: list[tuple[int, int, int | None]] = [(costs[n], n, None) for n in movable]
        changes += [(costs[n] - costs[m], n, m) for n in movable for m in taken]
        better = [change for change in changes if 0 < change[0] < gap]
        if not better:
            break
        # The nearest to half of the gap evens out most; of equals the first.
        moved, n, m = min(better, key=lambda change: abs(2 * change[0] - gap))
        _move(n, full, empty, homes, groups)
        if m is not None:
            _move(m, empty, full, homes, groups)
        loads[full] -= moved
        loads[empty] += moved
    return homes


def _move(n: int, old: int, new: int, homes: list[int], groups: list[list[int]]) -> None:
    """Give a group another home; those of a rank stay in their order."""
    homes[n] = new
    groups[old].remove(n)
    bisect.insort(groups[new], n)


def useful_share(costs: Sequence[int], homes: Sequence[int], world: int) -> float:
    """Return the mean rank's cost over that of the fullest; 1.0 if there is none."""
    loads = _loads(costs, homes, world)
    return sum(loads) / (world * max(loads)) if max(loads) else 1.0


def _loads(costs: Sequence[int], homes: Sequence[int], world: int) -> list[int]:
    loads = [0] * world
    for cost, home in zip(costs, homes, strict=True):
        loads[home] += cost
    return loads


def _gather_costs(rollouts: Rollouts, advantages: Advantages, sharing: Sharing) -> list[int]:
    """Return by group the tokens that an update computes; only its home knows what media take."""
    prompts = rollouts.batch.prompts
    here = [p for p, prompt in enumerate(prompts) if prompt.home == distributed.rank()]
    own = np.array([_cost(rollouts, advantages, p, sharing) for p in here], np.int64)
    costs = [iter(of_rank.tolist()) for (of_rank,) in distributed.gather_arrays([own])]
    return [next(costs[prompt.home]) for prompt in prompts]


def _cost(rollouts: Rollouts, advantages: Advantages, p: int, sharing: Sharing) -> int:
    group = zip(rollouts.completions[p], advantages.kept[p].tolist(), strict=True)
    lengths = [len(s.following_ids) for c, kept in group if kept for s in c.sequences]
    if not lengths:
        return 0
    prompt = len(rollouts.batch.prompts[p].encoded.ids)
    plain, shared = len(lengths) * (prompt + max(lengths)), prompt + sum(lengths)
    return shared if sharing.pays_at(plain / shared) else plain


def _given_to(rollouts: Rollouts, teams: Sequence[int | None]) -> Rollouts:
    """Return the rollouts with each prompt at home in its team; every rank of the team gets missing parts.

    Prompts for None stay where they are: nothing of them is trained on.
    """
    size = len(distributed.sequence_ranks())
    prompts, groups = [*rollouts.batch.prompts], [*rollouts.completions]
    moves: set[tuple[int, int]] = set()
    own: dict[int, dict[int, Group]] = {}
    for p, team in enumerate(teams):
        if team is None:
            continue
        source, ranks = prompts[p].home, range(team * size, (team + 1) * size)
        receivers = [receiver for receiver in ranks if receiver != source]
        moves |= {(source, receiver) for receiver in receivers}
        if source == distributed.rank():
            # Without what only the old home writes: a suffix has the encoded media.
            parcel: Group = (
                prompts[p],
                tuple(
                    replace(c, segments=tuple(replace(s, media=()) for s in c.segments))
                    for c in groups[p]
                ),
            )
            own |= {receiver: own.get(receiver, {}) | {p: parcel} for receiver in receivers}
        prompts[p] = replace(prompts[p], home=source if source in ranks else ranks[0])
    if not moves:
        return rollouts
    for came in distributed.hand_over(sorted(moves), own):
        for p, (prompt, group) in came.items():
            prompts[p], groups[p] = replace(prompt, home=prompts[p].home), group
    batch = replace(rollouts.batch, prompts=tuple(prompts))
    return replace(rollouts, batch=batch, completions=tuple(groups))
