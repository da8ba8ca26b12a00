"""The command line: each command reads its arguments, calls one function, and prints the outcome.

A user's mistake (`UserError`) is one line on stderr and exit code 2; a check that says no, or a
fault of ours, is exit code 1; Ctrl-C is 130, after the trainer has saved. Torch is imported only
after a config has proved valid, so `--help` and the checks answer at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vlmrl import __version__
from vlmrl import config as configs
from vlmrl.config import tree
from vlmrl.errors import UserError
from vlmrl.system import distributed

app = typer.Typer(
    name="vlmrl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(no_args_is_help=True, help="Show, check and describe configs.")
data_app = typer.Typer(no_args_is_help=True, help="Look at data before training on it.")
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Any key of the config, e.g. `run.steps=50 rewards.box_iou.weight=2`."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of the part, `key=value`; repeatable."),
]
Data = Annotated[str, typer.Argument(help="A card or a data file, `:split` appended if wanted.")]
MediaRoot = Annotated[str | None, typer.Option(help="Media paths must stay inside this folder.")]
ConfigName = Annotated[
    str, typer.Argument(help="Path of a YAML file, or name of a shipped config.")
]


KINDS = {
    "verifiers": "verifier",
    "cards": "card",
    "families": "family",
    "algorithms": "algorithm",
    "engines": "engine",
    "trackers": "tracker",
}


def _print_version(asked: bool) -> None:
    if asked:
        print(f"vlmrl {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print it.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Teach vision-language models to perceive, by reinforcement learning with checkable rewards.

    Start here: `vlmrl train quickstart`, then open `runs/quickstart/report.html`.
    """


@app.command()
def train(config: ConfigName, overrides: Overrides = None) -> None:
    """Run a config: cold start, GRPO, evaluations, checkpoints, report.

    - `vlmrl train quickstart`
    - `vlmrl train quickstart run.steps=300 optimizer.lr=1e-4 run.name=longer`
    - `vlmrl train my.yaml resume=auto` continues an interrupted run, or starts it

    Everything it writes goes to `runs/<run.name>/`.
    """
    settings = _config(config, overrides)
    from vlmrl.assemble import lifecycle

    summary = lifecycle.train(settings)
    if distributed.launched_rank() > 0:
        raise typer.Exit(0 if summary["finished"] else 130)
    if not summary["finished"]:
        print(
            f"interrupted; saved in {settings.folder}: add resume=auto to continue", file=sys.stderr
        )
        raise typer.Exit(130)
    _print_outcome(summary)
    if settings.run.report:
        print(f"report: {settings.folder / 'report.html'}")


def _print_outcome(summary: dict[str, Any]) -> None:
    """First and last held-out value of the run's metric, with 95 % intervals."""
    first, last, metric = (summary[k] for k in ("first_evaluation", "last_evaluation", "metric"))
    if first and last:
        before, after = first["metrics"][metric], last["metrics"][metric]
        low, high = last["intervals"][metric]
        print(
            f"held-out {metric}: {before:.3f} before GRPO, {after:.3f} [{low:.3f}, {high:.3f}] "
            f"after {last['step']} steps"
        )
        think, direct, gain = (f"forced/{how}/{metric}" for how in ("think", "direct", "gain"))
        if gain in last["metrics"]:
            low, high = last["intervals"][gain]
            print(
                f"forced to think {last['metrics'][think]:.3f}, forced not to "
                f"{last['metrics'][direct]:.3f}: a thought is worth {last['metrics'][gain]:+.3f} "
                f"[{low:+.3f}, {high:+.3f}]"
            )


