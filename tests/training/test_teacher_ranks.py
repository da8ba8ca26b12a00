"""Two ranks learn from a teacher as one process does: alone, beside rewards, with an adapter, sharded."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import exchange
from helpers.runs import TINY, metric_lines, torchrun
from vlmrl.assemble import lifecycle
from vlmrl.config import load

RUN = [
    *TINY,
    "run.steps=3",
    "sft=null",
    "evaluation=null",
    "checks={media_ablation_every: 0, parity_every: 0}",
    f"engine.name={Path(exchange.__file__)}:PlacedHf",
    "optimizer.eps=1e-4",
    "optimizer.lr=1e-3",
]
WAYS = {
    "alone": ["algorithm=on_policy_distillation", "distributed.strategy=ddp"],
    "an adapter, several updates": [
        "algorithm=on_policy_distillation",
        "distributed.strategy=ddp",
        "model.lora={rank: 4}",
        "optimizer.minibatches=2",
    ],
    "beside rewards, sharded": [
        "algorithm={name: grpo, options: {teacher_kl: 0.3}}",
        "distributed.strategy=fsdp2",
    ],
}


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_learn_from_a_teacher_as_one_process_does(way: str, tmp_path: Path) -> None:
    first = [*RUN, "run.steps=1", "run.seed=1", f"run.dir={tmp_path / 'teacher'}"]
    assert lifecycle.train(load("quickstart", first))["finished"]
    more = [*RUN, *WAYS[way], f"teacher.path={tmp_path / 'teacher/checkpoints/step-1'}"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert lifecycle.train(load("quickstart", [f"run.dir={one}", *more]))["finished"]
    done = torchrun("-m", "vlmrl", "train", "quickstart", f"run.dir={two}", *more)
    assert done.returncode == 0, done.stderr
    expected, found = metric_lines(one), metric_lines(two)
    assert [line["step"] for line in found] == [1, 2, 3]
    names = ("loss/teacher_kl", "loss/total", "update/grad_norm", "update/tokens")
    for ours, theirs in zip(found, expected, strict=True):
        for name in names:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
    assert found[0]["loss/teacher_kl"] != 0
