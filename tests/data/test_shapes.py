"""Drawn shapes: the truth is that of the pixels, splits share no scene, loose demonstrations."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from vlmrl import plugins
from vlmrl.answers.geometry import iou
from vlmrl.data.card import Card
from vlmrl.errors import UserError
from vlmrl.media.image import load_image
from vlmrl.schema import Sample


def samples(card: Card, split: str) -> list[Sample]:
    return [card.to_sample(row, "toy") for row in card.rows(split)]


def shapes(**options: Any) -> Card:
    return plugins.build("card", "shapes", options)


def drawn_box(sample: Sample) -> tuple[float, ...]:
    """The box of the pixels that are not background, unit square."""
    pixels = np.asarray(load_image(sample.media[0])).astype(int)
    size = len(pixels)
    gradient = np.linspace(220, 10, size).round()
    shade = collections.Counter(pixels[:, :, 1].ravel()).most_common(1)[0][0]
    different = (
        (pixels[:, :, 0] != gradient[None, :])
        | (pixels[:, :, 1] != shade)
        | (pixels[:, :, 2] != gradient[:, None])
    )
    ys, xs = np.nonzero(different)
    return tuple(v / size for v in (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1))


@pytest.mark.parametrize("size", [84, 120])
def test_the_true_box_is_the_box_of_the_drawn_pixels(size: int) -> None:
    kinds = set()
    for sample in samples(shapes(size=size, count=60), "train"):
        assert sample.truth.boxes is not None
        (box,) = sample.truth.boxes
        assert box.label is not None
        kinds.add(box.label.split()[1])
        assert box.xyxy == pytest.approx(drawn_box(sample))
        assert sample.text == f"Where is the {box.label.split()[0]} shape?"
        for side in (box.x2 - box.x1, box.y2 - box.y1):
            assert 3 <= round(side * 12) <= 6
    assert kinds == {"circle", "square", "triangle"}


def test_letters_lie_inside_their_box() -> None:
    for sample in samples(shapes(task="reading", count=40), "train"):
        (box,) = sample.meta["boxes"]
        x1, y1, x2, y2 = drawn_box(sample)
        assert box.x1 <= x1 < x2 <= box.x2
        assert box.y1 <= y1 < y2 <= box.y2
        assert sample.truth.text == (box.label,)
        assert sample.demo is not None
        assert sample.demo.text == box.label


def test_counts_and_choices_agree_with_the_scene() -> None:
    for sample in samples(shapes(task="counting", count=80), "train"):
        colours = [box.label.split()[0] for box in sample.meta["boxes"]]
        asked = sample.text.split()[2]
        assert sample.truth.number == colours.count(asked)
    for sample in samples(shapes(task="question", count=40), "train"):
        assert sample.truth.choice in sample.meta["boxes"][0].label.split()
        assert sample.truth.choice in (sample.truth.options or ())
        assert all(option in sample.text for option in sample.truth.options or ())


@pytest.mark.slow
@pytest.mark.parametrize("task", ["grounding", "counting", "question", "reading"])
def test_no_scene_is_in_two_splits(task: str) -> None:
    card = shapes(task=task)
    scenes: dict[str, set[Any]] = {}
    for split in card.splits:
        found = samples(card, split)
        assert len(found) == {"train": 2000, "demos": 2000, "val": 96, "test": 200}[split]
        scenes[split] = {sample.meta["boxes"] for sample in found}
    for a in scenes:
        for b in scenes:
            assert a == b or not scenes[a] & scenes[b]


@pytest.mark.parametrize("task", ["grounding", "counting", "question"])
@pytest.mark.parametrize("split", ["val", "test"])
def test_no_scene_is_twice_in_a_held_out_split(task: str, split: str) -> None:
    for seed in (0, 1):
        card = shapes(task=task, seed=seed)
        scenes = {repr(sample.meta["boxes"]) for sample in samples(card, split)}
        assert len(scenes) == len(card.rows(split))
    # The training splits are as they always were.
    assert not any("passed_over" in row for row in shapes(task=task).rows("train"))


def test_scenes_depend_on_seed_and_index_only() -> None:
    first = samples(shapes(count=5), "test")
    assert first == samples(shapes(count=5), "test")
    assert first == samples(shapes(count=9), "test")[:5]
    assert first != samples(shapes(count=5, seed=1), "test")
    exact = samples(shapes(count=5, loose=0), "test")
    assert [s.media for s in exact] == [s.media for s in first]


@pytest.mark.slow
def test_demonstrations_are_as_loose_as_asked() -> None:
    overlaps = []
    for sample in samples(shapes(), "demos"):
        assert (
            sample.truth.boxes and sample.demo and sample.demo.answer and sample.demo.answer.boxes
        )
        true, loose = sample.truth.boxes[0], sample.demo.answer.boxes[0]
        for before, after in ((loose.x1, true.x1), (true.x2, loose.x2)):
            assert round((after - before) * 84, 6) in (0, 7, 14)
        overlaps.append(iou(true, loose))
    assert np.mean(overlaps) == pytest.approx(0.55, abs=0.02)  # as in the measured recipe
    for sample in samples(shapes(count=20, loose=0), "demos"):
        assert sample.demo and sample.demo.answer and sample.demo.answer.boxes == sample.truth.boxes


def test_thought_names_the_cell_of_the_centre() -> None:
    names = {"top left", "top", "top right", "left", "center", "right"}
    names |= {"bottom left", "bottom", "bottom right"}
    seen = set()
    for sample in samples(shapes(count=200), "demos"):
        assert sample.demo and sample.truth.boxes
        box = sample.truth.boxes[0]
        seen.add(sample.demo.thought)
        assert ("left" in sample.demo.thought) == ((box.x1 + box.x2) / 2 < 1 / 3)
        assert ("bottom" in sample.demo.thought) == ((box.y1 + box.y2) / 2 >= 2 / 3)
    assert seen == names


def test_corpus_of_shapes_has_every_number_and_the_written_form() -> None:
    text = "\n".join(shapes().corpus())
    assert '<think>top left</think><answer>{"bbox_2d": [' in text
    for number in range(0, 85, 7):
        assert f"{number}, " in text or f" {number}]" in text


def test_wrong_options_of_shapes_are_refused() -> None:
    for options in ({"size": 85}, {"count": 0}, {"task": "guessing"}, {"colour": "red"}):
        with pytest.raises(UserError, match="card 'shapes'"):
            shapes(**options)


def test_a_caption_names_every_shape_from_the_left_with_its_place() -> None:
    counts = set()
    for sample in samples(shapes(task="describing", count=40), "train"):
        boxes = sorted(sample.meta["boxes"], key=lambda box: (box.x1, box.y1))
        counts.add(len(boxes))
        assert sample.truth.text is not None and sample.demo is not None
        (caption,) = sample.truth.text
        assert sample.demo.text == caption
        for part, box in zip(caption.split(", "), boxes, strict=True):
            row = ("top", "", "bottom")[min(2, int(3 * (box.y1 + box.y2) / 2))]
            column = ("left", "", "right")[min(2, int(3 * (box.x1 + box.x2) / 2))]
            place = " ".join(filter(None, (row, column))) or "center"
            assert part == f"a {box.label} at the {place}"
    assert counts == {1, 2, 3}
