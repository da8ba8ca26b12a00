"""Compare the answer with the image, by CLIP or SigLIP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from scipy.special import softmax

from vlmrl.answers.text import normalised
from vlmrl.named_models.asked import frames_of, image_part, text_part
from vlmrl.schema import Completion, Sample, Seen, Verdict
from vlmrl.schema.media import PilImage, Video
from vlmrl.scoring.model_judge import part_of
from vlmrl.scoring.named_judge import AskingVerifier, finite, read_json
from vlmrl.scoring.verifier import Laws
from vlmrl.system.chat_endpoint import Invalid


@dataclass(frozen=True)
class Similarity(AskingVerifier):
    """How well the answer fits the image, in [0, 1], by a model whose images and texts have one space.

    `by: cosine` is that of the answer's embedding and the image's, from `range` to [0, 1], clamped: from
    0 to 0.4 it is CLIPScore. `by: probability` is zero-shot classification: the softmax over `labels`
    of the model's logits, at the label that the answer names; an answer that names none scores 0.
    `phrase` is what is compared, with the answer (or the label) in place of `{}`.

    Of several images it is the one that the truth is about; of a video the mean over its frames. The
    image is as large as the policy saw it. The model is one of the config's `models`: a `path` of
    CLIP or SigLIP, or the `url` of `vlmrl serve` of one. A model that is down is a fault.

    Refuses: an answer that quotes two labels, a label within a sentence.

    Used by: zero-shot rewards by vision-language models (VLM-RM).

    Source: 2.5 max(cos, 0) of CLIPScore, arXiv 2104.08718, at most 1; rewards: VLM-RM, arXiv 2310.12921.
    Differs: VLM-RM's goal-baseline regularization is not there. A text beyond the model's length (CLIP:
    77 tokens) is cut, as CLIP's own processor does.

    Raises: ValueError: `model` names none of the config's models; a range or labels that make no sense.
    """

    laws: ClassVar[Laws] = Laws(of_models=True)

    by: Literal["cosine", "probability"] = "cosine"
    """What is scored: the cosine, or the probability of the answer among the labels."""
    range: tuple[float, float] = (0.0, 0.4)
    """The cosines whose scores are 0 and 1."""
    labels: tuple[str, ...] = ()
    """What an answer may name (`probability`)."""
    phrase: str = "{}"
    """The text that is compared, such as `a photo of a {}`."""
    part: str = "answer"
    """What is compared: `answer`, `text` (the whole completion) or a tag of the template."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.range[0] < self.range[1]:
            raise ValueError(
                f"range: expected the least cosine, then the greatest, got {self.range}"
            )
        distinct = {normalised(label) for label in self.labels}
        if len(distinct) < len(self.labels) or (len(distinct) < 2) == (self.by == "probability"):
            raise ValueError("labels: expected two or more that differ, with by: probability alone")
        if "{}" not in self.phrase:
            raise ValueError(f"phrase: expected {{}} in it, got {self.phrase!r}")

    @property
    def looks(self) -> bool:
        """Whether it is shown the media."""
        return True

    def __call__(self, completion: Completion, sample: Sample, seen: Seen | None = None) -> Verdict:
        """Ask the model, unless there is nothing to compare."""
        candidate = part_of(completion, self.part)
        if not candidate:
            return Verdict(0.0, note=f"no {self.part}")
        index = sample.main_medium
        if index is None:
            return Verdict.not_applicable("there is no image")
        if seen is None:
            return Verdict.failed("the media are not at hand: expected a run")
        medium = seen.media[index]
        if not isinstance(medium, PilImage | Video):
            return Verdict.not_applicable("there is no image")
        texts = [candidate]
        if self.by == "probability":
            known = [normalised(label) for label in self.labels]
            if normalised(candidate) not in known:
                return Verdict(0.0, answer=candidate, note="the answer is none of the labels")
            number = known.index(normalised(candidate))
            texts = [*self.labels]
        images = [image_part(image) for image in frames_of(medium, seen.frames[index])]
        phrases = [text_part(self.phrase.replace("{}", text)) for text in texts]
        body = {"messages": [{"role": "user", "content": [*images, *phrases]}]}
        tables = self.ask(body, lambda reply: _tables(reply, len(images), len(texts)))
        if isinstance(tables, Verdict):
            return tables
        if self.by == "probability":
            shares = [float(softmax(row)[number]) for row in tables["logits"]]
            return Verdict(sum(shares) / len(shares), answer=candidate)
        cosine = sum(row[0] for row in tables["cosine"]) / len(images)
        low, high = self.range
        score = min(1.0, max(0.0, (cosine - low) / (high - low)))
        return Verdict(score, {"cosine": cosine}, answer=candidate)


def _tables(reply: str, rows: int, columns: int) -> Mapping[str, Sequence[Sequence[float]]]:
    """Read the tables `cosine` and `logits` of [images][texts].

    Raises:
        Invalid: they are not there, of another shape, or not finite.
    """
    payload: Any = read_json(reply)
    try:
        tables = {
            name: [[finite(number) for number in row] for row in payload[name]]
            for name in ("cosine", "logits")
        }
    except (TypeError, KeyError) as error:
        raise Invalid(f"expected tables cosine and logits, got {reply!r:.80}") from error
    if any(len(t) != rows or any(len(row) != columns for row in t) for t in tables.values()):
        raise Invalid(f"expected tables of {rows} images and {columns} texts, got {reply!r:.80}")
    return tables
