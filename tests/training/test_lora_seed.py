"""New adapters depend on the run's seed and on nothing that was drawn before."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from helpers.runs import TINY
from vlmrl import config
from vlmrl.assemble import lifecycle


def train(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    more = [
        f"run.dir={folder}",
        "run.steps=1",
        "sft=null",
        "model.lora={rank: 2}",
        f"run.seed={seed}",
    ]
    lifecycle.train(config.load("quickstart", [*TINY, *more]))
    (adapter,) = folder.glob("checkpoints/step-1/adapter/*.safetensors")
    return load_file(adapter)


def test_adapters_depend_on_the_seed_alone(tmp_path: Path) -> None:
    first = train(tmp_path / "a", 0)
    torch.rand(7)
    again, other = train(tmp_path / "b", 0), train(tmp_path / "c", 1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name in first if "lora_A" in name]
    assert drawn and not any(torch.equal(first[name], other[name]) for name in drawn)
