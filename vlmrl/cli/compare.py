"""`vlmrl compare` and `vlmrl changed`: what finished results and checkpoints say."""

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


def changed(
    before: Annotated[Path, typer.Argument(help="Checkpoint folder before training.")],
    after: Annotated[Path, typer.Argument(help="Checkpoint folder of the same model after it.")],
) -> None:
    """Print which share of the weights differs between two checkpoints, by part of the model.

    - `vlmrl changed runs/mine/checkpoints/step-10 runs/mine/checkpoints/step-150`

    A weight has moved if it differs by more than 1e-5; beside it stands the share that differs in bfloat16.
    """
    from vlmrl.commands.weight_changes import count_changes

    print(f"{'':32} {'weights':>14} {'moved':>8} {'bfloat16':>8}")
    for name, one in count_changes(before, after).items():
        shares = f"{one.moved / one.total:8.2%} {one.moved_bfloat16 / one.total:8.2%}"
        print(f"{name:32} {one.total:14,} {shares}")
