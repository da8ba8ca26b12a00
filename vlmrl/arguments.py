"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from vlmrl.config import PluginRef

ConfigName = Annotated[
    str, typer.Argument(help="Path of a YAML file, or name of a shipped config.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Configs to lay over it, e.g. `machines/8x80gb`, later ones win; then any keys, e.g. "
        "`run.steps=50 rewards.box_iou.weight=2`."
    ),
]
Verifier = Annotated[str, typer.Argument(help="A shipped verifier, or `file.py:function`.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of the part, `key=value`; repeatable."),
]
Data = Annotated[
    str,
    typer.Argument(
        help="A card or a data file, as `NAME` or `NAME:SPLIT`; or a config, as a file or `folder/name`."
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Say only warnings, evaluations and the outcome.")
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Write one JSON object a line to standard output, for programs."),
]
MediaRoot = Annotated[str | None, typer.Option(help="Folder that media paths must stay inside.")]


def reference(text: str) -> PluginRef:
    """Return the part that `name` or `name(option=value)` means.

    Raises:
        UserError: the options cannot be read.
    """
    from vlmrl.config import PluginRef, tree

    name, options = tree.named(text)
    return PluginRef(name=name, options=options)
