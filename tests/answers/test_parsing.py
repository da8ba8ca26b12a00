"""Every accepted spelling, what is refused, and hostile text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.answers import masks, parsing, templates
from vlmrl.schema import Box, Frame, Point, Span

FRAME = Frame(100, 100, duration=20.0)
BOX = (0.07, 0.14, 0.35, 0.49)


@pytest.mark.parametrize(
    "answer",
    [
        '{"bbox_2d": [7, 14, 35, 49]}',
        '{"bbox": [7, 14, 35, 49]}',
        '{"box": [7.0, 14.0, 35.0, 49.0], "label": "x"}',
        "[{'Position': [7, 14, 35, 49], 'Confidence': 1}]",
        '[{"bbox_2d": [7, 14, 35, 49]}]',
        "[7, 14, 35, 49]",
        "[[7, 14, 35, 49]]",
        "(7, 14, 35, 49)",
        "(7,14),(35,49)",
        "[(7,14),(35,49)]",
        "<|box_start|>(7,14),(35,49)<|box_end|>",
        "<|object_ref_start|>a dog<|object_ref_end|><|box_start|>(7,14),(35,49)<|box_end|>",
        "<ref>dog</ref><box>[[7, 14, 35, 49]]</box>",
        '```json\n[\n  {"bbox_2d": [7, 14, 35, 49], "label": "dog"}\n]\n```',
        "```\n[7, 14, 35, 49]\n```",
        "The box is [7, 14, 35, 49].",
        '[{"bbox_2d": [7, 14, 35, 49]}] which is the dog [sic]',
        "{'bbox_2d': [7, 14, 35, 49,],}",
        '{"bbox_2d": [35, 49, 7, 14]}',
    ],
)
def test_each_spelling_of_a_box_is_read(answer):
    found, _ = parsing.boxes(answer, FRAME)
    assert [b.xyxy for b in found] == [pytest.approx(BOX)]


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ('{"bbox_2d": [1, 2, 3, 4], "label": "dog\'s bowl"}', "dog's bowl"),
        ("{'bbox_2d': [1, 2, 3, 4], 'label': \"dog's bowl\"}", "dog's bowl"),
        ("{'bbox_2d': [1, 2, 3, 4], 'label': 'dog\\'s bowl'}", "dog's bowl"),
        ("{'label': 'dog's bowl', 'bbox_2d': [1, 2, 3, 4]}", "dog's bowl"),
        ("{'label': 'a, b', 'bbox_2d': [1, 2, 3, 4]}", "a, b"),
        (
            "<|object_ref_start|>a dog<|object_ref_end|><|box_start|>(1,2),(3,4)<|box_end|>",
            "a dog",
        ),
    ],
)
def test_labels_are_read_apostrophes_and_all(answer, label):
    (box,), _ = parsing.boxes(answer, FRAME)
    assert box.label == label


@pytest.mark.parametrize(
    ("stated", "score"), [("0.5", 0.5), ("1", 1.0), ("1.5", None), ("true", None), ('"0.5"', None)]
)
def test_a_confidence_is_a_number_in_the_unit_range(stated, score):
    (box,), _ = parsing.boxes(f'{{"bbox_2d": [1, 2, 3, 4], "confidence": {stated}}}', FRAME)
    assert box.score == score


@pytest.mark.parametrize(
    "answer",
    [
        "[true, 1, 2, 3]",
        "[NaN, 1, 2, 3]",
        "[Infinity, 1, 2, 3]",
        "[1e999, 1, 2, 3]",
        f"[{'9' * 400}, 1, 2, 3]",
        '["1", "2", "3", "4"]',
        "[1, 2, 3]",
        "[1, 2, 3, 4, 5]",
        "[1, 2, 3, 4",
        "[null, 1, 2, 3]",
        "[٣, ٤, ٥, ٦]",
        '{"bbox_2d": [[1, 2, 3, 4]]}',
        "__import__('os').system('true')",
        "nothing here",
        "",
    ],
)
def test_what_is_no_box_is_no_prediction_with_a_reason(answer):
    assert parsing.boxes(answer, FRAME) == ([], "no box found in the answer")


def test_boxes_outside_or_without_area_are_dropped_and_counted():
    found, note = parsing.boxes("[[5, 5, 5, 9], [200, 200, 300, 300], [1, 1, 9, 9]]", FRAME)
    assert len(found) == 1
    assert note == "2 of 3 outside the media or without extent"


def test_the_space_is_the_frames_and_not_guessed():
    in_thousands = parsing.boxes("[100, 200, 500, 700]", Frame(640, 480, "norm1000"))[0]
    assert in_thousands == [Box(0.1, 0.2, 0.5, 0.7)]
    resized = Frame(640, 480, "resized", 200, 1000)
    assert parsing.boxes("[100, 200, 150, 700]", resized)[0] == [Box(0.5, 0.2, 0.75, 0.7)]


@pytest.mark.parametrize(
    "answer",
    [
        '{"point_2d": [5, 6]}',
        "{'point': (5, 6)}",
        '{"x": 5, "y": 6}',
        "[5, 6]",
        "(5, 6)",
        "pyautogui.click(x=5, y=6)",
        "[[5, 6]]",
        '{"bbox_2d": [4, 4, 6, 8]}',
    ],
)
def test_each_spelling_of_a_point_is_read(answer):
    found, _ = parsing.points(answer, FRAME)
    assert [(p.x, p.y) for p in found] == [pytest.approx((0.05, 0.06))]


def test_several_points_are_read_and_one_outside_is_dropped():
    assert parsing.points("[[5, 6], [7, 8]]", FRAME)[0] == [Point(0.05, 0.06), Point(0.07, 0.08)]
    assert parsing.points("(5, 600)", FRAME)[0] == []


@pytest.mark.parametrize(
    "answer",
    [
        "5 to 10",
        "From 5 seconds to 10 seconds.",
        "5s - 10s",
        "5.0s–10.0s",
        "00:05–00:10",
        "0:00:05 to 0:00:10",
        "5 and 10",
        "[5, 10]",
        "[[5.0, 10.0]]",
        "(5, 10)",
        '{"start": 5, "end": 10}',
        '["00:05", "00:10"]',
    ],
)
def test_each_spelling_of_a_span_is_read(answer):
    assert parsing.spans(answer, FRAME)[0] == [Span(5.0, 10.0)]


@pytest.mark.parametrize(
    "answer",
    [
        *("10 to 5", "-5 to 10", "5", "25 to 30", "nan to 3", "٥ to 10"),
        *("5 to 10 to 12", "1 to 2, 5s - 10 s until 00:12"),
    ],
)
def test_what_is_no_span_is_no_prediction(answer):
    assert parsing.spans(answer, FRAME)[0] == []


def test_several_spans_are_read_in_order_and_clipped():
    assert parsing.spans("1 to 2, 15 to 30", FRAME)[0] == [Span(1, 2), Span(15, 20)]


def test_lists_of_spans_are_no_chains():
    answer = "from 1 to 2 and 5 to 10 - 12s until 13"
    assert parsing.spans(answer, FRAME)[0] == []
    assert parsing.spans("from 1 to 2 and 5s to 10; 12s-13", FRAME)[0] == [
        Span(1, 2),
        Span(5, 10),
        Span(12, 13),
    ]


def test_an_event_keeps_its_label():
    answer = '[{"start": "00:01", "end": 2, "label": "dog"}, {"start": 3, "end": 4, "label": 7}]'
    assert parsing.spans(answer, FRAME)[0] == [Span(1, 2, "dog"), Span(3, 4)]


def test_a_track_keeps_its_times_and_the_place_of_a_bad_box():
    text = '[{"time": 0.5, "bbox_2d": [7, 14, 35, 49]}, [7, 14, 35, 49], [5, 5, 5, 5]]'
    found, _ = parsing.track(text, FRAME)
    assert [time for time, _ in found] == [0.5, None, None]
    assert found[2][1] is None and found[0][1] == found[1][1]


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("3", 3),
        ("3.", 3),
        ("three", 3),
        ("There are 3 cells.", 3),
        ("3 (three)", 3),
        ("twenty-one", 21),
        ("two hundred and five", 205),
        ("six thousand", 6000),
        ("1,200", 1200),
        ("-1,200.5", -1200.5),
        ("−5", -5),
        ("12%", 12),
        ("$5", 5),
        ("5cm", 5),
        (".5", 0.5),
        ("1e3", 1000),
    ],
)
def test_each_spelling_of_a_number_is_read(answer, number):
    assert parsing.number(answer) == (number, "")


@pytest.mark.parametrize(
    "answer",
    ["", "none", "1 2 3", "1, 2", "1,2", "10-12", "one or two", "2nd", "B12", "1/2", "٣", "３",
     "1e999", "nan", "inf", "True", "9" * 400, "1,20"],
)  # fmt: skip
def test_what_is_not_one_number_is_none(answer):
    value, note = parsing.number(answer)
    assert value is None and note


def test_a_percent_sign_divides_only_on_demand():
    assert parsing.number("12 %", percent=True) == (0.12, "")


@given(st.integers(0, 999_999))
def test_numbers_written_in_words_are_read(value):
    assert parsing.number(spelled(value)) == (value, "")


def spelled(value):
    """An independent speller of whole numbers below a million."""
    units = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    units = [*units.split(), "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
    tens = "twenty thirty forty fifty sixty seventy eighty ninety".split()
    if value < 20:
        return units[value]
    if value < 100:
        return tens[value // 10 - 2] + (f"-{units[value % 10]}" if value % 10 else "")
    size, name = (100, "hundred") if value < 1000 else (1000, "thousand")
    rest = f" and {spelled(value % size)}" if value % size else ""
    return f"{spelled(value // size)} {name}{rest}"


OPTIONS = ("student", "bird", "walk", "A dog")


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        ("The answer is B.", "B"),
        ("I think B", "B"),
        ("B. bird", "B"),
        ("(B) bird", "B"),
        ("Bird", "B"),
        ("A dog", "D"),
        ("D. A dog", "D"),
        ("A", "A"),
    ],
)
def test_each_spelling_of_a_choice_is_read(answer, letter):
    assert parsing.read_choice(answer, OPTIONS) == (letter, "")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "A, B, C, D",
        "A or B",
        "B. walk",
        "E",
        "Because",
        "birds",
        "N/A",
        "B B-side C",
        "B. bird student",
        "B, a dog, bird",
        "A dog B",
        "B, not the bird house: walk",
    ],
)
def test_what_picks_no_option_or_several_is_none(answer):
    picked, note = parsing.read_choice(answer, OPTIONS)
    assert picked is None and note


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("Yes.", True),
        ("no", False),
        ("NO, it is not", False),
        ("yes and no", None),
        ("eyes", None),
        ("not yes", None),
        ("It isn't yes", None),
        ("I would never say no", None),
        ("yes is wrong", None),
        ("There is no doubt", None),
        ("The right answer is no", False),
        ("No doubt: yes", True),
        ("Yes, it is not closed", True),
    ],
)
def test_yes_and_no_are_words(answer, says):
    assert parsing.read_yes_no(answer)[0] is says


@pytest.mark.parametrize(
    "answer",
    ["Edema, effusion; edema", '["Edema", "Effusion"]', "edema\neffusion", "Edema|Effusion."],
)
def test_lists_of_names_are_read(answer):
    assert parsing.read_names(answer)[0] == ["edema", "effusion"]


def test_one_json_object_is_read_and_two_are_not():
    assert parsing.fields("so {'a': None, 'b': (1, 2)}")[0] == {"a": None, "b": [1, 2]}
    assert parsing.fields('{"a": 1} {"a": 2}') == (None, "2 JSON objects")


@pytest.mark.parametrize(
    "answer", ["[]", "none", "None.", "No objects", "```json\n[]\n```", "null"]
)
def test_an_explicit_nothing_is_known(answer):
    assert parsing.says_nothing(answer)


@pytest.mark.parametrize("answer", ["", "nothing much", "no", "none " * 100, "[[]]", "[1]"])
def test_anything_else_is_not_nothing(answer):
    assert not parsing.says_nothing(answer)


def test_polygons_are_read_clipped_and_counted():
    found, _ = masks.polygons('{"polygon": [[0, 0], [150, 0], [50, 50]]}', FRAME)
    assert found == [((0.0, 0.0), (1.0, 0.0), (0.5, 0.5))]
    flat, _ = masks.polygons('{"segmentation": [0, 0, 50, 0, 50, 50]}', FRAME)
    assert flat == [((0.0, 0.0), (0.5, 0.0), (0.5, 0.5))]
    boxes, _ = masks.polygons("[[0, 0, 50, 50]]", FRAME)
    assert boxes == [((0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (0.0, 0.5))]
    assert masks.polygons("[[1, 2], [3, 4]]", Frame(9, 9))[0] != []  # two corners make a box


# ------------------------------------------------------------------------------- hostile text

HOSTILE = {
    "a megabyte of new lines": "\n" * 10**6,
    "a megabyte of digits": "7" * 10**6,
    "a megabyte of brackets": "[" * 10**6,
    "100,000 boxes": "[" + ",".join(['{"bbox_2d": [1, 2, 3, 4]}'] * 100_000) + "]",
    "3,000 tuples": "[" + ",".join(["(1,2,3,4)"] * 3_000) + "]",
    "10,000 nested brackets": "[" * 10_000 + "]" * 10_000,
    "10,000 nested objects": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "a 400-digit integer": "9" * 400,
    "unclosed quotes": "['a " * 8_000,
    "escapes": "['" + "\\" * 30_000,
    "letters": "A " * 16_000,
    "dashes": "5 to " * 6_000,
    "words": "one " * 8_000,
    "tags": "<think>" * 50_000 + "</think>" * 50_000 + "<answer>" * 50_000,
    "braces": "\\boxed{" * 100_000,
}
READERS = {
    "boxes": lambda answer: parsing.boxes(answer, FRAME),
    "points": lambda answer: parsing.points(answer, FRAME),
    "spans": lambda answer: parsing.spans(answer, FRAME),
    "track": lambda answer: parsing.track(answer, FRAME),
    "polygons": lambda answer: masks.polygons(answer, FRAME),
    "number": parsing.number,
    "choice": parsing.read_choice,
    "yes_no": parsing.read_yes_no,
    "names": parsing.read_names,
    "fields": parsing.fields,
    "says_nothing": parsing.says_nothing,
    "split": lambda answer: [templates.split(answer, name) for name in ("think_answer", "boxed")],
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_with_a_short_reason_or_read_within_limits(reader, name):
    # Quadratic work on these would take minutes; performance/verifiers.py has the times.
    answer = HOSTILE[name]
    if len(answer) > parsing.MAX_CHARS and reader not in ("split", "yes_no", "says_nothing"):
        assert not READERS[reader](answer)[0]
        assert READERS[reader](answer)[1] == f"answer longer than {parsing.MAX_CHARS} characters"
    else:
        assert len(repr(READERS[reader](answer))) < 3 * len(answer) + 10_000


@given(st.text(alphabet="[](){}'\"\\,:1.e- aN", max_size=60))
def test_the_literal_reader_never_fails(text):
    assert all(isinstance(value, list | dict) for value in parsing.values(text))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text(alphabet="abc' ", max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab", min_size=1), inner),
    max_leaves=10,
)


@given(st.lists(json_values, max_size=4))
def test_the_literal_reader_reads_what_python_writes(value):
    assert parsing.values(repr(value)) == [value]


def test_structure_is_limited_in_depth_and_length():
    assert parsing.values("(" * 20 + "1," + "),(" * 20) == []
    with pytest.raises(ValueError, match="longer than"):
        parsing.values("[" * 40_000)
