"""`vlmrl compare`: what finished results say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Results = Annotated[
    list[str],
    typer.Argument(
        metavar="RESULT RESULT...",
        help="Folders that `vlmrl eval --benchmark` wrote; with commas between: seeds of one model.",
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for comparison.json and the page.")]


def compare(results: Results, out: Out = Path("comparison")) -> None:
    """Compare results of benchmarks on the same rows: paired differences with intervals.

    - `vlmrl compare results/base results/tuned`
    - `vlmrl compare results/base results/seed1,results/seed2,results/seed3`

    Every result is compared with the first. The first line says which is better, and on what.
    """
    from vlmrl.commands.benchmarks import compare

    comparisons = compare.compare_results(results)
    compare.print_comparisons(comparisons)
    compare.write_comparisons(comparisons, out)
