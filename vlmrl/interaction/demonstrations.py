"""Demonstrations of several turns: their calls are run, so that what they show is what a policy will see.

A call that fails or is refused is no demonstration of anything: its row is bad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.interaction.calls import parse_calls
from vlmrl.interaction.driver import first_view
from vlmrl.interaction.tools import PolicyTurn, Runner
from vlmrl.interaction.trail import Trail
from vlmrl.media_types import Decoded
from vlmrl.models.base import Family
from vlmrl.models.parts.tool_list import space_in_calls
from vlmrl.schema import Box, Completion, Demo, DemoTurn, Frame, Point, Prompt, Sample
from vlmrl.tools import Refused, View
from vlmrl.truths import prompting

__all__ = ["Writer", "demonstrating", "is_whole", "join_answer", "play"]

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Marks of a turn that calls a tool."""


@dataclass(frozen=True)
class Writer:
    """What demonstrations are encoded for: a family, and a processor of the thread in which it is done."""

    family: Family
    processor: Any

    @property
    def end(self) -> int:
        """Return the id that ends a turn."""
        return self.family.stop_token_ids(self.processor)[0]

    @cached_property
    def _special(self) -> set[int]:
        """Return the ids of special tokens."""
        tokenizer = self.processor.tokenizer
        added = tokenizer.added_tokens_decoder
        return {i for i, token in added.items() if token.special} | {*tokenizer.all_special_ids}

    @cached_property
    def call_space(self) -> str:
        """Return what the chat template writes between the marks of a call and the call."""
        return space_in_calls(self.processor)

    def encode(self, sample: Sample, text: str, tags: Sequence[str]) -> tuple[int, ...]:
        """Return the ids of a demonstrated turn, its end included.

        Special tokens that its data spell out are ordinary text; those of the `tags` stay tokens.

        Raises:
            UserError: the text holds a media token.
        """
        tokenizer = self.processor.tokenizer
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        if self._special.intersection(ids) - {tokenizer.convert_tokens_to_ids(tag) for tag in tags}:
            ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if media := {*self.family.media_token_ids(self.processor)}.intersection(ids):
            token = tokenizer.convert_ids_to_tokens(min(media))
            raise UserError(
                f"sft: the demonstration of sample {sample.id!r} of source {sample.source!r} contains "
                f"the media token {token}"
            )
        return (*ids, self.end)


def demonstrating(
    make: Callable[[Sample, list[Decoded]], Prompt],
    writer: Writer,
    runners: Mapping[str, Runner],
) -> Callable[[Sample, list[Decoded]], Prompt]:
    """Return `make` with the turns of the sample's demonstration played; `runners` are by source."""

    def made(sample: Sample, media: list[Decoded]) -> Prompt:
        prompt = make(sample, media)
        if prompt.sample.demo is None or not prompt.sample.demo.turns:
            return prompt
        if sample.source not in runners:
            raise UserError(
                f"sample {sample.id!r}: its demonstration calls {prompt.sample.demo.turns[0].name!r}, but "
                f"source {sample.source!r} of the cold start names no `tools`"
            )
        return replace(prompt, demonstrated=play(writer, prompt, runners[sample.source]))

    return made


def play(writer: Writer, prompt: Prompt, runner: Runner) -> Completion:
    """Return the calls of a prompt's demonstration and what they returned, without its answer.

    Where it has none, the last call is the end, and what that returned is not shown.

    Raises:
        UserError: a call failed or was refused, or what it returned cannot be shown.
    """
    sample = prompt.sample
    assert sample.demo is not None
    trail = Trail(writer.family, writer.processor, prompt)
    view = first_view(writer.family, writer.processor, prompt)
    world = runner.begin(sample, 0)
    said = None
    try:
        for number, turn in enumerate(sample.demo.turns, start=1):
            where = f"sample {sample.id!r}: call {number} of its demonstration"
            text = prompting.write_call(turn, _frame_of(turn, view, where), writer.call_space)
            ids = writer.encode(sample, text, TAGS)
            said = templates.completion(
                text, sample.template, prompt.frame, token_ids=ids, logprobs=(0.0,) * len(ids)
            )
            (outcome,) = runner.run_all([PolicyTurn(parse_calls(text), view, text, world)])
            if outcome.fault is not None:
                raise UserError(f"{where} failed: {outcome.fault}")
            if wrong := [call.note for call in outcome.calls if call.outcome != "ok"]:
                raise UserError(f"{where} is refused: {wrong[0]}")
            trail = trail.write(said).note(calls=outcome.calls)
            if outcome.step is not None:
                trail, world = trail.note(reward=outcome.step.reward), outcome.step.world
            if number == len(sample.demo.turns) and not _has_answer(sample.demo):
                break
            if outcome.step is not None and outcome.step.done:
                raise UserError(f"{where} ends its world, but more follows")
            trail = trail.observe(*trail.encode_observation(outcome.parts))
            frames = [writer.family.frame(writer.processor, one.medium) for one in outcome.shown]
            view = view.then(outcome.shown, frames)
    finally:
        if world is not None:
            runner.leave(world)
    assert said is not None
    return trail.finish(said, "stop")


def join_answer(writer: Writer, prompt: Prompt, answer: Completion) -> Completion:
    """Return the whole demonstration: the turns that were played, and this answer.

    Where the prompt is not at home, it is without media, as what was played is.
    """
    played = prompt.demonstrated
    if played is None:
        return answer
    known = () if played.suffix is None else (played.suffix.encoded, played.suffix.turns)
    trail = Trail(writer.family, writer.processor, prompt, played.segments, *known)
    whole = trail.write(answer).finish(answer, "stop")
    return whole if known else whole.without_media()


def is_whole(prompt: Prompt) -> bool:
    """Return whether the last call of a prompt's demonstration ends it: no answer follows."""
    demo = prompt.sample.demo
    return prompt.demonstrated is not None and demo is not None and not _has_answer(demo)


def _has_answer(demo: Demo) -> bool:
    return any(one is not None for one in (demo.text, demo.answer, demo.completion))


def _frame_of(turn: DemoTurn, view: View, where: str) -> Frame:
    """Return the frame in which a call writes places: that of the image which it names."""
    if not any(isinstance(value, Box | Point) for value in turn.arguments.values()):
        return Frame()
    try:
        return view.frame("image", turn.arguments.get("image", 1))
    except Refused as error:
        raise UserError(f"{where}: {error}") from error
