"""The data of another trainer's run as sources of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlmrl.commands.importing.given_settings import Settings
from vlmrl.commands.importing.rules import Note
from vlmrl.data.files.hub_download import HUB

__all__ = ["data_of", "source_of"]

NAMES = ("data_file_paths", "image_folders", "dataset", "dataset_name", "dataset_train_split",
         "dataset_test_split", "dataset_config", "val_dataset")  # fmt: skip
LAYOUTS = {"ms-swift": "ms_swift", "vlm-r1": "vlm_r1"}


def source_of(place: str, layout: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a source of `owner/name` of the hub, or of a file or folder; `#N` behind it is a limit."""
    place, _, limit = place.partition("#")
    on_hub = place.count("/") == 1 and "." not in place and not place.startswith(("/", "data/"))
    options = {"path": f"{HUB}{place}" if on_hub else place}
    if layout:
        options["layout"] = layout
    source = {"card": "auto", "options": {**options, **more}}
    return source | ({"limit": int(limit)} if limit.isdigit() else {})


def data_of(settings: Settings, trainer: str) -> tuple[list[Note], set[str]]:
    """Return the sources of TRL, ms-swift and VLM-R1, and the names of the settings that they are of."""
    layout = LAYOUTS.get(trainer)
    notes = []
    if files := _parts(settings.get("data_file_paths")):
        folders = _parts(settings.get("image_folders"))
        roots: Sequence[dict[str, str]] = [{"root": folder} for folder in folders]
        roots = roots if len(roots) == len(files) else [{}] * len(files)
        train = [source_of(file, layout, **root) for file, root in zip(files, roots, strict=True)]
        notes.append(Note("data_file_paths", {"data.train": _named(train)}))
    for name, key in (
        ("dataset", "data.train"),
        ("dataset_name", "data.train"),
        ("val_dataset", "evaluation.sources"),
    ):
        given = settings.get(name)
        if given and not files:
            places = given if isinstance(given, list) else [given]
            sources = [source_of(str(place), layout) for place in places]
            split = settings.get("dataset_train_split")
            if split and name != "val_dataset":
                sources = [{**source, "split": split} for source in sources]
            notes.append(Note(name, {key: _named(sources)}, "`vlmrl data explain` shows its rows"))
    return notes, set(NAMES)


def _parts(value: Any) -> list[str]:
    """Return the places of a text with colons between them; a list of places as it is."""
    if isinstance(value, list):
        return [str(place) for place in value]
    return [place for place in str(value).split(":") if place] if value else []


def _named(sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sources, with names where several have one card."""
    if len(sources) == 1:
        return sources
    return [{"name": f"part{i}", **source} for i, source in enumerate(sources, start=1)]
