"""GTR's corrections: thoughts as a corrector would have them take the places of completions.

Source: Wei et al. 2025, "GTR: Guided Thought Reinforcement", arXiv 2503.08525: a corrector looks at the
state and the policy's thought, and the policy imitates what it writes (algorithm `gtr`). Differs: only the
thought of a rollout's first turn is corrected; the corrector is the row's own thought or a function, there
GPT-4o; a correction takes the place of a group's last completion and is used once, there they are collected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.schema import Completion, Prompt, Rewards, Rollouts, Sample
from vlmrl.scoring.scorer import Judged
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, of_origin, put_in

Corrector = Callable[[str, Sample], str | None]
"""From what the policy wrote in its first turn to the thought that it should have had; None: it is right."""


@dataclass(frozen=True)
class Corrections(Strategy):
    """Corrected thoughts to imitate. Example: Corrections(corrector="mine.py:correct")."""

    of_turns: ClassVar[bool] = True
    reads_completions: ClassVar[bool] = True
    curves: ClassVar[Mapping[str, str]] = {
        "corrections/share": "Share of groups with a corrected thought.",
    }

    corrector: str = ""
    """`file.py:function`, given the policy's text and the sample, returns a thought or None. Empty: the
    thought of the row itself (column `thought`), where it has one."""

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Put a corrected thought in the place of the last completion of each group."""
        correct: Corrector = plugins.load("strategy", self.corrector) if self.corrector else stated
        corrected: dict[int, list[tuple[Completion, Judged]]] = {}
        for p, prompt in enumerate(rollouts.batch.prompts):
            thought = correct(rollouts.completions[p][-1].turns[0].text, prompt.sample)
            written = None if thought is None else _write(thought, prompt, run)
            if written is not None:
                corrected[p] = [(written, Judged(0.0, {}))]
        return put_in(rollouts, rewards, corrected, "demonstration")

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return `corrections/share`, of groups with a corrected thought."""
        corrected = of_origin(rollouts, rewards, "demonstration")
        return {"corrections/share": len(corrected) / max(1, len(rollouts.completions))}


def stated(text: str, sample: Sample) -> str | None:
    """Return the thought that the row states; None if it states none."""
    return (sample.demo.thought or None) if sample.demo else None


def _write(thought: str, prompt: Prompt, run: RunParts) -> Completion | None:
    """Return a completion that ends with the thought; None if the template has no thought."""
    layout = templates.template(prompt.sample.template)
    if not layout.thinks:
        return None
    (tag,) = (tag for tag in layout.tags if tag.name == "think")
    text, policy = f"{tag.open}{thought}{tag.close}", run.policy
    tokenize = policy.tokenizer
    ids = tuple(tokenize(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
    return templates.completion(
        text,
        layout,
        prompt.frame,
        token_ids=ids,
        logprobs=(0.0,) * len(ids),
        versions=((policy.version, len(ids)),),
    )
