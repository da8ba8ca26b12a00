"""Several images in a prompt: places are in the one that the truth names."""

import json

import pytest
from PIL import Image

from helpers import small
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import SourceConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.data.source import open_source
from vlmrl.errors import UserError
from vlmrl.features.check.data_check import explain
from vlmrl.media.decode import decode
from vlmrl.schema import Media, Sample, Truth
from vlmrl.scoring.score_rows import read_row
from vlmrl.truths import json_form, prompting

BOX = [28, 28, 84, 56]
"""In pixels of the second image, which is 112 x 84; the first is 56 x 56."""


@pytest.fixture
def folder(tmp_path):
    for name, size in (("a.png", (56, 56)), ("b.png", (112, 84))):
        Image.new("RGB", size, "grey").save(tmp_path / name)
    return tmp_path


def open_rows(folder, card, **changes):
    row = {"id": "x", "images": ["a.png", "b.png"], "question": "Where is the cat?"}
    row |= {"answer": "[]", "boxes": [BOX], "image_index": 1, "width": 112, "height": 84} | changes
    (folder / "train.jsonl").write_text(json.dumps({k: v for k, v in row.items() if v is not None}))
    options = {"path": str(folder)}
    if card == "table":
        columns = {"image": "images", "question": "question", "boxes": "boxes"}
        columns |= {"image_index": "image_index", "id": "id"}
        options |= {"path": f"{folder}/train.jsonl", "columns": columns, "box_space": "pixel"}
    return open_source(SourceConfig(card=card, options=options))


@pytest.mark.parametrize("card", ["records", "table"])
def test_answers_belong_to_the_image_that_the_row_names(folder, card):
    source = open_rows(folder, card)
    sample = source.sample(0)
    assert (sample.truth.image, sample.main_medium) == (1, 1)
    model = small.loaded("qwen2_5_vl")

    prompt = make_prompt(
        sample, decode(sample, source.access, source.reading), model.family, model.processor
    )

    assert (prompt.frame.width, prompt.frame.height) == (112, 84)
    text = prompting.demonstrate(sample.demo, sample.template, prompt.frame)
    assert f'"bbox_2d": {BOX}' in text
    completion = templates.completion(text, sample.template, prompt.frame)
    assert plugins.build("verifier", "box_iou")(completion, sample).score == 1.0
    asked = prompting.instruct(sample.template, sample.truth, "pixel", num_images=sample.num_images)
    assert "in pixels of the second image." in asked
    assert "112" in explain(source, 0) and "is about image 1" in explain(source, 0)


def test_one_image_is_called_the_image(folder):
    truth = Truth(boxes=())
    assert prompting.instruct("none", truth, "pixel").endswith("in pixels of the image.")
    one = prompting.instruct("none", truth, "norm1000", num_images=2)
    assert one.endswith("from 0 to 1000 across and down the first image.")


@pytest.mark.parametrize(
    ("card", "value", "problem"),
    [
        (
            "records",
            2,
            "truth.image: expected an index below 2, the number of images and videos, got 2",
        ),
        ("records", -1, "key 'image_index': expected the place of an image, from 0, got -1"),
        ("records", True, "key 'image_index': expected the place of an image, from 0, got True"),
        (
            "table",
            2,
            "column 'image_index': expected an index below 2, the number of images, got 2",
        ),
        ("table", "two", "column 'image_index': expected the place of an image, from 0, got 'two'"),
    ],
)
def test_an_index_out_of_range_is_one_line_that_names_row_and_key(folder, card, value, problem):
    with pytest.raises(UserError) as found:
        open_rows(folder, card, image_index=value).sample(0)
    assert str(found.value) == f"{folder}/train.jsonl:1: {problem}"


def test_the_json_form_of_a_truth_names_its_image():
    row = {"completion": "[50, 40, 100, 80]", "truth": {"boxes": [[50, 40, 100, 80]], "image": 1}}
    row["media"] = [{"width": 10, "height": 10}, {"width": 100, "height": 80}]
    read = read_row(row)
    assert read.sample.truth.boxes[0].xyxy == (0.5, 0.5, 1.0, 1.0)
    assert json_form.to_json(read.sample.truth)["image"] == 1
    with pytest.raises(UserError, match=r"truth\.image: expected an index below 1, got 1"):
        read_row({**row, "media": row["media"][0]})


def test_audio_before_an_image_does_not_take_its_places():
    parts = (Media("audio", path="a.wav"), Media("image", path="a.png"), "Where?")
    boxes = json_form.read({"boxes": [[0, 0, 0.5, 0.5]]}, prompting.FINE)
    assert Sample("x", "x", parts, boxes).main_medium == 1
    assert Sample("x", "x", parts, Truth(text=("a",))).main_medium == 0
