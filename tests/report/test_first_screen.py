"""The first screen of a run's page: the answer in a sentence, its levels, and samples before and after."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.report_page import Page, completion, config, row, verdict
from vlmrl.features.report.curves import LARGE, draw
from vlmrl.features.report.first_screen import RunFacts, describe, say_metric
from vlmrl.features.report.growing import MAX_POINTS, Series, StepLines
from vlmrl.features.report.held_out import BEST_CONSTANT, CORRECTED, change, halves, levels
from vlmrl.features.report.page import build_report
from vlmrl.features.report.series import CurvePanel, is_quiet, with_words
from vlmrl.runs import run_folder
from vlmrl.system import files

Box = tuple[float, float, float, float]


def iou(a: Box, b: Box) -> float:
    """By counting the points of a fine grid, not by the formula under test."""
    at = (np.arange(1000) + 0.5) / 1000
    xs, ys = np.meshgrid(at, at)
    ins = [(xs > x1) & (xs < x2) & (ys > y1) & (ys < y2) for x1, y1, x2, y2 in (a, b)]
    return float((ins[0] & ins[1]).sum() / (ins[0] | ins[1]).sum())


def exact_iou(a: Box, b: Box) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0) * max(height, 0)
    areas = sum((x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (a, b))
    return common / (areas - common)


def boxed(name: str, true: Box, guess: Box | None, **more: Any) -> dict[str, Any]:
    """A held-out row whose one verdict is the IoU."""
    score = 0.0 if guess is None else exact_iou(true, guess)
    answer = None if guess is None else [{"box": list(guess)}]
    found = completion(score, verdicts={"box_iou": verdict(score, answer=answer)})
    truth = {"boxes": [{"box": list(true)}], "none": False}
    media = [{"kind": "image", "name": "x", "start": None, "end": None, "thumbnail": f"{name}.png"}]
    return row(name, [found], truth=truth, drawn="greedy", main_medium=0, media=media, **more)


def drawn_boxes(count: int, by: float) -> list[dict[str, Any]]:
    """Rows whose guesses are the true boxes grown by a constant on every side."""
    rng = np.random.default_rng(3)
    rows = []
    for number in range(count):
        x, y = rng.uniform(0.2, 0.5, 2)
        w, h = rng.uniform(0.1, 0.3, 2)
        true = (x, y, x + w, y + h)
        guess = (x - by, y - by, x + w + by, y + h + by)
        rows.append(boxed(str(number), true, guess))
    return rows


def test_what_is_only_a_constant_error_a_constant_correction_earns() -> None:
    rows = drawn_boxes(40, 0.1)
    found = levels("box_iou", rows)
    assert found[CORRECTED] == pytest.approx(1.0)
    assert 0.05 < found[BEST_CONSTANT] < 0.6


def test_the_constant_box_is_measured_on_samples_that_did_not_choose_it() -> None:
    left, right = (0.0, 0.0, 0.25, 1.0), (0.75, 0.0, 1.0, 1.0)
    rows = [boxed(str(i), right if i % 2 else left, left) for i in range(20)]
    # Each half has only one place, so its best box is of no use to the other half.
    assert levels("box_iou", rows)[BEST_CONSTANT] == pytest.approx(iou(left, right)) == 0.0


def test_a_score_that_is_no_iou_has_no_levels_of_boxes() -> None:
    rows = drawn_boxes(40, 0.1)
    for one in rows:
        one["completions"][0]["verdicts"]["box_iou"]["score"] *= 0.9
    assert levels("box_iou", rows) == {}
    assert levels("box_iou", drawn_boxes(4, 0.1)) == {}  # too few


def test_the_best_constant_text_is_the_share_of_the_commonest_truth() -> None:
    rows = []
    for number in range(20):
        right = "yes" if number % 4 else "no"
        found = completion(1.0, verdicts={"exact": verdict(float(number % 3 == 0))})
        rows.append(row(str(number), [found], truth={"text": [right]}, drawn="greedy"))
    assert levels("exact", rows) == {BEST_CONSTANT: 15 / 20}


def test_rows_of_one_image_stay_in_one_half() -> None:
    rows = {("s", str(i)): boxed(f"image{i // 3}", (0, 0, 1, 1), None) for i in range(12)}
    parts = halves(rows)
    images = [{rows[key]["media"][0]["thumbnail"] for key in part} for part in parts]
    assert images[0].isdisjoint(images[1]) and sum(map(len, parts)) == 12


def test_a_change_is_counted_on_the_same_samples_and_by_images() -> None:
    first = [boxed(str(i), (0, 0, 1, 1), (0, 0, 1, 0.5)) for i in range(10)]
    last = [boxed(str(i), (0, 0, 1, 1), (0, 0, 1, 0.75)) for i in range(12)]
    found = change("box_iou", first, last)
    assert found is not None and found.samples == 10 and found.is_known
    assert (found.mean, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    of_one = [{**one, "media": first[0]["media"]} for one in first]
    found = change("box_iou", of_one, [{**one, "media": first[0]["media"]} for one in last])
    assert found is not None and found.low is None  # one image says nothing of others


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("box_iou", "box IoU"),
        ("sampled/shapes/box_iou", "box IoU of shapes, sampled"),
        ("reward", "reward"),
    ],
)
def test_a_metric_is_said_in_words(metric: str, said: str) -> None:
    assert say_metric(metric) == said


def evaluated(step: int, value: float, by: float = 0.02, **more: float) -> dict[str, Any]:
    metrics = {"box_iou": value, **more}
    return {
        "step": step,
        "metrics": metrics,
        "intervals": {key: [v - by, v + by] for key, v in metrics.items()},
    }


def test_the_sentence_of_a_run_that_learned() -> None:
    progress = RunFacts(
        metric="box_iou",
        planned=150,
        steps=150,
        ended=True,
        evaluations=[evaluated(0, 0.47, format=1.0), evaluated(150, 0.65, format=0.99)],
        levels={BEST_CONSTANT: 0.2, CORRECTED: 0.56},
        newest={
            "media_ablation/blank_logprob_drop": 0.5,
            "media_ablation/blank_reward_drop": 0.31,
        },
    )
    found = describe(progress)
    assert found.state == "rose" and not found.advice
    assert found.sentence == "Held-out box IoU rose from 0.47 to 0.65 (95 % 0.63–0.67) in 150 steps"
    assert found.facts == (
        "format held (0.99)",
        "a constant correction would earn 50% of the gain",
        "0.45 above the best constant answer",
        "no sign of blind answers (blank media cost it 0.31 of its reward)",
    )


def test_the_sentence_of_a_run_that_did_not_says_why_and_what_to_try() -> None:
    lines = [
        {
            "step": s,
            "reward/mean": 0.0,
            "rollout/uniform_share": 1.0,
            "reward/std": 0.1,
            "rollout/answered": 1.0,
        }
        for s in (1, 2)
    ]
    evaluations = [
        evaluated(0, 0.3, answered=1.0),
        evaluated(60, 0.31, answered=0.5),
    ]
    found = describe(
        RunFacts("box_iou", 100, 60, False, evaluations, first_lines=lines, last_lines=lines)
    )
    assert found.state == "same" and "did not change: 0.30 to 0.31" in found.sentence
    assert found.sentence.endswith("in 60 steps so far (of 100)")
    assert found.advice[0].startswith("too hard: all groups are uniform")
    assert "the share of readable answers fell from 1.00 to 0.50" in found.facts


def test_what_many_steps_complained_of_leads_before_the_length_of_a_run() -> None:
    # Every other step has no readable answer, and the mean of the last ten has some.
    lines = [
        {
            "step": s,
            "reward/mean": 0.1,
            "reward/std": 0.1,
            "rollout/answered": 0.0 if s % 2 else 0.3,
        }
        for s in range(1, 21)
    ]
    evaluations = [evaluated(0, 0.3), evaluated(20, 0.3)]
    tree = {"run": {"steps": 20}, "evaluation": {"metric": "box_iou"}}
    found = describe(RunFacts.of(tree, StepLines(lines), ended=True, evaluations=evaluations))
    assert found.advice[0].startswith(
        "in 10 of 20 steps, the last of them: no readable answers: 0 % of completions"
    )
    assert not any("steps are few" in line for line in found.advice)
    seldom = [{**line, "rollout/answered": 0.3 if line["step"] > 4 else 0.0} for line in lines]
    found = describe(RunFacts.of(tree, StepLines(seldom), ended=True, evaluations=evaluations))
    assert found.advice == ("20 steps are few: try more (run.steps)",)


def test_a_reward_that_rises_alone_is_called_so() -> None:
    evaluations = [evaluated(0, 0.5), evaluated(90, 0.4)]
    lines = [[{"step": s, "reward/mean": v}] for s, v in ((1, 0.2), (90, 0.9))]
    found = describe(
        RunFacts(
            "box_iou",
            90,
            90,
            True,
            evaluations,
            first_lines=lines[0],
            last_lines=lines[1],
        )
    )
    assert found.state == "fell" and "rose (0.20 to 0.90)" in found.advice[0]


@pytest.mark.parametrize("evaluations", [(), (evaluated(0, 0.5),)])
def test_without_two_evaluations_nothing_is_claimed(evaluations: Any) -> None:
    assert describe(RunFacts("box_iou", 10, 0, False, evaluations)).state == "open"


def test_levels_are_drawn_with_labels_that_do_not_overlap() -> None:
    near = (("a", 0.5), ("b", 0.501), ("c", 0.9))
    drawing = draw(CurvePanel("", (Series("x", (0, 10), (0.4, 0.6)),), levels=near), {}, (), LARGE)
    heights = [label.at for _, label in drawing.levels]
    assert all(a - b >= 13 for a, b in pairwise(heights))
    assert LARGE.top <= drawing.levels[-1][0]  # the axis reaches up to the highest level


@pytest.mark.parametrize(
    ("values", "unit", "ends"),
    [
        ((0.0, 0.0), "", ("0", "1")),
        ((1.0, 1.0), "", ("0", "1")),
        ((0.0,), "share", ("0%", "100%")),
        ((0.93, 1.0), "", ("0.92", "1")),
    ],
)
def test_what_lies_between_0_and_1_is_drawn_between_0_and_1(
    values: tuple[float, ...], unit: Any, ends: tuple[str, str]
) -> None:
    series = Series("x", tuple(range(len(values))), values)
    ticks = draw(CurvePanel("", (series,), unit), {}).y_ticks
    assert (ticks[0].label, ticks[-1].label) == ends


def test_the_script_is_given_the_numbers_of_a_curve_and_the_axes_their_names() -> None:
    series = Series("x", (0, 5), (0.123456789, None), (0.1, 0.0), (0.2, 1.0))
    drawing = draw(CurvePanel("Held-out IoU", (series,), levels=(("b", 0.5), ("a", 0.25))), {})
    assert drawing.hover["values"] == [[0.123457, None]]
    assert drawing.hover["bounds"] == [[[0.1, 0.2], [0.0, 1.0]]]
    assert drawing.hover["levels"] == [0.25, 0.5]
    assert drawing.names == (("a", "0.25"), ("b", "0.5"))
    assert (drawing.upright, drawing.hover["across"]) == ("Held-out IoU", "step")
    assert draw(CurvePanel("Time", (series,), "s"), {}).upright == "seconds"


def test_a_long_curve_is_drawn_at_some_of_its_steps_with_both_ends() -> None:
    steps = tuple(range(0, 30_000, 3))
    values = tuple(float(step) for step in steps)
    series = Series("x", steps, values, tuple(v - 1 for v in values), tuple(v + 1 for v in values))
    drawing = draw(CurvePanel("", (series,)), {}, (), LARGE)
    drawn = drawing.hover["steps"]
    assert len(drawn) == MAX_POINTS == len(drawing.curves[0].bars)
    assert (drawn[0], drawn[-1]) == (steps[0], steps[-1]) and set(drawn) <= set(steps)
    for step, said in zip(drawn[1:], drawing.hover["rows"][0][1:], strict=True):
        assert float(said.partition(" ")[0].replace(",", "")) == pytest.approx(step, rel=0.01)


def test_a_panel_in_which_nothing_happens_is_quiet() -> None:
    def quiet(*values: float) -> bool:
        return is_quiet(CurvePanel("", (Series("a", tuple(range(len(values))), values),)))

    assert quiet(1.0, 1.01, 1.0) and not quiet(1.0, 1.2) and not quiet(0.0, 0.001)
    assert not quiet(0.5)  # one point says nothing of change


def test_titles_are_words_and_the_glossary_explains_them() -> None:
    found = with_words(CurvePanel("update/grad_norm", ()))
    assert found.title == "Norm of the gradient" and "before clipping" in found.about
    assert with_words(CurvePanel("Components, x", ())).title == "Components, x"


def test_the_page_begins_with_the_answer_and_eight_pairs(tmp_path: Path) -> None:
    run_folder.write_config(tmp_path, config())
    media = run_folder.media_folder(tmp_path)
    media.mkdir(parents=True)
    for number in range(12):
        Image.new("RGB", (40, 40), (number * 20, 0, 0)).save(media / f"{number}.png")
    for step, by in ((0, 0.15), (50, 0.02)):
        rows = drawn_boxes(12, by)
        rewards = [one["completions"][0]["reward"] for one in rows]
        mean = float(np.mean(rewards))
        result = {
            "metrics": {"reward": mean},
            "intervals": {"reward": [mean - 0.01, mean + 0.01]},
            "pass_at_k": None,
        }
        run_folder.write_evaluation(tmp_path, step, result, rows)
    files.append_line(run_folder.metrics_path(tmp_path), {"step": 50, "reward/mean": 0.5})
    for step, score in ((1, 0.25), (2, 0.5), (3, None)):
        line = {"step": step, "demonstrations/reward": score}
        files.append_line(run_folder.sft_path(tmp_path), line)
    path = build_report(tmp_path)
    page = Page(path)
    assert "demonstrations 0.375" in page.text
    assert "Held-out reward rose from" in page.text
    assert len(page.with_class("sample")) == 8 and len(page.with_class("half")) == 16
    text = path.read_text()
    order = [
        text.index(mark)
        for mark in (
            'class="sentence',
            'class="main"',
            'class="samples"',
            'id="evaluation"',
            'id="config"',
        )
    ]
    assert order == sorted(order)


def test_the_true_text_stands_above_the_answers_and_a_true_box_is_only_drawn(
    tmp_path: Path,
) -> None:
    run_folder.write_config(tmp_path, config())
    truths: list[dict[str, Any]] = [
        {"text": ["7 <3"], "number": 7.0},
        {"choice": "B", "text": None},
        {"number": 12.0},
        {"boxes": [{"box": [0.0, 0.0, 0.5, 0.5]}], "text": ["not shown"], "none": False},
    ]
    media = run_folder.media_folder(tmp_path)
    media.mkdir(parents=True)
    Image.new("RGB", (40, 40)).save(media / "red.png")
    for step in (0, 50):
        rows = [
            row(
                str(n),
                [completion(0.5)],
                truth=truth,
                drawn="greedy",
                main_medium=0,
                question=f"Question {n}?",
            )
            for n, truth in enumerate(truths)
        ]
        result = {"metrics": {"reward": 0.5}, "intervals": {}, "pass_at_k": None}
        run_folder.write_evaluation(tmp_path, step, result, rows)
    text = build_report(tmp_path).read_text()
    samples = text[text.index('class="samples"') : text.index('id="evaluation"')].split("<article")[
        1:
    ]
    shown = [re.findall(r"true</span> (.*?)</p>", sample) for sample in samples]
    assert shown == [["7 &lt;3"], ["B"], ["12"], []]
