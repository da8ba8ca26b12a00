"""The driver around an engine of several threads: draws, slow tools, ends."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers import small
from helpers.copy_engine import CopyEngine, RunningCopy
from helpers.driving import EndingHf, Shows, ending, shows
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.interaction import driver
from vlmrl.interaction.driver import Driver, TurnLimits
from vlmrl.interaction.tools import AskedCall
from vlmrl.schema import PromptBatch


@pytest.fixture(scope="module")
def made():
    return small.policy()


@pytest.fixture(autouse=True)
def asks_always(monkeypatch):
    monkeypatch.setattr(driver, "parse_calls", lambda text: (AskedCall("crop"),))


class Keyed(CopyEngine):
    """Draws what `Hf` draws, and ends each turn in time."""

    def start(self, policy):
        return RunningKeyed(self, policy)


class RunningKeyed(RunningCopy):
    def _generate(self, batch, sampling, finished, chance):
        with self._lock:
            if self._ended:
                raise UserError("generation was aborted")
            found = ending(self._hf.generate(batch, sampling), self._policy)
        for number, group in enumerate(found.completions):
            if finished is not None:
                finished(number, group)
        return found


def start(made, engine, runner):
    return Driver(engine, {"noise": lambda space: runner}, TurnLimits(max_turns=3)).start(made)


def test_what_is_drawn_is_what_the_plain_driver_draws(made):
    batch = PromptBatch(tuple(small.prompt(made, number) for number in (0, 1, 0)))
    handed = {}
    plain = start(made, EndingHf(), Shows()).generate(batch, Sampling(2, 5, seed=3))
    run = start(made, Keyed(), Shows())
    found = run.generate(batch, Sampling(2, 5, seed=3), handed.__setitem__)
    ids = [[said.token_ids for said in group] for group in plain.completions]
    assert [[said.token_ids for said in group] for group in found.completions] == ids
    assert [handed[number] for number in range(3)] == list(found.completions)
    assert {len(said.turns) for group in found.completions for said in group} == {3}
    assert found.batch is batch


def test_a_slow_tool_holds_up_its_own_rollout_only(made):
    """One waits for the other group to be handed over, which would never be if it held that up."""
    other_is_done = threading.Event()

    class Slow(Shows):
        def run_all(self, turns):
            (turn,) = turns
            if turn.view.shown[0].medium.size == slow.media[0].size:
                assert other_is_done.wait(60)
            return [shows(turn.calls)]

    slow, quick = small.prompt(made, 0), small.prompt(made, 1)
    assert slow.media[0].size != quick.media[0].size
    run = start(made, Keyed(), Slow())
    order = []

    def finished(number, group):
        order.append(number)
        if number == 1:
            other_is_done.set()

    run.generate(PromptBatch((slow, quick)), Sampling(2, 4), finished)
    assert order == [1, 0]


def test_the_error_of_one_ends_all(made):
    class Broken(Shows):
        def run_all(self, turns):
            raise UserError("no tools here")

    run = start(made, Keyed(), Broken())
    batch = PromptBatch(tuple(small.prompt(made, number) for number in range(2)))
    with pytest.raises(UserError, match="no tools here"):
        run.generate(batch, Sampling(2, 4))


def test_an_abort_ends_what_waits_for_a_tool(made):
    called, aborted = threading.Event(), threading.Event()

    class Waits(Shows):
        def run_all(self, turns):
            called.set()
            assert aborted.wait(60)
            return super().run_all(turns)

    run = start(made, Keyed(), Waits())
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run.generate, PromptBatch((small.prompt(made),)), Sampling(2, 4))
        assert called.wait(60)
        run.abort()
        aborted.set()
        with pytest.raises(UserError, match="generation was aborted"):
            future.result(60)
