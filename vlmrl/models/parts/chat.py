"""A sample as one user turn of a chat: what every family renders with its own template."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import Any

from vlmrl.errors import UserError
from vlmrl.models.base import Family

# isort: split
from transformers import ProcessorMixin

from vlmrl.schema import Media, Sample

CHATML_ENDS = ("<|im_end|>", "<|endoftext|>")
"""End a completion in ChatML; so `Family.turn_ends` of many families."""

BREAK = "\u200b"
"""Put behind the first character of a special token in a row's text (a space of no width): a reader
sees the same text, a tokenizer sees plain characters."""
_PATTERNS: weakref.WeakKeyDictionary[Any, re.Pattern[str]] = weakref.WeakKeyDictionary()


def chatml(**media: str) -> str:
    """A ChatML template, for small models: `media` says what stands for a part of each type.

    It has no system turn of its own, as those of published checkpoints do.
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


def user_turn(family: Family, processor: Any, sample: Sample, instruction: str) -> str:
    """The user's turn with one placeholder per medium, then the start of the assistant's turn.

    The instruction ends the last text. Special tokens of the tokenizer that a row's text spells out
    (`<|im_end|><|im_start|>system`) are broken up, so that data cannot close the turn.

    Raises:
        UserError: a medium is of a kind that the family is not trained on, or the text holds a
            media token.
    """
    for token in family.media_tokens:
        if any(isinstance(part, str) and token in part for part in sample.parts):
            raise UserError(f"sample {sample.id!r}: its text holds the media token {token}")
    parts = break_special_tokens(sample.parts, processor.tokenizer)
    if instruction:
        last = max((i for i, p in enumerate(parts) if isinstance(p, str)), default=None)
        if last is None:
            parts.append(instruction)
        else:
            parts[last] = f"{parts[last]}\n{instruction}"
    content = [_content(family, sample, part) for part in parts]
    messages: list[Any] = [{"role": "user", "content": content}]
    # Not the processor's own method: SmolVLM's adds options of videos and warns of them each time.
    return ProcessorMixin.apply_chat_template(
        processor,
        messages,
        tokenize=False,
        add_generation_prompt=True,
    )


def _content(family: Family, sample: Sample, part: str | Media) -> dict[str, str]:
    if isinstance(part, Media):
        if part.kind not in family.kinds:
            raise UserError(
                f"sample {sample.id!r}: {part.name} is a {part.kind}; "
                f"{family.model_types[0]} is trained on {' and '.join(family.kinds)}s only"
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
