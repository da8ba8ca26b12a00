"""An engine whose policy asks the hostile tool for something else in every rollout."""

from __future__ import annotations

import dataclasses

from helpers.asking_engine import write_call
from helpers.hostile_tools import Misbehave
from vlmrl.engines.base import Capabilities
from vlmrl.engines.hf import Hf, RunningHf

HOWS = sorted(name.removeprefix("do_") for name in dir(Misbehave) if name.startswith("do_"))


class HostileHf(Hf):
    """The engine `hf`; first turns, which are written in groups, ask the tool to misbehave."""

    capabilities = Capabilities(routes=True, every_rank=True)

    def start(self, policy):
        return RunningHostileHf(self, policy)


class RunningHostileHf(RunningHf):
    asked: int = 0

    def generate(self, batch, sampling):
        found = super().generate(batch, sampling)
        if sampling.n == 1:
            return found
        groups = []
        for prompt, group in zip(batch.prompts, found.completions, strict=True):
            said = []
            for _ in group:
                how = HOWS[self.asked % len(HOWS)]
                # Only what never answers has little time: a busy machine is slow with all else.
                name = "hang" if how in ("hang", "spin", "leave") else "misbehave"
                call = {"name": name, "arguments": {"how": how}}
                said.append(write_call(self.policy, prompt, call))
                self.asked += 1
            groups.append(tuple(said))
        return dataclasses.replace(found, completions=tuple(groups))
