"""How a trainer takes turns in the race: it says which step is done, and waits until it may make the next."""

from __future__ import annotations

import os
import socket

ADDRESS = "RACE_CLOCK"
"""Environment variable with the socket of the race."""


class Clock:
    """The trainer's side. `wait(0)` comes before the first step, `wait(n)` after step n."""

    def __init__(self) -> None:
        self._race = socket.socket(socket.AF_UNIX)
        self._race.connect(os.environ[ADDRESS])

    def wait(self, step: int) -> None:
        """Tell the race that a step is done; return when the next may begin."""
        self._race.sendall(f"{step}\n".encode())
        if not self._race.recv(1):
            raise SystemExit("the race is over")
