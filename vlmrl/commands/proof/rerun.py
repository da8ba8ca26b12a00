"""Run the last steps of a run again, in a folder of their own and in processes of their own.

`python -m vlmrl.commands.proof.rerun FOLDER STEP` is what each of them runs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from vlmrl.commands.trained_run import read_config
from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.runs import run_folder

__all__ = ["run_again"]

KEPT = ("metrics.jsonl", "sft.jsonl", "quarantine.jsonl", "ranks.json", "loopholes.jsonl")
FOLDERS = ("reference", "replies")
LAST_LINES = 12


def run_again(run: Path, scratch: Path, start: int, end: int, ranks: int) -> None:
    """Train from checkpoint `step-<start>` to step `end` in `scratch`; the run itself is only read.

    Raises:
        UserError: the run's config or a file is damaged, or the processes failed; the message ends with
            the last lines that they printed.
    """
    _prepare(run, scratch, start)
    log = scratch / "output.log"
    command = [sys.executable, "-m"]
    if ranks > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    command += [__name__, str(scratch), str(end)]
    with log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
    if code:
        said = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        raise UserError(f"the steps could not be run again (exit code {code}):\n" + "\n".join(said))


def _prepare(run: Path, scratch: Path, start: int) -> None:
    """Copy what the steps begin from: a checkpoint, the curves, and what named models replied."""
    name = f"step-{start}"
    (scratch / "checkpoints").mkdir()
    # It may have gigabytes, and nothing writes to a checkpoint that is there.
    (scratch / "checkpoints" / name).symlink_to((run / "checkpoints" / name).absolute())
    for file in (run / kept for kept in KEPT):
        if file.exists():
            shutil.copy2(file, scratch / file.name)
    for folder in (run / kept for kept in FOLDERS):
        if folder.is_dir():
            shutil.copytree(folder, scratch / folder.name)
    run_folder.write_config(scratch, _here(read_config(run), scratch))


def _here(config: Config, scratch: Path) -> Config:
    """Return the config of the steps: as it was, but that all it writes is in `scratch`."""
    changes = {
        "dir": str(scratch),
        "mirror": None,
        "report": False,
        "keep_checkpoints": 1_000_000,
        "save_in_background": False,
    }
    run = config.run.model_copy(update=changes)
    return config.model_copy(
        update={"run": run, "resume": "auto", "tracking": {"tensorboard": False}}
    )


def _main(scratch: Path, end: int) -> None:
    """Train to step `end`; one process of `run_again`."""
    from vlmrl.assemble import lifecycle

    lifecycle.train(read_config(scratch), until=end)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
