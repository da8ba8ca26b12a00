"""Benchmarks whose harness asks a judge: a lower bound without one, its number with one, faults by name."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import small
from helpers.benchmark_runs import FRAME, opened, run, scored
from helpers.chat_server import Server, Start, chat_servers
from helpers.published import ROWS, write_published
from helpers.report_page import Page
from vlmrl.benchmarking.base import open_benchmark
from vlmrl.benchmarking.scoring import Result, read_result, write_result
from vlmrl.config import load
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.compare import compare_results, print_comparisons
from vlmrl.features.benchmarks.judge import VERDICTS, check_judge, judge_unread, open_judge
from vlmrl.features.benchmarks.result_page import write_result_page
from vlmrl.features.benchmarks.session import EvaluatedBenchmark
from vlmrl.features.benchmarks.tables import show_results, sum_up, write_tables
from vlmrl.runs.output.outputs import Lines
from vlmrl.runs.run_log import SILENT

BOUND = "lower bound without a judge (gpt-4o-2024-11-20)"


def printed(result: Result, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Print and write a result everywhere; return the text of the terminal, JSON, CSV, page, LaTeX."""
    source = opened(folder / "again", result.benchmark, result.protocol)
    frames = dict.fromkeys(range(len(result.rows)), FRAME)
    each = [EvaluatedBenchmark(result, {}, (), {}, None, source, frames)]
    output = Lines()
    output.say(sum_up(each[0], folder))
    show_results(each, output)
    write_tables(each, folder)
    write_result(folder, result, {})
    files = [folder / name for name in ("result.json", "results.csv", "results.tex")]
    json_text, csv_text, latex = (file.read_text() for file in files)
    page = Page(write_result_page(each, folder)).text
    return [capsys.readouterr().out, json_text, csv_text, page, latex]


def test_without_a_judge_the_number_is_a_lower_bound_wherever_it_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = scored(tmp_path, "mathverse", "lmms_eval", ["A", "(B)", "b", "12", "3 CM"])
    assert (result.lower_bound, result.note, result.unread) == (True, BOUND, 0.6)
    terminal, stored, table, page, latex = printed(result, tmp_path, capsys)
    assert all(BOUND in text for text in (terminal, stored, table, page))
    assert "≥ 0.400 [" in terminal and "≥ 0.400 [" in page and r"$\geq$ 0.400 [" in latex
    assert read_result(tmp_path).result.note == BOUND
    notes = {(line["number"], line["note"]) for line in csv.DictReader(table.splitlines())}
    assert notes == {("official", BOUND), ("strict", "")}
    print_comparisons(compare_results([str(tmp_path), str(tmp_path)]))
    assert f"mathverse: official: {BOUND}" in capsys.readouterr().out


def test_a_number_that_needs_no_judge_is_no_lower_bound(tmp_path: Path) -> None:
    right = scored(tmp_path, "mathverse", "lmms_eval", ["A", "B", "C", "12", "3 cm"])
    other = scored(tmp_path / "b", "chartqa", "lmms_eval", ["?"] * 4)
    ours = scored(tmp_path / "c", "mathverse", "ours", ["no"] * 5)
    for result in (right, other, ours):
        assert (result.lower_bound, result.note) == (False, ""), result.rows


@pytest.fixture
def serve() -> Iterator[Start]:
    with chat_servers() as start:
        yield start


def candidate(body: dict[str, Any]) -> Any:
    return json.loads(body["messages"][1]["content"])["candidate"]


def fair(body: dict[str, Any]) -> str:
    """Find right what only differs from the truth in case and brackets."""
    data = json.loads(body["messages"][1]["content"])
    right = data["truth"]["text"][0].lower()
    return json.dumps({"score": int(data["candidate"].strip("()").lower() == right)})


def judged(
    folder: Path, name: str, answers: list[str], server: Server, model: str = ",m"
) -> Result:
    """Score answers, then have the judge; what it said is kept in the folder."""
    folder.mkdir(exist_ok=True)
    result = scored(Path(tempfile.mkdtemp(dir=folder)), name, "lmms_eval", answers)
    benchmark = open_benchmark(name, "")
    source = opened(Path(tempfile.mkdtemp(dir=folder)), name, "lmms_eval")
    official = benchmark.official("lmms_eval")
    assert official is not None
    judge = open_judge(server.url + model, official)
    return judge_unread(judge, benchmark, source, result, folder, SILENT)


ANSWERS = ["A", "(B)", "b", "", "3 CM"]


def test_a_model_that_the_run_names_may_judge(tmp_path: Path, serve: Start) -> None:
    server = serve(fair)
    models = f"models={{grader: {{url: {server.url}, model: m}}}}"
    config = load("quickstart", [models])
    benchmark = open_benchmark("mathverse", "")
    official = benchmark.official("lmms_eval")
    assert official is not None
    result = scored(tmp_path / "scored", "mathverse", "lmms_eval", ANSWERS)
    source = opened(tmp_path / "opened", "mathverse", "lmms_eval")
    judge = open_judge("grader", official, config)
    result = judge_unread(judge, benchmark, source, result, tmp_path, SILENT)
    assert [row.official for row in result.rows] == [1, 1, 0, 0, 1]
    assert "judged by grader" in result.note and len(server.requests) == 3
    with pytest.raises(UserError, match=r"or one of the run's models \(grader\), got 'grade'"):
        open_judge("grade", official, config)


