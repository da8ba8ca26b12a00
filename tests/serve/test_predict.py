"""`vlmrl predict`: images are answered, drawn and kept; broken ones end nothing; what was stopped goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vlmrl
from helpers.chat_calls import RED, save_small_model
from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.features.serve.predict import AskedImage, _predict, find_images, predict
from vlmrl.features.serve.try_model import try_model
from vlmrl.runs.output.events import Event
from vlmrl.runs.output.outputs import Output
from vlmrl.schema import Frame, Media, Prompt, Sample, Truth

QUESTION = "Where is the red shape?"


class Heard(Output):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def say(self, event: Event) -> None:
        self.events.append(event)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_small_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three images, a broken one and a text."""
    folder = tmp_path / "photos"
    folder.mkdir()
    RED.save(folder / "a.png")
    Image.new("RGB", (112, 56), "blue").save(folder / "b.jpg")
    (folder / "broken.png").write_bytes(b"no image")
    Image.new("RGB", (56, 56), "green").save(folder / "c.webp")
    (folder / "notes.txt").write_text("no image either")
    return folder


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]


def test_images_are_files_folders_patterns_and_rows(photos: Path) -> None:
    names = ["a.png", "b.jpg", "broken.png", "c.webp"]
    every = [AskedImage(str(photos / name), "Where?") for name in names]
    assert find_images([str(photos)], "Where?") == every
    assert find_images([str(photos / "b.jpg"), str(photos)], "Where?") == [
        every[1],
        every[0],
        *every[2:],
    ]
    assert find_images([str(photos.parent / "**" / "[ab].*")], "Where?") == every[:2]
    rows = photos / "rows.jsonl"
    rows.write_text('{"image": "a.png", "question": "What?"}\n\n{"image": "b.jpg"}\n')
    own = AskedImage(str(photos / "a.png"), "What?")
    assert find_images([str(rows)], "Where?") == [own, every[1]]


@pytest.mark.parametrize(
    ("asked", "question", "message"),
    [
        ("none.png", "Where?", r"none\.png: expected an image, a folder or a pattern"),
        ("none/*.png", "Where?", "got none"),
        ("photos", None, r"photos: expected a question: --question TEXT"),
        ("rows.jsonl", None, r"rows\.jsonl:2: question: expected a text, got None"),
        ("rows.jsonl", "Where?", r"rows\.jsonl:3: image: expected a text, got 3"),
    ],
)
def test_what_cannot_be_asked_is_named(
    photos: Path, monkeypatch: pytest.MonkeyPatch, asked: str, question: str | None, message: str
) -> None:
    monkeypatch.chdir(photos.parent)
    rows = [{"image": "photos/a.png", "question": "What?"}, {"image": "photos/b.jpg"}, {"image": 3}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=message):
        find_images([asked], question)


def test_a_stopped_call_goes_on_and_a_broken_image_is_counted(
    model: str, photos: Path, tmp_path: Path
) -> None:
    rows, out, heard = find_images([str(photos)], QUESTION), tmp_path / "out", Heard()
    first = predict(model, rows[:1], out, max_tokens=6, batch=2, output=heard)
    assert (first.answered, first.kept, first.broken) == (1, 0, 0) and not heard.events
    with (out / "answers.jsonl").open("a") as file:
        file.write('{"image": "torn')  # a call that was killed while it wrote
    counts = predict(model, rows, out, max_tokens=6, batch=2, output=heard)
    assert (counts.answered, counts.kept, counts.broken) == (2, 1, 1)
    (said,) = heard.events
    assert "broken.png" in str(said.lines()) and said.kind == "warning"
    names = [Path(line["image"]).name for line in lines(out)]
    assert names == ["a.png", "b.jpg", "c.webp"]
    whole = tmp_path / "whole"
    predict(model, rows, whole, max_tokens=6, batch=1, output=heard)
    assert lines(whole) == lines(out)
    (photos / "broken.png").write_bytes((photos / "a.png").read_bytes())
    counts = predict(model, rows, out, max_tokens=6, output=heard)
    assert (counts.answered, counts.kept, counts.broken) == (1, 3, 0)
    with pytest.raises(UserError, match=r"asked\.json: max_tokens: .* 6, got 7; --out"):
        predict(model, rows, out, max_tokens=7, output=heard)


def test_the_answers_are_those_of_try_and_of_generate(
    model: str,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    vlmrl_command: Callable[..., str],
) -> None:
    out = tmp_path / "out"
    asked = ("predict", model, str(photos), "--question", QUESTION, "--max-tokens", "6")
    printed = vlmrl_command(*asked, "--out", str(out))
    *warned, summary, places = printed.splitlines()
    assert places == "of the 3: 3 state no box or point, 3 cut at --max-tokens"
    assert summary == f"{out}/answers.jsonl: 3 answered, 0 answered before, 1 not answered"
    assert len(warned) == 1 and "broken.png" in warned[0]
    images = [line["image"] for line in lines(out)]
    answers = vlmrl.generate(model, [*images, photos / "broken.png"], QUESTION, max_tokens=6)
    assert [each.line() | {"drawn": None} for each in answers[:3]] == lines(out)
    assert "broken.png" in answers[3].error and not answers[3].text
    try_model(model, [Path(images[0])], QUESTION, max_tokens=6)
    assert capsys.readouterr().out.startswith(lines(out)[0]["text"].strip())


@pytest.fixture
def vlmrl_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command in this process; return what it printed."""
    from vlmrl.cli.app import run

    def call(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            run(arguments)
        assert not end.value.code
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("space", ["pixel", "norm1000", "norm1"])
def test_places_are_in_pixels_of_the_image_whatever_space_the_model_uses(space: str) -> None:
    scale = {"pixel": (56, 84), "norm1000": (1000, 1000), "norm1": (1, 1)}[space]
    numbers = [0.25 * scale[0], 0.25 * scale[1], 0.5 * scale[0], 0.5 * scale[1]]
    frame = Frame(56, 84, space)  # type: ignore[arg-type]
    sample = Sample("1", "predict", (Media("image", data=b"-"), "Where?"), Truth(), template="none")
    prompt = Prompt(sample, "Where?", None, frame, (RED,))  # type: ignore[arg-type]
    completion = templates.completion(json.dumps(numbers), "none", frame)
    prediction = _predict(AskedImage("red.png", "Where?"), prompt, completion)
    (box,) = prediction.boxes
    assert box["box"] == pytest.approx([14, 21, 28, 42])
    drawn = prediction.drawn
    assert drawn is not None and drawn.size == RED.size
    changed = [
        (x, y) for x in range(56) for y in range(84) if drawn.getpixel((x, y)) != (255, 0, 0)
    ]
    assert all(11 <= x <= 31 and 18 <= y <= 45 for x, y in changed) and len(changed) > 50
    nothing = _predict(
        AskedImage("red.png", "?"), prompt, templates.completion("none", "none", frame)
    )
    assert nothing.drawn is None and nothing.boxes == () and nothing.answer == "none"
