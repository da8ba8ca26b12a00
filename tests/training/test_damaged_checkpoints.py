"""What a run does about damaged checkpoints, a full disk and a second owner of its folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vlmrl.config
from helpers.hard import bad_source
from helpers.kills import ENGINE
from helpers.runs import ROOT, TINY, final_state, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.runs import run_lock

HARMS = ("cut", "emptied", "flipped", "removed")
CHECKS = "checks={media_ablation_every: 0, parity_every: 0}"


def config(folder: Path, *more: str) -> Any:
    return vlmrl.config.load("quickstart", [*TINY, f"run.dir={folder}", *more])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "run"
    lifecycle.train(config(folder))
    return folder


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an adapter, a reference, rollouts ahead and a quarantine."""
    home = tmp_path_factory.mktemp("rich")
    lifecycle.train(rich_config(home, home / "run"))
    return home / "run"


def rich_config(home: Path, folder: Path, *more: str) -> Any:
    ahead = ["rollout.max_staleness=2", f"engine.name={ENGINE}", "rollout.max_tokens=4"]
    lora = ["model.lora={rank: 2}", "algorithm.options.kl=0.1", "sft=null", CHECKS]
    short = ["run.steps=3", "run.save_every=1", "run.keep_checkpoints=3"]
    return config(folder, *bad_source(home), *lora, *ahead, *short, *more)


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def damage(file: Path, harm: str) -> None:
    data = file.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    if harm == "removed":
        file.unlink()
    else:
        file.write_bytes({"cut": data[:middle], "emptied": b"", "flipped": flipped}[harm])


MODEL = {"config.json", "model.safetensors", "generation_config.json", "chat_template.jinja"}
PROCESSOR = {"tokenizer.json", "tokenizer_config.json", "processor_config.json"}
TRAINER = {"state.json", "optimizer.pt", "checksums.json"}
ADAPTER = {"adapter_config.json", "adapter_model.safetensors", "queue.json"}


def require_noticed(run: Path, last: str, before: str, harm: str, expected: set[str]) -> None:
    """Each file of the last checkpoint is damaged in turn: it is named, and the one before taken."""
    folder = run / "checkpoints" / last
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert {p.name for p in files} == expected
    for file in files:
        data, warnings = file.read_bytes(), list[str]()
        damage(file, harm)
        found = checkpoint.latest(run, warnings.append)
        assert found is not None and found.name == before, file
        (warning,) = warnings
        assert file.name in warning or file.name == "checksums.json"
        assert f"{last} is damaged and passed over" in warning and "\n" not in warning
        with pytest.raises(UserError, match=r"take an earlier checkpoint, or resume=auto"):
            checkpoint.resolve(str(folder), run)
        file.write_bytes(data)
    assert checkpoint.latest(run) == folder


@pytest.mark.parametrize("harm", HARMS)
def test_whatever_file_is_damaged_the_one_before_is_taken_and_the_file_named(
    run: Path, harm: str
) -> None:
    require_noticed(run, "step-5", "step-4", harm, MODEL | PROCESSOR | TRAINER)


@pytest.mark.slow
@pytest.mark.parametrize("harm", HARMS)
def test_so_it_is_with_an_adapter_and_rollouts_ahead(rich: Path, tmp_path: Path, harm: str) -> None:
    require_noticed(
        cut(rich, tmp_path), "step-2", "step-1", harm, MODEL | PROCESSOR | TRAINER | ADAPTER
    )


def test_a_resumed_run_goes_on_from_the_newest_whole_checkpoint(
    run: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run / "checkpoints/step-5/model.safetensors", "flipped")
    lifecycle.train(config(run, "resume=auto"))
    assert "step-5 is damaged and passed over" in capsys.readouterr().err
    assert final_state(run) == final_state(whole)
    assert metric_lines(run) == metric_lines(whole)


