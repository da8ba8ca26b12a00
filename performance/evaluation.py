"""How long scoring stored answers of benchmarks takes, both numbers and all intervals; prints Markdown.

    python performance/evaluation.py [--rows 100000] [--lmms-eval FOLDER]

A mixed suite: ChartQA, DocVQA, MMStar, POPE, CountBenchQA and TextVQA with drawn questions and answers,
in equal parts. FOLDER is an unpacked wheel of lmms-eval 0.7.3 (`make reference` fetches it); its own
functions then score the same answers, without intervals.

CPU seconds of this process on one core.
"""

import argparse
import ast
import os
import platform
import random
import re
import resource
import statistics
import string
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vlmrl import plugins
from vlmrl.benchmarking.base import BenchmarkCard, open_benchmark
from vlmrl.benchmarking.scoring import Answer, score_answers
from vlmrl.data.source import Source

WORDS = "the old moon is red 12 2019 12% yes no a cat 3 nike total revenue of 1,200".split()
LETTERS = ("A", "B.", "(C)", "The answer is D", "I see A dog, so C")
FRAME = {"width": 640, "height": 480, "space": "norm1000"}
Row = dict[str, Any]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--lmms-eval", type=Path)
    args = parser.parse_args()
    print("# Scoring stored answers of benchmarks\n")
    print(f"CPU machine, one core, Python {platform.python_version()}; CPU seconds.")
    print("Written by `performance/evaluation.py`. Peak memory is that of the process so far.\n")
    theirs = dict(lmms_scorers(args.lmms_eval)) if args.lmms_eval else {}
    print("| benchmark | rows | ours: official, strict, intervals | lmms-eval: score | peak, MiB |")
    print("|---|---|---|---|---|")
    total = 0.0
    for name in sorted(ROWS):
        count = args.rows // len(ROWS)
        draw = random.Random(name)
        rows = [ROWS[name](draw, number) for number in range(count)]
        texts = [_answer(draw, name) for _ in rows]
        ours, value = _time_ours(name, rows, texts)
        total += ours
        other = _time_theirs(theirs[name], rows, texts, value) if name in theirs else "not run"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"| {name} | {count:,} | {ours:.1f} s | {other} | {peak:,.0f} |", flush=True)
    print(f"| all | {len(ROWS) * count:,} | {total:.1f} s | | {peak:,.0f} |")


def _text(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))


def _answer(draw: random.Random, name: str) -> str:
    if name == "mmstar":
        return draw.choice(LETTERS)
    return draw.choice(("yes", "No", "Yes.")) if name == "pope" else _text(draw)


def _with_answer(draw: random.Random, number: int) -> Row:
    kind = ("human_test", "augmented_test")[number % 2]
    return {"type": kind, "question": "How many?", "answer": _text(draw)}


def _document(draw: random.Random, number: int) -> Row:
    answers = [_text(draw) for _ in range(draw.randint(1, 3))]
    return {
        "questionId": str(number), "docId": number // 3, "question": "Title?", "answers": answers,
    }  # fmt: skip


def _choice(draw: random.Random, number: int) -> Row:
    return {
        "index": number, "question": "Which?\nOptions: A: x, B: y, C: z, D: w",
        "answer": draw.choice("ABCD"), "category": f"c{number % 6}", "l2_category": f"l{number % 18}",
    }  # fmt: skip


def _yes_no(draw: random.Random, number: int) -> Row:
    return {
        "question": "Is there a cat?", "answer": draw.choice(("yes", "no")), "question_id": str(number),
        "image_source": f"im{number // 6}", "category": ("random", "popular")[number % 2],
    }  # fmt: skip


def _count(draw: random.Random, number: int) -> Row:
    return {"question": "How many?", "number": draw.randint(2, 10), "text": ""}


def _voted(draw: random.Random, number: int) -> Row:
    answers = [_text(draw)] * 7 + [_text(draw)] * 3
    return {"question_id": number, "question": "Which brand?", "answers": answers}


ROWS: dict[str, Callable[[random.Random, int], Row]] = {
    "chartqa": _with_answer,
    "countbench": _count,
    "docvqa": _document,
    "mmstar": _choice,
    "pope": _yes_no,
    "textvqa": _voted,
}
"""What draws a row in the published layout of a benchmark."""


def _time_ours(name: str, rows: list[Row], texts: list[str]) -> tuple[float, float]:
    """Return the CPU seconds of scoring from Parquet and answers to all figures, and the official one."""
    benchmark = plugins.load("benchmark", name)
    with tempfile.TemporaryDirectory() as given:
        file = Path(given) / "data" / f"{benchmark.split}-00000-of-00001.parquet"
        file.parent.mkdir()
        image = {"bytes": b"", "path": "image.png"}
        pq.write_table(pa.Table.from_pylist([{**row, "image": image} for row in rows]), file)
        start = time.process_time()
        card = BenchmarkCard(open_benchmark(name, given), "lmms_eval")
        source = Source(name, card, benchmark.split, card.rows(benchmark.split), template="none")
        answers = [Answer(i, text, 5, "stop", FRAME) for i, text in enumerate(texts)]
        result = score_answers(card.benchmark, source, "lmms_eval", answers)
        return time.process_time() - start, result.figures["official"].value


def _time_theirs(
    score: Callable[[Row, str], float], rows: list[Row], texts: list[str], value: float
) -> str:
    start = time.process_time()
    scores = [score(row, text) for row, text in zip(rows, texts, strict=True)]
    seconds = time.process_time() - start
    same = abs(statistics.fmean(scores) - value) < 1e-9
    return f"{seconds:.1f} s" + ("" if same else f" (mean {statistics.fmean(scores):.6f})")


def lmms_scorers(root: Path) -> Iterator[tuple[str, Callable[[Row, str], float]]]:
    """Yield lmms-eval's own functions of the benchmarks whose number is a mean over rows."""
    tasks = root / "lmms_eval/tasks"
    chart = _lift(tasks / "chartqa/utils.py", "relaxed_correctness")["relaxed_correctness"]
    yield "chartqa", lambda row, text: float(chart(text, row["answer"]))
    anls = _lift(root / "lmms_eval/api/metrics.py", "anls", "levenshtein_distance")["anls"]
    yield "docvqa", lambda row, text: float(anls(row["answers"], [text])["anls"])
    pope = _lift(tasks / "pope/utils.py", "pope_process_results")["pope_process_results"]
    yield "pope", lambda row, text: float(pope(row, [text])["pope_accuracy"]["score"])
    names = ("NUMBER_WORD_TO_NUMERAL", "_normalize_count_answer", "countbench_doc_to_target")
    count = _lift(tasks / "countbench/utils.py", *names, "countbench_process_results")
    yield (
        "countbench",
        lambda row, text: float(count["countbench_process_results"](row, [text])["acc"]),
    )


def _lift(file: Path, *names: str) -> dict[str, Any]:
    """Run the definitions of these names in a source file, and nothing else of it."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    wanted = [node for node in tree.body if _name_of(node) in names]
    for node in wanted:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list.clear()
    space = {"re": re, "string": string, "np": np}
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *wanted], []), str(file), "exec"), space)
    return space


def _name_of(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return getattr(node, "name", "")


if __name__ == "__main__":
    main()
