"""What `test_sequence_parallel` runs on two or four ranks, two of which share all tokens.

    torchrun --standalone --nproc-per-node 2 tests/helpers/sequence_ranks.py FOLDER

writes what every case came to, and the bytes that each rank keeps for the backward.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch

from helpers.prompts import ask
from helpers.ranks import Case, completed, made, outcome_of
from helpers.small import advantages
from helpers.videos import video
from vlmrl.config import LoraConfig
from vlmrl.forward.logprobs import completion_logprobs
from vlmrl.forward.packing import pack
from vlmrl.system import distributed

QWEN3 = {"family": "qwen3_vl"}
CASES = {
    "plain": Case(),
    "videos": Case(videos=True, micro_tokens=250),
    "shared": Case(videos=True, shared="on"),
    "deepstack": Case(videos=True, model=QWEN3),
    "deepstack, shared": Case(videos=True, model=QWEN3, shared="on"),
    "checkpointing": Case(
        model={"gradient_checkpointing": True, "freeze": ["vision"]}, shared="on"
    ),
    "checkpointing, plain, deepstack": Case(model={"gradient_checkpointing": True, **QWEN3}),
    "adapter, several updates": Case(
        model={"lora": LoraConfig(rank=4, towers=["language"])}, kl=0.1, updates=2
    ),
    "adapter, deepstack, shared": Case(
        model={"lora": LoraConfig(rank=4, towers=["vision", "language"]), **QWEN3}, shared="on"
    ),
    "dealt from one rank": Case(homes=(1, 1, 1, 1), micro_tokens=1, dealt=True, updates=2),
    "row facts": Case(homes=(0, 0, 1, 0), micro_tokens=150, row_facts=True, updates=2),
    "another family": Case(model={"family": "qwen2_vl"}, videos=True, shared="on"),
    "sound": Case(model={"family": "qwen2_5_omni"}),
    "bfloat16": Case(model={"dtype": "bfloat16", "freeze": ["vision"]}, shared="on"),
}

OF_FOUR = {
    "unequal numbers of micro-batches": Case(homes=(0, 0, 0, 2), micro_tokens=1, videos=True),
    "one team has nothing": Case(homes=(3, 3, 2, 2), shared="on"),
    "one team sees text only": Case(homes=(0, 1, 2, 1), micro_tokens=1, model=QWEN3),
    "dealt from one rank": Case(homes=(3, 3, 3, 3), micro_tokens=1, dealt=True, updates=2),
    "row facts": Case(homes=(1, 0, 3, 2), micro_tokens=150, row_facts=True, updates=2),
    "adapter": Case(
        homes=(0, 1, 2, 3),
        model={"lora": LoraConfig(rank=4, towers=["vision", "language"])},
        kl=0.1,
    ),
}
"""The first and the last two of four ranks are a team each."""


LONG = [(family, shared) for family in ("qwen2_5_vl", "qwen3_vl") for shared in (False, True)]
"""Family, and whether the forward is shared, of what `kept` measures."""


def kept(family: str, shared: bool) -> int:
    """The bytes that this rank keeps for the backward of completions of a long video prompt.

    The towers are frozen: they run whole on every rank. So is the mask of the plain forward, which has
    none for a single row.
    """
    policy = made(Case(model={"family": family, "freeze": ["vision", "projector"]}))
    prompt = ask(policy, video(60, fps=2.0, size=(168, 168)))
    drawn = completed((prompt,), random.Random(0), group=2 if shared else 1)
    (batch,) = pack(drawn, advantages(drawn), updates=1, micro_tokens=10**6, max_tokens=9)
    weights = {p.untyped_storage().data_ptr() for p in policy.base.parameters()}
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = completion_logprobs(
            policy.base, policy.family, batch.micro[0], 1.0, policy.pad_id, shared, policy.split
        )
    del out  # only now: a storage that is freed gives its address to the next
    return sum(sizes.values())


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with distributed.session(60, sequence_parallel=2):
        cases = CASES if distributed.world() == 2 else OF_FOUR
        found: dict[str, Any] = {
            strategy: {
                name: outcome_of(case, folder / f"{name} {strategy}", strategy == "fsdp2")
                for name, case in cases.items()
            }
            for strategy in ("ddp", "fsdp2")
        }
        if distributed.world() == 2:
            found["kept"] = {f"{f} {s}": kept(f, s) for f, s in LONG}
        torch.save(found, folder / f"rank-{distributed.rank()}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
