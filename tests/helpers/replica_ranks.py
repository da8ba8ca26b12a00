"""What `test_replicas` runs on four ranks, two of which hold a copy of a sharded model together.

    torchrun --standalone --nproc-per-node 4 tests/helpers/replica_ranks.py FOLDER PARTS CHECKPOINTS

writes what every case came to; PARTS ranks at a time share the tokens of their rows.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.ranks import Case, continued, counted, made, outcome_of, trained
from vlmrl.config import LoraConfig
from vlmrl.system import distributed

CASES = {
    "unequal numbers of micro-batches": Case(homes=(0, 0, 0, 3), micro_tokens=1),
    "one replica sees text only": Case(homes=(0, 1, 2, 1), micro_tokens=1),
    "one replica has nothing": Case(homes=(3, 3, 2, 2), shared="on"),
    "several updates, a reference": Case(homes=(0, 1, 2, 3), kl=0.1, updates=2),
    "then nobody sees an image": Case(homes=(0, 1, 2, 3), text_from=1),
    "adapter": Case(
        homes=(0, 1, 2, 1),
        model={"lora": LoraConfig(rank=4, towers=["vision", "language"])},
        micro_tokens=1,
        kl=0.1,
    ),
    "all media frozen": Case(
        model={"lora": LoraConfig(rank=4, towers=["language"])}, homes=(0, 0, 2, 0), micro_tokens=1
    ),
    "bfloat16": Case(homes=(0, 1, 2, 3), model={"dtype": "bfloat16", "freeze": ["vision"]}),
    "experts": Case(homes=(0, 1, 2, 1), model={"family": "qwen3_vl_moe"}, micro_tokens=1),
}
OF_TEAMS = {
    name: CASES[name]
    for name in ("unequal numbers of micro-batches", "one replica sees text only", "adapter")
}
"""Cases of replicas whose ranks also share the tokens of their rows."""


def sums(folder: Path, micro_tokens: int) -> dict[str, int]:
    """How often an update sums over the replicas (or finds a norm), and among the ranks of each."""
    case = Case(homes=(0, 0, 2, 2), micro_tokens=micro_tokens)
    policy = made(case, shard=True)
    with Operations() as seen:
        trained(policy, case, folder, steps=1)
    return {name: number for name, number in seen.counts.items() if "reduce" in name}


class Operations(TorchDispatchMode):
    """Counts the operations inside by name, those between ranks (`c10d.`) among them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += str(func).startswith("c10d.")
        return func(*args, **(kwargs or {}))


def main(folder: Path, parts: int, alone: Path) -> None:
    torch.set_num_threads(1)
    with distributed.session(60, sequence_parallel=parts, replicas=2):
        cases = CASES if parts == 1 else OF_TEAMS
        found: dict[str, Any] = {"cases": {}}
        for name, case in cases.items():
            found["cases"][name] = outcome_of(case, folder / f"{name} {parts}", shard=True)
        if parts == 1:
            found["counted"] = counted(folder)
            found["sums"] = {n: sums(folder, n) for n in (1, 10**6)}
            found["from one"] = continued(alone, "step-1", "step-42", shard=True)
            continued(folder, None, "step-1", shard=True)
        torch.save(found, folder / f"rank-{distributed.rank()}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
