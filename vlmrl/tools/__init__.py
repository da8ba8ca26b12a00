"""One file is one tool: what a policy may call between its turns."""

from vlmrl.schema import Box, Point, Span
from vlmrl.tools.base import Part, Tool
from vlmrl.tools.views import Refused, Shown, View

__all__ = ["Box", "Part", "Point", "Refused", "Shown", "Span", "Tool", "View"]
