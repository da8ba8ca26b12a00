"""A run of another trainer as a config of ours, with a line on each of its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vlmrl import plugins
from vlmrl.commands.importing import easyr1, hf_trainers
from vlmrl.commands.importing.data_sources import data_of
from vlmrl.commands.importing.given_settings import Settings, read_settings
from vlmrl.commands.importing.rules import Note, Rules
from vlmrl.config import Config, parse, tree
from vlmrl.errors import UserError

__all__ = ["TRAINERS", "Imported", "import_config"]

TRAINERS = ("trl", "ms-swift", "easyr1", "vlm-r1")
MISSING = {
    "model": "add `model.path`",
    "data": "add `data.train`: vlmrl data explain PATH",
    "rewards": "add `rewards`: none of its reward functions is known here",
}
NEEDED = {"model": {"path": "a"}, "data": {"train": ["shapes"]}, "rewards": ["format"]}
"""What a config must have, where the file states none, so that all else can be checked."""


@dataclass(frozen=True)
class Imported:
    """The config, and what became of every setting."""

    trainer: str
    config: dict[str, Any]
    notes: Sequence[Note]

    def as_yaml(self, origin: str) -> str:
        """Return the config as a file that says where it is from."""
        head = f"# From {origin} ({self.trainer}), by `vlmrl import-config`.\n"
        return head + yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True)

    def lines(self) -> Iterator[str]:
        """Yield a line on each setting: what it became, or why it became nothing."""
        width = max(len(note.name) for note in self.notes)
        for note in self.notes:
            made = ", ".join(f"{key}: {value}" for key, value in note.keys.items())
            words = "; ".join(part for part in (made or "left out", note.why) if part)
            yield f"{note.name:{width}}  {words}"


def import_config(path: Path, trainer: str | None = None, gpus: int | None = None) -> Imported:
    """Return what a file of another trainer becomes here.

    `trainer` is one of `TRAINERS`; None: what its settings look like. `gpus` is the number that it runs
    on; None: what the file says, or 1.

    Raises:
        UserError: the file cannot be read, or is of no trainer that we know.
    """
    settings = read_settings(path)
    trainer = trainer or _trainer_of(settings, path)
    if trainer not in TRAINERS:
        raise UserError(f"--from: expected one of {', '.join(TRAINERS)}, got {trainer!r}")
    notes = [*_notes(settings, trainer, gpus or _gpus_of(settings))]
    config = _assemble(notes, {} if trainer == "easyr1" else hf_trainers.DEFAULTS)
    notes += _drop_unknown_options(config)
    for key, words in MISSING.items():
        if key not in config:
            notes.append(Note(f"({key})", {}, words))
    parse(tree.merge(NEEDED, config), str(path))
    return Imported(trainer, config, notes)


def _trainer_of(settings: Settings, path: Path) -> str:
    if any(name.startswith("worker.") for name in settings):
        return "easyr1"
    if "rlhf_type" in settings:
        return "ms-swift"
    if "data_file_paths" in settings:
        return "vlm-r1"
    if {"num_generations", "model_name_or_path", "per_device_train_batch_size"} & settings.keys():
        return "trl"
    raise UserError(
        f"{path}: the settings look like those of none of {', '.join(TRAINERS)}; say which: --from"
    )


def _gpus_of(settings: Settings) -> int:
    for name in ("nproc_per_node", "NPROC_PER_NODE", "num_processes"):
        if isinstance(settings.get(name), int):
            return int(settings[name])
    return 1


def _notes(settings: Settings, trainer: str, gpus: int) -> Iterator[Note]:
    if trainer == "easyr1":
        rules: Rules = easyr1.RULES
        joint, used = easyr1.sizes(settings)
    else:
        rules = hf_trainers.RULES
        joint, used = hf_trainers.sizes(settings, gpus)
        data, more = data_of(settings, trainer)
        joint, used = [*data, *joint], used | more
    yield from joint
    for name, value in settings.items():
        if name in used:
            continue
        rule = rules.get(name)
        if rule is None and name.isupper():  # a variable of the script
            continue
        keys, why = rule(value) if rule else ({}, "not known here")
        if "$" in str(value):
            keys, why = {}, f"{value!r} is what the script's shell makes of it"
        yield Note(name, keys, why)


def _assemble(notes: Sequence[Note], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of all notes as a tree; of two that set one key the last counts."""
    flat = {**defaults, **{key: value for note in notes for key, value in note.keys.items()}}
    config: dict[str, Any] = {}
    for key in sorted(flat, key=lambda key: ORDER.index(key.partition(".")[0])):
        section, *path = config, *key.split(".")
        for part in path[:-1]:
            section = section.setdefault(part, {})
        section[path[-1]] = flat[key]
    return config


ORDER = [*Config.model_fields]


def _drop_unknown_options(config: dict[str, Any]) -> list[Note]:
    """Take out the options that the algorithm or the engine has not, and say so."""
    notes = []
    for section, otherwise in (("algorithm", "grpo"), ("engine", "hf")):
        part = config.get(section)
        if part is None:
            continue
        name = part.setdefault("name", otherwise)
        known = plugins.options_of(plugins.load(section, name))
        for option in [option for option in part.get("options", {}) if option not in known]:
            value = part["options"].pop(option)
            notes.append(
                Note(f"({section}.options.{option})", {}, f"{name} has none; it was {value}")
            )
    return notes
