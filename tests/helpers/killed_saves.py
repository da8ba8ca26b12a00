"""Saves in the background, each killed at another call of the system.

    python -m helpers.killed_saves FOLDER

writes checkpoint step-1 to FOLDER/0, FOLDER/1 ... and begins with step-2; the process that does so in
FOLDER/n is killed when it is to bring its n-th file to the disk, or to rename it. The last one is not.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from helpers.killed_forks import kill_at_each_call
from helpers.small import policy
from vlmrl.policy.checkpoint import Progress
from vlmrl.policy.checkpoint_writer import CheckpointWriter
from vlmrl.policy.policy import Policy


def save_twice(made: Policy, folder: Path, call: int) -> None:
    """Save step-1, then another step-2 in the background, and be killed at this call."""
    CheckpointWriter(folder, made, keep=9).save(Progress("rl", 1))
    with torch.no_grad():
        for weight in made.trainable:
            weight.add_(1.0)
    calls = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > call:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)

        return wrapper

    os.fsync, os.replace = counted(os.fsync), counted(os.replace)
    with CheckpointWriter(folder, made, keep=9, in_background=True) as writer:
        writer.save(Progress("rl", 2))
    os._exit(0)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    kill_at_each_call(folder, functools.partial(save_twice, policy()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
