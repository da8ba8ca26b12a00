"""What `performance/family_parity.py` runs on two ranks: two updates of a family's small model, sharded.

    torchrun --standalone --nproc-per-node 2 tests/helpers/family_ranks.py FOLDER FAMILY MEDIUM

writes the weights after them into FOLDER.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from helpers.ranks import Case, outcome_of
from vlmrl.system import distributed


def case_of(family: str, medium: str) -> Case:
    """Return a case in which one rank sees a group without media alone."""
    return Case(model={"family": family}, homes=(0, 0, 1, 0), micro_tokens=1, medium=medium)


def main(folder: Path, family: str, medium: str) -> None:
    torch.set_num_threads(1)
    with distributed.session(120):
        weights = outcome_of(case_of(family, medium), folder, shard=True)["weights"]
        if distributed.rank() == 0:
            torch.save(weights, folder / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