def test_where_all_are_damaged_nothing_is_started_anew_in_silence(run: Path) -> None:
    for file in run.glob("checkpoints/*/trainer/state.json"):
        damage(file, "emptied")
    with pytest.raises(
        UserError, match=r"all checkpoints are damaged .*state\.json.* to start anew"
    ):
        lifecycle.train(config(run, "resume=auto"))


def test_a_damaged_checkpoint_that_is_asked_for_by_name_is_refused(run: Path) -> None:
    damage(run / "checkpoints/step-5/generation_config.json", "cut")
    with pytest.raises(UserError, match=r"generation_config\.json has .* bytes, expected"):
        lifecycle.train(config(run, f"resume={run}/checkpoints/step-5"))


def cut(rich: Path, home: Path) -> Path:
    """A copy of the run as if it had been killed after two of its three steps."""
    folder = home / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(rich, folder)
    shutil.rmtree(folder / "checkpoints/step-3")
    (folder / "summary.json").unlink()
    return folder


def resume(rich: Path, home: Path, file: str, harm: str) -> str:
    """Go on with a copy of a run, one of its files damaged; return the refusal, "" if it ends as ever."""
    folder = cut(rich, home)
    damage(folder / file, harm)
    try:
        lifecycle.train(rich_config(home, folder, "resume=auto"))
    except UserError as error:
        return str(error)
    assert final_state(folder) == final_state(rich)
    return ""


REFUSED = [
    ("reference/reference.safetensors", "flipped", "or start anew"),
    ("reference/checksums.json", "removed", "or start anew"),
    ("quarantine.jsonl", "flipped", "delete the file: the run finds its rows again"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "harm", "way"), REFUSED)
def test_files_beside_the_checkpoints_are_named_with_the_way_out(
    rich: Path, tmp_path: Path, file: str, harm: str, way: str
) -> None:
    said = resume(rich, tmp_path, file, harm)
    assert file in said and way in said and "\n" not in said


@pytest.mark.nightly
@pytest.mark.parametrize("harm", HARMS)
def test_a_run_of_which_any_file_is_damaged_ends_as_ever_or_names_it(
    rich: Path, tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The curves have no checksums: of them only a line that cannot be read is named."""
    beside = ("reference", "quarantine.jsonl", "metrics.jsonl", "config.json")
    folder = cut(rich, tmp_path)
    files = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file()]
    for file in files:
        place = file.parts[0]
        if place in beside or file.parts[:2] == ("checkpoints", "step-2"):
            said = resume(rich, tmp_path, str(file), harm)
            heard = capsys.readouterr().err
            assert not said or (file.name in said and "\n" not in said), said
            assert ("step-2 is damaged" in heard) == (place == "checkpoints"), file
            assert said or place != "reference", file


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from vlmrl.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
main()
"""


@pytest.mark.nightly
@pytest.mark.parametrize("limit", [400_000, 4_000_000])
def test_a_disk_that_takes_no_more_is_one_line_and_leaves_the_last_checkpoint(
    run: Path, whole: Path, limit: int
) -> None:
    """400 kB: the weights do not fit; 4 MB: the weights do, and the optimizer's state does not."""
    sizes = {p.name: p.stat().st_size for p in (run / "checkpoints/step-5").rglob("*")}
    assert sizes["model.safetensors"] < 4_000_000 < sizes["optimizer.pt"]
    overrides = [*TINY, f"run.dir={run}", "resume=auto", "run.steps=6"]
    command = [sys.executable, "-c", FULL, str(limit), "train", "quickstart", *overrides]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and "cannot write checkpoint" in last and "MiB free" in last
    assert "Traceback" not in done.stderr
    assert not list(run.glob("checkpoints/.*.part"))
    assert final_state(run) == final_state(whole)


def test_a_second_run_in_the_same_folder_is_refused_and_moves_nothing(run: Path) -> None:
    with run_lock.own(run):
        before = sorted(p.name for p in run.parent.iterdir())
        for resume in ("never", "auto"):
            with pytest.raises(UserError, match="another run is writing to this folder"):
                lifecycle.train(config(run, f"resume={resume}"))
        assert sorted(p.name for p in run.parent.iterdir()) == before
