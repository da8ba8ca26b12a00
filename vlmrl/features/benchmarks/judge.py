"""A judge model asked about the answers that a benchmark's official rule cannot read.

What it said is kept beside the answers as it comes. A judge that fails is a fault with a name, and its
row is left out of the official number: it is never a 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.benchmarking.base import Benchmark, Official
from vlmrl.benchmarking.scoring import Result, RowScore, sum_up
from vlmrl.config import Config, RewardConfig
from vlmrl.config.named_models import name_model
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.runs.output.outputs import Output
from vlmrl.schema import Frame, Verdict
from vlmrl.scoring.verifier import Verifier
from vlmrl.system import files

VERDICTS = "verdicts.jsonl"
THREADS = 16
"""Requests at a time."""
MAX_CHARS = 65_536
"""Characters of an answer that are shown: what counts may stand at its end."""
MAX_NAMED = 5
"""Rows that are named by each fault."""
RIGHT = (
    "Is the candidate right, given what is known to be true? The score is 1 if it is and 0 if it is "
    "not, and nothing between."
)
POINTS = (
    "What share of all points does the candidate earn? An answer as good as what is known to be true "
    "earns all of them, one that is wrong or beside the question none."
)


@dataclass(frozen=True)
class Judge:
    """A judge of one benchmark: for which official number, the name of its model, its task, and how."""

    official: Official
    model: str
    task: str
    verifier: Verifier


def open_judge(address: str, official: Official, run: Config | None = None) -> Judge:
    """Return the judge at `URL[,model]`, or the one of the run's `models` that is named so.

    Without a model a URL is asked for the one that the harness asks.

    Raises:
        UserError: neither a URL nor one of the run's models.
    """
    task, models = POINTS if official.points else RIGHT, run.models if run else {}
    how: dict[str, Any] = {"task": task, "scale": (0.0, 1.0), "max_chars": MAX_CHARS}
    if run and address in models:
        reward = RewardConfig(verifier="judge", options={**how, "model": address})
        named = name_model(reward, models, run.model.path)
        return Judge(official, address, task, plugins.build("verifier", "judge", named.options))
    url, _, model = address.partition(",")
    if not url.startswith(("http://", "https://")):
        names = f" or one of the run's models ({', '.join(models)})" if models else ""
        raise UserError(
            f"vlmrl eval --judge: expected URL[,model] with a URL such as http://localhost:8000/v1{names}, "
            f"got {address!r}"
        )
    how |= {"url": url, "model": model or official.judge}
    return Judge(official, how["model"], task, plugins.build("verifier", "judge", how))


def check_judge(
    address: str, benchmarks: Sequence[Benchmark], protocol: str, run: Config | None = None
) -> None:
    """Refuse a judge that cannot be asked, or that no benchmark needs.

    Raises:
        UserError: no URL, or no benchmark whose harness asks a judge.
    """
    officials = [benchmark.official(protocol) for benchmark in benchmarks]
    judged = [official for official in officials if official is not None and official.judge]
    if not judged:
        raise UserError(
            f"vlmrl eval --judge: expected a benchmark whose harness asks a judge, got none by "
            f"protocol {protocol!r}"
        )
    open_judge(address, judged[0], run)


def judge_unread(
    judge: Judge,
    benchmark: Benchmark,
    source: Source,
    result: Result,
    folder: Path,
    output: Output,
) -> Result:
    """Return a result with the judge's verdicts on answers that are unread; no answer stays a 0.

    Verdicts that `verdicts.jsonl` in the folder holds of this judge on this answer are not asked again.

    Raises:
        UserError: the judge fails and there is no verdict yet.
    """
    asked = {row.index: row for row in result.rows if not row.read and (row.answer or "").strip()}
    scores, faults = _ask(judge, source, [*asked.values()], folder / VERDICTS, output)
    rows = [
        replace(row, official=scores.get(row.index), read=row.index in scores)
        if row.index in asked
        else row
        for row in result.rows
    ]
    note = (
        f"judged by {judge.model} in our words; the harness asks {judge.official.judge} in its own"
    )
    left_out = "".join(f"; {line}" for line in _named(faults))
    total = sum_up(benchmark, judge.official, rows)
    return replace(
        total, lower_bound=False, note=note + left_out if asked else "", tagged=result.tagged
    )


def _ask(
    judge: Judge,
    source: Source,
    rows: Sequence[RowScore],
    file: Path,
    output: Output,
) -> tuple[dict[int, float], dict[int, str]]:
    """Return by row the scores, stored or asked for, and the faults."""
    lines = files.read_lines(file) if file.is_file() else []
    stored = {line["asked"]: float(line["score"]) for line in lines}
    keys = {}  # each tells a verdict from one by another judge, or on another answer
    for row in rows:
        asked = json.dumps([judge.model, judge.task, row.question, row.truth, row.text])
        keys[row.index] = hashlib.sha256(asked.encode()).hexdigest()
    scores = {i: stored[key] for i, key in keys.items() if key in stored}
    faults: dict[int, str] = {}
    left = [row for row in rows if row.index not in scores]
    with output.doing(f"judging {source.name}", len(rows), len(scores)) as activity:
        for start in range(0, len(left), THREADS):
            # A batch at a time: an interrupt, or a judge that is not there, waits for no more than these.
            with ThreadPoolExecutor(THREADS) as pool:
                some = left[start : start + THREADS]
                calls = {pool.submit(_verdict, judge, source, row): row for row in some}
                for call in as_completed(calls):
                    row, verdict = calls[call], call.result()
                    if verdict.score is None:
                        faults[row.index] = verdict.fault or "no verdict"
                        continue
                    scores[row.index] = verdict.score
                    line = {"index": row.index, "judge": judge.model, "asked": keys[row.index]}
                    line |= {"score": verdict.score, "reason": verdict.note}
                    files.append_line(file, line)
            if faults and not scores:
                raise UserError(f"benchmark {source.name!r}: {'; '.join(_named(faults))}")
            activity.done(len(scores))
    return scores, faults


def _verdict(judge: Judge, source: Source, row: RowScore) -> Verdict:
    sample = source.sample(row.index)
    # Where an answer's coordinates lie is nothing that a judge of words is shown.
    verdict = judge.verifier(templates.completion(row.text, sample.template, Frame(1, 1)), sample)
    assert isinstance(verdict, Verdict)
    if verdict.score not in (None, 0.0, 1.0) and not judge.official.points:
        return Verdict.failed(f"judge invalid: expected 0 or 1, got {verdict.score:g}")
    return verdict


def _named(faults: dict[int, str]) -> list[str]:
    """Say for each fault how many rows it leaves out, and which come first."""
    rows: dict[str, list[int]] = {}
    for index, fault in sorted(faults.items()):
        rows.setdefault(fault, []).append(index)
    return [
        f"{fault}: {len(some)} rows without a verdict, such as "
        f"{', '.join(map(str, some[:MAX_NAMED]))}"
        for fault, some in rows.items()
    ]
