"""Comparisons: paired differences, their intervals over clusters and seeds, refusals, the first line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.report_page import Page
from vlmrl.benchmarking.aggregates import Rows, statistic_of
from vlmrl.benchmarking.scoring import Figure, Result, RowScore, read_result, write_result
from vlmrl.cli.app import app
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.comparison import compare, estimate_difference
from vlmrl.features.benchmarks.tables import plain_truth
from vlmrl.system import files


def row(index: int, score: float, strict: float | None = None, **more: str) -> RowScore:
    given = {"id": f"r{index}", "cluster": f"c{index // 2}", "truth": '{"text": ["a"]}', **more}
    kind = ("human", "augmented")[index % 2]
    return RowScore(
        index=index,
        groups={"type": kind},
        official=score,
        strict=score if strict is None else strict,
        read=True,
        finish_reason="stop",
        said="",
        right="",
        text="a text",
        answer="an answer, with\na line",
        question="How many?",
        **given,
    )


def result(scores: Sequence[float], protocol: str = "lmms_eval@0.7.3", **more: object) -> Result:
    rows = [row(i, score) for i, score in enumerate(scores)]
    figures = {"official": Figure(float(np.mean(scores)), 0, 1, len(scores))}
    groups = {"type": {"augmented": figures, "human": figures}}
    numbers = {"official": ("mean", ""), "strict": ("mean", "")}
    given = {"benchmark": "chartqa", "protocol": protocol, "unit": "fraction", "rows": rows, **more}
    return Result(
        **{"numbers": numbers, "figures": figures, "groups": groups, "unread": 0.0, **given},  # type: ignore[arg-type]
        truncated=0.0,
        disagreeing=0,
    )


def scores(share: float, count: int = 400, seed: int = 0) -> list[float]:
    return (np.random.default_rng(seed).random(count) < share).astype(float).tolist()


def test_a_stored_result_is_read_as_it_was(tmp_path: Path) -> None:
    written = result([1, 0, 1, 0.5])
    write_result(tmp_path, written, {"model": "m"})
    assert read_result(tmp_path).result == written
    assert read_result(tmp_path).manifest == {"model": "m"}


def test_what_both_share_does_not_widen_the_interval() -> None:
    base = scores(0.5)
    better = [1.0 if i % 20 == 0 else score for i, score in enumerate(base)]
    main = compare([result(base)], [result(better)]).main
    assert main.value == pytest.approx(np.mean(better) - np.mean(base))
    assert main.verdict == "better"
    alone = list(scores(0.5, seed=1))
    unpaired = compare([result(base)], [result(alone)]).main
    assert unpaired.high - unpaired.low > 3 * (main.high - main.low)


def test_differences_of_a_mean_agree_with_the_formula() -> None:
    """The bootstrap of a mean has the standard error of the clusters' sums (Cochran 1977, eq. 2.42)."""
    first, second = scores(0.4), scores(0.5, seed=3)
    main = compare([result(first)], [result(second)]).main
    by_cluster = (np.array(second) - np.array(first)).reshape(-1, 2).sum(1)
    error = by_cluster.std() * np.sqrt(len(by_cluster)) / len(first)
    assert (main.high - main.low) / 2 == pytest.approx(1.96 * error, rel=0.08)


def test_seeds_that_differ_widen_the_interval() -> None:
    base = [result(scores(0.5))]
    alike = [result(scores(0.55, seed=5))] * 3
    apart = [result(scores(share, seed=5)) for share in (0.35, 0.55, 0.75)]
    narrow, wide = compare(base, alike).main, compare(base, apart).main
    assert narrow.verdict == "better" or narrow.value > 0
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_groups_and_moves_are_listed() -> None:
    found = compare([result([0, 0, 1, 1])], [result([1, 0, 1, 0])])
    assert [(d.number, d.group, d.count) for d in found.differences[:3]] == [
        ("official", "", 4),
        ("strict", "", 4),
        ("official", "augmented", 2),
    ]
    assert [move.index for move in found.wins] == [0]
    assert [move.index for move in found.losses] == [3]


