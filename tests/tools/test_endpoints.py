"""Tools that ask a model behind an endpoint: what is sent, what is told, and that silence is a fault."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.chat_server import Server, chat_servers
from helpers.driving import run_turn
from vlmrl import plugins
from vlmrl.interaction.tool import Shown, View
from vlmrl.interaction.tools import AskedCall, Toolbox, ToolOutcome
from vlmrl.schema import Frame

PIXELS = np.random.default_rng(0).integers(0, 255, (40, 80, 3), np.uint8)
VIEW = View((Shown(Image.fromarray(PIXELS), Frame(80, 40, "pixel")),))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with chat_servers() as start:
        yield start(lambda body: "EXIT 4")


@pytest.fixture(scope="module")
def toolbox(server: Server) -> Iterator[Toolbox]:
    options = {"url": server.url, "timeout_s": 5.0}
    tools = [plugins.build("tool", name, options) for name in ("ocr", "detect")]
    with Toolbox(tools, "pixel") as built:
        yield built


def run(toolbox: Toolbox, name: str, **arguments: Any) -> ToolOutcome:
    return run_turn(toolbox, [AskedCall(name, arguments)], VIEW)


def test_ocr_sends_the_region_and_tells_the_text(server: Server, toolbox: Toolbox) -> None:
    server.script = lambda body: "EXIT 4"
    assert run(toolbox, "ocr", bbox_2d=[40, 0, 80, 20]).parts == ("EXIT 4",)
    image, text = server.requests[-1]["messages"][0]["content"]
    sent = base64.b64decode(image["image_url"]["url"].partition(",")[2])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(sent))), PIXELS[:20, 40:])
    assert "Read all text" in text["text"]


def test_detect_tells_boxes_in_the_space_of_the_policy(server: Server, toolbox: Toolbox) -> None:
    server.script = lambda body: '```json\n[{"bbox_2d": [0, 0, 500, 1000], "label": "dog"}]\n```'
    assert run(toolbox, "detect", label="dog").parts == ("dog: [[0.0, 0.0, 40.0, 40.0]]",)
    assert "Find every dog." in server.requests[-1]["messages"][0]["content"][1]["text"]
    server.script = lambda body: "[]"
    assert run(toolbox, "detect", label="cat").parts == ("cat: none found",)


@pytest.mark.parametrize(
    ("name", "reply", "why"),
    [("ocr", 500, "HTTP 500"), ("ocr", b"junk", "no chat completion"), ("detect", "no idea", "boxes")],
)  # fmt: skip
def test_no_use_of_a_reply_is_a_fault(
    server: Server, toolbox: Toolbox, name: str, reply: Any, why: str
) -> None:
    server.script = lambda body: reply
    arguments = {"label": "dog"} if name == "detect" else {}
    found = run(toolbox, name, **arguments)
    assert found.fault is not None and why in found.fault and found.parts == ()


def test_a_label_is_no_template(server: Server, toolbox: Toolbox) -> None:
    server.script = lambda body: "[]"
    assert run(toolbox, "detect", label="{0} {x!r}").parts == ("{0} {x!r}: none found",)
    assert run(toolbox, "detect", label=" ").calls[0].outcome == "refused"
