"""From a reference to media to a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vlmrl.errors import UserError
from vlmrl.schema.geometry import Box, BoxTrack, Frame, Point, Span
from vlmrl.schema.template import Template

# --------------------------------------------------------------------------------------------------
# A turn of a demonstration that calls a tool.


@dataclass(frozen=True, slots=True)
class DemoTurn:
    """A turn before the answer of a demonstration, which calls a tool. The call is run unless `returned`.

    Example: DemoTurn("crop", {"bbox_2d": Box(.1, .1, .5, .5)}, thought="top left")
    """

    name: str = ""
    """Function of a tool of the source; empty: nothing is called, `text` is all that is done."""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """A JSON object in which a Box and a Point, in the unit square of the image that the argument
    `image` names (1 if there is none), and a Span, in seconds, stand for themselves."""
    thought: str = ""
    """What is thought before the call; empty: nothing is written of it."""
    text: str = ""
    """What is written between the thought and the call."""
    also: tuple[tuple[str, Mapping[str, Any]], ...] = field(default=(), hash=False)
    """Names and arguments of further calls in the same turn."""
    returned: tuple[str | Media, ...] | None = None
    """What the turn was shown, as its data state it; None: its calls are run."""


# --------------------------------------------------------------------------------------------------


MediaKind = Literal["image", "video", "audio"]
Role = Literal["user", "assistant"]


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
    track: BoxTrack | None = None
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
    image: int = 0
    """Which of the sample's images (or videos) its places are in, from 0."""

    @classmethod
    def of(cls, values: Mapping[str, Any], image: int = 0) -> Truth:
        """Make a truth from values by kind."""
        core = {kind: value for kind, value in values.items() if kind in _CORE_KINDS}
        return cls(**core, more={k: v for k, v in values.items() if k not in core}, image=image)

    def value(self, kind: str) -> Any:
        """Return the value of a kind, None where it is not known (False for `none`)."""
        return self.more.get(kind) if kind not in _CORE_KINDS else getattr(self, kind)

    @property
    def has_places(self) -> bool:
        """Return whether it says something of places in an image."""
        places = (self.boxes, self.points, self.masks, self.track)
        return bool(self.more) or any(value is not None for value in places)

    def stated(self) -> dict[str, Any]:
        """Return the values of all kinds that are set, and `none`, by kind."""
        values = {kind: getattr(self, kind) for kind in _CORE_KINDS} | dict(self.more)
        return {kind: value for kind, value in values.items() if value is not None}


_CORE_KINDS = tuple(n for n in Truth.__dataclass_fields__ if n not in ("more", "image"))


