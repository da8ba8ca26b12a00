"""Demonstrations of several turns: their calls are run, so that what they show is what a policy will see,
unless their data state what was returned.

A call that fails or is refused is no demonstration of anything: its row is bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.interaction.driver import first_view
from vlmrl.interaction.tool import Refused, Shown, View
from vlmrl.interaction.tools import PolicyTurn, Runner, ToolOutcome, parse_calls, stated_outcome
from vlmrl.interaction.trail import Trail
from vlmrl.schema import Box, Completion, DemoTurn, Frame, Point, Prompt
from vlmrl.schema.media import Decoded
from vlmrl.truths import prompting

if TYPE_CHECKING:
    from vlmrl.training.sft import Writer

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Marks of a turn that calls a tool."""


def play(
    writer: Writer, prompt: Prompt, runner: Runner | None, shown: Sequence[Decoded] = ()
) -> Completion:
    """Return the turns of a prompt's demonstration and what they were shown, without its answer.

    What its data state that a call returned is shown, its media being `shown`; other calls are run.
    Where it has no answer, the last call is the end, and what that returned is not shown.

    Raises:
        UserError: a call failed or was refused, or what it returned cannot be shown.
    """
    sample = prompt.sample
    assert sample.demo is not None
    turns, left = sample.demo.turns, iter(shown)
    runs, stated = (any((turn.returned is None) == run for turn in turns) for run in (True, False))
    trail = Trail(writer.family, writer.processor, prompt)
    view = first_view(writer.family, writer.processor, prompt)
    world = runner.begin(sample, 0) if runs and runner is not None else None
    if world is not None and stated:
        raise UserError(
            f"sample {sample.id!r}: what its demonstration was shown in a world must be stated of all "
            "turns or of none"
        )
    completion = None
    try:
        for number, turn in enumerate(turns, start=1):
            where = f"sample {sample.id!r}: call {number} of its demonstration"
            text = prompting.write_call(turn, _frame_of(turn, view, where), writer.call_space)
            ids = writer.encode(sample, text, TAGS)
            completion = templates.completion(
                text, sample.template, prompt.frame, token_ids=ids, logprobs=(0.0,) * len(ids)
            )
            outcome = _outcome(turn, PolicyTurn(parse_calls(text), view, text, world), runner, left)
            _require_done(turn, outcome, where)
            trail = trail.write(completion).note(calls=outcome.calls)
            if outcome.step is not None:
                trail, world = trail.note(reward=outcome.step.reward), outcome.step.world
            if number == len(turns) and not sample.demo.has_answer:
                break
            if outcome.step is not None and outcome.step.done:
                raise UserError(f"{where} ends its world, but more follows")
            trail = trail.observe(*trail.encode_observation(outcome.parts))
            frames = [writer.family.frame(writer.processor, new.medium) for new in outcome.shown]
            view = view.then(outcome.shown, frames)
    finally:
        if world is not None and runner is not None:
            runner.leave(world)
    assert completion is not None
    return trail.finish(completion, "stop")


def _outcome(
    turn: DemoTurn, written: PolicyTurn, runner: Runner | None, left: Iterator[Decoded]
) -> ToolOutcome:
    """Return what came of a turn: what its data state, its media from `left`, or its calls, run."""
    if turn.returned is None:
        assert runner is not None
        (outcome,) = runner.run_all([written])
        return outcome
    parts = [
        part
        if isinstance(part, str)
        else Shown(next(left), source=None if part.kind == "image" else part)
        for part in turn.returned
    ]
    return stated_outcome(written.view, written.calls, parts)


def _require_done(turn: DemoTurn, outcome: ToolOutcome, where: str) -> None:
    """Raise a `UserError` if a call was not understood, failed or was refused, or is stated in a world."""
    if outcome.fault is not None:
        raise UserError(f"{where} failed: {outcome.fault}")
    if wrong := [call.note for call in outcome.calls if call.outcome != "ok"]:
        raise UserError(f"{where} is refused: {wrong[0]}")
    names = [name for name in (turn.name, *(name for name, _ in turn.also)) if name]
    if turn.returned is not None and [call.name for call in outcome.calls] != names:
        written = ", ".join(repr(call.name) for call in outcome.calls) or "none"
        raise UserError(f"{where}: expected calls of {', '.join(names)} in its text, got {written}")


def join_answer(
    writer: Writer, prompt: Prompt, played: Completion, answer: Completion
) -> Completion:
    """Return the whole demonstration: the turns that were played, and this answer.

    Where the prompt is not at home, it is without media, as what was played is.
    """
    known = () if played.suffix is None else (played.suffix.encoded, played.suffix.turns)
    trail = Trail(writer.family, writer.processor, prompt, played.segments, *known)
    whole = trail.write(answer).finish(answer, "stop")
    return whole if known else whole.without_media()


def _frame_of(turn: DemoTurn, view: View, where: str) -> Frame:
    """Return the frame in which a call writes places: that of the image which it names."""
    calls = [turn.arguments, *(arguments for _, arguments in turn.also)]
    if not any(isinstance(value, Box | Point) for each in calls for value in each.values()):
        return Frame()
    try:
        return view.frame("image", turn.arguments.get("image", 1))
    except Refused as error:
        raise UserError(f"{where}: {error}") from error
