"""YAML of bounded size: aliases that spell out more nodes than a file can mean are refused.

Ten lines of `b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]` stand for billions of values: the parser shares
them, and whoever walks them does not.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_NODES = 200_000
"""Values that a document may have, those of its aliases counted each time."""


class BoundedLoader(yaml.SafeLoader):
    """PyYAML's safe loader, with a limit to what aliases multiply."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node; one that is too large, or a part of itself, is an error with its line.

        Raises:
            yaml.composer.ComposerError: there are too many values.
        """
        mark = self.peek_event().start_mark
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if is_alias and id(node) not in self._sizes:
            raise yaml.composer.ComposerError(None, None, "an alias that is a part of itself", mark)
        size = self._sizes.get(id(node)) or 1 + sum(self._sizes[id(n)] for n in _children(node))
        if size > MAX_NODES:
            what = f"expected at most {MAX_NODES} values, aliases spelled out"
            raise yaml.composer.ComposerError(None, None, what, mark)
        self._sizes[id(node)] = size
        return node


def _children(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def load(text: str) -> Any:
    """Return the document of a text.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: not valid YAML, or too many values.
    """
    return BoundedLoader(text).get_single_data()
