"""The tools of an MCP server: offered, called, refused, and dead without harm."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.driving import run_turn
from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.interaction.tool import Shown, View
from vlmrl.interaction.tools import AskedCall, Toolbox
from vlmrl.schema import Frame

pytest.importorskip("mcp")
SERVER = Path(__file__).parents[1] / "helpers" / "mcp_server.py"


def mcp(**options: Any) -> Any:
    given = {"command": sys.executable, "args": (str(SERVER),), "timeout_s": 8.0, **options}
    return plugins.build("tool", "mcp", {**given, "image_arguments": ("image",)})


@pytest.fixture(scope="module")
def toolbox() -> Iterator[Toolbox]:
    with Toolbox([mcp()]) as built:
        yield built


@pytest.mark.slow
def test_its_tools_are_offered_and_images_are_numbers(toolbox: Toolbox) -> None:
    functions = {s["function"]["name"]: s["function"] for s in toolbox.schemas()}
    assert {*functions} == {"left_half", "add", "hang", "leave", "broken"}
    assert functions["add"]["description"] == "Add two numbers."
    assert functions["left_half"]["parameters"]["properties"]["image"]["type"] == "integer"


@pytest.mark.slow
def test_texts_and_images_come_back(toolbox: Toolbox) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 40, 3), np.uint8)
    view = View((Shown(Image.fromarray(pixels), Frame(40, 20, "pixel")),))
    calls = [AskedCall("add", {"a": 2, "b": 3}), AskedCall("left_half", {"image": 1})]
    found = run_turn(toolbox, calls, view)
    assert found.fault is None and found.parts[:2] == ("5", "Image 2:")
    assert np.array_equal(np.asarray(found.parts[2]), pixels[:, :20])


@pytest.mark.slow
def test_an_error_that_it_states_is_an_observation(toolbox: Toolbox) -> None:
    found = run_turn(toolbox, [AskedCall("add", {"a": "two"})])
    assert found.fault is None and found.calls[0].outcome == "refused"
    found = run_turn(toolbox, [AskedCall("left_half", {"image": 3})])
    assert "image 3 does not exist" in str(found.parts[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["leave", "broken", "hang"])
def test_a_dead_server_is_a_fault_and_is_started_again(toolbox: Toolbox, name: str) -> None:
    found = run_turn(toolbox, [AskedCall(name)])
    assert found.fault is not None and found.parts == ()
    assert run_turn(toolbox, [AskedCall("add", {"a": 2, "b": 3})]).parts == ("5",)


@pytest.mark.slow
def test_a_server_that_does_not_start_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="the server does not start"):
        Toolbox([mcp(command="no-such-program")])
