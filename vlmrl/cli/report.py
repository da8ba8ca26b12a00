"""`vlmrl report` and `vlmrl watch`: the pages of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")]) -> None:
    """Write the report of a run: did it work, in a sentence, a curve and samples, in one offline HTML file.

    - `vlmrl report runs/quickstart`

    Below the answer are all curves, and galleries of rollouts; `plots/` has the curves as PNG files.
    """
    from vlmrl.report import build_report

    print(build_report(run))


def watch(
    runs: Annotated[Path, typer.Argument(help="A run folder, or a folder of runs.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8010,
) -> None:
    """Follow runs in a browser as they train: the report's page, kept up to date.

    - `vlmrl watch` shows all runs in `runs/`, on one pair of axes
    - `vlmrl watch runs/mine` follows one
    - `VLMRL_SERVER_TOKEN=... vlmrl watch --host 0.0.0.0`, for a browser on another machine

    It reads run folders and writes nothing; runs may start, stop and go on meanwhile. It listens on this
    machine only unless `--host` says otherwise, and then needs a token, which is the password.
    """
    from vlmrl.commands.serving.watch_server import watch

    watch(runs, host, port)
