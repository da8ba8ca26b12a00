"""The settings of a run of another trainer, as a YAML or JSON file or a shell script states them.

A script is read, never run: its variables are those that it sets itself to a plain value.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from vlmrl.config import tree
from vlmrl.config.yaml_loader import DuplicateKey, load_yaml
from vlmrl.errors import UserError

__all__ = ["Settings", "read_settings", "value_of"]

Settings = dict[str, Any]
"""Values by name; a name in a section has the sections' names before it: "worker.rollout.n"."""

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


def _flat(section: Mapping[Any, Any], before: str) -> Iterator[tuple[str, Any]]:
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
            if found := ASSIGNED.fullmatch(words.pop(0)):
                own[found[1]] = found[2]
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
    """Return a word with the values of the variables that are known."""
    return VARIABLE.sub(lambda found: variables.get(found[1], found[0]), word)


def _arguments(words: list[str]) -> Settings:
    """Return `--name value ...`, `--name=value` and `name.part=value`; a name alone is true."""
    given: dict[str, list[str]] = {}
    name = None
    for word in words[1:]:
        if word.startswith("--"):
            name, equals, value = word[2:].replace("-", "_").partition("=")
            given[name] = [value] if equals else []
            name = None if equals else name
        elif (found := DOTTED.fullmatch(word)) and (name is None or not given[name]):
            given[found[1]], name = [found[2]], None
        elif name is not None and not word.endswith(".py"):  # the program that torchrun starts
            given[name].append(word)
    values = {key: [value_of(text) for text in texts] for key, texts in given.items()}
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
