"""The values on the main path, in the order in which the trainer makes them.

    Media -> Sample -> Prompt -> PromptBatch [P] -> Completion -> Rollouts [P, G] -> Verdict -> Rewards
    -> Advantages -> TrainBatch -> StepReport

Invariants: groups go by position (`[P, G]`: P prompts, G completions each); a Sample holds references
to media, never pixels; inside vlmrl a box is xyxy in the unit square of the ORIGINAL media and a time
is in seconds. A card converts once at load, a model family's native space converts once when a
completion is read (its `Frame`), a verifier never sees another space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vlmrl.media_types import Decoded, PilImage

if TYPE_CHECKING:
    import torch

__all__ = [
    "Advantages",
    "Box",
    "Completion",
    "Demo",
    "Encoded",
    "FinishReason",
    "Frame",
    "Media",
    "MediaKind",
    "MicroBatch",
    "Parsed",
    "Point",
    "Polygon",
    "Prompt",
    "PromptBatch",
    "Rewards",
    "Rollouts",
    "Sample",
    "Space",
    "Span",
    "StepReport",
    "Track",
    "TrainBatch",
    "Truth",
    "Verdict",
]

Space = Literal["pixel", "resized", "norm1000", "norm1"]
FinishReason = Literal["stop", "length", "abort"]
MediaKind = Literal["image", "video", "audio"]


# ------------------------------------------------------------------------------------ geometry


@dataclass(frozen=True, slots=True)
class Box:
    """A labelled box, xyxy in the unit square of the original media, x1 < x2 and y1 < y2.

    Example: Box(0.25, 0.1, 0.5, 0.9, label="dog", score=0.8)
    """

    x1: float
    y1: float
    x2: float
    y2: float
    label: str | None = None
    score: float | None = None

    @property
    def xyxy(self) -> tuple[float, float, float, float]:
        """Return (x1, y1, x2, y2), unit square."""
        return (self.x1, self.y1, self.x2, self.y2)


@dataclass(frozen=True, slots=True)
class Point:
    """A point in the unit square of the original media. Example: Point(0.5, 0.25)."""

    x: float
    y: float
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in seconds, start <= end. Example: Span(3.0, 9.5)."""

    start: float
    end: float
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Track:
    """Boxes of one object over time: times in seconds, strictly increasing, one box each.

    Example: Track(times=(0.0, 0.5), boxes=(Box(0, 0, .1, .1), Box(.1, 0, .2, .1)))
    """

    times: tuple[float, ...]
    boxes: tuple[Box, ...]
    label: str | None = None


class Polygon(tuple[tuple[float, float], ...]):
    """The corners (x, y) of an outline in order, in the unit square of the original media.

    Example: Polygon([(0.1, 0.1), (0.4, 0.1), (0.4, 0.5)])
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """The map from the coordinates and times of a text to the original media.

    `width`, `height` are pixels of the original media; `resized_width`, `resized_height` those of
    the image that the model saw; `space` says which of the four conventions the text uses. `duration`
    is in seconds. `answers.geometry` converts.

    Example: Frame(640, 480, space="norm1000")
    """

    width: int | None = None
    height: int | None = None
    space: Space = "pixel"
    resized_width: int | None = None
    resized_height: int | None = None
    duration: float | None = None


# ---------------------------------------------------------------------------------------- data


@dataclass(frozen=True, slots=True)
class Media:
    """A reference to one image, video or audio; exactly one of path, data, url, frames is set.

    `start` and `end` (seconds) select a part of a video or audio.

    Example: Media("image", path="/data/cards/images/IMG_2386.jpg")
    """

    kind: MediaKind
    path: str | None = None
    data: bytes | None = None
    """Encoded file content (PNG, JPEG, MP4, WAV ...)."""
    url: str | None = None
    """Read only if the config allows URLs."""
    frames: tuple[str, ...] | None = None
    """Paths of the frames of a video, in order."""
    fps: float | None = None
    """Frames per second of `frames`."""
    start: float | None = None
    end: float | None = None

    @property
    def name(self) -> str:
        """Return the name of this medium in error messages and reports."""
        return self.path or self.url or (self.frames[0] if self.frames else f"<{self.kind} bytes>")


@dataclass(frozen=True, slots=True)
class Truth:
    """The facts about a sample; only known ones are set. Verifiers say which kinds they need.

    Each kind is one file in `vlmrl/truths/`. The fields are the kinds that many rooms use; the
    value of any other kind is in `more`, and `value(kind)` reads both. Coordinates as everywhere:
    unit square, seconds. `none=True` declares "there is nothing to find": only then does an empty
    prediction score 1.

    Example: Truth(boxes=(Box(.1, .1, .2, .3, label="ace"),), number=1)
    """

    boxes: tuple[Box, ...] | None = None
    points: tuple[Point, ...] | None = None
    spans: tuple[Span, ...] | None = None
    track: Track | None = None
    text: tuple[str, ...] | None = None
    """Accepted texts; the best match counts."""
    number: float | None = None
    choice: str | None = None
    """The right letter, or the right option's text."""
    options: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    masks: tuple[Any, ...] | None = None
    """Polygons (tuples of unit-square x,y pairs) or COCO RLE dictionaries."""
    fields: Mapping[str, Any] | None = None
    """Named values of a JSON answer (enum fields, GUI actions)."""
    none: bool = False
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Values of other kinds by name."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Truth:
        """Make a truth from values by kind."""
        core = {kind: value for kind, value in values.items() if kind in _CORE_KINDS}
        return cls(**core, more={k: v for k, v in values.items() if k not in core})

    def value(self, kind: str) -> Any:
        """Return the value of a kind, None where it is not known (False for `none`)."""
        return self.more.get(kind) if kind not in _CORE_KINDS else getattr(self, kind)

    def stated(self) -> dict[str, Any]:
        """Return the values of all kinds that are set, and `none`, by kind."""
        found = {kind: getattr(self, kind) for kind in _CORE_KINDS} | dict(self.more)
        return {kind: value for kind, value in found.items() if value is not None}


