"""`vlmrl sweep`: runs of a config with several values of a few keys, and one table of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.arguments import ConfigName, Quiet
from vlmrl.errors import FAILED, INTERRUPTED

Keys = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY=A,B...",
        help="Keys with all their values, e.g. `optimizer.lr=1e-4,4e-4 run.seed=0,1`; among them configs "
        "and keys with one value, as for `vlmrl train`.",
    ),
]
TableOut = Annotated[Path | None, typer.Option(help="Folder for sweep.json and sweep.md.")]


def sweep(config: ConfigName, keys: Keys, out: TableOut = None, quiet: Quiet = False) -> None:
    """Run every combination of values of a few keys, one after another, and compare them in one table.

    - `vlmrl sweep quickstart optimizer.lr=1e-4,4e-4 run.seed=0,1`
    - `vlmrl sweep mine.yaml algorithm=grpo,dr_grpo,gspo run.steps=100 --out sweeps/algorithms`
    - `vlmrl sweep mine.yaml 'rewards=[box_iou],[box_iou, format]'` keeps commas in brackets together

    A run goes to `runs/<run.name>_lr=0.0001_seed=0`. Ctrl-C saves the one in hand, and the same command
    goes on: finished runs are read, not run again. One that fails is named, and the next begins; exit
    code 1 then.

    The table has the held-out metric before and after, the gain and the difference to the first setting
    with paired 95 % intervals, CPU seconds and tokens. Where `run.seed` is swept, the seeds of a setting
    are a group.
    """
    from vlmrl.features.benchmarks import sweep_table
    from vlmrl.features.benchmarks.sweep import read_values
    from vlmrl.runs.output.terminal import choose

    values, overrides = read_values(keys)
    with choose(quiet) as output:
        from vlmrl import api

        result = api.sweep(api.load(config, *overrides), values, output=output)
    if out is not None:
        sweep_table.write(result, out)
    if result.interrupted:
        print("interrupted: the same command goes on")
        raise typer.Exit(INTERRUPTED)
    sweep_table.show(result)
    if result.failed:
        raise typer.Exit(FAILED)
