"""`vlmrl reproduce`: does a published figure come out again?"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from vlmrl.cli.exit_codes import FAILED


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Files of records, records or single figures; nothing lists all."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=0, help="CPU minutes to spend: run the records that fit, cheapest first."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of what the commands write; `runs/reproduced/<time>` by default."
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Run the commands of published figures again and compare what comes out.

    - `vlmrl reproduce` lists the records: what they say, CPU minutes, what they need
    - `vlmrl reproduce quickstart-0` or `vlmrl reproduce performance/results/quickstart.yaml`
    - `vlmrl reproduce --budget 30`

    Exit code 1 if any figure is outside of what its record accepts. It needs a checkout. Ctrl-C keeps what
    is known by then.
    """
    from vlmrl.commands.reproduction import records, rerun
    from vlmrl.commands.reproduction.listing import describe, list_records

    root = records.repository()
    known = records.read_records(root)
    if not names and budget is None:
        lines = (json.dumps(each) for each in describe(known)) if json_ else list_records(known)
        print(*lines, sep="\n")
        return
    chosen = records.choose(known, names) if names else known
    if budget is not None:
        fitting = rerun.fit(chosen, budget)
        print(f"{len(fitting)} of {len(chosen)} records fit", file=sys.stderr)
        chosen = fitting
    folder = out or Path("runs/reproduced") / time.strftime("%Y%m%d-%H%M%S")
    ended = []
    try:
        for name, record in chosen.items():
            if record.command:
                print(f"{name}: about {record.minutes:g} CPU minutes", file=sys.stderr, flush=True)
            for outcome in rerun.reproduce({name: record}, root, folder.absolute()):
                ended.append(outcome)
                figure = record.figures[outcome.name.partition("/")[2]]
                _print_outcome(outcome, figure.digits, json_)
    finally:
        _print_counts(ended)
    raise typer.Exit(FAILED if any(o.verdict == "not reproduced" for o in ended) else 0)


def _print_outcome(outcome: Any, digits: int, as_json: bool) -> None:
    from dataclasses import asdict

    print(json.dumps(asdict(outcome)) if as_json else outcome.line(digits), flush=True)


def _print_counts(ended: list[Any]) -> None:
    counts = [
        f"{sum(o.verdict == verdict for o in ended)} {verdict}"
        for verdict in ("reproduced", "not reproduced", "not runnable here")
    ]
    print(", ".join(counts), file=sys.stderr)
