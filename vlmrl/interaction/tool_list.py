"""The list of tools in a prompt, in the words that Qwen and Hermes models were trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["write_tool_list"]


def write_tool_list(schemas: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the system turn that offers these functions, given in OpenAI's form."""
    listed = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    form = '{"name": <function-name>, "arguments": <args-json-object>}'
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        f"<tool_call></tool_call> XML tags:\n<tool_call>\n{form}\n</tool_call>"
    )
