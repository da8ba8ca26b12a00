"""The report: offline, safe against hostile text, and true to the numbers in the run folder."""

import base64
import hashlib
import io
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from helpers.report_page import Page, completion, config, row, verdict
from vlmrl.errors import UserError
from vlmrl.features.report.curves import SMALL, draw
from vlmrl.features.report.gallery import MAX_TEXT, evaluation_cards, rollout_cards
from vlmrl.features.report.growing import MAX_POINTS, Series, StepLines
from vlmrl.features.report.page import build_report
from vlmrl.features.report.series import CurvePanel, colours, sections, smoothed
from vlmrl.pages.media import Album, evenly
from vlmrl.pages.render import number
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import _store_medium
from vlmrl.schema.media import Audio
from vlmrl.system import files

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><a href=//x.test>$\\frac{$"
)


def result(step: int, **metrics: float) -> dict[str, Any]:
    intervals = {key: [value - 0.1, value + 0.1] for key, value in metrics.items()}
    return {"step": step, "metrics": metrics, "intervals": intervals, "pass_at_k": None}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two steps, two evaluations and one image that all prompts share."""
    run_folder.write_config(tmp_path, config())
    image = run_folder.media_folder(tmp_path) / "red.png"
    image.parent.mkdir(parents=True)
    Image.new("RGB", (200, 100), "red").save(image)
    for step in (1, 2):
        line = {"reward/mean": step / 4, "source/shapes/reward": step / 4, "time/update": step}
        files.append_line(run_folder.metrics_path(tmp_path), {"step": step, **line})
        group = [completion(0.5, [0.0, 0.0, 0.5, 0.5]), completion(0.9, [0.25, 0.5, 0.7, 1.0])]
        rows = [row(f"{step}-a", group), row(f"{step}-b", group)]
        files.write_lines(run_folder.rollouts_path(tmp_path, step), rows)
    for step in (0, 2):
        greedy = row("held", [completion(0.4 + step / 10, [0, 0, 1, 1])], drawn="greedy")
        sampled = row("held", [completion(0.0)] * 3, drawn="sampled")
        numbers = result(step, reward=0.4 + step / 10)
        run_folder.write_evaluation(tmp_path, step, numbers, [greedy, sampled])
    return tmp_path


def test_the_page_has_the_curves_the_pairs_and_the_groups(run: Path) -> None:
    page = Page(build_report(run))
    assert "my run" in page.text and "0.4 → 0.6" in page.text
    titles = [a["aria-label"] for _, a in page.tags if "viewbox" in a and a.get("aria-label")]
    assert {"Reward", "Seconds per step", "All sources, greedy", "Held-out reward"} <= set(titles)
    steps = Counter(a["data-step"] for a in page.with_class("card"))
    assert steps == {"1": 2, "2": 3}  # two training prompts a step, one held-out sample
    assert len(page.with_class("try")) == 2 * 2 * 2 + 2


def test_the_page_loads_nothing(run: Path) -> None:
    path = build_report(run)
    for tag, attributes in Page(path).tags:
        assert tag not in {"link", "iframe", "object", "embed", "base"}
        for key in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(key)
            assert value is None or value.startswith(("#", "data:image/")), (tag, key, value)
    text = path.read_text()
    assert "url(" not in text and "@import" not in text
    assert "default-src 'none'" in text and "import(" not in text and "fetch(" not in text


def test_hostile_text_stays_text(run: Path) -> None:
    clean = Counter(tag for tag, _ in Page(build_report(run)).tags)
    bad = completion(0.5, None, text=HOSTILE, thought=HOSTILE, answer=HOSTILE)
    bad["verdicts"] = {HOSTILE: verdict(0.5, note=HOSTILE, parts={HOSTILE: 1.0})}
    label = {"boxes": [{"box": [0, 0, 1, 1], "label": HOSTILE}]}
    media = {"kind": "image", "name": HOSTILE, "start": None, "end": None, "thumbnail": "red.png"}
    hostile = row(HOSTILE, [bad], source=HOSTILE, question=HOSTILE, truth=label, media=[media])
    files.write_lines(run_folder.rollouts_path(run, 3), [{**hostile, "prompt": HOSTILE}])
    for step in (3, 4):
        line = {"step": step, HOSTILE: step, f"source/{HOSTILE}/reward": step / 8}
        files.append_line(run_folder.metrics_path(run), line)
    page = Page(build_report(run))
    assert (run / "plots/more.png").is_file()  # matplotlib took it for text, not for a formula
    found = Counter(tag for tag, _ in page.tags)
    assert found["script"] == 1 and found["img"] == clean["img"]
    assert all(str(a["href"]).startswith("#") for tag, a in page.tags if tag == "a")
    assert found["a"] == clean["a"] + 2  # the hostile row's, and that of the section of odd numbers
    assert not [a for _, a in page.tags if any(key.startswith("on") for key in a)]
    assert page.text.count(HOSTILE) >= 8


def test_turns_are_in_order_and_a_box_is_on_the_image_that_it_was_cut_from(run: Path) -> None:
    Image.new("RGB", (100, 100), "blue").save(run_folder.media_folder(run) / "blue.png")
    call = {"name": "crop", "arguments": {"bbox_2d": HOSTILE}, "outcome": "ok", "note": HOSTILE}
    told = {"text": HOSTILE, "tokens": 3, "media": [], "calls": [], "reward": None}
    first, second = ({**call, "seconds": 0.004, "image": n} for n in (1, 2))
    boxes = {"box": [0.5, 0.5, 1.0, 1.0]}, {"box": [0.0, 0.0, 0.1, 0.2]}
    segments = [
        {**told, "by": "policy", "calls": [{**first, "box": boxes[0]}]},
        {**told, "by": "tool", "media": ["blue.png"]},
        {**told, "by": "policy", "calls": [{**second, "box": boxes[1]}]},
        {**told, "by": "tool", "media": [None, "gone.png"]},
        {**told, "by": "policy", "calls": [{**call, "seconds": 0.0, "outcome": "refused"}]},
    ]
    rows = [row("turns", [completion(0.5, None, segments=segments)])]
    files.write_lines(run_folder.rollouts_path(run, 2), rows)
    clean = Counter(tag for tag, _ in Page(build_report(run)).tags)
    assert clean["script"] == 1
    (card,) = rollout_cards({2: rows}, Album(run_folder.media_folder(run), 10**6))
    (attempt,) = card.attempts
    assert [segment.by for segment in attempt.segments] == ["policy", "tool"] * 2 + ["policy"]
    asked = [call for segment in attempt.segments for call in segment.calls]
    assert [c.shapes[0].numbers if c.shapes else None for c in asked] == [
        (100.0, 50.0, 100.0, 50.0),
        (0.0, 0.0, 10.0, 20.0),
        None,
    ]
    page = Page(run / "report.html")
    assert len(page.with_class("segment")) == 5
    assert len(page.with_class("asked")) == 2
    assert page.text.count(HOSTILE) >= 5 + 3


def test_the_policy_lets_exactly_our_script_run(run: Path) -> None:
    text = build_report(run).read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_boxes_are_drawn_in_pixels_of_the_image(run: Path) -> None:
    text = build_report(run).read_text()
    assert 'viewBox="0 0 200 100"' in text
    truth = '<rect x="50.0" y="50.0" width="100.0" height="50.0"><title>ace</title></rect>'
    guess = '<rect x="0.0" y="0.0" width="100.0" height="50.0">'
    # Five cards, and the held-out one again on the first screen, before and after.
    assert text.count(truth) == 5 + 2 and text.count(guess) == 4


@pytest.mark.slow
def test_an_image_is_embedded_once_and_only_within_the_budget(run: Path) -> None:
    assert build_report(run).read_text().count("data:image/png;base64,") == 1
    album = Album(run_folder.media_folder(run), budget=0)
    cards = rollout_cards({1: [row("a", [completion(0.5, [0, 0, 1, 1])])]}, album)
    assert cards[0].views[0].image is None and cards[0].truth_shapes == ()
    assert album.left_out == 1
    (run_folder.media_folder(run) / "red.png").unlink()
    page = Page(build_report(run))
    assert "images left out" in page.text and "not in this report" in page.text


def test_a_row_cannot_reach_a_file_outside_the_run(run: Path) -> None:
    secret = run / "secret.png"
    Image.new("RGB", (9, 9), "blue").save(secret)
    for name in ("../../secret.png", str(secret)):
        assert Album(run_folder.media_folder(run), 10**6).get(name) is None


def test_a_large_image_is_embedded_scaled_down(tmp_path: Path) -> None:
    Image.new("RGB", (640, 320), "red").save(tmp_path / "a.jpg")
    image = Album(tmp_path, 10**6).get("a.jpg")
    assert image is not None and (image.width, image.height) == (480, 240)


def test_a_large_png_is_embedded_with_a_little_loss_and_a_small_one_as_it_is(
    tmp_path: Path,
) -> None:
    rough = np.random.default_rng(0).integers(90, 160, (40, 40, 3), dtype=np.uint8)
    picture = Image.fromarray(rough).resize((240, 240), Image.Resampling.BICUBIC)
    picture.save(tmp_path / "large.png")
    Image.fromarray(rough[:20, :20]).save(tmp_path / "small.png")
    album = Album(tmp_path, 10**6)
    large, small = album.get("large.png"), album.get("small.png")
    assert large is not None and small is not None
    assert base64.b64decode(small.uri.partition(",")[2]) == (tmp_path / "small.png").read_bytes()
    data = base64.b64decode(large.uri.partition(",")[2])
    assert len(data) < (tmp_path / "large.png").stat().st_size / 2
    shown = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=float)
    assert np.abs(shown - np.asarray(picture, dtype=float)).mean() < 6


def test_other_steps_than_the_newest_wait_until_they_are_asked_for(run: Path) -> None:
    text = build_report(run).read_text()
    training = text[text.index('id="training-groups"') :]
    shown, waiting = training.split("<template>")
    assert re.findall(r'data-step="(\d+)"', shown) == ["2", "2"]
    assert re.findall(r'data-step="(\d+)"', waiting.split("</template>")[0]) == ["1", "1"]


def test_a_run_that_has_only_begun_has_a_report(tmp_path: Path) -> None:
    run_folder.write_config(tmp_path, config())
    page = Page(build_report(tmp_path))
    assert "my run" in page.text and not page.with_class("card")
    assert not (tmp_path / "plots").exists()


def test_what_is_no_run_or_is_damaged_is_one_clear_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected the folder of a run"):
        build_report(tmp_path / "nothing")
    path = run_folder.metrics_path(run)
    path.write_text("{bad}\n" + path.read_text())
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 1 is not JSON"):
        build_report(run)


def test_every_section_with_curves_is_a_png(run: Path) -> None:
    build_report(run)
    plots = {p.name: Image.open(p).size for p in (run / "plots").iterdir()}
    assert set(plots) == {"reward.png", "evaluation.png", "time.png", "rows_and_groups.png"}
    assert all(width > 300 and height > 200 for width, height in plots.values())


# ------------------------------------------------------------------------------------- galleries


def album(tmp_path: Path) -> Album:
    return Album(tmp_path, 0)


def test_completions_come_best_first_and_masked_ones_last(tmp_path: Path) -> None:
    masked = completion(0.0, valid=False, verdicts={"iou": verdict(None, fault="timed out")})
    group = [completion(0.2), masked, completion(0.8, finish_reason="length")]
    (card,) = rollout_cards({1: [row("a", group)]}, album(tmp_path))
    assert [(a.label, a.reward) for a in card.attempts] == [("3", 0.8), ("1", 0.2), ("2", None)]
    assert card.attempts[0].flags == ("cut at the token limit",)
    assert card.attempts[2].flags == ("masked from the loss",)
    assert card.attempts[2].scores["iou"].state == "fault"
    assert card.attempts[2].scores["iou"].detail == "timed out"
    assert (card.mean, card.spread) == (0.5, pytest.approx(0.3))
    assert card.facets.failures == ("any", "fault", "cut")


def test_the_best_stands_alone_where_shapes_crowd_the_image(run: Path) -> None:
    many = [{"box": [i / 100, 0, i / 100 + 0.1, 1]} for i in range(20)]
    crowd = completion(0.5, verdicts={"detection": verdict(0.5, answer=many)})
    album = Album(run_folder.media_folder(run), 10**6)
    (card,) = rollout_cards({1: [row("a", [completion(0.1), crowd, crowd])]}, album)
    assert card.alone == 0 and len(card.attempts[0].shapes) == 20
    (card,) = rollout_cards({1: [row("a", [completion(0.1), crowd])]}, album)
    assert card.alone is None


def test_the_same_boxes_in_two_verdicts_are_drawn_once(run: Path) -> None:
    box = [{"box": [0.1, 0.1, 0.2, 0.2]}]
    both = completion(0.5, verdicts={k: verdict(0.5, answer=box) for k in ("iou", "detection")})
    album = Album(run_folder.media_folder(run), 10**6)
    (card,) = rollout_cards({1: [row("a", [both])]}, album)
    assert len(card.attempts[0].shapes) == 1


def test_boxes_are_drawn_on_the_image_that_they_are_in(run: Path) -> None:
    Image.new("RGB", (50, 80), "blue").save(run_folder.media_folder(run) / "blue.png")
    media = [
        {"kind": "image", "name": n, "start": None, "end": None, "thumbnail": f"{n}.png"}
        for n in ("red", "blue")
    ]
    box = completion(0.5, [0.0, 0.0, 0.5, 0.5])
    album = Album(run_folder.media_folder(run), 10**6)
    (card,) = rollout_cards({1: [row("a", [box], media=media, main_medium=1)]}, album)
    assert card.canvas is card.views[1] and card.attempts[0].shapes[0].numbers[2:] == (25.0, 40.0)
    (card,) = rollout_cards({1: [row("a", [box], media=media)]}, album)
    assert card.canvas is card.views[0] and card.attempts[0].shapes[0].numbers[2:] == (100.0, 50.0)


@pytest.mark.parametrize(
    "answer", [{"box": "all"}, {"box": [0, 1]}, [{"point": [None, 2]}], 7, "x"]
)
def test_an_answer_that_is_no_geometry_draws_nothing(run: Path, answer: Any) -> None:
    odd = completion(0.5, verdicts={"mine": verdict(0.5, answer=answer)})
    (card,) = rollout_cards({1: [row("a", [odd])]}, Album(run_folder.media_folder(run), 10**6))
    assert card.attempts[0].shapes == ()


def test_a_held_out_sample_is_shown_before_and_after(tmp_path: Path) -> None:
    first = [row("a", [completion(0.1)], drawn="greedy"), row("gone", [completion(0.1)])]
    last = [row("a", [completion(0.9)], drawn="greedy"), row("a", [completion(0)], drawn="sampled")]
    (card,) = evaluation_cards({0: first, 50: [row("a", [])], 150: last}, album(tmp_path))
    assert [(a.label, a.reward) for a in card.attempts] == [("step 0", 0.1), ("step 150", 0.9)]


def test_every_source_is_among_the_prompts_shown(tmp_path: Path) -> None:
    rows = [row(f"a{i}", []) for i in range(50)] + [row("b", [], source="cells")]
    cards = rollout_cards({1: rows}, album(tmp_path))
    assert len(cards) == 12 and cards[1].source == "cells"


def test_a_medium_that_cannot_be_shown_yet_is_named(run: Path) -> None:
    scent = {"kind": "smell", "name": "a.nose", "start": 0, "end": 4, "thumbnail": None}
    files.write_lines(
        run_folder.rollouts_path(run, 2), [row("scent", [completion(0.5)], media=[scent])]
    )
    assert "smell: a.nose" in Page(build_report(run)).text


def test_a_megabyte_of_text_is_cut_visibly(tmp_path: Path) -> None:
    (card,) = rollout_cards({1: [row("a", [completion(0, text="x" * 10**6)])]}, album(tmp_path))
    text = card.attempts[0].text
    assert len(text) < MAX_TEXT + 50 and text.endswith(f"({10**6 - MAX_TEXT} more characters)")


@given(st.integers(1, 200), st.integers(2, 40))
def test_evenly_keeps_order_and_both_ends(length: int, count: int) -> None:
    chosen = evenly(range(length), count)
    assert len(chosen) == min(length, count) and chosen == sorted(set(chosen))
    assert chosen[0] == 0 and chosen[-1] == length - 1


# ---------------------------------------------------------------------------------------- curves

KEYS = st.sampled_from(
    "reward/mean reward/std reward/iou source/a-b/reward source/a-b/iou source/c/iou "
    "source/c/uniform_share rollout/uniform_share rollout/length rollout/truncated rollout/x "
    "loss/clip_low loss/kl update/lr time/data time/evaluate odd odd/er two\nlines".split(" ")
)


@given(st.dictionaries(KEYS, st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1))
def test_every_metric_is_shown_somewhere(columns: dict[str, tuple[float, float]]) -> None:
    lines = [{"step": i, **{key: values[i] for key, values in columns.items()}} for i in (0, 1)]
    found = sections(StepLines(lines), StepLines(), [])
    shown = sum(len(p.series) for s in found for p in s.panels) + sum(
        len(s.constants) for s in found
    )
    sources = {key.split("/")[1] for key in columns if key.startswith("source/")}
    hidden = sum(key.startswith("source/") for key in columns) if len(sources) == 1 else 0
    assert shown == len(columns) - hidden


def test_a_run_with_one_source_says_everything_once() -> None:
    lines = [{"step": i, "reward/mean": i, "source/only/reward": i} for i in range(3)]
    evaluations = [result(0, reward=0.1, **{"only/reward": 0.1})]
    found = {
        s.title: [p.title for p in s.panels]
        for s in sections(StepLines(lines), StepLines(), evaluations)
    }
    assert found == {"Reward": ["Reward"], "Evaluation": ["all sources"]}


def test_the_reward_panel_compares_the_sources() -> None:
    lines = [
        {"step": i, "reward/mean": i, "source/b/reward": i + 1, "source/a/reward": i + 2}
        for i in (1, 2)
    ]
    (section,) = sections(StepLines(lines), StepLines(), [])
    (panel,) = section.panels
    assert [(s.name, s.values) for s in panel.series] == [
        ("all sources", (1, 2)),
        ("a", (3, 4)),
        ("b", (2, 3)),
    ]


def test_an_evaluation_keeps_its_intervals() -> None:
    (section,) = sections(StepLines(), StepLines(), [result(0, reward=0.5), result(50, reward=0.7)])
    (series,) = section.panels[0].series
    assert (series.steps, series.values) == ((0, 50), (0.5, 0.7))
    assert series.low == pytest.approx((0.4, 0.6)) and series.high == pytest.approx((0.6, 0.8))


@given(st.integers(1, 3000))
def test_a_long_curve_is_thinned_to_means(length: int) -> None:
    lines = [{"step": i, "odd": float(i * i)} for i in range(length)]
    found = sections(StepLines(lines), StepLines(), [])
    curve = found[0].panels[0].series[0] if found[0].panels else Series("", (0,), (0.0,))
    assert len(curve.steps) <= MAX_POINTS and curve.steps[-1] == length - 1
    size = math.ceil(length / MAX_POINTS)
    assert curve.values[0] == pytest.approx(sum(i * i for i in range(size)) / size)


def test_smoothing_takes_noise_and_leaves_a_schedule_alone() -> None:
    steps = tuple(range(100))
    assert smoothed(Series("lr", steps, tuple(min(i, 99 - i) / 50 for i in steps))) is None
    noisy = Series("reward", steps, tuple(float(i % 2) for i in steps))
    mean = smoothed(noisy)
    assert mean is not None and all(0.3 < v < 0.7 for v in mean.values if v is not None)


def test_colours_differ_within_a_panel_and_stay_with_a_name() -> None:
    known = {"reward": 0}
    first = CurvePanel("", tuple(Series(n, (0,), (0.0,)) for n in ("reward", "iou", "format")))
    second = CurvePanel("", tuple(Series(n, (0,), (0.0,)) for n in ("format", "iou")))
    one, two = colours(first, known, 8), colours(second, known, 8)
    assert one[0] == 0 and len(set(one)) == 3 and two == [one[2], one[1]]
    crowd = CurvePanel("", tuple(Series(str(i), (0,), (0.0,)) for i in range(8)))
    assert len(set(colours(crowd, known, 8))) == 8


VALUES = st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(VALUES, st.sampled_from(["", "share", "s"]), st.booleans())
def test_a_drawing_stays_inside_its_axes(
    values: list[float | None], unit: Any, stacked: bool
) -> None:
    heights = [abs(v) if v is not None and stacked else v for v in values]
    steps = tuple(range(7, 7 + len(values)))
    panel = CurvePanel("", (Series("a", steps, tuple(heights)), Series("b", steps, tuple(heights))))
    drawing = draw(CurvePanel("", panel.series, unit, stacked), {})
    for curve in drawing.curves:
        path = curve.line + curve.area + curve.smooth
        for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", path):
            assert SMALL.left <= float(x) <= SMALL.width - SMALL.right
            assert SMALL.top - 0.1 <= float(y) <= SMALL.height - SMALL.bottom + 0.1
    json.dumps(drawing.hover, allow_nan=False)


def test_a_gap_breaks_the_line_and_is_silent_on_hover() -> None:
    drawing = draw(CurvePanel("", (Series("a", (1, 2, 3, 4), (0.0, None, 1.0, 0.5)),)), {})
    (curve,) = drawing.curves
    assert curve.line.count("M") == 2 and len(curve.dots) == 3
    assert drawing.hover["rows"] == [["0", "", "1", "0.5"]]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.12345, "", "0.123"),
        (7258.4, "", "7,258"),
        (3.07e-7, "", "3.07e-07"),
        (0.0625, "share", "6.25%"),
        (1234, "s", "1,234 s"),
        (None, "", "-"),
        (math.nan, "s", "-"),
    ],
)
def test_a_number_is_said_in_three_digits(value: float | None, unit: Any, text: str) -> None:
    assert number(value, unit) == text


@given(st.floats(-1e4, 1e4), st.floats(1e-6, 1e3))
def test_ticks_tell_each_other_apart(start: float, reach: float) -> None:
    drawing = draw(CurvePanel("", (Series("a", (0, 1), (start, start + reach)),)), {})
    labels = [tick.label for tick in drawing.y_ticks]
    assert len(labels) >= 2 and len(set(labels)) == len(labels)


def test_the_height_of_a_point_is_its_value() -> None:
    drawing = draw(CurvePanel("", (Series("a", (0, 10), (0.25, 0.5)),)), {})
    heights = {tick.label: tick.at for tick in drawing.y_ticks}
    (_, low), (_, high) = drawing.curves[0].dots
    assert low == heights["0.25"] and high == heights["0.5"]


def test_stacked_phases_end_at_their_sum() -> None:
    parts = tuple(Series(n, (1, 2), v) for n, v in (("data", (1.0, 2.0)), ("update", (3.0, 6.0))))
    together = draw(CurvePanel("", parts, "s", stacked=True), {})
    alone = draw(CurvePanel("", (Series("sum", (1, 2), (4.0, 8.0)),), "s", stacked=True), {})
    assert together.curves[1].line == alone.curves[0].line
    assert together.hover["rows"] == [["1 s", "2 s"], ["3 s", "6 s"]]


def test_a_recording_has_a_player_and_spans_below_its_waveform(run: Path) -> None:
    recording = Audio(np.sin(np.arange(16000) / 9).astype(np.float32), 16000)
    name = _store_medium(run_folder.media_folder(run), recording)
    assert name is not None and name == _store_medium(run_folder.media_folder(run), recording)
    media = {"kind": "audio", "name": "a.wav", "start": None, "end": None, "thumbnail": name}
    answer = [{"span": [0.25, 0.5]}, {"span": [0.5, 9.0]}]
    heard = {**completion(0.5), "verdicts": {"temporal_iou": verdict(0.5, answer=answer)}}
    truth = {"spans": [{"span": [0.5, 1.0], "label": "seven"}]}
    line = row("heard", [heard], media=[media], truth=truth)
    files.write_lines(run_folder.rollouts_path(run, 2), [line])

    page = Page(build_report(run))

    (player,) = [a for tag, a in page.tags if tag == "audio"]
    start = "data:audio/wav;base64,"
    assert (player["src"] or "").startswith(start)
    data = base64.b64decode((player["src"] or "")[len(start) :])
    samples, rate = soundfile.read(io.BytesIO(data))
    assert rate == 16000 and np.allclose(samples, recording.samples, atol=1e-4)
    lanes = [a["style"] for a in page.with_class("span")]
    assert lanes == [
        f"left: {a}%; width: {b}%" for a, b in ((50.0, 50.0), (25.0, 25.0), (50.0, 50.0))
    ]


def test_modes_are_compared_only_where_there_are_two() -> None:
    def panels(direct: float) -> list[str]:
        line = {
            "mode/think/share": 1 - direct,
            "mode/direct/share": direct,
            "mode/think/reward": 0.5,
        }
        steps = [{"step": step, **line, "mode/think/reward": step / 4} for step in (1, 2)]
        metrics = {f"sampled/{key}": value for key, value in line.items()}
        evaluated = [{"step": 0, "metrics": metrics, "intervals": {}}]
        return [
            panel.title
            for s in sections(StepLines(steps), StepLines(), evaluated)
            for panel in s.panels
        ]

    assert {"reward, by mode", "reward, by mode, sampled"} <= {*panels(0.5)}
    assert not [title for title in panels(0.02) if title.startswith("reward, by mode")]
    assert "share, by mode, sampled" in panels(0.02)


def test_labels_that_are_too_long_are_distances() -> None:
    near = CurvePanel("", (Series("a", (1, 2), (1.0000000, 1.0000008)),))
    first, *others = (tick.label for tick in draw(near, {}).y_ticks)
    assert first == "1" and others and all(label.startswith("+") for label in others)
