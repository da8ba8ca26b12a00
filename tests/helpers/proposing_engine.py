"""An engine whose proposals for the strategy `self_play` are scenes, as of a policy that learned to."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from vlmrl.engines.base import Capabilities, Engine, RunningEngine, Sampling
from vlmrl.engines.completions import Sampled, make_completions
from vlmrl.engines.hf import Hf
from vlmrl.policy.policy import Policy
from vlmrl.schema import PromptBatch, Rollouts

PROPOSE = "self_play/propose"
REFUSED = "red circle 9 9 14 14"
SELF_PLAY = [
    f"data.train=[{{name: {PROPOSE}, card: shapes, options: {{task: proposing}}, instruct: false}}, "
    "{name: self_play/solve, card: shapes, instruct: false, weight: 0}]",
    "strategies=[{name: self_play, options: {groups: 2, pool: 5}}]",
]
"""What makes a run one of self-play."""
ENGINE = f"engine.name={__file__}:ProposingEngine"


@dataclass(frozen=True)
class ProposingEngine(Engine):
    """The hf engine, but what it proposes is a scene by chance, or outside of the grid.

    `wrong`: share of proposals that are refused.
    """

    wrong: float = 0.3
    capabilities = Capabilities(every_rank=True)

    def start(self, policy: Any) -> RunningProposing:
        return RunningProposing(self, policy)


class RunningProposing(RunningEngine):
    def __init__(self, options: ProposingEngine, policy: Policy) -> None:
        super().__init__(options.capabilities)
        self._options, self._hf, self._policy = options, Hf().start(policy), policy

    def sync(self, policy: Any) -> None:
        self._hf.sync(policy)

    def generate(self, batch: PromptBatch, sampling: Sampling, finished: Any = None) -> Rollouts:
        made = self._hf.generate(batch, sampling)
        chance = random.Random(sampling.seed)
        groups = list(made.completions)
        for p, prompt in enumerate(batch.prompts):
            if prompt.sample.source == PROPOSE:
                written = [self._write(chance) for _ in groups[p]]
                (groups[p],) = make_completions(self._policy, [prompt], [written])
        return Rollouts(batch, tuple(groups), made.version, made.max_tokens)

    def _write(self, chance: random.Random) -> Sampled:
        x, y, side = chance.randint(0, 6), chance.randint(0, 6), chance.randint(2, 5)
        scene = f"{chance.choice(['red', 'green'])} circle {x} {y} {x + side} {y + side}"
        answer = REFUSED if chance.random() < self._options.wrong else scene
        text = f"<think></think><answer>{answer}</answer>"
        ids = tuple(self._policy.tokenizer(text, add_special_tokens=False).input_ids)
        return Sampled(ids, (-1.0,) * len(ids), "stop", ((self._policy.version, len(ids)),))

    def close(self) -> None:
        self._hf.close()
