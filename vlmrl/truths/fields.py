"""Named values of a JSON answer, such as an action in a user interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlmrl.schema import Box, Frame, Point, Space, Truth
from vlmrl.truths.base import PLACES, Claim, Readers, TruthKind, check_object
from vlmrl.truths.boxes import EXAMPLES
from vlmrl.truths.points import places_to_point_at, write_point

ACTION = "action"
"""The field of an action, which acts on a place (`points`, `boxes`) or types a `text`."""


@dataclass(frozen=True)
class Fields(TruthKind):
    """Named values of a JSON object; one with an "action" also acts on a place or types a text."""

    rank: ClassVar[int] = 10
    form: ClassVar[str] = '{"action": name, "position": [x, y]}'
    readers: ClassVar[Readers] = {"json_fields": {}}

    def parse(self, value: object, frame: Frame) -> dict[str, Any]:
        return check_object(value)

    def instruct(self, truth: Truth, space: Space) -> str:
        """Name the keys; every action may have a position or a value, whichever this one has."""
        if not truth.fields:
            return "Write the answer as a JSON object."
        keys = ", ".join(f'"{key}"' for key in truth.fields)
        text = f"Write the answer as a JSON object with the keys {keys}."
        if ACTION not in truth.fields:
            return text
        return (
            f'{text[:-1]}, and where the action needs it "position": [x, y], {PLACES[space]}, or '
            '"value": the text to type.'
        )

    def write(self, truth: Truth, frame: Frame) -> str:
        """Write the fields, an action with the place it acts on or the text it types."""
        fields = dict(truth.fields or {})
        if ACTION in fields and truth.text:
            fields.setdefault("value", truth.text[0])
        elif ACTION in fields and (places := places_to_point_at(truth)):
            fields["position"] = write_point(places[0], frame)
        return json.dumps(fields, ensure_ascii=False)

    def examples(self) -> Iterator[tuple[str, Truth]]:
        yield "What is wrong with it?", Truth(fields={"class": "blur", "severity": "slight"})
        click, point = {"action": "click", "label": "OK"}, Point(0.3, 0.425)
        yield "What to do next?", Truth(fields=click, points=(point,), boxes=(EXAMPLES[0],))
        yield "What to do then?", Truth(fields={"action": "type"}, text=("hello",))

    def mistake(self, truth: Truth) -> Truth:
        wrong: dict[str, Any] = dict.fromkeys(truth.fields or (), "something else")
        corner = Box(0.0, 0.0, 1e-3, 1e-3)
        text = ("",) if truth.text else None
        return replace(truth, fields=wrong, points=(Point(0, 0),), boxes=(corner,), text=text)

    def claim(self, truth: Truth, frame: Frame) -> Iterator[Claim]:
        if not truth.fields:
            return
        bare = Truth(fields=truth.fields)
        wrong = Truth(fields=self.mistake(bare).fields)
        yield Claim(self.name, self.write(bare, frame), self.write(wrong, frame))
        if self.write(truth, frame) != self.write(bare, frame):
            yield from (replace(c, form="action") for c in super().claim(truth, frame))
