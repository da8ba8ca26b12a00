"""Compare our official numbers with what VLMEvalKit prints when it scores the answers that we export.

    python tests/reference/replay_vlmevalkit.py CHECKOUT

For each benchmark that states its data set, some answers to the fixture rows are scored by us, exported
as `vlmrl eval --export vlmevalkit` does, and scored by the `run.py --mode eval` of the checkout, by the
script that is exported with them. Exits with 1 if a number differs.
"""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from answers import any_answer, any_places

from helpers.published import ROWS, write_published
from vlmrl import plugins
from vlmrl.benchmarking.base import BenchmarkCard, open_benchmark
from vlmrl.benchmarking.scoring import Answer, Result, score_answers
from vlmrl.data.source import Source
from vlmrl.features.benchmarks.export import export_answers
from vlmrl.schema import Sample

ROOT = Path(__file__).parents[2]
FRAME = {"width": 96, "height": 64, "space": "norm1000"}
TIMES = 12
"""Times that each row is answered."""
MME = "OCR artwork celebrity color count existence landmark position posters scene code_reasoning"
MME_CATEGORIES = (
    *MME.split(),
    "commonsense_reasoning",
    "numerical_calculation",
    "text_translation",
)


def main() -> None:
    """Score, export, replay and compare."""
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        ours = dict(_scored(folder))
        _replay(folder / "out", Path(sys.argv[1]).resolve())
        theirs = {name: _printed(folder / "out", name) for name in ours}
    failed = False
    for name, result in ours.items():
        scale = 100 if result.unit == "percent" else 1
        wanted = [f.value * scale for n, f in result.figures.items() if n.startswith("official")]
        same = len(wanted) == len(theirs[name]) and all(
            abs(a - b) < 1e-12 * max(1.0, abs(a)) for a, b in zip(wanted, theirs[name], strict=True)
        )
        failed |= not same
        print(f"{name:16} {len(result.rows):4} rows, ours {wanted}, VLMEvalKit {theirs[name]}"
              f"{'' if same else ' DIFFERS'}")  # fmt: skip
    sys.exit(int(failed))


def _scored(folder: Path) -> Iterator[tuple[str, Result]]:
    """Score answers to the fixture rows of each benchmark, and export them."""
    for name in sorted(ROWS):
        benchmark = plugins.load("benchmark", name)
        for official in benchmark.officials:
            if official.protocol.startswith("vlmevalkit") and official.task:
                yield name, _score(folder, name, benchmark.split)


def _score(folder: Path, name: str, split: str) -> Result:
    rows = [dict(row) for row in ROWS[name] for _ in range(TIMES)]
    if name == "mme":  # all its categories, two questions about each image
        rows = [{**row, "category": kind, "question_id": f"{kind} {i // 2}"}
                for kind in MME_CATEGORIES for i, row in enumerate(ROWS[name][:6])]  # fmt: skip
    if name == "hallusion_bench":
        rows = [{**row, "set_id": str(i)} for i in range(TIMES) for row in ROWS[name]]
    path = write_published(folder / "data", name, split, rows)
    card = BenchmarkCard(open_benchmark(name, str(path)), "vlmevalkit")
    source = Source(name, card, split, card.rows(split), template="none")
    draw = random.Random(name)
    answers = [
        Answer(i, _answer(draw, source.sample(i)), 3, "stop", FRAME)
        for i in range(len(source.rows))
    ]
    result = score_answers(card.benchmark, source, "vlmevalkit", answers)
    export_answers("vlmevalkit", folder / "out", source, result)
    return result


def _answer(draw: random.Random, sample: Sample) -> str:
    """Draw a right answer, or one that a rule may read in another way than meant."""
    truth = sample.truth
    right = [*(truth.text or ()), *filter(None, (truth.choice,))]
    right += [str(int(truth.number))] if truth.number is not None else []
    if truth.boxes:
        box, (width, height) = truth.boxes[0], sample.meta.get("size") or (96, 64)
        x, y = (box.x1 + box.x2) / 2 * width, (box.y1 + box.y2) / 2 * height
        right = [str([round(1000 * v) for v in box.xyxy]), f"click(x={x:.1f}, y={y:.1f})"]
        return draw.choice((*right, *right, any_places(draw), "None", ""))
    one = draw.choice(right)
    forms = (
        one,
        one,
        f"{one}.",
        f"The answer is {one}",
        f"{one}\n\t\"{one}'",
        "NA",
        "",
        "null",
        "B",
        "no",
    )
    return draw.choice((*forms, any_answer(draw)))


def _replay(out: Path, checkout: Path) -> None:
    """Run the exported script in the checkout."""
    start = f"{sys.executable} {ROOT / 'tests/reference/run_vlmevalkit.py'} {checkout}"
    script = (out / "score.sh").read_text(encoding="utf-8").replace(" run.py ", " ")
    (out / "score.sh").write_text(script, encoding="utf-8")
    space = {**os.environ, "PYTHON": start, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["sh", str(out / "score.sh")], cwd=out, env=space, capture_output=True, text=True
    )
    if ran.returncode:
        raise SystemExit(f"VLMEvalKit: {ran.stderr[-3000:]}")


def _printed(out: Path, name: str) -> list[float]:
    """Return the numbers of a benchmark that VLMEvalKit has written, in the order of ours."""
    files = [p for p in (out / "vlmrl").glob(f"T*/vlmrl_*_{name}_*") if "20000101" not in str(p)]
    if found := [p for p in files if p.stem.endswith("_score") and p.suffix == ".json"]:
        said = json.loads(found[0].read_text())
        return [said["Overall_Accuracy"], said["Text_Accuracy"], said["Icon_Accuracy"]]
    found = [p for p in files if p.stem.endswith(("_acc", "_score")) and p.suffix == ".csv"]
    if not found:
        return []
    with found[0].open(newline="") as file:
        lines: list[dict[str, Any]] = list(csv.DictReader(file))
    if "cycle" in lines[0]:
        return [
            float(r["accuracy"]) for r in lines if (r["cycle"], r["type"]) == ("Average", "all")
        ]
    first = lines[0]
    if "perception" in first:
        return [float(first["perception"]) + float(first["reasoning"])]
    if "aAcc" in first:
        return [float(first[key]) for key in ("aAcc", "fAcc", "qAcc")]
    (key,) = {"Overall", "accuracy", "TallyQA"} & set(first)
    return [float(first[key])]


if __name__ == "__main__":
    main()
