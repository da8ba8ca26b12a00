"""The commands by name. Each reads its arguments, calls one function and prints the outcome.

A command imports what it needs when it is called, and torch only after a config has proved valid, so
that `--help` and the checks answer at once.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vlmrl import __version__
from vlmrl.cli import init, sweep, train
from vlmrl.errors import FAILED, FULL_DISK, INTERRUPTED, MISTAKE, MissingExtra, UserError
from vlmrl.features.benchmarks import commands as benchmarks
from vlmrl.features.check import commands as check
from vlmrl.features.curate import commands as curate
from vlmrl.features.export import commands as export
from vlmrl.features.import_config import commands as import_config
from vlmrl.features.launch import commands as launch
from vlmrl.features.parts import commands as parts
from vlmrl.features.plan import commands as plan
from vlmrl.features.prove import commands as prove
from vlmrl.features.report import commands as report
from vlmrl.features.serve import commands as serve
from vlmrl.features.verify import commands as verify
from vlmrl.features.weights import commands as weights

_UsageError: Any = typer.BadParameter.__base__
"""A mistake in the arguments, as typer's own copy of click raises it."""


class _Commands(TyperGroup):
    """The commands; a mistake in their arguments, and Ctrl-C (exit code 130), is one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                raise
            asked = ctx.command_path if error.ctx is None else error.ctx.command_path
            what = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
            raise UserError(f"{what}; see `{asked} --help`") from error
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="vlmrl",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(no_args_is_help=True, help="Show, check and describe configs.")
mixture_app = typer.Typer(no_args_is_help=True, help="Choose the weights of sources.")
data_app = typer.Typer(
    no_args_is_help=True, help="Check, look at, rate and choose data; let a teacher demonstrate."
)
model_app = typer.Typer(
    no_args_is_help=True, help="Get published weights of towers, and make models of them."
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"vlmrl {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Teach vision-language models to perceive, by reinforcement learning with checkable rewards.

    Start here: `vlmrl train quickstart`, then open `runs/quickstart/report.html`.

    Your own data, in this order: `vlmrl init`, `vlmrl data check`, `vlmrl config validate`,
    `vlmrl doctor`, `vlmrl train`, `vlmrl eval`, `vlmrl export`. `vlmrl COMMAND --help` has examples of each.
    """


app.command()(init.init)
app.command()(train.train)
app.command()(sweep.sweep)
app.command()(launch.launch)
app.command("eval")(benchmarks.evaluate)
app.command()(benchmarks.compare)
app.command()(check.doctor)
app.command()(plan.plan)
app.command()(report.report)
app.command()(report.watch)
app.command()(prove.prove)
app.command()(export.export)
app.command("try")(serve.try_)
app.command()(serve.predict)
app.command()(serve.serve)
app.command("import-config")(import_config.import_config)
app.command()(verify.score)
app.command()(verify.verify)
app.command("list")(check.list_)
app.command("test-part")(parts.test_part)
app.add_typer(config_app, name="config")
config_app.command()(check.show)
config_app.command()(check.validate)
config_app.command()(check.schema)
app.add_typer(mixture_app, name="mixture")
mixture_app.command()(curate.fit)
app.add_typer(data_app, name="data")
data_app.command()(check.check)
data_app.command()(curate.demonstrate)
data_app.command()(check.explain)
data_app.command()(check.fetch)
data_app.command()(curate.rate)
data_app.command()(report.select)
data_app.command("list")(check.list_cards)
app.add_typer(model_app, name="model")
model_app.command()(weights.fetch)
model_app.command()(weights.assemble)


def run(arguments: Sequence[str]) -> None:
    """Run one command; errors become a line on stderr and an exit code, as `main` says."""
    debug = "--debug" in arguments
    if isinstance(sys.stdout, io.TextIOWrapper):  # rows may hold what no terminal can show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            app([a for a in arguments if a != "--debug"], prog_name="vlmrl")
        except SystemExit:
            sys.stdout.flush()
            raise
    except (UserError, MissingExtra) as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(MISTAKE) from None
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            from vlmrl.runs.output.outputs import drop_unwritten

            what = error.filename or "standard output"
            print(f"error: {what}: cannot be written: {error.strerror}", file=sys.stderr)
            drop_unwritten(sys.stdout)
            raise SystemExit(MISTAKE) from None
        print(f"failed: {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        raise SystemExit(FAILED) from None
