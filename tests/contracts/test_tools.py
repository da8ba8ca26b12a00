"""What must hold of every tool: a valid schema, hostile arguments refused in a sentence, bounded results."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from PIL import Image

from helpers.contracts import require
from vlmrl import plugins
from vlmrl.interaction import isolation
from vlmrl.interaction.isolation import CallLimits
from vlmrl.interaction.tool import Shown, View
from vlmrl.schema import Frame
from vlmrl.schema.media import Audio, Video, kind_of

KIND = "tool"


def _builds(cls: type) -> bool:
    return not any(option.required for option in plugins.options_of(cls).values())


SUBSETS = {"part": _builds, "offline": lambda cls: _builds(cls) and not cls.waits}
"""A tool that needs to be told of a server has tests of its own."""
HOSTILE = (
    None, True, -1, 0, 10**400, 1e308, float("nan"), "", "x" * 30_000, "\x00\ud800<|im_end|>", [], [[]],
    [1], [5, 5, 5, 5], [float("nan")] * 4, ["1"] * 4, [1e30, -1e30, 2, 3], [0] * 1000, {}, {"a": {}},
)  # fmt: skip


@pytest.fixture(scope="module")
def view() -> View:
    """One image, one video and one audio, each with places that differ by pixel, frame and sample."""
    noise = np.random.default_rng(0)
    image = Image.fromarray(noise.integers(0, 255, (120, 160, 3), np.uint8))
    frames = noise.integers(0, 255, (6, 24, 32, 3), np.uint8)
    times = tuple(i / 2 for i in range(6))
    video = Video(frames, times, 3.0, tuple(range(6)), 6, 2.0, (32, 24))
    audio = Audio(noise.random(16_000, np.float32), 8000)
    return View(
        (
            Shown(image, Frame(160, 120, "pixel")),
            Shown(video, Frame(32, 24, "pixel", duration=3.0)),
            Shown(audio, Frame(duration=2.0)),
        )
    )


def functions(part: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    tool = plugins.build("tool", part)
    for one in tool.schemas("pixel"):
        yield tool, one["function"]


def examples(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments that fit a schema: every property of it."""
    return {key: _example(value) for key, value in schema["properties"].items()}


def _example(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "array":
        count = schema.get("minItems", 2)
        if count == 4:
            return [10, 10, 100, 80]
        return [1, 2] if "minItems" in schema else [_example(schema["items"])] * 2
    return {"integer": 1, "number": 2.0, "string": "1 + 1", "boolean": True}[schema["type"]]


def answer(tool: Any, name: str, arguments: Any, view: View) -> isolation.CallReply:
    """Call a tool as a worker process does, in this one."""
    isolation._TOOLS["it"] = tool
    shared = isolation.SharedView(view, tuple(None for _ in view.shown))
    return isolation.call("it", name, arguments, shared, CallLimits())


def same(a: isolation.CallReply, b: isolation.CallReply) -> bool:
    def plain(part: Any) -> Any:
        return part if isinstance(part, str) else pickle.dumps(_array(part.medium))

    return [plain(p) for p in a.parts] == [plain(p) for p in b.parts] and a.refused == b.refused


def _array(medium: Any) -> Any:
    found = getattr(medium, "frames", getattr(medium, "samples", medium))
    return np.asarray(found)


def test_its_schemas_are_what_openai_takes(part: str) -> None:
    for _, function in functions(part):
        require(function["name"].isidentifier(), part, "its name must be an identifier")
        require(len(function["description"]) > 10, part, "its docstring must say what it does")
        jsonschema.Draft202012Validator.check_schema(function["parameters"])
        json.dumps(function)
        for key, value in function["parameters"]["properties"].items():
            require("type" in value, part, f"{key} has no type")


def test_it_crosses_to_a_worker(part: str) -> None:
    tool = plugins.build("tool", part)
    assert pickle.loads(pickle.dumps(tool)) == tool


def test_arguments_that_fit_its_schema_are_answered(offline: str, view: View) -> None:
    for tool, function in functions(offline):
        arguments = examples(function["parameters"])
        jsonschema.validate(arguments, function["parameters"])
        found = answer(tool, function["name"], arguments, view)
        require(found.parts and not found.refused, offline, f"refused {arguments}: {found.refused}")
        again = answer(tool, function["name"], arguments, view)
        require(not tool.pure or same(found, again), offline, "is not pure: say `pure = False`")


def test_hostile_arguments_are_refused_in_a_sentence(offline: str, view: View) -> None:
    for tool, function in functions(offline):
        fitting = examples(function["parameters"])
        hostile = [{}, {"unknown": 1}, *({**fitting, k: v} for k in fitting for v in HOSTILE)]
        for arguments in hostile:
            found = answer(tool, function["name"], arguments, view)
            if found.refused:
                assert not found.parts
                require("\n" not in found.refused, offline, "must refuse in one sentence")
                require(len(found.refused) <= 500, offline, "must refuse in a short sentence")
        for key in function["parameters"]["required"]:
            less = {k: v for k, v in fitting.items() if k != key}
            assert key in answer(tool, function["name"], less, view).refused


def test_what_it_was_shown_is_not_changed(offline: str, view: View) -> None:
    before = [_array(one.medium).copy() for one in view.shown]
    for tool, function in functions(offline):
        answer(tool, function["name"], examples(function["parameters"]), view)
    for one, was in zip(view.shown, before, strict=True):
        require((_array(one.medium) == was).all(), offline, f"drew into the {kind_of(one.medium)}")


def test_without_media_it_answers_or_refuses(offline: str) -> None:
    for tool, function in functions(offline):
        answer(tool, function["name"], examples(function["parameters"]), View())
