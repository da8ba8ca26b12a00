"""An MCP server over stdio for tests: run as a script."""

from __future__ import annotations

import base64
import io
import os
import time

from mcp.server.mcpserver import Image as McpImage
from mcp.server.mcpserver import MCPServer
from PIL import Image

server = MCPServer("tests")


@server.tool()
def left_half(image: str) -> McpImage:
    """Return the left half of an image."""
    whole = Image.open(io.BytesIO(base64.b64decode(image)))
    stream = io.BytesIO()
    whole.crop((0, 0, whole.width // 2, whole.height)).save(stream, "PNG")
    return McpImage(data=stream.getvalue(), format="png")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def hang() -> str:
    """Never answer."""
    time.sleep(60)
    return ""


@server.tool()
def leave() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def broken() -> McpImage:
    """Return what is no image."""
    return McpImage(data=b"\x89PNG not at all", format="png")


if __name__ == "__main__":
    server.run("stdio")
