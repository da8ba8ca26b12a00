"""Stand-ins for commands that this machine lacks: they note their calls, and may run the rest here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NOTE = """#!/usr/bin/env bash
printf '%s\\0' "${0##*/}" "$@" $'\\1' >> "$STUB_CALLS"
"""
"""Each argument of a call ends with a zero, and the call with one more argument, a one: written at once,
since steps of `srun` run side by side."""
OPTIONS_OFF = """while [[ ${1:-} == -* ]]; do [[ $1 == *=* || $1 == -t ]] && shift || shift 2; done
"""
RUN_HERE = {
    "srun": NOTE + OPTIONS_OFF + 'exec "$@"\n',
    "ssh": NOTE + OPTIONS_OFF + 'shift\nexec bash -c "$*"\n',
    "scontrol": NOTE + 'tr , "\\n" <<< "${@: -1}"\n',
}
"""`srun` and `ssh` run the command here; `scontrol show hostnames` splits a list at its commas."""


@dataclass(frozen=True)
class Stubs:
    """A folder of such commands, for the front of `PATH`."""

    folder: Path

    def add(self, name: str, then: str = "") -> None:
        """Add a command that notes its call, and runs these lines of bash."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        path.write_text(RUN_HERE.get(name, NOTE) + then)
        path.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the variables of a process that finds the stand-ins first."""
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "STUB_CALLS": str(self._notes), **more}

    def run(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a folder, with these variables."""
        return subprocess.run(
            command,
            cwd=folder,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self, name: str) -> list[list[str]]:
        """Return the arguments of every call of a command, in order."""
        if not self._notes.exists():
            return []
        calls = [call.split("\0")[:-1] for call in self._notes.read_text().split("\1\0")[:-1]]
        return [arguments for called, *arguments in calls if called == name]

    @property
    def _notes(self) -> Path:
        return self.folder / "calls"
