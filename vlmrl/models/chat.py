"""Rendering a sample as a chat, with the template of each family."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.schema import Media, Sample
from vlmrl.schema.media import Decoded, kind_of

if TYPE_CHECKING:
    from vlmrl.models.base import Family

# --------------------------------------------------------------------------------------------------
# The list of tools in a prompt: by the chat template where it has one, else in the words of Hermes.
#
# Of the families here Qwen3-VL's template knows tools, and it writes what Hermes models were taught.
# Qwen3.5's asks for another form, which is not read; the others were taught none: one form is read for all.


CALL = ("<tool_call>", "</tool_call>")
"""The marks around a call, as Hermes and Qwen write it."""
RESPONSE = ("<tool_response>", "</tool_response>")
"""The marks around what a tool returned."""
PROBE = "vlmrl0probe"


def write_tool_list(schemas: Sequence[Mapping[str, object]]) -> str:
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


def template_lists_tools(processor: object) -> bool:
    """Return whether the chat template lists tools, and asks for calls in the form that is read here."""
    body = {"type": "object", "properties": {}, "required": []}
    function = {"name": PROBE, "description": PROBE, "parameters": body}
    tools = [{"type": "function", "function": function}]
    behind = _try_apply(processor, [_turn("user", "x")], tools=tools).partition(PROBE)[2]
    return CALL[0] in behind and '"arguments"' in behind


def space_in_calls(processor: object) -> str:
    """Return what the chat template writes between a mark and a call: a line break, or nothing.

    Nothing where the template does not know tools.
    """
    if not template_lists_tools(processor):
        return ""
    function = {"name": PROBE, "arguments": {}}
    calls = [{"type": "function", "function": function}]
    call = {"role": "assistant", "content": "", "tool_calls": calls}
    text = _try_apply(processor, [_turn("user", "x"), call])
    space = text.partition(CALL[0])[2].partition("{")[0]
    return space if space.isspace() else ""


def _turn(role: str, text: str, *kinds: str) -> dict[str, Any]:
    media = [{"type": kind} for kind in kinds]
    return {"role": role, "content": [{"type": "text", "text": text}, *media]}


def _apply(processor: Any, messages: list[Any], **options: Any) -> str:
    from transformers import ProcessorMixin  # after the shim that `models.base` imports

    # Not the processor's own method: SmolVLM's adds video options and warns about them each time.
    text: str = ProcessorMixin.apply_chat_template(processor, messages, tokenize=False, **options)
    return text


def _try_apply(processor: object, messages: list[Any], **options: Any) -> str:
    """Return what the chat template makes of the turns; empty where it refuses them."""
    try:
        return _apply(processor, messages, **options)
    except TemplateError:
        return ""


# --------------------------------------------------------------------------------------------------


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

    A thought that the chat template begins is left to the completion where the sample's template has tags.
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
        parts = [sample.system, write_tool_list(sample.tools)]
        sample = replace(sample, system="\n\n".join(filter(None, parts)))
    messages = list_messages(family, processor.tokenizer, sample, instruction)
    try:
        text = _apply(processor, messages, tools=listed, add_generation_prompt=True)
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
    return templates.end_before_thought(text, sample.template)


def render_answered(family: Family, processor: Any, sample: Sample) -> tuple[str, str]:
    """Return what the chat template writes before and behind the assistant's answer to a sample.

    No turn is begun behind it: so a reward model is shown a conversation.

    Raises:
        UserError: as `render_chat`.
    """
    messages = list_messages(family, processor.tokenizer, sample, "")
    text = _try_apply(processor, [*messages, _turn("assistant", PROBE)])
    before, probe, behind = text.rpartition(PROBE)
    if not probe:
        raise UserError(
            f"sample {sample.id!r}: the chat template of this {family.model_types[0]} refuses the turns, "
            "or leaves out the assistant's"
        )
    return before, behind


def list_messages(
    family: Family, tokenizer: object, sample: Sample, instruction: str
) -> list[dict[str, Any]]:
    """Return the turns as transformers' chat templates take them, the system turn first, if there is one."""
    turns: list[tuple[str, Sequence[str | Media]]] = [(t.role, t.parts) for t in sample.turns]
    if sample.system:
        turns.insert(0, ("system", (sample.system,)))
    messages = []
    for number, (role, parts) in enumerate(turns):
        _refuse_media_tokens(family, sample, parts)
        plain = break_special_tokens(parts, tokenizer)
        if instruction and number == len(turns) - 1:
            last = max((i for i, p in enumerate(plain) if isinstance(p, str)), default=None)
            if last is None:
                plain.append(instruction)
            else:
                plain[last] = f"{plain[last]}\n{instruction}"
        content = [_content(family, sample, part) for part in plain]
        messages.append({"role": role, "content": content})
    return messages


