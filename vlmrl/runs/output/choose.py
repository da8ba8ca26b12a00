"""Which output a command has: chosen here, once."""

from __future__ import annotations

import sys

from rich.console import Console

from vlmrl.errors import UserError
from vlmrl.runs.output.base import Output
from vlmrl.runs.output.json_lines import JsonLines
from vlmrl.runs.output.lines import Lines, QuietLines
from vlmrl.runs.output.live import LiveOutput
from vlmrl.runs.output.widths import columns_of_terminal, is_dumb
from vlmrl.system import distributed

__all__ = ["choose"]


def choose(quiet: bool = False, as_json: bool = False) -> Output:
    """Return what fits the options of a command and its standard output.

    Raises:
        UserError: both options are given.
    """
    if quiet and as_json:
        raise UserError("expected one of --quiet and --json, got both")
    is_silent = distributed.launched_rank() > 0  # the main rank speaks for all
    if as_json:
        return JsonLines(is_silent)
    if is_silent:
        return Output()
    # Not what rich says: FORCE_COLOR would make a log a terminal.
    is_terminal = sys.stdout.isatty()
    if quiet or not is_terminal or is_dumb():
        return (QuietLines if quiet else Lines)(columns_of_terminal() if is_terminal else None)
    return LiveOutput(Console(file=sys.stdout))
