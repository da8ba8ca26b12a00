"""`vlmrl compare` of evaluated data and of runs: paired by id, pictures in one space, configs that differ."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from helpers.report_page import Page, begin_run, completion, row, verdict
from vlmrl.cli.app import app
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.compare import compare_results
from vlmrl.runs import run_folder
from vlmrl.system import files

FRAME = {"width": 300, "height": 200, "space": "norm1000"}
BOX = [1 / 3, 0.25, 2 / 3, 0.75]


def answered(name: str, score: float, box: Sequence[float] = BOX, **more: Any) -> dict[str, Any]:
    media = [
        {"kind": "image", "name": name, "start": None, "end": None, "thumbnail": f"{name}.png"}
    ]
    return row(
        name,
        [completion(score, list(box))],
        media=media,
        drawn="greedy",
        main_medium=0,
        frame=FRAME,
        **more,
    )


def store(folder: Path, rows: Sequence[Mapping[str, Any]], **manifest: object) -> str:
    files.write_lines(folder / "evaluation.jsonl", rows)
    files.write_json(folder / "evaluation.json", {"metrics": {}, "manifest": manifest})
    for each in rows:
        path = folder / "media" / f"{each['id']}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (30, 20), "blue").save(path)
    return str(folder)


def evaluate_run(folder: Path, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
    path = run_folder.evaluation_path(folder, step)
    files.write_lines(path.with_suffix(".jsonl"), ({"step": step, **each} for each in rows))
    files.write_json(path, {"step": step, "metrics": {}, "intervals": {}})


def test_rows_are_paired_by_id_and_what_has_no_partner_is_named(tmp_path: Path) -> None:
    before = {f"s{n}": (n % 5) / 10 for n in range(40)}
    after = {f"s{n}": (n % 5) / 10 + (0.3 if n % 2 else -0.1) for n in range(39, 3, -1)}
    first = store(tmp_path / "a", [answered(name, score) for name, score in before.items()])
    second = store(tmp_path / "b", [answered(name, score) for name, score in after.items()])
    (found,) = compare_results([first, second])
    (contrast,) = found.contrasts
    shared = [after[name] - before[name] for name in after]
    assert contrast.main.count == 36
    assert contrast.main.value == pytest.approx(sum(shared) / 36)
    assert contrast.main.low < contrast.main.value < contrast.main.high
    assert contrast.main.verdict == "better"
    assert {move.first.id for move in contrast.losses} == {f"s{n}" for n in range(4, 40, 2)}
    assert [note.split(": ", 1)[1] for note in found.notes] == [
        "4 of 40 rows are not in all, left out: s0, s1, s2 ..."
    ]


def test_both_boxes_and_the_true_one_are_drawn_and_said_in_pixels(tmp_path: Path) -> None:
    first = store(tmp_path / "a", [answered("x", 0.1, [0.0, 0.0, 0.5, 0.5])], pixels={"max": 100})
    second = store(tmp_path / "b", [answered("x", 0.6)], pixels={"max": 200}, space="pixel")
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["compare", first, second, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "pixels.max: 100 → 200" in done.output and 'space: - → "pixel"' in done.output
    page = Page(out / "comparison.html")
    rects = [
        [float(a[k] or 0) for k in ("x", "y", "width", "height")]
        for t, a in page.tags
        if t == "rect"
    ]
    # Of the stored image, 30 x 20: the true box, before and after.
    assert rects == [[7.5, 10, 15, 10], [0, 0, 15, 10], [10, 5, 10, 10]]
    assert "box [75, 100, 225, 200] ace" in page.text and "in pixels of 300 x 200" in page.text
    assert "box [0, 0, 150, 100]" in page.text and "box [100, 50, 200, 150]" in page.text
    loaded = [a.get("href") or a.get("src") or "#" for _, a in page.tags]
    assert all(address.startswith(("#", "data:")) for address in loaded)
    stored = json.loads((out / "comparison.json").read_text())["comparisons"][0]
    assert stored["settings"]["pixels.max"] == {"from": "100", "to": "200"}
    assert "rows" not in stored and "evaluated" not in stored


def test_a_run_is_compared_with_itself_and_its_steps_with_others(tmp_path: Path) -> None:
    for name, late in (("one", 0.9), ("two", 0.2)):
        begin_run(tmp_path / name)
        for step, score in ((0, 0.1), (5, 0.4), (10, late)):
            rows = [answered(f"s{n}", min(score + n / 100, 1.0)) for n in range(9)]
            evaluate_run(tmp_path / name, step, rows)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    values = {
        asked: compare_results(asked)[0].contrasts[0].differences[-1].value
        for asked in ((one,), (one, two), (f"{one}:5", two), (f"{one}:0,{two}:0", f"{one},{two}"))
    }
    assert [*values.values()] == pytest.approx([0.8, -0.7, -0.2, 0.45])
    (alone,) = compare_results([one])
    assert (alone.first, alone.second, alone.settings) == ("one:0", "one:10", ())


def test_the_first_number_is_the_metric_of_the_run(tmp_path: Path) -> None:
    begin_run(tmp_path)
    config = files.read_json(tmp_path / "config.json")
    config["evaluation"] = {"metric": "sampled/shapes/exact"}
    files.write_json(tmp_path / "config.json", config)
    for step in (0, 5):
        drawn = completion(0.5, verdicts={"box_iou": verdict(0.5), "exact": verdict(step / 10)})
        rows = [
            answered("x", 0.5),
            {**answered("x", 0.5), "drawn": "sampled", "completions": [drawn] * 2},
        ]
        evaluate_run(tmp_path, step, rows)
    main = compare_results([str(tmp_path)])[0].contrasts[0].main
    assert (main.number, main.first, main.second) == ("sampled/exact", 0.0, 0.5)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("data", "nowhere"),
            "nowhere: expected what `vlmrl eval` wrote .* got no such folder.*RUN:STEP",
        ),
        (("data", "empty"), "got neither; of a model: `vlmrl eval .*empty --data FILE --out"),
        (("data",), "expected two results at least, or a run with two evaluations"),
        (("data", "other"), "share samples, paired by id, got none: .* has 'x', .* 'y'"),
        (("data", "changed"), r"another id or truth in row 0 \(x\)"),
        (("data", "run:7"), "run:7: expected the step of an evaluation in .*evals, of: 0"),
        (("data", "bench"), "results of one kind, got benchmarks in .*bench and data in .*data"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    tmp_path: Path, asked: tuple[str, ...], said: str
) -> None:
    store(tmp_path / "data", [answered("x", 1)])
    store(tmp_path / "other", [answered("y", 1)])
    store(tmp_path / "changed", [answered("x", 1, truth={"number": 1})])
    evaluate_run(begin_run(tmp_path / "run"), 0, [answered("x", 1)])
    (tmp_path / "empty").mkdir()
    files.write_json(tmp_path / "bench" / "chartqa" / "result.json", {})
    with pytest.raises(UserError, match=said):
        compare_results([str(tmp_path / name) for name in asked])


def test_a_mistake_is_told_before_anything_heavy_is_loaded() -> None:
    code = (
        "import sys\nfrom vlmrl.features.benchmarks.compare import compare_results\n"
        "try: compare_results(['nowhere', 'nowhere'])\n"
        "except Exception as e: print(type(e).__name__, {'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "UserError set()\n", done.stderr
