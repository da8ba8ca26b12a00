"""Ask for an answer and demonstrate one: the one writer of what a model is to write.

Prompts, demonstrations, the doctor and the attack bench all write answers here, each in the form of
the first kind of truth, by rank, that a truth has.
"""

from __future__ import annotations

from vlmrl.answers.templates import EMPTY_THOUGHT, template
from vlmrl.errors import UserError
from vlmrl.schema import Demo, Frame, Space, Truth
from vlmrl.truths.base import kinds
from vlmrl.truths.spans import write_time

__all__ = ["can_write", "demonstrate", "instruct", "lay_out"]


def instruct(template_name: str, truth: Truth, space: Space) -> str:
    """Say what is appended to a question: the template's layout and how to write the answer.

    It depends on the KIND of truth only, never on its values or their number.

    Raises:
        UserError: no such template.
    """
    forms = (
        kind.instruct(truth, space)
        for name, kind in kinds().items()
        if truth.value(name) is not None
    )
    return " ".join(filter(None, (template(template_name).request, next(filter(None, forms), ""))))


def write(truth: Truth, frame: Frame) -> str | None:
    """Write a truth as a model should, in `frame.space`; None if no model could.

    Raises:
        ValueError: the frame lacks the size that its space needs.
    """
    texts = (
        kind.write(truth, frame) for name, kind in kinds().items() if truth.value(name) is not None
    )
    return next((text for text in texts if text is not None), None)


def can_write(truth: Truth) -> bool:
    """Return True if a model could write the answer to a question with this truth."""
    return write(truth, Frame(space="norm1")) is not None


def write_demo(demo: Demo, frame: Frame) -> str:
    """Write the answer of a demonstration as the model should, in `frame.space`.

    Raises:
        UserError: the demonstration has no answer that can be written.
        ValueError: the frame lacks the size that its space needs.
    """
    if demo.text is not None:
        return demo.text
    text = None if demo.answer is None else write(demo.answer, frame)
    if text is None:
        raise UserError(
            "expected a demonstration with a `text` or an `answer` that can be written, "
            f"got {demo!r:.80}"
        )
    return text


def demonstrate(demo: Demo, template_name: str, frame: Frame, thought: bool = True) -> str:
    r"""Write the completion that a demonstration stands for, in the model's space (`frame.space`).

    `thought=False` leaves the thought empty (thought dropout): `<think>\n\n</think>`.

    Example: `<think>top left</think><answer>{"bbox_2d": [7, 14, 35, 49]}</answer>`

    Raises:
        UserError: no such template, or it has a tag that a demonstration cannot fill.
        ValueError: the frame lacks the size that its space needs.
    """
    answer = write_demo(demo, frame)
    contents = {"think": (demo.thought if thought else "") or EMPTY_THOUGHT}
    if demo.evidence is not None:
        pairs = (f"({write_time(s.start)}, {write_time(s.end)})" for s in demo.evidence)
        contents["glue"] = f"[{', '.join(pairs)}]"
    return lay_out(template_name, answer, contents)


def lay_out(template_name: str, answer: str, contents: dict[str, str]) -> str:
    """Put an answer into the layout of a template; `contents` by tag fill the other tags.

    Raises:
        UserError: no such template, or a required tag has no content.
    """
    layout = template(template_name)
    if layout.answer == "boxed":
        return f"{contents.get('think', '').strip()} \\boxed{{{answer}}}".strip()
    if layout.answer == "text":
        return answer
    contents = {**contents, layout.answer: answer}
    for tag in layout.tags:
        if tag.name not in contents and tag.presence == "required":
            raise UserError(
                f"template {template_name!r} has {tag.open}, which a demonstration cannot fill"
            )
    return "".join(f"{t.open}{contents[t.name]}{t.close}" for t in layout.tags)
