"""`vlmrl changed`: weights that moved are counted, by the paper's tolerance and in bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vlmrl.commands.weight_changes import count_changes
from vlmrl.errors import UserError


def write(folder: Path, *files: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    for number, tensors in enumerate(files):
        save_file(tensors, folder / f"model-{number}.safetensors")
    return folder


def test_moved_weights_are_counted_by_part(tmp_path: Path) -> None:
    seen = torch.ones(4, 5)
    moved = seen.clone()
    moved[0, 0] += 0.5  # moved
    moved[1, 1] += 1e-4  # moved, but bfloat16 does not see it
    moved[2, 2] += 1e-6  # within the tolerance
    small = torch.full((3,), 1e-7)
    before = write(tmp_path / "a", {"model.visual.w": seen}, {"lm_head.weight": small})
    after = write(tmp_path / "b", {"model.visual.w": moved, "lm_head.weight": 2 * small})
    found = count_changes(before, after)
    parts = {name: (c.total, c.moved, c.moved_bfloat16) for name, c in found.items()}
    assert parts == {"all": (23, 2, 4), "model.visual": (20, 2, 1), "lm_head.weight": (3, 0, 3)}
    assert next(iter(found)) == "all"


def test_folders_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    before = write(tmp_path / "a", {"w": torch.ones(2)})
    with pytest.raises(UserError, match=r"got no .safetensors file in it"):
        count_changes(tmp_path, before)
    with pytest.raises(UserError, match=r"got 2 other, e.g. v"):
        count_changes(before, write(tmp_path / "b", {"v": torch.ones(2)}))
    with pytest.raises(UserError, match=r"w: expected shape \[2\], got \[3\]"):
        count_changes(before, write(tmp_path / "c", {"w": torch.ones(3)}))
