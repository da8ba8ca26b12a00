"""`vlmrl export`: the weights of a run as a folder for others, with a model card written from the run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

from vlmrl.commands import export_files, hub_upload
from vlmrl.commands.model_card import write_card
from vlmrl.commands.trained_run import find_run, read_config
from vlmrl.config import ModelConfig
from vlmrl.errors import UserError
from vlmrl.policy import adapter_folder, checkpoint
from vlmrl.system.atomic_files import writing

__all__ = ["export_run"]

Form = Literal["adapter", "merged"]


def export_run(
    run: str,
    form: Form | None = None,
    dtype: str | None = None,
    out: Path | None = None,
    push: str | None = None,
) -> Path:
    """Write the adapter or the merged weights of a run with a model card; return the folder.

    `run` is a run folder (its best checkpoint) or one of its checkpoints. Without `form`: the adapter
    where a LoRA run loaded its base model, else the merged weights. Without `dtype`: the run's own.
    Without `out`: `exports/<checkpoint>-<form>` in the run folder. `push` names a repository of the
    Hugging Face hub that gets the folder.

    Raises:
        UserError: no such run, a damaged checkpoint, a form that the run does not have, a folder that
            is not empty, or a hub that refuses; one line.
    """
    folder, source = find_run(run)
    if folder is None or source is None:
        raise UserError(f"export: expected a run folder or a checkpoint of one, got {run!r}")
    checkpoint.require_whole(source, "export", f"the run folder {folder}")
    config = read_config(folder)
    model = config.model
    form = form or ("adapter" if model.lora and model.path else "merged")
    _require_form(form, model, source)
    if push:
        hub_upload.require_token(push)
    target = out or folder / "exports" / f"{source.name}-{form}"
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"export: {target} is there already; delete it or name another with --out")
    working = target.with_name(f".{target.name}.part")
    with writing(target):
        shutil.rmtree(working, ignore_errors=True)
        try:
            working.mkdir(parents=True)
            if form == "adapter":
                assert model.path is not None
                base = export_files.public_name(model.path)
                export_files.write_adapter(source, working, dtype or model.dtype, base)
            else:
                export_files.write_merged(source, working, dtype or model.dtype)
            write_card(working, folder, source, form, push or target.name)
            if target.exists():
                target.rmdir()
            os.replace(working, target)
        finally:
            shutil.rmtree(working, ignore_errors=True)
    if push:
        hub_upload.upload(target, push)
    return target


def _require_form(form: Form, model: ModelConfig, source: Path) -> None:
    """Refuse a form that a run does not have, with the reason."""
    if form == "merged" and model.quantization:
        raise UserError(
            f"export --merged: the adapter was trained on 4-bit weights (model.quantization: "
            f"{model.quantization}), and merging needs the base model in full: use --adapter, and "
            "PeftModel.merge_and_unload on a base model of your choice"
        )
    if form == "merged":
        return
    if model.lora is None:
        raise UserError(
            "export --adapter: this run trained the weights themselves (model.lora is not set); "
            "use --merged"
        )
    if model.path is None:
        raise UserError(
            "export --adapter: the base model was built for this run (model.build), so nobody has "
            "it; use --merged"
        )
    if not (source / adapter_folder.FOLDER).is_dir():
        raise UserError(
            f"export --adapter: {source} is of an older version and has no folder "
            f"{adapter_folder.FOLDER}/; use --merged"
        )
