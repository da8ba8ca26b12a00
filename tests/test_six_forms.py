"""A set of photos with one object each, in six published forms, trains from six configs of few lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.photo_layouts import write_photos
from vlmrl.assemble import lifecycle
from vlmrl.assemble.validate import validate
from vlmrl.config import load
from vlmrl.data.source import open_held_out, open_source

CONFIGS = sorted((Path(__file__).parents[1] / "docs/examples/layouts").glob("*.yaml"))
TINY = [
    "run.threads=1",
    "run.steps=2",
    "run.report=false",
    "tracking.tensorboard=false",
    "model.max_pixels=3136",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "rollout.max_tokens=4",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def boxes(folder: Path) -> list[list[int]]:
    return write_photos(folder)


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_photos_in_a_published_form_train(
    path: Path, folder: Path, boxes: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    settings = load(str(path), [f"run.dir={folder / path.stem}", *TINY])
    trained = open_source(settings.data.train[0])
    (held_out,) = open_held_out(settings)
    assert min(len(held_out.rows), len(trained.rows)) > 0
    truths = [s.sample(i).truth for s in (held_out, trained) for i in range(len(s.rows))]
    if path.stem == "vlmevalkit":
        sides = ["A" if b[0] + b[2] < 640 else "B" for b in boxes]
        assert sorted(str(truth.choice) for truth in truths) == sorted(sides)
    else:
        scale = np.array([640, 480] * 2)
        found = sorted((box.xyxy * scale).tolist() for t in truths for box in t.boxes or ())
        np.testing.assert_allclose(found, sorted(boxes), atol=1e-6)
    validate(settings)
    summary = lifecycle.train(settings)
    assert summary["finished"] and summary["steps"] == 2
    assert summary["dropped"] == {} and summary["faulted"] == {}
    metric = "choice" if path.stem == "vlmevalkit" else "box_iou"
    assert metric in summary["last_evaluation"]["metrics"]


def test_there_are_six_of_at_most_six_lines_of_data() -> None:
    assert len(CONFIGS) == 6
    for path in CONFIGS:
        lines = path.read_text(encoding="utf-8").splitlines()
        start = lines.index("data:")
        block = [line for line in lines[start + 1 :] if line]
        size = next(n for n, line in enumerate(block) if not line.startswith(" "))
        assert 1 + size <= 6
