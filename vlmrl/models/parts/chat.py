"""Rendering a sample as a chat, with the template of each family."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jinja2.exceptions import TemplateError

from vlmrl.errors import UserError
from vlmrl.models.base import Family
from vlmrl.models.parts.tool_list import template_lists_tools, write_tool_list

# isort: split
from transformers import ProcessorMixin

from vlmrl.schema import Media, Sample

__all__ = ["break_special_tokens", "list_messages"]

CHATML_ENDS = ("<|im_end|>", "<|endoftext|>")
"""Tokens that end a completion in ChatML: `Family.turn_ends` of many families."""

BREAK = "\u200b"
"""A zero-width space, put after the first character of a special token in a row's text: a reader sees
the same text, a tokenizer sees plain characters."""
_PATTERNS: weakref.WeakKeyDictionary[Any, re.Pattern[str]] = weakref.WeakKeyDictionary()


def chatml(**media: str) -> str:
    """Write a ChatML template for small models; `media` maps the type of a part to its placeholder.

    Unlike the templates of published checkpoints, it adds no system turn.
    """
    cases = "".join(
        f"{{% {'elif' if i else 'if'} part['type'] == '{kind}' %}}{shown}"
        for i, (kind, shown) in enumerate(media.items())
    )
    return (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% if message['content'] is string %}{{ message['content'] }}"
        "{% else %}{% for part in message['content'] %}"
        f"{cases}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}{{% endif %}}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def render_chat(family: Family, processor: Any, sample: Sample, instruction: str) -> str:
    """Render the turns with one placeholder per medium, then the start of the assistant's turn.

    The instruction is appended to the last text of the question. Special tokens of the tokenizer that a text
    spells out (`<|im_end|><|im_start|>system`) are broken up in every turn, so that data cannot close it.
    The sample's tools are listed by the template where it knows tools, else in the system turn.

    Raises:
        UserError: A medium is of a kind that the family is not trained on, a text contains a
            media token, or the chat template refuses or leaves out a turn.
    """
    listed = None
    if sample.tools and template_lists_tools(processor):
        listed = _clean_schemas(family, processor.tokenizer, sample)
    elif sample.tools:
        told = [sample.system, write_tool_list(sample.tools)]
        sample = replace(sample, system="\n\n".join(filter(None, told)))
    messages = list_messages(family, processor.tokenizer, sample, instruction)
    try:
        # Not the processor's own method: SmolVLM's adds video options and warns about them each time.
        text: str = ProcessorMixin.apply_chat_template(
            processor,
            messages,
            tools=listed,
            tokenize=False,
            add_generation_prompt=True,
        )
    except TemplateError as error:
        name = family.model_types[0]
        raise UserError(
            f"sample {sample.id!r}: the chat template of this {name} refuses the turns: {error}"
        ) from error
    if sample.system and messages[0]["content"][0]["text"].strip() not in text:
        raise UserError(
            f"sample {sample.id!r}: the chat template of this {family.model_types[0]} leaves out the "
            "system turn: put its text in the question"
        )
    return text


def list_messages(
    family: Family, tokenizer: Any, sample: Sample, instruction: str
) -> list[dict[str, Any]]:
    """Return the turns as transformers' chat templates take them, the system turn first, if there is one."""
    turns: list[tuple[str, Sequence[str | Media]]] = [(t.role, t.parts) for t in sample.turns]
    if sample.system:
        turns.insert(0, ("system", (sample.system,)))
    messages = []
    for number, (role, parts) in enumerate(turns):
        _refuse_media_tokens(family, sample, parts)
        plain = break_special_tokens(parts, tokenizer)
        if number == len(turns) - 1:
            _append_instruction(plain, instruction)
        content = [_content(family, sample, part) for part in plain]
        messages.append({"role": role, "content": content})
    return messages


def _refuse_media_tokens(family: Family, sample: Sample, parts: Sequence[str | Media]) -> None:
    for token in family.media_tokens:
        if any(isinstance(part, str) and token in part for part in parts):
            raise UserError(f"sample {sample.id!r}: its text contains the media token {token}")


def _clean_schemas(family: Family, tokenizer: Any, sample: Sample) -> list[dict[str, Any]]:
    """Return the sample's tools for the chat template, with special tokens broken up."""
    texts = [json.dumps(schema, ensure_ascii=False) for schema in sample.tools]
    _refuse_media_tokens(family, sample, texts)
    return [
        json.loads(str(text)) for one in texts for text in break_special_tokens([one], tokenizer)
    ]


def _append_instruction(parts: list[str | Media], instruction: str) -> None:
    if not instruction:
        return
    last = max((i for i, p in enumerate(parts) if isinstance(p, str)), default=None)
    if last is None:
        parts.append(instruction)
    else:
        parts[last] = f"{parts[last]}\n{instruction}"


def _content(family: Family, sample: Sample, part: str | Media) -> dict[str, str]:
    if isinstance(part, Media):
        if part.kind not in family.kinds:
            article = "a" if part.kind == "video" else "an"
            raise UserError(
                f"sample {sample.id!r}: {part.name} is {article} {part.kind}, but "
                f"{family.model_types[0]} is trained only on {' and '.join(family.kinds)}"
            )
        return {"type": part.kind}
    return {"type": "text", "text": part}


def break_special_tokens(parts: Sequence[str | Media], tokenizer: Any) -> list[str | Media]:
    """Return the parts with the tokenizer's special tokens broken up, also across adjacent texts."""
    pattern = _PATTERNS.get(tokenizer)
    if pattern is None:
        added = tokenizer.added_tokens_decoder.values()
        tokens = {str(token) for token in added if token.special} | {*tokenizer.all_special_tokens}
        first = [f"{re.escape(t[0])}(?={re.escape(t[1:])})" for t in sorted(tokens) if len(t) > 1]
        pattern = _PATTERNS[tokenizer] = re.compile("|".join(first) or "(?!)")
    done: list[str | Media] = []
    before = ""
    for part in parts:
        if isinstance(part, Media):
            done.append(part)
            before = ""
            continue
        text = pattern.sub(rf"\g<0>{BREAK}", before + part)
        if not text.startswith(before):  # a token begins in the text before
            text = before + BREAK + pattern.sub(rf"\g<0>{BREAK}", part)
        done.append(text[len(before) :])
        before = text
    return done