@dataclass(frozen=True, slots=True)
class Demo:
    """A demonstration for the cold start; `prompting.demonstrate` writes it in the model's space.

    Exactly one of `text` (the answer verbatim), `answer` and `completion` is set. `answer` is the part
    of a truth that the model is to state, and may be deliberately worse than the sample's.

    Example: Demo(thought="top left", answer=Truth(boxes=(Box(.1, .1, .5, .5),)))
    """

    thought: str = ""
    text: str | None = None
    answer: Truth | None = None
    evidence: tuple[Span, ...] | None = None
    """Spans that prove the answer, for the `<glue>` tag of a template that has one. None: those of
    `answer`."""
    contents: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What stands in other tags of the template, by tag: {"info": "Two cats on a mat."}."""
    completion: str | None = None
    """All that is written, tags and thought included, as a teacher wrote it in the space of `frame`."""
    frame: Frame | None = None
    """Where the places of `completion` are; None: it has none, or they are in every model's space."""
    turns: tuple[DemoTurn, ...] = ()
    """Turns that call tools before the answer; empty: it is answered at once."""
    rejected: str | None = None
    """An answer that is worse than `text`, for a reward model; None: none is stated."""
    margin: float = 0.0
    """By how much a reward model is to score `text` above `rejected`, at least."""

    @property
    def has_answer(self) -> bool:
        """Return whether an answer follows its turns."""
        return any(field is not None for field in (self.text, self.answer, self.completion))

    @property
    def media(self) -> tuple[Media, ...]:
        """Return the media that its turns were shown as their data state it, in order."""
        shown = (part for turn in self.turns for part in turn.returned or ())
        return tuple(part for part in shown if isinstance(part, Media))

    def without_bytes(self) -> Demo:
        """Return it with media that are bytes in memory as empty ones."""
        if not any(medium.data for medium in self.media):
            return self
        turns = (
            turn if turn.returned is None else replace(turn, returned=_without_bytes(turn.returned))
            for turn in self.turns
        )
        return replace(self, turns=tuple(turns))


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How the verifiers of a source read an answer, so that it is asked for and demonstrated like this.

    The default is an answer in the form of the first kind of truth that a sample has.

    Example: AnswerForm(kinds=("number",), key="rating")
    """

    kinds: tuple[str, ...] = ()
    """Kinds of truth that are graded; empty: any."""
    key: str | None = None
    """The answer is the value under this key of a JSON object."""
    confidence: bool = False
    """Each box states a confidence."""
    pointed: bool = False
    """Each box states a point inside of its object."""
    own_lines: bool = False
    """Each mark of the template begins or ends a line."""


MAX_CONFIGURATIONS = 64
"""Most distinct pairs of verifier and options that the rows of one split may name."""


@dataclass(frozen=True, slots=True)
class RowReward:
    """A shipped verifier that a row names for itself; `options` is JSON text, so that it can be compared.

    Example: RowReward("detection", 1.0, '{"threshold": 0.85}')
    """

    verifier: str
    weight: float = 1.0
    options: str = "{}"


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of a judge's rubric, the config's or a row's own.

    Example: Criterion("seen", "All that it says of the image can be seen there.", weight=3.0)
    """

    name: str
    text: str
    weight: float = 1.0
    """Below 0: what the text says is a fault, and costs."""
    veto: bool = False
    """Below half of the scale it makes the whole score 0."""
    max_score: float = 1.0
    """In (0, 1]: what is above it counts as this much, so that excelling here makes up for no other."""


