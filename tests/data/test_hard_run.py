"""A run whose data hold every hostile file there is ends normally and names the ones it left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vlmrl.assemble import lifecycle
from vlmrl.config import load

HARD = Path(__file__).parents[3] / "shared" / "data" / "hard"
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
@pytest.mark.skipif(not HARD.is_dir(), reason="the hostile files are not here")
def test_a_run_over_hostile_files_ends_and_lists_them(tmp_path: Path) -> None:
    expected = {}
    lines = []
    for row in map(json.loads, (HARD / "manifest.jsonl").read_text().splitlines()):
        expected[row["file"]] = row["expect"]
        media = {KEYS[row["kind"]]: [str(HARD / row["file"])]}
        lines.append({"id": row["file"], "question": "What is it?", "answer": "a thing", **media})
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = f"{{name: hostile, card: records, options: {{path: {rows}}}, weight: 3}}"
    config = load(
        "quickstart",
        [
            *SETTINGS,
            f"run.dir={tmp_path / 'run'}",
            f"data.media_root={HARD}",
            f"data.train=[{source}, shapes]",
        ],
    )

    summary = lifecycle.train(config)

    assert summary["finished"]
    noted = (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()
    refused = {line["id"]: line["reason"] for line in map(json.loads, noted)}
    for name, reason in refused.items():
        assert expected[name] != "decode" or "200" in reason, (name, reason)  # an aspect ratio
        assert name in reason
    assert {name for name, what in expected.items() if what == "refuse"} <= refused.keys()
    assert len(refused) < len(expected) - 20
