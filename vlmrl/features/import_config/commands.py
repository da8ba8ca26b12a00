"""`vlmrl import-config`: a run of another trainer as a config."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def import_config(
    file: Annotated[
        Path, typer.Argument(help="YAML, JSON, or the shell script that starts a run.")
    ],
    trainer: Annotated[
        str | None, typer.Option("--from", help="trl, ms-swift, easyr1 or vlm-r1; else recognised.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs that it ran on, where the file does not say it.", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the config here.")] = None,
) -> None:
    """Turn the settings of TRL, ms-swift, EasyR1 or VLM-R1 into a config, with a line on each of them.

    - `vlmrl import-config run_grpo.sh -o my.yaml`, then `vlmrl config validate my.yaml`
    """
    from vlmrl.features.import_config.convert import import_config
    from vlmrl.system.files import write_bytes

    imported = import_config(file, trainer, gpus)
    for line in imported.lines():
        print(line, file=sys.stderr)
    text = imported.as_yaml(file.name)
    if out is None:
        print(text, end="")
    else:
        write_bytes(out, text.encode())
