"""`vlmrl list`: the parts that a config can name."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Listed(str, Enum):
    """What `vlmrl list` can list."""

    verifiers = "verifiers"
    cards = "cards"
    families = "families"
    algorithms = "algorithms"
    engines = "engines"
    configs = "configs"


def list_(what: Annotated[Listed, typer.Argument(help="The kind of part.")]) -> None:
    """List what a config can name, with options, their types and their defaults.

    - `vlmrl list verifiers`
    - `vlmrl list configs`
    """
    from vlmrl import plugins
    from vlmrl.commands import list_parts

    if what is Listed.configs:
        lines = list_parts.describe_configs()
    else:
        kinds = {plugins.plural(kind): kind for kind in plugins.KINDS}
        lines = list_parts.describe(kinds[what.value])
    print("\n".join(lines))
