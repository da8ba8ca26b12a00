"""The command line: each command reads its arguments, calls one function, and prints the outcome.

A user's mistake (`UserError`) is one line on stderr and exit code 2; a check that says no, or a
fault of ours, is exit code 1; Ctrl-C is 130, after the trainer has saved. Torch is imported only
after a config has proved valid, so `--help` and the checks answer at once.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer

from vlmrl import __version__
from vlmrl.errors import UserError

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
ConfigName = Annotated[
    str, typer.Argument(help="Path of a YAML file, or name of a shipped config.")
]


KINDS = {
    "verifiers": "verifier",
    "cards": "card",
    "families": "family",
    "algorithms": "algorithm",
    "engines": "engine",
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
    from vlmrl import assemble

    summary = assemble.train(settings)
    if not summary["finished"]:
        print(
            f"interrupted; saved in {settings.folder}: add resume=auto to continue", file=sys.stderr
        )
        raise typer.Exit(130)


@config_app.command()
def show(config: ConfigName, overrides: Overrides = None) -> None:
    """Print the whole config as it will run, defaults included, as JSON.

    - `vlmrl config show quickstart rollout.group_size=16`
    """
    from vlmrl import config as configs

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
    from vlmrl import config as configs

    print(configs.schema())


@app.command("list")
def list_(
    what: Literal["verifiers", "cards", "families", "algorithms", "engines", "configs"],
) -> None:
    """List what a config can name, with options and their defaults.

    - `vlmrl list verifiers`
    """
    from vlmrl import listing

    configs = what == "configs"
    print("\n".join(listing.describe_configs() if configs else listing.describe(KINDS[what])))


def _config(name: str, overrides: list[str] | None) -> Any:
    from vlmrl import config as configs
    from vlmrl.validate import validate

    config = configs.load(name, overrides or ())
    validate(config)
    return config


def main() -> None:
    """The entry point `vlmrl`."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    try:
        app([a for a in arguments if a != "--debug"])
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
