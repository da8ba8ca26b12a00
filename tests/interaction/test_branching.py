"""Rollouts that share their first turns with others of their group."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from helpers import small
from helpers.copy_engine import CopyEngine, RunningCopy
from helpers.driving import EndingHf, Shows, end_every_turn, ending, shows
from helpers.turns import packed
from vlmrl.assemble.lifecycle import train
from vlmrl.config import parse
from vlmrl.config.exclusions import refuse_parts
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.interaction import driver
from vlmrl.interaction.driver import Branching, Driver, TurnLimits, choose_turns, rise
from vlmrl.interaction.tools import AskedCall, World, WorldStep
from vlmrl.schema import PromptBatch, Segment

GROUP = Sampling(6, 5, seed=3, branch=True)
ALWAYS = Branching(initial=2, chance=1.0, per_entropy=0.0)
NEVER = Branching(initial=2, chance=0.0, per_entropy=0.0)


@pytest.fixture(scope="module")
def made():
    return small.policy()


@pytest.fixture(autouse=True)
def asks_always(monkeypatch):
    asked = (AskedCall("rotate", {"degrees": 90}),)
    monkeypatch.setattr(driver, "parse_calls", lambda text: asked)


class Threads(CopyEngine):
    """Draws what `EndingHf` draws, and hands over group by group."""

    def start(self, policy):
        return RunningThreads(self, policy)


class RunningThreads(RunningCopy):
    def _generate(self, batch, sampling, finished, chance):
        found = ending(self._hf.generate(batch, sampling), self._policy)
        for number, group in enumerate(found.completions):
            if finished is not None:
                finished(number, group)
        return found


def drawn(
    made, branching, numbers=(0,), sampling=GROUP, runner=None, threads=False, source="noise"
):
    """The groups of these prompts, in rollouts of three turns."""
    engine = Threads() if threads else EndingHf()
    tools = runner or Shows()
    limits = TurnLimits(max_turns=3)
    run = Driver(engine, {source: lambda space: tools}, limits, branching).start(made)
    batch = PromptBatch(tuple(small.prompt(made, number) for number in numbers))
    return run.generate(batch, sampling)


def ids(rollouts):
    return [[said.token_ids for said in group] for group in rollouts.completions]


def test_branches_share_exactly_what_comes_before_their_turn(made):
    (group,) = drawn(made, ALWAYS).completions
    assert len(group) == 6
    for branch, (parent, turn) in zip(group[2:], [(0, 1), (1, 1), (0, 2), (1, 2)], strict=True):
        shared = 2 * turn  # segments: a turn and what it was shown
        begun = group[parent].segments[:shared]
        assert branch.segments[:shared] == tuple(replace(s, shared=True) for s in begun)
        ours, theirs = branch.segments[shared], group[parent].segments[shared]
        assert ours.of_policy and ours.token_ids != theirs.token_ids
        assert not any(s.shared for s in (*branch.segments[shared:], *group[parent].segments))
        assert len(branch.turns) == 3
        assert branch.token_ids == tuple(i for one in branch.turns for i in one.token_ids)


def test_those_that_begin_at_the_prompt_are_drawn_as_without_branches(made):
    plain = ids(drawn(made, None, (0, 1)))
    assert ids(drawn(made, NEVER, (0, 1))) == plain
    assert [group[:2] for group in ids(drawn(made, ALWAYS, (0, 1)))] == [g[:2] for g in plain]


def test_an_evaluation_asks_for_independent_rollouts(made):
    apart = replace(GROUP, branch=False)
    assert ids(drawn(made, ALWAYS, sampling=apart)) == ids(drawn(made, None))
    assert len(drawn(made, ALWAYS, sampling=replace(GROUP, n=1)).completions[0]) == 1


def test_branches_know_neither_company_nor_order_nor_threads(made):
    some = Branching(initial=3, chance=0.5, per_entropy=0.2, tokens=3)
    together = ids(drawn(made, some, (0, 1, 2)))
    assert [ids(drawn(made, some, (number,)))[0] for number in (0, 1, 2)] == together
    assert ids(drawn(made, some, (2, 1, 0))) == together[::-1]
    assert ids(drawn(made, some, (0, 1, 2), threads=True)) == together
    assert together != ids(drawn(made, None, (0, 1, 2)))


def test_a_source_without_tools_has_whole_groups_of_one_turn(made):
    (group,) = drawn(made, ALWAYS, source="other").completions
    assert len(group) == 6 and not any(said.segments for said in group)
    assert [said.token_ids for said in group] == [
        said.token_ids for said in drawn(made, None, source="other").completions[0]
    ]


def test_a_branch_goes_on_in_the_world_of_its_turn(made):
    class Counts(Shows):
        """A world that counts the steps that were taken in it."""

        def begin(self, sample, seed):
            return World(sample, seed, bytes([0]))

        def leave(self, world):
            self.left = world

        def run_all(self, turns):
            done = []
            for turn in turns:
                steps = turn.world.state[0] + 1
                world = replace(turn.world, state=bytes([steps]))
                step = WorldStep(world, float(steps), False, {})
                done.append(replace(shows(turn.calls), step=step))
            return done

    (group,) = drawn(made, ALWAYS, runner=Counts()).completions
    assert {tuple(turn.reward for turn in said.turns) for said in group} == {(1.0, 2.0, 3.0)}


def test_one_forward_gives_the_log_probs_of_branches(made):
    rollouts = drawn(made, ALWAYS)
    (micro,) = packed(rollouts).micro
    drawn_here = micro.mask & (micro.token_ids != made.stop_ids[0])  # `EndingHf` wrote the others
    logprobs, _ = made.logprobs(micro)
    assert (logprobs - micro.sampling_logprobs)[drawn_here].abs().max() < 1e-5


def test_a_rise_is_the_surprise_of_the_first_tokens_over_that_of_any_token():
    turns = [Segment((1, 2, 3), (-1.0, -3.0, -9.0)), Segment((1, 2), (-4.0, -6.0))]
    assert rise(turns, 1, 2, 100) == pytest.approx((10 - 4) / math.log(100))


def test_a_place_is_drawn_by_its_own_key_and_used_once():
    sure, unsure = Segment((1,), (-0.1,)), Segment((1,), (-6.0,))
    some = Branching(initial=40, chance=0.2, per_entropy=0.8, tokens=20)
    group = [(sure, unsure if number % 2 else sure, sure) for number in range(40)]
    every = choose_turns(some, group, 80, 400, (3, 5, 0, 0))
    assert len(set(every)) == len(every)
    assert [turn for _, turn in every] == sorted(turn for _, turn in every)
    assert choose_turns(some, group, 3, 400, (3, 5, 0, 0)) == every[:3]
    assert choose_turns(some, group[:7], 80, 400, (3, 5, 0, 0)) == [e for e in every if e[0] < 7]
    assert choose_turns(some, group, 80, 400, (4, 5, 0, 0)) != every
    second = [number % 2 for number, turn in every if turn == 1]
    assert sum(second) > 2 * (len(second) - sum(second))  # where the policy grew unsure


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"rollout": {"group_size": 4, "turns": {"branching": {"initial": 4}}}}, "expected fewer"),
        (
            {
                "rollout": {"group_size": 4, "turns": {"branching": {"initial": 2}}},
                "data": {"train": [{"card": "world", "environment": "openenv"}]},
            },
            "'openenv' of source 'openenv' lives in a server",
        ),
    ],
)
def test_a_config_that_cannot_branch_is_refused(more, wanted):
    stated = {
        "model": {"build": {"family": "qwen2_5_vl"}},
        "data": {"train": [{"card": "shapes", "tools": ["crop"]}]},
        "rewards": [{"verifier": "box_iou"}],
        **more,
    }
    with pytest.raises(UserError, match=wanted):
        refuse_parts(parse(stated))


@pytest.mark.slow
def test_a_run_that_branches_goes_on_from_a_checkpoint_as_if_never_stopped(tmp_path, monkeypatch):
    end_every_turn(monkeypatch)

    def lines(name, *steps):
        for step in steps:
            turns = {"max_turns": 3, "branching": {"initial": 2, "chance": 0.7}}
            stated = {
                "run": {"dir": str(tmp_path / name), "steps": step, "save_every": 1},
                "resume": "auto",
                "model": {"build": {"family": "qwen2_5_vl"}},
                "data": {"train": [{"card": "shapes", "tools": ["rotate"], "instruct": False}]},
                "rollout": {"prompts": 2, "group_size": 4, "max_tokens": 4, "turns": turns},
                "rewards": [{"verifier": "box_iou"}],
                "evaluation": None,
            }
            assert train(parse(stated))["steps"] == step
        rows = (tmp_path / name / "rollouts/step-2.jsonl").read_text().splitlines()
        return [[c["text"] for c in json.loads(row)["completions"]] for row in rows], rows

    straight, rows = lines("straight", 2)
    assert lines("resumed", 1, 2)[0] == straight
    assert [len(group) for group in straight] == [4, 4]
    completions = [c for row in rows for c in json.loads(row)["completions"]]
    shared = [any(s.get("shared") for s in c["segments"]) for c in completions]
    metrics = (tmp_path / "straight/metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(metrics)["rollout/branched"] == pytest.approx(sum(shared) / 8)