@app.command("eval")
def eval_(
    model: Annotated[str, typer.Argument(help="A checkpoint folder, a run folder or a hub name.")],
    data: Annotated[str, typer.Option(help="A card or a data file, with `:split` if not `test`.")],
    samples: Annotated[int, typer.Option(min=0, help="Sampled completions besides greedy.")] = 0,
    force_thinking: Annotated[
        bool, typer.Option("--force-thinking", help="Also force it to think, and not.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the result and its samples.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N rows.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts at a time.")] = 32,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Limit of a completion.")] = None,
    verifier: Annotated[list[str] | None, typer.Option(help="Judge by this; repeatable.")] = None,
    option: Options = None,
) -> None:
    """Evaluate a model: the cards and verifiers that train, greedy and k samples, with intervals.

    - `vlmrl eval runs/quickstart --data shapes:test --samples 4 --out results`
    - `vlmrl eval path/to/checkpoint --data my.jsonl --verifier exact --verifier my.py:score`
    - `vlmrl eval runs/think_or_not --data shapes:test --force-thinking` says what a thought is worth
    """
    options = tree.pairs(option or ())
    from vlmrl.commands import evaluate

    result = evaluate.evaluate_model(
        model,
        data,
        samples=samples,
        force_thinking=force_thinking,
        out=out,
        limit=limit,
        batch_size=batch_size,
        max_tokens=max_tokens,
        rewards=[configs.RewardConfig(verifier=name) for name in verifier or ()],
        options=options,
    )
    for name, value in result["metrics"].items():
        low, high = result["intervals"][name]
        print(f"{name:32} {value:.4f}  [{low:.4f}, {high:.4f}]")
    for k, value in (result["pass_at_k"] or {}).items():
        print(f"{'pass@' + k:32} {value:.4f}")
    print(f"{result['num_samples']} samples; in brackets: 95 % intervals")


@app.command()
def score(
    verifier: Annotated[str, typer.Argument(help="A shipped verifier, or `file.py:function`.")],
    rows: Annotated[Path, typer.Option("--in", help="JSONL file of completions and truths.")],
    out: Annotated[Path | None, typer.Option(help="JSONL file; standard output if absent.")] = None,
    option: Options = None,
) -> None:
    """Score completions of a file with one verifier: a line in, a line out.

    A row: `{"completion": "<answer>[10, 10, 50, 50]</answer>", "truth": {"boxes": [{"box": [8, 8,
    50, 50]}]}, "media": {"width": 100, "height": 80}}`. Coordinates are pixels unless the row has a
    `space`.

    - `vlmrl score box_iou --in rows.jsonl -o threshold=0.5`
    """
    options = tree.pairs(option or ())
    from vlmrl.scoring.score_rows import score_file
    from vlmrl.system.atomic_files import write_lines

    lines = score_file(rows, configs.RewardConfig(verifier=verifier, options=options))
    if out:
        write_lines(out, lines)
    else:
        for line in lines:
            print(json.dumps(line))


@app.command()
def verify(
    verifier: Annotated[str, typer.Argument(help="A shipped verifier, or `file.py:function`.")],
    data: Annotated[Path | None, typer.Option(help="JSONL rows, as for `vlmrl score`.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the whole report here, as JSON.")] = None,
    option: Options = None,
) -> None:
    """Attack a verifier before training on it: is a completion paid that does not deserve it?

    Shows how honest answers score, then what hostile ones were paid. Exit code 1 if any was paid.

    - `vlmrl verify my_reward.py:score`
    - `vlmrl verify box_iou --data rows.jsonl -o threshold=0.5`
    """
    options = tree.pairs(option or ())
    from rich.console import Console

    from vlmrl.audit.attack_bench import verify
    from vlmrl.commands.audit_table import tables
    from vlmrl.scoring.score_rows import read_rows
    from vlmrl.system.atomic_files import write_json

    reward = configs.RewardConfig(verifier=verifier, options=options)
    report = verify(reward, read_rows(data) if data else ())
    if out:
        write_json(out, report.as_json())
    Console().print(*tables(report), sep="\n")
    raise typer.Exit(1 if report.findings else 0)


@app.command()
def doctor(config: ConfigName, overrides: Overrides = None) -> None:
    """Examine a config before running it: data, processor, verifiers, model, engine, memory.

    Sends a real batch through everything and prints a verdict per check; exit code 1 if one fails.
    Writes nothing.

    - `vlmrl doctor quickstart`
    - `vlmrl doctor my.yaml engine=vllm`
    """
    from vlmrl.doctor import examine

    failed = False
    for finding in examine(config, overrides or ()):
        print(finding, flush=True)
        failed |= finding.verdict == "FAIL"
    raise typer.Exit(1 if failed else 0)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")]) -> None:
    """Write the report of a run: one offline HTML file with curves and a gallery, and PNG plots.

    - `vlmrl report runs/quickstart`
    """
    from vlmrl.report import build_report

    print(build_report(run))


