"""A run of another trainer as a config of ours, with a line on each of its settings.

Its settings are read from a YAML or JSON file or a shell script. A script is read, never run: its variables
are those that it sets itself to a plain value.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vlmrl import plugins
from vlmrl.config import Config, parse, tree
from vlmrl.config.tree import DuplicateKey, load_yaml
from vlmrl.errors import UserError
from vlmrl.features.import_config.tables import (
    EASYR1_RULES,
    HF_DEFAULTS,
    HF_RULES,
    Note,
    Rules,
    Settings,
    data_of,
    easyr1_sizes,
    hf_level,
    hf_sizes,
)

ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
DOTTED = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")


def read_settings(path: Path) -> Settings:
    """Return the settings that a file states.

    Raises:
        UserError: it cannot be read, or states none.
    """
    if path.suffix in (".yaml", ".yml", ".json"):
        return dict(_flat(tree.read_mapping(path), ""))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    return _of_script(path, text)


def value_of(text: str) -> Any:
    """Return the number, boolean, null, list or text that an argument stands for."""
    try:
        return load_yaml(text)
    except (DuplicateKey, yaml.YAMLError, ValueError, RecursionError):
        return text


def _flat(section: Mapping[Any, object], before: str) -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value_of(value) if isinstance(value, str) else value


def _of_script(path: Path, text: str) -> Settings:
    """Return the arguments of the command that has the most of them, and the variables before it."""
    variables: dict[str, str] = {}
    best: Settings = {}
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = [*itertools.takewhile(lambda word: word[:1] != "#", shlex.split(line))]
        except ValueError:  # quotes that span lines: no plain argument
            continue
        words = [_filled(word, variables) for word in words]
        own: dict[str, str] = {}
        while words and (words[0] == "export" or ASSIGNED.fullmatch(words[0])):
            if assignment := ASSIGNED.fullmatch(words.pop(0)):
                own[assignment[1]] = assignment[2]
        if not words:
            variables |= own
            continue
        settings = _arguments(words)
        if len(settings) > len(best):
            best = {name: value_of(value) for name, value in (variables | own).items()} | settings
    if not best:
        raise UserError(
            f"{path}: no command with arguments like `--name value` or `name.part=value`"
        )
    return _with_file(path, best)


def _filled(word: str, variables: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda found: variables.get(found[1], found[0]), word)


def _arguments(words: list[str]) -> Settings:
    """Return `--name value ...`, `--name=value` and `name.part=value`; a name alone is true."""
    texts_of: dict[str, list[str]] = {}
    name = None
    for word in words[1:]:
        if word.startswith("--"):
            name, equals, value = word[2:].replace("-", "_").partition("=")
            texts_of[name] = [value] if equals else []
            name = None if equals else name
        elif (setting := DOTTED.fullmatch(word)) and (name is None or not texts_of[name]):
            texts_of[setting[1]], name = [setting[2]], None
        elif name is not None and not word.endswith(".py"):  # the program that torchrun starts
            texts_of[name].append(word)
    values = {key: [value_of(text) for text in texts] for key, texts in texts_of.items()}
    return {key: of[0] if len(of) == 1 else of or True for key, of in values.items()}


def _with_file(path: Path, settings: Settings) -> Settings:
    """Return the settings of the file that `config=` names, with these on top."""
    named = settings.get("config")
    if not isinstance(named, str):
        return settings
    for folder in (Path(), *path.absolute().parents):
        if (folder / named).is_file():
            return read_settings(folder / named) | settings
    return settings


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
    stated = (settings.get(name) for name in ("nproc_per_node", "NPROC_PER_NODE", "num_processes"))
    gpus = gpus or next((number for number in stated if isinstance(number, int)), 1)
    notes = [*_notes(settings, trainer, gpus)]
    config = _assemble(notes, {} if trainer == "easyr1" else HF_DEFAULTS)
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


def _notes(settings: Settings, trainer: str, gpus: int) -> Iterator[Note]:
    if trainer == "easyr1":
        rules: Rules = EASYR1_RULES
        joint, used = easyr1_sizes(settings)
    else:
        rules = HF_RULES
        joint, used = hf_sizes(settings, gpus)
        data, more = data_of(settings, trainer)
        level, pair = hf_level(settings)
        joint, used = [*data, *joint, *level], used | more | pair
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


def _assemble(notes: Sequence[Note], defaults: Mapping[str, object]) -> dict[str, Any]:
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
