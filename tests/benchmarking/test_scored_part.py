"""The part of an answer that is scored: through the command line, an answer counts alike in tags and bare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from helpers.benchmark_runs import run as evaluate
from helpers.published import ROWS, write_published
from helpers.runs import TINY
from vlmrl import plugins
from vlmrl.assemble import lifecycle
from vlmrl.cli.app import app
from vlmrl.config import load
from vlmrl.features.benchmarks.tables import make_table

RIGHT = {
    "ai2d": ["A", "B", "C", "D"],
    "chartqa": ["100", "2019", "Yes", "12%"],
    "docvqa": ["Old Moon", "moon", "Old Moon", "nothing"],
    "countbench": ["2", "3", "11"],
}
"""Answers to the rows of `helpers.published`; the last of two benchmarks is wrong."""
NAMES = ",".join(RIGHT)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step whose config names no template: its samples' own is `think_answer`."""
    folder = tmp_path_factory.mktemp("home") / "run"
    more = ["sft=null", "evaluation=null", "run.steps=1", f"run.dir={folder}"]
    lifecycle.train(load("quickstart", [*TINY, *more]))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in RIGHT:
        split = plugins.load("benchmark", name).split
        write_published(folder, name, split, ROWS[name])
    return folder


def scores(model: Path, data: Path, out: Path, form: str, *more: str) -> tuple[dict, str]:
    """Evaluate, put right answers of a form in the place of the model's, and evaluate again."""
    asked = (model, data, out, "--benchmark", NAMES, "--limit", "4", "--max-tokens", "2", *more)
    first = evaluate(*asked)
    assert first.exit_code == 0, first.output
    for name, answers in RIGHT.items():
        file = out / name / "answers.jsonl"
        stored = [json.loads(line) for line in file.read_text().splitlines()]
        for line in stored:
            line["text"] = form.format(answers[line["index"]])
        file.write_text("".join(json.dumps(line) + "\n" for line in stored))
    again = evaluate(*asked)
    assert again.exit_code == 0, again.output
    results = {name: json.loads((out / name / "result.json").read_text()) for name in RIGHT}
    figures = {
        name: {key: result["figures"][key]["value"] for key in ("official", "strict")}
        for name, result in results.items()
    }
    return figures, again.output


TAGGED = "<think>Hm, 7.</think><answer>{}</answer>"


def test_tags_of_the_run_s_template_are_no_part_of_the_answer(
    run: Path, data: Path, tmp_path: Path
) -> None:
    checkpoint = run / "checkpoints/step-1"
    bare = tmp_path / "checkpoint"
    bare.symlink_to(checkpoint)  # outside of its run
    plain, output = scores(bare, data, tmp_path / "plain", "{}")
    assert plain["ai2d"] == {"official": 1.0, "strict": 1.0} and "--template" not in output
    assert 0 < plain["docvqa"]["official"] < 1
    of_run, output = scores(run, data, tmp_path / "run", TAGGED)
    assert of_run == plain and "--template" not in output
    named, output = scores(bare, data, tmp_path / "named", TAGGED, "--template", "think_answer")
    assert named == plain and "--template" not in output
    unknown, output = scores(bare, data, tmp_path / "unknown", TAGGED)
    assert unknown["ai2d"]["official"] == 0
    assert "100% of the answers hold tags" in output and "--template" in output
    folders = [str(tmp_path / "plain"), str(tmp_path / "run")]
    compared = CliRunner().invoke(app, ["compare", *folders, "--out", str(tmp_path / "comparison")])
    assert compared.exit_code == 0 and "better" not in compared.output.splitlines()[0]


def test_a_template_that_is_none_is_refused_with_the_nearest_name(
    run: Path, data: Path, tmp_path
) -> None:
    done = evaluate(run, data, tmp_path, "--benchmark", "ai2d", "--template", "think_anser")
    assert done.exit_code == 1 and "think_answer" in str(done.exception)


def test_the_benchmarks_of_training_have_the_template_of_the_samples(
    data: Path, tmp_path: Path
) -> None:
    from vlmrl.assemble.sources import open_benchmarks

    chosen = f"evaluation={{benchmarks: [{{name: ai2d, path: {data}/ai2d, limit: 2, protocol: lmms_eval}}]}}"
    config = load("quickstart", [*TINY, chosen, f"run.dir={tmp_path}"])
    assert [source.template for source in open_benchmarks(config)] == ["think_answer"]


def test_the_table_keeps_names_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    table = make_table("benchmark", "n", "official", "strict", "unread", "cut", "disagree")
    figures = ("≥ 0.833 [0.436, 0.970]", "0.833 [0.436, 0.970]")
    table.add_row("mathvision:testmini", "304", *figures, "100%", "0%", "4")
    Console(width=80).print(table)
    lines = capsys.readouterr().out.splitlines()
    assert (
        "mathvision" in "".join(line[:14].strip() for line in lines) and max(map(len, lines)) <= 80
    )


def test_a_benchmark_that_cannot_be_exported_does_not_refuse_the_others(
    run: Path, data: Path, tmp_path: Path
) -> None:
    write_published(tmp_path / "more", "refcoco", "testA", ROWS["refcoco"])
    (tmp_path / "more/ai2d").symlink_to(data / "ai2d")
    asked = ("--limit", "2", "--max-tokens", "2", "--export", "lmms_eval")
    both = evaluate(run, tmp_path / "more", tmp_path, "--benchmark", "refcoco,ai2d", *asked)
    assert both.exit_code == 0, both.exception
    assert "refcoco" in both.output.split("not exported")[1]
    assert list((tmp_path / "lmms_eval").rglob("*ai2d*"))
    alone = evaluate(run, tmp_path / "more", tmp_path, "--benchmark", "refcoco", *asked)
    assert alone.exit_code == 1 and "no task for any of refcoco" in str(alone.exception)