def test_rows_on_which_the_verifier_failed_are_left_out_and_counted() -> None:
    broken = result([1, 0, 1, 1])
    lost = RowScore(
        **{**{n: getattr(broken.rows[0], n) for n in RowScore.__slots__}, "strict": None}
    )
    broken = result([1, 0, 1, 1], rows=[lost, *broken.rows[1:]])
    found = compare([result([1, 0, 1, 0])], [broken])
    strict = next(d for d in found.differences if d.number == "strict")
    assert (found.faulted, strict.count, found.main.count) == (1, 3, 4)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            result([1, 0], protocol="ours"),
            "results of one protocol, got 'lmms_eval@0.7.3' and 'ours'",
        ),
        (result([1, 0, 1]), "the same rows, got 2 and 3 rows, such as row 2 in one"),
        (result([1, 0], rows=[row(0, 1), row(1, 0, truth="{}")]), "another id or truth in row 1"),
    ],
)
def test_results_that_cannot_be_paired_are_refused(other: Result, said: str) -> None:
    with pytest.raises(UserError, match=said):
        compare([result([1, 0])], [other])


def test_the_first_line_answers_the_question(tmp_path: Path) -> None:
    base = scores(0.5)
    for name, numbers in (("base", base), ("tuned", [1.0] * 40 + base[40:])):
        write_result(tmp_path / name / "chartqa", result(numbers), {"max_tokens": 16})
        write_result(tmp_path / name / "mmstar", result(base, benchmark="mmstar"), {})
    said = CliRunner().invoke(
        app,
        [
            "compare",
            str(tmp_path / "base"),
            str(tmp_path / "tuned"),
            "--out",
            str(tmp_path / "out"),
        ],
    )
    assert said.exit_code == 0, said.exception
    first = said.output.splitlines()[0]
    assert first.startswith("tuned is better than base (one seed each) on chartqa by ")
    assert first.endswith("; no difference can be told on mmstar.")
    assert "human" in said.output and "rows won" in said.output
    stored = json.loads((tmp_path / "out/comparison.json").read_text())["comparisons"][0]
    assert stored["conclusion"] == first
    assert stored["contrasts"][0]["differences"][0]["verdict"] == "better"
    page = Page(tmp_path / "out/comparison.html")
    assert first in page.text and "an answer, with" in page.text
    kinds = [card["data-kind"] for card in page.with_class("card")]
    assert kinds == ["won"] * len(kinds) and 0 < len(kinds) <= 50
    assert not [a for _, a in page.tags if "src" in a or "href" in a]  # nothing is loaded


def test_a_true_box_is_said_in_the_space_of_the_answers(tmp_path: Path) -> None:
    truth = '{"boxes": [{"box": [0.003125, 0.25, 0.75, 1.0], "label": "dog"}]}'
    for name, score in (("base", 0.0), ("tuned", 1.0)):
        rows = [row(i, score, truth=truth) for i in range(6)]
        write_result(tmp_path / name / "chartqa", result([score] * 6, rows=rows), {})
    frame = {
        "width": 640,
        "height": 480,
        "space": "resized",
        "resized_width": 320,
        "resized_height": 240,
    }
    files.write_lines(
        tmp_path / "base/chartqa/answers.jsonl", ({"index": i, "frame": frame} for i in range(6))
    )
    arms = [str(tmp_path / "base"), str(tmp_path / "tuned"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["compare", *arms])
    assert done.exit_code == 0, done.exception
    assert "box [1, 60, 240, 240] dog" in Page(tmp_path / "out/comparison.html").text


def test_a_folder_without_a_result_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["compare", str(tmp_path), str(tmp_path)])
    assert isinstance(done.exception, UserError)
    assert "expected what `vlmrl eval` wrote with --out, or a run" in str(done.exception)


def test_an_interval_of_a_difference_of_f1_is_of_the_f1_itself() -> None:
    draw = np.random.default_rng(0)
    right = ["yes" if bit else "no" for bit in draw.random(600) < 0.5]
    said = [[w if draw.random() < share else "no" for w in right] for share in (0.6, 0.9)]
    statistics = [
        statistic_of("f1", Rows(np.zeros(600), [""] * 600, s, right), [str(i) for i in range(600)])
        for s in said
    ]
    a, b, value, low, high = estimate_difference([statistics[0][0]], [statistics[1][0]], 600)
    assert value == pytest.approx(b - a) and low < value < high
    assert low > 0.1 and high < 0.4


