"""Published figures: every number of the page of results has a record, and every record's command exists."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")

import figure_commands
import figures  # finds performance/, where the records are read
from reproduce import PublishedFigure, Record

from vlmrl.errors import UserError


def record(*command: str, **more: object) -> Record:
    given = {
        "says": "",
        "figures": {},
        "command": command,
        "date": datetime.date(2026, 11, 23),
        "hardware": "",
        "topic": "topic",
        **more,
    }
    return Record(**given)  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_figure_has_a_record_and_every_command_exists() -> None:
    assert figures.check() == []


def test_few_figures_have_no_command() -> None:
    records = figures.records().values()
    by_hand = sum(len(each.figures) for each in records if each.by_hand)
    assert by_hand <= sum(len(each.figures) for each in records) / 5
    assert figures.count().endswith(f"{by_hand} measured once, by hand")


def test_numbers_that_are_written_out_are_found() -> None:
    page = (
        "It rose to 0.66, by 12 % [see](a-0.5.md), lr 4e-4, `0.3 %`, 95 % bootstrap, 0.2<!--a-0.1/b-->, "
        "0.2 [0.1, 0.3]<!--a/b []--> "
        "1-25, Qwen2.5-VL, seeds 0, 1, 2, -0.09 and (3.5).\n```\n0.7\n```\n<!-- 0.8 -->"
    )
    assert figures.written_out(page) == ["0.66", "12", "4e-4", "-0.09", "3.5"]


def test_a_mark_stands_behind_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "a": record(
            figures={
                "b": PublishedFigure(expected=0.57, interval=(0.5, 0.6)),
                "c": PublishedFigure(expected=-3),
            }
        )
    }
    monkeypatch.setattr(figures, "records", lambda: known)
    code = "`1<!--a/x-->`\n```\n<!--a/x-->\n```\n"
    page = f"<!--a/b--> | 0.4<!--a/b []--> | +<!--a/c--> | <!-- a note --> {code}"
    right = page.replace("<!--a/b-->", "0.570<!--a/b-->").replace("0.4<", "0.570 [0.500, 0.600]<")
    right = right.replace("<!--a/c-->", "-3.000<!--a/c-->")
    assert figures.fill(page) == right == figures.fill(right)
    assert figures.differing(right) == []
    wrong = "0.571<!--a/b--> or 0.570 [0.500, 0.610]<!--a/b []-->"
    assert figures.differing(wrong) == [
        "expected 0.570<!--a/b-->, got 0.571<!--a/b-->",
        "expected 0.570 [0.500, 0.600]<!--a/b []-->, got 0.570 [0.500, 0.610]<!--a/b []-->",
    ]
    for unknown, message in (("a/x", "a/x"), ("x/b", "x/b"), ("a/c []", "no interval")):
        with pytest.raises(UserError, match=message):
            figures.fill(f"<!--{unknown}-->")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("vlmrl train quickstart run.seed=1 run.dir={out}", ""),
        ("vlmrl verify box_iou", ""),
        ("vlmrl train quickstarts", "no config file"),
        ("vlmrl train quickstart run.sed=1", "run.sed"),
        ("vlmrl train quickstart rewards=[{verifier: box_iuo}]", "box_iuo"),
        ("vlmrl teach quickstart", "no command"),
        ("vlmrl train quickstart --fast", "--fast"),
        ("sh -c true", "expected vlmrl or python"),
        ("python tests/table.py", "expected vlmrl or python"),
        ("python performance/../tests/table.py", "stay in the repository"),
        ("python /bin/x.py", "stay in the repository"),
        ("python performance/gone.py", "is gone"),
    ],
)
def test_a_command_is_read_and_not_run(command: str, message: str) -> None:
    words = command.split(" ", 3) if "rewards" in command else command.split()
    found = figure_commands.problems({"a": record(*words)})
    assert len(found) == bool(message)
    assert message in "".join(found)


def test_the_configs_that_a_script_names_are_found() -> None:
    text = 'CONFIG = "a"\nx = config.load("b", [f"c"])\nstart("d", folder, 0)\ncurve(CONFIG, "e")\n'
    assert sorted(figure_commands.configs_of(text)) == ["a", "b", "d"]
    for script, name in (("curricula", "difficulty_mixed"), ("quickstart", "quickstart")):
        source = (figures.ROOT / f"performance/{script}.py").read_text(encoding="utf-8")
        assert name in figure_commands.configs_of(source)


@pytest.mark.slow
def test_scripts_read_their_arguments_and_do_nothing_else(tmp_path: Path) -> None:
    commands = [
        ["performance/quickstart.py", "--seeds", "1", "--runs", str(tmp_path / "runs")],
        ["performance/quickstart.py", "--sedes", "1"],
        ["performance/acting.py", "gone"],
        ["performance/tables.py", "--x"],
    ]
    first, *wrong = figure_commands.check_scripts(commands)
    assert first == "" and not (tmp_path / "runs").exists()
    assert ["--sedes" in wrong[0], "gone" in wrong[1], "no arguments" in wrong[2]] == [True] * 3
