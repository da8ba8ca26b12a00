"""The speed measurements of the vLLM engines run, on sizes that say nothing about speed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm.version", reason="needs vLLM: make nightly-vllm")

SCRIPTS = Path(__file__).parents[2] / "performance"
SMALL = {
    "rollout": "--prompts 2 --group 2 --tokens 4 --pixels 56 --rounds 1 --engines vllm file",
    "rollout_async": "--prompts 2 --group 2 --tokens 4 --steps 1 --blocks 1",
    "rollout_streaming": "--prompts 2 --group 2 --median 4 --longest 8 --steps 1 --blocks 1",
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SMALL)
def test_a_script_prints_its_table(name: str) -> None:
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *SMALL[name].split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr
    assert "|---" in done.stdout
