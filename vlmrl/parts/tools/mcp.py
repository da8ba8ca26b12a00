"""The tools of an MCP server, over its standard input and output."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlmrl.errors import UserError, import_extra
from vlmrl.interaction.tool import Part, Refused, Tool, View
from vlmrl.media.image import decode_image
from vlmrl.schema import Space


@dataclass(frozen=True)
class Mcp(Tool):
    """The tools of an MCP server: a program that is started once for each worker process.

    An error that the server states is told to the policy; one that hangs, ends or answers with what
    cannot be shown is a fault. Needs
    `pip install 'vlmrl-perception[mcp]'` (2.x; the server may use any version).

    Raises:
        UserError: the server cannot be started, or has no tool of a name in `only`.
    """

    pure: ClassVar[bool] = False
    waits: ClassVar[bool] = True

    command: str
    """The program that is started."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Environment variables that it gets besides a few plain ones such as PATH."""
    only: tuple[str, ...] = ()
    """Tools that are offered; empty: all."""
    image_arguments: tuple[str, ...] = ()
    """Arguments that take an image as base64 text: the policy writes the image's number instead."""
    timeout_s: float = 30.0
    """Seconds that a call may take."""

    @property
    def time_limit_s(self) -> float:
        """Return the seconds that a call may take."""
        return self.timeout_s

    def schemas(self, space: Space = "norm1") -> list[dict[str, Any]]:
        """Ask the server for its tools."""
        with contextlib.ExitStack() as stack:
            portal, client = _connect(stack, self)
            listed = portal.call(client.list_tools).tools
        known = [tool.name for tool in listed]
        if missing := [name for name in self.only if name not in known]:
            raise UserError(f"mcp {self.command!r} has no tool {missing[0]!r}: {', '.join(known)}")
        return [self._schema(tool) for tool in listed if not self.only or tool.name in self.only]

    def prepare(self) -> None:
        """Start the server of this worker process, before its memory is limited."""
        _connection(self)

    def call(self, name: str, given: Mapping[str, object], view: View) -> Part | Sequence[Part]:
        """Call a tool of the server."""
        sent = {key: self._argument(key, value, view) for key, value in given.items()}
        try:
            portal, client = _connection(self)
            result = portal.call(functools.partial(client.call_tool, name, sent))
        except BaseException:
            _connections.pop(_key(self), None)  # the next call starts the server again
            raise
        parts = [_part(content) for content in result.content]
        if result.is_error:
            texts = [part for part in parts if isinstance(part, str)]
            raise Refused(" ".join(" ".join(texts).split()) or "the tool states an error")
        return parts or ["done"]

    def _schema(self, tool: Any) -> dict[str, Any]:
        number = {"type": "integer", "description": "number of the image, from 1"}
        known = tool.input_schema.get("properties", {})
        properties = known | {key: number for key in self.image_arguments if key in known}
        body = {**tool.input_schema, "properties": properties}
        body.setdefault("required", [])
        text = tool.description or tool.name
        function = {"name": tool.name, "description": text, "parameters": body}
        return {"type": "function", "function": function}

    def _argument(self, key: str, value: object, view: View) -> Any:
        if key not in self.image_arguments:
            return value
        if type(value) is not int:
            raise Refused(f"{key}: expected the number of an image, got {value!r:.60}")
        stream = io.BytesIO()
        view.image(value).save(stream, "PNG")
        return base64.b64encode(stream.getvalue()).decode()


_connections: dict[Any, tuple[contextlib.ExitStack, Any, Any]] = {}
"""The running servers of this process."""


def _key(tool: Mcp) -> Any:
    return tool.command, tool.args, tuple(sorted(tool.env.items()))


def _connection(tool: Mcp) -> tuple[Any, Any]:
    """Return the loop and the client of a server that runs in this process."""
    if (known := _connections.get(_key(tool))) is None:
        stack = contextlib.ExitStack()
        known = _connections[_key(tool)] = (stack, *_connect(stack, tool))
    return known[1], known[2]


def _connect(stack: contextlib.ExitStack, tool: Mcp) -> tuple[Any, Any]:
    """Start a server; it ends with the stack.

    Raises:
        UserError: it cannot be started, or does not speak MCP.
    """
    client = import_extra("mcp.client.client", "mcp")
    stdio = import_extra("mcp.client.stdio", "mcp")
    blocking = import_extra("anyio.from_thread", "mcp")
    portal = stack.enter_context(blocking.start_blocking_portal())
    server = stdio.StdioServerParameters(
        command=tool.command, args=[*tool.args], env=dict(tool.env) or None
    )
    made = client.Client(server, read_timeout_seconds=tool.timeout_s)
    try:
        return portal, stack.enter_context(portal.wrap_async_context_manager(made))
    except Exception as error:  # whatever the server does at its start is the user's to mend
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"mcp {tool.command!r}: the server does not start: {reason}") from error


def _part(content: Any) -> Part:
    """Return one piece of an MCP answer.

    Raises:
        ValueError: it is neither a text nor an image.
        MediaError: the image is damaged or too large.
    """
    if content.type == "text":
        return str(content.text)
    if content.type == "image":
        return decode_image(
            io.BytesIO(base64.b64decode(content.data, validate=True)), "<mcp image>"
        )
    if content.type == "resource" and hasattr(content.resource, "text"):
        return str(content.resource.text)
    raise ValueError(f"expected texts and images, got {content.type!r}")
