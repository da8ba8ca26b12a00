"""`vlmrl prove`: can the last steps of a run be repeated?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.errors import FAILED


def prove(
    run: Annotated[Path, typer.Argument(help="Folder of a run, finished or interrupted.")],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Run at least this many of the last steps again.")
    ] = None,
) -> None:
    """Run the last steps of a run again from its checkpoint before the last one, and compare to the bit.

    - `vlmrl prove runs/quickstart`

    Says whether weights, optimizer, rollouts, metrics and evaluations are equal, or by how much not, and
    what may have made the difference. Exit code 1 if anything differs. The run's folder is only read. It
    takes as long as the steps did, on as many processes.
    """
    from vlmrl.features.prove.prove import prove

    proof = prove(run, steps)
    print(*proof.lines(), sep="\n")
    raise typer.Exit(0 if proof.equal else FAILED)
