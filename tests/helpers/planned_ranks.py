"""What `test_planner` measures on two ranks: the bytes of a real step, and those of a real sync.

torchrun --standalone --nproc-per-node 2 tests/helpers/planned_ranks.py FOLDER
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from helpers import small
from helpers.allocated import added
from helpers.ranks import synced
from vlmrl.answers import templates
from vlmrl.config import Config
from vlmrl.forward.packing import pack
from vlmrl.models.loading import load_model
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy
from vlmrl.schema import Prompt, PromptBatch, Rollouts
from vlmrl.system import distributed

WIDE = {"hidden_size": 128, "num_hidden_layers": 6, "intermediate_size": 384}
P, G, C = 4, 4, 32
CASES: dict[str, dict[str, Any]] = {
    "whole": {},
    "bfloat16": {"dtype": "bfloat16"},
    "checkpointing": {"gradient_checkpointing": True},
    "frozen tower": {"freeze": ["vision"]},
}


DAILY = ("bfloat16",)


def config_of(case: str, strategy: str) -> Config:
    """The config of a case; two ranks have two prompts each."""
    build = {"text": {**small.TEXT, **WIDE}, "vocab_size": 320}
    return Config.model_validate(
        {
            "model": {"build": build, **CASES[case]},
            "data": {"train": ["shapes"]},
            "rewards": ["box_iou"],
            "rollout": {"prompts": P, "group_size": G, "max_tokens": C},
            "optimizer": {"micro_batch_tokens": 260, "shared_forward": "off"},
            "distributed": {"strategy": strategy},
        }
    )


def prompts_of(model: Any) -> list[Prompt]:
    """Equal prompts, those of each rank in turn."""
    return [replace(small.prompt(model, 2), home=number % 2) for number in range(P)]


def full_rollouts(policy: Policy) -> Rollouts:
    """Completions of full length."""
    prompts = prompts_of(policy)
    groups = tuple(
        tuple(
            templates.completion(
                "", "think_answer", prompt.frame, token_ids=(21,) * C, logprobs=(-5.0,) * C
            )
            for _ in range(G)
        )
        for prompt in prompts
    )
    return Rollouts(PromptBatch(tuple(prompts)), groups)


def measured(case: str, strategy: str) -> dict[str, int]:
    """Bytes of this rank: weights, gradients, optimizer, and the least that one of five updates adds."""
    config = config_of(case, strategy)
    made = Policy(
        *load_model(config.model, small.CORPUS, 0), config.model, shard=strategy == "fsdp2"
    )
    made.use_optimizer(adamw(made.trainable, 1e-4), config.optimizer)
    drawn = full_rollouts(made)
    batches = pack(
        drawn,
        small.advantages(drawn),
        updates=1,
        micro_tokens=config.optimizer.micro_batch_tokens,
        max_tokens=C,
        ranks=[distributed.rank()],
    )
    made.update(batches, Grpo(), 1e-4, 0.0)
    weights = [_local(p) for p in made.base.parameters()]
    state = [_local(t) for s in made.optimizer.state.values() for t in s.values()]
    gradients = [_local(p.grad) for p in made.trainable if p.grad is not None]
    found = {
        "weights": sum(t.nbytes for t in weights),
        "optimizer": sum(t.nbytes for t in state),
        "gradients": sum(t.nbytes for t in gradients),
    }
    peaks = []
    # gloo's threads let go of what they gathered and summed when they get to it: in most updates of `fsdp2`
    # there are some buffers of a layer more, up to six.
    for _ in range(5):
        made.optimizer.zero_grad()
        if made.sharded is not None:
            made.sharded.rest()
        peaks.append(added(lambda: made.update(batches, Grpo(), 1e-4, 0.0)))
    return {**found, "peak": found["weights"] + found["optimizer"] + min(peaks)}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def sent(case: str, folder: Path) -> int:
    """Bytes that a sync takes from the trainers, in bfloat16."""
    config = config_of(case, "fsdp2").model
    made = Policy(*load_model(config, small.CORPUS, 0), config, shard=True)
    return synced(made, folder, dtype="bfloat16")["files"]


def main(folder: Path, cases: list[str]) -> None:
    torch.set_num_threads(1)
    with distributed.session(60):
        found: dict[str, Any] = {
            strategy: {case: measured(case, strategy) for case in cases}
            for strategy in ("ddp", "fsdp2")
        }
        found["sent"] = sent("whole", folder / "synced")
        torch.save(found, folder / f"rank-{distributed.rank()}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
