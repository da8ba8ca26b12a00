"""`vlmrl doctor`: examine a config before running it."""

from __future__ import annotations

import typer

from vlmrl.cli.arguments import ConfigName, Overrides
from vlmrl.cli.exit_codes import FAILED


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
