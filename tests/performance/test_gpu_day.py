"""The GPU day runs on a tiny model without a GPU; whatever a check does, the rest of the day goes on."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vlmrl.assemble.validate import load_valid
from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.models.loading import load_model

FOLDER = Path(__file__).parents[2] / "performance"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


LONG = ("families", "trainings", "race")


@pytest.mark.nightly
def test_a_dry_run_answers_every_question_or_says_why_not(tmp_path: Path) -> None:
    from gpu_day.checks import CHECKS

    # The steps are in test_performance.py; TRL alone takes long to import.
    require_answers([c.name for c in CHECKS if c.name not in ("step", *LONG)], tmp_path)
    page = (tmp_path / "gpu.md").read_text()
    assert f"torch: {torch.__version__}" in page
    assert "the trainer's check of shared: passes" in page


@pytest.mark.nightly
def test_a_dry_run_takes_every_family_and_trains_in_every_way(tmp_path: Path) -> None:
    from gpu_day.families import FAMILIES
    from gpu_day.trainings import TRAININGS

    require_answers(LONG, tmp_path)
    rows = [line["row"] for line in lines_of(tmp_path) if "row" in line]
    assert {row["family"] for row in rows if "family" in row} == {*FAMILIES}
    trained = {row["training"]: row["s a step"] for row in rows if "training" in row}
    assert [*trained] == [training.name for training in TRAININGS]
    assert float(trained["engine hf"]) > 0


def test_the_configs_of_the_day_are_valid() -> None:
    from gpu_day.eight_cards import PAPER_CHECKS
    from gpu_day.trainings import BASE, TRAININGS

    for training in TRAININGS:
        load_valid("quickstart", [*BASE, *training.overrides])
    for check in PAPER_CHECKS:
        words = shlex.split(check.command)
        name, *overrides = words[words.index("train") + 1 :]
        load_valid(name, overrides)


def require_answers(asked: Sequence[str], tmp_path: Path) -> None:
    """Run these checks dry; each must have rows and be done, or say what is not installed."""
    from gpu_day.checks import CHECKS

    command = [sys.executable, str(FOLDER / "gpu.py"), "--dry-run", "--out", str(tmp_path)]
    command += ["--minutes", "60", "--only", *asked]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr
    ends = {line["check"]: line["end"] for line in lines_of(tmp_path) if "end" in line}
    assert list(ends) == [*asked]
    with_rows = {line["check"] for line in lines_of(tmp_path) if "row" in line}
    for check in CHECKS:
        if check.name in asked:
            assert ends[check.name] == (f"skipped: {check.missing}." if check.missing else "done.")
            assert (check.name in with_rows) is not bool(check.missing)


def day_of(folder: Path, *checks: Any, minutes: float = 1.0) -> tuple[list[str], str]:
    """Run these checks; return who failed, and the page."""
    from gpu_day.day import Day
    from gpu_day.report import Report
    from gpu_day.run import run_checks

    failed = run_checks(checks, Day(tiny=False), Report(folder, "monday"), minutes)
    return failed, (folder / "gpu.md").read_text()


def check(name: str, work: Any, **named: Any) -> Any:
    from gpu_day.checks import Check

    return Check(name, "Is it so?", **{"minutes": 0.5, **named}, run=work)


def one_row(day: object) -> Iterator[dict[str, str]]:
    yield {"answer": "yes", "|x|": "1"}


def test_a_check_that_fails_keeps_its_rows_and_the_next_begins(tmp_path: Path) -> None:
    def breaks(day: object) -> Iterator[dict[str, str]]:
        yield {"answer": "so far"}
        raise ValueError("no\nkernel")

    failed, page = day_of(tmp_path, check("first", breaks), check("second", one_row))
    assert failed == ["first"]
    assert "failed: ValueError: no kernel" in page
    assert "| so far |" in page
    assert "| yes | 1 |" in page
    assert r"| answer | \|x\| |" in page


def test_a_check_that_takes_too_long_is_stopped_and_keeps_its_rows(tmp_path: Path) -> None:
    def sleeps(day: object) -> Iterator[dict[str, str]]:
        yield from one_row(day)
        try:
            time.sleep(60)
        except Exception:  # as libraries do
            pass
        yield {"answer": "never"}

    failed, page = day_of(tmp_path, check("slow", sleeps, minutes=0.002))
    assert not failed
    assert "stopped: it took more than 0.002 minutes." in page
    assert "| yes | 1 |" in page
    assert "never" not in page


def test_what_cannot_run_is_skipped_with_a_sentence(tmp_path: Path) -> None:
    lacking = check("lacking", one_row, needs=("torch", "no_such_package"))
    long = check("long", one_row, minutes=2)
    failed, page = day_of(tmp_path, lacking, long, check("short", one_row))
    assert not failed
    assert "skipped: no_such_package is not installed." in page
    assert "skipped: it may take 2 minutes, and " in page
    assert page.count("| yes | 1 |") == 1


def test_a_page_shows_the_newest_run_of_each_check_and_one_that_was_killed() -> None:
    from gpu_day.report import write_page

    def lines(run: str, check: str, value: str, ended: bool) -> list[dict[str, Any]]:
        end = {"run": run, "check": check, "question": "?", "end": "done.", "seconds": 1}
        row = {"run": run, "check": check, "row": {"value": value}}
        return [{"run": run, "machine": {"device": run}}, row, *([end] if ended else [])]

    known = lines("old", "a", "1", True) + lines("older", "b", "2", True)
    page = write_page(known + lines("new", "a", "3", False))
    assert "| 3 |" in page and "| 2 |" in page and "| 1 |" not in page
    assert "cut off" in page
    assert "device: old." not in page and "device: older." in page


def test_out_of_memory_is_a_result() -> None:
    from gpu_day.day import cells
    from gpu_day.device import attempt

    def needs_too_much() -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert attempt(lambda: 1.0) == 1.0
    assert cells(attempt(needs_too_much)) == {"ms": "out of memory"}


def test_the_model_has_as_many_weights_as_qwen2_5_vl_3b() -> None:
    from gpu_day.day import TEXT_3B, VISION_3B, Day

    build = BuildConfig(family="qwen2_5_vl", text=dict(TEXT_3B), vision=dict(VISION_3B))
    with torch.device("meta"):
        model = load_model(ModelConfig(build=build), ["user assistant"] * 9).model
        model.resize_token_embeddings(Day(tiny=False).vocabulary, mean_resizing=False)
    assert sum(p.numel() for p in model.parameters()) == 3_754_622_976


def test_the_flash_kernel_is_called_as_pytorch_declares_it() -> None:
    from gpu_day.attention import flash, flash_backward

    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 16, 300, 128, dtype=torch.bfloat16, device="cuda")
        k = torch.empty(1, 2, 40, 128, dtype=torch.bfloat16, device="cuda")
        out, lse = flash(q, k, k, 0.1, False, None)
        assert (out.shape, lse.shape, lse.dtype) == (q.shape, q.shape[:3], torch.float32)
        gradients = flash_backward(q, q, k, k, out, lse, 0.1, False, None)
        assert [g.shape for g in gradients] == [q.shape, k.shape, k.shape]
