"""The page of every command: help, arguments and options, from the functions behind the commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import typer
from tables import code, header, row
from typer.utils import get_params_from_function

from vlmrl.cli.app import app as commands
from vlmrl.config.key_help import type_text, value_text

INTRODUCTION = """# Commands

Exit codes: 0 for success; 1 where a check says no or vlmrl itself failed; 2 for a mistake in the
arguments, the config or the data, with one line on standard error; 130 after Ctrl-C, once the run has
been saved. `vlmrl --debug ...` shows the traceback.
"""


def page() -> str:
    """Return the whole page."""
    lines = [INTRODUCTION]
    for name, function in _commands("vlmrl", commands):
        parameters = list(get_params_from_function(function).values())
        is_argument = [isinstance(p.default, typer.models.ArgumentInfo) for p in parameters]
        places = [p.name.upper() for p, yes in zip(parameters, is_argument, strict=True) if yes]
        usage = " ".join([name, *places, *(() if all(is_argument) else ("[OPTIONS]",))])
        lines += [f"## `{name}`", "", "```sh", usage, "```", "", inspect.getdoc(function) or "", ""]
        if parameters:
            lines += [*header("argument or option", "type", "default", "what it is")]
            lines += [*map(_row, parameters), ""]
    return "\n".join(lines)


def _commands(name: str, app: typer.Typer) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every command of an app with its full name."""
    for command in app.registered_commands:
        assert command.callback is not None
        yield f"{name} {command.name or command.callback.__name__}", command.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from _commands(f"{name} {group.name}", group.typer_instance)


def _row(parameter: Any) -> str:
    told = parameter.default
    flags = getattr(told, "param_decls", None) or [f"--{parameter.name.replace('_', '-')}"]
    is_option = isinstance(told, typer.models.OptionInfo)
    shown = ", ".join(flags) if is_option else parameter.name.upper()
    default = getattr(told, "default", ...)
    written = "required" if default in (..., inspect.Parameter.empty) else code(value_text(default))
    kind = type_text(parameter.annotation).removesuffix(" | null")
    help_ = getattr(told, "help", None) or ""
    return row(code(shown), kind, "" if default in (None, False) else written, help_)
