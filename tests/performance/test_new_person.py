"""From photos with boxes to an exported model: every step is one command that works at its first try."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "performance" / "new_person.py"
STEPS = ["config", "check", "train", "look", "compare", "answer", "export"]


@pytest.mark.nightly
def test_a_new_person_gets_from_photos_to_a_model_without_editing_a_file(tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    rows = [line.split(" | ") for line in out.read_text(encoding="utf-8").splitlines()[2:]]
    assert [row[0].removeprefix("| ") for row in rows] == STEPS
    assert all(row[1].startswith("`vlmrl ") for row in rows)
