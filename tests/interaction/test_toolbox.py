"""Calls of tools: what is an observation and what a fault, whatever a tool does, and what it costs."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.driving import run_turn
from helpers.hostile_tools import Misbehave, Slow
from vlmrl.errors import UserError
from vlmrl.interaction.isolation import SharedMediaFolder
from vlmrl.interaction.tool import Refused, Shown, View
from vlmrl.interaction.tools import AskedCall, Toolbox, ToolOutcome
from vlmrl.parts.tools.calculator import Calculator
from vlmrl.parts.tools.crop import Crop
from vlmrl.parts.tools.draw import Draw
from vlmrl.schema import Box, Frame


def gradient(width: int = 200, height: int = 100) -> Image.Image:
    """An image in which red is the column and green the row."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.arange(width)
    pixels[..., 1] = np.arange(height)[:, None]
    return Image.fromarray(pixels)


def view_of(image: Image.Image, space: Any = "pixel") -> View:
    return View((Shown(image, Frame(*image.size, space)),))


@pytest.fixture(scope="module")
def toolbox() -> Iterator[Toolbox]:
    with Toolbox([Crop(min_side=1), Calculator(), Draw(), Slow()], "pixel") as built:
        yield built


@pytest.fixture(scope="module")
def hostile() -> Iterator[Toolbox]:
    with Toolbox([Misbehave(limit_s=2.0)]) as built:
        yield built


def misbehave(toolbox: Toolbox, how: str) -> ToolOutcome:
    return run_turn(toolbox, [AskedCall("misbehave", {"how": how})])


# ------------------------------------------------------------------------------- what is shown


def test_a_crop_of_a_crop_is_cut_from_the_original(toolbox: Toolbox) -> None:
    view = view_of(gradient())
    first = run_turn(toolbox, [AskedCall("crop", {"bbox_2d": [100, 50, 200, 100]})], view)
    assert first.parts[0] == "Image 2:" and first.shown[0].box == Box(0.5, 0.5, 1.0, 1.0)
    # The policy was shown the crop at half the size, and writes in that space.
    view = view.then(first.shown, [Frame(50, 25, "pixel")])
    again = run_turn(toolbox, [AskedCall("crop", {"bbox_2d": [25, 0, 50, 25], "image": 2})], view)
    assert again.shown[0].original == 1
    assert (again.calls[0].box, again.calls[0].image) == (again.shown[0].box, 1)
    assert again.shown[0].box.xyxy == pytest.approx((0.75, 0.5, 1.0, 1.0))
    assert np.array_equal(np.asarray(again.parts[1]), np.asarray(gradient())[50:, 150:])
    assert np.array_equal(np.asarray(view.image(2)), np.asarray(gradient())[50:, 100:])


@pytest.mark.parametrize(
    ("space", "numbers"),
    [("pixel", [100, 50, 200, 100]), ("norm1000", [500, 500, 1000, 1000]), ("norm1", [0.5, 0.5, 1, 1])],
)  # fmt: skip
def test_places_are_read_in_the_space_of_the_image(
    toolbox: Toolbox, space: str, numbers: list[float]
) -> None:
    found = run_turn(toolbox, [AskedCall("crop", {"bbox_2d": numbers})], view_of(gradient(), space))
    assert found.shown[0].box == Box(0.5, 0.5, 1.0, 1.0)


def test_calls_of_one_turn_see_the_same_view_and_number_their_images(toolbox: Toolbox) -> None:
    crop = AskedCall("crop", {"bbox_2d": [0, 0, 20, 20]})
    found = run_turn(
        toolbox, [crop, AskedCall("calculator", {"expression": "6*7"}), crop], view_of(gradient())
    )
    assert [part for part in found.parts if isinstance(part, str)] == ["Image 2:", "42", "Image 3:"]
    assert [call.outcome for call in found.calls] == ["ok"] * 3


def test_a_drawn_image_is_an_original_of_its_own(toolbox: Toolbox) -> None:
    view = view_of(gradient())
    drawn = run_turn(toolbox, [AskedCall("draw", {"masks": [[0, 0, 100, 100]]})], view)
    view = view.then(drawn.shown, [Frame(200, 100, "pixel")])
    found = run_turn(toolbox, [AskedCall("crop", {"bbox_2d": [0, 0, 50, 50], "image": 2})], view)
    assert found.shown[0].original == 2
    assert np.asarray(found.parts[1]).min() == 255
    assert np.asarray(view.image(1)).max() < 255


# ----------------------------------------------------------------- observations and faults (table)

