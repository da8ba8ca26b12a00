"""What `vlmrl watch` knows of a run that is being written: each line once, kept small, and its parts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from helpers.report_page import completion, config, row
from vlmrl.report.curves.growing_curve import MOST, GrowingCurve, GrowingCurves
from vlmrl.report.live.appended_lines import AppendedLines
from vlmrl.report.live.live_run import LiveRun
from vlmrl.report.live.parts import LiveParts, compared, say_state
from vlmrl.runs import run_folder, run_lock
from vlmrl.system import atomic_files


def steps_of(found: list[dict[str, Any]]) -> list[int]:
    return [line["step"] for line in found]


def test_each_line_is_read_once_and_a_torn_one_later(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = AppendedLines(path)
    assert lines.read() == []
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"st')
    assert steps_of(lines.read()) == [1, 2] and lines.read() == []
    with path.open("ab") as file:
        file.write(b'ep": 3}\n[1]\n{"step": 4}\n')
    assert steps_of(lines.read()) == [3, 4] and lines.damaged == 1


def test_a_file_that_a_resumed_run_rewrote_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    atomic_files.write_lines(path, [{"step": s, "x": s / 7} for s in range(1, 6)])
    lines = AppendedLines(path)
    lines.read()
    atomic_files.truncate_lines(path, 3)
    assert steps_of(lines.read()) == [1, 2, 3] and lines.starts == 1
    # Written again up to the same length, with other numbers.
    atomic_files.write_lines(path, [{"step": s, "x": s / 9} for s in range(1, 4)])
    assert steps_of(lines.read()) == [1, 2, 3] and lines.starts == 2
    path.unlink()
    assert lines.read() == [] and lines.starts == 3


@given(st.lists(st.none() | st.floats(-9, 9), max_size=3 * MOST))
def test_a_growing_curve_keeps_all_values_in_few_points(values: list[float | None]) -> None:
    curve = GrowingCurve()
    for step, value in enumerate(values, start=1):
        curve.add(step, value)
    series = curve.series("x")
    assert len(series.steps) <= MOST and list(series.steps) == sorted(set(series.steps))
    if values:
        assert series.steps[-1] == len(values)
        size = series.steps[0]  # a power of two, the same for all but the last
        for i, (end, mean) in enumerate(zip(series.steps, series.values, strict=True)):
            known = [v for v in values[i * size : end] if v is not None]
            assert mean == pytest.approx(sum(known) / len(known)) if known else mean is None


def test_ten_thousand_more_steps_take_no_more_memory() -> None:
    def size(curves: GrowingCurves) -> int:
        (curve,) = curves._curves.values()
        return sum(map(sys.getsizeof, (curve._steps, curve._sums, curve._counts)))

    curves = GrowingCurves()
    curves.extend({"step": s, "x": s / 3} for s in range(10 * MOST))
    before = size(curves)
    curves.extend({"step": s, "x": s / 3} for s in range(10 * MOST, 10 * MOST + 10_000))
    assert size(curves) < 2 * before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mine"
    run_folder.write_config(made, config())
    image = run_folder.media_folder(made) / "red.png"
    image.parent.mkdir(parents=True)
    Image.new("RGB", (20, 10), "red").save(image)
    return made


def write_step(folder: Path, step: int, **more: Any) -> None:
    line = {
        "step": step,
        "reward/mean": step / 10,
        "time/update": 2.0,
        "time/generate": 2.0,
        **more,
    }
    atomic_files.append_line(run_folder.metrics_path(folder), line)


def write_evaluation(folder: Path, step: int, value: float) -> None:
    rows = [row("held", [completion(value, [0, 0, 1, 1])], drawn="greedy")]
    numbers = {"reward": value}
    result = {"metrics": numbers, "intervals": {"reward": [value - 0.1, value + 0.1]}}
    run_folder.write_evaluation(folder, step, {**result, "pass_at_k": None}, rows)


def test_a_run_is_followed_from_nothing_to_its_end(folder: Path) -> None:
    run = LiveRun(folder)
    run.refresh()
    assert run.steps == 0 and not run.is_running and not run.mistake
    before = run.version
    run.refresh()
    assert run.version == before  # nothing new
    write_evaluation(folder, 0, 0.2)
    write_step(folder, 1)
    atomic_files.write_lines(run_folder.rollouts_path(folder, 1), [row("a", [completion(0.5)])])
    run.refresh()
    assert run.version > before and run.steps == 1 and run.rollouts is not None
    with run_lock.own(folder):
        write_step(folder, 2)
        run.refresh()
        state = run.state()
        group = run.config["rollout"]["prompts"] * run.config["rollout"]["group_size"]
        assert state["running"] and state["samples_s"] == pytest.approx(group / 4.0)
        assert state["left_s"] == pytest.approx((state["planned"] - 2) * 4.0)
        assert state["memory_mb"] > 10
        assert dict(say_state(state))["running"] == f"2 of {state['planned']}"
    assert not run.state()["running"]


def test_a_rewound_run_forgets_the_steps_that_were_dropped(folder: Path) -> None:
    run = LiveRun(folder)
    atomic_files.append_line(run_folder.sft_path(folder), {"step": 1, "loss": 2.0})
    for step in range(1, 9):
        write_step(folder, step)
    write_evaluation(folder, 0, 0.2)
    write_evaluation(folder, 8, 0.9)
    run.refresh()
    assert run.steps == 8 and set(run.evaluations) == {0, 8}
    run_folder.rewind(folder, 5)
    write_step(folder, 6)
    run.refresh()
    curve = run.curves.one("reward/mean")
    assert run.steps == 6 and set(run.evaluations) == {0}
    assert curve is not None and curve.steps == (1, 2, 3, 4, 5, 6)
    assert run.imitation.one("loss") is not None


def test_another_run_in_the_same_folder_begins_anew(folder: Path) -> None:
    run = LiveRun(folder)
    write_step(folder, 1)
    run.refresh()
    assert run_folder.move_aside(folder) is not None
    run_folder.write_config(folder, config().model_copy(update={"resume": "auto"}))
    run.refresh()
    assert run.steps == 0 and run.curves.series() == {}


def test_a_damaged_file_is_said_and_read_again(folder: Path) -> None:
    run = LiveRun(folder)
    path = run_folder.evaluation_path(folder, 0)
    path.parent.mkdir()
    path.write_text("{")
    run.refresh()
    assert "step-0.json: cannot be read" in run.mistake
    write_evaluation(folder, 0, 0.2)
    run.refresh()
    assert not run.mistake and set(run.evaluations) == {0}


def test_only_parts_that_are_new_and_looked_at_are_given(folder: Path) -> None:
    write_evaluation(folder, 0, 0.2)
    write_step(folder, 1)
    parts = LiveParts(LiveRun(folder))
    parts.run.refresh()
    seen = {"sentence": "", "curve": "", "pairs": "", "Reward": "", "Evaluation": ""}
    found = parts.newer(seen)
    assert set(found) == set(seen)
    keys = {name: key for name, (key, _) in found.items()}
    assert parts.newer(keys) == {}
    write_step(folder, 2)
    parts.run.refresh()
    assert set(parts.newer(keys)) == {"sentence", "Reward"}  # no new evaluation, no new images
    assert parts.newer({"no such part": ""}) == {}


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'>"


def test_hostile_names_and_answers_stay_text_in_every_part(folder: Path) -> None:
    for step in (1, 2):
        write_step(folder, step, **{f"source/{HOSTILE}/reward": step / 2, HOSTILE: step})
    bad = completion(0.5, None, text=HOSTILE, thought=HOSTILE, answer=HOSTILE)
    for step in (0, 2):
        write_evaluation(folder, step, 0.2)
        rows = [row(HOSTILE, [bad], source=HOSTILE, question=HOSTILE, drawn="greedy")]
        atomic_files.write_lines(folder / f"evals/step-{step}.jsonl", rows)
    atomic_files.write_lines(run_folder.rollouts_path(folder, 1), rows)
    parts = LiveParts(LiveRun(folder))
    parts.run.refresh()
    titles = (
        "status",
        "sentence",
        "curve",
        "pairs",
        "layout",
        "rollouts",
        "Reward",
        "More",
        "Evaluation",
    )
    found = parts.newer(dict.fromkeys(titles, ""))
    found["compared"] = ("", compared({HOSTILE: parts.run}))
    whole = "".join(html for _, html in found.values())
    assert "<script" not in whole and "<img src=x" not in whole
    assert whole.count("&lt;script&gt;alert(1)") >= 6
    json.dumps(found)
