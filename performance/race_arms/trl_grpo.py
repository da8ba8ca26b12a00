"""TRL's GRPOTrainer on the rows of the race, after its own `examples/scripts/grpo_vlm.py`.

    python trl_grpo.py --model MODEL --rows ROWS.jsonl --rewards JSON --output_dir OUT [options of GRPOConfig]

A user has no clock, and calls `train()` without the callback.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.system import torchvision_shim  # noqa: F401  isort: skip  (a CPU's torchvision needs it)
import av
import datasets  # noqa: TID251  (TRL takes nothing else)
import numpy as np
import transformers
import trl
from clock import Clock

from vlmrl.features.integrations.trl import reward_function


@dataclass
class Race:
    """What is no option of GRPOConfig."""

    model: str
    rows: Path
    rewards: str
    """The config's `rewards`, as JSON."""


class Turns(transformers.TrainerCallback):
    """Waits for its turn before each step."""

    def __init__(self) -> None:
        self.clock = Clock()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.clock.wait(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.clock.wait(state.global_step)


def read_rows(path: Path) -> datasets.Dataset:
    """Return the rows as TRL documents them: a conversation, and its images in a column of their own."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [{**line, "prompt": [{"role": "user", "content": line["question"]}]} for line in lines]
    data = datasets.Dataset.from_list(rows).remove_columns("question")
    if "images" in data.column_names:
        return data.cast_column("images", datasets.Sequence(datasets.Image()))
    data.set_transform(show_videos)
    return data


def show_videos(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """It has no column for videos: their frames are parts of the conversation."""
    for prompt, files in zip(rows["prompt"], rows["videos"], strict=True):
        with av.open(files[0]) as file:
            frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
        text = {"type": "text", "text": prompt[0]["content"]}
        prompt[0]["content"] = [{"type": "video", "video": np.stack(frames)}, text]
    return rows


def main() -> None:
    race, config = trl.TrlParser((Race, trl.GRPOConfig)).parse_args_and_config()
    trainer = trl.GRPOTrainer(
        model=race.model,
        args=config,
        reward_funcs=reward_function(json.loads(race.rewards)),
        train_dataset=read_rows(race.rows),
        callbacks=[Turns()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
