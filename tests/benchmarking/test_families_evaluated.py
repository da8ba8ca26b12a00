"""Every family evaluates every modality that it has, on data of one's own and on a benchmark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from helpers.benchmark_runs import run as evaluate_benchmark
from helpers.daily import marked
from helpers.published import FLAC, ROWS, write_published
from helpers.small import loaded
from helpers.videos import write_video
from vlmrl import plugins
from vlmrl.cli.app import app

pytestmark = pytest.mark.slow

BENCHMARKS = {"image": "ai2d", "video": "perception_test", "audio": "mmar"}
DAILY = ("gemma3n", "gemma4", "internvl", "qwen2_5_omni", "qwen3_5", "qwen3_vl", "voxtral")
KINDS = {name: plugins.load("family", name).kinds for name in plugins.names("family")}


@pytest.fixture(
    scope="module", params=marked([name for name, kinds in KINDS.items() if kinds], DAILY)
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A family's name, and a small checkpoint of it."""
    folder = tmp_path_factory.mktemp(request.param)
    built = loaded(request.param)
    built.model.save_pretrained(folder)
    built.processor.save_pretrained(folder)
    return request.param, folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of one's own for each modality, and the benchmarks as published."""
    folder = tmp_path_factory.mktemp("data")
    Image.new("RGB", (56, 56), (200, 30, 30)).save(folder / "image.png")
    video = write_video(folder / "video.mp4", [0, 250, 500, 750])
    shutil.copy(FLAC, folder / "audio.flac")
    media = {"image": "image.png", "video": video.name, "audio": "audio.flac"}
    for kind, file in media.items():
        row = {"id": "0", "task": "vqa", f"{kind}s": [file], "question": "What?", "answer": "7"}
        (folder / f"{kind}.jsonl").write_text(json.dumps(row) + "\n")
    for kind, name in BENCHMARKS.items():
        home = write_published(folder, name, plugins.load("benchmark", name).split, ROWS[name])
        if kind == "video":
            (home / "videos").mkdir()
            for number in range(3):
                shutil.copy(video, home / f"videos/v{number}.mp4")
    return folder


def test_each_modality_is_evaluated(model: tuple[str, Path], data: Path, tmp_path: Path) -> None:
    family, checkpoint = model
    for kind in KINDS[family]:
        own = [
            "eval",
            str(checkpoint),
            "--data",
            f"{data}/{kind}.jsonl:train",
            "--verifier",
            "exact",
        ]
        done = CliRunner().invoke(app, [*own, "--max-tokens", "2", "--out", str(tmp_path / kind)])
        assert done.exit_code == 0, (kind, done.exception)
        written = json.loads((tmp_path / kind / "evaluation.json").read_text())
        assert written["num_samples"] == 1 and written["dropped"] == {}
        asked = ("--benchmark", BENCHMARKS[kind], "--limit", "2", "--max-tokens", "2")
        done = evaluate_benchmark(checkpoint, data, tmp_path / "results", *asked)
        assert done.exit_code == 0, (kind, done.exception)
        result = json.loads((tmp_path / f"results/{BENCHMARKS[kind]}/result.json").read_text())
        assert result["figures"]["official"]["count"] == 2
