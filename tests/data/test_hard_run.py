"""A run whose data hold every hostile file there is ends normally and names the ones it left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.hard import HARD, hard_rows
from vlmrl.assemble import lifecycle
from vlmrl.config import load

KEYS = {"image": "images", "video": "videos", "audio": "audios"}

SETTINGS = [
    "run.steps=4",
    "run.threads=1",
    "run.report=false",
    "tracking.tensorboard=false",
    "model.build.family=qwen2_5_omni",
    "model.max_pixels=12544",
    "sft=null",
    "evaluation=null",
    "rewards=[format]",
    "rollout={prompts: 13, group_size: 2, max_tokens: 4}",
    "checks={media_ablation_every: 0, parity_every: 0}",
    "data.quarantine_limit=1",
    "data.max_prompt_tokens=100000",
    "data.video={fps: 1.0, max_frames: 4, max_pixels: 12544}",
]


@pytest.mark.slow
def test_a_run_over_hostile_files_ends_and_lists_them_with_and_without_workers(
    tmp_path: Path,
) -> None:
    refused = refused_by_a_run(tmp_path / "alone", workers=0)
    expected = {row["file"]: row["expect"] for row in hard_rows()}
    for name, reason in refused.items():
        assert expected[name] != "decode" or "200" in reason, (name, reason)  # an aspect ratio
        assert name in reason
    assert {name for name, what in expected.items() if what == "refuse"} <= refused.keys()
    assert len(refused) < len(expected) - 20
    assert refused_by_a_run(tmp_path / "ahead", workers=2) == refused


def refused_by_a_run(folder: Path, workers: int) -> dict[str, str]:
    """Train on all hostile files; return the files that were left out, with the reasons."""
    lines = []
    for row in hard_rows():
        media = {KEYS[row["kind"]]: [str(HARD / row["file"])]}
        lines.append({"id": row["file"], "question": "What is it?", "answer": "a thing", **media})
    folder.mkdir()
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = f"{{name: hostile, card: records, options: {{path: {rows}}}, weight: 3}}"
    config = load(
        "quickstart",
        [
            *SETTINGS,
            f"run.dir={folder / 'run'}",
            f"data.workers={workers}",
            f"data.media_root={HARD}",
            f"data.train=[{source}, shapes]",
        ],
    )
    assert lifecycle.train(config)["finished"]
    noted = (folder / "run" / "quarantine.jsonl").read_text().splitlines()
    return {line["id"]: line["reason"] for line in map(json.loads, noted)}