def _refuse_media_tokens(family: Family, sample: Sample, parts: Sequence[str | Media]) -> None:
    for token in family.media_tokens:
        if any(isinstance(part, str) and token in part for part in parts):
            raise UserError(f"sample {sample.id!r}: its text contains the media token {token}")


def _clean_schemas(family: Family, tokenizer: object, sample: Sample) -> list[dict[str, Any]]:
    """Return the sample's tools for the chat template, with special tokens broken up."""
    texts = [json.dumps(schema, ensure_ascii=False) for schema in sample.tools]
    _refuse_media_tokens(family, sample, texts)
    return [
        json.loads(str(text))
        for schema_text in texts
        for text in break_special_tokens([schema_text], tokenizer)
    ]


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


# --------------------------------------------------------------------------------------------------
# Rendering an observation as the turn between two turns of the policy.
#
# The piece is what the chat template writes behind the policy's end of turn: the separator, the turn that
# shows the observation, and the start of the policy's next turn. What was said before is never rendered
# again.


POLICY_TEXT = "vlmrl0policy0turn"
"""Stands for the policy's turn while a template is rendered."""


def render_reply(family: Family, processor: object, parts: Sequence[str | Decoded]) -> str:
    """Render the parts as what tools answered; see `Family.reply`."""
    turns = [_turn("user", "x"), _turn("assistant", POLICY_TEXT)]
    turns += reply_messages(family, processor, parts)
    name = family.model_types[0]
    try:
        text = _apply(processor, turns, add_generation_prompt=True)
    except TemplateError as error:
        raise UserError(
            f"the chat template of this {name} refuses a second turn: {error}"
        ) from error
    _, mark, piece = text.rpartition(POLICY_TEXT)
    end = family.turn_ends[0]
    if not mark or not piece.startswith(end):
        raise UserError(
            f"the chat template of this {name} does not end the policy's turn with {end}, so "
            "nothing can follow it"
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
        return [{"role": "tool", "content": _reply_content(family, cleaned)}]
    begin = RESPONSE[0] if cleaned and isinstance(cleaned[0], str) else f"{RESPONSE[0]}\n"
    end = RESPONSE[1] if cleaned and isinstance(cleaned[-1], str) else f"\n{RESPONSE[1]}"
    return [{"role": "user", "content": _reply_content(family, join_texts([begin, *cleaned, end]))}]


def _shows_media_of_tools(family: Family, processor: object) -> bool:
    """Return whether the template writes as many media tokens in the role `tool` as in the user's."""
    counts = []
    for role in ("user", "tool"):
        turns = [_turn("user", "x"), _turn("assistant", "x"), _turn(role, "y", *family.kinds)]
        text = _try_apply(processor, turns, add_generation_prompt=True)
        counts.append([text.count(token) for token in family.media_tokens] if text else None)
    return counts[0] is not None and counts[0] == counts[1]


def _reply_content(family: Family, parts: Sequence[str | Decoded]) -> list[dict[str, str]]:
    content = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
            continue
        if (kind := kind_of(part)) not in family.kinds:
            raise UserError(
                f"a tool returned {kind}, but {family.model_types[0]} takes only "
                f"{' and '.join(family.kinds)}"
            )
        content.append({"type": kind})
    return content


def join_texts(parts: Sequence[str | Decoded]) -> list[str | Decoded]:
    """Return the parts with adjacent texts as lines of one, so that none is spelt across two."""
    joined: list[str | Decoded] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] = f"{joined[-1]}\n{part}"
        else:
            joined.append(part)
    return joined


def clean_text(family: Family, tokenizer: object, text: str) -> str:
    """Return a tool's text without the power to close its turn, to show media, or to make a call."""
    text = text.encode("utf-8", "replace").decode()
    for token in (*family.media_tokens, *family.turn_ends, *CALL, *RESPONSE):
        text = text.replace(token, token[0] + BREAK + token[1:])
    (cleaned,) = break_special_tokens([text], tokenizer)
    assert isinstance(cleaned, str)
    return cleaned
