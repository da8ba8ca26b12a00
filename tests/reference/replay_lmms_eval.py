"""Compare our official numbers with what lmms-eval prints when it scores the answers that we export.

    python tests/reference/replay_lmms_eval.py PYTHON

PYTHON is an interpreter with lmms-eval 0.7.3. For each benchmark that states its task, some answers to
the fixture rows are scored by us, exported as `vlmrl eval --export lmms_eval` does, and replayed by
`lmms_eval --model from_log` with its own task, on the same rows as a local file. Exits with 1 if a
number differs.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.published import ROWS, write_published
from vlmrl import plugins
from vlmrl.benchmarking.base import BenchmarkCard, open_benchmark
from vlmrl.benchmarking.scoring import Answer, Result, score_answers
from vlmrl.data.source import Source
from vlmrl.features.benchmarks.export import export_answers
from vlmrl.schema import Truth

FRAME = {"width": 96, "height": 64, "space": "norm1000"}
ANSWERS = (
    "A",
    "yes",
    "2",
    "Yes.",
    "The answer is (B).",
    "12%",
    "nike",
    "old moon",
    "no",
    "x^2",
    "B",
)
"""Wrong for most rows."""
METRICS = {
    "ai2d": ("exact_match",),
    "chartqa": ("relaxed_overall",),
    "countbench": ("acc", "exact_match", "countbench_acc"),
    "cv_bench": ("cv_bench_acc", "accuracy"),
    "docvqa_val": ("anls",),
    "infovqa_val": ("anls",),
    "mme": ("mme_perception_score", "mme_cognition_score"),
    "mmstar": ("average",),
    "ocrbench": ("ocrbench_accuracy",),
    "pixmo_count": ("acc",),
    "pope": ("pope_accuracy",),
    "realworldqa": ("exact_match",),
    "textvqa_val": ("exact_match",),
}
"""By task, its metrics that are our official number (for MME their sum)."""
LOCAL = "local_"
"""Begins the name of a task whose data are a local file."""
TIMES = 7
"""Times that each row is answered."""
RUN = """
import runpy, sys, vlmrl.models.loading
sys.argv = ["lmms_eval", *sys.argv[1:]]
runpy.run_module("lmms_eval", run_name="__main__")
"""


def main() -> None:
    """Score, export, replay and compare."""
    python = sys.argv[1]
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        ours = {}
        for name in sorted(ROWS):
            for official in plugins.load("benchmark", name).officials:
                if official.protocol.startswith("lmms_eval") and official.task in METRICS:
                    ours[official.task] = _score(folder, name)
                    _write_task(python, folder, official.task, name)
        theirs = _replay(python, folder, sorted(ours))
    failed = False
    for task, result in sorted(ours.items()):
        wanted, unit = result.figures["official"].value, result.unit
        wanted *= 100 if unit == "percent" else 1
        said = _number(task, theirs.get(LOCAL + task, {}))
        if said is not None and task == "ocrbench":
            said *= 1000 / len(result.rows)  # it divides by the 1000 rows of the whole
        same = said is not None and abs(said - wanted) < 1e-12 * max(1.0, abs(wanted))
        failed |= not same
        print(f"{task:14} ours {wanted!r:22} lmms-eval {said!r:22} {'' if same else 'DIFFERS'}")
        if said is None:
            print(f"   it printed {theirs.get(LOCAL + task)}")
    sys.exit(int(failed))


def _score(folder: Path, name: str) -> Result:
    """Score answers to the fixture rows, and export them."""
    split = plugins.load("benchmark", name).split
    given = ROWS[name] * (1 if name == "mme" else TIMES)  # MME: two questions about each image
    rows = [{**row, "question_id": row.get("question_id", str(i))} for i, row in enumerate(given)]
    path = write_published(folder / "data", name, split, rows)
    card = BenchmarkCard(open_benchmark(name, str(path)), "lmms_eval")
    source = Source(name, card, split, card.rows(split), template="none")
    draw = random.Random(name)
    answers = [
        Answer(i, _answer(draw, source.sample(i).truth), 3, "stop", FRAME)
        for i in range(len(source.rows))
    ]
    result = score_answers(card.benchmark, source, "lmms_eval", answers)
    _rename(export_answers("lmms_eval", folder / "logs", card.benchmark, "lmms_eval", result.rows))
    return result


def _answer(draw: random.Random, truth: Truth) -> str:
    """Draw a right answer, one in a form that some rules do not read, or another one."""
    number = None if truth.number is None else str(int(truth.number))
    right = truth.text[0] if truth.text else number or str(truth.choice)
    return draw.choice((right, right, f"{right}.", f"The answer is {right}", *ANSWERS))


def _write_task(python: str, folder: Path, task: str, name: str) -> None:
    """Write the harness's own task with another place of the data."""
    found = subprocess.run(
        [python, "-c", "import importlib.util as u; print(u.find_spec('lmms_eval').origin)"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    tasks = Path(found.stdout.strip()).parent / "tasks"
    pattern = re.compile(rf"^task: *[\"']?{task}[\"']? *$", re.MULTILINE)
    (own,) = [p for p in tasks.glob("*/*.yaml") if pattern.search(p.read_text(encoding="utf-8"))]
    split = plugins.load("benchmark", name).split
    file = next((folder / "data" / name).rglob("*.parquet"))
    (folder / "tasks").mkdir(exist_ok=True)
    (folder / "tasks" / f"{task}.yaml").write_text(
        f"include: {own}\ntask: {LOCAL}{task}\ndataset_path: parquet\ndataset_name: null\n"
        f"dataset_kwargs:\n  data_files:\n    {split}: {file}\noutput_type: generate_until\n"
    )


def _rename(log: Path) -> None:
    """Give the log the name of the local task: one that is shipped cannot be replaced."""
    content = json.loads(log.read_text())
    content["model_configs"]["task"] = LOCAL + content["model_configs"]["task"]
    log.write_text(json.dumps(content))


def _replay(python: str, folder: Path, tasks: list[str]) -> dict[str, Any]:
    """Return what lmms-eval prints by task."""
    out = folder / "out"
    command = [python, "-c", RUN, "--model", "from_log", "--model_args", f"logs={folder / 'logs'}"]
    command += [
        "--tasks",
        ",".join(LOCAL + task for task in tasks),
        "--include_path",
        str(folder / "tasks"),
    ]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    done = subprocess.run(
        [*command, "--output_path", str(out)], env=offline, capture_output=True, text=True
    )
    found = sorted(out.rglob("*_results.json"))
    if not found:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-3000:])
    results: dict[str, Any] = json.loads(found[-1].read_text())["results"]
    return results


def _number(task: str, found: dict[str, Any]) -> float | None:
    values = [v for k, v in found.items() if k.split(",")[0] in METRICS[task] and "stderr" not in k]
    values = [v for v in values if isinstance(v, (int, float))]
    return float(sum(values)) if values else None


if __name__ == "__main__":
    main()
