"""Templates: how a completion is laid out, and how it is split.

A template is data: an ordered list of tags. The format verifier, the prompt's instruction, the
split and the think-or-not statistics all read the same object. Text inside the thought is never
graded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from vlmrl.errors import UserError
from vlmrl.plugins import nearest
from vlmrl.schema import Completion, Frame, Parsed, Presence, Tag, Template

EMPTY_THOUGHT = "\n\n"
"""Content of a thought that was left out on purpose (TON, arXiv 2505.16854)."""

MAX_BOXED = 65_536
"""Characters from the end of a completion in which a boxed answer is looked for."""

_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_BOXED = re.compile(r"\\boxed\{|[{}]")


_THINK_ANSWER = (
    "First think inside <think> </think>, then give the final answer inside <answer> </answer>."
)

TEMPLATES: dict[str, Template] = {
    "answer_only": Template((Tag("answer"),), request="Answer inside <answer> </answer>."),
    "think_answer": Template((Tag("think"), Tag("answer")), request=_THINK_ANSWER),
    "think_or_not": Template(
        (Tag("think", "optional_empty"), Tag("answer")),
        request="Think inside <think> </think> if it helps, or leave that empty; then give the "
        "final answer inside <answer> </answer>.",
    ),
    "caption_think_answer": Template(
        (Tag("info"), Tag("think"), Tag("answer")),
        request="First describe all that matters in the image inside <info> </info>, then think "
        "inside <think> </think>, then give the final answer inside <answer> </answer>.",
    ),
    "observe_think_answer": Template(
        (Tag("observe"), Tag("think"), Tag("answer")),
        request="First note what you observe inside <observe> </observe>, then think inside "
        "<think> </think>, then give the final answer inside <answer> </answer>.",
    ),
    "context_think_answer": Template(
        (Tag("context"), Tag("think"), Tag("answer")),
        request="First sum up the context inside <context> </context>, then think inside <think> "
        "</think>, then give the final answer inside <answer> </answer>.",
    ),
    "think_action": Template(
        (Tag("think", "optional_empty"), Tag("action")),
        answer="action",
        request="Think inside <think> </think> if it helps, or leave that empty; then give the "
        "action inside <action> </action>.",
    ),
    "think_answer_glue": Template(
        (Tag("think"), Tag("answer"), Tag("glue")),
        request=f"{_THINK_ANSWER} Last, give the spans of time that prove it, in seconds, as "
        "[(start, end), ...] inside <glue> </glue>.",
    ),
    "boxed": Template((), "boxed", "Think step by step and put the final answer in \\boxed{}."),
    "none": Template((), "text"),
}


def template(chosen: str | Template) -> Template:
    """Return the template of that name, or one of the user's own as it is; UserError if there is none."""
    if isinstance(chosen, Template):
        return chosen
    if chosen not in TEMPLATES:
        raise UserError(f"no template is named {chosen!r}{nearest(chosen, list(TEMPLATES))}")
    return TEMPLATES[chosen]


def has_unknown_tags(text: str, chosen: str | Template) -> bool:
    """Return whether a completion closes a tag of a shipped template that its own does not have.

    A thought is known to all: every template splits it off.
    """
    own = {tag.name for tag in template(chosen).tags} | {"think"}
    shipped = {tag.name: tag.close for each in TEMPLATES.values() for tag in each.tags}
    return any(close in text for name, close in shipped.items() if name not in own)


def read(stated: object, name: str = "of the config") -> Template:
    """Return the template that a mapping states; `name` is what messages call it.

    `{"tags": {"look": "required", "think": "optional_empty", "answer": "required"}, "answer":
    "answer", "request": "First look ..."}`. `tags` are in order, each with what it must be;
    `answer` is the tag with the answer, and `request` tells the model about the layout: without it
    the tags are named.

    Raises:
        UserError: an unknown or missing key, a wrong value, or no tag with the answer.
    """
    if not isinstance(stated, Mapping):
        raise UserError(f"template: expected a name or a mapping with `tags`, got {stated!r:.80}")
    known = ("tags", "answer", "request")
    for key in stated:
        if key not in known:
            raise UserError(f"template: unknown key {key!r}{nearest(str(key), list(known))}")
    tags, answer, request = (stated.get(key) for key in known)
    if not isinstance(tags, Mapping) or not tags:
        raise UserError(
            f"template.tags: expected a mapping such as {{think: required, answer: required}}, got "
            f"{tags!r:.80}"
        )
    layout = tuple(_read_tag(*pair) for pair in tags.items())
    answer = "answer" if answer is None else answer
    if answer not in tags:
        raise UserError(
            f"template.answer: expected one of the tags {', '.join(tags)}, got {answer!r}"
        )
    if answer == "think" or tags[answer] != "required":
        raise UserError(
            f"template.tags.{answer}: the tag with the answer is required, and no thought"
        )
    if request is None:
        request = f"Write {', then '.join(map(_ask, layout))}."
    if not isinstance(request, str):
        raise UserError(f"template.request: expected a text, got {request!r:.80}")
    return Template(layout, answer, request, name)


def _read_tag(name: Any, presence: Any) -> Tag:
    if not isinstance(name, str) or not _TAG.fullmatch(name):
        raise UserError(
            f"template.tags: expected letters, digits and _ for a tag, got {name!r:.80}"
        )
    if presence not in get_args(Presence):
        raise UserError(
            f"template.tags.{name}: expected {', '.join(get_args(Presence))}, got {presence!r:.80}"
        )
    return Tag(name, presence)