_CORE_KINDS = tuple(name for name in Truth.__dataclass_fields__ if name != "more")


@dataclass(frozen=True, slots=True)
class Demo:
    """A demonstration for the cold start; `prompting.demonstrate` writes it in the model's space.

    Exactly one of `text` (the answer verbatim) and `answer` is set. `answer` is the part of a truth
    that the model is to state, and may be deliberately worse than the sample's.

    Example: Demo(thought="top left", answer=Truth(boxes=(Box(.1, .1, .5, .5),)))
    """

    thought: str = ""
    text: str | None = None
    answer: Truth | None = None
    evidence: tuple[Span, ...] | None = None
    """Spans that prove the answer, for the `<glue>` tag of a template that has one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One question with its media and its truth.

    `parts` interleaves text and media in the order in which the model is shown them.

    Example: Sample(id="bccd-00001-ground", source="bccd", parts=(Media("image", path="a.jpg"),
             "Where is the white blood cell?"), truth=Truth(boxes=(Box(.1, .6, .4, 1.),)))
    """

    id: str
    source: str
    parts: tuple[str | Media, ...]
    truth: Truth
    template: str = "think_answer"
    """Name of the answer template (`templates.TEMPLATES`)."""
    demo: Demo | None = None
    """The answer that a cold start imitates."""
    weight: float = 1.0
    """Multiplies this sample's loss."""
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def media(self) -> tuple[Media, ...]:
        """Return the media among the parts, in order."""
        return tuple(p for p in self.parts if isinstance(p, Media))

    @property
    def text(self) -> str:
        """Return the text among the parts, joined by single spaces."""
        return " ".join(p for p in self.parts if isinstance(p, str))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt in the form that one model family takes, on the CPU.

    `ids` has one id per position after media expansion (the trainer's input); `compact_ids` has ONE
    placeholder per medium (vLLM's input). `tensors` are the media tensors of this prompt alone, e.g.
    `pixel_values` [patches, dim] and `image_grid_thw` [images, 3]. `position_ids` is [3, T] for M-RoPE
    families, [1, T] for others; a completion continues at `next_position`.
    """

    ids: tuple[int, ...]
    compact_ids: tuple[int, ...]
    tensors: Mapping[str, torch.Tensor]
    position_ids: torch.Tensor
    next_position: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sample prepared for the model: text rendered, media decoded and encoded once."""

    sample: Sample
    text: str
    """The rendered chat prompt with placeholders, as a person can read it."""
    encoded: Encoded
    frame: Frame
    """Sizes of the first visual medium and the space in which the model writes coordinates."""
    media: tuple[Decoded, ...] = ()
    """Decoded media for engines that encode for themselves, in prompt order."""
    home: int = 0
    """The rank that holds its media; elsewhere `media` and `encoded.tensors` are empty."""

    @property
    def images(self) -> tuple[Any, ...]:
        """Return the images (PIL images) among the media."""
        return tuple(m for m in self.media if isinstance(m, PilImage))


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """P prompts; each will get G completions. Example: PromptBatch(prompts=(p0, p1))."""

    prompts: tuple[Prompt, ...]
    cursor: Mapping[str, Any] = field(default_factory=dict)
    """The loader's state AFTER this batch: resuming from it neither repeats nor skips a row."""

    def __len__(self) -> int:
        return len(self.prompts)


# ------------------------------------------------------------------------------------ rollouts


@dataclass(frozen=True, slots=True)
class Parsed:
    """A completion's text split by its template (`templates.split`).

    `answer` is None when there is no well-formed answer; `thought` is None when there is no thought
    tag, "" when it is empty. `mode` is "think", "direct" (empty or absent thought) or "none".
    """

    answer: str | None
    thought: str | None
    mode: Literal["think", "direct", "none"]
    well_formed: bool
    """True if the whole text matches the template."""
    tag_share: float
    """Share of the template's tags that occur exactly once, in [0, 1]."""
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Character range of each tag's content."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of one generation. Token ids are those that were sampled, never re-tokenised.

    `logprobs` are the sampling log-probabilities of `token_ids`, one each. The stop token, if any, is
    the last id; `text` leaves it out.
    """

    text: str
    parsed: Parsed
    frame: Frame
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: FinishReason = "stop"
    versions: tuple[tuple[int, int], ...] = ()
    """(policy version, number of tokens) runs; one run unless weights changed in flight."""

    @property
    def answer(self) -> str | None:
        """Return the answer, stripped; None if there is none."""
        return self.parsed.answer


@dataclass(frozen=True, slots=True)
class Rollouts:
    """P prompts with G completions each: `completions[p][g]`."""

    batch: PromptBatch
    completions: tuple[tuple[Completion, ...], ...]
    version: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Return (P, G)."""
        return len(self.completions), len(self.completions[0]) if self.completions else 0


# ------------------------------------------------------------------------------------- rewards


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one verifier on one completion.

    `score` is in the verifier's range, or None if the verifier itself failed (`fault` says why) or
    does not apply to this sample (`applies` is False). A fault is never a wrong answer.

    Example: Verdict(0.62, parts={"iou": 0.62}, answer=(Box(.1, .1, .3, .4),), note="")
    """

    score: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    answer: Any = None
    note: str = ""
    applies: bool = True
    fault: str | None = None

    @classmethod
    def not_applicable(cls, note: str = "") -> Verdict:
        """Return a verdict that leaves the weights to the verifiers that do apply to the sample."""
        return cls(None, note=note, applies=False)

    @classmethod
    def failed(cls, reason: str) -> Verdict:
        """Return a verdict that says that the verifier, not the completion, went wrong."""
        return cls(None, fault=reason)


@dataclass(frozen=True, slots=True)
class Rewards:
    """The scores of the rollouts.

    `total` is [P, G] float32 with 0 where `valid` [P, G] bool is False (a fault, or a completion that is
    masked from the loss). `verdicts[p][g]` maps the verifier's name in the config to its verdict.
    """

    total: torch.Tensor
    valid: torch.Tensor
    verdicts: tuple[tuple[Mapping[str, Verdict], ...], ...]

    def component(self, name: str) -> list[float]:
        """Return all finite scores that one verifier gave, for its curve."""
        rows = (v[name] for group in self.verdicts for v in group if name in v)
        return [v.score for v in rows if v.applies and v.score is not None]


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages [P, G] (0 where not kept) and which rollouts take part in the loss, kept [P, G] bool.

    `weights` [P, G] are sample weights (difficulty, data column) that multiply the loss.
    `metrics` are values that the algorithm logs, e.g. the share of uniform groups.
    """

    values: torch.Tensor
    kept: torch.Tensor
    weights: torch.Tensor
    metrics: Mapping[str, float] = field(default_factory=dict)


# -------------------------------------------------------------------------------------- update


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some groups of one batch, kept together; B completions, longest has T tokens.

    All tensors are right-padded [B, T] unless said otherwise; `prompts` [N], `group` [B] names each
    row's prompt by its index in `prompts`.
    """

    prompts: tuple[Prompt, ...]
    group: torch.Tensor
    token_ids: torch.Tensor
    mask: torch.Tensor
    """bool: True on completion tokens that carry loss."""
    sampling_logprobs: torch.Tensor
    advantages: torch.Tensor
    """[B, T] or [B, 1]."""
    weights: torch.Tensor
    """[B]."""
    old_logprobs: torch.Tensor | None = None
    """The trainer's own log-probs before the update; None means on-policy (use detached new ones)."""
    ref_logprobs: torch.Tensor | None = None

    @property
    def lengths(self) -> torch.Tensor:
        """Return [B]: tokens up to the last one that carries loss; later tokens cannot matter."""
        steps = self.mask.new_ones(self.mask.shape).cumsum(1)
        return (steps * self.mask).amax(1)


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Micro-batches with denominators fixed before the first forward, over ALL ranks.

    `num_tokens` counts loss tokens, `num_rollouts` counts kept completions: the update is the same
    however the batch is split.
    """

    micro: tuple[MicroBatch, ...]
    num_tokens: int
    num_rollouts: int
    max_tokens: int
    """The configured completion limit, for constant-length aggregation (Dr.GRPO)."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One line of metrics.jsonl, flat: `reward/mean`, `source/<name>/box_iou`, `time/generate` ..."""

    step: int
    metrics: Mapping[str, float]
    rollouts: Rollouts
    rewards: Rewards
    advantages: Advantages
