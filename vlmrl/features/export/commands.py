"""`vlmrl export`: a trained model for others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vlmrl.errors import UserError


def export(
    run: Annotated[
        str,
        typer.Argument(
            help="A run folder, or one of its checkpoints; with --embeddings any model."
        ),
    ],
    adapter: Annotated[bool, typer.Option("--adapter", help="The LoRA adapter, for peft.")] = False,
    merged: Annotated[
        bool, typer.Option("--merged", help="The whole model, the adapter merged in.")
    ] = False,
    dtype: Annotated[
        Literal["bfloat16", "float32"] | None, typer.Option(help="Absent: the run's own.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder. Absent: in the run folder.")] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(help="Write only the token embeddings, as word vectors, to this .npz file."),
    ] = None,
    push: Annotated[
        str | None, typer.Option(help="Upload to this repository of the Hugging Face hub.")
    ] = None,
) -> None:
    """Write the weights of a run with a model card: data, rewards, held-out figures, licences.

    - `vlmrl export runs/quickstart` takes the best checkpoint
    - `vlmrl export runs/mine/checkpoints/step-200 --merged --dtype bfloat16 --out my-model`
    - `vlmrl export runs/mine --push me/my-model` uploads it, too, into a private repository

    - `vlmrl export Qwen/Qwen2.5-VL-7B-Instruct --embeddings words.npz` writes what `bmas` reads as `vectors`

    Without `--adapter` and `--merged` a LoRA run gives its adapter, any other its whole model. Neither
    optimizer state nor rollouts nor paths of this machine are in the folder.
    """
    if adapter and merged:
        raise UserError("export: expected --adapter or --merged, got both")
    if embeddings is not None:
        if adapter or merged or dtype or out or push:
            raise UserError("export: --embeddings goes without other options")
        from vlmrl.features.export.embeddings import write_embeddings

        print(f"{embeddings}: {write_embeddings(run, embeddings)} words")
        return
    form: Literal["adapter", "merged"] | None = (
        "adapter" if adapter else "merged" if merged else None
    )
    from vlmrl.features.export.export import export_run

    print(export_run(run, form, dtype, out, push))
    if push:
        print(f"uploaded to {push}")
