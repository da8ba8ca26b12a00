"""What image-only users need not install: its absence is one line that names the extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vlmrl.errors import MissingExtra, import_extra

PROGRAM = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {blocked!r}:
            return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = map(Without, sys.meta_path)
sys.argv = ["vlmrl", *{arguments!r}]
from vlmrl.cli import main
main()
"""
OPTIONAL = ("soundfile", "soxr", "num2words", "tensorboard", "timm")


def run_without(
    folder: Path, blocked: tuple[str, ...], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that cannot import these packages."""
    program = PROGRAM.format(blocked=blocked, arguments=arguments)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_module_that_is_there_is_imported() -> None:
    assert import_extra("json", "audio").dumps([]) == "[]"


def test_a_missing_package_names_its_extra() -> None:
    expected = r"^the package 'nowhere' is not installed: pip install 'vlmrl-perception\[audio\]'$"
    with pytest.raises(MissingExtra, match=expected):
        import_extra("nowhere.deeper", "audio")


@pytest.mark.parametrize("missing", ["soundfile", "soxr"])
def test_audio_without_its_packages_is_one_line_and_no_bad_row(
    tmp_path: Path, missing: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "3_jackson_0.wav").write_bytes(b"never read")
    command = ("data", "check", "spoken_digits:test", "-o", f"path={folder}")
    ran = run_without(tmp_path, (missing,), *command)
    expected = (
        f"error: the package '{missing}' is not installed: pip install 'vlmrl-perception[audio]'\n"
    )
    assert ran.returncode == 2 and ran.stderr.endswith(
        expected
    )  # after what a slow machine reports


@pytest.mark.slow
def test_images_need_none_of_them(tmp_path: Path) -> None:
    few = ("run.steps=1", "sft=null", "evaluation.limit=4", "rollout.prompts=2", "run.threads=1")
    ran = run_without(tmp_path, OPTIONAL, "train", "quickstart", *few)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "runs/quickstart/report.html").is_file()


@pytest.mark.slow
def test_a_tracker_that_is_asked_for_and_missing_names_its_extra(tmp_path: Path) -> None:
    asked = ("sft=null", "run.steps=1", "tracking.tensorboard=true", "run.threads=1")
    ran = run_without(tmp_path, OPTIONAL, "train", "quickstart", *asked)
    assert ran.returncode == 2
    assert "pip install 'vlmrl-perception[tensorboard]'" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_smolvlm_without_its_package_names_the_extra(tmp_path: Path) -> None:
    asked = ("sft=null", "model.build.family=smolvlm", "run.threads=1")
    ran = run_without(tmp_path, OPTIONAL, "train", "quickstart", *asked)
    expected = (
        "error: the package 'num2words' is not installed: pip install 'vlmrl-perception[smolvlm]'\n"
    )
    assert ran.returncode == 2 and ran.stderr.endswith(
        expected
    )  # after what a slow machine reports
