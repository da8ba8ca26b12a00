"""The command line. The entry point `vlmrl` is `main`; `app.py` lists the commands."""

from __future__ import annotations

import sys

from vlmrl.errors import INTERRUPTED


def main() -> None:
    """Run the command line that `sys.argv` holds.

    A user's mistake (`UserError`) is one line on stderr and exit code 2; a check that says no, or a
    fault of ours, is exit code 1; Ctrl-C is one line and exit code 130.
    """
    try:
        from vlmrl.cli.app import run  # imported here so that Ctrl-C meanwhile is one line, too

        run(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
