"""What `test_sequence_parallel` runs on two or four ranks, two of which share all tokens.

    torchrun --standalone --nproc-per-node 2 tests/helpers/sequence_ranks.py FOLDER SET CASE ...

writes what each of these cases of one of `SETS` came to, and the bytes that each rank keeps for the backward.
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
from vlmrl.monitoring.memory_forecast import record_storages
from vlmrl.policy.policy import Policy
from vlmrl.schema import Prompt
from vlmrl.system import distributed

QWEN3 = {"family": "qwen3_vl"}
CASES = {
    "plain": Case(entropy=0.1),
    "videos": Case(videos=True, micro_tokens=250),
    "shared": Case(videos=True, shared="on", entropy=0.1),
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
    "positions on one axis": Case(model={"family": "internvl"}),
    "images in both directions": Case(model={"family": "gemma3"}, shared="on"),
    "bfloat16": Case(model={"dtype": "bfloat16", "freeze": ["vision"]}, shared="on"),
    "experts of the engine": Case(
        model={"family": "qwen3_vl_moe", "router_replay": True}, routed=True
    ),
    "experts of the engine, shared": Case(
        model={"family": "qwen3_vl_moe", "router_replay": True}, shared="on", routed=True
    ),
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
FAMILIES = {
    f"{family}, {'shared' if shared == 'on' else 'plain'}": Case(
        model={"family": family}, shared=shared
    )
    for family in (
        *("qwen2_vl", "qwen2_5_omni", "qwen2_audio", "voxtral", "llava_onevision"),
        *("aya_vision", "smolvlm", "idefics3", "gemma3n"),
    )
    for shared in ("off", "on")
}
DAILY = (
    *("plain", "deepstack, shared", "adapter, several updates", "dealt from one rank"),
    *("row facts", "experts of the engine, shared"),
)
"""Of `CASES`."""
SETS = {"cases": CASES, "of four": OF_FOUR, "families": FAMILIES}


LONG = {
    f"{family}, {'shared' if shared else 'plain'}": (family, shared, True)
    for family in ("qwen2_5_vl", "qwen3_vl")
    for shared in (False, True)
}
LONG["with its tower"] = ("qwen2_5_vl", True, False)
"""The family, whether the forward is shared and the towers are frozen, of what `kept` measures."""


def long_prompt(name: str) -> tuple[Policy, Prompt, int]:
    """The policy of one of `LONG`, its prompt, and how many completions that has.

    The plain forward has one row, so that it needs no mask: that would be whole on every rank.
    """
    family, shared, frozen = LONG[name]
    model = {"family": family, "freeze": ["vision", "projector"] if frozen else []}
    policy = made(Case(model=model))
    return policy, ask(policy, video(60, fps=2.0, size=(168, 168))), 2 if shared else 1


def kept(name: str) -> int:
    """The bytes that this rank keeps for the backward of completions of a long video prompt."""
    policy, prompt, group = long_prompt(name)
    shared = LONG[name][1]
    drawn = completed((prompt,), random.Random(0), group)
    (batch,) = pack(drawn, advantages(drawn), updates=1, micro_tokens=10**6, max_tokens=9)
    with record_storages(policy) as sizes:
        out = completion_logprobs(
            policy.base, policy.family, batch.micro[0], 1.0, policy.pad_id, shared, policy.split
        )
    del out  # only now: a storage that is freed gives its address to the next
    return sum(sizes.values())


def main(folder: Path, kind: str, cases: list[str]) -> None:
    torch.set_num_threads(1)
    with distributed.session(60, sequence_parallel=2):
        found: dict[str, Any] = {
            strategy: {
                name: outcome_of(
                    SETS[kind][name], folder / f"{name} {strategy}", strategy == "fsdp2"
                )
                for name in cases
            }
            for strategy in ("ddp", "fsdp2")
        }
        if kind == "cases":
            found["kept"] = {name: kept(name) for name in LONG}
        torch.save(found, folder / f"rank-{distributed.rank()}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
