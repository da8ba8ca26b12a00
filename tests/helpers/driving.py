"""Stand-ins for tools and engines, and completions that end in time."""

from __future__ import annotations

import dataclasses

from PIL import Image

from vlmrl.engines.base import Engine, RunningEngine
from vlmrl.engines.completions import Sampled, make_completions
from vlmrl.engines.hf import Hf, RunningHf
from vlmrl.interaction.tool import Shown, View
from vlmrl.interaction.tools import PolicyTurn, ToolOutcome
from vlmrl.schema import Call, Rollouts


class Scripted(Engine, RunningEngine):
    """Writes one given text after another, turn by turn; remembers what it was asked."""

    def __init__(self, *texts):
        self.texts, self.asked, self.samplings = texts, [], []

    def start(self, policy):
        self.policy = policy
        return self

    def sync(self, policy):
        self.policy = policy

    def generate(self, batch, sampling):
        text = self.texts[len(self.asked)]
        self.asked.append(batch)
        self.samplings.append(sampling)
        ids = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = (*ids, self.policy.stop_ids[0])
        said = Sampled(ids, (-1.0,) * len(ids), "stop", ((0, len(ids)),))
        groups = [[said] * sampling.n for _ in batch.prompts]
        return Rollouts(batch, tuple(make_completions(self.policy, batch.prompts, groups)), 0, 8)


class Shows:
    """A stand-in of a toolbox that answers every call with the same outcome."""

    takes_text = False

    def __init__(self, outcome=None):
        self.outcome, self.views = outcome, []

    def begin(self, sample, seed):
        return None

    def run_all(self, turns):
        self.views += [turn.view for turn in turns]
        return [self.outcome or shows(turn.calls) for turn in turns]

    def close(self):
        self.closed = True


def run_turn(runner, calls, view=View(), text="", world=None):
    """What came of one turn."""
    (outcome,) = runner.run_all([PolicyTurn(calls, view, text, world)])
    return outcome


def shows(calls, size=(56, 56), seconds=0.1):
    image = Image.new("RGB", size, (200, 30, 30))
    made = tuple(Call(call.name, call.arguments, "ok", seconds=seconds) for call in calls)
    return ToolOutcome(("Image 2:", image), (Shown(image),), made)


def ending(rollouts, policy):
    """The rollouts with the end of the turn as the last token of each completion."""
    end = policy.stop_ids[0]

    def ended(said):
        return dataclasses.replace(
            said, token_ids=(*said.token_ids[:-1], end), finish_reason="stop"
        )

    groups = tuple(tuple(map(ended, group)) for group in rollouts.completions)
    return dataclasses.replace(rollouts, completions=groups)


class EndingHf(Hf):
    """Draws for real, and ends each turn in time."""

    def start(self, policy):
        return RunningEndingHf(self, policy)


class RunningEndingHf(RunningHf):
    def generate(self, batch, sampling):
        return ending(super().generate(batch, sampling), self.policy)


def end_every_turn(monkeypatch):
    """Let engine `hf` end each turn that it draws."""
    monkeypatch.setattr(Hf, "start", lambda self, policy: RunningEndingHf(self, policy))
