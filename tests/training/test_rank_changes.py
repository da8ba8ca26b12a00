"""A run goes on as it would have, whatever the number of ranks that train it next: 2, then 1, then 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from helpers import exchange
from helpers.interrupts import stop_after
from helpers.runs import TINY, metric_lines, torchrun
from vlmrl.assemble import lifecycle
from vlmrl.config import load

FORMS = {"full": [], "adapter": ["model.lora={rank: 4}"]}
RUN = [
    *TINY,
    "run.steps=6",
    "run.save_every=1",
    "run.keep_checkpoints=9",
    "run.rollouts_every=1",
    "sft=null",
    "evaluation=null",
    "checks={media_ablation_every: 0, parity_every: 0}",
    f"engine.name={Path(exchange.__file__)}:PlacedHf",
    # Rounding alone moves a weight without gradient (the bias of keys) by the whole rate otherwise.
    "optimizer.eps=1e-4",
    "optimizer.lr=1e-3",
]


def on_two(folder: Path, *more: str) -> None:
    done = torchrun("-m", "vlmrl", "train", "quickstart", f"run.dir={folder}", *RUN, *more)
    assert done.returncode == 0, done.stderr


def told(folder: Path) -> list[Any]:
    """What was asked and said in every step that the run folder has, by step."""
    files = sorted((folder / "rollouts").glob("step-*.jsonl"))
    rows = [(f.stem, json.loads(line)) for f in files for line in f.read_text().splitlines()]
    return [(stem, row["id"], [c["text"] for c in row["completions"]]) for stem, row in rows]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """What is trained, after the last step."""
    adapter = folder / "checkpoints/step-6/adapter/adapter_model.safetensors"
    whole = folder / "checkpoints/step-6/model.safetensors"
    return safetensors.torch.load_file(adapter if adapter.exists() else whole)


def require_the_same(found: Path, expected: Path, steps: range) -> None:
    lines = {line["step"]: line for line in metric_lines(expected)}
    assert [line["step"] for line in metric_lines(found)] == list(steps)
    for line in metric_lines(found):
        other = lines[line["step"]] | {"update/useful_share": 1.0}
        assert line | {"update/useful_share": 1.0} == pytest.approx(other, rel=1e-3, abs=1e-5)
    said = [one for one in told(expected) if int(one[0][5:]) in steps]
    assert told(found) == said
    for name, value in weights(expected).items():
        assert (weights(found)[name] - value).abs().max() <= 2e-6, name


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_ranks_then_one_then_two_train_as_two_do(strategy, form, tmp_path, monkeypatch):
    more = [*FORMS[form], f"distributed.strategy={strategy}"]
    whole, changed = tmp_path / "whole", tmp_path / "changed"
    on_two(whole, *more)
    start = f"resume={whole / 'checkpoints/step-2'}"
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(2))
        settings = load("quickstart", [f"run.dir={changed}", *RUN, *more, start])
        assert not lifecycle.train(settings)["finished"]
    assert (changed / "checkpoints/step-4").is_dir()
    on_two(changed, *more, "resume=auto")
    require_the_same(changed, whole, range(3, 7))
