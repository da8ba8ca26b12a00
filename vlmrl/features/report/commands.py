"""`vlmrl report` and `vlmrl watch`: the pages of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

# --------------------------------------------------------------------------------------------------
# `vlmrl data select`: rows of a run, to train, evaluate or attack with.


def select(
    run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")],
    out: Annotated[Path, typer.Option(help="JSONL file to write.")],
    as_: Annotated[
        Literal["data", "attacks"],
        typer.Option("--as", help="A data set, or completions for `vlmrl verify --data`."),
    ] = "data",
    part: Annotated[
        Literal["rollouts", "evals"], typer.Option(help="Rows of training, or of evaluations.")
    ] = "rollouts",
    source: Annotated[str, typer.Option(help="Only rows of this source.")] = "",
    steps: Annotated[str | None, typer.Option(help="Steps, as in 10:50, 10: or :50.")] = None,
    verifier: Annotated[
        str, typer.Option(help="Count this verifier's scores in place of rewards.")
    ] = "",
    score: Annotated[
        str | None,
        typer.Option(help="Rewards, or scores, as in 0.2:0.8: some answer's is among them."),
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option(help="Least standard deviation of a group's rewards: its answers disagree."),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only answers masked, or on which a verifier failed.")
    ] = False,
    row: Annotated[
        list[str] | None, typer.Option(help="Only rows with this id; may be repeated.")
    ] = None,
) -> None:
    """Write rows that a run has stored as a data set with its media, or as rows to attack a verifier with.

    - `vlmrl data select runs/mine --score :0.2 --steps 100: --out hard.jsonl`, then
      `vlmrl data check hard.jsonl`
    - `vlmrl data select runs/mine --failed --as attacks --out attacks.jsonl`, then
      `vlmrl verify box_iou --data attacks.jsonl`

    A row is taken if one of its answers fits; as attacks, those answers. A data set has each row once, and
    copies of its media in a folder beside it: of the files that the run was trained on where they are still
    in their place, else of what the run stored (images of at most 640 pixels, audio).
    """
    from vlmrl.features.report.select import select

    print(
        select(
            run,
            out,
            attacks=as_ == "attacks",
            part=part,
            source=source,
            steps=steps,
            verifier=verifier,
            score=score,
            spread=spread,
            failed=failed,
            ids=tuple(row or ()),
        )
    )


# --------------------------------------------------------------------------------------------------


def report(run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")]) -> None:
    """Write the report of a run: did it work, in a sentence, a curve and samples, in one offline HTML file.

    - `vlmrl report runs/quickstart`

    Below the answer are all curves, and galleries of rollouts; `plots/` has the curves as PNG files.
    """
    from vlmrl.features.report.page import build_report

    print(build_report(run))


def watch(
    runs: Annotated[Path, typer.Argument(help="A run folder, or a folder of runs.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8010,
    start: Annotated[
        bool, typer.Option("--start", help="Also a page that writes configs and starts runs.")
    ] = False,
) -> None:
    """Follow runs in a browser as they train: the report's page, kept up to date.

    - `vlmrl watch` shows all runs in `runs/`, on one pair of axes
    - `vlmrl watch runs/mine` follows one
    - `vlmrl watch --start`, then open the address that it prints: write a config, start, stop and resume runs
    - `VLMRL_SERVER_TOKEN=... vlmrl watch --host 0.0.0.0`, for a browser on another machine

    It reads run folders and writes nothing; runs may start, stop and go on meanwhile. It listens on this
    machine only unless `--host` says otherwise, and then needs a token, which is the password.

    With `--start` there is a page beside these that saves configs in this folder and shows the command of all
    that it does. Its address holds the token that it needs. Runs go on when the page or this command ends.
    """
    from vlmrl.features.report.watch_server import watch

    watch(runs, host, port, start)
