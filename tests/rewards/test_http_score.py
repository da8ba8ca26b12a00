"""The verifier that asks any server: what it posts, which number it reads, and what is a fault."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from helpers.chat_server import Start
from helpers.score_server import score_servers
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Frame, Media, Sample, Seen, Truth, Verdict
from vlmrl.scoring.scorer import Scorer

SAMPLE = Sample(
    "1", "s", ("Translate: Guten Tag.",), Truth(text=("Good day.", "Hello.")), meta={"lang": "de"}
)


@pytest.fixture
def serve() -> Iterator[Start]:
    with score_servers() as start:
        yield start


def completion(text: str) -> Completion:
    return templates.completion(text, "none", Frame(10, 10))


def score(server: Any, text: str = "Good day.", sample: Sample = SAMPLE, **options: Any) -> Verdict:
    given = {"url": server.url, "attempts": 1, "seconds": 10.0, **options}
    verdict = plugins.build("verifier", "http_score", given)(completion(text), sample)
    assert isinstance(verdict, Verdict)
    return verdict


def test_prompt_completion_truth_and_columns_are_posted(serve: Start) -> None:
    server = serve(lambda body: {"score": 0.25})
    verdict = score(server, tells=["lang"])
    assert verdict.score == 0.25 and verdict.parts == {"raw": 0.25}
    assert server.requests == [
        {
            "prompt": "Translate: Guten Tag.",
            "completion": "Good day.",
            "truth": {"text": ["Good day.", "Hello."]},
            "row": {"lang": "de"},
        }
    ]
    score(server, text="Other.", truth=False)
    assert "truth" not in server.requests[1]


def test_media_are_posted_as_the_policy_saw_them(serve: Start) -> None:
    server = serve(lambda body: {"score": 1})
    verifier = plugins.build("verifier", "http_score", {"url": server.url, "media": True})
    sample = Sample("1", "s", (Media("image", data=b"-"), "What?"), Truth(text=("red",)))
    assert "not at hand" in verifier(completion("red"), sample).fault
    seen = Seen((Image.new("RGB", (8, 8), "red"),), (Frame(8, 8),))
    assert verifier(completion("red"), sample, seen).score == 1.0
    (body,) = server.requests
    image = next(p for p in body["media"] if p["type"] == "image_url")["image_url"]["url"]
    assert base64.b64decode(image.partition(",")[2]).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("body", "reply", "key"),
    [
        (
            {"model": "bge", "text_1": "{truth}", "text_2": "{completion}"},
            {"data": [{"index": 0, "score": 0.5}]},
            "data.0.score",
        ),
        (
            {"inputs": {"source_sentence": "{truth}", "sentences": ["{completion}"]}},
            [0.5],
            "0",
        ),
        ({"src": "{prompt}", "mt": "{completion}", "to": "{lang}"}, {"scores": [0.5]}, "scores.0"),
    ],
)
def test_a_server_with_keys_of_its_own_is_asked_by_them(
    serve: Start, body: dict[str, Any], reply: Any, key: str
) -> None:
    server = serve(lambda _: reply)
    assert score(server, body=body, key=key, tells=["lang"]).score == 0.5
    values = {"truth": "Good day.", "completion": "Good day.", "lang": "de"}
    values["prompt"] = "Translate: Guten Tag."
    text = str(body)
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    assert str(server.requests[0]) == text


def test_a_number_is_mapped_by_its_range_clamped_and_cut_below_the_least(serve: Start) -> None:
    for raw in (-30.0, -10.0, 0.0, 5.0, 7.5, 20.0):
        share = (raw + 10.0) / 20.0
        slow = 0.0 if share < 0 else 1.0 if share > 1 else share
        server = serve(lambda _, raw=raw: {"score": raw})
        assert score(server, range=[-10, 10]).score == pytest.approx(slow)
        cut = score(server, range=[-10, 10], least=0.6).score
        assert cut == pytest.approx(slow if slow >= 0.6 else 0.0)


@pytest.mark.parametrize(
    "reply",
    [
        *(b"", b"0.5 or so", b'{"score": NaN}', b'{"score": 1e999}', (500,), (404,), [1]),
        *({"scores": 1}, {"score": "1"}, {"score": True}, {"score": None}, {"score": [1]}),
    ],
)
def test_what_is_no_finite_number_under_the_key_is_a_fault(serve: Start, reply: Any) -> None:
    verdict = score(serve(lambda _: reply))
    assert verdict.score is None and verdict.fault


def test_a_dead_server_is_a_fault_and_one_that_recovers_is_asked_again(serve: Start) -> None:
    server = serve(lambda _: {"score": 1})
    server.kill()
    assert "unavailable" in (score(server).fault or "")
    replies: list[Any] = [(500,), b"garbage", {"score": 1}]
    server = serve(lambda _: replies.pop(0))
    assert score(server, attempts=3).score == 1.0 and len(server.requests) == 3


def test_no_answer_scores_zero_without_asking_and_equal_ones_are_asked_once(serve: Start) -> None:
    server = serve(lambda _: {"score": 1})
    assert score(server, " ").score == 0.0 and server.requests == []
    reward = RewardConfig(verifier="http_score", options={"url": server.url})
    with Scorer({"s": [reward]}, ScoringConfig()) as scorer:
        (group,) = scorer.judge([[completion("a"), completion("a"), completion("b")]], [SAMPLE])
    assert [j.reward for j in group] == [1.0] * 3 and len(server.requests) == 2


def test_the_key_comes_from_the_environment_alone(
    serve: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(lambda _: {"score": 1})
    monkeypatch.setenv("SCORE_KEY", "abc")
    score(server, "a", key_env="SCORE_KEY")
    score(server, "b")
    assert server.keys == ["Bearer abc", None]


def test_what_a_row_lacks_is_a_mistake_and_never_a_score(serve: Start) -> None:
    server = serve(lambda _: {"score": 1})
    with pytest.raises(ValueError, match="no column 'topic'"):
        score(server, tells=["topic"])
    with pytest.raises(ValueError, match=r"nothing is known of .*truth"):
        score(server, sample=Sample("1", "s", ("?",), Truth()), body={"a": "{truth}"})
    assert server.requests == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "http:// or https://"),
        ({"range": [1, 0]}, "the worst number"),
        ({"attempts": 0}, "positive"),
        ({"media": True, "body": {"a": "{prompt}"}}, "no place for media"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    url = {"url": "http://x/score"} if options else {}
    with pytest.raises(UserError, match=message):
        plugins.build("verifier", "http_score", {**url, **options})
