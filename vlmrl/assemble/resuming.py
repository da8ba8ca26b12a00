"""What a start of a run finds of the one before: what has changed since, and whether it may go on.

Each start is a line of `starts.jsonl` in the run folder: the step, the changes, the config, and the
fingerprints of the training sources.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmrl.config import Config
from vlmrl.config.sections.run import hide_secrets
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.policy.checkpoint import Progress
from vlmrl.runs import run_folder
from vlmrl.system import distributed
from vlmrl.system.files import read_json


def begin(
    config: Config, start: Path | None, progress: Progress, sources: Sequence[Source]
) -> dict[str, Any]:
    """Return the line of this start, for `starts.jsonl`; with several ranks all call it.

    Raises:
        UserError: what makes the checkpoint another thing has changed, config or rows, and `resume.allow`
            does not name it.
    """
    line: dict[str, Any] | UserError = {}
    if distributed.is_main():
        try:
            line = _line(config, start, progress, sources)
        except UserError as error:  # the other ranks are to end by it, too
            line = error
    line = distributed.from_main(line)
    if isinstance(line, UserError):
        raise line
    return line


def _line(
    config: Config, start: Path | None, progress: Progress, sources: Sequence[Source]
) -> dict[str, Any]:
    from vlmrl.data.fingerprint import fingerprint  # on the main rank alone

    tree = hide_secrets(config.model_dump(mode="json"))
    prints = {source.name: fingerprint(source) for source in sources}
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "phase": progress.phase,
        "step": progress.step,
        "checkpoint": str(start) if start else None,
        "changed": _changed(config, start.absolute().parents[1], tree, prints) if start else [],
        "sources": prints,
        "config": tree,
    }


def _changed(
    config: Config, run: Path, tree: dict[str, Any], prints: dict[str, dict[str, Any]]
) -> list[str]:
    """Return what is other than at the last start of a run, in words; UserError if it may not be."""
    from vlmrl.config.changes import ChangedKey, changes, require_allowed

    file, starts = run / "config.json", run_folder.read_starts(run)
    changed = changes(read_json(file), tree) if file.is_file() else []
    before = starts[-1]["sources"] if starts else {}
    for name in prints.keys() & before.keys():
        if before[name] != prints[name]:
            was, now = f"rows {_words(before[name])}", f"rows {_words(prints[name])}"
            changed.append(ChangedKey(f"data.train.{name}", was, now, "fixed"))
    require_allowed(changed, config.resume.allow)
    ended = run_folder.read_summary(run)
    if ended and ended["finished"] and ended["steps"] < config.run.steps:
        on = f"the run had ended after step {ended['steps']} and goes on to {config.run.steps}"
        return [on, *map(str, changed)]
    return [*map(str, changed)]


def _words(value: dict[str, Any]) -> str:
    return f"{value['rows']} ({value['sample']}, media {value['media']})"
