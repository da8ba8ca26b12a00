"""Ask for an answer and demonstrate one: the one writer of what a model is to write.

Prompts, demonstrations, the doctor and the attack bench all write answers here, each in the form of
the first kind of truth, by rank, that a truth has and the verifiers of its source read (`AnswerForm`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from vlmrl.answers import parsing
from vlmrl.answers.templates import EMPTY_THOUGHT, template
from vlmrl.errors import UserError
from vlmrl.schema import AnswerForm, Box, Demo, DemoTurn, Frame, Point, Space, Span, Template, Truth
from vlmrl.truths.base import PLACES, TruthKind, kinds
from vlmrl.truths.boxes import write_box
from vlmrl.truths.points import places_to_point_at, write_point
from vlmrl.truths.spans import write_time

ANY = AnswerForm()
"""The form where no verifier says how it reads an answer."""
FINE = Frame(1, 1, space="norm1", duration=1e9)
"""A frame in which any truth can be written."""
_MARK = re.compile(r"<(?=/?(?:tool_call|think)>)")
ORDINALS = ("first", "second", "third", "fourth", "fifth")


def instruct(
    chosen: str | Template, truth: Truth, space: Space, form: AnswerForm = ANY, num_images: int = 1
) -> str:
    """Say what is appended to a question: the template's layout and how to write the answer.

    It depends on the KIND of truth only, never on its values or their number. Among several images
    the one that coordinates belong to is named.

    Raises:
        UserError: no such template.
    """
    forms = ((kind, kind.instruct(truth, space)) for kind in _asked(truth, form))
    kind, text = next(((kind, text) for kind, text in forms if text), (None, ""))
    if num_images > 1:
        words, n = PLACES[space], truth.image
        name = f"the {ORDINALS[n]} image" if n < len(ORDINALS) else f"image {n + 1}"
        text = text.replace(words, words.replace("the image", name))
    if form.confidence and kind is kinds()["boxes"]:
        text += ' Give each box a "confidence" from 0 to 1.'
    if form.pointed and kind is kinds()["boxes"]:
        text += ' Give each box a "point_2d" [x, y] inside of its object.'
    if form.key is not None:
        text += f' Put the answer under the key "{form.key}" of a JSON object.'
    if form.own_lines:
        text += " Put each tag on a line of its own."
    return " ".join(filter(None, (template(chosen).request, text.strip())))


def write(truth: Truth, frame: Frame, form: AnswerForm = ANY) -> str | None:
    """Write a truth as a model should, in `frame.space`, None if no model could; ValueError as `extent`."""
    if form.confidence and truth.boxes:
        sure = (box if box.score is not None else replace(box, score=1.0) for box in truth.boxes)
        truth = replace(truth, boxes=tuple(sure))
    text = next(_texts(_stated(truth, form), truth, frame), None)
    if form.pointed and truth.boxes:
        pairs = zip(truth.boxes, places_to_point_at(truth), strict=True)
        text = json.dumps(
            [{"bbox_2d": write_box(b, frame), "point_2d": write_point(p, frame)} for b, p in pairs]
        )
    if text is None and truth.none:
        # As every verifier of answers reads it.
        graded = _graded(form)
        text = "[]" if graded and graded[0].listed else "none"
    return None if text is None else put_in_form(text, form)


def put_in_form(answer: str, form: AnswerForm) -> str:
    """Return an answer as the verifiers of a source read it: under their key, if they have one."""
    if form.key is None:
        return answer
    try:
        value = json.loads(answer)
    except ValueError:
        value = answer
    return json.dumps({form.key: value}, ensure_ascii=False)


def can_write(truth: Truth) -> bool:
    """Return True if a model could write the answer to a question with this truth."""
    return write(truth, FINE) is not None


def write_demo(demo: Demo, frame: Frame, form: AnswerForm = ANY) -> str:
    """Write the answer of a demonstration as the model should, in `frame.space`.

    Raises:
        UserError: the demonstration has no answer that can be written.
        ValueError: the frame lacks the size that its space needs.
    """
    if demo.text is not None:
        return put_in_form(demo.text, form)
    text = None if demo.answer is None else write(demo.answer, frame, form)
    if text is None:
        raise UserError(
            "expected a demonstration with a `text` or an `answer` that can be written, "
            f"got {demo!r:.80}"
        )
    return text


def demonstrate(
    demo: Demo,
    chosen: str | Template,
    frame: Frame,
    thought: bool = True,
    form: AnswerForm = ANY,
) -> str:
    r"""Write the completion that a demonstration stands for, in the model's space (`frame.space`).

    `thought=False`, or a demonstration without one, leaves it empty (thought dropout): `<think>\n\n</think>`.

    Example: `<think>top left</think><answer>{"bbox_2d": [7, 14, 35, 49]}</answer>`

    Raises:
        UserError: no such template, or it has a tag that a demonstration cannot fill.
        ValueError: the frame lacks the size that its space needs.
    """
    if demo.completion is not None:
        if thought and demo.thought.strip():
            return demo.completion
        for tag in (tag for tag in template(chosen).tags if tag.name == "think"):
            before, opened, rest = demo.completion.partition(tag.open)
            _, closed, after = rest.partition(tag.close)
            if opened and closed:
                return f"{before}{opened}{EMPTY_THOUGHT}{closed}{after}"
        return demo.completion
    answer = write_demo(demo, frame, form)
    contents = {**demo.contents, "think": (demo.thought if thought else "") or EMPTY_THOUGHT}
    evidence = demo.answer.spans if demo.evidence is None and demo.answer else demo.evidence
    if evidence is not None:
        pairs = (f"({write_time(s.start)}, {write_time(s.end)})" for s in evidence)
        contents["glue"] = f"[{', '.join(pairs)}]"
    return lay_out(chosen, answer, contents, form)


def write_call(turn: DemoTurn, frame: Frame, space: str = "") -> str:
    """Write a turn of a demonstration that calls tools, its places in `frame.space`.

    `frame` is that of the image which the call names; `space` is what the model's chat template writes
    around a call. Marks that an argument spells out are escaped as JSON can.

    Example: `<think>top left</think><tool_call>{"name": "crop", "arguments": {...}}</tool_call>`

    Raises:
        ValueError: the frame lacks the size that its space needs.
    """
    written = [f"<think>{turn.thought}</think>"] if turn.thought else []
    written += [turn.text] if turn.text else []
    for name, arguments in [(turn.name, turn.arguments), *turn.also] if turn.name else []:
        values = {key: _write_argument(value, frame) for key, value in arguments.items()}
        call = json.dumps({"name": name, "arguments": values}, ensure_ascii=False)
        call = _MARK.sub(r"\\u003c", call)
        written.append(f"<tool_call>{space}{call}{space}</tool_call>")
    return space.join(written)


def _write_argument(value: object, frame: Frame) -> object:
    match value:
        case Box():
            return write_box(value, frame)
        case Point():
            return write_point(value, frame)
        case Span():
            return [round(value.start, 2), round(value.end, 2)]
    return value


def lay_out(
    chosen: str | Template, answer: str, contents: Mapping[str, str], form: AnswerForm = ANY
) -> str:
    """Put an answer into a template, `contents` by tag into its other tags; UserError if one is lacking."""
    layout = template(chosen)
    if layout.answer == "boxed":
        return f"{contents.get('think', '').strip()} \\boxed{{{answer}}}".strip()
    if layout.answer == "text":
        return answer
    texts = []
    for tag in layout.tags:
        content = answer if tag.name == layout.answer else contents.get(tag.name, "")
        if tag.presence == "required" and not content and tag.name != layout.answer:
            raise UserError(
                f"template '{chosen}' has {tag.open}, for which the demonstration has no text: state "
                f"it under `tags` of the row (records) or map a column to '<{tag.name}>' (table)"
            )
        if tag.presence == "optional" and not content.strip():
            continue
        content = content or ("" if tag.presence == "required" else EMPTY_THOUGHT)
        content = f"\n{content.strip()}\n" if form.own_lines else content
        texts.append(f"{tag.open}{content}{tag.close}")
    return ("\n" if form.own_lines else "").join(texts)


# --------------------------------------------------------------------------------------- parts


def _stated(truth: Truth, form: AnswerForm) -> list[TruthKind]:
    """Return the kinds in which a truth may be written: those that verifiers read, if it has any."""
    read = [k for name, k in kinds().items() if name in form.kinds and k.can_state(truth)]
    return read or [k for name, k in kinds().items() if truth.value(name) is not None]


def _asked(truth: Truth, form: AnswerForm) -> Iterator[TruthKind]:
    """Yield the kinds that may say how to write the answer.

    Where nothing can be answered that is the kind of the other rows, so that the prompt does not
    tell. A kind with nothing to say leaves it to another one that states the same answer.
    """
    stated = _stated(truth, form)
    yield from stated
    answer = next(_texts(stated, truth, FINE), None)
    if answer is None and truth.none:
        yield from _graded(form)
        return
    known = (k for name, k in kinds().items() if truth.value(name) is not None)
    others = [k for k in known if k not in stated]
    yield from (kind for kind in others if _is_same(answer, kind.write(truth, FINE)))


def _texts(stated: list[TruthKind], truth: Truth, frame: Frame) -> Iterator[str]:
    texts = (kind.write(truth, frame) for kind in stated)
    return (text for text in texts if text is not None)


def _graded(form: AnswerForm) -> list[TruthKind]:
    return [kind for kind in kinds().values() if kind.name in form.kinds]


def _is_same(a: str | None, b: str | None) -> bool:
    """Return whether two answers are equal, as texts or as numbers: `1,200` and `1200`."""
    if a is None or b is None:
        return False
    number = parsing.number(a)[0]
    return a == b or (number is not None and number == parsing.number(b)[0])
