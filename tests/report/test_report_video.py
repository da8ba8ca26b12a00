"""What the report shows of clips: frames, motion, and true and predicted spans on a line of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from helpers.report_page import Page, completion, config, row, verdict
from helpers.videos import video
from vlmrl.features.report.page import build_report
from vlmrl.pages.media import Album, shapes, view
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import store_video
from vlmrl.system import files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder.media_folder(tmp_path)


def medium(folder: Path, **more: Any) -> dict[str, Any]:
    made = video(16, fps=1.0, size=(56, 56))
    return {"kind": "video", "name": "a.mp4", **store_video(folder, made), **more}


def test_a_clip_is_stored_once_as_a_strip_and_in_motion(folder: Path) -> None:
    first, again = medium(folder), medium(folder)
    assert first == again and len(list(folder.iterdir())) == 2
    assert first["times"] == [0.0, 2.0, 4.0, 6.0, 9.0, 11.0, 13.0, 15.0]
    with Image.open(folder / first["thumbnail"]) as strip:
        assert strip.size == (8 * 56, 56)
    with Image.open(folder / first["motion"]) as motion:
        assert (motion.n_frames, motion.size) == (16, (56, 56))


def test_the_strip_of_a_tracked_clip_shows_the_frames_of_its_boxes(folder: Path) -> None:
    made = video(32, fps=2.0, size=(56, 56))
    seen = store_video(folder, made, (0.0, 1.0, 2.1, 5.0))
    assert seen["times"] == [0.0, 1.0, 2.0, 5.0]
    assert seen["thumbnail"] != store_video(folder, made)["thumbnail"]
    with Image.open(folder / seen["thumbnail"]) as strip:
        assert strip.size == (4 * 56, 56)


def test_spans_lie_on_the_line_of_time_and_boxes_on_the_nearest_frame(folder: Path) -> None:
    shown = view(medium(folder), Album(folder, 10**6))
    (span,) = shapes([{"span": [4.0, 12.0]}], shown)
    assert (span.kind, span.numbers) == ("span", (25.0, 50.0))
    (late,) = shapes({"span": [12.0, 99.0]}, shown)
    assert late.numbers == (75.0, 25.0)
    boxes = {"track": [{"time": 0.0, "box": [0, 0, 0.5, 1]}, {"time": 10.9, "box": [0.5, 0, 1, 1]}]}
    assert [s.numbers[0] for s in shapes(boxes, shown)] == [0.0, 5 * 56 + 28]
    assert len(shapes({"box": [0, 0, 1, 1]}, shown)) == 8


def test_the_page_plays_the_clip_and_shows_truth_and_guesses(tmp_path: Path, folder: Path) -> None:
    run_folder.write_config(tmp_path, config())
    guess = verdict(0.5, answer=[{"span": [2.0, 8.0]}])
    attempts = [completion(0.5, verdicts={"temporal_iou": guess})]
    rows = [row("one", attempts, media=[medium(folder)], truth={"spans": [{"span": [4.0, 8.0]}]})]
    files.write_lines(run_folder.rollouts_path(tmp_path, 1), rows)
    page = Page(build_report(tmp_path))
    (motion,) = page.with_class("motion")
    assert (motion["src"] or "").startswith("data:image/webp;base64,")
    assert len(page.with_class("span")) == 2
    assert "0 s8.0 s16.0 s" in page.text


def test_a_clip_without_stored_frames_is_named(tmp_path: Path, folder: Path) -> None:
    run_folder.write_config(tmp_path, config())
    gone = {"kind": "video", "name": "gone.mp4", "thumbnail": None}
    files.write_lines(
        run_folder.rollouts_path(tmp_path, 1), [row("one", [completion(0.5)], media=[gone])]
    )
    assert "gone.mp4" in Page(build_report(tmp_path)).text
