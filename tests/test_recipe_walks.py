"""Recipes as a user with eight cards walks them: fetch, check, plan, torchrun, here on CPU ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from helpers.hub import hub_server
from helpers.recipe_rows import write_rows
from helpers.runs import metric_lines, torchrun
from helpers.small_recipes import small
from vlmrl.cli.app import app
from vlmrl.config import load

pytestmark = [pytest.mark.nightly, pytest.mark.slow]
PRESET = "machines/8x80gb"
RANKS = 8


def command(*arguments: str, fails: bool = False) -> str:
    """Return what a command prints; it must end well, or say what is wrong."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == fails, (arguments, done.output, done.exception)
    return done.output


@pytest.mark.parametrize(
    ("name", "mended"),
    [
        ("recipes/geometry3k", []),
        ("recipes/video_r1", ["rollout.prompts=8"]),
        ("recipes/echoink_r1", []),
    ],
)
def test_a_recipe_goes_from_fetch_to_eight_ranks_under_a_preset(
    name: str, mended: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(name)
    source = config.data.train[0].published
    assert source is not None
    write_rows(config, tmp_path / "author")
    home = tmp_path / "author" / source.to
    files = {f.relative_to(home).as_posix(): f.read_bytes() for f in home.rglob("*") if f.is_file()}
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with hub_server({source.hub: files}) as hub:
        command("data", "fetch", name, "--from", hub.url)
    assert "valid" in command("config", "validate", name, PRESET)
    plan = ["plan", name, PRESET, "--gpus", str(RANKS), "--show", "0"]
    if mended:
        assert f"change: {mended[0]}\n" in command(*plan, fails=True)
    assert "a step" in command(*plan, *mended)

    # A model that 8 processes of this machine hold takes the place of the published, and its engine vLLM's.
    changes = [
        *small(config),
        *mended,
        f"rollout.prompts={RANKS}",
        "engine=hf",
        "engine.options={}",
    ]
    preset = load(name, [PRESET])
    assert load(name, [PRESET, *changes]).distributed == preset.distributed
    launched = ["-m", "vlmrl", "train", name, PRESET, *changes]
    done = torchrun(*launched, processes=RANKS, cwd=tmp_path / "user", timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = metric_lines(tmp_path / "user/runs" / config.run.name)
    assert [line["step"] for line in lines] == [1, 2]
    assert (tmp_path / "user/runs" / config.run.name / "checkpoints/step-2").is_dir()
