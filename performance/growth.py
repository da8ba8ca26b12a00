"""How the time of everything that reads a model's text grows with the text; prints Markdown.

    python performance/growth.py > performance/results/growth.md

Each fragment of the attack bench (tags, brackets, digits, quotes, words) is repeated to texts of 1 to 256
kilobytes, and each verifier, reader of answers and official scorer reads them in a process that is killed if
it hangs. The factor is that of the CPU time for twice the text: 2 is linear, 4 quadratic. The table has those
above 2.5; official scorers are as their harnesses wrote them.
"""

import argparse
import contextlib
import functools
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.answers import parsing, templates
from vlmrl.benchmarking.base import open_benchmark
from vlmrl.benchmarking.scorers import SCORERS
from vlmrl.features.verify import attack_bench
from vlmrl.features.verify.reference_answers import examples, state_honestly
from vlmrl.interaction.tools import parse_calls
from vlmrl.schema import Frame, Sample
from vlmrl.scoring.reward_components import build
from vlmrl.system.deadline_pool import CallFailed, DeadlinePool, result

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

FRAME = Frame(640, 480, duration=60.0)
OPTIONS = ["a cat", "a bird", "a cow", "a dog"]
READERS: dict[str, Any] = {
    "values": parsing.values,
    "declines": parsing.declines,
    "read_choice": functools.partial(parsing.read_choice, options=OPTIONS),
    "read_yes_no": parsing.read_yes_no,
    "read_names": parsing.read_names,
    "boxes": functools.partial(parsing.boxes, frame=FRAME),
    "points": functools.partial(parsing.points, frame=FRAME),
    "spans": functools.partial(parsing.spans, frame=FRAME),
    "track": functools.partial(parsing.track, frame=FRAME),
    "number": parsing.number,
    "fields": parsing.fields,
    "template think_answer": functools.partial(templates.split, chosen="think_answer"),
    "template think_answer_glue": functools.partial(templates.split, chosen="think_answer_glue"),
    "tool calls": parse_calls,
}
DEADLINE_S = 120.0
SHOWN = 2.5
ASK_MODELS = (
    "downstream",
    "judge",
    "judge_listwise",
    "judge_pairwise",
    "reward_model",
    "similarity",
)
"""Verifiers whose time is that of the model they ask."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the name")
    args = parser.parse_args()
    print("# Growth of time with the length of a text\n\nWritten by `performance/growth.py`.\n")
    print("| read by | factor for twice the text | fragment | seconds |\n|---|---:|---|---|")
    measured: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, DeadlinePool(2) as pool:
        tasks = [t for t in (*verifiers(), *readers(), *scorers(Path(folder))) if args.only in t[1]]
        for kind, name, function, arguments in tasks:
            factor, how, fragment = largest(pool, function, arguments)
            measured.setdefault(kind, []).append(factor)
            if factor > SHOWN:
                print(f"| {kind} {name} | {factor:.2f} | `{fragment!a}` | {how} |", flush=True)
    for kind, factors in measured.items():
        above = sum(factor > SHOWN for factor in factors)
        print(
            f"\n{len(factors)} of kind {kind}: largest {max(factors):.2f}, {above} above {SHOWN:g}."
        )


def largest(
    pool: DeadlinePool, function: Any, arguments: tuple[Any, ...]
) -> tuple[float, str, str]:
    """Return the largest factor over all fragments, how it grew, and the fragment."""
    futures = {
        fragment: pool.submit(function, *arguments, fragment, deadline=DEADLINE_S)
        for fragment in attack_bench.FRAGMENTS
    }
    factors = []
    for fragment, future in futures.items():
        try:
            factors.append((*result(future), fragment))
        except CallFailed as error:
            factors.append((math.inf, str(error), fragment))
    return max(factors)


def verifiers() -> Iterator[tuple[str, str, Any, tuple[Any, ...]]]:
    """Yield every verifier that reads text in this process, with an example of each form it reads."""
    for name in plugins.names("verifier"):
        laws = plugins.load("verifier", name).laws
        if laws.of_turns or name in ASK_MODELS:
            continue
        verifier = build((name, "{}"))
        forms: dict[str, Any] = {}
        for sample, frame in examples():
            if verifier.applies_to(sample):
                for honest in state_honestly(sample, frame):
                    forms.setdefault(honest.form, honest)
        for form, honest in forms.items():
            mates = [other for other in forms.values() if other is not honest]
            yield (
                "verifier",
                f"{name} ({form})",
                attack_bench.measure_growth,
                ((name, "{}"), honest, mates[:1]),
            )


def readers() -> Iterator[tuple[str, str, Any, tuple[Any, ...]]]:
    """Yield every reader of an answer."""
    for name in READERS:
        yield "reader", name, grow_reader, (name,)


def scorers(folder: Path) -> Iterator[tuple[str, str, Any, tuple[Any, ...]]]:
    """Yield every official scorer, with the first published row of each benchmark that it serves first."""
    from helpers.benchmark_runs import opened
    from helpers.published import ROWS

    seen = set()
    for name in plugins.names("benchmark"):
        benchmark = open_benchmark(name, "")
        for number, official in enumerate(benchmark.officials):
            if official.scorer in seen or name not in ROWS:
                continue
            seen.add(official.scorer)
            sample = opened(folder / f"{name}-{number}", name, official.protocol).sample(0)
            yield "scorer", f"{official.scorer} ({name})", grow_scorer, (official.scorer, sample)


def grow_reader(name: str, fragment: str) -> tuple[float, str]:
    """Return the growth of a reader."""

    def call(text: str) -> None:
        with contextlib.suppress(ValueError):  # longer than it reads
            READERS[name](text)

    return attack_bench.largest_growth(call, fragment)


def grow_scorer(name: str, sample: Sample, fragment: str) -> tuple[float, str]:
    """Return the growth of a scorer on one sample."""

    def call(text: str) -> None:
        SCORERS[name](text, sample, FRAME)

    return attack_bench.largest_growth(call, fragment)


if __name__ == "__main__":
    main()
