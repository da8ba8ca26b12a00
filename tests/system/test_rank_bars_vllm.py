"""Two ranks learn with every engine, strategy and form of weights: the quickstart's bar of held-out IoU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import rank_bars
from vlmrl.assemble import lifecycle
from vlmrl.config import load

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cold_started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model after its cold start, as a checkpoint."""
    folder = tmp_path_factory.mktemp("cold") / "run"
    more = [f"run.dir={folder}", "run.steps=0", "evaluation.limit=1"]
    lifecycle.train(load("quickstart", [*rank_bars.BAR, *more]))
    (found,) = (folder / "checkpoints").glob("sft-*")
    return found


def train_on_two(folder: Path, cold: Path, engine: str, kind: str) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [*launcher, rank_bars.__file__, str(folder), str(cold), engine, kind],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=["hf", "vllm_server", "vllm"])
def trained(
    request: pytest.FixtureRequest, cold_started: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """The folder of an engine's four runs."""
    folder, engine = tmp_path_factory.mktemp("bars"), request.param
    for kind in rank_bars.KINDS:
        train_on_two(folder, cold_started, engine, kind)
    return folder, engine


@pytest.mark.nightly
@pytest.mark.parametrize("kind", rank_bars.KINDS)
def test_twenty_steps_of_two_ranks_pass_the_bar_of_one(kind, trained):
    folder, engine = trained
    summary = json.loads((folder / f"{engine} {kind}" / "summary.json").read_text())
    before, after = (
        summary[f"{which}_evaluation"]["metrics"]["box_iou"] for which in ("first", "last")
    )
    print(f"{engine} {kind}: {before:.4f} -> {after:.4f}")
    # That of one rank in `test_vllm_runs`.
    assert before < 0.51
    assert after > max(0.55, before + 0.05)
