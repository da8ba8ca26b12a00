"""The house stands in a fresh interpreter: what imports without torch, alone, and beside HF datasets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vlmrl import plugins

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "performance"))
import startup  # noqa: E402

LINES: dict[str, int] = startup.read_budget()["lines"]
HEAVY = {"torch", "transformers", "trl", "peft", "vllm"}


def run_python(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_verifiers_and_cards_import_without_torch() -> None:
    content = [f"{plugins.KINDS[k]}.{n}" for k in ("verifier", "card") for n in plugins.names(k)]
    program = f"import sys, {', '.join(content)}; print(sorted({HEAVY} & set(sys.modules)))"
    assert run_python(program).strip() == "[]"


@pytest.mark.parametrize("program", LINES)
def test_no_program_loads_more_lines_than_the_budget_has(program: str) -> None:
    rooms = startup.loaded_lines(program)
    assert 0 < sum(rooms.values()) <= LINES[program], rooms


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
