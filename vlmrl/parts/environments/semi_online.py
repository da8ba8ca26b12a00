"""Recorded episodes of a screen, played by the policy: what it does right leads to the next recorded screen.

What the policy thought and did before is its own, never the record's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.interaction.environment import Environment, Move, MoveOutcome, Part, Sample
from vlmrl.media.access import Access, reference
from vlmrl.media.image import load_image
from vlmrl.schema import Box, Point, Truth


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A screen, and what was done there."""

    screen: str
    action: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Replay:
    """A recorded episode, at the step `number`, from 0."""

    goal: str
    template: Any
    steps: tuple[RecordedStep, ...]
    number: int = 0
    patches: int = 0
    """Wrong actions so far."""
    right: int = 0
    """Steps that were right before the first wrong one."""


@dataclass(frozen=True)
class SemiOnline(Environment):
    """A recorded episode of screens and actions, of which the policy writes the actions.

    The row's `fields` are `{"steps": [{"screen": file, "action": {"action": "CLICK", "position": [x, y]}}]}`;
    an action may have a `value` to type, or a `bbox` to hit, places in the unit square. The prompt shows the
    first screen. An action that `gui_action` calls right leads to the next screen; a wrong one ends the
    episode, or, the first `patches` times, is answered by the recorded action and the next screen. A turn
    earns `format_weight` for the template and the rest for its action. Metrics: `matched` (this action was
    right), `progress` (share of steps right before the first wrong one), `solved` (all were).

    Used by: UI-S1 (arXiv 2509.11543, sections 3.2 and 3.3).
    """

    root: str
    """Folder of the screens."""
    patches: int = 1
    """Wrong actions after which the episode goes on."""
    format_weight: float = 0.1
    """Share of a turn's reward that the template earns."""
    radius: float = 0.14
    """As in `gui_action`."""

    def __post_init__(self) -> None:
        if self.patches < 0 or not 0 <= self.format_weight <= 1:
            raise ValueError("expected patches of at least 0 and format_weight from 0 to 1")

    def reset(self, sample: Sample, seed: int) -> Replay:
        """Return the episode of a row, before its first step."""
        stated = (sample.truth.fields or {}).get("steps")
        where = f"sample {sample.id!r}: fields.steps"
        if not isinstance(stated, list) or not stated:
            raise UserError(f"{where}: expected a list of steps, got {stated!r:.60}")
        steps = []
        for number, step in enumerate(stated, start=1):
            screen, action = (step.get(key) for key in ("screen", "action"))
            named = isinstance(action, dict) and isinstance(action.get("action"), str)
            if not isinstance(screen, str) or not named:
                raise UserError(
                    f"{where}: step {number}: expected a screen and an action, got {step!r:.80}"
                )
            steps.append(RecordedStep(screen, action))
        return Replay(sample.text, sample.template, tuple(steps))

    def observe(self, state: Replay) -> Sequence[Part]:
        """Return the screen of a step."""
        screen = reference(state.steps[state.number].screen, self.root)
        return [load_image(screen, Access(root=self.root))]

    def task(self, state: Replay) -> str:
        """Return the goal of the episode."""
        return state.goal

    def step(self, state: Replay, move: Move) -> MoveOutcome:
        """Compare what the policy wrote with what was done, and go on as it deserves."""
        recorded = state.steps[state.number].action
        written = templates.completion(move.text, state.template, move.frame)
        verifier = plugins.build("verifier", "gui_action", {"radius": self.radius})
        verdict = verifier(written, Sample("", "", (), _truth(recorded)))
        matched = verdict.score == 1
        reward = self.format_weight * written.parsed.well_formed
        reward += (1 - self.format_weight) * (verdict.score or 0.0)
        last = state.number + 1 == len(state.steps)
        after = replace(
            state,
            number=state.number + (not last),
            patches=state.patches + (not matched),
            right=state.right + (matched and state.patches == 0),
        )
        done = last or after.patches > self.patches
        progress = after.right / len(state.steps)
        metrics = {"matched": float(matched), "progress": progress, "solved": float(progress == 1)}
        correction = (
            [] if matched else [f"The action here is {json.dumps(recorded, ensure_ascii=False)}"]
        )
        parts = [] if done else [*correction, *self.observe(after)]
        return MoveOutcome(after, parts, reward, done, metrics)


def _truth(action: Mapping[str, Any]) -> Truth:
    """Return what `gui_action` checks of a recorded action."""
    position, box, value = (action.get(key) for key in ("position", "bbox", "value"))
    boxes, points = None, None
    if box:
        x1, y1, x2, y2 = map(float, box)
        boxes = (Box(x1, y1, x2, y2),)
    elif position:
        x, y = map(float, position)
        points = (Point(x, y),)
    text = (value,) if isinstance(value, str) and not (position or box) else None
    return Truth(fields={"action": action["action"]}, boxes=boxes, points=points, text=text)
