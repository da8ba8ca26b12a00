"""Numbers that are not finite end a run, or an update, in the step where they appear; none is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import vlmrl.config
from helpers.runs import TINY, metric_lines, torchrun
from vlmrl.assemble import lifecycle
from vlmrl.errors import NotFinite
from vlmrl.policy import checkpoint

PLAIN = ["evaluation=null", "sft.max_steps=2", "run.save_every=1", "run.keep_checkpoints=1"]
HOT = ["optimizer.lr=1e20", "optimizer.warmup_steps=0"]

BREAKS = """
import torch
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.algorithms.base import LossOutput

class Breaks(Grpo):
    "Breaks at the third step of five."
    def loss(self, inputs):
        out = super().loss(inputs)
        return LossOutput(out.loss * torch.nan, out.metrics) if inputs.progress == 0.4 else out

class Misleads(Grpo):
    "Gives an advantage that is not finite."
    def advantages(self, rewards, rollouts, progress):
        found = super().advantages(rewards, rollouts)
        found.values[0, 0] = torch.inf
        return found

def huge(completion):
    return 1.0
"""


def config(folder: Path, *more: str) -> Any:
    return vlmrl.config.load("quickstart", [f"run.dir={folder}", *TINY, *PLAIN, *more])


def last_is_finite(run: Path, name: str) -> bool:
    last = checkpoint.latest(run)
    assert last is not None and last.name == name and not list(last.parent.glob(".*"))
    weights = safetensors.torch.load_file(last / "model.safetensors")
    return all(bool(w.isfinite().all()) and w.abs().max() < 1e3 for w in weights.values())


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["model.lora={rank: 2}"]], ids=str)
def test_diverged_weights_are_named_with_their_step_and_not_saved(
    more: list[str], tmp_path: Path
) -> None:
    with pytest.raises(
        NotFinite, match=r"^step 1: the weights have diverged.* \(first: \S+\); lower"
    ):
        lifecycle.train(config(tmp_path, *HOT, *more))
    assert last_is_finite(tmp_path, "sft-2")


@pytest.mark.slow
def test_so_are_those_of_a_cold_start(tmp_path: Path) -> None:
    hot = ["sft.lr=1e20", "sft.warmup_steps=0"]
    with pytest.raises(NotFinite, match=r"^cold start, step 1: the weights .* \(first: \S+\)"):
        lifecycle.train(config(tmp_path, *hot))
    assert checkpoint.latest(tmp_path) is None


@pytest.mark.slow
def test_finite_weights_that_no_forward_bears_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A norm of 1e15: each weight is a number, and their products are none."""
    run = lifecycle.Trainer.run

    def spoil(self: Any, interrupt: Any) -> bool:
        step = self.step

        def spoiled() -> Any:
            report = step()
            with torch.no_grad():
                for weight in self.policy.trainable:
                    weight.fill_(1e13)
            return report

        self.step = spoiled
        return run(self, interrupt)

    monkeypatch.setattr(lifecycle.Trainer, "run", spoil)
    with pytest.raises(NotFinite, match=r"^checkpoint of step 1: .*log-probs are not finite"):
        lifecycle.train(config(tmp_path))
    assert last_is_finite(tmp_path, "sft-2")


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_said_and_the_run_goes_on_with_the_weights_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS)
    run = tmp_path / "run"
    lifecycle.train(config(run, f"algorithm={tmp_path}/breaks.py:Breaks"))
    line = "step 3: not applied, because the loss and the gradient (first: "
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("not applied, because") == 1 and line in said
    assert [x["update/skipped"] for x in metric_lines(run)] == [0, 0, 1, 0, 0]
    assert last_is_finite(run, "step-5")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("algorithm={}:Misleads", r"step 1: an advantage of algorithm '.*Misleads' is not finite"),
        (
            "rewards=[{{verifier: '{}:huge', weight: 1e39}}]",
            r"step 1: the reward of sample .* is 1e",
        ),
    ],
)
def test_rewards_and_advantages_that_are_not_finite_end_the_run_in_one_line(
    more: str, what: str, tmp_path: Path
) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS)
    more = more.format(tmp_path / "breaks.py")
    with pytest.raises(NotFinite, match=what) as error:
        lifecycle.train(config(tmp_path / "run", "sft=null", more))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_logits_of_a_model_that_is_broken_from_the_start_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = lifecycle.begin_rl

    def spoil(trainer: Any, *arguments: Any) -> None:
        begin(trainer, *arguments)
        trainer.policy.base.get_output_embeddings().weight.data[5] = torch.nan

    monkeypatch.setattr(lifecycle, "begin_rl", spoil)
    with pytest.raises(
        NotFinite, match=r"^step 1: the policy's logits are not finite \(first: samp"
    ):
        lifecycle.train(config(tmp_path, "sft=null"))


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_all_ranks_agree(strategy: str, tmp_path: Path) -> None:
    arguments = [f"run.dir={tmp_path}", *TINY, *PLAIN, *HOT, f"distributed.strategy={strategy}"]
    done = torchrun("-m", "vlmrl", "train", "quickstart", *arguments)
    assert done.returncode != 0
    assert "error: step 1: the weights have diverged" in done.stderr
    assert last_is_finite(tmp_path, "sft-2")
