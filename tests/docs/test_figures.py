"""Published figures: the tables of results are written from records, and every record's command exists."""

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
        "It rose to 0.66, by 12 % [see](a-0.5.md), lr 4e-4, `0.3 %`, 95 % bootstrap, "
        "1-25, Qwen2.5-VL, seeds 0, 1, 2, -0.09 and (3.5).\n```\n0.7\n```\n<!-- 0.8 -->"
    )
    assert figures.written_out(page) == ["0.66", "12", "4e-4", "-0.09", "3.5"]


def test_a_table_is_written_from_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    with_interval = PublishedFigure(expected=0.57, interval=(0.5, 0.6))
    known = {
        "a": record(figures={"b": with_interval, "c": PublishedFigure(expected=-3, digits=0)}),
        "z": record(figures={"b": PublishedFigure(expected=1)}),
    }
    axes = {"records": {"a": "seed 0", "z": "seed 1"}, "figures": {"b": "IoU", "c": "tokens"}}
    monkeypatch.setattr(figures, "records", lambda: known)
    monkeypatch.setattr(
        figures,
        "result_tables",
        lambda: {
            "down": {"rows": "records", **axes},
            "across": {"rows": "figures", **axes},
            "lone": {"figures": {"a/c": "tokens"}},
            "lost": {"figures": {"x/c": "tokens"}},
        },
    )
    body = "|---|---|---|\n"
    assert figures.fill("<!-- results down -->.") == (
        f"|  | IoU | tokens |\n{body}| seed 0 | 0.570 [0.500, 0.600] | -3 |\n| seed 1 | 1.000 | – |."
    )
    assert figures.fill("<!-- results across -->") == (
        f"|  | seed 0 | seed 1 |\n{body}| IoU | 0.570 [0.500, 0.600] | 1.000 |\n| tokens | -3 | – |"
    )
    assert figures.fill("<!-- results lone -->").endswith("| tokens | -3 |")
    for unknown, message in (("lost", "'x'"), ("gone", "no table 'gone'")):
        with pytest.raises(UserError, match=message):
            figures.fill(f"<!-- results {unknown} -->")


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
