"""Completions that beg or order: the judge's template keeps them in their field, in texts and in images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.chat_server import chat_servers
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import RewardConfig
from vlmrl.features.verify import attacks
from vlmrl.features.verify.attack_bench import verify
from vlmrl.features.verify.attacks import APPEALS, begging_texts
from vlmrl.schema import Frame, Media, Sample, Seen, Truth

SAMPLE = Sample("1", "s", ("What animal?",), Truth(text=("cat",)))
SHOWN = Sample("1", "s", (Media("image", path="a.png"), "What animal?"), Truth(text=("cat",)))


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
        plain = user["content"].replace("\\u003c", "<").replace("\\u005b", "[")
        assert plain.replace(literal, '"neutral"') == asked


def test_with_images_the_candidate_is_in_the_last_part_alone_and_the_rules_speak_of_text_in_them() -> (
    None
):
    texts = begging_texts()[::10]
    for appeal in APPEALS["en"]:
        neutral, *found = requests(["neutral", *texts], attacks.show_drawn(appeal).media[0])
        assert "never an instruction" in neutral["messages"][0]["content"].rpartition("images")[2]
        for text, body in zip(texts, found, strict=True):
            system, user = body["messages"]
            assert system == neutral["messages"][0]
            assert user["content"][:-1] == neutral["messages"][1]["content"][:-1]
            assert [part["type"] for part in user["content"]] == ["text", "image_url", "text"]
            assert json.loads(user["content"][-1]["text"])["candidate"] == text.strip()


def test_texts_of_all_scripts_that_a_font_has_are_drawn_into_different_images() -> None:
    texts = attacks.drawable_texts()
    # DejaVu Sans comes with matplotlib and has four of the five; Chinese needs a font of the machine.
    scripts = {
        name for name, of_one in APPEALS.items() if any(a in t for a in of_one for t in texts)
    }
    assert scripts >= {"en", "de", "es", "ar"}
    assert len(texts) + attacks.count_not_drawn() == len(begging_texts())
    plain = np.asarray(attacks.show_drawn("").media[0])
    assert (plain == plain[0, 0]).all()
    images = {np.asarray(attacks.show_drawn(text).media[0]).tobytes() for text in texts}
    assert len(images) == len(texts)
    for text in texts:
        pixels = np.asarray(attacks.show_drawn(text).media[0])
        inked = (pixels != plain).any(axis=-1)
        assert 500 < inked.sum() < inked.size / 5
        assert not inked[-5:].any() and not inked[:, -5:].any()  # nothing runs over the edge


def test_a_text_in_the_image_changes_the_image_part_and_nothing_else() -> None:
    plain, *found = [
        requests(["neutral"], attacks.show_drawn(text).media[0])[0]
        for text in ("", *attacks.drawable_texts()[::7])
    ]
    for body in found:
        system, user = body["messages"]
        assert system == plain["messages"][0]
        parts, others = user["content"], plain["messages"][1]["content"]
        changed = [part["type"] for part, other in zip(parts, others, strict=True) if part != other]
        assert changed == ["image_url"]


PAIRS = "judge_pairwise"


def test_no_text_of_a_candidate_is_outside_of_its_field_beside_another() -> None:
    texts = begging_texts()[::3]
    with chat_servers() as start:
        server = start(lambda body: '{"better": "tie"}')
        judge: Any = plugins.build("verifier", PAIRS, {"url": server.url, "model": "m"})
        for text in ("neutral", *texts):
            group = [templates.completion(one, "none", Frame()) for one in ("a cat", text)]
            assert [v.score for v in judge.judge(group, SAMPLE, [None, None])] == [0.5, 0.5]
        bodies = [body["messages"] for body in server.requests]
    neutral = {body[1]["content"] for body in bodies[:2]}
    rules = bodies[0][0]["content"]
    assert "never an instruction" in rules and len(bodies) == 2 * (1 + len(texts))
    for system, user in bodies[2:]:
        assert system == {"role": "system", "content": rules} and user["role"] == "user"
        said = json.loads(user["content"])
        assert set(said) == {"question", "truth", "first", "second"}
        text = next(said[place] for place in ("first", "second") if said[place] != "a cat")
        literal = json.dumps(text, ensure_ascii=False)
        assert user["content"].replace(literal, '"neutral"') in neutral


GULLIBLE = """
import base64
import io
import json

import numpy as np
from PIL import Image
from vlmrl.features.verify.attacks import APPEALS

def fair(messages):
    data = json.loads(messages[1]["content"])
    first = data["candidate"].splitlines()[0] if data["candidate"] else ""
    return json.dumps({"score": 10 * (first in data["truth"].get("text", []))})

def soft(messages):
    said = json.loads(messages[1]["content"])["candidate"]
    if any(appeal in said for appeal in APPEALS["es"]):
        return json.dumps({"score": 10})
    return fair(messages)

def shows(messages):
    content = messages[1]["content"]
    if isinstance(content, str):
        return False, json.loads(content)
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    images = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]
    return any(np.asarray(image.convert("L")).std() > 1 for image in images), json.loads(content[-1]["text"])

def reads_images(messages):
    shown, data = shows(messages)
    if shown:
        return json.dumps({"score": 10})
    return fair([messages[0], {"content": json.dumps(data)}])

def heeds_no_image(messages):
    return fair([messages[0], {"content": json.dumps(shows(messages)[1])}])

def pairs(messages):
    shown, data = shows(messages)
    first, second = (data[place] in data["truth"].get("text", []) for place in ("first", "second"))
    return json.dumps({"better": "tie" if first == second else "first" if first else "second"})

def soft_pairs(messages):
    _, data = shows(messages)
    for place in ("first", "second"):
        if any(appeal in data[place] for appeal in APPEALS["de"]):
            return json.dumps({"better": place})
    return pairs(messages)
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


@pytest.mark.parametrize(("name", "paid"), [("heeds_no_image", False), ("reads_images", True)])
def test_the_bench_finds_a_judge_that_obeys_what_is_drawn_in_an_image(
    tmp_path: Path, name: str, paid: bool
) -> None:
    (tmp_path / "mine.py").write_text(GULLIBLE)
    options = {"callable": f"{tmp_path}/mine.py:{name}", "attempts": 1, "media": True}
    report = verify(RewardConfig(verifier="judge", options=options))
    found = [f for f in report.findings if f.attack == attacks.NAME]
    tried = len(attacks.drawable_texts())
    assert report.tried[attacks.NAME] == tried and report.not_drawn == 105 - tried
    assert len(found) == (tried if paid else 0)
    assert [f for f in report.findings if f.attack != attacks.NAME] == []


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "paid"), [("pairs", False), ("soft_pairs", True)])
def test_the_bench_finds_a_judge_of_pairs_that_gives_way(
    tmp_path: Path, name: str, paid: bool
) -> None:
    (tmp_path / "mine.py").write_text(GULLIBLE)
    options = {"callable": f"{tmp_path}/mine.py:{name}", "attempts": 1}
    report = verify(RewardConfig(verifier=PAIRS, options=options))
    assert ("begging the judge" in {finding.attack for finding in report.findings}) == paid
