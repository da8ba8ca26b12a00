"""A run on one machine knows nothing of Ray, also where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runs import TINY

PROGRAM = """
import sys
from vlmrl.cli.app import run
try:
    run(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
found = sorted(name for name in sys.modules if name.partition(".")[0] == "ray")
print("imported:", found)
"""


@pytest.mark.slow
def test_train_imports_no_ray(tmp_path: Path) -> None:
    command = ["train", "quickstart", *TINY, "run.steps=1", "sft=null", "evaluation=null"]
    # A module of this name would be found if anything imported it, with or without the package.
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/__init__.py").write_text("raise AssertionError('imported')\n")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command, f"run.dir={tmp_path / 'run'}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "imported: []"
    assert (tmp_path / "run/summary.json").is_file()


@pytest.mark.slow
def test_launch_without_ray_names_the_extra(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['ray'] = None\nfrom vlmrl.cli.app import run\nrun(sys.argv[1:])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, "launch", "quickstart"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    expected = "error: the package 'ray' is not installed: pip install 'vlmrl-perception[ray]'\n"
    assert (ran.returncode, ran.stderr) == (2, expected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_several_nodes_need_an_address(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "vlmrl", "launch", "quickstart", "--nodes", "2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    expected = (
        "error: cluster.address: expected the address of a Ray cluster for 2 nodes, got none\n"
    )
    assert (ran.returncode, ran.stderr) == (2, expected)
