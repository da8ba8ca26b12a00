"""Answers that hold the right value and do not claim it are paid nothing; those that claim it are."""

import json
from pathlib import Path
from typing import Any

import pytest

from vlmrl import plugins
from vlmrl.answers import parsing
from vlmrl.schema import Frame, Truth
from vlmrl.scoring.verifier import judge

FRAME = Frame(100, 100, duration=100.0)
GROUPS = json.loads((Path(__file__).parent / "unearned.json").read_text(encoding="utf-8"))
"""Denials, hedges, units, scripts, unfinished sums and second lists, by the truth whose value they hold."""
ASKED = [
    (name, options, group["truth"], group["answers"])
    for group in GROUPS
    for name, options in group["verifiers"]
]


def truth_of(stated: dict[str, Any]) -> Truth:
    return Truth(**{k: tuple(v) if isinstance(v, list) else v for k, v in stated.items()})


def test_there_are_over_three_hundred_answers_of_every_class() -> None:
    assert len({answer for group in GROUPS for answer in group["answers"]}) > 400


@pytest.mark.parametrize(("name", "options", "stated", "answers"), ASKED)
def test_an_answer_that_does_not_claim_the_right_value_is_paid_nothing(
    name: str, options: dict[str, Any], stated: dict[str, Any], answers: list[str]
) -> None:
    if name == "math":
        pytest.importorskip("math_verify")
    verifier, truth = plugins.build("verifier", name, options), truth_of(stated)
    verdicts = {answer: judge(verifier, answer, truth, "none", FRAME) for answer in answers}
    assert {answer: v for answer, v in verdicts.items() if v.score != 0} == {}


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "7",
            "7.",
            "7!",
            "There are 7 cells.",
            "about 7 m",
            "7 (seven)",
            "7 m²",
            "7cm",
            "$7",
            "$7$",
        ),
        *(
            "\\boxed{7}",
            "**7**",
            "<b>7</b>",
            "共7个",
            "一共有7个",
            "答案是7",
            "Answer: 7",
            "7 km/h",
            "= 7",
        ),
        *("x = 7", "~7", "≈7", "The 2nd bar shows 7", "How many? 7", "7%", "7 percent", "It's 7"),
        *(
            "7, as the other is not visible",
            "total: 7",
            "No. 7",
            "7 °C",
            "+7",
            "Total – 7",
            "seven",
        ),
        *(
            "7 different colours",
            "7种不同的颜色",
            "7, because it is not a cell",
            "7 minutes and a bit",
        ),
    ],
)
def test_a_number_that_is_claimed_is_read(answer: str) -> None:
    assert parsing.number(answer) == (7, "")


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "B",
            "b",
            "(B)",
            "B.",
            "The answer is B.",
            "I think B",
            "B. bird",
            "(B) bird",
            "**B**",
            "[B]",
        ),
        *(
            "\\boxed{B}",
            "Answer: B",
            "答案是B",
            "答案：B。",
            "B: bird",
            "B) bird",
            "Option B",
            "It's B",
        ),
        *(
            "B because the beak is visible",
            "B. The animal is not a fish",
            "So B",
            "It is B: the bird",
        ),
        *(
            "Figure B",
            "Image B shows it",
            "Caption B",
            "B is correct",
            "B - bird",
            "final answer: **B**",
        ),
        *(
            "<b>B</b>",
            "The animal is a bird, so the answer is B.",
            "The bird (B)",
            "B\nbecause it flies",
        ),
        *(
            "B the bird",
            "Answer B",
            "I'd go with B",
            "Choice B",
            "`B`",
            "$\\text{B}$",
            '{"answer": "B"}',
        ),
        *("B, as it has wings or a beak", "The B", "Definitely B", "Surely B.", "B definitely"),
    ],
)
def test_a_letter_that_is_claimed_is_read(answer: str) -> None:
    for options in (("cat", "bird", "cow", "dog"), None):
        assert parsing.read_choice(answer, options) == ("B", "")


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("2+\\sqrt{3}", "2+\\sqrt3"),
        ("\\frac{1+\\sqrt{5}}{2}", "(1+\\sqrt{5})/2"),
        ("x^2+2x+1", "(x+1)^2"),
        ("2\\cdot\\sqrt{3}", "\\sqrt{12}"),
        ("2^{10}", "2^{10}"),
        ("14/2", "7/1"),
        ("\\frac{6}{4}", "1.5"),
        ("10^4", "10000"),
        ("So the area is 7 cm^2", "7"),
        ("1.5 million dollars", "1.5 million dollars"),
        ("x < 3", "x<3"),
        ("70 degrees", "70"),
        ("-(x-1)", "1-x"),
    ],
)
def test_an_expression_as_far_computed_as_the_truth_is_right(answer: str, truth: str) -> None:
    pytest.importorskip("math_verify")
    assert judge(plugins.build("verifier", "math"), answer, Truth(text=(truth,))).score == 1


def test_what_denies_or_doubts_an_option_may_be_its_text() -> None:
    options = ("not a dog", "maybe", "Why?", "a dog")
    answers = (
        "not a dog",
        "maybe",
        "Why?",
        "A. not a dog",
        "(A) not a dog",
        "The answer is A: not a dog",
    )
    read = [parsing.read_choice(answer, options)[0] for answer in answers]
    assert read == ["A", "B", "C", "A", "A", "A"]


@pytest.mark.parametrize(
    "loop",
    [
        *(
            "thecatisonthemat" * 40,
            "the-cat-is-on-the-mat-" * 30,
            "猫在垫子上" * 60,
            "แมวอยู่บนเสื่อ" * 30,
        ),
        *("<b>cat</b>" * 60, "cat," * 200),
    ],
)
def test_a_loop_without_spaces_repeats_itself(loop: str) -> None:
    verdict = judge(plugins.build("verifier", "repetition"), loop, Truth())
    assert verdict.score is not None and verdict.score < 0.2


@pytest.mark.parametrize(
    "text",
    [
        "一只猫坐在红色的垫子上，旁边有一只狗在睡觉。",
        "https://example.org/a/long/path/with_many_parts/and/a/file.html",
        "<think>so</think><answer>["
        + ",".join(f'{{"bbox_2d":[{i},{i + 1},9,9]}}' for i in range(9))
        + "]</answer>",
    ],
)
def test_what_has_few_spaces_and_no_loop_does_not_repeat_itself(text: str) -> None:
    assert judge(plugins.build("verifier", "repetition"), text, Truth()).score == 1
