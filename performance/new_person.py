"""What a new person does, each step one command and no file edited: does it work, and how long does it take?

    python performance/new_person.py [--install] [--out FILE.md]

A COCO folder is made of the real photos of `examples/data/bccd` (`annotations/instances_train2017.json`,
`train2017/`, `val2017/`). Then `vlmrl init`, `doctor`, `train`, `watch`, `compare`, `predict` and `export`
run in an empty folder, each once. A step that fails ends the script with what it printed. With `--install`
the commands are those of a new environment, into which a clone of this checkout is installed first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables import head

ROOT = Path(__file__).parents[1]
SPLITS = {"train": "train2017", "test": "val2017"}
"""File of `examples/data/bccd` -> folder of its photos in COCO's layout."""
PATIENCE = 120.0
"""Seconds that the page of the runs may take to answer."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command that has run, and what it took; `load` is that of the machine's last minute, at its end."""

    name: str
    command: str
    wall: float
    cpu: float
    load: float


def write_coco(folder: Path) -> None:
    """Write the photos with one white blood cell, each with its box, as COCO does."""
    source = ROOT / "examples/data/bccd"
    for split, name in SPLITS.items():
        rows = [json.loads(line) for line in (source / f"{split}.jsonl").read_text().splitlines()]
        (folder / name).mkdir(parents=True)
        images, boxes = [], []
        for number, row in enumerate(rows, start=1):
            photo = source / row["images"][0]
            shutil.copy(photo, folder / name / photo.name)
            size = {"width": row["width"], "height": row["height"]}
            images.append({"id": number, "file_name": photo.name, **size})
            ((x1, y1, x2, y2),) = row["boxes"]
            box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0}
            boxes.append({"id": number, "image_id": number, "category_id": 1, **box})
        kinds = [{"id": 1, "name": "white blood cell"}]
        tree = {"images": images, "annotations": boxes, "categories": kinds}
        file = folder / f"annotations/instances_{name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(tree))


def step(
    name: str,
    command: Sequence[str],
    folder: Path,
    meanwhile: Callable[[], None] | None = None,
) -> Step:
    """Run a command in a folder; with `meanwhile` until that returns, and then as Ctrl-C ends it."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed
        )
        if meanwhile is not None:
            meanwhile()
            process.send_signal(signal.SIGINT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        if process.returncode:
            raise SystemExit(f"{name}: exit status {process.returncode}\n{printed.read()}")
    words = " ".join([Path(command[0]).name, *command[1:]])
    wall, cpu = time.monotonic() - start, usage.ru_utime + usage.ru_stime
    print(f"{name}: {wall:.0f} s", file=sys.stderr)
    return Step(name, words, wall, cpu, os.getloadavg()[0])


def require_page(url: str, text: str) -> None:
    """Ask for a page until it has a text."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
                if text in reply.read().decode():
                    return
        except urllib.error.URLError:
            pass
        if time.monotonic() > end:
            raise SystemExit(f"{url}: no page with {text!r} in {PATIENCE:g} s")
        time.sleep(0.2)


def install(folder: Path) -> tuple[Path, list[Step]]:
    """Return the folder of the commands of a new environment, and the steps that made it."""
    git = step("clone", ["git", "clone", "--quiet", str(ROOT), "vlmrl"], folder)
    venv = step("environment", [sys.executable, "-m", "venv", ".venv"], folder)
    pip = str(folder / ".venv/bin/pip")
    done = step("install", [pip, "install", "--quiet", "./vlmrl"], folder)
    return folder / ".venv/bin", [git, venv, done]


def use(programs: Path, folder: Path) -> list[Step]:
    """Take all steps from data to an exported model; what each promises is there afterwards."""
    vlmrl = str(programs / "vlmrl")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def look() -> None:
        home = f"http://127.0.0.1:{port}/run/mine"
        require_page(home, "<h1>mine")
        # What the script of the page asks for.
        require_page(f"{home}/changes?seen=%7B%22sentence%22:null%7D", "detection")

    steps = [
        step("config", [vlmrl, "init", "photos", "--gpus", "0", "--yes"], folder),
        step("check", [vlmrl, "doctor", "mine.yaml"], folder),
        step("train", [vlmrl, "train", "mine.yaml"], folder),
        step("look", [vlmrl, "watch", "--port", port], folder, look),
        step("compare", [vlmrl, "compare", "runs/mine"], folder),
        step("answer", [vlmrl, "predict", "runs/mine", "photos/val2017", "--out", "out"], folder),
        step("export", [vlmrl, "export", "runs/mine", "--out", "model"], folder),
    ]
    require_results(folder)
    return steps


def require_results(folder: Path) -> None:
    """Check that the run rose, all photos have answers, nearly all with a box, and the model is whole."""
    before, after = (
        json.loads((folder / f"runs/mine/evals/step-{number}.json").read_text())["metrics"][
            "detection"
        ]
        for number in (0, 50)
    )
    lines = (folder / "out/answers.jsonl").read_text().splitlines()
    answers: list[dict[str, Any]] = [json.loads(line) for line in lines]
    boxed = sum(bool(answer["boxes"]) for answer in answers)
    photos = len(list((folder / "photos/val2017").iterdir()))
    whole = all((folder / "model" / name).is_file() for name in ("README.md", "model.safetensors"))
    if not (after > before and len(answers) == photos and boxed > 0.9 * photos and whole):
        raise SystemExit(
            f"detection {before:.3f} before, {after:.3f} after; {len(answers)} answers of {photos} photos, "
            f"{boxed} with a box; model whole: {whole}"
        )


def main() -> None:
    """Print the table of steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_coco(folder / "photos")
        programs, steps = install(folder) if options.install else (Path(sys.executable).parent, [])
        steps += use(programs, folder)
    lines = [
        *head("| step | command | wall s | CPU s | load |"),
        *(
            f"| {s.name} | `{s.command}` | {s.wall:.0f} | {s.cpu:.0f} | {s.load:.1f} |"
            for s in steps
        ),
    ]
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