def test_a_judge_is_asked_what_the_rule_cannot_read_and_only_once(
    tmp_path: Path, serve: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(fair)
    result = judged(tmp_path, "mathverse", ANSWERS, server)
    assert [row.official for row in result.rows] == [1, 1, 0, 0, 1]
    assert sorted(map(candidate, server.requests)) == ["(B)", "3 CM", "b"]
    assert result.figures["official"].value == 0.6 and not result.lower_bound
    assert result.note == "judged by m in our words; the harness asks gpt-4o-2024-11-20 in its own"
    assert all(result.note in text for text in printed(result, tmp_path, capsys)[:4])
    stored = tmp_path / VERDICTS
    lines = stored.read_text().splitlines(keepends=True)
    assert {json.loads(line)["index"] for line in lines} == {1, 2, 4}
    stored.write_text("".join(lines[:2]) + lines[2][:9])  # killed while the third was written
    again = judged(tmp_path, "mathverse", ANSWERS, server)
    assert again.figures == result.figures and len(server.requests) == 4


def test_another_answer_or_judge_is_asked_again(tmp_path: Path, serve: Start) -> None:
    server = serve(fair)
    judged(tmp_path, "mathverse", ANSWERS, server)
    judged(tmp_path, "mathverse", [*ANSWERS[:4], "4 CM"], server)
    assert list(map(candidate, server.requests[3:])) == ["4 CM"]
    judged(tmp_path, "mathverse", ANSWERS, server, model="")
    assert [body["model"] for body in server.requests[4:]] == ["gpt-4o-2024-11-20"] * 3


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (401, "judge unavailable: HTTP 401"),
        ('{"score": 0.5}', "judge invalid: expected 0 or 1, got 0.5"),
    ],
)
def test_a_faulty_judge_is_a_fault_by_name_and_never_a_0(
    tmp_path: Path, serve: Start, reply: Any, fault: str
) -> None:
    server = serve(lambda body: reply if candidate(body) == "b" else fair(body))
    result = judged(tmp_path, "mathverse", ANSWERS, server)
    assert [row.official for row in result.rows] == [1, 1, None, 0, 1]
    assert result.figures["official"].value == 0.75 and result.figures["official"].count == 4
    assert result.note.endswith(f"; {fault}: 1 rows without a verdict, such as 2")
    asked = len(server.requests)
    judged(tmp_path, "mathverse", ANSWERS, server)
    assert list(map(candidate, server.requests[asked:])) == ["b"]
    dead = serve(lambda _: reply)
    with pytest.raises(UserError, match=rf"benchmark 'mathverse': {fault}: 3 rows .* 1, 2, 4"):
        judged(tmp_path / "dead", "mathverse", ANSWERS, dead)


def test_points_may_be_shared(tmp_path: Path, serve: Start) -> None:
    server = serve(lambda _: '{"score": 0.5}')
    result = judged(tmp_path, "mmvet", ["-1, -5", "half", "an apple", "half", "half"], server)
    assert [row.official for row in result.rows] == [1, 0.5, 1, 0.5, 0.5]


def test_a_judge_that_cannot_be_asked_is_refused() -> None:
    needs, other = open_benchmark("mathverse", ""), open_benchmark("chartqa", "")
    with pytest.raises(UserError, match="--judge: expected a benchmark whose harness asks a judge"):
        check_judge("http://127.0.0.1/v1,m", [other], "lmms_eval")
    with pytest.raises(UserError, match=r"--judge: expected URL\[,model\].*got 'gpt-4o'"):
        check_judge("gpt-4o", [needs], "lmms_eval")


@pytest.mark.slow
def test_an_evaluation_with_a_judge(tmp_path: Path, serve: Start) -> None:
    small.policy().save(str(tmp_path / "model"))
    write_published(tmp_path, "mathverse", "testmini", ROWS["mathverse"])
    server, out = serve(lambda _: '{"score": 1}'), tmp_path / "out"
    more = ("--benchmark", "mathverse", "--limit", "5", "--max-tokens", "4")
    without = run(tmp_path / "model", tmp_path, out, *more)
    assert without.exit_code == 0 and BOUND in without.output, without.exception
    answers = (out / "mathverse/answers.jsonl").read_text()
    for _ in range(2):
        done = run(tmp_path / "model", tmp_path, out, *more, "--judge", server.url + ",m")
        assert done.exit_code == 0 and "judged by m" in done.output, done.exception
    assert (out / "mathverse/answers.jsonl").read_text() == answers
    stored = read_result(out / "mathverse")
    asked = [row for row in stored.result.rows if (row.answer or "").strip()]
    assert len(server.requests) == len(asked) > 0 and all(row.official == 1 for row in asked)
    assert stored.manifest["judge"]["model"] == "m"
