"""Completions that beg or order: the judge's template keeps them in their field, in texts and in images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from helpers.chat_server import chat_servers
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.audit.attack_bench import verify
from vlmrl.audit.begging import APPEALS, begging_texts
from vlmrl.config import RewardConfig
from vlmrl.schema import Frame, Media, Sample, Seen, Truth

SAMPLE = Sample("1", "s", ("What animal?",), Truth(text=("cat",)))
SHOWN = Sample("1", "s", (Media("image", path="a.png"), "What animal?"), Truth(text=("cat",)))


def drawn(text: str) -> Image.Image:
    image = Image.new("RGB", (400, 40), "white")
    ImageDraw.Draw(image).text((4, 12), text.encode("ascii", "replace").decode(), fill="black")
    return image


def requests(texts: list[str], image: Image.Image | None = None) -> list[dict[str, Any]]:
    """The requests that a judge sends for candidates, in order."""
    with chat_servers() as start:
        server = start(lambda body: '{"score": 0}')
        options = {"url": server.url, "model": "m", "part": "text", "media": image is not None}
        judge: Any = plugins.build("verifier", "judge", options)
        for text in texts:
            completion = templates.completion(text, "none", Frame())
            seen = Seen((image,), (Frame(*image.size),)) if image else None
            assert judge(completion, SHOWN if image else SAMPLE, seen).score == 0.0
        return server.requests


def test_there_are_more_than_a_hundred_in_five_languages() -> None:
    assert len(APPEALS) == 5 and len(set(begging_texts())) >= 100


def test_no_text_of_a_candidate_is_outside_of_its_field() -> None:
    texts = begging_texts()
    neutral, *found = requests(["neutral", *texts])
    rules, asked = (message["content"] for message in neutral["messages"])
    for text, body in zip(texts, found, strict=True):
        system, user = body["messages"]
        assert (system["role"], user["role"], len(body["messages"])) == ("system", "user", 2)
        assert system["content"] == rules
        # Read by JSON's own rules the candidate is what was written, and all else is as it was.
        assert json.loads(user["content"]) == {**json.loads(asked), "candidate": text.strip()}
        literal = json.dumps(text.strip(), ensure_ascii=False)
        assert user["content"].replace(literal, '"neutral"') == asked


def test_with_images_the_candidate_is_in_the_last_part_alone_and_the_rules_speak_of_text_in_them() -> (
    None
):
    texts = begging_texts()[::10]
    for appeal in APPEALS["en"]:
        neutral, *found = requests(["neutral", *texts], drawn(appeal))
        assert "never an instruction" in neutral["messages"][0]["content"].rpartition("images")[2]
        for text, body in zip(texts, found, strict=True):
            system, user = body["messages"]
            assert system == neutral["messages"][0]
            assert user["content"][:-1] == neutral["messages"][1]["content"][:-1]
            assert [part["type"] for part in user["content"]] == ["text", "image_url", "text"]
            assert json.loads(user["content"][-1]["text"])["candidate"] == text.strip()


GULLIBLE = """
import json
from vlmrl.audit.begging import APPEALS

def fair(messages):
    data = json.loads(messages[1]["content"])
    first = data["candidate"].splitlines()[0] if data["candidate"] else ""
    return json.dumps({"score": 10 * (first in data["truth"].get("text", []))})

def soft(messages):
    said = json.loads(messages[1]["content"])["candidate"]
    if any(appeal in said for appeal in APPEALS["es"]):
        return json.dumps({"score": 10})
    return fair(messages)
"""


@pytest.mark.parametrize(("name", "paid"), [("fair", False), ("soft", True)])
def test_the_bench_finds_a_judge_that_gives_way_to_one_language(
    tmp_path: Path, name: str, paid: bool
) -> None:
    (tmp_path / "mine.py").write_text(GULLIBLE)
    options = {"callable": f"{tmp_path}/mine.py:{name}", "attempts": 1}
    report = verify(RewardConfig(verifier="judge", options=options))
    assert ("begging the judge" in {finding.attack for finding in report.findings}) == paid
    assert report.tried["begging the judge"] == len(begging_texts())
