"""Controls of benchmarks: what is taken from a question, what is asked then, and what guesses pay."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers import small
from helpers.benchmark_runs import FRAME, opened, run, scored
from helpers.published import ROWS, write_published
from helpers.report_page import Page
from vlmrl.benchmarking.base import BenchmarkCard
from vlmrl.benchmarking.scoring import find_results
from vlmrl.data.source import Source, open_target
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.controls import best_constant, controlled
from vlmrl.features.benchmarks.session import find_overlap
from vlmrl.features.benchmarks.tables import calibrate
from vlmrl.schema import Media


def asked(source: Source, index: int) -> str:
    return " ".join(part for part in source.sample(index).parts if isinstance(part, str))


def test_text_only_asks_the_same_words_without_an_image(tmp_path: Path) -> None:
    for name in ("ai2d", "mmmu"):
        source = opened(tmp_path, name, "lmms_eval")
        bare = controlled(source, "text_only")
        assert source.sample(0).media and not bare.sample(0).media
        assert not any(isinstance(part, Media) for part in bare.sample(0).parts)
        if name == "ai2d":
            assert asked(bare, 0) == asked(source, 0)
    places = opened(tmp_path, "refcoco", "lmms_eval")
    with pytest.raises(UserError, match="'refcoco' has no text_only: its answers are places"):
        controlled(places, "text_only")


def test_shuffled_images_gives_every_row_another_one(tmp_path: Path) -> None:
    source = opened(tmp_path, "chartqa", "lmms_eval")
    other = controlled(source, "shuffled_images")
    shown = [other.sample(i).media for i in range(4)]
    own = [source.sample(i).media for i in range(4)]
    assert all(a != b for a, b in zip(shown, own, strict=True))
    assert sorted(map(repr, shown)) == sorted(map(repr, own))
    assert [other.sample(i).truth for i in range(4)] == [source.sample(i).truth for i in range(4)]


def test_the_right_letter_moves_with_its_option(tmp_path: Path) -> None:
    source = opened(tmp_path, "ai2d", "lmms_eval")
    other = controlled(source, "shuffled_options")
    assert isinstance(other.card, BenchmarkCard)
    letters = set()
    for index in range(4):
        before, after = source.sample(index).truth, other.sample(index).truth
        assert sorted(after.options) == sorted(before.options)
        right = (
            after.options["ABCD".index(after.choice)] if after.choice in "ABCD" else after.choice
        )
        wanted = before.options["ABCD".index(before.choice)]
        assert right == wanted
        assert f"{after.choice}. {right}" in asked(other, index)
        letters.add((before.choice, after.choice))
    assert any(a != b for a, b in letters)
    with pytest.raises(UserError, match="'mmstar' has no shuffled_options: its options are not"):
        controlled(opened(tmp_path, "mmstar", "lmms_eval"), "shuffled_options")
    with pytest.raises(UserError, match=r"--control: expected one of text_only, .*got 'blind'"):
        controlled(source, "blind")


def test_the_best_constant_answer_is_found(tmp_path: Path) -> None:
    found = {
        one.number: one for one in best_constant(opened(tmp_path, "pope", "ours"), "ours", FRAME)
    }
    assert found["strict"].answer == "yes" and found["strict"].value == 0.5
    both = best_constant(opened(tmp_path / "b", "chartqa", "lmms_eval"), "lmms_eval", FRAME)
    assert {one.number for one in both} == {"official", "strict"}
    assert max(one.value for one in both) == 0.25


def test_rows_that_look_like_training_data_are_counted(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    image = Image.fromarray(draw.integers(0, 255, (6, 8, 3), np.uint8)).resize((320, 240))
    image.save(tmp_path / "seen.jpg", quality=70)
    words = "how many of the red bars in the left half are taller"
    lines = [
        {"id": "a", "images": ["seen.jpg"], "question": f"Please say {words}?", "answer": "3"},
        {"id": "b", "images": ["gone.jpg"], "question": "What?", "answer": "3"},
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    train = open_target(str(tmp_path / "train.jsonl"))
    folder = tmp_path / "test"
    folder.mkdir()
    image.resize((200, 150)).save(folder / "other_size.png")
    noise = draw.integers(0, 255, (6, 8, 3), np.uint8)
    Image.fromarray(noise).resize((320, 240)).save(folder / "new.png")
    rows = [
        {"id": "a", "images": ["other_size.png"], "question": "A short one?", "answer": "3"},
        {"id": "b", "images": ["new.png"], "question": f"{words.upper()} than two?", "answer": "3"},
        {
            "id": "c",
            "images": ["new.png"],
            "question": "how many of the red bars are green",
            "answer": "3",
        },
    ]
    (folder / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = find_overlap(open_target(str(folder / "test.jsonl")), train)
    assert (found.images, found.texts, found.rows, found.unread) == ((0,), (1,), 3, 1)


def test_calibration_by_hand(tmp_path: Path) -> None:
    stated = "<answer>{}</answer> <confidence>{}</confidence>"
    answers = [stated.format(*pair) for pair in (("104", "0.9"), ("2010", "90%"), ("no", "0.2"))]
    result = scored(tmp_path, "chartqa", "ours", [*answers, "7"], "think_answer")
    found = calibrate(result.rows)
    assert found is not None and found.count == 3
    # bin .9: confidences .9 and .9, one right: gap .8; bin .2: .2, wrong
    assert found.error == pytest.approx((abs(1 - 1.8) + 0.2) / 3)
    assert found.brier == pytest.approx(np.mean([0.1**2, 0.9**2, 0.2**2]))
    assert calibrate(scored(tmp_path / "b", "chartqa", "ours", ["1"] * 4).rows) is None


@pytest.mark.slow
def test_controls_and_samples_of_an_evaluation(tmp_path: Path, tmp_path_factory) -> None:
    checkpoint = tmp_path_factory.mktemp("model") / "step-1"
    small.policy().save(str(checkpoint))
    write_published(tmp_path, "ai2d", "test", ROWS["ai2d"])
    more = ("--benchmark", "ai2d", "--limit", "4", "--max-tokens", "4", "--samples", "3")
    chosen = "text_only,shuffled_images,shuffled_options"
    done = run(checkpoint, tmp_path, tmp_path / "out", *more, "--control", chosen)
    assert done.exit_code == 0, done.exception
    assert "the best constant answer" in done.output and "pass@3" in done.output
    page = Page(tmp_path / "out/report.html")
    assert "official and strict disagree" in page.text and "shuffled_options" in page.text
    cards = page.with_class("card")
    assert len(cards) == 4 and {card["data-benchmark"] for card in cards} == {"ai2d"}
    assert not [
        a for _, a in page.tags if a.get("src", "data:")[:5] != "data:"
    ]  # nothing is loaded
    lines = list(csv.DictReader((tmp_path / "out/results.csv").open()))
    assert {line["control"] for line in lines} == {"", *chosen.split(",")}
    assert "ai2d, text\\_only & 4 & 0.000 [" in (tmp_path / "out/results.tex").read_text()
    for control in chosen.split(","):
        result = json.loads((tmp_path / "out/ai2d" / control / "result.json").read_text())
        assert result["manifest"]["control"] == control
    passes = find_results(tmp_path / "out")["ai2d"].passes
    assert list(passes) == [1, 2, 3] and passes[3].count == 4
    stored = tmp_path / "out/ai2d/samples.jsonl"
    whole = stored.read_text().splitlines(keepends=True)
    assert len(whole) == 12
    stored.write_text("".join(whole[:5]))  # killed within the second row's samples
    assert run(checkpoint, tmp_path, tmp_path / "out", *more).exit_code == 0
    again = stored.read_text().splitlines(keepends=True)
    assert again[:5] == whole[:5] and len(again) == 14
    refused = run(checkpoint, tmp_path, tmp_path / "out", *more, "--control", "no_think")
    assert "expected a model whose template begins with a thought" in str(refused.exception)
