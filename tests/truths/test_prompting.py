"""Instructions and demonstrations: one writer for all that a model is to write."""

import pytest

from vlmrl.answers import parsing, templates
from vlmrl.errors import UserError
from vlmrl.schema import Box, BoxTrack, Demo, Frame, Point, Span, Truth
from vlmrl.truths import prompting

FRAME = Frame(70, 70)

ONE = Demo(thought="top left", answer=Truth(boxes=(Box(0.1, 0.2, 0.5, 0.7),)))
TWO = Demo(answer=Truth(boxes=(Box(0, 0, 0.5, 0.5, "cat"), Box(0.5, 0.5, 1, 1, "dog"))))


def test_a_demonstration_of_one_box_is_one_object_in_whole_pixels():
    assert prompting.demonstrate(ONE, "think_answer", FRAME) == (
        '<think>top left</think><answer>{"bbox_2d": [7, 14, 35, 49]}</answer>'
    )


def test_thought_dropout_leaves_an_empty_thought():
    text = prompting.demonstrate(ONE, "think_or_not", FRAME, thought=False)
    assert text.startswith("<think>\n\n</think><answer>")
    assert templates.split(text, "think_or_not").mode == "direct"


def test_several_boxes_are_a_list_with_labels():
    assert prompting.demonstrate(TWO, "answer_only", FRAME) == (
        '<answer>[{"bbox_2d": [0, 0, 35, 35], "label": "cat"}, '
        '{"bbox_2d": [35, 35, 70, 70], "label": "dog"}]</answer>'
    )


@pytest.mark.parametrize("space", ["pixel", "resized", "norm1000", "norm1"])
@pytest.mark.parametrize(
    "template", ["think_answer", "think_or_not", "answer_only", "boxed", "none"]
)
@pytest.mark.parametrize("demo", [ONE, TWO])
def test_a_demonstration_reads_back_in_every_space_and_template(space, template, demo):
    frame = Frame(1000, 800, space, 500, 400)
    parsed = templates.split(prompting.demonstrate(demo, template, frame), template)
    found, _ = parsing.boxes(parsed.answer, frame)
    assert len(found) == len(demo.answer.boxes)
    for box, wanted in zip(found, demo.answer.boxes, strict=True):
        assert box.xyxy == pytest.approx(wanted.xyxy, abs=2e-3)


@pytest.mark.parametrize(
    ("demo", "written"),
    [
        (Demo(text="7"), "7"),
        (Demo(answer=Truth(points=(Point(0.5, 0.25),))), '{"point_2d": [35, 18]}'),
        (Demo(answer=Truth(spans=(Span(3, 9.5),))), "3 to 9.5"),
        (Demo(answer=Truth(spans=(Span(0, 1), Span(2, 3)))), "0 to 1, 2 to 3"),
        (
            Demo(answer=Truth(spans=(Span(0, 1.25, "dog"), Span(2, 3, "rain")))),
            '[{"start": 0, "end": 1.25, "label": "dog"}, {"start": 2, "end": 3, "label": "rain"}]',
        ),
        (
            Demo(
                answer=Truth(track=BoxTrack((0.0, 0.5), (Box(0, 0, 0.5, 0.5), Box(0.5, 0, 1, 0.5))))
            ),
            '[{"time": 0.0, "bbox_2d": [0, 0, 35, 35]}, {"time": 0.5, "bbox_2d": [35, 0, 70, 35]}]',
        ),
        (Demo(answer=Truth(boxes=())), "[]"),
    ],
)
def test_other_answers_are_written_as_they_are_read(demo, written):
    assert prompting.write_demo(demo, FRAME) == written


def test_a_demonstration_with_evidence_fills_the_glue():
    proven = Demo(text="B", evidence=(Span(0, 1.5), Span(2, 3)))
    text = prompting.demonstrate(proven, "think_answer_glue", FRAME)
    parsed = templates.split(text, "think_answer_glue")
    start, end = parsed.spans["glue"]
    assert (parsed.answer, text[start:end]) == ("B", "[(0, 1.5), (2, 3)]")
    with pytest.raises(UserError, match="<glue>"):
        prompting.demonstrate(Demo(text="B"), "think_answer_glue", FRAME)


def test_a_demonstration_that_cannot_fill_its_template_is_refused():
    with pytest.raises(UserError, match="<info>"):
        prompting.demonstrate(ONE, "caption_think_answer", FRAME)
    with pytest.raises(UserError, match="expected a demonstration with a `text` or an `answer`"):
        prompting.demonstrate(Demo(), "think_answer", FRAME)


def test_the_instruction_names_layout_form_and_space_but_not_the_truth():
    one = Truth(boxes=(Box(0.1, 0.1, 0.2, 0.2, "cat"),))
    two = Truth(boxes=(Box(0.3, 0.3, 0.4, 0.4, "dog"), Box(0.1, 0.1, 0.2, 0.2, "cat")))
    text = prompting.instruct("think_answer", one, "norm1000")
    assert "<think>" in text and "bbox_2d" in text and "from 0 to 1000" in text
    assert "cat" not in text
    # The number of boxes is what a detector must find out for itself.
    assert text == prompting.instruct("think_answer", two, "norm1000")


@pytest.mark.parametrize(
    ("truth", "word"),
    [
        (Truth(number=3.0), "number"),
        (Truth(choice="A"), "letter"),
        (Truth(spans=(Span(0, 1),)), "start to end"),
        (Truth(spans=(Span(0, 1, "dog"),)), '"label"'),
        (Truth(spans=(Span(0, 1),), choice="B"), "letter"),
        (Truth(points=(Point(0, 0),)), "point_2d"),
        (Truth(labels=("a",)), "commas"),
        (Truth(fields={"action": "click"}), '"action"'),
        (Truth(masks=(((0, 0), (1, 0), (1, 1)),)), "polygon"),
        (Truth(text=("a",)), "answer"),
    ],
)
def test_the_instruction_says_how_to_write_each_kind_of_answer(truth, word):
    assert word in prompting.instruct("answer_only", truth, "pixel")
