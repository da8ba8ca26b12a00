"""What `test_checkpoint_writer` runs on several ranks: a step of training, saved in the background.

    torchrun --standalone --nproc-per-node 2 tests/helpers/saving_ranks.py FOLDER FROM TO REPLICAS

goes on from checkpoint step-FROM (0: begins), saves step-TO, and writes the weights after it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from helpers.ranks import Case, trained
from helpers.small import CORPUS, model_config
from vlmrl.config import ModelConfig, OptimizerConfig
from vlmrl.models.loading import load_model
from vlmrl.policy import checkpoint
from vlmrl.policy.checkpoint_writer import CheckpointWriter
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy
from vlmrl.system import distributed


def go_on(folder: Path, start: int, end: int) -> dict[str, torch.Tensor]:
    """Train one step from a checkpoint and save it, then spoil the weights; return those before."""
    shard, world = distributed.world() > 1, distributed.world()
    source = folder / f"checkpoints/step-{start}"
    config = ModelConfig(path=str(source)) if start else model_config()
    policy = Policy(*load_model(config, CORPUS, 0, as_stored=shard), config, shard=shard)
    settings = OptimizerConfig(max_grad_norm=0.5, shared_forward="off")
    policy.use_optimizer(adamw(policy.trainable, lr=1e-2, eps=1e-4), settings)
    if start:
        checkpoint.restore(source, policy, checkpoint.read_progress(source))
    trained(policy, Case(homes=tuple(n % world for n in range(4))), folder, steps=1)
    found = {name: weight.clone() for name, weight in policy.weights().items()}
    with CheckpointWriter(folder, policy, keep=99, in_background=True) as writer:
        writer.save(checkpoint.Progress("rl", end))
        with torch.no_grad():
            for weight in policy.sharded.slices().values() if policy.sharded else policy.trainable:
                weight.zero_()
            for state in policy.optimizer.state.values():
                state["exp_avg"].zero_()
    return found


def main(folder: Path, start: int, end: int, replicas: int) -> None:
    torch.set_num_threads(1)
    with distributed.session(60, replicas=replicas):
        torch.save(go_on(folder, start, end), folder / f"{end}-{distributed.rank()}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
