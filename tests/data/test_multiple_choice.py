"""Which rows of the card `records` are multiple choice, in our layout and in published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vlmrl.config import SourceConfig
from vlmrl.data import multiple_choice
from vlmrl.data.source import open_source
from vlmrl.errors import UserError
from vlmrl.plugins import build
from vlmrl.schema import Demo, Frame, Sample, Span, Truth
from vlmrl.scoring.verifier import judge
from vlmrl.truths.prompting import write_demo

ASL = "Which word is signed? (A) hungry (B) student (C) book Answer with the letter."
ROW = {"id": "r1", "task": "qa", "videos": ["a.mp4"], "question": ASL, "answer": "C"}
WORDS = ("hungry", "student", "book")
CHOICE = Truth(choice="C", options=WORDS, text=("C", "book"))

VIDEO_R1 = {
    "problem_id": 2,
    "problem": "What appears on the screen?",
    "data_type": "video",
    "problem_type": "multiple choice",
    "options": ["A. A notification", "B. A command", "C. A warning", "D. A weather update"],
    "solution": "<answer>A</answer>",
    "path": "./clips/2.mp4",
    "data_source": "LLaVA-Video-178K",
}
R1_AQA = {
    "id": 7,
    "video_name": "-HG3Omg_89c_000030",
    "video_id": 341,
    "question_text": "What happened in the video?",
    "multi_choice": ["motorboat", "yacht consignment", "sailboat set sail", "consignment car"],
    "answer": 1,
    "question_relation": "View",
    "question_type": "Happening",
    "dataset_name": "AVQA",
    "audio_path": "wavs/7.wav",
}
VIDEOCHAT = {
    "id": 3,
    "video": "1150/2834146886.mp4",
    "question": "why did the boy clap his hands",
    "options": "(A) he is happy (B) to the music (C) to call the dog",
    "duration": 33.0,
    "glue": [[1.5, 6], [8, 9.5]],
    "type": "CW",
    "answer": "(B)",
}


def sample(folder: Path, row: dict[str, Any]) -> Sample:
    (folder / "train.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    return open_source(SourceConfig(card="records", options={"path": str(folder)})).sample(0)


# ------------------------------------------------------------------------------ our own layout


@pytest.mark.parametrize(
    "question",
    [
        ASL,
        "Which? (A) hungry (B) student (C) book Answer with the option's letter.",
        "Which?\nA. hungry\nB. student\nC. book\nPlease answer with only the letter",
        "Which? (A) hungry; (B) student; (C) book; Answer with the letter of the right option.",
    ],
)
def test_a_question_that_lists_options_and_asks_for_a_letter_is_a_choice(tmp_path, question):
    made = sample(tmp_path, ROW | {"question": question})
    assert made.truth == CHOICE
    assert made.text == question
    assert made.demo is not None and write_demo(made.demo, Frame()) == "C"


@pytest.mark.parametrize(
    "question",
    [
        "Which word is signed? (A) hungry (B) student (C) book",  # nobody asks for a letter
        "Which letter does she show? Answer with the letter.",  # nothing is listed
        "Is it (A) or not? Answer with the letter.",  # one is no choice
        "Is it (B) a cat (C) a dog? Answer with the letter.",  # A is missing
        "See (A) and (A) and (B) here. Answer with the letter.",  # one stands twice
        "Answer with the letter. Or write (A) a line (B) a word (C) a book",
    ],
)
def test_letters_that_are_no_list_make_no_choice(tmp_path, question):
    assert sample(tmp_path, ROW | {"question": question}).truth == Truth(text=("C",))


@pytest.mark.parametrize("key", ["options", "choices"])
@pytest.mark.parametrize(
    "listed", [[*WORDS], ["A. hungry", "B. student", "C. book"], "(A) hungry (B) student (C) book"]
)
@pytest.mark.parametrize("answer", ["C", "(C)", "C.", "c", "book", "Book", "C. book", "(C) book"])
def test_options_under_a_key_of_their_own_make_a_choice_and_are_shown(
    tmp_path, key, listed, answer
):
    row = ROW | {"question": "Which word is signed?", "answer": answer, key: listed}
    made = sample(tmp_path, row)
    assert made.truth == CHOICE
    assert made.text == "Which word is signed?\nA. hungry\nB. student\nC. book"


def test_options_that_the_question_lists_are_not_shown_twice(tmp_path):
    made = sample(tmp_path, ROW | {"options": [*WORDS]})
    assert (made.text, made.truth) == (ASL, CHOICE)


def test_empty_options_and_another_problem_type_make_no_choice(tmp_path):
    row = ROW | {"question": "Which word?", "answer": "book"}
    for more in ({"options": []}, {"options": None}, {"options": [*WORDS], "problem_type": "OCR"}):
        made = sample(tmp_path, row | more)
        assert (made.truth, made.text) == (Truth(text=("book",)), "Which word?")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "D"}, "key 'answer': 'D' is none of the options hungry, student, book"),
        ({"options": [*WORDS], "answer": "cat"}, "'cat' is none of the options"),
        ({"options": [*WORDS], "answer": "A. book"}, "may be each of the options A and C"),
        ({"options": ["B", "A"], "answer": "A"}, "options that are other options' letters: B, A"),
        ({"options": ["+1", "1.", "2"], "answer": "1"}, "may be each of the options A and B"),
        ({"options": ["only"]}, "key 'options': expected 2 to 10 options"),
        ({"choices": "cat or dog"}, "key 'choices': expected 2 to 10 options"),
        ({"options": {"A": "cat"}}, "key 'options': expected a list of texts"),
        ({"options": ["cat", " "]}, "key 'options': an option is empty"),
    ],
)
def test_options_that_say_nothing_clear_are_refused_by_file_and_key(tmp_path, change, message):
    with pytest.raises(UserError, match=rf"train\.jsonl:1: .*{message}"):
        sample(tmp_path, ROW | change)


def test_options_are_read_with_letters_only_where_all_have_them_in_order():
    assert multiple_choice.options_of(["A. cat", "dog"]) == ("A. cat", "dog")
    assert multiple_choice.options_of(["B. cat", "A. dog"]) == ("B. cat", "A. dog")


def test_options_that_differ_in_a_sign_only_are_told_apart(tmp_path):
    made = sample(tmp_path, ROW | {"options": ["A. -1", "B. 1"], "answer": "-1"})
    answers = ("-1", "A", "A. -1", "1", "B. 1")
    assert made.truth.choice == "A"
    assert [judge(build("verifier", "choice"), a, made.truth).score for a in answers] == [
        1,
        1,
        1,
        0,
        0,
    ]


def test_the_verifiers_agree_with_what_was_read(tmp_path):
    truth = sample(tmp_path, ROW).truth
    answers = ("C", "(C) book", "book", "A", "hungry", "A or C")
    assert [judge(build("verifier", "choice"), a, truth).score for a in answers] == [
        1,
        1,
        1,
        0,
        0,
        0,
    ]
    assert [judge(build("verifier", "exact"), a, truth).score for a in answers[:3]] == [1, 0, 1]


# ---------------------------------------------------------------------------- published layouts


def test_rows_of_video_r1(tmp_path):
    made = sample(tmp_path, VIDEO_R1)
    assert made.id == "2"
    (video,) = made.media
    assert video.kind == "video" and video.path is not None and video.path.endswith("clips/2.mp4")
    assert (made.truth.choice, made.truth.options) == (
        "A",
        ("A notification", "A command", "A warning", "A weather update"),
    )
    assert made.text == "What appears on the screen?\n" + "\n".join(VIDEO_R1["options"])
    assert made.meta["problem_type"] == "multiple choice"


@pytest.mark.parametrize(
    ("kind", "solution", "truth"),
    [
        ("numerical", "1,204", Truth(text=("1,204",), number=1204)),
        ("regression", "3.6", Truth(text=("3.6",), number=3.6)),
        ("OCR", "C", Truth(text=("C",))),
        ("free-form", "A red car.", Truth(text=("A red car.",))),
    ],
)
def test_other_problems_of_video_r1_are_no_choice(tmp_path, kind, solution, truth):
    row = VIDEO_R1 | {"problem_type": kind, "options": [], "data_type": "image", "path": "./a.png"}
    made = sample(tmp_path, row | {"solution": f"<answer>{solution}</answer>"})
    assert made.truth == truth
    assert made.media[0].kind == "image"


def test_rows_of_r1_aqa(tmp_path):
    made = sample(tmp_path, R1_AQA)
    assert (made.id, made.media[0].kind) == ("7", "audio")
    assert made.truth.choice == "B" and made.truth.options == tuple(R1_AQA["multi_choice"])
    assert made.text.splitlines()[:3] == [
        "What happened in the video?",
        "A. motorboat",
        "B. yacht consignment",
    ]


def test_grounded_questions_of_videochat_r1(tmp_path):
    made = sample(tmp_path, VIDEOCHAT)
    assert made.media[0].kind == "video"
    assert made.truth.choice == "B"
    assert made.truth.options == ("he is happy", "to the music", "to call the dog")
    assert made.truth.spans == (Span(1.5, 6), Span(8, 9.5))
    assert made.template == "think_answer_glue"
    assert made.demo == Demo(text="B", evidence=made.truth.spans)
    assert made.text.endswith("hands\nA. he is happy\nB. to the music\nC. to call the dog")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (VIDEO_R1 | {"data_type": "audio"}, "key 'data_type': expected image or video"),
        (VIDEO_R1 | {"solution": "A"}, "key 'solution': expected <answer>...</answer>"),
        (VIDEO_R1 | {"solution": "<answer>E</answer>"}, "'E' is none of the options"),
        (R1_AQA | {"answer": 4}, "key 'answer': expected the place of one of 4 options, got 4"),
        (
            R1_AQA | {"answer": True},
            "key 'answer': expected the place of one of 4 options, got True",
        ),
        (R1_AQA | {"multi_choice": "a, b"}, "key 'multi_choice': expected a list"),
        (VIDEOCHAT | {"glue": [[6, 1]]}, "truth.spans"),
        (VIDEOCHAT | {"answer": "(D)"}, r"'\(D\)' is none of the options"),
    ],
)
def test_a_bad_row_of_a_published_layout_is_named(tmp_path, row, message):
    with pytest.raises(UserError, match=rf"train\.jsonl:1: .*{message}"):
        sample(tmp_path, row)
