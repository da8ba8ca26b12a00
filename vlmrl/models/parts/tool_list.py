"""The list of tools in a prompt: by the chat template where it has one, else in the words of Hermes.

Of the families here only Qwen3-VL's template knows tools, and it writes what Hermes models were taught;
the others were taught no form of their own, so that one form of calls is read for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from vlmrl.system import torchvision_shim  # noqa: F401  before any transformers import

# isort: split
from transformers import ProcessorMixin

__all__ = ["CALL", "RESPONSE", "space_in_calls", "template_lists_tools", "write_tool_list"]

CALL = ("<tool_call>", "</tool_call>")
"""The marks around a call, as Hermes and Qwen write it."""
RESPONSE = ("<tool_response>", "</tool_response>")
"""The marks around what a tool returned."""
PROBE = "vlmrl0probe"


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


def template_lists_tools(processor: Any) -> bool:
    """Return whether the chat template lists tools, and asks for calls in the form that is read here."""
    body = {"type": "object", "properties": {}, "required": []}
    function = {"name": PROBE, "description": PROBE, "parameters": body}
    asked: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "x"}]}]
    try:
        text: str = ProcessorMixin.apply_chat_template(
            processor,
            asked,
            tools=[{"type": "function", "function": function}],
            tokenize=False,
        )
    except TemplateError:
        return False
    behind = text.partition(PROBE)[2]
    return CALL[0] in behind and '"arguments"' in behind


def space_in_calls(processor: Any) -> str:
    """Return what the chat template writes between a mark and a call: a line break, or nothing.

    Nothing where the template does not know tools.
    """
    if not template_lists_tools(processor):
        return ""
    function = {"name": PROBE, "arguments": {}}
    said: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        },
    ]
    try:
        text: str = ProcessorMixin.apply_chat_template(processor, said, tokenize=False)
    except TemplateError:
        return ""
    space = text.partition(CALL[0])[2].partition("{")[0]
    return space if space.isspace() else ""
