"""A run with all that has state, killed at random moments, ends as one that is not.

That is an adapter, workers, rollouts ahead and bad rows; a sampler that learns, stages and rehearsal; and
the shipped run with Whisper's ears, in its cold start and after it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from helpers.kills import kill_behind, kill_repeatedly, train_fully
from helpers.runs import final_state, metric_lines

TIMED = ("rollout/trainer_waiting", "rollout/generation_idle")


def curves(folder: Path) -> list[dict[str, float]]:
    return [
        {k: v for k, v in line.items() if k not in TIMED and not k.endswith("/seconds")}
        for line in metric_lines(folder)
    ]


def rows(folder: Path) -> list[Any]:
    """What was said, shown and paid in every step, without the seconds that calls took."""
    files = sorted((folder / "rollouts").glob("*.jsonl"))
    return [
        (file.name, json.loads(line, object_pairs_hook=_untimed))
        for file in files
        for line in file.read_text().splitlines()
    ]


def _untimed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if key != "seconds"}


def left_out(folder: Path) -> set[str]:
    lines = (folder / "quarantine.jsonl").read_text().splitlines()
    return {json.loads(line)["id"] for line in lines}


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    train_fully(whole)
    assert (whole / "checkpoints/step-10/adapter/adapter_model.safetensors").is_file()
    assert (whole / "checkpoints/step-9/trainer/queue.json").is_file()
    kills = int(os.environ.get("VLMRL_KILLS", "1"))
    assert kill_repeatedly(folder, kills, seed=0) == kills
    train_fully(folder)
    for found in (folder, folder.with_name("run.done")):
        if found.exists():
            assert curves(found) == curves(whole)
            assert final_state(found) == final_state(whole)
            assert left_out(found) == left_out(whole)


@pytest.mark.nightly
def test_a_curriculum_killed_at_random_moments_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    train_fully(whole, "curriculum")
    lines = metric_lines(whole)
    assert len({line["sampler/target"] for line in lines}) > 1
    assert {line["schedule/stage"] for line in lines} == {1, 2}
    assert any(line["rehearsal/share"] for line in lines)
    kills = int(os.environ.get("VLMRL_KILLS", "20"))
    assert kill_repeatedly(folder, kills, seed=1, kind="curriculum") == kills
    train_fully(folder, "curriculum")
    for found in (folder, folder.with_name("run.done")):
        if found.exists():
            assert curves(found) == curves(whole)
            assert final_state(found) == final_state(whole)


@pytest.mark.nightly
def test_self_play_killed_at_random_moments_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    train_fully(whole, "self_play")
    assert any(line["self_play/learnable"] for line in metric_lines(whole))
    kills = int(os.environ.get("VLMRL_KILLS", "5"))
    assert kill_repeatedly(folder, kills, seed=2, kind="self_play") == kills
    train_fully(folder, "self_play")
    for found in (folder, folder.with_name("run.done")):
        if found.exists():
            assert curves(found) == curves(whole)
            assert final_state(found) == final_state(whole)


@pytest.mark.nightly
def test_rollouts_of_several_turns_killed_at_random_moments_end_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    train_fully(whole, "turns")
    lines = metric_lines(whole)
    assert all(1 < line["rollout/turns"] < 3 for line in lines)
    assert lines[-1]["rollout/staleness"] > 0
    assert any(line["world/reward"] for line in lines if "world/reward" in line)
    assert any("tool/crop/seconds" in line for line in lines)
    assert (whole / "checkpoints/step-9/trainer/observed.safetensors").is_file()
    kills = int(os.environ.get("VLMRL_KILLS", "5"))
    assert kill_repeatedly(folder, kills, seed=2, kind="turns") == kills
    train_fully(folder, "turns")
    for found in (folder, folder.with_name("run.done")):
        if found.exists():
            assert curves(found) == curves(whole)
            assert final_state(found) == final_state(whole)
            assert rows(found) == rows(whole)


@pytest.mark.nightly
def test_whisper_digits_killed_in_the_cold_start_and_in_grpo_ends_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    train_fully(whole, "whisper")
    kill_behind(folder, "whisper", "sft.jsonl", 12)
    assert not (folder / "metrics.jsonl").exists()
    kill_behind(folder, "whisper", "metrics.jsonl", 17)
    assert (folder / "checkpoints/step-15").is_dir()
    kill_behind(folder, "whisper", "metrics.jsonl", 38)
    train_fully(folder, "whisper")
    assert curves(folder) == curves(whole)
    assert final_state(folder) == final_state(whole)
    assert rows(folder) == rows(whole)
    for name in ("sft.jsonl", "evals/step-0.json", "evals/step-30.json", "evals/step-60.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
