"""What a prompt asks for and a demonstration shows is what the verifiers of its source pay.

For every verifier with each of its options, every template and every kind of truth that it accepts.
"""

import functools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, find, settings

from helpers.truth_shapes import FRAME, SHAPES
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import RewardConfig
from vlmrl.errors import UserError
from vlmrl.schema import Box, Demo, Sample, Span, Truth
from vlmrl.scoring.reward_components import form_of
from vlmrl.truths import prompting

OWN = templates.read({"tags": {"caption": "required", "think": "optional", "answer": "required"}})
LAYOUTS = [*templates.TEMPLATES, OWN]
MORE_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "regression": [{"key": "rating"}, {"key": "rating", "measure": "step"}],
    "detection": [{"use_confidence": True, "matching": "greedy_confidence"}],
    "format": [{"content": "json"}, {"content": "boxes"}, {"content": "points", "own_lines": True}],
    "calibration": [{"of": "regression", "of_options": {"key": "rating"}}],
    "temporal_iou": [{"where": "glue"}],
}
"""Options that say how an answer is written, next to those of a verifier's laws."""
ABOUT_ANSWERS = ("format", "calibration", "refusal")
"""Verifiers of what is written that need no kind of truth; the others look at lengths."""
FINE = replace(FRAME, space="resized", resized_width=10**6, resized_height=10**6)
"""Places are written without loss."""
CROWD = Truth(
    boxes=(Box(0.1, 0.1, 0.5, 0.5, "cat"),),
    spans=(Span(3, 9),),
    text=("a cat",),
    number=7.0,
    choice="B",
    options=("dog", "cat"),
    labels=("cat", "mat"),
)
"""A truth of many kinds, of which a verifier grades some."""
THINKS = dict.fromkeys(("info", "observe", "context", "caption"), "A cat on a mat.")


def cases() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name in plugins.names("verifier"):
        verifier = plugins.load("verifier", name)
        if verifier.scope != "item" or verifier.laws.of_turns:
            continue
        if verifier.needs or name in ABOUT_ANSWERS:
            options = [dict(o) for o in verifier.laws.options] + MORE_OPTIONS.get(name, [])
            found += [(name, o) for o in options]
    return found


def shapes_of(verifier: Any) -> list[str]:
    """The shapes of truth that a verifier is tested on, and the kinds that it accepts besides."""
    needs = [
        kind for need in verifier.needs for kind in ([need] if isinstance(need, str) else need)
    ]
    needs += verifier.answer_form().kinds
    named = list(dict.fromkeys([*verifier.laws.truth, *(n for n in needs if n in SHAPES)]))
    return named or ["text", "one box", "number", "fields"]


@functools.cache
def example(shape: str) -> Truth:
    """One truth of a shape, the simplest that has something to find; always the same."""
    phases = (Phase.generate, Phase.shrink)  # to explain the example takes six times as long
    few = settings(database=None, derandomize=True, max_examples=5, phases=phases)
    return find(SHAPES[shape][0], lambda truth: True, settings=few)


def with_company(truth: Truth, verifier: Any) -> Truth:
    """The truth with values of kinds that the verifier does not grade."""
    if truth.none:
        return truth
    graded = {*verifier.answer_form().kinds, *verifier.needs}
    if graded & {"boxes", "points", "masks"}:
        graded |= {"boxes", "points", "masks"}
    if graded & {"text", "choice"}:
        graded |= {"choice", "options"}
    if "fields" in graded:
        graded |= {"text", "boxes", "points"}
    more = {k: getattr(CROWD, k) for k in ("boxes", "spans", "text", "number", "choice", "options")}
    return replace(
        truth,
        **{k: v for k, v in more.items() if k not in graded and truth.value(k) is None},
    )


