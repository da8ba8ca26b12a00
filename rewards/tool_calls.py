"""How close the calls that were written are to the right ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.answers import parsing
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier

MAX_CALLS = 64
"""Calls that are compared; a completion with more has failed."""

Call = tuple[str, Mapping[str, Any]]
"""Name and arguments."""


@dataclass(frozen=True)
class ToolCalls(Verifier):
    """ToolRL's correctness of calls; no tool is run.

    S / S_max. S is the Jaccard index of the names, plus, for each right call, the best still
    unused call of its name: the Jaccard index of the arguments' names plus the number of arguments
    that are equal. S_max = 1 + sum over right calls of (1 + number of arguments). The right calls
    themselves, in their order, score 1; what cannot be read scores 0.

    `truth.fields` is one call, `{"name": ..., "arguments": {...}}`, or `{"calls": [...]}` of these; an
    object with other keys is the arguments of a call without a name. Where nothing is right, an explicit
    nothing scores 1. Calls are read from `<tool_call>` blocks, one or several objects in
    each, with `arguments` or `parameters`; without a block the answer is one call in JSON.

    Used by: ToolRL (weight: 6, with `format` of weight 1; its range [-3, 3] is 6 times this less 3, and
    a constant changes no advantage).

    Refuses: more than 64 calls; a call again, which lowers the Jaccard index of the names.

    Source: Qian et al. 2025, "ToolRL: Reward is All Tool Learning Needs", arXiv 2504.13958, section 3.3,
    and the reward of its repository.

    Differs: equal calls are compared as JSON values, so 1 and true differ; a block that cannot be read
    fails alone in the paper's code where the rest of its text is JSON, here the whole completion does.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(fields={"name": "crop", "arguments": {"image": 1, "side": 2}})
    >>> call = '<tool_call>{"name": "crop", "arguments": {"image": 1, "side": 3}}</tool_call>'
    >>> judge(ToolCalls(), call, truth).score
    0.75
    """

    needs: ClassVar[tuple[str, ...]] = ("fields",)
    laws: ClassVar[Laws] = Laws(truth=("fields",))

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Compare the calls."""
        if not self.applies_to(sample):
            return Verdict.not_applicable("the truth has no fields")
        right = _stated(sample.truth.fields or {}) if not sample.truth.none else []
        wrote = _read(completion)
        if wrote is None:
            return Verdict(self.low, note="no call can be read")
        if not right:
            return Verdict(self.low if wrote else self.high, {"calls": len(wrote)})
        if _key(wrote) == _key(right):
            return Verdict(self.high, {"calls": len(wrote)}, answer=wrote)
        points = jaccard([n for n, _ in right], [n for n, _ in wrote]) + _match(right, wrote)
        most = 1 + sum(1 + len(arguments) for _, arguments in right)
        return Verdict(points / most, {"calls": len(wrote)}, answer=wrote)


def jaccard(a: Iterable[str], b: Iterable[str]) -> float:
    """Return the Jaccard index of two collections, repeated items counted; 1 for equal ones."""
    left, right = Counter([*a]), Counter([*b])
    shared, either = (left & right).total(), (left | right).total()
    return shared / either if either else 1.0


def _match(right: Sequence[Call], wrote: Sequence[Call]) -> float:
    """Return the points of calls matched greedily, in the order of the right ones."""
    left, total = [*range(len(wrote))], 0.0
    for name, arguments in right:
        points = {i: _points(arguments, wrote[i][1]) for i in left if wrote[i][0] == name}
        if points and max(points.values()) > 0:
            best = max(points, key=lambda i: points[i])
            left.remove(best)
            total += points[best]
    return total


def _points(right: Mapping[str, Any], wrote: Mapping[str, Any]) -> float:
    equal = sum(key in wrote and _key(wrote[key]) == _key(right[key]) for key in right)
    return jaccard(right, wrote) + equal


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _stated(fields: Mapping[str, Any]) -> list[Call]:
    calls = fields["calls"] if set(fields) == {"calls"} else [fields]
    return [_call(call) for call in calls]


def _call(value: Mapping[str, Any]) -> Call:
    for key in ("arguments", "parameters"):
        if set(value) == {"name", key} and isinstance(value[key], Mapping):
            return str(value["name"]), value[key]
    return "", value


def _read(completion: Completion) -> list[Call] | None:
    """Return the calls of a completion; None if one cannot be read."""
    if "<tool_call>" not in completion.text:
        answer = completion.answer or ""
        if parsing.says_nothing(answer):
            return []
        fields, _ = parsing.fields(answer)
        return None if fields is None else [_call(fields)]
    calls: list[Call] = []
    for block in _blocks(completion.text):
        texts = [block] if _object(block) is not None else block.strip().splitlines()
        objects = [_object(text) for text in texts if text.strip()]
        if not objects or any(call is None for call in objects):
            return None
        calls += [_call(call) for call in objects if call is not None]
    return calls if 0 < len(calls) <= MAX_CALLS else None


def _blocks(text: str) -> Iterator[str]:
    """Yield what is between an opening mark and the closing one after it, in linear time."""
    for part in text.split("</tool_call>")[:-1]:
        _, opened, block = part.partition("<tool_call>")
        if opened:
            yield block


def _object(text: str) -> Mapping[str, Any] | None:
    if len(text) > parsing.MAX_CHARS:
        return None
    return parsing.fields(text)[0]
