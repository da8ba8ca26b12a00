"""A forecast of the disk space that a run's checkpoints need, made before the run."""

from __future__ import annotations

import math

from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.policy.optimizers import STATE_SIZE
from vlmrl.policy.policy import Policy
from vlmrl.system import distributed
from vlmrl.system.disk_space import free_bytes

__all__ = ["require_room_for_run"]


def require_room_for_run(config: Config, policy: Policy, existing: int) -> str | None:
    """Check that the checkpoints that a run keeps fit on its disk, and one being written.

    `existing` of them are there already. With `run.on_full_disk: wait` a lack is returned as a
    warning.

    Raises:
        UserError: they do not fit.
    """
    run, every = config.run, config.run.save_every
    if config.evaluation is not None:
        every = min(every, config.evaluation.every)  # the best so far is saved as well
    written = math.ceil(run.steps / every) + (config.sft is not None)
    kept = run.keep_checkpoints + (config.sft is not None)
    count = min(kept + 1, written) - existing
    trained = sum(4 * p.numel() for p in policy.trainable)
    size = checkpoint.size(policy, STATE_SIZE[config.optimizer.name] * trained)
    free = distributed.from_main(free_bytes(config.folder))
    if free is None or free >= count * size:
        return None
    line = (
        f"{config.folder}: {free / 2**20:.0f} MiB free, but {count} more checkpoints of about "
        f"{size / 2**20:.0f} MiB need {count * size / 2**20:.0f} (run.keep_checkpoints "
        f"{run.keep_checkpoints}, and one being written); make room, or change run.dir"
    )
    if run.on_full_disk == "wait":
        return line
    raise UserError(f"{line}, run.keep_checkpoints, or run.on_full_disk=wait")
