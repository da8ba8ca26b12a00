"""`vlmrl config`: show, check and describe configs."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.arguments import ConfigName, Overrides


def show(config: ConfigName, overrides: Overrides = None) -> None:
    """Print the whole config as it will run, defaults included, as JSON.

    - `vlmrl config show quickstart rollout.group_size=16`
    """
    from vlmrl.config import load

    print(load(config, overrides or ()).model_dump_json(indent=2))


def validate(config: ConfigName, overrides: Overrides = None) -> None:
    """Check every key, value, name, option and path of a config, without loading data or a model.

    Says how many questions a batch of rollouts asks of each of `models` at most.

    - `vlmrl config validate my.yaml`
    """
    gc.disable()  # imports leave nothing to collect: a tenth of the time
    try:
        from vlmrl.commands.validate import describe_questions, load_valid

        lines = [*describe_questions(load_valid(config, overrides or ()))]
    finally:
        gc.enable()
    print(f"{config}: valid", *lines, sep="\n")


def schema() -> None:
    """Print the JSON schema of configs, for editors.

    - `vlmrl config schema > schema.json`, then `# yaml-language-server: $schema=schema.json` as the
      first line of your YAML file
    """
    from vlmrl.config import schema

    print(schema())


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
    from vlmrl.commands.importing.convert import import_config
    from vlmrl.system.atomic_files import write_bytes

    found = import_config(file, trainer, gpus)
    for line in found.lines():
        print(line, file=sys.stderr)
    text = found.as_yaml(file.name)
    if out is None:
        print(text, end="")
    else:
        write_bytes(out, text.encode())