def check_criteria(criteria: Sequence[Criterion]) -> None:
    """Refuse, with a ValueError, names that are not unique, no weight above 0, a limit outside (0, 1]."""
    names = {c.name for c in criteria}
    if len(names) < len(criteria) or "reason" in names:
        raise ValueError("each criterion has a name of its own, other than 'reason'")
    if criteria and not any(c.weight > 0 for c in criteria):
        raise ValueError("no criterion of the rubric has a weight above 0")
    for c in criteria:
        if not 0 < c.max_score <= 1:
            raise ValueError(
                f"criterion {c.name!r}: expected a max_score above 0 and at most 1, got {c.max_score:g}"
            )


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the conversation before the question; `parts` are as those of a sample.

    Example: Turn("user", (Media("image", path="a.jpg"), "What is this?"))
    """

    role: Role
    parts: tuple[str | Media, ...]

    @property
    def images(self) -> tuple[int, ...]:
        """Return the places of images and videos among the media."""
        return tuple(i for i, medium in enumerate(self.media) if medium.kind != "audio")

    @property
    def media(self) -> tuple[Media, ...]:
        """Return the media among the parts, in order."""
        return tuple([p for p in self.parts if isinstance(p, Media)])

    @property
    def text(self) -> str:
        """Return the text among the parts, joined by single spaces."""
        return " ".join(p for p in self.parts if isinstance(p, str))

    def without_bytes(self) -> Turn:
        """Return it with media that are bytes in memory as empty ones."""
        return replace(self, parts=_without_bytes(self.parts))

    def without_media(self) -> Turn:
        """Return its texts alone."""
        return replace(self, parts=_texts(self.parts))


@dataclass(frozen=True, slots=True)
class Sample:
    """One question with its media and its truth.

    `parts` interleaves text and media in the order in which the model is shown them. They are the
    last turn of the prompt, a user's; before it come `system`, `examples` and `history`, if any.

    Example: Sample(id="bccd-00001-ground", source="bccd", parts=(Media("image", path="a.jpg"),
             "Where is the white blood cell?"), truth=Truth(boxes=(Box(.1, .6, .4, 1.),)))
    """

    id: str
    source: str
    parts: tuple[str | Media, ...]
    truth: Truth
    template: str | Template = "think_answer"
    """Name of the answer template (`templates.TEMPLATES`), or one of the user's own."""
    demo: Demo | None = None
    """The answer that a cold start imitates."""
    weight: float = 1.0
    """Multiplies this sample's loss."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    form: AnswerForm = AnswerForm()
    """How the verifiers of its source read an answer."""
    system: str = ""
    """Text of the system turn; empty: none of ours (a chat template may have its own)."""
    history: tuple[Turn, ...] = ()
    """Earlier turns of this conversation."""
    examples: tuple[Sample, ...] = ()
    """Solved samples shown first (few-shot); their demonstrations become the assistant's turns."""
    rewards: tuple[RowReward, ...] = ()
    """Its own verifiers; empty: those of its source."""
    rubric: tuple[Criterion, ...] = ()
    """Its own criteria for a judge; empty: those of the config."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The functions that its prompt offers, in OpenAI's form."""

    @property
    def media(self) -> tuple[Media, ...]:
        """Return all media of the prompt, in order: of the examples, the history and the question."""
        media = [m for example in self.examples for m in example.media]
        for turn in self.turns:
            media += turn.media
        return tuple(media)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Return the turns of this conversation: the history, then the question."""
        return (*self.history, Turn("user", self.parts))

    @property
    def main_medium(self) -> int | None:
        """Return the place in `media` of the medium that coordinates refer to, None if there is none.

        It is in the latest turn that has any, an example's never is: the image or video that the
        truth names (`Truth.image`), and where the truth has no places the first medium.

        Raises:
            UserError: the turn has no such image.
        """
        index = len(self.media)
        for turn in reversed(self.turns):
            shown = len(turn.media)
            index -= shown
            if shown:
                return index + self._main_place(turn)
        return self._main_place(Turn("user", ())) if self.truth.image else None

    def without_bytes(self) -> Sample:
        """Return it with media that are bytes in memory as empty ones, those of its examples too."""
        return replace(
            self,
            parts=_without_bytes(self.parts),
            demo=None if self.demo is None else self.demo.without_bytes(),
            history=tuple(turn.without_bytes() for turn in self.history),
            examples=tuple(example.without_bytes() for example in self.examples),
        )

    def without_media(self) -> Sample:
        """Return what its prompt says in words: no media in the question, the history and the examples."""
        return replace(
            self,
            parts=_texts(self.parts),
            truth=replace(self.truth, image=0),
            history=tuple(turn.without_media() for turn in self.history),
            examples=tuple(example.without_media() for example in self.examples),
        )

    def _main_place(self, turn: Turn) -> int:
        shown = turn.images
        if self.truth.image == 0 and not (self.truth.has_places and shown):
            return 0
        if self.truth.image >= len(shown):
            raise UserError(
                f"truth.image: expected an index below {len(shown)}, the number of images and "
                f"videos, got {self.truth.image}"
            )
        return shown[self.truth.image]

    @property
    def num_images(self) -> int:
        """Return how many images and videos coordinates could refer to."""
        return next((len(turn.images) for turn in reversed(self.turns) if turn.media), 0)

    @property
    def text(self) -> str:
        """Return the text of the question, its parts joined by single spaces."""
        return " ".join(p for p in self.parts if isinstance(p, str))

    @property
    def conversation(self) -> str:
        """Return `text`; with a system turn or a history a line for each turn, its role before it."""
        if not self.system and not self.history:
            return self.text
        lines = [f"system: {self.system}"] if self.system else []
        return "\n".join([*lines, *(f"{turn.role}: {turn.text}" for turn in self.turns)])


def _without_bytes(parts: tuple[str | Media, ...]) -> tuple[str | Media, ...]:
    return tuple(replace(p, data=b"") if isinstance(p, Media) and p.data else p for p in parts)


def _texts(parts: tuple[str | Media, ...]) -> tuple[str, ...]:
    return tuple([part for part in parts if isinstance(part, str)])
