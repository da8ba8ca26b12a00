"""What `vlmrl watch` knows of a run that is being written: each line once, kept small, and its parts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.report_page import begin_run, completion, config, row, verdict
from vlmrl.config import ResumeConfig
from vlmrl.features.report.gallery import FacetChoice
from vlmrl.features.report.growing import AXES, MAX_POINTS, StepLines
from vlmrl.features.report.live_pages import compared, newer_parts, say_state
from vlmrl.features.report.live_run import AppendedLines, LiveRun
from vlmrl.features.report.page import build_report
from vlmrl.runs import run_folder, run_lock
from vlmrl.system import files


def test_each_line_is_read_once_and_a_torn_one_later(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = AppendedLines(path)
    assert not lines.read()
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"st')
    assert lines.read() and lines.steps.steps == [1, 2] and not lines.read()
    with path.open("ab") as file:
        file.write(b'ep": 3}\n[1]\n{"x": 1}\n{"step": 3.5}\n{"step": 4, "x": "y"}\n{"step": 4}\n')
    assert lines.read() and lines.steps.steps == [1, 2, 3, 4] and lines.damaged == 4


def test_a_file_that_a_resumed_run_rewrote_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    files.write_lines(path, [{"step": s, "x": s / 7} for s in range(1, 6)])
    lines = AppendedLines(path)
    lines.read()
    files.truncate_lines(path, 3)
    assert lines.read() and lines.steps.steps == [1, 2, 3]
    # Written again up to the same length, with other numbers.
    files.write_lines(path, [{"step": s, "x": s / 9} for s in range(1, 4)])
    assert lines.read() and lines.steps.curve("x").values == (1 / 9, 2 / 9, 3 / 9)
    path.unlink()
    assert not lines.read() and lines.steps.steps == []


@given(st.lists(st.none() | st.floats(-9, 9), max_size=3 * MAX_POINTS))
def test_a_long_curve_keeps_all_values_in_few_points(values: list[float | None]) -> None:
    lines = ({"step": step, "x": value} for step, value in enumerate(values, start=1))
    series = StepLines(lines).curve("x")
    assert len(series.steps) <= MAX_POINTS and list(series.steps) == sorted(set(series.steps))
    if values:
        assert series.steps[-1] == len(values)
        size = series.steps[0]  # the same for all but the last
        for i, (end, mean) in enumerate(zip(series.steps, series.values, strict=True)):
            known = [v for v in values[i * size : end] if v is not None]
            assert mean == pytest.approx(sum(known) / len(known)) if known else mean is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return begin_run(tmp_path / "mine")


def write_step(folder: Path, step: int, **more: Any) -> None:
    line = {
        "step": step,
        "reward/mean": step / 10,
        "time/update": 2.0,
        "time/generate": 2.0,
        **more,
    }
    files.append_line(run_folder.metrics_path(folder), line)


def write_evaluation(folder: Path, step: int, value: float) -> None:
    rows = [row("held", [completion(value, [0, 0, 1, 1])], drawn="greedy")]
    numbers = {"reward": value}
    result = {"metrics": numbers, "intervals": {"reward": [value - 0.1, value + 0.1]}}
    run_folder.write_evaluation(folder, step, {**result, "pass_at_k": None}, rows)


def test_a_run_is_followed_from_nothing_to_its_end(folder: Path) -> None:
    run = LiveRun(folder)
    run.refresh()
    assert run.steps == 0 and not run.state()["running"] and not run.mistake
    before = run.version
    run.refresh()
    assert run.version == before  # nothing new
    write_evaluation(folder, 0, 0.2)
    write_step(folder, 1)
    files.write_lines(run_folder.rollouts_path(folder, 1), [row("a", [completion(0.5)])])
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
    state = run.state()
    assert not state["running"] and not state["ended"]
    assert say_state(state)[0][0] == "not running"
    done = {**state, "steps": state["planned"], "ended": True}
    assert say_state(done)[0] == ("finished", f"{state['planned']:,} of {state['planned']:,}")


def test_every_image_of_a_part_is_in_it(folder: Path) -> None:
    write_evaluation(folder, 0, 0.2)
    write_evaluation(folder, 1, 0.4)
    write_step(folder, 1)
    files.write_lines(run_folder.rollouts_path(folder, 1), [row("a", [completion(0.5)])])
    run = LiveRun(folder)
    run.refresh()
    for _, html in newer_parts(run, {"pairs": "", "rollouts": ""}, FacetChoice()).values():
        used = set(re.findall(r'<use href="#(\w+)"', html))
        assert used and used == set(re.findall(r'<image id="(\w+)"', html))


def test_a_rewound_run_forgets_the_steps_that_were_dropped(folder: Path) -> None:
    run = LiveRun(folder)
    files.append_line(run_folder.sft_path(folder), {"step": 1, "loss": 2.0})
    for step in range(1, 9):
        write_step(folder, step)
    write_evaluation(folder, 0, 0.2)
    write_evaluation(folder, 8, 0.9)
    run.refresh()
    assert run.steps == 8 and set(run.evaluations) == {0, 8}
    run_folder.rewind(folder, 5)
    write_step(folder, 6)
    run.refresh()
    curve = run.metrics.curve("reward/mean")
    assert run.steps == 6 and set(run.evaluations) == {0}
    assert curve.steps == (1, 2, 3, 4, 5, 6)
    assert run.imitation.curve("loss").steps


def test_another_run_in_the_same_folder_begins_anew(folder: Path) -> None:
    run = LiveRun(folder)
    write_step(folder, 1)
    run.refresh()
    assert run_folder.move_aside(folder) is not None
    run_folder.write_config(
        folder, config().model_copy(update={"resume": ResumeConfig(start="auto")})
    )
    run.refresh()
    assert run.steps == 0 and run.metrics.keys == []


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
    run = LiveRun(folder)
    run.refresh()
    seen = {"sentence": "", "curve": "", "pairs": "", "Reward": "", "Evaluation": ""}
    found = newer_parts(run, seen, FacetChoice())
    assert set(found) == set(seen)
    keys = {name: key for name, (key, _) in found.items()}
    assert newer_parts(run, keys, FacetChoice()) == {}
    write_step(folder, 2)
    run.refresh()
    assert set(newer_parts(run, keys, FacetChoice())) == {
        "sentence",
        "Reward",
    }  # no new evaluation, no new images
    assert newer_parts(run, {"no such part": ""}, FacetChoice()) == {}


def test_a_folder_that_is_gone_is_said_and_what_was_read_stays(folder: Path) -> None:
    run = LiveRun(folder)
    write_step(folder, 3)
    run.refresh()
    aside = folder.with_name("aside")
    folder.rename(aside)
    run.refresh()
    assert "the run folder is gone" in run.mistake and run.steps == 3
    aside.rename(folder)
    run.refresh()
    assert not run.mistake and run.steps == 3


def test_rollouts_that_a_resumed_run_wrote_again_are_shown_again(folder: Path) -> None:
    run = LiveRun(folder)
    path = run_folder.rollouts_path(folder, 5)
    seen = {"rollouts": ""}
    for question in ("first?", "second?"):
        files.write_lines(path, [row("a", [completion(0.5)], question=question)])
        run.refresh()
        found = newer_parts(run, seen, FacetChoice())
        seen["rollouts"] = found["rollouts"][0]
        assert question in found["rollouts"][1]
    assert newer_parts(run, seen, FacetChoice()) == {}


CHOICES = {
    "fault": ({"failure": "fault"}, completion(0.2, verdicts={"iou": verdict(None, fault="late")})),
    "cut": ({"failure": "cut"}, completion(0.2, finish_reason="length")),
    "unread": ({"failure": "unread"}, completion(0.2, answer=None)),
    "unlike": ({"disagreement": "rewards"}, completion(0.9)),
    "torn": (
        {"disagreement": "verifiers"},
        completion(0.2, verdicts={"iou": verdict(0.1), "format": verdict(1.0)}),
    ),
    "strict": ({"disagreement": "readings"}, completion(0.2, loophole={"strict": 0.0})),
    "form": ({"failure": "form"}, completion(0.2, verdicts={"format": verdict(0.5)})),
    "elsewhere": ({"verifier": "grid"}, completion(0.2, verdicts={"grid": verdict(0.2)})),
}
"""Row -> what it can be chosen by, and the completion that makes it so; the other one is plain."""


@pytest.mark.parametrize("name", CHOICES)
def test_the_prompts_of_a_choice_are_shown_alone(folder: Path, name: str) -> None:
    rows = [row(n, [completion(0.2), odd], question=f"{n}?") for n, (_, odd) in CHOICES.items()]
    rows[1]["source"] = "other"
    files.write_lines(run_folder.rollouts_path(folder, 5), rows)
    run = LiveRun(folder)
    run.refresh()
    all_of_them = newer_parts(run, {"rollouts": ""}, FacetChoice())["rollouts"][1]
    assert all(f"{n}?" in all_of_them for n in CHOICES) and "8 of 8 prompts" in all_of_them
    html = newer_parts(run, {"rollouts": ""}, FacetChoice.of(CHOICES[name][0]))["rollouts"][1]
    assert "1 of 8 prompts" in html
    assert [n for n in CHOICES if f">{n}?" in html] == [name]
    (value,) = CHOICES[name][0].values()
    assert f'<option value="{value}" selected>' in html
    both = FacetChoice.of({**CHOICES[name][0], "source": "other"})
    expected = "1 of 8" if name == "cut" else "0 of 8"
    assert expected in newer_parts(run, {"rollouts": ""}, both)["rollouts"][1]


def test_machine_figures_and_what_comes_beside_steps_are_in_the_state(folder: Path) -> None:
    more = {"machine/gpu_memory_mb": 20_480.0, "machine/gpu_memory_total_mb": 81_920.0}
    for step in range(1, 21):
        beside = {"time/evaluate": 60.0} if step == 1 else {}
        write_step(folder, step, **more, **beside, **{"machine/gpu_use": 0.5})
    run = LiveRun(folder)
    with run_lock.own(folder):
        run.refresh()
        state = run.state()
    assert state["left_s"] == pytest.approx((state["planned"] - 20) * (4.0 + 60 / 20))
    shown = dict(say_state(state))
    assert shown["GPU memory"] == "20.0 GiB of 80.0 GiB" and shown["GPU use"] == "50%"


def test_stages_and_the_fit_are_those_of_the_report(folder: Path) -> None:
    for step in range(1, 13):
        write_step(folder, step, **{"schedule/stage": 1.0 + (step > 6), "time/update": 100.0})
    metric = config().evaluation.metric
    for step in range(13):
        seconds = 102.0 * step
        value = 0.2 if step == 0 else 0.2 + 0.6 / (1 + (300 / seconds) ** 1.5)
        result = {"metrics": {metric: value}, "intervals": {}, "pass_at_k": None}
        run_folder.write_evaluation(folder, step, result, [])
    run = LiveRun(folder)
    run.refresh()
    newer_parts(run, {}, FacetChoice())
    run.fitting.join()
    found = newer_parts(run, dict.fromkeys(("Reward", "Evaluation", "numbers"), ""), FacetChoice())
    report = build_report(folder).read_text()
    for part, text in (
        ("Reward", "stage 2: from step 7"),
        ("Evaluation", "by compute"),
        ("numbers", "limit of more compute"),
        ("numbers", "<dt>stage 2</dt>"),
    ):
        assert text in found[part][1] and text in report
    fit = re.search("<dt>limit of more compute.*", report)
    assert fit is not None and fit[0] in found["numbers"][1]


def test_an_alarm_is_among_the_warnings(folder: Path) -> None:
    run = LiveRun(folder)
    write_step(folder, 1)
    run.refresh()
    assert not run.progress().alarms
    line = {"step": 1, "alarms": {"strict": "the strict reading stands still"}, "rows": []}
    files.append_line(run_folder.loopholes_path(folder), line)
    run.refresh()
    assert (
        "the strict reading stands still"
        in newer_parts(run, {"sentence": ""}, FacetChoice())["sentence"][1]
    )


def test_runs_are_compared_by_what_their_steps_took(folder: Path) -> None:
    lines = [{"step": s, "time/update": 2.5, "rollout/batches": 2.0} for s in (1, 2, 3)]
    spent = StepLines(lines)
    assert [spent.place(2, across, 12) for across in AXES] == [2, 48, 5]
    assert [spent.place(0, across, 12) for across in AXES] == [0, 0, 0]
    assert (spent.seconds_after(3), spent.seconds_after(4)) == (7.5, None)
    for step in (1, 2):
        write_step(folder, step)
    run = LiveRun(folder)
    run.refresh()
    group = run.config["rollout"]["prompts"] * run.config["rollout"]["group_size"]
    ends = {"step": [1, 2], "samples": [group, 2 * group], "seconds": [4, 8]}
    for across in AXES:
        (hover,) = re.findall("data-hover='(.*?)'", compared({"mine": run}, across))
        assert json.loads(hover)["steps"] == ends[across]
        assert json.loads(hover)["across"] == across


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'>"


def test_hostile_names_and_answers_stay_text_in_every_part(folder: Path) -> None:
    for step in (1, 2):
        write_step(folder, step, **{f"source/{HOSTILE}/reward": step / 2, HOSTILE: step})
    bad = completion(0.5, None, text=HOSTILE, thought=HOSTILE, answer=HOSTILE)
    for step in (0, 2):
        write_evaluation(folder, step, 0.2)
        rows = [row(HOSTILE, [bad], source=HOSTILE, question=HOSTILE, drawn="greedy")]
        files.write_lines(folder / f"evals/step-{step}.jsonl", rows)
    files.write_lines(run_folder.rollouts_path(folder, 1), rows)
    run = LiveRun(folder)
    run.refresh()
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
    found = newer_parts(run, dict.fromkeys(titles, ""), FacetChoice())
    found["compared"] = ("", compared({HOSTILE: run}))
    whole = "".join(html for _, html in found.values())
    assert "<script" not in whole and "<img src=x" not in whole
    assert whole.count("&lt;script&gt;alert(1)") >= 6
    json.dumps(found)
