"""Counts the bytes that leave through a listener's connections."""

from __future__ import annotations

import socket
from typing import Any


class Counting(socket.socket):
    """A listener whose connections add what is sent through them to `sent`."""

    sent = 0

    @classmethod
    def of(cls, listener: socket.socket) -> Counting:
        """Listen in the place of `listener`, and count from 0."""
        cls.sent = 0
        return cls(fileno=socket.dup(listener.fileno()))

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        return Counting(fileno=connection.detach()), address

    def sendall(self, data: Any, flags: int = 0) -> None:
        Counting.sent += memoryview(data).nbytes
        super().sendall(data, flags)
