"""Rendering an observation as the turn between two turns of the policy.

The piece is what the chat template writes behind the policy's end of turn: the separator, the turn that
shows the observation, and the start of the policy's next turn. What was said before is never rendered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from vlmrl.errors import UserError
from vlmrl.media_types import Decoded, kind_of
from vlmrl.models.base import Family
from vlmrl.models.parts.chat import BREAK, break_special_tokens

# isort: split
from transformers import ProcessorMixin

__all__ = ["CALL", "RESPONSE", "render_reply"]

CALL = ("<tool_call>", "</tool_call>")
"""The marks around a call, as Hermes and Qwen write it."""
RESPONSE = ("<tool_response>", "</tool_response>")
"""The marks around what a tool returned."""
POLICY_TEXT = "vlmrl0policy0turn"
"""Stands for the policy's turn while a template is rendered."""


def render_reply(family: Family, processor: Any, parts: Sequence[str | Decoded]) -> str:
    """Render the parts inside `RESPONSE`, in a user's turn; see `Family.reply`.

    The user's role, because many templates drop images of the role `tool` without a warning.
    """
    cleaned = [
        clean_text(family, processor.tokenizer, part) if isinstance(part, str) else part
        for part in join_texts(parts)
    ]
    content = []
    for part in join_texts([RESPONSE[0], *cleaned, RESPONSE[1]]):
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
            continue
        if (kind := kind_of(part)) not in family.kinds:
            raise UserError(
                f"a tool returned {kind}, but {family.model_types[0]} takes only "
                f"{' and '.join(family.kinds)}"
            )
        content.append({"type": kind})
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "text", "text": POLICY_TEXT}]},
        {"role": "user", "content": content},
    ]
    name = family.model_types[0]
    try:
        text: str = ProcessorMixin.apply_chat_template(
            processor, messages, tokenize=False, add_generation_prompt=True
        )
    except TemplateError as error:
        raise UserError(
            f"the chat template of this {name} refuses a second turn: {error}"
        ) from error
    _, found, piece = text.rpartition(POLICY_TEXT)
    end = family.turn_ends[0]
    if not found or not piece.startswith(end):
        raise UserError(
            f"the chat template of this {name} does not end the policy's turn with {end}, so that "
            "nothing can be put behind it"
        )
    return piece.removeprefix(end)


def join_texts(parts: Sequence[str | Decoded]) -> list[str | Decoded]:
    """Return the parts with adjacent texts as lines of one, so that none is spelt across two."""
    joined: list[str | Decoded] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] = f"{joined[-1]}\n{part}"
        else:
            joined.append(part)
    return joined


def clean_text(family: Family, tokenizer: Any, text: str) -> str:
    """Return a tool's text without the power to close its turn, to show media, or to make a call."""
    text = text.encode("utf-8", "replace").decode()
    for token in (*family.media_tokens, *family.turn_ends, *CALL, *RESPONSE):
        text = text.replace(token, token[0] + BREAK + token[1:])
    (cleaned,) = break_special_tokens([text], tokenizer)
    assert isinstance(cleaned, str)
    return cleaned
