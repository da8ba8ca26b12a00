"""Check that the commands of published figures still exist, without running them.

A script is loaded up to the point where it has read its arguments; `python figure_commands.py` does that
for the commands on its standard input, a JSON list of word lists, and prints a JSON list of what is wrong.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]


def problems(records: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the commands of records: script, command, config, option or value gone."""
    from reproduce import words_of

    from vlmrl.errors import UserError

    found, scripts = [], {}
    for name, record in records.items():
        if not record.command:
            continue
        try:
            words = words_of(record.command, "out")[1:]
            if words[0] == "-m":
                check_command(words[2:])
            elif (ROOT / words[0]).is_file():
                check_configs(words[0])
                scripts[name] = words
            else:
                raise UserError(f"{words[0]} is gone")
        except UserError as error:
            found.append(f"{record.topic}.yaml, record {name!r}: {error}")
    for name, problem in zip(scripts, check_scripts(list(scripts.values())), strict=True):
        if problem:
            found.append(f"{records[name].topic}.yaml, record {name!r}: {problem}")
    return found


def check_command(words: Sequence[str]) -> None:
    """Let vlmrl read the arguments of one of its commands, and the config if it names one.

    Raises:
        UserError: no such command, option, config or key.
    """
    import typer

    from vlmrl.assemble.validate import load_valid
    from vlmrl.cli.app import app
    from vlmrl.errors import UserError

    command: Any = typer.main.get_command(app)
    context = command.make_context("vlmrl", [], resilient_parsing=True)
    rest = list(words)
    while hasattr(command, "commands"):
        command = command.commands.get(rest[0]) if rest else None
        if command is None:
            raise UserError(f"vlmrl has no command {' '.join(words)!r}")
        rest = rest[1:]
    try:
        read = command.make_context(command.name, rest, parent=context).params
    except typer.BadParameter.__base__ as error:
        raise UserError(error.format_message()) from error
    if "overrides" in read:
        load_valid(read["config"], read["overrides"] or ())


def check_configs(script: str) -> None:
    """Read and check the configs that a script names.

    Raises:
        UserError: a config that is gone or not valid.
    """
    from vlmrl.assemble.validate import load_valid

    for name in sorted(set(configs_of((ROOT / script).read_text(encoding="utf-8")))):
        own = ROOT / "performance/configs" / f"{name}.yaml"
        load_valid(str(own) if own.exists() else name)


def configs_of(source: str) -> Iterator[str]:
    """Yield what a script calls CONFIG, and names where it loads, begins or trains a run."""
    for node in ast.walk(ast.parse(source)):
        named: Any = None
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CONFIG":
            named = node.value
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            named = node.args[0] if called in ("config.load", "start", "curve", "train") else None
        if isinstance(named, ast.Constant) and isinstance(named.value, str):
            yield named.value


def check_scripts(commands: Sequence[Sequence[str]]) -> list[str]:
    """Return for each `script arguments...` what its own parser says against it; "" if nothing."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return list(json.loads(done.stdout))


class _Parsed(BaseException):
    """A script has read its arguments."""


def _parse(script: str, arguments: Sequence[str]) -> str:
    """Load a script until it has read its arguments; return what its parser said."""
    if "parse_args(" not in (ROOT / script).read_text(encoding="utf-8"):
        return f"{script} reads no arguments, so it cannot be checked" if arguments else ""
    sys.argv = [script, *arguments]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            runpy.run_path(str(ROOT / script), run_name="__main__")
    except _Parsed:
        return ""
    except SystemExit:
        return said.getvalue().strip().split("\n")[-1]
    return f"{script} ended without reading its arguments"


def _main() -> None:
    read_all = argparse.ArgumentParser.parse_args

    def stop(self: Any, *arguments: Any) -> NoReturn:
        read_all(self, *arguments)
        raise _Parsed

    argparse.ArgumentParser.parse_args = stop  # type: ignore[assignment, method-assign]
    sys.path[:0] = [str(ROOT / "performance"), str(ROOT)]
    print(json.dumps([_parse(script, rest) for script, *rest in json.load(sys.stdin)]))


if __name__ == "__main__":
    _main()
