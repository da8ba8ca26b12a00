"""`vlmrl train`, on many machines `vlmrl launch`, and around them: `doctor`, `plan`, `report`, `watch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmrl.cli.arguments import ConfigName, Json, Overrides, Quiet
from vlmrl.cli.exit_codes import FAILED, INTERRUPTED

if TYPE_CHECKING:
    from vlmrl.config import Config
    from vlmrl.runs.output.events import Event


def train(
    config: ConfigName, overrides: Overrides = None, quiet: Quiet = False, json: Json = False
) -> None:
    """Run a config: cold start, GRPO, evaluations, checkpoints, report.

    - `vlmrl train quickstart`
    - `vlmrl train quickstart run.steps=300 optimizer.lr=1e-4 run.name=longer`
    - `vlmrl train my.yaml resume=auto` continues an interrupted run, or starts it

    Everything that it writes goes to `runs/<run.name>/`. Ctrl-C finishes the step and saves.

    A terminal shows bars, the newest step and the time left; a log gets about twenty lines, or one a
    minute if that is more. `vlmrl train my.yaml --json | jq 'select(.kind == "evaluation")'` follows
    a run by program.
    """
    from vlmrl.system.launched import parent_watch

    parent_watch.end_if_asked()
    from vlmrl.runs.output.terminal import choose

    with choose(quiet, json) as output:
        from vlmrl.commands.validate import load_valid

        settings = load_valid(config, overrides or ())
        from vlmrl.assemble import lifecycle
        from vlmrl.cluster.started_pools import pools_of

        summary = lifecycle.train(settings, pools_of(settings), output=output)
        output.say(_outcome(settings, summary))
    if not summary["finished"]:
        raise typer.Exit(INTERRUPTED)


def launch(
    config: ConfigName,
    overrides: Overrides = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes to train on.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs of each node, one a process.")
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run a config on the nodes of a Ray cluster, and begin it again from its last checkpoint if one is lost.

    - `vlmrl launch my.yaml --gpus-per-node 8` on this machine
    - `vlmrl launch my.yaml --nodes 4 --gpus-per-node 8 cluster.address=10.0.0.1:6379 resume=auto`

    All nodes need vlmrl, this folder, the data and the run folder at the same paths. Ctrl-C finishes the
    step and saves. What the first rank says is passed on, `--quiet` and `--json` are its own.
    """
    from vlmrl.runs.output.terminal import choose

    given = {"nodes": nodes, "gpus_per_node": gpus_per_node}
    places = [f"cluster.train.{key}={value}" for key, value in given.items() if value is not None]
    keys = [*(overrides or ()), *places]
    saying = [*(["--quiet"] if quiet else []), *(["--json"] if json else [])]
    with choose(quiet, json) as output:
        from vlmrl.commands.validate import load_valid

        settings = load_valid(config, keys)
        from vlmrl.cluster import driver

        finished = driver.launch(settings, [*saying, config, *keys], output, json)
    if not finished:
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


def doctor(config: ConfigName, overrides: Overrides = None) -> None:
    """Examine a config before running it: data, processor, verifiers, model, engine, memory.

    Sends a real batch through everything and prints a verdict for each check; exit code 1 if one
    fails. Writes nothing.

    - `vlmrl doctor quickstart`
    - `vlmrl doctor my.yaml engine=vllm`
    """
    from vlmrl.doctor import examine

    failed = False
    for finding in examine(config, overrides or ()):
        print(finding, flush=True)
        failed |= finding.verdict == "FAIL"
    raise typer.Exit(FAILED if failed else 0)


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


def plan(
    config: ConfigName,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the whole job.")] = 8,
    gpu: Annotated[str, typer.Option(help="Their kind, e.g. a100, h100, h200, b200.")] = "h100",
    assume: Annotated[
        list[str] | None,
        typer.Option(help="An assumption, `NAME=VALUE`, e.g. `train_mfu=0.3`; repeatable."),
    ] = None,
    images: Annotated[int, typer.Option(min=0, help="Images of a prompt.")] = 1,
    pixels: Annotated[int, typer.Option(min=1, help="Pixels of an image.")] = 1_003_520,
    text_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt beside them.")] = 200,
    show: Annotated[int, typer.Option(min=0, help="Layouts of the sweep to print.")] = 5,
) -> None:
    """Forecast a config on many GPUs: memory, seconds of a step, what breaks first, the best layouts.

    Needs neither GPUs nor weights: published sizes and rates, and assumptions that `--assume` changes. Exit
    code 1 if the config cannot run as it is.

    - `vlmrl plan recipes/vlm_r1 --gpus 64 --gpu h100`
    - `vlmrl plan my.yaml model.path=Qwen/Qwen2.5-VL-72B-Instruct --gpus 256 --assume train_mfu=0.3`
    """
    from vlmrl.config import load

    settings = load(config, overrides or ())  # its data may be elsewhere
    from vlmrl.planning.layouts import as_overrides
    from vlmrl.planning.planner import Planner, PromptContent
    from vlmrl.planning.published import Assumptions
    from vlmrl.planning.published import gpu as rates_of
    from vlmrl.planning.text import HONEST, describe, describe_sweep
    from vlmrl.planning.verdicts import find_verdicts

    shown = PromptContent(images, pixels, text_tokens)
    planner = Planner(settings, rates_of(gpu), Assumptions.of(assume or ()), shown)
    judged = planner.rate(planner.as_configured(gpus))
    verdicts = find_verdicts(planner, judged)
    print("As configured", *describe(planner, judged, verdicts), sep="\n", flush=True)
    if show:
        found = planner.sweep(gpus)
        print("\nLayouts that fit, the fastest first", *describe_sweep(found, show), sep="\n")
        if found:
            print("the first, as keys:", as_overrides(found[0].layout.changes(settings)))
    print(f"\n{HONEST}")
    fails = any(verdict.level == "FAIL" for verdict in verdicts)
    raise typer.Exit(FAILED if fails else 0)
