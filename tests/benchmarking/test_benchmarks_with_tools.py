"""Benchmarks with tools: the last turn is scored, calls are kept, and an evaluation goes on."""

import csv
import json
from pathlib import Path

import pytest

from helpers import hostile_tools, small
from helpers.benchmark_runs import run
from helpers.published import ROWS, write_published
from helpers.turns import script_turns

pytestmark = pytest.mark.slow
CALL = '<tool_call>{"name": "crop", "arguments": {"bbox_2d": [0, 0, 28, 28]}}</tool_call>'
NAME = "vstar_bench"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "step-1"
    small.policy().save(str(folder))
    return folder


@pytest.fixture
def ask(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    """Asks the first rows of V*, of which each is answered with a crop and then (A)."""
    write_published(tmp_path, NAME, "test", ROWS[NAME])
    prompts = []

    def say(prompt):
        prompts.append(prompt)
        return "(A)" if "<tool_response>" in prompt.text else f"(B) or {CALL}"

    script_turns(monkeypatch, say)

    def asked(*more: str):
        prompts.clear()
        given = ("--benchmark", NAME, "--limit", "2", "--batch-size", "1", *more)
        return run(checkpoint, tmp_path, tmp_path / "out", *given), [*prompts]

    return asked


def test_the_last_turn_is_scored_and_calls_are_kept(ask, tmp_path: Path) -> None:
    done, prompts = ask("--tools", "crop(min_side=56)")
    assert done.exit_code == 0, done.exception
    assert "tools were called on 2 of 2 rows: strict" in done.output
    assert len(prompts) == 4 and all('"name": "crop"' in prompt.text for prompt in prompts)
    stored = tmp_path / "out" / NAME / "answers.jsonl"
    lines = [json.loads(line) for line in stored.read_text().splitlines()]
    assert [line["text"] for line in lines] == ["(A)", "(A)"]
    (call,) = lines[0]["calls"]
    assert (call["turn"], call["name"], call["outcome"], call["image"]) == (0, "crop", "ok", 1)
    manifest = json.loads((stored.parent / "result.json").read_text())["manifest"]
    assert manifest["tools"] == [{"name": "crop", "options": {"min_side": 56}}]
    assert manifest["turns"]["max_turns"] == 4 and manifest["max_tokens"] == 512
    with (stored.parent / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == ["(A)", "(A)"]
    assert json.loads(rows[0]["details"])["calls"] == lines[0]["calls"]

    whole = stored.read_text()
    stored.write_text(whole.splitlines(keepends=True)[0])
    again, prompts = ask("--tools", "crop(min_side=56)")
    assert again.exit_code == 0 and len(prompts) == 2
    kept = [json.loads(line) for line in stored.read_text().splitlines()]
    assert [[c["name"] for c in line["calls"]] for line in kept] == [["crop"], ["crop"]]
    refused, _ = ask("--max-tokens", "512")
    assert "given with another tools: expected None" in str(refused.exception)


def test_a_row_whose_tool_failed_has_no_answer(ask, tmp_path: Path, monkeypatch) -> None:
    raising = '<tool_call>{"name": "misbehave", "arguments": {"how": "raise"}}</tool_call>'
    script_turns(monkeypatch, lambda prompt: raising)
    done, _ = ask("--tools", f"{hostile_tools.__file__}:Misbehave")
    assert "a tool failed on 2 rows, the first row 0: misbehave: " in str(done.exception)
    assert not (tmp_path / "out" / NAME / "answers.jsonl").is_file()


def test_tools_are_for_benchmarks_and_need_a_thought(checkpoint: Path, ask) -> None:
    refused = run(checkpoint, Path("."), Path("."), "--data", "shapes", "--tools", "crop")
    assert "vlmrl eval --data: --tools is for --benchmark" in str(refused.exception)
    refused, _ = ask("--tools", "crop", "--control", "no_think")
    assert "--control no_think: expected no --tools" in str(refused.exception)
