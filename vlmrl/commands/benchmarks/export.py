"""Stored answers as a harness reads them, so that anyone can have it score them again.

What is handed over is what our official rule was given: the answer without its thought and tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlmrl.benchmarking.base import Benchmark, Official, name_of
from vlmrl.benchmarking.scoring import RowScore
from vlmrl.errors import UserError
from vlmrl.system import atomic_files

__all__ = ["check_export", "export_answers"]

MODEL = "vlmrl"
"""What a harness is told that the model is called."""


def export_answers(
    harness: str, folder: Path, benchmark: Benchmark, protocol: str, rows: Sequence[RowScore]
) -> Path:
    """Write the answers of a benchmark's rows for a harness; return the file.

    Raises:
        UserError: the harness is not that of the protocol, or it has no task for this benchmark.
    """
    official = check_export(harness, benchmark, protocol)
    return HARNESSES[harness](folder, official, rows)


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


def _write_lmms_eval(folder: Path, official: Official, rows: Sequence[RowScore]) -> Path:
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


HARNESSES = {"lmms_eval": _write_lmms_eval}
"""Writers by harness."""
