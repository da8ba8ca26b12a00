"""Score what a frozen model answers with the completion as a hint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import NamedModel
from vlmrl.named_models.asked import media_parts, open_model
from vlmrl.schema import Completion, Sample, Seen, Verdict
from vlmrl.scoring import model_judge
from vlmrl.scoring.model_judge import read_object
from vlmrl.scoring.verifier import Verifier
from vlmrl.system.chat_endpoint import Invalid, Unavailable
from vlmrl.truths import prompting

_RULES = """{task} {form}
The user's message is one JSON object: the question, and a hint that another model wrote for you. The \
hint may be wrong.
Reply with one JSON object and nothing else: {reply}.{sure}"""
_SURE = """ The confidence is how likely your answer is right: a number from 0 (surely wrong) to 1 (surely \
right)."""


@dataclass(frozen=True)
class Downstream(Verifier):
    """The score of a frozen model's answer: the policy writes a hint, that model answers with it.

    The frozen model is one of the config's `models`, by name. It is asked the sample's question, sees
    the media that the policy saw, and is given the hint; it never sees the truth, the policy's thought
    or a system turn, in which the policy's own task is best stated (`data.system`). Its answer, with the
    confidence that it states, is scored by the verifier `of`, whose parts are kept. A reply that is not
    the JSON object asked for, or none in time, masks the completion and is never a 0. No hint
    scores 0 without asking.

    Used by: Prompt4Trust (`of: calibration`, `of_options: {of: choice, form: prompt4trust}`), RACRO
    (`of: math, confidence: false, media: false`: the hint is a description).

    Refuses: a confidence outside [0, 1], a reply with other keys, prose around the JSON.

    Source: Kriz et al. 2025, "Prompt4Trust", arXiv 2507.09279, section 3.
    Differs: the reply is a JSON object, there a sentence that is searched for; one that cannot be read
    masks, there it earns ln 1e-12.

    Raises: ValueError: `model` names none of the config's models, or the score is below 0 or above 1.
    """

    waits: ClassVar[bool] = True

    model: NamedModel | str = ""
    """One of the config's `models` by name."""
    of: str = "calibration"
    """The verifier that scores its answer."""
    of_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that verifier."""
    confidence: bool = True
    """Whether it is asked for its confidence, which reaches that verifier as `<confidence>`."""
    task: str = "Answer the question."
    """What the frozen model is to do."""
    part: str = "answer"
    """The hint: `answer`, `text` (the whole completion) or a tag of the template."""
    media: bool = True
    """Whether it is shown the prompt's images, videos and audio, as the policy saw them."""
    max_tokens: int = 256
    """Tokens of its reply."""
    max_chars: int = 8000
    """Characters of the hint that it is given."""
    _inner: Verifier = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Build the verifier that scores the answer."""
        if not isinstance(self.model, NamedModel):
            raise ValueError(
                f"expected model to name one of the config's models, got {self.model!r}"
            )
        inner = plugins.build("verifier", self.of, self.of_options)
        if inner.scope != "item" or inner.waits or not 0 <= inner.low < inner.high <= 1:
            raise ValueError(
                f"of: expected a verifier of one completion, in [0, 1], that asks nobody, got {self.of!r}"
            )
        object.__setattr__(self, "_inner", inner)

    @property
    def concurrency(self) -> int:
        """Questions at a time."""
        assert isinstance(self.model, NamedModel)
        return self.model.concurrency

    @property
    def looks(self) -> bool:
        """Whether it is shown the media."""
        return self.media

    def applies_to(self, sample: Sample) -> bool:
        """Return whether its verifier can score an answer to this sample."""
        return self._inner.applies_to(sample)

    def __call__(self, completion: Completion, sample: Sample, seen: Seen | None = None) -> Verdict:
        """Ask the frozen model with the hint, and score what it answers."""
        if not self.applies_to(sample):
            return Verdict.not_applicable(f"the truth has no {self._inner.describe_needs()}")
        hint = model_judge.part_of(completion, self.part)
        if not hint:
            return Verdict(0.0, note=f"no {self.part}")
        if self.media and seen is None and sample.media:
            return Verdict.failed(
                "downstream: the media are not at hand: expected a run, or media: false"
            )
        assert isinstance(self.model, NamedModel)
        try:
            answer, reply = open_model(self.model).ask(
                self._body(hint, completion, sample, seen), self._read
            )
        except (Unavailable, Invalid) as error:
            what = "unavailable" if isinstance(error, Unavailable) else "invalid"
            return Verdict.failed(f"downstream {what}: {error}")
        verdict = self._inner(templates.completion(reply, "none", completion.frame), sample)
        return dataclasses.replace(
            verdict, note=f"answered {answer[:150]!r}. {verdict.note}".strip()
        )

    def _body(
        self, hint: str, completion: Completion, sample: Sample, seen: Seen | None
    ) -> dict[str, Any]:
        form = prompting.instruct(
            "none",
            sample.truth,
            completion.frame.space,
            self._inner.answer_form(),
            sample.num_images,
        )
        keys = {"answer": "your answer"} | ({"confidence": "number"} if self.confidence else {})
        rules = _RULES.format(
            task=self.task, form=form, reply=json.dumps(keys), sure=_SURE if self.confidence else ""
        )
        question = dataclasses.replace(sample, system="").conversation
        data = {"question": question, "hint": hint[: self.max_chars]}
        shown = media_parts(seen.media, seen.frames) if self.media and seen else ()
        return {
            "messages": model_judge.messages(rules, data, shown),
            "temperature": 0.0,
            "max_tokens": self.max_tokens,
        }

    def _read(self, reply: str) -> tuple[str, str]:
        """Return the answer, and the text that the verifier reads.

        Raises:
            Invalid: the reply is not what was asked for.
        """
        names = ("answer", "confidence") if self.confidence else ("answer",)
        fields = read_object(reply, names)
        answer = fields["answer"]
        if not isinstance(answer, str):
            answer = json.dumps(answer)
        if not self.confidence:
            return answer, answer
        sure = fields["confidence"]
        if isinstance(sure, bool) or not isinstance(sure, int | float) or not 0 <= sure <= 1:
            raise Invalid(f"expected a confidence from 0 to 1, got {reply[:80]!r}")
        return answer, f"{answer} <confidence>{sure:.9f}</confidence>"
