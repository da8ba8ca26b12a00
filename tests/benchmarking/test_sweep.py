"""`vlmrl sweep`: every combination once, killed or not; a table of paired gains with seeds as groups."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import vlmrl
from helpers.report_page import completion, row
from helpers.runs import ROOT, TINY, final_state, metric_lines
from vlmrl.cli.app import run as run_command
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.sweep import SweptRuns, combine, read_values
from vlmrl.features.benchmarks.sweep_table import Sweep, sum_up, to_markdown
from vlmrl.runs import run_folder
from vlmrl.system.files import read_json, write_json, write_lines

KEYS = ["optimizer.lr=1e-4,4e-4", "run.save_every=1", *TINY]
NAMES = ["tiny_lr=0.0001", "tiny_lr=0.0004"]


def sweep(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        run_command(["sweep", "quickstart", "run.name=tiny", *arguments])
    return int(end.value.code or 0)


# --------------------------------------------------------------------------------- which runs


def test_values_are_split_at_commas_and_the_rest_are_overrides() -> None:
    values, plain = read_values(
        [
            "machines/8x80gb",
            "optimizer.lr=1e-4, 4e-4",
            "rewards=[box_iou],[box_iou, format]",
            "run.steps=5",
        ]
    )
    assert values == {
        "optimizer.lr": [1e-4, 4e-4],
        "rewards": [["box_iou"], ["box_iou", "format"]],
    }
    assert plain == ["machines/8x80gb", "run.steps=5"]


def test_each_combination_has_a_folder_named_by_its_values(tmp_path: Path) -> None:
    config = vlmrl.load("quickstart", f"run.dir={tmp_path / 'base'}")
    rewards = [["box_iou"], [{"verifier": "box_iou"}, {"verifier": "format", "weight": 0.5}]]
    values = {"algorithm": ["grpo", "dr_grpo"], "rewards": rewards, "run.seed": [0, 7]}
    combinations = combine(config, values)
    names = [each.folder.name for each in combinations]
    assert len(set(names)) == 8 and {each.folder.parent for each in combinations} == {tmp_path}
    assert names[0].startswith("base_algorithm=grpo_rewards=") and names[0].endswith("_seed=0")
    assert [each.values["run.seed"] for each in combinations] == [0, 7] * 4
    last = combinations[-1]
    assert (last.config.algorithm.name, last.config.run.seed) == ("dr_grpo", 7)
    assert [reward.weight for reward in last.config.rewards] == [1.0, 0.5]
    assert last.config.resume.start == "auto" and last.config.run.name.startswith("quickstart_")
    # The same values in another order have the same names: the folder is found again.
    again = combine(config, {**values, "rewards": rewards[::-1], "run.seed": [7, 0]})
    assert {each.folder.name for each in again} == set(names)


@pytest.mark.parametrize(
    ("values", "about"),
    [
        ({}, "got none"),
        ({"run.steps": []}, "run.steps"),
        ({"algorithm": "grpo"}, "algorithm"),
        ({"run.steps": [1, 1]}, "different values"),
        ({"run.name": ["a", "b"]}, "run.name"),
        ({"resume": ["auto", "never"]}, "resume"),
        ({"algorithm": ["grpo", "grop"]}, "algorithm=grop: algorithm.*'grpo'"),
        ({"optimizer.ir": [1, 2]}, "ir=1: optimizer.ir: unknown key"),
    ],
)
def test_a_mistake_is_known_before_anything_runs(values: Mapping[str, Any], about: str) -> None:
    with pytest.raises(UserError, match=about):
        combine(vlmrl.load("quickstart"), values)


def test_without_a_key_of_several_values_there_is_no_sweep(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sweep("run.steps=5") == 2
    assert "several values" in capsys.readouterr().err
    assert sweep("run.steps=5,6", "run.steps=7,8") == 2
    assert "run.steps is there twice" in capsys.readouterr().err


def test_a_folder_with_a_run_of_another_config_is_refused(tmp_path: Path) -> None:
    def combinations(prompts: int) -> Any:
        name = f"run.dir={tmp_path / 'base'}", f"rollout.prompts={prompts}"
        return combine(vlmrl.load("quickstart", *name), {"run.seed": [0, 1]})

    run_folder.write_config(combinations(4)[1].folder, combinations(4)[1].config)
    assert len(combinations(4)) == 2
    with pytest.raises(UserError, match=r"base_seed=1: .*rollout\.prompts was 4, is 8"):
        combinations(8)


# --------------------------------------------------------------------------------- the table


SCORES = {
    # By learning rate and seed: of each row before and after.
    (1e-4, 0): ((0.1, 0.3, 0.2, 0.4), (0.2, 0.4, 0.2, 0.6)),
    (1e-4, 1): ((0.1, 0.2, 0.3, 0.4), (0.1, 0.4, 0.3, 0.4)),
    (4e-4, 0): ((0.1, 0.3, 0.2, 0.4), (0.9, 0.9, 0.8, 0.9)),
    (4e-4, 1): ((0.1, 0.2, 0.3, 0.4), (0.7, 0.8, 0.9, 0.8)),
}


def stored(tmp_path: Path, seeds: list[int], failed: Mapping[int, str] | None = None) -> Sweep:
    """A sweep of finished runs as they lie in their folders; `failed` by number."""
    config = vlmrl.load("quickstart", f"run.dir={tmp_path / 'base'}")
    values = {"optimizer.lr": [1e-4, 4e-4], **({"run.seed": seeds} if len(seeds) > 1 else {})}
    combinations = combine(config, values)
    for each in combinations:
        seed = each.values.get("run.seed", seeds[0])
        ends = dict(zip((0, 50), SCORES[each.values["optimizer.lr"], seed], strict=True))
        run_folder.write_config(each.folder, each.config)
        for step, scores in ends.items():
            rows = [
                {**row(f"s{n}", [completion(score, [0, 0, 1, 1])]), "drawn": "greedy"}
                for n, score in enumerate(scores)
            ]
            write_lines(each.folder / f"evals/step-{step}.jsonl", rows)
        means = [{"metrics": {"box_iou": sum(scores) / 4}} for scores in ends.values()]
        summary = {"finished": True, "steps": 50, "metric": "box_iou", "best_evaluation": None}
        summary |= {"first_evaluation": means[0], "last_evaluation": means[1]}
        write_json(each.folder / "summary.json", {**summary, "cpu_seconds": {"a": 1.5, "b": 2.0}})
        lines = [{"step": n, "update/tokens": 10.0} for n in range(50)]
        write_lines(each.folder / "metrics.jsonl", lines)
    errors = {combinations[n].folder: why for n, why in (failed or {}).items()}
    return sum_up(SweptRuns(combinations, errors))


def test_seeds_of_a_setting_are_a_group_and_every_gain_is_paired(tmp_path: Path) -> None:
    result = stored(tmp_path, [0, 1])
    assert [each.gain.value for each in result.rows if each.gain] == pytest.approx(
        [0.1, 0.05, 0.625, 0.55]
    )
    low, high = result.settings
    assert low.values == {"optimizer.lr": 1e-4} and len(low.folders) == 2
    assert (low.first, low.last) == pytest.approx((0.25, 0.325))
    assert (low.cpu_seconds, low.tokens) == (7.0, 1000)
    assert low.gain is not None and high.gain is not None and low.against_first is None
    assert (low.gain.value, high.gain.value) == pytest.approx((0.075, 0.5875))
    assert high.gain.verdict == "better" and low.gain.low < 0.075 < low.gain.high
    # Last against last: 0.8375 - 0.325, and as `vlmrl compare` has it with seeds between commas.
    assert high.against_first is not None
    assert high.against_first.value == pytest.approx(0.5125)
    arms = [",".join(map(str, each.folders)) for each in (low, high)]
    with pytest.raises(SystemExit):
        run_command(["compare", *arms, "--out", str(tmp_path / "comparison")])
    compared = read_json(tmp_path / "comparison/comparison.json")
    main = compared["comparisons"][0]["contrasts"][0]["differences"][0]
    assert [main[key] for key in ("value", "low", "high")] == pytest.approx(
        [getattr(high.against_first, key) for key in ("value", "low", "high")]
    )


def test_without_seeds_each_run_is_a_setting(tmp_path: Path) -> None:
    result = stored(tmp_path, [1])
    first, second = result.rows
    assert result.settings == () and first.against_first is None
    assert second.against_first is not None
    assert second.against_first.value == pytest.approx(0.8 - 0.3)
    lines = to_markdown(result).splitlines()
    assert lines[0].startswith("| lr | box_iou first | last | gain |")
    assert lines[2].startswith("| 0.0001 | 25.0 | 30.0 | +5.0 [")
    assert lines[3].endswith(" | 4 | 500 |") and len(lines) == 6


def test_what_failed_is_a_row_and_nothing_is_compared_with_a_first_that_failed(
    tmp_path: Path,
) -> None:
    result = stored(tmp_path, [0, 1], {0: "it broke | here"})
    assert [row.error for row in result.rows] == ["it broke | here", None, None, None]
    assert [len(row.folders) for row in result.settings] == [1, 2]
    text = to_markdown(result)
    assert "| 0.0001 | 0 | failed | - |" in text and "failed: it broke | here" in text
    result = stored(tmp_path, [1], {0: "it broke"})
    assert result.rows[1].against_first is None and result.rows[1].gain is not None


# -------------------------------------------------------------------------------- real runs


def begin(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vlmrl", "sweep", "quickstart", "run.name=tiny", *KEYS]
    return subprocess.Popen(
        [*command, "--out", "table"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def end_behind(process: subprocess.Popen[str], file: Path, lines: int, how: int) -> str:
    """Send a signal once a file has that many lines; return what was printed."""
    while process.poll() is None and not (
        file.exists() and file.read_bytes().count(b"\n") >= lines
    ):
        time.sleep(0.02)
    process.send_signal(how)
    return process.communicate()[0]


@pytest.mark.nightly
def test_a_sweep_that_is_stopped_and_killed_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    assert sweep(*KEYS, "--out", "table") == 0
    assert "vs first" in capsys.readouterr().out
    folders = [tmp_path / "killed/runs" / name for name in NAMES]
    stopped = begin(tmp_path / "killed")
    text = end_behind(stopped, folders[0] / "metrics.jsonl", 2, signal.SIGINT)
    assert stopped.returncode == 130 and "the same command goes on" in text
    assert not folders[1].exists()
    killed = begin(tmp_path / "killed")
    end_behind(killed, folders[1] / "metrics.jsonl", 2, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    monkeypatch.chdir(tmp_path / "killed")
    assert sweep(*KEYS, "--out", "table", "--quiet") == 0
    for name, folder in zip(NAMES, folders, strict=True):
        assert final_state(folder) == final_state(tmp_path / "whole/runs" / name)
        assert metric_lines(folder) == metric_lines(tmp_path / "whole/runs" / name)
    assert [len(run_folder.read_starts(folder)) for folder in folders] == [2, 2]
    tables = [read_json(tmp_path / kind / "table/sweep.json") for kind in ("whole", "killed")]
    for table in tables:
        assert table["finished"] and all(run.pop("cpu_seconds") > 0 for run in table["runs"])
    assert tables[0] == tables[1]
    table = (tmp_path / "killed/table/sweep.md").read_text("utf-8")
    assert table.startswith("| lr | varied first | last |")


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / NAMES[0]).write_text("no folder")
    assert sweep(*KEYS, "--out", "table") == 1
    assert f"runs/{NAMES[0]}: failed: " in capsys.readouterr().out
    table = json.loads((tmp_path / "table/sweep.json").read_text("utf-8"))
    assert not table["finished"]
    assert [bool(run["error"]) for run in table["runs"]] == [True, False]
    assert (run_folder.read_summary(tmp_path / "runs" / NAMES[1]) or {})["finished"]
