"""What each trainer is called with: the same task in the words of each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vlmrl import config
from vlmrl.config import Config

ARMS = Path(__file__).parent
CLOCK = "performance/race_arms/own_clock.py:OwnClock"


@dataclass(frozen=True)
class Heat:
    """A task and a seed, and the folder of all that is written for it."""

    file: Path
    folder: Path
    changes: Sequence[str]
    """Overrides of the task's config."""
    forward: int
    """Completions that the others put through the model at a time."""

    @property
    def settings(self) -> Config:
        return config.load(str(self.file), self.changes)

    @property
    def rewards(self) -> str:
        """The config's `rewards`, as JSON."""
        return json.dumps([reward.model_dump(mode="json") for reward in self.settings.rewards])


def own(heat: Heat, folder: Path) -> list[str]:
    """`vlmrl train`, from the exported start, with the clock as its tracker."""
    begun = [f"model.path={heat.folder / 'start'}", "model.build=null", "sft=null"]
    more = [
        "evaluation=null",
        f"run.dir={folder}",
        f"tracking={{tensorboard: false, {CLOCK}: {{}}}}",
    ]
    return ["-m", "vlmrl", "train", str(heat.file), *heat.changes, *begun, *more]


def trl(heat: Heat, folder: Path) -> list[str]:
    """TRL's options, in `trl.yaml` and here."""
    given = {"rows": heat.folder / "rows/rows.jsonl", "rewards": heat.rewards, "output_dir": folder}
    return [str(ARMS / "trl_grpo.py"), "--config", str(ARMS / "trl.yaml"), *_options(heat, given)]


def swift(heat: Heat, folder: Path) -> list[str]:
    """ms-swift's options, in `swift.yaml` and here."""
    given = {"dataset": heat.folder / "rows/swift.jsonl", "output_dir": folder}
    return [str(ARMS / "swift_grpo.py"), str(ARMS / "swift.yaml"), *_options(heat, given)]


def _options(heat: Heat, given: Mapping[str, Any]) -> list[str]:
    """Return these options, and the task in the words that TRL and ms-swift share."""
    settings = heat.settings
    rollout = settings.rollout
    task = {
        "model": heat.folder / "start",
        "per_device_train_batch_size": heat.forward,
        "gradient_accumulation_steps": rollout.prompts * rollout.group_size // heat.forward,
        "num_generations": rollout.group_size,
        "max_completion_length": rollout.max_tokens,
        "learning_rate": settings.optimizer.lr,
        "max_steps": settings.run.steps,
        "save_steps": settings.run.save_every,
        "seed": settings.run.seed,
        "bf16": settings.model.dtype == "bfloat16",
        "use_cpu": not torch.cuda.is_available(),
    }
    return [word for key, value in {**task, **given}.items() for word in (f"--{key}", str(value))]


TRAINERS: Mapping[str, tuple[Callable[[Heat, Path], list[str]], str]] = {
    "vlmrl": (own, "checkpoints/step-{}"),
    "trl": (trl, "checkpoint-{}"),
    "ms-swift": (swift, "checkpoint-{}"),
}
"""What a trainer is called with, and where it writes the checkpoint of a step."""


def commands(heat: Heat, python_of_swift: str | None) -> dict[str, list[str]]:
    """Return the command of each trainer; without a Python that has ms-swift it takes no part."""
    pythons = {"vlmrl": sys.executable, "trl": sys.executable, "ms-swift": python_of_swift}
    return {
        name: [python, *TRAINERS[name][0](heat, heat.folder / name / "run")]
        for name, python in pythons.items()
        if python
    }
