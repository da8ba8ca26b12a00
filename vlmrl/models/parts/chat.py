"""A sample as one user turn of a chat: what every family renders with its own template."""

from __future__ import annotations

from typing import Any

from vlmrl.errors import UserError
from vlmrl.models.base import Family

# isort: split
from transformers import ProcessorMixin

from vlmrl.schema import Media, Sample

CHATML_ENDS = ("<|im_end|>", "<|endoftext|>")
"""End a completion in ChatML; so `Family.turn_ends` of many families."""


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

    The instruction ends the last text.

    Raises:
        UserError: a medium is of a kind that the family is not trained on, or the text holds a
            media token.
    """
    parts = list(sample.parts)
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
    for token in family.media_tokens:
        if token in part:
            raise UserError(f"sample {sample.id!r}: its text holds the media token {token}")
    return {"type": "text", "text": part}
