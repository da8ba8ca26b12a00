"""What follows a prompt, turn by turn: ids and media are appended as they are, never rendered again.

The prompt of the next turn, and what the trainer's forward sees, are the same stretches joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from vlmrl.answers import templates
from vlmrl.models.base import Family
from vlmrl.schema import Call, Completion, Encoded, Experts, FinishReason, Prompt, Segment, Suffix
from vlmrl.schema.media import Decoded


@dataclass(frozen=True, slots=True, eq=False)
class Trail:
    """A rollout while it is being made: its prompt, and the segments so far."""

    family: Family
    processor: Any
    prompt: Prompt
    segments: tuple[Segment, ...] = ()
    encoded: Encoded | None = None
    """All segments since the prompt began anew; None before the first."""
    turns: tuple[int, ...] = ()
    """As in `Suffix`."""
    experts: Experts | None = None
    """Those of the turns so far; None where they are not known of all."""
    chunks: tuple[Suffix, ...] = ()
    """What followed the prompt before it began anew; `encoded` and `turns` are of what follows it now."""

    @property
    def num_turns(self) -> int:
        """Return how many turns the policy had."""
        return sum(segment.of_policy for segment in self.segments)

    @property
    def last_calls(self) -> tuple[Call, ...]:
        """Return the calls of the policy's last turn."""
        return next(segment.calls for segment in reversed(self.segments) if segment.of_policy)

    @property
    def media(self) -> tuple[Decoded, ...]:
        """Return what was observed so far, without the prompt's media."""
        return tuple(medium for segment in self.segments for medium in segment.media)

    @property
    def length(self) -> int:
        """Return how many tokens the prompt and all segments have."""
        return len(self._end.ids)

    @property
    def _end(self) -> Encoded:
        start = self.prompt.encoded
        return start if self.encoded is None else self.family.join(start, self.encoded)

    def write(self, completion: Completion) -> Trail:
        """Append a turn of the policy, of one generation."""
        ids = completion.token_ids
        segment = Segment(
            ids, completion.logprobs, versions=completion.versions, text=completion.text
        )
        experts = completion.experts
        if self.segments and experts is not None:
            experts = None if self.experts is None else self.experts.then(experts)
        longer = self._append(segment, self._encode_ids(ids), self.num_turns)
        return replace(longer, experts=experts)

    def begin_anew(self, ids: tuple[int, ...], text: str) -> Trail:
        """Let the prompt be followed by these ids alone, which the policy wrote before, as `text`."""
        assert self.encoded is not None
        done = (*self.chunks, Suffix(self.encoded, self.turns))
        fresh = replace(self, encoded=None, turns=(), experts=None, chunks=done)
        return fresh._append(Segment(ids, text=text), fresh._encode_ids(ids), -1)

    def encode_observation(self, parts: Sequence[str | Decoded]) -> tuple[Segment, Encoded]:
        """Render and tokenize an observation, once, as it would follow the last turn.

        Raises:
            UserError: the family cannot show it.
        """
        piece = self.family.reply(self.processor, parts)
        text = templates.end_before_thought(piece, self.prompt.sample.template)
        media = tuple(part for part in parts if not isinstance(part, str))
        start = (self.encoded or self.prompt.encoded).next_position
        seen = (*self.prompt.media, *self.media)
        encoded = self.family.extend(self.processor, text, media, start, seen)
        return Segment(encoded.compact_ids, media=media, text=text), encoded

    def observe(self, segment: Segment, encoded: Encoded) -> Trail:
        """Append an observation, as `encode_observation` returned it."""
        return self._append(segment, encoded, -1)

    def note(self, **fields: Any) -> Trail:
        """Change fields of the last segment: the calls that it made, the reward that it got."""
        return replace(self, segments=(*self.segments[:-1], replace(self.segments[-1], **fields)))

    def fork(self) -> Trail:
        """Return the same for another rollout that goes on from here."""
        return replace(self, segments=tuple(replace(s, shared=True) for s in self.segments))

    def next_prompt(self) -> Prompt:
        """Return what the policy is asked with for its next turn."""
        since = self.segments[2 * len(self.chunks) - 1 :] if self.chunks else self.segments
        text = "".join(segment.text for segment in since)
        return replace(
            self.prompt,
            text=self.prompt.text + text,
            encoded=self._end,
            media=(*self.prompt.media, *self.media),
        )

    def finish(self, last: Completion, reason: FinishReason) -> Completion:
        """Return the whole as a completion; `last` is the policy's last turn, as it was generated."""
        if len(self.segments) == 1:
            return replace(last, finish_reason=reason, segments=self.segments)
        assert self.encoded is not None
        own = [segment for segment in self.segments if segment.of_policy]
        return replace(
            last,
            token_ids=tuple(i for segment in own for i in segment.token_ids),
            logprobs=tuple(lp for segment in own for lp in segment.logprobs),
            versions=tuple(run for segment in own for run in segment.versions),
            finish_reason=reason,
            segments=self.segments,
            suffix=Suffix(self.encoded, self.turns),
            experts=self.experts,
        )

    def _encode_ids(self, ids: tuple[int, ...]) -> Encoded:
        """Return ids of text as they would follow the last segment."""
        start = (self.encoded or self.prompt.encoded).next_position
        steps = torch.arange(start, start + len(ids))
        axes = len(self.prompt.encoded.position_ids)
        return Encoded(ids, ids, {}, steps.expand(axes, -1), start + len(ids))

    def _append(self, segment: Segment, encoded: Encoded, turn: int) -> Trail:
        return replace(
            self,
            segments=(*self.segments, segment),
            encoded=encoded if self.encoded is None else self.family.join(self.encoded, encoded),
            turns=(*self.turns, *[turn] * len(encoded.ids)),
        )
