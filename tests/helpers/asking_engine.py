"""Engines that ask for a crop, or move in a world, in some of their turns, as a trained policy would."""

from __future__ import annotations

import dataclasses
import json
import math

from helpers.copy_engine import DrainedEngine, RunningDrained
from vlmrl.engines.base import Capabilities
from vlmrl.engines.completions import Sampled, make_completions
from vlmrl.engines.hf import Hf, RunningHf
from vlmrl.schema import Completion, Prompt, Rollouts


def asking(rollouts: Rollouts, policy) -> Rollouts:
    """The rollouts with a call in place of some completions; what was drawn decides which and where."""
    pairs = zip(rollouts.batch.prompts, rollouts.completions, strict=True)
    groups = tuple(tuple(_ask(policy, p, said) for said in group) for p, group in pairs)
    return dataclasses.replace(rollouts, completions=groups)


def _ask(policy, prompt: Prompt, said: Completion) -> Completion:
    chance = sum(said.token_ids)
    if chance % 3 == 0:
        return said
    x, y = chance % 20, chance % 17
    if prompt.sample.source == "grid_world" and chance % 2:
        way = ("up", "down", "left", "right")[chance // 2 % 4]
        return write_call(policy, prompt, {"name": "move", "arguments": {"direction": way}})
    call = {"name": "crop", "arguments": {"bbox_2d": [x, y, x + 28, y + 28]}}
    return write_call(policy, prompt, call)


def write_call(policy, prompt: Prompt, call) -> Completion:
    """A turn that makes a call and ends; its log-probs are those of even chances."""
    text = f"<tool_call>{json.dumps(call)}</tool_call>"
    ids = (*policy.tokenizer(text, add_special_tokens=False)["input_ids"], policy.stop_ids[0])
    even = -math.log(len(policy.tokenizer))
    written = Sampled(ids, (even,) * len(ids), "stop", ((policy.version, len(ids)),))
    ((made,),) = make_completions(policy, [prompt], [[written]])
    return made


class AskingHf(Hf):
    """The engine `hf`, asking."""

    capabilities = Capabilities(routes=True, every_rank=True)

    def start(self, policy):
        return RunningAskingHf(self, policy)


class RunningAskingHf(RunningHf):
    def generate(self, batch, sampling):
        return asking(super().generate(batch, sampling), self.policy)


class AskingAhead(DrainedEngine):
    """Generates ahead of the trainer, asking."""

    def start(self, policy):
        return RunningAskingAhead(self, policy)


class RunningAskingAhead(RunningDrained):
    def _generate(self, batch, sampling, finished, chance):
        groups = {}

        def ask(number, group):
            one = dataclasses.replace(batch, prompts=(batch.prompts[number],), seen=())
            groups[number] = asking(Rollouts(one, (group,)), self._policy).completions[0]
            if finished is not None:
                finished(number, groups[number])

        found = super()._generate(batch, sampling, ask, chance)
        whole = tuple(groups[number] for number in range(len(batch)))
        return dataclasses.replace(found, completions=whole)
