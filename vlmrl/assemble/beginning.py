"""The run folder is begun: once there is room for what the run will keep, and watched from then on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.policy.optimizers import STATE_SIZE
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.runs.output.events import Noted, Warned
from vlmrl.runs.output.outputs import Output
from vlmrl.system import distributed, files
from vlmrl.system.files import append_line


def begin_folder(
    config: Config, policy: Policy, start: Path | None, begun: Mapping[str, Any], output: Output
) -> AbstractContextManager[None]:
    """Write what a start writes; inside, nothing more is written if the folder is deleted or moved.

    All ranks call it, the main rank writes and watches.

    Raises:
        UserError: there is no room for the run, and nothing was written.
    """
    folder, lack = config.folder, _require_room(config, policy, start)
    if not distributed.is_main():
        return nullcontext()
    if start is None:  # what an earlier run left there is moved aside
        run_folder.move_aside(folder)
    written = run_folder.write_config(folder, config)
    append_line(run_folder.starts_path(folder), begun)
    for change in begun["changed"]:
        output.say(Noted(f"since the start before: {change}"))
    for line in lack:
        output.say(Warned(line))

    def require_folder() -> None:
        if not written.is_file():
            raise UserError(
                f"{folder}: the run folder was deleted or moved while the run was writing to it; where "
                "it was moved, resume=auto goes on from its last checkpoint"
            )

    return files.checking(require_folder)


def _require_room(config: Config, policy: Policy, start: Path | None) -> list[str]:
    """Check that the checkpoints that a run keeps fit on its disk, and one being written.

    Those of the run that is resumed are there already. All ranks call it. With `run.on_full_disk: wait` a
    lack is returned as a warning.

    Raises:
        UserError: they do not fit.
    """
    run, every = config.run, config.run.save_every
    if config.evaluation is not None:
        every = min(every, config.evaluation.every)  # the best so far is saved as well
    written = math.ceil(run.steps / every) + (config.sft is not None)
    kept = run.keep_checkpoints + (config.sft is not None)
    existing = len(run_folder.checkpoints(config.folder)) if start else 0
    count = min(kept + 1, written) - existing
    trained = sum(4 * p.numel() for p in policy.trainable)
    size = checkpoint.size(policy, STATE_SIZE[config.optimizer.name] * trained)
    free = distributed.from_main(files.free_bytes(config.folder))
    if free is None or free >= count * size:
        return []
    line = (
        f"{config.folder}: {free / 2**20:.0f} MiB free, but {count} more checkpoints of about "
        f"{size / 2**20:.0f} MiB need {count * size / 2**20:.0f} (run.keep_checkpoints "
        f"{run.keep_checkpoints}, and one being written); make room, or change run.dir"
    )
    if run.on_full_disk == "wait":
        return [line]
    raise UserError(f"{line}, run.keep_checkpoints, or run.on_full_disk=wait")
