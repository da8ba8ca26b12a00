"""Both vLLM engines write rollouts of several turns: parity on each turn, limits, a server that is killed."""

import os
import signal

import pytest

from helpers.driving import Shows
from helpers.small import policy, prompt
from helpers.turns import packed
from helpers.vllm_engine import change, engine_for, served, set_options

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

from vlmrl.engines.base import Engine, Sampling
from vlmrl.interaction.driver import Driver, RunningDriver, TurnLimits
from vlmrl.interaction.tools import AskedCall
from vlmrl.monitoring.run_checks import make_probe_prompts, measure_parity
from vlmrl.schema import PromptBatch

DRAW = Sampling(n=2, max_tokens=6, seed=4)


@pytest.fixture(autouse=True)
def asks_in_every_turn(monkeypatch):
    """A policy of noise neither asks nor comes to an end."""

    def asked(self, row, last, sampling):
        if row.runner is None:
            return (), last.finish_reason
        return (AskedCall("crop"),), self._reached(row, sampling)

    monkeypatch.setattr(RunningDriver, "_asked", asked)


class Started(Engine):
    """An engine that runs already."""

    def __init__(self, running):
        self.running, self.capabilities = running, running.capabilities

    def start(self, policy):
        return self.running

    def require_room(self, *asked):
        self.running.options.require_room(*asked)


def drive(made, engine, runner=None, **limits):
    tools = runner or Shows()
    return Driver(Started(engine), {"noise": lambda _: tools}, TurnLimits(**limits)).start(made)


def batch_of(made):
    return PromptBatch(tuple(prompt(made, number, images=n) for number, n in enumerate((1, 2, 0))))


def gaps(made, rollouts):
    """Largest |Δ log p| of each turn between rollouts and the policy."""
    found = {}
    for micro in packed(rollouts).micro:
        with made.generating():
            ours, _ = made.logprobs(micro)
        off = (ours - micro.sampling_logprobs).abs()
        for turn in micro.turns.unique().tolist():
            largest = off[micro.turns == turn].max().item()
            found[turn] = max(found.get(turn, 0.0), largest)
    return {turn: largest for turn, largest in found.items() if turn >= 0}


def test_every_turn_has_the_trainers_log_probs_before_and_after_a_sync():
    made = policy()
    engine = engine_for(made)
    run = drive(made, engine, max_turns=3)
    for step in range(2):
        found = gaps(made, run.generate(batch_of(made), DRAW))
        assert [*found] == [0, 1, 2]
        assert max(found.values()) < 1e-5
        assert measure_parity(run, made, make_probe_prompts(made, turns=True)).max_abs < 1e-5
        change(made, step)
        engine.sync(made)
    set_options(engine, max_images=3)  # vLLM was started for more
    said = run.generate(batch_of(made), DRAW).completions
    assert [{one.finish_reason for one in group} for group in said] == [
        {"turns"},
        {"budget"},
        {"turns"},
    ]
    engine.close()


@pytest.fixture(scope="module")
def child():
    with served() as pair:
        yield pair


def test_a_server_has_the_trainers_log_probs_in_every_turn(child):
    made, engine = child
    run = drive(made, engine, max_turns=3)
    first = run.generate(batch_of(made), DRAW)
    found = gaps(made, first)
    assert [*found] == [0, 1, 2]
    assert max(found.values()) < 1e-5
    turned = PromptBatch(batch_of(made).prompts[::-1])
    again = run.generate(turned, DRAW).completions[::-1]
    ids = [[one.token_ids for one in group] for group in first.completions]
    assert [[one.token_ids for one in group] for group in again] == ids


@pytest.mark.nightly
def test_a_server_killed_within_a_turn_loses_and_doubles_nothing(child):
    made, engine = child

    class Kills(Shows):
        """Kills the server while one rollout waits for its tool and others write."""

        def run_all(self, turns):
            self.views += [turn.view for turn in turns]
            if len(self.views) == 2:
                os.killpg(engine._servers[0].pid, signal.SIGKILL)
            return Shows().run_all(turns)

    kills, handed = Kills(), []
    run = drive(made, engine, kills, max_turns=2)
    found = run.generate(batch_of(made), DRAW, lambda number, group: handed.append(number))
    assert sorted(handed) == [0, 1, 2]
    assert len(kills.views) == 6  # one for each rollout
    assert [[len(one.turns) for one in group] for group in found.completions] == [[2, 2]] * 3
    assert max(gaps(made, found).values()) < 1e-5
