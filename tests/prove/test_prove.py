"""`vlmrl prove` repeats the last steps of a run in a folder of its own, and finds any bit that changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.runs import TINY
from vlmrl.assemble import lifecycle
from vlmrl.cli.app import run as command_line
from vlmrl.config import load
from vlmrl.errors import UserError
from vlmrl.features.prove.prove import compare_runs, prove
from vlmrl.runs import run_folder

LORA = ("model.lora={rank: 2}",)


def train(folder: Path, *more: str) -> Path:
    assert lifecycle.train(load("quickstart", [f"run.dir={folder}", *TINY, *more]))["finished"]
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("finished") / "run")


@pytest.mark.slow
def test_the_quickstart_is_equal_to_the_bit_and_is_only_read(finished: Path, capsys) -> None:
    before = contents(finished)
    with pytest.raises(SystemExit) as left:
        command_line(["prove", str(finished)])
    said = capsys.readouterr().out
    assert left.value.code == 0
    assert f"EQUAL: steps 5 to 5 of {finished}, run again from checkpoint step-4" in said
    assert "differ" not in said and "metrics, steps: 1 equal to the bit" in said
    assert contents(finished) == before


@pytest.mark.nightly
def test_adapters_are_equal_to_the_bit(tmp_path: Path) -> None:
    proof = prove(train(tmp_path / "run", *LORA))
    assert proof.equal and (proof.start, proof.end) == (4, 5)
    assert all(d.count for d in proof.differences)


@pytest.mark.nightly
def test_a_bit_that_was_changed_is_found(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    lines = run_folder.read_metrics(run)
    lines[-1]["loss/total"] += 1e-9
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    step = run / "rollouts/step-5.jsonl"
    step.write_text(step.read_text().replace('"reward": ', '"reward": 1', 1))
    proof = prove(run)
    assert not proof.equal
    said = "\n".join(proof.lines())
    assert said.startswith("NOT EQUAL") and "loss/total" in said and "first in step 5" in said
    unequal = {d.what: d.unequal for d in proof.differences if d.unequal}
    assert unequal == {"metrics, steps": 1, "rollouts, prompts": 1}


@pytest.mark.slow
def test_a_weight_that_was_changed_is_found_with_its_size(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    path = next((run / "checkpoints/step-5").glob("*.safetensors"))
    weights = load_file(path)
    name = max(weights, key=lambda name: weights[name].numel())
    weights[name].view(-1)[3] += 0.25
    save_file(weights, path)
    (found, *others) = compare_runs(run, finished, 4, 5)
    assert found.unequal == 1 and name in found.example and "0.25" in found.example
    assert not any(other.unequal for other in others)
    moved = torch.load(run / "checkpoints/step-5/trainer/optimizer.pt", weights_only=True)
    moved["state"][0]["exp_avg"].view(-1)[0] += 1.0
    torch.save(moved, run / "checkpoints/step-5/trainer/optimizer.pt")
    assert compare_runs(run, finished, 4, 5)[1].unequal == 1


@pytest.mark.slow
def test_a_run_whose_earlier_checkpoint_is_gone_is_refused(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    with pytest.raises(UserError, match="at least 4 steps before step-5, got step-4, step-5"):
        prove(run, 4)
    shutil.rmtree(run / "checkpoints/step-4")
    with pytest.raises(UserError, match=r"before step-5, got step-5: this run kept the last 2"):
        prove(run)
    with pytest.raises(UserError, match="expected the folder of a run"):
        prove(tmp_path)


@pytest.mark.nightly
def test_a_verifier_in_processes_of_its_own_changes_no_bit(tmp_path: Path) -> None:
    assert prove(train(tmp_path / "run", "rewards=[math]", "evaluation.metric=math")).equal
