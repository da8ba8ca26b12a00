"""Ask a reward model for the score of the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vlmrl.named_models.asked import text_part, turn_parts
from vlmrl.schema import Completion, Sample, Seen, Verdict
from vlmrl.scoring.model_judge import part_of
from vlmrl.scoring.named_judge import AskingVerifier, finite, read_json
from vlmrl.scoring.verifier import Laws


@dataclass(frozen=True)
class RewardModel(AskingVerifier):
    """A score in [0, 1] from the number of a trained reward model.

    The model is one of the config's `models`: a `path` with a scalar head (a sequence classifier of
    transformers with one label, or a value head such as Skywork-VL-Reward's), or the `url` of `vlmrl
    serve` of one. It is shown the conversation as the policy saw it, with the candidate as the
    assistant's turn. Its number s becomes 1 / (1 + exp(-(s - center) / scale)), or, with
    `mapping: linear`, (s - lo) / (hi - lo) of `range`, clamped.

    A model that is down, or whose number is not finite, is a fault. No answer scores 0 without asking.

    Used by: Skywork-VL-Reward (arXiv 2505.07263), sequence classifiers such as Skywork-Reward.

    Refuses: special tokens in the candidate, which cannot end its turn; media where the model reads
    text alone.

    Source: the number at the last token of the chat template without a generation prompt.
    Differs: the published use compares raw numbers; here they are mapped to [0, 1].

    Raises: ValueError: `model` names none of the config's models; a range or scale that is none.
    """

    laws: ClassVar[Laws] = Laws(of_models=True)

    mapping: Literal["sigmoid", "linear"] = "sigmoid"
    """How the number becomes a score."""
    center: float = 0.0
    """The number whose score is 0.5 (`sigmoid`)."""
    scale: float = 1.0
    """How far from it the score is 0.73 (`sigmoid`)."""
    range: tuple[float, float] = (-10.0, 10.0)
    """The numbers whose scores are 0 and 1 (`linear`)."""
    media: bool = True
    """Whether the model is shown the images of the prompt; false for one that reads text alone."""
    part: str = "answer"
    """What is rated: `answer`, `text` (the whole completion) or a tag of the template."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scale > 0 or not self.range[0] < self.range[1]:
            raise ValueError(
                "expected scale above 0 and a range from its least to its greatest number"
            )

    @property
    def looks(self) -> bool:
        """Whether it is shown the media."""
        return self.media

    def __call__(self, completion: Completion, sample: Sample, seen: Seen | None = None) -> Verdict:
        """Ask the model, unless there is nothing to rate."""
        candidate = part_of(completion, self.part)
        if not candidate:
            return Verdict(0.0, note=f"no {self.part}")
        if self.media and sample.media and seen is None:
            return Verdict.failed("the media are not at hand: expected a run, or media: false")
        body = {"messages": self._messages(candidate, sample, seen)}
        value = self.ask(body, lambda reply: finite(read_json(reply)))
        if isinstance(value, Verdict):
            return value
        return Verdict(self._score(value), {"raw": value}, answer=completion.answer)

    def _messages(self, candidate: str, sample: Sample, seen: Seen | None) -> list[dict[str, Any]]:
        count = sum(len(turn.media) for turn in sample.turns)  # an example's come before them
        shown = [*zip(seen.media, seen.frames, strict=True)][-count:] if seen and count else []
        left = iter(shown)
        messages: list[dict[str, Any]] = []
        if sample.system:
            messages.append({"role": "system", "content": sample.system})
        for turn in sample.turns:
            parts = turn.parts if self.media else [p for p in turn.parts if isinstance(p, str)]
            messages.append({"role": turn.role, "content": turn_parts(parts, left)})
        return [*messages, {"role": "assistant", "content": [text_part(candidate)]}]

    def _score(self, number: float) -> float:
        if self.mapping == "linear":
            low, high = self.range
            return min(1.0, max(0.0, (number - low) / (high - low)))
        return 0.5 * (1.0 + math.tanh((number - self.center) / (2 * self.scale)))