REFUSALS = {
    "an unknown tool": (AskedCall("crap", {}), "there is no tool 'crap'; did you mean 'crop'?"),
    "a malformed call": (AskedCall("", problem="expected a call in JSON"), "expected a call in JSON"),
    "wrong arguments": (AskedCall("crop", {"bbox_2d": "all"}), "bbox_2d: expected [x1, y1, x2, y2]"),
    "no such image": (AskedCall("crop", {"bbox_2d": [0, 0, 9, 9], "image": 2}), "image 2 does not exist"),
    "what the tool refuses": (AskedCall("calculator", {"expression": "1/0"}), "cannot be computed"),
    "the time of the policy's own code": (AskedCall("slow"), "it took more than 0.5 seconds"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_an_observation(toolbox: Toolbox, case: str) -> None:
    asked, sentence = REFUSALS[case]
    found = run_turn(toolbox, [asked], view_of(gradient()))
    assert found.fault is None and found.calls[0].outcome == "refused"
    assert str(found.parts[0]).startswith(f"Error: {sentence}") or sentence in str(found.parts[0])


FAULTS = {
    "hang": "no result within 2 s",
    "spin": "no result within 2 s",
    "abort": "SIGABRT",
    "leave": "exit code 0",
    "allocate": "memory",
    "write": "File too large",
    "raise": "ConnectionRefusedError: nobody listens",
    "return_nothing": "expected a text, an image",
    "return_an_object": "expected a text, an image",
    "return_an_empty_image": "0x0 pixels",
    "return_a_huge_image": "",
    "return_a_bomb": "9000x9000 pixels",
    "return_a_broken_image": "",
    "return_many_images": "at most 32 parts, got 10000",
    "return_silence": "expected finite samples",
    "return_a_broken_sound": "expected finite samples",
    "return_an_empty_video": "a video: expected frames [T, H, W, 3]",
}


@pytest.mark.parametrize("how", FAULTS)
def test_a_failure_is_a_fault_and_the_next_call_works(hostile: Toolbox, how: str) -> None:
    found = misbehave(hostile, how)
    assert found.fault is not None and FAULTS[how] in found.fault
    assert (found.parts, found.shown) == ((), ())
    assert found.calls[0].outcome == "fault"
    assert misbehave(hostile, "work").parts == ("worked",)


def test_one_fault_of_a_turn_hides_its_other_answers(hostile: Toolbox) -> None:
    calls = [AskedCall("misbehave", {"how": how}) for how in ("work", "raise")]
    found = run_turn(hostile, calls)
    assert [call.outcome for call in found.calls] == ["ok", "fault"] and found.parts == ()


def test_a_large_image_is_shrunk(hostile: Toolbox) -> None:
    image = misbehave(hostile, "return_a_large_image").parts[1]
    assert isinstance(image, Image.Image)
    assert image.width * image.height <= hostile.limits.max_pixels
    assert image.width / image.height == pytest.approx(4 / 3, rel=0.01)


def test_a_long_text_loses_its_middle_and_what_is_no_text(hostile: Toolbox) -> None:
    (text,) = misbehave(hostile, "return_a_megabyte").parts
    assert isinstance(text, str) and len(text) <= hostile.limits.max_chars
    assert "characters left out" in text and "\x00" not in text
    text.encode()


def test_a_refusal_is_short_and_printable(hostile: Toolbox) -> None:
    (text,) = misbehave(hostile, "refuse").parts
    assert isinstance(text, str) and "\x00" not in text and len(text) < 600


def test_too_many_calls_of_a_turn_are_refused(toolbox: Toolbox) -> None:
    calls = [AskedCall("calculator", {"expression": "1"})] * 10
    found = run_turn(toolbox, calls)
    assert [call.outcome for call in found.calls] == ["ok"] * 8 + ["refused"] * 2


def test_two_tools_of_one_name_are_a_mistake() -> None:
    with pytest.raises(UserError, match="two tools have a function 'crop'"):
        Toolbox([Crop(), Crop(min_side=3)])


# -------------------------------------------------------------------------------- shared media


def test_media_are_written_once_and_removed_with_their_image() -> None:
    folder = SharedMediaFolder()
    image = gradient()
    stored = {folder.share(view_of(image)).stored[0] for _ in range(5)}
    (only,) = stored
    assert only is not None and Path(only.path).stat().st_size == 200 * 100 * 3
    del image
    gc.collect()
    assert not os.path.exists(only.path)
    folder.close()


def test_a_narrow_or_empty_box_is_refused() -> None:
    view = view_of(gradient(2000, 100))
    with pytest.raises(Refused, match="more than 100 times"):
        view.crop(1, Box(0.0, 0.5, 1.0, 0.505))
