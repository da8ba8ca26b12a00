"""Choice questions that a model without media answers from a description: asked, paid, masked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from helpers.chat_server import Server, Start, chat_servers
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.schema import Frame, Sample, Truth, Verdict

QUESTIONS = [
    {"question": "What colour is it?", "options": ["red", "blue", "green"], "answer": "B"},
    {"question": "What is it?", "options": ["a cat", "a dog"], "answer": "a dog"},
    {"question": "How many are there?", "options": ["one", "two"], "answer": "A"},
]
RIGHT = {"What colour is it?": "blue", "What is it?": "a dog", "How many are there?": "one"}
SAMPLE = Sample("1", "s", ("Describe it.",), Truth(fields={"questions": QUESTIONS}))


@pytest.fixture
def serve() -> Iterator[Start]:
    with chat_servers() as start:
        yield start


def quiz(server: Server, caption: str, sample: Sample = SAMPLE, **options: Any) -> Verdict:
    model = {"name": "reader", "url": server.url, "model": "m", "attempts": 1, "timeout_s": 10}
    verifier = plugins.build("verifier", "caption_quiz", {"model": model, **options})
    verdict = verifier(templates.completion(caption, "none", Frame()), sample)
    assert isinstance(verdict, Verdict)
    return verdict


def asked_of(body: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(body["messages"][1]["content"])
    return data


def reader(body: dict[str, Any]) -> str:
    """Pick the one option that stands in the description, else the last, as an honest reader does."""
    data = asked_of(body)
    known = [letter for letter, option in data["options"].items() if option in data["description"]]
    return json.dumps({"answer": known[0] if known else max(data["options"])})


@pytest.mark.parametrize(
    "caption",
    [
        "A photo.",
        "It is blue.",
        "a dog that is blue",
        "one a dog, blue",
        "red a cat",
        "blue a cat one",
    ],
)
def test_the_score_is_the_share_of_questions_whose_right_option_the_description_has(
    serve: Start, caption: str
) -> None:
    server = serve(reader)
    known = [
        next((o for o in item["options"] if o in caption), None) == RIGHT[str(item["question"])]
        for item in QUESTIONS
    ]
    assert quiz(server, caption).score == pytest.approx(sum(known) / 3)
    assert quiz(server, caption, tries=4).score == pytest.approx(sum(known) / 3)


def test_the_reader_sees_description_question_and_shuffled_options_alone(serve: Start) -> None:
    seen: list[dict[str, Any]] = []

    def record(body: dict[str, Any]) -> str:
        seen.append(body)
        return reader(body)

    server = serve(record)
    quiz(server, "It is blue.", tries=30)
    assert (
        len({json.dumps(body["messages"]) for body in seen}) == 6 + 2 + 2
    )  # every order, asked once
    for body in seen:
        data = asked_of(body)
        assert set(data) == {"description", "question", "options"}
        assert data["options"][max(data["options"])].startswith("It cannot be answered")
        assert "answer is" not in body["messages"][0]["content"]


def test_count_draws_questions_by_row_and_description_alone(serve: Start) -> None:
    server = serve(reader)
    captions = [f"It is blue, number {n}." for n in range(20)]
    first, again = (
        [quiz(server, caption, count=1).score for caption in captions] for _ in range(2)
    )
    assert first == again and set(first) == {0.0, 1.0}


@pytest.mark.parametrize(
    "reply", ['{"answer": "A or B"}', '{"letter": "A"}', "A", '{"answer": "Z"}']
)
def test_a_reply_of_another_form_masks_and_no_description_is_0_without_asking(
    serve: Start, reply: str
) -> None:
    verdict = quiz(serve(lambda body: reply), "It is blue.")
    assert verdict.score is None and "invalid" in str(verdict.fault)
    silent = quiz(serve(lambda body: pytest.fail("asked")), "")
    assert silent.score == 0.0 and silent.fault is None


BAD = (
    None,
    [],
    "x",
    [{"question": "q", "options": ["a"], "answer": "A"}],
    [{**QUESTIONS[0], "answer": "D"}],
    [{**QUESTIONS[0], "options": ["a", "b", 3]}],
)


@pytest.mark.parametrize("questions", BAD)
def test_a_row_without_questions_is_named(serve: Start, questions: object) -> None:
    bad = replace(SAMPLE, truth=Truth(fields={"questions": questions}))
    with pytest.raises(ValueError, match=r"sample '1': fields\.questions"):
        quiz(serve(reader), "It is blue.", bad)
