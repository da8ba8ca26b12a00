"""`vlmrl config`: show, check and describe configs."""

from __future__ import annotations

import gc

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
