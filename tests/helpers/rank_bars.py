"""What `test_rank_bars_vllm` runs on two ranks: the quickstart, from its cold start on.

    torchrun --standalone --nproc-per-node 2 tests/helpers/rank_bars.py FOLDER COLD ENGINE KIND

A kind is "ddp full", "ddp adapter", "fsdp2 full" or "fsdp2 adapter"; COLD is the model to begin with.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vlmrl.assemble import lifecycle
from vlmrl.config import load

KINDS = ["ddp full", "ddp adapter", "fsdp2 full", "fsdp2 adapter"]
OPTIONS = "enforce_eager: true, max_model_len: 512, block_size: 32, kv_cache_gib: 0.25"
BAR = [
    "run.threads=1",
    "run.report=false",
    "run.save_every=1000",
    "tracking.tensorboard=false",
    "evaluation.limit=200",
    "evaluation.every=100",
    "checks.media_ablation_every=0",
]
LORA = ["model.lora={rank: 16, alpha: 32}", "optimizer.lr=2e-3"]


def train(folder: Path, cold: Path, engine: str, kind: str) -> None:
    """Train the cold-started quickstart for twenty steps; the folder is named after what was trained."""
    strategy, form = kind.split()
    more = [f"run.dir={folder / f'{engine} {kind}'}", "run.steps=20", f"engine.name={engine}"]
    more += ["sft=null", "model.build=null", f"model.path={cold}"]  # adapters need a base
    if form == "adapter":
        more += LORA
    if engine != "hf":
        served = ", lora: adapter" if form == "adapter" else ""
        more += [f"engine.options={{{OPTIONS}{served}}}"]
    lifecycle.train(load("quickstart", [*BAR, *more, f"distributed.strategy={strategy}"]))


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
