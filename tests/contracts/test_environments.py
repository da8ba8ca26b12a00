"""What must hold of every environment: states are values, a seed decides, hostile actions are refused."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest

from helpers.contracts import require
from vlmrl import plugins
from vlmrl.interaction.environment import Environment, Frame, Move, MoveOutcome, Refused, Sample
from vlmrl.schema import Truth
from vlmrl.schema.media import PilImage

KIND = "environment"
SUBSETS = {
    "part": lambda cls: not any(option.required for option in plugins.options_of(cls).values())
}
"""An environment that needs to be told of a server or a class has tests of its own."""
SAMPLE = Sample("world-0", "worlds", (), Truth(none=True))
HOSTILE = (
    None,
    True,
    -1,
    10**400,
    float("nan"),
    "x" * 30_000,
    "\x00\ud800",
    [],
    [5, 5],
    [1e30, -1e30],
    {},
)


def world(part: str) -> Environment:
    return plugins.build("environment", part)


def frame_of(parts: Sequence[Any], before: Frame) -> Frame:
    images = [part for part in parts if isinstance(part, PilImage)]
    return Frame(*images[-1].size, "norm1") if images else before


def random_moves(environment: Environment, draw: random.Random, task: str) -> Any:
    """An action with arguments that fit its schema; texts are numbers or words of the task."""
    function = draw.choice(environment.schemas())["function"]
    arguments = {k: _draw(v, draw, task) for k, v in function["parameters"]["properties"].items()}
    jsonschema.validate(arguments, function["parameters"])
    return function["name"], arguments


def _draw(schema: dict[str, Any], draw: random.Random, task: str) -> Any:
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if schema["type"] == "array":
        return [draw.random() for _ in range(schema["minItems"])]
    words = [str(n) for n in range(4)] + task.split()
    return {"integer": draw.randrange(5), "number": draw.random(), "string": draw.choice(words)}[
        schema["type"]
    ]


def play(part: str, seed: int, limit: int = 60) -> list[MoveOutcome]:
    """Step a world at random until it is done; a refusal changes nothing."""
    environment, draw = world(part), random.Random(seed)
    state = environment.reset(SAMPLE, seed)
    frame = frame_of(environment.observe(state), Frame())
    steps: list[MoveOutcome] = []
    for _ in range(limit):
        name, arguments = random_moves(environment, draw, environment.task(state))
        try:
            found = environment.step(state, Move("", name, arguments, frame))
        except Refused:
            continue
        steps.append(found)
        state, frame = found.state, frame_of(found.parts, frame)
        if found.done:
            break
    return steps


def plain(parts: Sequence[Any]) -> list[Any]:
    return [part if isinstance(part, str) else np.asarray(part).tobytes() for part in parts]


def test_its_actions_are_what_openai_takes(part: str) -> None:
    for schema in world(part).schemas("pixel"):
        function = schema["function"]
        jsonschema.Draft202012Validator.check_schema(function["parameters"])
        require(len(function["description"]) > 5, part, "each action needs a docstring")
        json.dumps(schema)


def test_the_same_seed_gives_the_same_world_and_the_same_steps(part: str) -> None:
    first, again = play(part, 3), play(part, 3)
    require(first, part, "refused 60 random actions")
    require(
        [s.state for s in first] == [s.state for s in again], part, "depends on more than its seed"
    )
    assert [plain(s.parts) for s in first] == [plain(s.parts) for s in again]
    assert [s.reward for s in first] == [s.reward for s in again]


def test_seeds_give_different_worlds(part: str) -> None:
    environment = world(part)
    states = {pickle.dumps(environment.reset(SAMPLE, seed)) for seed in range(10)}
    require(len(states) > 1, part, "ignores the seed")


def test_the_seed_of_a_sample_wins(part: str) -> None:
    environment = world(part)
    sample = Sample("world-7", "worlds", (), Truth(none=True), meta={"environment_seed": 7})
    assert environment.reset(sample, 1) == environment.reset(SAMPLE, 7)


def test_a_state_is_a_value(part: str) -> None:
    """A stored state, stepped again in another copy of the world, gives what it gave."""
    environment, draw = world(part), random.Random(0)
    state = environment.reset(SAMPLE, 5)
    frame = frame_of(environment.observe(state), Frame())
    for _ in range(8):
        name, arguments = random_moves(environment, draw, environment.task(state))
        stored = pickle.dumps(state)
        try:
            found = environment.step(state, Move("", name, arguments, frame))
        except Refused:
            continue
        require(pickle.dumps(state) == stored, part, "a step must not change the state it is given")
        other = pickle.loads(pickle.dumps(environment))
        again = other.step(pickle.loads(stored), Move("", name, arguments, frame))
        require(again.state == found.state, part, "a state is not all there is to it")
        assert (plain(again.parts), again.reward, again.done) == (
            plain(found.parts), found.reward, found.done,
        )  # fmt: skip
        if found.done:
            break
        state = found.state


def test_rewards_are_finite_and_the_end_comes(part: str) -> None:
    for seed in range(3):
        steps = play(part, seed, limit=2000)
        require(steps[-1].done, part, "never ends")
        assert all(np.isfinite(step.reward) for step in steps)


def test_hostile_actions_are_refused_in_a_sentence(part: str) -> None:
    environment = world(part)
    state = environment.reset(SAMPLE, 0)
    hostile: list[Move] = [Move("anything"), Move("", "no_such_action"), Move("", "__class__")]
    for schema in environment.schemas():
        name = schema["function"]["name"]
        keys = schema["function"]["parameters"]["properties"]
        hostile += [Move("", name, dict.fromkeys(keys, value), Frame(9, 9)) for value in HOSTILE]
        hostile += [Move("", name, {"unknown": 1}, Frame(9, 9))]
    refused = 0
    for move in hostile:
        try:
            environment.step(state, move)
        except Refused as error:
            refused += 1
            require("\n" not in str(error) and len(str(error)) < 500, part, "refuse in a sentence")
    assert refused >= len(hostile) // 2
    with pytest.raises(Refused):
        environment.step(state, hostile[1])