def _ask(tag: Tag) -> str:
    may = {"required": "", "optional": " if it helps", "optional_empty": " (may be empty)"}
    return f"{tag.open} {tag.close}{may[tag.presence]}"


# --------------------------------------------------------------------------------------- reading


def split(text: str, chosen: str | Template) -> Parsed:
    """Split a completion's text by its template, in time linear in its length.

    The answer is the content of the last well-formed answer tag after the thought, stripped, and
    None if that is blank: no verifier ever sees an empty answer. A thought that is never closed
    means that there is no answer.

    Raises:
        UserError: no such template.
    """
    layout = template(chosen)
    well_formed, tag_share = _check(text, layout)
    after, thought_range = _thought(text)
    if after is None:
        return Parsed(None, None, "none", False, tag_share)
    spans = {} if thought_range is None else {"think": thought_range}
    before = thought_range[0] if thought_range else len(text)
    thought_seen = False
    for tag in layout.tags:
        if tag.name == "think":
            thought_seen = True
            continue
        early = layout.thinks and not thought_seen
        span = _last_pair(text, tag, 0 if early else after, before if early else len(text))
        if span:
            spans[tag.name] = span
    if not layout.tags:
        span = _last_boxed(text, after) if layout.answer == "boxed" else (after, len(text))
        if span:
            spans[layout.answer] = span
    where = spans.get(layout.answer)
    answer = (text[where[0] : where[1]].strip() or None) if where else None
    thought = text[thought_range[0] : thought_range[1]].strip() if thought_range else None
    mode: Literal["think", "direct", "none"]
    mode = "think" if thought else "none" if answer is None else "direct"
    if not layout.tags:
        well_formed, tag_share = answer is not None, float(answer is not None)
    return Parsed(answer, thought, mode, well_formed, tag_share, spans)


def end_before_thought(text: str, chosen: str | Template) -> str:
    """Return a rendered prompt without the opening mark of a thought at its end, if the template has tags.

    Chat templates of some models begin the thought in the prompt. A template with tags lays out the whole
    completion: without that mark it would never be well formed.
    """
    begun = text.rstrip()
    if template(chosen).tags and begun.endswith("<think>"):
        return begun.removesuffix("<think>")
    return text


def completion(text: str, chosen: str | Template, frame: Frame, **fields: Any) -> Completion:
    """Build a completion of this text, split by its template; `fields` are more of its fields."""
    return Completion(text, split(text, chosen), frame, **fields)


def of_tag(completion: Completion, tag: str) -> Completion:
    """Return a completion whose answer is the content of a tag, None where that is blank or not there."""
    start, end = completion.parsed.spans.get(tag, (0, 0))
    answer = completion.text[start:end].strip() or None
    return replace(completion, parsed=replace(completion.parsed, answer=answer))


def _thought(text: str) -> tuple[int | None, tuple[int, int] | None]:
    """Return where the graded text begins (None: a thought stays open) and the thought's range.

    A thought whose opening mark is missing begins at the start: some chat templates write the mark
    into the prompt.
    """
    close = text.rfind("</think>")
    if text.find("<think>", close + 1) >= 0:
        return None, None
    if close < 0:
        return 0, None
    opened = text.find("<think>", 0, close)
    return close + len("</think>"), (opened + len("<think>") if opened >= 0 else 0, close)


def _last_pair(text: str, tag: Tag, start: int, end: int) -> tuple[int, int] | None:
    """Return the range of the content of the last opened and closed `tag` in text[start:end]."""
    last = text.rfind(tag.close, start, end)
    opened = text.rfind(tag.open, start, last) if last >= 0 else -1
    if opened < 0:
        return None
    return opened + len(tag.open), text.find(tag.close, opened)


def _last_boxed(text: str, start: int) -> tuple[int, int] | None:
    r"""Return the range of the content of the last `\boxed{}` whose braces balance."""
    stack: list[int | None] = []
    span = None
    for mark in _BOXED.finditer(text, max(start, len(text) - MAX_BOXED)):
        if mark.group() != "}":
            stack.append(mark.end() if mark.group() != "{" else None)
        elif stack and (opened := stack.pop()) is not None:
            span = (opened, mark.start())
    return span


def _check(text: str, layout: Template) -> tuple[bool, float]:
    """Return whether the text matches the template, and the share of marks that occur once.

    The marks of a tag that must have content count only if it has some.
    """
    once, wanted, at = 0, 0, 0
    well_formed = bool(layout.tags)
    for tag in layout.tags:
        opened, closed = text.count(tag.open), text.count(tag.close)
        if tag.presence == "optional" and not opened and not closed:
            continue
        wanted += 2
        start, end = text.find(tag.open), text.find(tag.close)
        content = text[start + len(tag.open) : end]
        pair = opened == closed == 1
        if pair and tag.presence != "optional_empty" and not content.strip():
            well_formed = False
            continue
        once += (opened == 1) + (closed == 1)
        # Only white space may stand before the opening mark.
        in_order = at <= start < end and not text[at:start].strip()
        well_formed = well_formed and pair and in_order
        at = end + len(tag.close)
    well_formed = well_formed and not text[at:].strip()
    return well_formed, once / wanted if wanted else 0.0
