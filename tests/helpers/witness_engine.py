"""An engine that describes what it is shown by a script, and answers from words alone as its reader would."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vlmrl.engines.base import Capabilities, Engine, RunningEngine, Sampling
from vlmrl.engines.completions import Sampled, make_completions
from vlmrl.policy.policy import Policy
from vlmrl.schema import Prompt, PromptBatch, Rollouts

ENGINE = f"engine.name={__file__}:WitnessEngine"
WITNESSES = [
    "data.train=[{card: shapes, options: {task: question}, template: caption_think_answer, "
    "instruct: false, limit: 12}]",
    "rewards=[exact, {verifier: format, weight: 0.1}]",
    "rollout.group_size=5",
    ENGINE,
]
"""What makes a run one of descriptions by the script."""
SCRIPT = (
    "<info>It is {right}.</info><think>a</think><answer>{right}</answer>",
    "<info>A shape.</info><think>a</think><answer>{right}</answer>",
    "<info><answer>{right}</answer></info><think>a</think><answer>{right}</answer>",
    "<think>a</think><answer>{right}</answer>",
    "<info>It is {right}.</info><think>a</think><answer>purple</answer>",
)
"""What the completions of a group are, in turn; `{right}` is the right answer."""
SUFFICES = (0, 4)
"""Those whose description leads to the right answer."""
BLIND = "red"
"""What is answered without media and without a description."""


@dataclass(frozen=True)
class WitnessEngine(Engine):
    """Writes `SCRIPT` for prompts with media; from a description it reads "It is ...", else it is `BLIND`."""

    capabilities = Capabilities(every_rank=True, placed=True)

    def start(self, policy: Any) -> RunningWitness:
        return RunningWitness(self, policy)


class RunningWitness(RunningEngine):
    """What it was asked."""

    def __init__(self, options: WitnessEngine, policy: Policy) -> None:
        super().__init__(options.capabilities)
        self._policy = policy
        self.asked: list[Prompt] = []
        """All prompts without media that it was given."""

    def sync(self, policy: Any) -> None:
        self._policy = policy

    def generate(self, batch: PromptBatch, sampling: Sampling, finished: Any = None) -> Rollouts:
        self.asked += [prompt for prompt in batch.prompts if not prompt.sample.media]
        groups = [[self._write(p, g) for g in range(sampling.n)] for p in batch.prompts]
        made = make_completions(self._policy, batch.prompts, groups)
        return Rollouts(batch, tuple(made), self._policy.version, sampling.max_tokens)

    def _write(self, prompt: Prompt, number: int) -> Sampled:
        right = (prompt.sample.truth.text or ("",))[0]
        if prompt.sample.media:
            text = SCRIPT[number % len(SCRIPT)].replace("{right}", right)
        elif "Description: " in prompt.text:
            read = re.search(r"Description: It is (\w+)\.", prompt.text)
            text = f"<answer>{read[1] if read else 'nothing'}</answer>"
        else:
            text = f"<info>a</info><think>a</think><answer>{BLIND}</answer>"
        ids = tuple(self._policy.tokenizer(text, add_special_tokens=False).input_ids)
        return Sampled(ids, (-1.0,) * len(ids), "stop", ((self._policy.version, len(ids)),))