def test_what_is_asked_for_and_shown_gets_the_highest_score(subtests: pytest.Subtests) -> None:
    for name, options in cases():
        with subtests.test(f"{name} {options}"):
            verifier = plugins.build("verifier", name, options)
            form = form_of([RewardConfig(verifier=name, options=options)])
            layouts = [t for t in LAYOUTS if options.get("where") != "glue" or "glue" in str(t)]
            truths = [example(shape) for shape in shapes_of(verifier)]
            truths = [whole for t in truths for whole in (t, with_company(t, verifier))]
            asked = [(truth, layout) for truth in truths for layout in layouts]
            paid = [is_paid(verifier, truth, layout, form) for truth, layout in asked]
            assert any(paid)


def is_paid(verifier: Any, truth: Truth, layout: Any, form: Any) -> bool:
    """Whether the verifier accepts the truth at all; it must then pay its demonstration in full."""
    evidence = truth.spans or (Span(1, 2),)
    demo = Demo("It is there.", answer=truth, contents=THINKS, evidence=evidence)
    text = prompting.demonstrate(demo, layout, FINE, form=form)
    sample = Sample("s", "s", (), truth, layout, form=form)
    parsed = templates.completion(text, layout, FINE)
    try:
        verdict = verifier(parsed, sample)
    except ValueError:
        return False  # as documented: a truth that it refuses
    if not verdict.applies:
        return False
    if type(verifier).__name__ == "Format" and not has_format(verifier, layout, parsed.answer):
        return False
    assert verdict.score == pytest.approx(verifier.high), (truth, text, verdict)
    asked = prompting.instruct(layout, truth, "pixel", form)
    for key in keys_in(parsed.answer or ""):
        assert f'"{key}"' in asked, (asked, text)
    assert ("line of its own" in asked) == form.own_lines
    return True


def has_format(verifier: Any, layout: Any, answer: str) -> bool:
    """Whether there is a layout to grade: there are tags, and an object where JSON is asked for."""
    return bool(templates.template(layout).tags) and (
        verifier.content != "json" or answer.startswith("{")
    )


def keys_in(answer: str) -> set[str]:
    try:
        value = json.loads(answer)
    except ValueError:
        return set()
    items = value if isinstance(value, list) else [value]
    return {key for item in items if isinstance(item, dict) for key in item}


def test_nothing_to_find_is_shown_as_it_is_paid_and_not_told_by_the_prompt(
    subtests: pytest.Subtests,
) -> None:
    for name in (name for name, options in cases() if not options):
        with subtests.test(name):
            require_nothing_to_find_is_paid(name)


def require_nothing_to_find_is_paid(name: str) -> None:
    verifier, form = plugins.build("verifier", name), form_of([RewardConfig(verifier=name)])
    if not verifier.needs:
        return
    none = Truth(none=True)
    text = prompting.demonstrate(Demo("?", answer=none), "think_answer", FRAME, form=form)
    sample = Sample("s", "s", (), none, form=form)
    assert verifier(templates.completion(text, "think_answer", FRAME), sample).score == 1.0
    asked = prompting.instruct("think_answer", none, "pixel", form)
    if name != "events" and not {"choice", "fields", "keypoints"} & {*form.kinds}:
        shape = shapes_of(verifier)[0]
        assert asked == prompting.instruct("think_answer", example(shape), "pixel", form)


def test_two_verifiers_that_read_one_answer_under_two_keys_are_refused() -> None:
    rewards = [
        RewardConfig(name=key, verifier="regression", options={"key": key}) for key in ("a", "b")
    ]
    with pytest.raises(UserError, match="'a' and 'b' read one answer under two keys"):
        form_of(rewards)


def test_the_verifiers_of_a_source_choose_among_the_kinds_of_a_truth() -> None:
    def answer(*names: str) -> str | None:
        return prompting.write(CROWD, FRAME, form_of([RewardConfig(verifier=n) for n in names]))

    assert answer("exact", "format") == "a cat"
    assert answer("number") == "7"
    assert answer("choice") == "B"
    assert answer("point") == '{"point_2d": [30, 30]}'
    assert answer("box_iou", "point") == answer("format") == '{"bbox_2d": [10, 10, 50, 50]}'
    assert answer("confidence") == '{"bbox_2d": [10, 10, 50, 50], "confidence": 1.0}'
