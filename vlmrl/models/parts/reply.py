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
from vlmrl.models.parts.tool_list import CALL, RESPONSE, template_lists_tools

# isort: split
from transformers import ProcessorMixin

__all__ = ["render_reply", "reply_messages"]

POLICY_TEXT = "vlmrl0policy0turn"
"""Stands for the policy's turn while a template is rendered."""


def render_reply(family: Family, processor: Any, parts: Sequence[str | Decoded]) -> str:
    """Render the parts as what tools answered; see `Family.reply`."""
    said: list[Any] = [
        {"role": "user", "content": [_text("x")]},
        {"role": "assistant", "content": [_text(POLICY_TEXT)]},
    ]
    name = family.model_types[0]
    try:
        text = _apply(processor, [*said, *reply_messages(family, processor, parts)])
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


def reply_messages(
    family: Family, processor: Any, parts: Sequence[str | Decoded]
) -> list[dict[str, Any]]:
    """Return the turn that shows the parts, cleaned, as transformers' chat templates take it.

    In the role `tool` where the chat template lists tools and shows all media of that role; else in the
    user's, inside `RESPONSE`: many templates drop images of the role `tool` without a warning.
    """
    cleaned = [
        clean_text(family, processor.tokenizer, part) if isinstance(part, str) else part
        for part in join_texts(parts)
    ]
    if template_lists_tools(processor) and _shows_media_of_tools(family, processor):
        return [{"role": "tool", "content": _content(family, cleaned)}]
    begin = RESPONSE[0] if cleaned and isinstance(cleaned[0], str) else f"{RESPONSE[0]}\n"
    end = RESPONSE[1] if cleaned and isinstance(cleaned[-1], str) else f"\n{RESPONSE[1]}"
    return [{"role": "user", "content": _content(family, join_texts([begin, *cleaned, end]))}]


def _shows_media_of_tools(family: Family, processor: Any) -> bool:
    """Return whether the template writes as many media tokens in the role `tool` as in the user's."""
    content = [_text("y"), *({"type": kind} for kind in family.kinds)]
    found = []
    for role in ("user", "tool"):
        said: list[Any] = [
            {"role": "user", "content": [_text("x")]},
            {"role": "assistant", "content": [_text("x")]},
            {"role": role, "content": content},
        ]
        try:
            text = _apply(processor, said)
        except TemplateError:
            return False
        found.append([text.count(token) for token in family.media_tokens])
    return found[0] == found[1]


def _apply(processor: Any, messages: list[Any]) -> str:
    text: str = ProcessorMixin.apply_chat_template(
        processor, messages, tokenize=False, add_generation_prompt=True
    )
    return text


def _content(family: Family, parts: Sequence[str | Decoded]) -> list[dict[str, str]]:
    content = []
    for part in parts:
        if isinstance(part, str):
            content.append(_text(part))
            continue
        if (kind := kind_of(part)) not in family.kinds:
            raise UserError(
                f"a tool returned {kind}, but {family.model_types[0]} takes only "
                f"{' and '.join(family.kinds)}"
            )
        content.append({"type": kind})
    return content


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


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
