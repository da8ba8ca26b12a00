"""What commands say, to whom: lines that fit, a panel without a cut number, objects that parse, time left."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from vlmrl.errors import UserError
from vlmrl.runs.output import events, outputs, words
from vlmrl.runs.output.terminal import LiveOutput, choose
from vlmrl.runs.output.words import wrap
from vlmrl.runs.run_log import TimeLeft

METRICS = {
    "reward/mean": 0.612,
    "source/shapes/reward": 0.612,
    "source/shapes/box_iou": 0.512,
    "source/shapes/format": 0.998,
    "source/cell photos of a long name/reward": 0.25,
    "source/cell photos of a long name/box_iou": 0.125,
    "rollout/uniform_share": 0.125,
    "rollout/length": 23.4,
    "update/grad_norm": 1.25,
    "time/data": 0.01,
    "time/generate": 0.15,
    "time/update": 0.04,
}
STEP = events.Step(7, 150, 754.0, METRICS)
EVALUATED = events.Evaluated(
    50,
    "box_iou",
    0.612,
    (0.59, 0.634),
    0.134,
    0.62,
    40,
    256,
    3.25,
    {"box_iou": 0.612, "reward": 0.5},
)
SUMMARY = (
    "evaluation at step 50  box_iou 0.612 [0.590, 0.634]  +0.134 since the first  best 0.620 at step 40  "
    "256 samples  3.2 s  reward 0.500"
)

word_lists = st.text("abc0123456789.-", min_size=1, max_size=12)
parts = st.lists(st.lists(word_lists, min_size=1, max_size=4).map(" ".join), min_size=1, max_size=9)


# --------------------------------------------------------------------------------------- widths


@given(parts, st.integers(14, 80))
def test_a_wrapped_line_keeps_every_word_whole_and_fits(told: list[str], columns: int) -> None:
    found = wrap(told, columns)
    assert [word for line in found for word in line.split()] == " ".join(told).split()
    assert all(len(line) <= columns for line in found)


def test_an_exponent_is_not_broken_at_its_sign() -> None:
    assert wrap(["a rate of 1e-05 a step"], 12) == ["a rate of", "  1e-05 a", "  step"]


# ---------------------------------------------------------------------------------------- lines


def test_a_line_says_how_long_it_takes_and_a_log_gets_it_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with outputs.Lines() as output:
        output.say(events.Step(150, 150, 0.0, METRICS))
        output.say(EVALUATED)
    step, evaluation = capsys.readouterr().out.splitlines()
    assert step.startswith("step 150/150  0 s left  reward 0.612  shapes: reward 0.612")
    assert evaluation == SUMMARY


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_narrow_terminal_without_a_panel_wraps_between_parts(
    capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    with outputs.Lines(columns) as output:
        output.say(EVALUATED)
    found = capsys.readouterr().out.splitlines()
    assert all(len(line) <= columns for line in found)
    assert len(found) == {40: 5, 60: 3, 80: 2}[columns]
    for whole in (
        "box_iou 0.612 [0.590, 0.634]",
        "+0.134 since the first",
        "best 0.620 at step 40",
    ):
        assert sum(whole in line for line in found) == 1


def test_every_minute_has_a_step_and_a_short_run_about_twenty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for steps, seconds in ((1000, 0.1), (1000, 90.0), (100_000, 7.0)):
        at = iter(itertools.count(0.0, seconds))
        output = outputs.Lines(clock=lambda at=at: next(at))
        for step in range(1, min(steps, 2000) + 1):
            output.say(events.Step(step, steps, 1.0, {}))
        said = [int(n) for n in re.findall(r"step +(\d+)/", capsys.readouterr().out)]
        if seconds == 0.1:
            assert said == [1, *range(50, 1001, 50)]
        elif seconds == 90:
            assert said == list(range(1, 1001))
        else:
            assert {b - a for a, b in itertools.pairwise(said[1:])} == {9}  # 63 seconds


def test_what_takes_long_is_said_on_standard_error_and_what_does_not_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "AFTER_S", 0.01)
    with outputs.Lines() as output:
        with output.doing("loading model m"):
            pass
        with output.doing("evaluating", 40) as activity:
            activity.done(10)
            said = wait_for(lambda: capsys.readouterr().err)
    assert re.match(r"evaluating: 10 of 40 rows  \d\S* a second  \d+ s left\n", said)


def wait_for(look: Callable[[], str]) -> str:
    """Return what a thread says soon."""
    for _ in range(10_000):
        if found := look():
            return found
        time.sleep(0.005)
    raise AssertionError("nothing was said")


def test_quiet_leaves_warnings_evaluations_and_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    end = events.Finished(150, Path("runs/a"), None, "box_iou", 0.47, 0.65, (0.63, 0.67), {})
    with outputs.Lines(quiet=True) as output, output.doing("loading model m"):
        for event in (events.Started("a", "grpo", Path("runs/a"), 0, 150), STEP, EVALUATED):
            output.say(event)
        output.say(events.Warned("blind"))
        output.say(end)
    said = capsys.readouterr()
    told = "held-out box_iou: 0.470 before GRPO, 0.650 [0.630, 0.670] after 150 steps"
    assert said.out.splitlines() == [SUMMARY, "blind", told] and said.err == ""


# ----------------------------------------------------------------------------------------- live


def panel(columns: int) -> list[str]:
    """The last state of a panel, as rich draws it, without the spaces at the ends of lines."""
    out = io.StringIO()
    console = Console(file=out, width=columns, height=40, force_terminal=False)
    with LiveOutput(console) as output:
        output.say(events.ColdStartStep(30, 600, 60.0, {"loss": 1.5}))
        output.say(STEP)
        output.say(events.Warned("[red]blind[/nothing]"))
        with output.doing("evaluating", 128) as activity:
            activity.done(64)
            time.sleep(0.01)
            lines = console.render_lines(output.panel(), pad=False)
    assert "[red]blind[/nothing]" in out.getvalue()
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


NUMBERS = r"(?<![\w.])\d[\d.]*%?(?![\w.…])"


@pytest.mark.parametrize("columns", [24, 40, 60, 80, 120])
def test_a_panel_fits_and_no_number_of_it_is_cut(columns: int) -> None:
    rows = panel(columns)
    assert all(len(row) <= columns for row in rows)
    before = rows[: next(n for n, row in enumerate(rows) if row.startswith("evaluating"))]
    (step,) = STEP.lines()
    assert " ".join(row for row in before if "━" not in row).split() == " ".join(step).split()
    assert any("evaluating: 64 of 128" in row for row in rows)
    assert sum("━" in row for row in rows) == 2 and not any("cold start" in row for row in rows)


# ----------------------------------------------------------------------------------------- json


def test_every_event_is_one_object_whose_keys_are_its_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = events.Failed("a\nb", mistake=True)
    nothing = events.Step(1, 2, float("inf"), {"loss/kl": float("nan")})
    with outputs.JsonLines() as output:
        for event in (STEP, EVALUATED, nothing, gone):
            output.say(event)
        print("a verifier that prints")
    said = capsys.readouterr()
    step, evaluation, odd, failed = map(json.loads, said.out.splitlines())
    assert list(step) == ["kind", "step", "steps", "left_s", "metrics"] and step["kind"] == "step"
    assert step["metrics"] == METRICS and step["left_s"] == 754.0
    assert evaluation["interval"] == [0.59, 0.634] and evaluation["change"] == 0.134
    assert (odd["left_s"], odd["metrics"]) == (None, {"loss/kl": None})
    assert failed == {"kind": "failed", "error": "a\nb", "mistake": True}
    assert said.err == "a verifier that prints\n"


def test_what_is_done_begins_and_ends_as_objects(capsys: pytest.CaptureFixture[str]) -> None:
    with outputs.JsonLines() as output, output.doing("evaluating", 4) as activity:
        activity.done(4)
    begun, ended = map(json.loads, capsys.readouterr().out.splitlines())
    assert (begun["done"], begun["ended"]) == (0, False)
    assert (ended["done"], ended["total"], ended["ended"]) == (4, 4, True)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("no such file"), {"kind": "failed", "error": "no such file", "mistake": True}),
        (ValueError("ours"), {"kind": "failed", "error": "ours", "mistake": False}),
        (KeyboardInterrupt(), {"kind": "interrupted", "resume": None, "kept": None}),
    ],
)
def test_an_error_is_an_object_too(
    capsys: pytest.CaptureFixture[str], error: BaseException, said: dict[str, Any]
) -> None:
    with pytest.raises(type(error)), outputs.JsonLines():
        raise error
    assert json.loads(capsys.readouterr().out) == said


def test_kinds_and_fields_are_words_that_programs_can_rely_on() -> None:
    kinds = events.kinds()
    assert len(kinds) == len(events.Event.__subclasses__())  # no name is used twice
    for kind, event in kinds.items():
        names = [kind, *(field.name for field in dataclasses.fields(event))]
        assert all(re.fullmatch("[a-z_]+", name) for name in names) and "kind" not in names[1:]


def test_quiet_and_json_exclude_each_other() -> None:
    with pytest.raises(UserError, match="expected one of --quiet and --json, got both"):
        choose(quiet=True, as_json=True)


def test_ranks_but_the_main_one_are_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    with choose() as output, output.doing("loading model m"):
        output.say(EVALUATED)
    assert type(output) is outputs.Output and capsys.readouterr().out == ""
    with choose(as_json=True) as output, output.doing("loading model m"):
        output.say(EVALUATED)
        print("a verifier that prints")
    said = capsys.readouterr()
    assert said.out == "" and said.err == "a verifier that prints\n"


# ------------------------------------------------------------------------------------ time left


def estimates(steps: int, took: list[float], evaluate: float, save: float) -> list[float]:
    """What is said after each step of a run that evaluates every 5 steps and saves every 4."""
    now, besides, found = 0.0, {"time/evaluate": evaluate}, []
    left = TimeLeft(steps, {"evaluate": 5, "checkpoint": 4}, lambda: now)
    for step, seconds in enumerate(took, start=1):
        now += seconds + sum(besides.values())
        found.append(left.add(step, {"time/generate": took[0], **besides}))
        besides = {"time/evaluate": evaluate} if step % 5 == 0 else {}
        besides |= {"time/checkpoint": save} if step % 4 == 0 else {}
    return found


def remaining(steps: int, step: int, each: float, evaluate: float, save: float) -> float:
    """The seconds of a run from the line of a step to its end, added up one by one."""
    whole = (steps - step) * each
    for at in range(step, steps + 1):
        whole += evaluate if at % 5 == 0 or at == steps else 0
        whole += save if at % 4 == 0 or at == steps else 0
    return whole


@pytest.mark.parametrize("steps", [20, 23])
def test_time_left_counts_steps_evaluations_and_checkpoints(steps: int) -> None:
    said = estimates(steps, [2.0] * steps, evaluate=7.0, save=3.0)
    for step in range(5, steps + 1):  # the first checkpoint was seen
        assert said[step - 1] == pytest.approx(remaining(steps, step, 2.0, 7.0, 3.0))


def test_one_slow_step_moves_no_estimate_but_a_lasting_change_does() -> None:
    plain, slow = [2.0] * 60, [2.0] * 30 + [500.0] + [2.0] * 29
    assert estimates(100, slow, 7.0, 3.0)[31:] == pytest.approx(
        estimates(100, plain, 7.0, 3.0)[31:]
    )
    changed = estimates(100, [2.0] * 30 + [4.0] * 30, 7.0, 3.0)
    assert changed[-1] == pytest.approx(remaining(100, 60, 4.0, 7.0, 3.0))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (754, "13 min"),
        (6000, "1 h 40 min"),
        (172_740, "47 h 59 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_seconds_are_said_in_fitting_units(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said
