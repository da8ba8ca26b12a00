"""Stored answers as a harness reads them, so that anyone can have it score them again.

What is handed over is what our official rule was given: the answer without its thought and tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlmrl.benchmarking.base import Benchmark, BenchmarkCard, Official, name_of
from vlmrl.benchmarking.scoring import Result, RowScore
from vlmrl.commands.benchmarks.vlmevalkit import write_vlmevalkit
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.system import atomic_files

__all__ = ["check_export", "export_answers"]

MODEL = "vlmrl"
"""What a harness is told that the model is called."""


def export_answers(harness: str, folder: Path, source: Source, result: Result) -> Path:
    """Write the answers to a benchmark's rows for a harness; return the file to begin with.

    Args:
        harness: a key of `HARNESSES`.
        folder: where the files of all benchmarks are written.
        source: the rows.
        result: the scored answers.

    Raises:
        UserError: the harness is not that of the protocol, or it has no task for this benchmark.
    """
    assert isinstance(source.card, BenchmarkCard)
    official = check_export(harness, source.card.benchmark, result.protocol)
    return HARNESSES[harness](folder, official, source, result.rows)


def check_export(harness: str, benchmark: Benchmark, protocol: str) -> Official:
    """Return how the harness asks and scores.

    Raises:
        UserError: as `export_answers`.
    """
    if harness not in HARNESSES:
        known = ", ".join(HARNESSES)
        raise UserError(f"vlmrl eval --export: expected one of {known}, got {harness!r}")
    official = benchmark.official(protocol)
    if official is None or official.protocol.split("@")[0] != harness:
        raise UserError(
            f"vlmrl eval --export {harness}: expected --protocol {harness}, got {protocol!r}"
        )
    if not official.task:
        raise UserError(
            f"benchmark {name_of(benchmark)!r} has no task of {harness} to export its answers to"
        )
    return official


def _write_lmms_eval(
    folder: Path, official: Official, source: Source, rows: Sequence[RowScore]
) -> Path:
    """Write a log for the model "from_log" of lmms-eval, which is a log of its older form."""
    logs = [{"doc_id": row.index, "resps": [[row.answer or ""]]} for row in rows]
    log = {
        "args": {"model": MODEL, "model_args": "", "limit": None},
        "model_configs": {"task": official.task},
        "logs": logs,
    }
    path = folder / f"{official.task}.json"
    atomic_files.write_json(path, log)
    return path


HARNESSES = {"lmms_eval": _write_lmms_eval, "vlmevalkit": write_vlmevalkit}
"""Writers by harness."""
