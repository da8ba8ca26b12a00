"""The house stands in a fresh interpreter: what imports without torch, alone, and beside HF datasets."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from vlmrl import plugins

ROOT = Path(__file__).parent.parent
PLAIN_LINES = 26_200
"""Lines of the package that `vlmrl train` may load before any part: what only some configs ask for is
imported where it is built."""
HEAVY = {"torch", "transformers", "trl", "peft", "vllm"}


def run_python(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_verifiers_and_cards_import_without_torch() -> None:
    content = [f"{plugins.KINDS[k]}.{n}" for k in ("verifier", "card") for n in plugins.names(k)]
    program = f"import sys, {', '.join(content)}; print(sorted({HEAVY} & set(sys.modules)))"
    assert run_python(program).strip() == "[]"


def test_a_plain_run_loads_half_of_the_package() -> None:
    files = "[f for m in sys.modules.values() if (f := getattr(m, '__file__', None))]"
    program = f"import sys, vlmrl.assemble.lifecycle; print(*{files}, sep=chr(10))"
    rooms: Counter[str] = Counter()
    for file in map(Path, run_python(program).splitlines()):
        if file.suffix == ".py" and file.is_relative_to(ROOT / "vlmrl"):
            lines = len(file.read_text(encoding="utf-8").splitlines())
            rooms[file.relative_to(ROOT / "vlmrl").parts[0]] += lines
    assert 0 < rooms.total() <= PLAIN_LINES, rooms.most_common()


def test_hugging_face_datasets_wins_in_the_checkout() -> None:
    # As under `python -m`, the checkout stands first on the path.
    assert "site-packages" in run_python("import datasets; print(datasets.__file__)")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["vlmrl.assemble.lifecycle", "vlmrl.policy.policy", "vlmrl.engines.hf"]
)
def test_a_module_imports_first_and_alone(name: str) -> None:
    # Beside a CPU torch, transformers imports only after our torchvision shim, whoever comes first.
    run_python(f"import {name}")
