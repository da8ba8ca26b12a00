"""`vlmrl eval` on a run: its data are read as the run read them, and a damaged checkpoint is not loaded."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from helpers.runs import TINY
from vlmrl.assemble import lifecycle
from vlmrl.assemble.trained_run import find_run
from vlmrl.config import load
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.evaluate import evaluate_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on a file whose images are in another folder; its first step is the best."""
    home = tmp_path_factory.mktemp("home")
    (home / "images").mkdir()
    (home / "rows").mkdir()
    rows = []
    for number in range(6):
        Image.new("RGB", (56, 56), (40 * number, 0, 0)).save(home / f"images/{number}.png")
        row = {"id": str(number), "task": "vqa", "images": [f"../images/{number}.png"]}
        rows.append({**row, "question": "How red?", "answer": str(number)})
    file = home / "rows/train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = f"data.train=[{{card: records, options: {{path: {file}}}}}]"
    more = [f"data.media_root={home}", "sft=null", "evaluation=null", "rewards=[exact]"]
    more += ["run.steps=2", "run.save_every=1", f"run.dir={home}/run", source]
    lifecycle.train(load("quickstart", [*TINY, *more]))
    summary = json.loads((home / "run/summary.json").read_text())
    summary["best_evaluation"] = {"step": 1}
    (home / "run/summary.json").write_text(json.dumps(summary))
    return home / "run"


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_media_are_read_from_where_the_run_reads_them(whole: Path) -> None:
    found = evaluate_model(str(whole), "records:train", max_tokens=2)
    assert found["num_samples"] == 6 and found["dropped"] == {}


def test_other_data_are_judged_by_what_fits_them_of_the_run(whole: Path, tmp_path: Path) -> None:
    Image.new("RGB", (56, 56)).save(tmp_path / "0.png")
    row = {"messages": [{"role": "user", "content": "<image>How red?"}], "images": ["0.png"]}
    row["messages"].append({"role": "assistant", "content": "<answer>7</answer>"})
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(row)}\n")
    found = evaluate_model(str(whole), f"{tmp_path}/train.jsonl:train", max_tokens=2)
    assert found["num_samples"] == 1 and "exact" in found["metrics"]


def test_more_faults_than_a_run_allows_are_an_error_beside_the_figures_and_their_bound(
    whole: Path, tmp_path: Path
) -> None:
    verifier = tmp_path / "mine.py"
    verifier.write_text(
        "def score(sample, text):\n    return 1.0 if sample.id == '0' else float('no number')\n"
    )
    asked = ["eval", str(whole), "--data", "records:train", "--verifier", f"{verifier}:score"]
    asked += ["--max-tokens", "2", "--out", str(tmp_path / "out")]
    ran = subprocess.run([sys.executable, "-m", "vlmrl", *asked], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "verifier 'score' failed on 5 of 6 completions; scoring.fault_limit" in ran.stderr
    assert "0.1667 with 0 for faults" in ran.stdout
    stored = json.loads((tmp_path / "out/evaluation.json").read_text())
    assert stored["faults"] == {"score": 5} and stored["with_zeros"]["score"] == 1 / 6


def test_a_damaged_best_checkpoint_is_passed_over_by_name(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_run(str(run)) == (run, run / "checkpoints/step-1")
    flip(run / "checkpoints/step-1/model.safetensors")
    assert find_run(str(run)) == (run, run / "checkpoints/step-2")
    said = capsys.readouterr().err
    assert "best checkpoint" in said and "model.safetensors" in said and said.count("\n") == 1


def test_a_damaged_checkpoint_is_refused_in_one_line(run: Path) -> None:
    path = run / "checkpoints/step-2"
    flip(path / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors was changed") as error:
        evaluate_model(str(path), "records:train")
    assert "\n" not in str(error.value)
