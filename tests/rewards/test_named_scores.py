"""Verifiers that ask a named model for a number: what it is shown, how that is mapped, what is a fault."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.chat_server import Server, chat_servers
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Frame, Media, Sample, Seen, Truth, Turn, Verdict
from vlmrl.schema.media import Video

RED, BLUE = (Image.new("RGB", (56, 84), colour) for colour in ("red", "blue"))
SHOWN = Frame(56, 84, resized_width=28, resized_height=42)
IMAGE = Media("image", data=b"-")
SAMPLE = Sample(
    "1", "s", (IMAGE, "And this?"), Truth(), system="Be brief.",
    history=(Turn("user", (IMAGE, "What is it?")), Turn("assistant", ("Red.",))),
)  # fmt: skip
SEEN = Seen((RED, BLUE), (SHOWN, SHOWN))


@pytest.fixture
def server() -> Iterator[Server]:
    with chat_servers() as start:
        yield start(lambda body: "0.5")


def build(name: str, server: Server, **options: Any) -> Any:
    model = {"name": "rm", "url": server.url, "model": "m", "attempts": 1, "timeout_s": 20}
    return plugins.build("verifier", name, {"model": model, **options})


def answered(text: str) -> Completion:
    return templates.completion(text, "none", Frame())


def colours(content: Any) -> list[Any]:
    """Parts of a message: its texts, and of its images size and colour."""
    found: list[Any] = []
    for part in content:
        if part["type"] == "text":
            found.append(part["text"])
        else:
            data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
            image = Image.open(io.BytesIO(data))
            found.append((image.size, image.getpixel((0, 0))))
    return found


# --------------------------------------------------------------------------------- reward_model


def test_a_reward_model_reads_the_conversation_with_the_candidate_as_its_last_turn(
    server: Server,
) -> None:
    build("reward_model", server)(answered("Blue."), SAMPLE, SEEN)
    (body,) = server.requests
    assert [message["role"] for message in body["messages"]] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    system, first, said, second, candidate = (m["content"] for m in body["messages"])
    assert system == "Be brief." and colours(said) == ["Red."] and colours(candidate) == ["Blue."]
    assert colours(first) == [((28, 42), (255, 0, 0)), "What is it?"]
    assert colours(second) == [((28, 42), (0, 0, 255)), "And this?"]
    build("reward_model", server, media=False)(answered("Blue."), SAMPLE, None)
    assert "image_url" not in json.dumps(server.requests[1])


@pytest.mark.parametrize(
    ("said", "options", "expected"),
    [
        ("0", {}, 0.5),
        ("2.5", {"center": 1.0, "scale": 0.5}, 1 / (1 + math.exp(-3.0))),
        ("-800", {}, 0.0),
        ("-2", {"mapping": "linear", "range": [-4, 4]}, 0.25),
        ("17", {"mapping": "linear", "range": [-4, 4]}, 1.0),
    ],
)
def test_its_number_is_mapped_to_a_score(
    server: Server, said: str, options: dict[str, Any], expected: float
) -> None:
    server.script = lambda body: said
    verdict = build("reward_model", server, **options)(answered("Blue."), SAMPLE, SEEN)
    assert verdict.score == pytest.approx(expected, abs=1e-12)
    assert verdict.parts == {"raw": float(said)}


@pytest.mark.parametrize("said", ["NaN", "1e999", "true", "[1]", "about 3", 503, b"<html>"])
def test_what_is_no_finite_number_is_a_fault(server: Server, said: Any) -> None:
    server.script = lambda body: said
    verdict = build("reward_model", server)(answered("Blue."), SAMPLE, SEEN)
    assert verdict.score is None and verdict.fault.startswith("rm ")


@pytest.mark.parametrize("name", ["reward_model", "similarity"])
def test_nothing_is_asked_where_there_is_nothing_to_score(name: str, server: Server) -> None:
    verifier = build(name, server)
    assert verifier(answered("  "), SAMPLE, SEEN).score == 0.0
    assert "media are not at hand" in str(verifier(answered("Blue."), SAMPLE, None).fault)
    assert not server.requests
    with pytest.raises(UserError, match="expected the name of one of the config's models"):
        plugins.build("verifier", name, {"model": "grader"})


# ----------------------------------------------------------------------------------- similarity


def tables(rows: list[list[float]]) -> str:
    return json.dumps({"cosine": rows, "logits": [[10 * c for c in row] for row in rows]})


@pytest.mark.parametrize(("cosine", "score"), [(0.1, 0.25), (0.9, 1.0), (-0.2, 0.0)])
def test_the_cosine_of_the_answer_and_the_image_is_the_score(
    server: Server, cosine: float, score: float
) -> None:
    server.script = lambda body: tables([[cosine]])
    verdict = build("similarity", server, phrase="a photo of {}")(answered("Blue."), SAMPLE, SEEN)
    assert verdict.score == pytest.approx(score) and verdict.parts == {"cosine": cosine}
    (message,) = server.requests[0]["messages"]
    assert colours(message["content"]) == [((28, 42), (0, 0, 255)), "a photo of Blue."]


def test_the_probability_is_that_of_the_label_that_the_answer_names(server: Server) -> None:
    server.script = lambda body: tables([[0.1, 0.3, 0.2]])
    options = {"by": "probability", "labels": ["Cat", "Dog", "Owl"], "phrase": "a {}"}
    verifier = build("similarity", server, **options)
    weights = [math.exp(1), math.exp(3), math.exp(2)]
    for number, text in enumerate(("cat", " Dog.", "OWL")):
        expected = weights[number] / sum(weights)
        assert verifier(answered(text), SAMPLE, SEEN).score == pytest.approx(expected)
    assert colours(server.requests[0]["messages"][0]["content"])[1:] == ["a Cat", "a Dog", "a Owl"]
    assert len(server.requests) == 1  # the same question each time
    for wrong in ("a cat", "cat or dog", "horse", "cat dog owl"):
        assert verifier(answered(wrong), SAMPLE, SEEN).score == 0.0
    assert len(server.requests) == 1


def test_of_a_video_the_mean_over_its_frames_counts(server: Server) -> None:
    server.script = lambda body: tables([[0.1], [0.3]])
    frames = np.zeros((2, 84, 56, 3), np.uint8)
    video = Video(frames, (0.0, 0.5), 1.0, (0, 1), 2, 2.0, (56, 84))
    sample = Sample("1", "s", (Media("video", data=b"-"), "What?"), Truth())
    verdict = build("similarity", server)(answered("Blue."), sample, Seen((video,), (SHOWN,)))
    assert verdict.score == pytest.approx(0.5)
    assert len(colours(server.requests[0]["messages"][0]["content"])) == 3


@pytest.mark.parametrize(
    "said", ["0.5", "{}", tables([[0.1, 0.2]]), tables([[math.nan]]), '{"cosine": 1, "logits": 1}']
)
def test_tables_of_another_shape_are_a_fault(server: Server, said: str) -> None:
    server.script = lambda body: said
    verdict: Verdict = build("similarity", server)(answered("Blue."), SAMPLE, SEEN)
    assert verdict.score is None and str(verdict.fault).startswith("rm invalid: expected")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"range": [0.4, 0.0]}, "range: expected"),
        ({"by": "probability"}, "labels: expected two or more"),
        ({"by": "probability", "labels": ["Cat", "cat "]}, "labels: expected two or more"),
        ({"labels": ["Cat", "Dog"]}, "with by: probability alone"),
        ({"phrase": "a photo"}, "phrase: expected"),
    ],
)
def test_options_that_make_no_sense_are_named(
    server: Server, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        build("similarity", server, **options)
