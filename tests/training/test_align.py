"""The first part of a cold start trains some towers alone, others keep their bytes; it resumes to the bit."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.daily import marked
from helpers.interrupts import stop_after
from helpers.runs import TINY, final_state, metric_lines, torchrun
from helpers.shared_forward import packed, rollouts_of
from helpers.small import policy
from vlmrl.assemble import lifecycle
from vlmrl.assemble.build import build_trainer
from vlmrl.assemble.cold_start import run_cold_start
from vlmrl.config import SftConfig, load
from vlmrl.errors import UserError
from vlmrl.features.report.page import build_report
from vlmrl.policy.checkpoint import Progress
from vlmrl.policy.trainable import is_adapter, tower_of
from vlmrl.runs.run_log import RunLog
from vlmrl.schema import PromptBatch, Rollouts
from vlmrl.system.interrupt import Interrupt
from vlmrl.training import sft

CAPTIONS = "{card: shapes, split: demos, options: {task: describing}, instruct: false, limit: 12}"
STEPS = 3
LORA = ["model.lora={rank: 2, full: [projector]}", "model.freeze=[vision]"]
SHORT = [
    *TINY,
    "run.steps=2",
    "evaluation=null",
    "sft.warmup_steps=2",
    "checks={media_ablation_every: 0, parity_every: 0}",
]
ALIGN = f"sft.align={{steps: {STEPS}, lr: 2.0e-3, sources: [{CAPTIONS}]}}"


def config(folder: Path, *more: str) -> Any:
    return load("quickstart", [*SHORT, f"run.dir={folder}", ALIGN, *more])


def cold_start(folder: Path, *more: str) -> tuple[list[dict[str, Any]], list[Any], list[str]]:
    """The weights before a cold start and after each of its steps, its metrics, and what it said."""
    chosen = load("quickstart", [*SHORT, f"run.dir={folder}", *more])
    metrics: list[Any] = []
    notes: list[str] = []
    with ExitStack() as stack, Interrupt() as interrupt:
        trainer = build_trainer(chosen, None, Progress(), stack)
        base = trainer.policy.base
        weights = [{n: p.detach().clone() for n, p in base.named_parameters()}]

        def step(number: int, found: dict[str, float]) -> None:
            metrics.append({"step": number, **found})
            weights.append({n: p.detach().clone() for n, p in base.named_parameters()})

        trainer.tracker.sft_step = step
        trainer.tracker.note = notes.append
        trains = set(trainer.policy.named)
        assert run_cold_start(trainer, chosen.sft, None, Progress(), interrupt)
        assert set(trainer.policy.named) == trains
    return weights, metrics, notes


def moved(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name, weight in before.items() if not torch.equal(weight, after[name])}


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], LORA], ids=["full", "lora"])
def test_only_the_projector_moves_in_it_and_all_that_trains_after_it(
    more: list[str], tmp_path: Path
) -> None:
    rates = "optimizer.lr_factors={language: 0.5}"  # not for the first part
    weights, metrics, notes = cold_start(tmp_path / "run", ALIGN, rates, *more)
    family = policy().family
    projector = {n for n in weights[0] if not is_adapter(n) and tower_of(n, family) == "projector"}
    for after in weights[1 : STEPS + 1]:
        assert moved(weights[0], after) == projector
    later = moved(weights[STEPS], weights[-1])
    assert projector < later and any(tower_of(n, family) == "language" for n in later)
    assert [line["step"] for line in metrics] == list(range(1, STEPS + 4 + 1))
    assert metrics[1]["lr"] == pytest.approx(2e-3) and metrics[0]["lr"] == pytest.approx(1e-3)
    assert notes == [
        "cold start, steps 1 to 3: of all towers projector alone",
        "cold start, from step 4 on: all that trains",
    ]


@pytest.mark.slow
def test_it_is_the_training_of_a_model_whose_other_towers_are_frozen(tmp_path: Path) -> None:
    sources = f"sft.sources=[{CAPTIONS}]"
    weights, metrics, _ = cold_start(
        tmp_path / "a", sources, f"sft.align={{steps: {STEPS}, lr: 2.0e-3}}"
    )
    alone = ["model.freeze=[vision, language]", f"sft.max_steps={STEPS}", "sft.lr=2.0e-3"]
    expected, same, _ = cold_start(tmp_path / "b", sources, *alone)
    for name, weight in expected[-1].items():
        torch.testing.assert_close(weights[STEPS][name], weight, atol=2e-5, rtol=0, msg=name)
    for found, line in zip(metrics[:STEPS], same, strict=True):
        assert found == pytest.approx(line, rel=1e-4)


@pytest.fixture(scope="module", params=marked(["full", "lora"], ["lora"]))
def whole(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """A whole run, its checkpoint at the end of the first part, and what it adds to the config."""
    more = LORA if request.param == "lora" else []
    folder = tmp_path_factory.mktemp("whole")
    saved = RunLog.saved

    def copy(log: RunLog, step: int, phase: Any, path: Path, seconds: float) -> None:
        if (phase, step) == ("sft", STEPS):
            shutil.copytree(path, folder / path.name)
        saved(log, step, phase, path, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLog, "saved", copy)
        lifecycle.train(config(folder / "run", *more))
    return folder / "run", folder / f"sft-{STEPS}", more


def require_same(found: Path, expected: Path) -> None:
    assert final_state(found) == final_state(expected)
    assert metric_lines(found) == metric_lines(expected)
    assert (found / "sft.jsonl").read_text() == (expected / "sft.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("steps", marked([2, STEPS, STEPS + 2], [2]))
def test_a_run_that_was_interrupted_in_either_part_is_the_whole_run(
    steps: int, whole: tuple[Path, Path, list[str]], tmp_path: Path, monkeypatch: Any
) -> None:
    run, _, more = whole
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(steps))
        assert not lifecycle.train(config(folder, *more))["finished"]
    lifecycle.train(config(folder, *more, "resume=auto"))
    require_same(folder, run)


@pytest.mark.slow
def test_a_run_that_was_killed_between_both_is_the_whole_run(
    whole: tuple[Path, Path, list[str]], tmp_path: Path
) -> None:
    run, checkpoint, more = whole
    folder = tmp_path / "run"
    shutil.copytree(checkpoint, folder / f"checkpoints/sft-{STEPS}")
    shutil.copy(run / "config.json", folder / "config.json")
    shutil.copy(run / "starts.jsonl", folder / "starts.jsonl")
    lines = (run / "sft.jsonl").read_text().splitlines(keepends=True)
    (folder / "sft.jsonl").write_text("".join(lines[:STEPS]))
    lifecycle.train(config(folder, *more, "resume=auto"))
    require_same(folder, run)


@pytest.mark.slow
def test_the_report_marks_where_it_ends(whole: tuple[Path, Path, list[str]]) -> None:
    build_report(whole[0])
    assert "all that trains: from step 4" in (whole[0] / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", marked(["ddp", "fsdp2"], ["fsdp2"]))
def test_two_ranks_align_as_one_does(
    strategy: str, whole: tuple[Path, Path, list[str]], tmp_path: Path
) -> None:
    run, _, more = whole
    folder = tmp_path / "run"
    settings = [*SHORT, ALIGN, *more, f"run.dir={folder}", f"distributed.strategy={strategy}"]
    done = torchrun("-m", "vlmrl", "train", "quickstart", *settings)
    assert done.returncode == 0, done.stderr
    found, expected = (
        [json.loads(line) for line in (each / "sft.jsonl").read_text().splitlines()]
        for each in (folder, run)
    )
    assert len(found) == STEPS + 4
    for line, other in zip(found, expected, strict=True):
        assert line == pytest.approx(other, rel=1e-3)


def test_texts_alone_move_nothing_in_it() -> None:
    made = policy()
    drawn = rollouts_of(made)
    pairs = zip(drawn.batch.prompts, drawn.completions, strict=True)
    ((prompt, group),) = [(p, group) for p, group in pairs if not p.media]
    only = packed(Rollouts(PromptBatch((prompt,)), (group[:1],)))  # one demonstration of a prompt
    before = {n: p.detach().clone() for n, p in made.base.named_parameters()}
    with made.training_only(["projector"]):
        assert made.update(only, sft.Imitation(), lr=1e-2, progress=0.0)["loss/total"] > 0
    assert not moved(before, dict(made.base.named_parameters()))


def test_a_tower_that_does_not_train_is_refused() -> None:
    made = policy(freeze=["projector"])
    with (
        pytest.raises(UserError, match=r"of \['language', 'vision'\], got 'projector'"),
        made.training_only(["projector"]),
    ):
        pass


def test_a_reward_model_has_no_such_part() -> None:
    with pytest.raises(ValueError, match="align: expected objective imitation"):
        SftConfig(objective="preferences", align={"steps": 2})
