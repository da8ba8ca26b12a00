"""Samples prepared for a model: prompts and batches of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlmrl.schema.geometry import Frame
from vlmrl.schema.media import Decoded, PilImage
from vlmrl.schema.samples import Sample, Turn

if TYPE_CHECKING:
    import torch

    from vlmrl.schema.rollouts import Completion


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt in the form that one model family takes, on the CPU.

    `ids` has one id per position after media expansion (the trainer's input); `compact_ids` has ONE
    placeholder per medium (vLLM's input). `tensors` are the media tensors of this prompt alone, e.g.
    `pixel_values` [patches, dim] and `image_grid_thw` [images, 3]. `position_ids` is [3, T] for M-RoPE
    families, [1, T] for others; a completion continues at `next_position`. They are int64, or float32 for a
    family that has fractions (Qwen3-Omni).
    """

    ids: tuple[int, ...]
    compact_ids: tuple[int, ...]
    tensors: Mapping[str, torch.Tensor]
    position_ids: torch.Tensor
    next_position: float


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the policy was shown with a prompt, for verifiers that look at it.

    Example: Seen((image,), (Frame(640, 480, resized_width=320, resized_height=240),))
    """

    media: tuple[Decoded, ...]
    """Decoded media, in prompt order."""
    frames: tuple[Frame, ...]
    """Of each medium its sizes, among them that in which the model saw it, where known."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sample prepared for the model: text rendered, media decoded and encoded once."""

    sample: Sample
    text: str
    """The rendered chat prompt with placeholders, as a person can read it."""
    encoded: Encoded
    frame: Frame
    """Sizes of the sample's `main_medium` and the space in which the model writes coordinates."""
    media: tuple[Decoded, ...] = ()
    """Decoded media for engines that encode for themselves, in prompt order."""
    turns: tuple[Turn, ...] = ()
    """The turns before the question, those of examples written out."""
    home: int = 0
    """The rank that holds its media; elsewhere `media` and `encoded.tensors` are empty."""
    place: tuple[int, int] | None = (0, 0)
    """The number of its training source, and of its row there; None: it is of no row."""
    demonstrated: Completion | None = None
    """The turns of its demonstration and what its calls returned; an answer, if one follows, is not in it."""
    frames: tuple[Frame, ...] = ()
    """The frame of each medium."""

    @property
    def images(self) -> tuple[Any, ...]:
        """Return the images (PIL images) among the media."""
        return tuple(m for m in self.media if isinstance(m, PilImage))

    @property
    def seen(self) -> Seen:
        """Return its media with their frames."""
        return Seen(self.media, self.frames or (self.frame,) * len(self.media))

    def without_media(self) -> Prompt:
        """Return it as ranks that are not its home know it: of media in memory, that they are there."""
        played = self.demonstrated
        return replace(
            self,
            sample=self.sample.without_bytes(),
            turns=tuple(turn.without_bytes() for turn in self.turns),
            media=(),
            frames=(),
            encoded=replace(self.encoded, tensors={}),
            demonstrated=None if played is None else played.without_media(),
        )


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """P prompts; each will get G completions. Example: PromptBatch(prompts=(p0, p1))."""

    prompts: tuple[Prompt, ...]
    cursor: Mapping[str, Any] = field(default_factory=dict)
    """The loader's state AFTER this batch: resuming from it neither repeats nor skips a row."""
    seen: tuple[int, ...] = ()
    """Of a part of a batch: how often the whole has each prompt's sample before that prompt."""

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def repeats(self) -> tuple[int, ...]:
        """Return how often each prompt's sample came before, in the whole batch."""
        if self.seen:
            return self.seen
        before: Counter[tuple[str, str]] = Counter()
        earlier = []
        for prompt in self.prompts:
            name = (prompt.sample.source, prompt.sample.id)
            earlier.append(before[name])
            before[name] += 1
        return tuple(earlier)

    def part(self, numbers: Sequence[int]) -> PromptBatch:
        """Return these prompts, which know their place in the whole."""
        repeats = self.repeats
        prompts = tuple(self.prompts[number] for number in numbers)
        return PromptBatch(prompts, self.cursor, tuple(repeats[number] for number in numbers))
