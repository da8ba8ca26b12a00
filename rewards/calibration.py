"""Judge whether a stated confidence tells right answers from wrong ones."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlmrl import plugins
from vlmrl.schema import AnswerForm, Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier

_STATED = re.compile(r"<confidence>\s{0,9}([0-9]{1,3}(?:\.[0-9]{1,9})?)\s?(%?)\s{0,9}</confidence>")


@dataclass(frozen=True)
class Calibration(Verifier):
    """Right answers pay more the surer they are, wrong ones less; in [0, 1], right never less.

    The confidence p is the last `<confidence>0.9</confidence>` (or `90%`) after the thought;
    without one p = 1.

    Being wrong is paid if it is admitted: the best constant answer of a model that knows nothing, a
    wrong answer with confidence 0, earns 0.5 (`brier`) or 0.4 (`log`), and confidence 0.5 where
    half of the answers are right earns 0.625 (`brier`) or 0.63 (`log`) on average. Combine it with
    a verifier that pays for the answer alone, or watch the part `right`.

    Published sets: Prompt4Trust: `form: prompt4trust`, in which a wrong answer that is admitted pays more
    than an unsure right one.

    Refuses: an empty answer, confidences outside [0, 1] (they count as 1).

    Source: Prompt4Trust, arXiv 2507.09279; Brier 1950.
    Differs: bounded, so that one unreadable completion does not outweigh a group (there ln 1e-12).
    `prompt4trust` times 5 is its reward plus 5 wherever that is above -5.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(text=("cat",))
    >>> stated = "<confidence>0.5</confidence>"
    >>> [judge(Calibration(), f"{animal} {stated}", truth).score for animal in ("cat", "dog")]
    [0.875, 0.375]
    """

    laws: ClassVar[Laws] = Laws(
        truth=("text",), options=({}, {"form": "log"}), loose=({"form": "prompt4trust"},)
    )

    of: str = "exact"
    """The verifier that says what is right."""
    of_options: Mapping[str, Any] = field(default_factory=dict)
    """Its options."""
    right_above: float = 0.5
    """The answer is right if that verifier scores at least this."""
    form: Literal["brier", "log", "prompt4trust"] = "brier"
    """`brier`: right 1 - (1 - p)^2 / 2, wrong (1 - p^2) / 2. `log`: right 1 + ln p / 10, wrong
    (4 + ln(1 - p)) / 10, each logarithm at least -5 (-4): Prompt4Trust's ln p and ln(1 - p) - 1,
    clamped at -5 and mapped from [-5, 0] to the halves of [0, 1]. `prompt4trust`: both mapped from
    [-5, 0] to [0, 1]."""
    _inner: Verifier = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Build the verifier that says what is right."""
        object.__setattr__(self, "_inner", plugins.build("verifier", self.of, self.of_options))

    def answer_form(self) -> AnswerForm:
        """Ask for what the verifier of the answer reads."""
        return self._inner.answer_form()

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Judge the answer, then the confidence."""
        after = completion.parsed.spans.get("think", (0, 0))[1]
        stated = _STATED.findall(completion.text, after)
        confidence = 1.0
        if stated:
            value = float(stated[-1][0]) / (100 if stated[-1][1] else 1)
            confidence = value if value <= 1 else 1.0
        answer = _STATED.sub("", completion.answer or "").strip() or None
        bare = dataclasses.replace(
            completion, parsed=dataclasses.replace(completion.parsed, answer=answer)
        )
        inner = self._inner(bare, sample)
        if inner.score is None or answer is None:
            return inner
        right = inner.score >= self.right_above
        score = self._score(confidence, right)
        parts = {"right": float(right), "confidence": confidence}
        return Verdict(score, parts, inner.answer, inner.note)

    def _score(self, p: float, right: bool) -> float:
        if self.form == "brier":
            return 1 - (1 - p) ** 2 / 2 if right else (1 - p**2) / 2
        if right:
            paid = max(-5.0, math.log(p) if p else -5.0)
        else:
            paid = max(-4.0, math.log(1 - p) if p < 1 else -4.0) - 1
        if self.form == "prompt4trust":
            return 1 + paid / 5
        return 1 + paid / 10 if right else (5 + paid) / 10
