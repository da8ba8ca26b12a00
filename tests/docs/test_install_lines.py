"""No page, script or message installs PyPI's `vlmrl`, which is another person's package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import tomllib

import vlmrl

ROOT = Path(__file__).parents[2]
FOREIGN = re.compile(r"pip3? install[^\n`]*?(?<![\w./-])vlmrl(?![\w./-])")
"""An install of the bare name, with or without extras or a version."""
READ = (
    "*.md",
    "*.py",
    "*.yaml",
    "*.yml",
    "*.sh",
    "*.sbatch",
    "*.toml",
    "Dockerfile",
    "Makefile",
    ".ci/*",
)


def test_the_name_of_the_distribution_is_stated_once_and_the_same() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert stated["name"] == vlmrl.DISTRIBUTION != "vlmrl"
    assert all("vlmrl[" not in entry for entry in stated["optional-dependencies"]["all"])


def test_no_page_or_script_installs_the_foreign_package() -> None:
    listed = subprocess.run(["git", "ls-files", *READ], cwd=ROOT, capture_output=True, text=True)
    names = [name for name in listed.stdout.split() if name != "tests/docs/test_install_lines.py"]
    assert len(names) > 1000
    wrong = [
        f"{name}: {line.strip()}"
        for name in names
        for line in (ROOT / name).read_text("utf-8", errors="replace").splitlines()
        if FOREIGN.search(line) and "pip uninstall vlmrl" not in line
    ]
    assert wrong == []
    for line in ("pip install vlmrl", "pip install 'vlmrl[all]'", "uv pip install x vlmrl==0.1"):
        assert FOREIGN.search(line)


def test_a_foreign_package_among_our_files_is_named_at_import(tmp_path: Path) -> None:
    (tmp_path / "vlmrl").mkdir()
    shutil.copy(ROOT / "vlmrl/__init__.py", tmp_path / "vlmrl")
    (tmp_path / "vlmrl-0.0.1.dist-info").mkdir()
    command = [sys.executable, "-c", "import vlmrl"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1 and "pip uninstall vlmrl" in ran.stderr
    assert "'vlmrl' (vlmrl-0.0.1) is another person's" in ran.stderr