def test_pass_at_k_of_both_models_stands_on_one_axis(tmp_path: Path) -> None:
    def store(name: str, benchmark: str, passes: dict[int, float] | None) -> None:
        folder = tmp_path / name / benchmark
        write_result(folder, result(scores(0.5), benchmark=benchmark), {})
        if passes is not None:
            figures = {str(k): asdict(Figure(v, v - 0.1, v + 0.1, 400)) for k, v in passes.items()}
            (folder / "controls.json").write_text(json.dumps({"pass_at_k": figures}))

    store("base", "chartqa", {1: 0.2, 2: 0.4, 8: 0.8})
    store("tuned", "chartqa", {1: 0.5, 2: 0.6, 4: 0.65})
    store("base", "mmstar", {1: 0.2})
    store("tuned", "mmstar", None)
    folders = [str(tmp_path / "base"), str(tmp_path / "tuned")]
    said = CliRunner().invoke(app, ["compare", *folders, "--out", str(tmp_path / "out")])
    assert said.exit_code == 0, said.exception
    lines = [line.split() for line in said.output.splitlines()]
    assert ["2", "40.0", "[30.0,", "50.0]", "60.0", "[50.0,", "70.0]"] in lines
    assert ["8", "80.0", "[70.0,", "90.0]", "-"] in lines
    assert "mmstar: no pass@k curves, because tuned has none" in said.output
    (stored,) = json.loads((tmp_path / "out/comparison.json").read_text())["comparisons"]
    (curves,) = stored["passes"]
    assert curves["benchmark"] == "chartqa" and curves["curves"]["base"]["8"]["value"] == 0.8
    page = Page(tmp_path / "out/comparison.html")
    drawn = [a["d"] for tag, a in page.tags if tag == "path" and a.get("class") == "line"]
    places = [
        [tuple(map(float, point.split(","))) for point in line[1:].split("L")] for line in drawn
    ]
    assert [len(line) for line in places] == [3, 3]
    (x1, y1), (x2, y2), (x8, y8) = places[0]
    assert x8 - x1 == pytest.approx(3 * (x2 - x1), abs=0.3)  # each doubling is as wide
    assert y8 - y1 == pytest.approx(3 * (y2 - y1), abs=0.3)
    assert places[1][0][1] < y1  # the better model lies above
    (hover,) = [json.loads(a["data-hover"]) for tag, a in page.tags if "data-hover" in a]
    assert (hover["steps"], hover["names"]) == ([1, 2, 4, 8], ["base", "tuned"])
    assert hover["values"] == [[0.2, 0.4, None, 0.8], [0.5, 0.6, 0.65, None]]
    assert hover["x"][:2] == pytest.approx(
        [(places[0][0][0] + places[1][0][0]) / 2, (x2 + places[1][1][0]) / 2], abs=0.1
    )
    assert "pass@8 80.0 [70.0, 90.0]" in page.text and "pass@4 65.0" in page.text


def test_from_one_cluster_no_interval_can_be_had(tmp_path: Path) -> None:
    rows = [[row(i, score, cluster="c") for i in range(6)] for score in (0.0, 1.0)]
    pair = [result([score] * 6, rows=some) for score, some in zip((0.0, 1.0), rows, strict=True)]
    main = compare([pair[0]], [pair[1]]).main
    assert (main.value, main.bounded, main.verdict) == (1.0, False, "unclear")
    for name, one in zip("ab", pair, strict=True):
        write_result(tmp_path / name / "chartqa", one, {"benchmark": "chartqa"})
    out = tmp_path / "out"
    asked = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(out)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "all rows are of one cluster, from which no interval can be had" in done.output
    stored = json.loads((out / "comparison.json").read_text())["comparisons"][0]["contrasts"][0]
    assert (stored["differences"][0]["low"], stored["differences"][0]["verdict"]) == (
        None,
        "unclear",
    )
    assert "+100.0 [no interval: one cluster]" in (out / "comparison.html").read_text()


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ('{"text": ["a", "b c"]}', "a or b c"),
        ('{"choice": "B", "options": ["x", "y"]}', "choice: B; options: x, y"),
        ('{"number": 2.0}', "2"),
        ('{"boxes": [{"box": [0.25, 0.5, 1.0, 1.0]}]}', "box 0.25, 0.5, 1, 1"),
        ('{"spans": [[1.5, 2.0], [3, 4]]}', "1.5, 2; 3, 4"),
        ('{"masks": "0101 sha256:0123', '{"masks": "0101 sha256:0123'),
    ],
)
def test_a_truth_is_shown_in_plain_text(stored: str, shown: str) -> None:
    assert plain_truth(stored) == shown
