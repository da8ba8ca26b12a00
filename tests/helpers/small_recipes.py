"""Overrides that make a recipe a run of seconds with a small model, its parts and stages as they are."""

from __future__ import annotations

import sys
from pathlib import Path

from vlmrl.config import Config

STEPS = 2
COPY = f"engine.name={Path(__file__).parent}/copy_engine.py:CopyEngine"
"""The engine of recipes whose rollouts are stale: a copy of the policy, which generates ahead."""
SMALL = [
    "model.path=",
    "model.dtype=float32",
    "model.gradient_checkpointing=false",
    "model.min_pixels=",
    "run.threads=1",
    f"run.steps={STEPS}",
    "run.report=false",
    "tracking.tensorboard=false",
    "evaluation=",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "rollout.max_tokens=8",
    "optimizer.minibatches=1",
]
FAMILIES = {"Qwen2-Audio": "qwen2_audio", "Qwen2.5-Omni": "qwen2_5_omni", "Qwen2-VL": "qwen2_vl"}
"""Start of a published model's name -> its family; else Qwen2.5-VL's."""


def small(config: Config) -> list[str]:
    """Return the overrides that make a recipe a run of seconds, its parts and stages as they are."""
    name = str(config.model.path).rpartition("/")[2]
    family = next((f for start, f in FAMILIES.items() if name.startswith(start)), "qwen2_5_vl")
    pixels = "" if config.model.max_pixels is None else 3136
    overrides = [*SMALL, f"model.build.family={family}", f"model.max_pixels={pixels}"]
    stale = min(config.rollout.max_staleness, STEPS)
    overrides += [COPY, "engine.options={}"] if stale else ["engine=hf"]
    overrides += [f"rollout.max_staleness={stale}"]
    if config.rollout.chunks:
        overrides += ["rollout.chunks.carry=4", "rollout.chunks.head=1"]
    if config.rollout.turns.branching:
        overrides += ["rollout.turns.branching.initial=2"]
    if config.sft:
        overrides += [f"sft.{key}=2" for key in ("max_steps", "batch_size", "validate_from")]
        overrides += ["run.steps=0"] if config.trains_scores else []
        overrides += ["sft.decay_steps=1", "sft.warmup_steps=1", "sft.validation_limit=2"]
    for row, source in enumerate(config.data.train):
        for column, tool in enumerate(source.tools):
            if "isolation" in tool.options:  # no sandbox is needed for what a small model writes
                key = f"data.train.{row}.tools.{column}.options.isolation"
                overrides += [f"{key}={sys.executable} -I -"]
    for index, stage in enumerate(config.stages):
        sizes = {"max_tokens": 8, "group_size": 4, "prompts": 4}
        overrides += [
            f"stages.{index}.rollout.{k}={v}" for k, v in sizes.items() if k in stage.rollout
        ]
    return overrides
