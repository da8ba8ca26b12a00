"""`vlmrl train`: run a config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from vlmrl.arguments import ConfigName, Json, Overrides, Quiet
from vlmrl.errors import INTERRUPTED

if TYPE_CHECKING:
    from vlmrl.config import Config
    from vlmrl.runs.output.events import Event


def train(
    config: ConfigName, overrides: Overrides = None, quiet: Quiet = False, json: Json = False
) -> None:
    """Run a config: cold start, GRPO, evaluations, checkpoints, report.

    - `vlmrl train quickstart`
    - `vlmrl train quickstart run.steps=300 optimizer.lr=1e-4 run.name=longer`
    - `vlmrl train recipes/vlm_r1 machines/8x80gb` lays a preset of a machine over a recipe
    - `vlmrl train my.yaml resume=auto` continues an interrupted run, or starts it

    Everything that it writes goes to `runs/<run.name>/`. Ctrl-C finishes the step and saves.

    A terminal shows bars, the newest step and the time left; a log gets about twenty lines, or one a
    minute if that is more. `vlmrl train my.yaml --json | jq 'select(.kind == "evaluation")'` follows
    a run by program.
    """
    from vlmrl.system import processes

    processes.end_if_asked()
    from vlmrl.runs.output.terminal import choose

    with choose(quiet, json) as output:
        from vlmrl.assemble.validate import load_valid

        settings = load_valid(config, overrides or ())
        from vlmrl.api import write_report
        from vlmrl.assemble import lifecycle
        from vlmrl.features.launch.pools import pools_of

        summary = lifecycle.train(
            settings, pools_of(settings), output=output, write_report=write_report
        )
        output.say(_outcome(settings, summary))
    if not summary["finished"]:
        raise typer.Exit(INTERRUPTED)


def _outcome(settings: Config, summary: dict[str, Any]) -> Event:
    """Return what is said at the end of a run: how to go on with it, or its held-out values."""
    from vlmrl.runs.output.events import Finished, Interrupted

    if not summary["finished"]:
        return Interrupted("resume=auto", settings.folder)
    first, last, metric = (summary[k] for k in ("first_evaluation", "last_evaluation", "metric"))
    names = {how: f"forced/{how}/{metric}" for how in ("think", "direct", "gain")}
    gain: dict[str, float] = {}
    if last and names["gain"] in last["metrics"]:
        gain = {how: last["metrics"][name] for how, name in names.items()}
        gain["low"], gain["high"] = last["intervals"][names["gain"]]
    return Finished(
        steps=summary["steps"],
        folder=settings.folder,
        report=settings.folder / "report.html" if settings.run.report else None,
        metric=metric,
        first=first["metrics"][metric] if first else None,
        last=last["metrics"][metric] if last else None,
        interval=last["intervals"][metric] if last else (None, None),
        gain=gain,
    )
