"""The reference of the divergence, and how it changes during RL.

The reference of a checkpoint is in the folder of the run under a name that its step decides, so that a
resumed run finds the one that it had; folders that no checkpoint needs are removed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.policy.policy import Policy
from vlmrl.system import distributed


def set_reference(policy: Policy, config: Config, start: Path | None, done: int) -> None:
    """Make the policy as RL began the reference; after a resume read that of step `done`.

    It is then in the run of the checkpoint `start`.

    Raises:
        UserError: that run kept no reference, or it is damaged.
    """
    name = _name(config, done)
    folder = config.folder.resolve() / name
    if start is None:
        policy.keep_reference(folder)
        return
    source = start.resolve().parents[1] / name
    if distributed.from_main(not source.is_dir()):
        wanted = (
            f"that of step {done}" if config.reference.refresh_every else "the policy as RL began"
        )
        raise UserError(
            f"algorithm.options.kl: expected {wanted} in {source}, got nothing: the run "
            f"of {start} kept no reference; use kl=0 or start anew"
        )
    policy.keep_reference(folder, source)


def refresh_reference(policy: Policy, config: Config, done: int) -> None:
    """Make the policy the reference if that is due after step `done`, before its checkpoint."""
    every = config.reference.refresh_every
    if not every or done % every or policy.reference is None:
        return
    if distributed.is_main():
        steps = {done - 1, *checkpoint.rl_steps(config.folder)}
        needed = {_name(config, step) for step in steps}
        for folder in config.folder.glob("reference*"):
            if folder.name not in needed:
                shutil.rmtree(folder)
    policy.reference = None  # two copies may not fit
    policy.keep_reference(config.folder.resolve() / _name(config, done))


def _name(config: Config, done: int) -> str:
    """Return the name of the folder with the reference after `done` steps."""
    every = config.reference.refresh_every
    begun = done - done % every if every else 0
    return f"reference-{begun}" if begun else "reference"
