"""A page as a parser reads it, and the rows of a run that it is built from."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from PIL import Image

from vlmrl.config import parse
from vlmrl.runs import run_folder


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def with_class(self, name: str) -> list[dict[str, str | None]]:
        return [a for _, a in self.tags if name in (a.get("class") or "").split()]


def verdict(score: float | None, **more: Any) -> dict[str, Any]:
    return {
        "score": score,
        "parts": {},
        "answer": None,
        "note": "",
        "applies": True,
        "fault": None,
        **more,
    }


def completion(reward: float, box: list[float] | None = None, **more: Any) -> dict[str, Any]:
    answer = None if box is None else [{"box": box}]
    return {
        "text": "<think>left</think><answer>here</answer>",
        "thought": "left",
        "answer": "here",
        "finish_reason": "stop",
        "tokens": 9,
        "reward": reward,
        "valid": True,
        "advantage": reward - 0.5,
        "kept": True,
        "verdicts": {"box_iou": verdict(reward, answer=answer, parts={"iou": reward})},
        **more,
    }


def row(name: str, completions: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    media = {"kind": "image", "name": "a.png", "start": None, "end": None, "thumbnail": "red.png"}
    return {
        "id": name,
        "source": "shapes",
        "question": "Where is it?",
        "prompt": "<image>Where is it?",
        "media": [media],
        "frame": {},
        "truth": {"boxes": [{"box": [0.25, 0.5, 0.75, 1.0], "label": "ace"}], "none": False},
        "completions": completions,
        **more,
    }


def begin_run(folder: Path) -> Path:
    """Write the config of a run, and the image of 20 x 10 pixels that its rows show; return the folder."""
    run_folder.write_config(folder, config())
    image = run_folder.media_folder(folder) / "red.png"
    image.parent.mkdir(parents=True)
    Image.new("RGB", (20, 10), "red").save(image)
    return folder


def config() -> Any:
    tree = {"model": {"path": "m"}, "data": {"train": ["shapes"]}, "rewards": ["box_iou"]}
    return parse({**tree, "run": {"name": "my run"}})
