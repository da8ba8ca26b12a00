"""Of several ranks the slow one is named with its machine, and how long others wait for it is seen."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from helpers import slow_rank
from helpers.runs import TINY, torchrun
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.features.report.page import build_report
from vlmrl.monitoring.machines import Machines
from vlmrl.system import timers
from vlmrl.system.timers import MEETINGS, Lap, PhaseTimers

Run = tuple[subprocess.CompletedProcess[str], Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What two ranks printed, the second of which is slow, and their folder."""
    folder = tmp_path_factory.mktemp("ranks") / "run"
    done = torchrun(slow_rank.__file__, str(folder))
    assert done.returncode == 0, done.stderr
    return done, folder


@pytest.fixture(scope="module")
def lines(run: Run) -> list[dict[str, float]]:
    """Their lines of metrics.jsonl."""
    return [json.loads(line) for line in (run[1] / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.nightly
def test_the_slow_rank_is_named_once_with_its_machine(run: Run) -> None:
    said = re.findall("rank .* is slow: .*", run[0].stdout)
    assert len(said) == 1
    assert said[0].startswith("rank 1 on node-1 is slow: in each of the last 10 steps")
    assert said[0].endswith("most of it in reward")


@pytest.mark.nightly
def test_every_step_says_who_was_slow_at_what(lines: list[dict[str, float]]) -> None:
    assert len(lines) == slow_rank.STEPS
    for line in lines:
        assert line["ranks/work/slowest"] == line["ranks/reward/slowest"] == 1
        assert line["ranks/reward/max"] == pytest.approx(slow_rank.SLOW_S, abs=0.1)
        assert line["ranks/reward/min"] < 0.1 and line["ranks/update/max"] < 0.1
        half = (line["ranks/work/min"] + line["ranks/work/max"]) / 2
        assert line["ranks/work/median"] == pytest.approx(half)
        assert 0 < line["ranks/told_bytes"] < 20_000
        assert line["ranks/excess"] == pytest.approx(line["ranks/work/max"] / half - 1)


@pytest.mark.nightly
def test_the_other_rank_waits_for_as_long(lines: list[dict[str, float]]) -> None:
    for line in lines:
        assert line["ranks/idle/min"] < 0.1 < 0.8 < line["ranks/idle/max"] < 1
        # Both were at it for as long, one of them waiting.
        assert line["time/reward"] == pytest.approx(line["ranks/reward/max"], abs=0.1)


@pytest.mark.nightly
def test_the_report_names_the_machine_and_has_a_section(run: Run) -> None:
    assert json.loads((run[1] / "ranks.json").read_text()) == {"0": ["node-0", "node-1"]}
    page = (run[1] / "report.html").read_bytes().decode(errors="replace")
    assert f"<b>1 on node-1</b> <small>in {slow_rank.STEPS} of {slow_rank.STEPS} steps" in page
    assert '<section id="machines">' in page and 'aria-label="Own seconds of a rank"' in page
    assert "ranks/" not in page.partition('id="more"')[2]


@pytest.mark.slow
def test_one_process_writes_none_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lifecycle.train(
        load("quickstart", [*TINY, *slow_rank.FEW, f"run.dir={folder}", "run.steps=2"]),
        write_report=build_report,
    )
    assert "ranks/" not in (folder / "metrics.jsonl").read_text()
    assert not (folder / "ranks.json").exists()
    assert b"ranks/" not in (folder / "report.html").read_bytes()


class Judge:
    """Gives `Machines` of two ranks each the seconds of every rank, and keeps what it says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._machines = Machines([f"node-{rank // 2}" for rank in range(4)], self.said.append)

    def __call__(self, *own: dict[str, float]) -> dict[str, float]:
        return self._machines.compare(own, [0.25 * rank for rank in range(len(own))])


@pytest.fixture
def judge() -> Judge:
    return Judge()


def test_the_numbers_are_those_over_the_ranks(judge: Judge) -> None:
    found = judge(
        {"generate": 1.0, "sync": 9.0},
        {"generate": 2.0, "sync": 0.0},
        {"generate": 6.0, "sync": 0.0},
        {"generate": 4.0, "sync": 1.0},
    )
    assert found == {
        "ranks/excess": pytest.approx(1.0),
        **dict.fromkeys(("ranks/generate/min", "ranks/work/min"), 1.0),
        **dict.fromkeys(("ranks/generate/median", "ranks/work/median"), 3.0),
        **dict.fromkeys(("ranks/generate/max", "ranks/work/max"), 6.0),
        **dict.fromkeys(("ranks/generate/slowest", "ranks/work/slowest"), 2.0),
        "ranks/sync/min": 0.0,
        "ranks/sync/median": 0.5,
        "ranks/sync/max": 9.0,
        "ranks/sync/slowest": 0.0,
        "ranks/idle/min": 0.0,
        "ranks/idle/median": 0.375,
        "ranks/idle/max": 0.75,
    }


def test_only_a_rank_that_lags_in_every_step_is_named(judge: Judge) -> None:
    even, slow = {"generate": 1.0, "update": 1.0}, {"generate": 1.1, "update": 1.5}
    for _ in range(9):
        judge(even, even, even, slow)
    judge(even, even, even, even)
    for _ in range(9):
        judge(even, even, even, slow)
    judge(even, slow, even, even)
    assert judge.said == []
    for _ in range(9):
        judge(even, slow, even, even)
    (line,) = judge.said
    assert line.startswith("rank 1 on node-0 is slow") and line.endswith(
        "30%, most of it in update"
    )
    for _ in range(30):
        judge(even, slow, even, even)
    assert len(judge.said) == 1
    for _ in range(10):
        judge(even, even, even, slow)
    assert judge.said[1].startswith("rank 3 on node-1 is slow")


def test_what_the_main_rank_does_alone_is_not_slowness(judge: Judge) -> None:
    for _ in range(20):
        judge({"update": 1.0, "sync": 5.0, "checkpoint": 5.0}, {"update": 1.1}, {"update": 1.1})
    assert judge.said == []


def test_one_rank_is_not_compared() -> None:
    assert Machines().metrics(Lap({"update": 1.0}, {}, 2.0, 0.0, 0)) == {}


def test_a_lap_has_the_seconds_in_meetings_by_part_and_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(timers.time, "perf_counter", lambda: now[0])

    def meet(seconds: float) -> None:
        with MEETINGS:
            now[0] += seconds

    measured = PhaseTimers()
    for _ in range(2):
        with measured("update"):
            now[0] += 2.0
            meet(3.0)
        meet(4.0)
        now[0] += 1.0
        lap = measured.lap()
        assert (lap.wall, lap.waited) == ({"update": 5.0}, {"update": 3.0})
        assert (lap.whole_s, lap.waited_s) == (10.0, 7.0)
