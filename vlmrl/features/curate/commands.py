"""`vlmrl data rate`, `vlmrl data demonstrate` and `vlmrl mixture fit`: choose rows, answers and weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlmrl.arguments import ConfigName, Json, Overrides, Quiet
from vlmrl.errors import INTERRUPTED

if TYPE_CHECKING:
    from vlmrl.runs.output.events import Demonstrated, Rated
    from vlmrl.runs.output.outputs import Output


FirstRows = Annotated[int | None, typer.Option(min=1, help="Only the first N rows of each source.")]
Metric = Annotated[
    str | None, typer.Option(help="`reward` or a verifier; otherwise the evaluation's metric.")
]
Threshold = Annotated[
    float | None,
    typer.Option(help="A completion passes from here on; otherwise `evaluation.pass_threshold`."),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows at a time, and of a resume.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the file of --out.")]


def rate(
    config: ConfigName,
    overrides: Overrides = None,
    samples: Annotated[int, typer.Option(min=1, help="Completions of each row.")] = 8,
    model: Annotated[
        str | None,
        typer.Option(help="Checkpoint folder, run folder or hub name, instead of the config's."),
    ] = None,
    limit: FirstRows = None,
    metric: Metric = None,
    threshold: Threshold = None,
    batch_size: BatchSize = 32,
    out: Annotated[Path, typer.Option(help="JSON lines with a rating for each row.")] = Path(
        "ratings.jsonl"
    ),
    resume: Resume = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Write how often a policy solves each row of a config's training sources.

    - `vlmrl data rate quickstart --model runs/quickstart --limit 200`
    - `vlmrl data rate my.yaml engine=vllm --resume` goes on where it was stopped

    `ratings: ratings.jsonl` of a source makes `pass_rate`, `reward` and `n` columns of its rows: then
    `where: "0 < pass_rate < 1"` chooses rows, and sampler `curriculum` orders them. Ctrl-C finishes the
    rows in hand.
    """
    from vlmrl.runs.output.terminal import choose

    with choose(quiet, json) as output:
        from vlmrl.assemble.validate import load_valid

        settings = load_valid(config, overrides or ())
        from vlmrl.features.curate import rate
        from vlmrl.runs.output.events import Warned

        if settings.sft is not None and model is None:
            output.say(
                Warned(
                    "this rates the policy before its cold start; --model RUN rates a trained one"
                )
            )
        rated = rate.rate(
            settings,
            out,
            samples=samples,
            model=model,
            limit=limit,
            metric=metric,
            threshold=threshold,
            block=batch_size,
            resume=resume,
            output=output,
        )
        _say_outcome(output, rated)
    if not rated.finished:
        raise typer.Exit(INTERRUPTED)


def demonstrate(
    config: ConfigName,
    model: Annotated[
        str,
        typer.Argument(
            help="The teacher: one of the config's `models`, a checkpoint or a run folder."
        ),
    ],
    overrides: Overrides = None,
    samples: Annotated[int, typer.Option(min=1, help="Completions of each row.")] = 4,
    limit: FirstRows = None,
    metric: Metric = None,
    threshold: Threshold = None,
    batch_size: BatchSize = 32,
    out: Annotated[Path, typer.Option(help="JSON lines with one for each row.")] = Path(
        "demonstrations.jsonl"
    ),
    resume: Resume = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Let a teacher answer each row of a config's training sources; keep the best answer that verifies.

    - `vlmrl data demonstrate quickstart runs/quickstart --limit 200`
    - `vlmrl data demonstrate my.yaml big --resume` asks the model big of `models`, and goes on

    `demonstrations: demonstrations.jsonl` of a source, of `sft.sources` say, uses the rows of which an answer
    is kept, and it as their demonstration. Ctrl-C finishes the rows in hand.
    """
    from vlmrl.runs.output.terminal import choose

    with choose(quiet, json) as output:
        from vlmrl.assemble.validate import load_valid

        settings = load_valid(config, overrides or ())
        from vlmrl.features.curate import demonstrate as demonstrations

        outcome = demonstrations.demonstrate(
            settings,
            model,
            out,
            samples=samples,
            limit=limit,
            metric=metric,
            threshold=threshold,
            block=batch_size,
            resume=resume,
            output=output,
        )
        _say_outcome(output, outcome)
    if not outcome.finished:
        raise typer.Exit(INTERRUPTED)


def _say_outcome(output: Output, found: Rated | Demonstrated) -> None:
    from vlmrl.runs.output.events import Interrupted

    output.say(found)
    if not found.finished:
        output.say(Interrupted("--resume", found.file))


def fit(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of finished runs that differ in the weights of sources."),
    ],
    metric: Annotated[
        str | None, typer.Option(help="Held-out metric; otherwise the evaluation's.")
    ] = None,
) -> None:
    """Print the weights of sources that pilot runs ask for, as YAML to paste, with what is expected of them.

    - `vlmrl mixture fit runs/charts runs/cards runs/both runs/mostly_charts`

    A quadratic over the weights is fitted to the runs' last held-out metric (MoDoMoDo), and its highest
    point is taken. The runs share model, evaluation and all but seed and weights; a source that a run
    leaves out has weight 0.
    """
    from vlmrl.features.curate.mixture import fit_mixture, lines_of

    print("\n".join(lines_of(fit_mixture(runs, metric))))