@data_app.command()
def check(
    data: Data,
    out: Annotated[Path | None, typer.Option(help="JSONL file with a line for every row.")] = None,
    model: Annotated[str | None, typer.Option(help="Count prompt tokens for this model.")] = None,
    media_root: MediaRoot = None,
    option: Options = None,
) -> None:
    """Load and decode every row as training would; exit code 1 if any is bad.

    - `vlmrl data check my.yaml` checks all sources of a config
    - `vlmrl data check my.jsonl --out report.jsonl`
    - `vlmrl data check shapes:val -o task=counting`
    """
    from vlmrl.data.check import check_and_print

    sources = _sources(data, option, media_root)
    make = None
    if model:
        from vlmrl.assemble.prompts import build_prompt_maker
        from vlmrl.assemble.sources import with_audio
        from vlmrl.models.loading import load_model
        from vlmrl.policy.policy import Policy

        settings = configs.ModelConfig(path=model)
        policy = Policy(*load_model(settings), settings)
        make, sources = build_prompt_maker(policy, {}), with_audio(sources, policy.family)
    raise typer.Exit(1 if check_and_print(sources, out, make) else 0)


def _sources(data: str, option: list[str] | None, root: str | None) -> list[Any]:
    """The sources of a config file, or the one that `CARD_OR_FILE[:split]` means."""
    from vlmrl.data.source import open_config, open_target

    if data.endswith((".yaml", ".yml")):
        return open_config(configs.load(data))
    return [open_target(data, tree.pairs(option or ()), root)]


@data_app.command()
def explain(
    data: Data,
    row: Annotated[int, typer.Option(min=0, help="Which row, from 0.")] = 0,
    media_root: MediaRoot = None,
    option: Options = None,
) -> None:
    """Show one row as training sees it: parts, truth, and every box in every space.

    - `vlmrl data explain my.jsonl --row 7`
    """
    from vlmrl.data.check import explain

    print(explain(_sources(data, option, media_root)[0], row))


@data_app.command("list")
def list_cards() -> None:
    """List the shipped cards: origin, licence, splits, verifiers that fit."""
    from vlmrl.data.check import list_cards

    print(list_cards())


@config_app.command()
def show(config: ConfigName, overrides: Overrides = None) -> None:
    """Print the whole config as it will run, defaults included, as JSON.

    - `vlmrl config show quickstart rollout.group_size=16`
    """
    print(configs.load(config, overrides or ()).model_dump_json(indent=2))


@config_app.command()
def validate(config: ConfigName, overrides: Overrides = None) -> None:
    """Check every key, value, name and option of a config, without loading data or a model.

    - `vlmrl config validate my.yaml`
    """
    _config(config, overrides)
    print(f"{config}: valid")


@config_app.command()
def schema() -> None:
    """Print the JSON schema of configs, for editors.

    - `vlmrl config schema > schema.json`, then `# yaml-language-server: $schema=schema.json` as the
      first line of your YAML file
    """
    print(configs.schema())


@app.command("list")
def list_(
    what: Literal["verifiers", "cards", "families", "algorithms", "engines", "trackers", "configs"],
) -> None:
    """List what a config can name, with options and their defaults.

    - `vlmrl list verifiers`
    """
    from vlmrl.commands import list_parts

    configs = what == "configs"
    print("\n".join(list_parts.describe_configs() if configs else list_parts.describe(KINDS[what])))


def _config(name: str, overrides: list[str] | None) -> Any:
    from vlmrl.commands.validate import validate

    config = configs.load(name, overrides or ())
    validate(config)
    return config


def main() -> None:
    """The entry point `vlmrl`."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    try:
        app([a for a in arguments if a != "--debug"], prog_name="vlmrl")
    except UserError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as error:
        if debug:
            raise
        print(f"failed: {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        raise SystemExit(1) from None
