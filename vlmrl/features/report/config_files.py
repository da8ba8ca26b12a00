"""Configs as a page writes them: files of the folder that the process is in, and mistakes of a text."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vlmrl.config import parse, tree
from vlmrl.config.key_help import KeyHelp, help_of, lines_of
from vlmrl.config.reading import WrongKeys
from vlmrl.errors import UserError
from vlmrl.system.files import write_bytes

NAME = re.compile(r"\w[\w. -]*\.ya?ml")
FIRST_TEXT = """# Everything is as in {base}, but for what this file sets.
extends: {base}

run:
  name: {name}
"""


@dataclass(frozen=True)
class TextLine:
    """A key that a text sets: its line, its help, and what is wrong with it."""

    path: str
    line: int
    help: KeyHelp | None
    mistake: str

    @property
    def mistake_first(self) -> bool:
        """Return what keys with a mistake come first by."""
        return not self.mistake


@dataclass(frozen=True)
class CheckedText:
    """A text of a config: its keys in their order, and what else is wrong."""

    keys: list[TextLine] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    line: int | None = None
    """The line at which it is no YAML."""

    @property
    def count(self) -> int:
        """Return how many mistakes there are."""
        return len(self.mistakes) + sum(bool(key.mistake) for key in self.keys)


def config_names() -> list[str]:
    """Return the names of the configs in the folder that the process is in."""
    return sorted(file.name for file in Path().glob("*.y*ml") if NAME.fullmatch(file.name))


def read_config(name: str) -> tuple[str, str]:
    """Return the text of a config of the folder, and its digest.

    Raises:
        UserError: there is no such file, or it is no text.
    """
    try:
        text = _path(name).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name}: cannot be read: {error}") from error
    return text, _digest(text)


def write_config(name: str, text: str, known: str | None, replace: bool) -> str:
    """Write a config to the folder, and return its digest.

    A file that is there is kept, unless the writer `known` its digest, or wants to `replace` it.

    Raises:
        UserError: it is kept, or the name is none of a file in this folder.
    """
    path = _path(name)
    if path.exists() and not replace and read_config(name)[1] not in (known, _digest(text)):
        raise UserError(
            f"{name} is there already and says something else: open it, take another name, or replace it"
        )
    write_bytes(path, text.encode())
    return _digest(text)


def check_text(name: str, text: str, overrides: Sequence[str]) -> CheckedText:
    """Say of each key of a text what it means, and what is wrong with it and with the overrides."""
    path = _path(name).resolve()
    try:
        plain = tree.read_text(text, path, overrides)
        lines = lines_of(text)
    except UserError as error:
        message = str(error).replace(f"{path.parent}/", "")
        number = re.match(rf"{re.escape(name)}, line (\d+): ", message)
        return CheckedText(mistakes=[message], line=int(number[1]) if number else None)
    problems = dict(_problems(plain, lines))
    keys = [TextLine(p, at, _own_help(p), problems.pop(p, "")) for p, at in lines.items()]
    return CheckedText(keys, [": ".join(filter(None, problem)) for problem in problems.items()])


def _own_help(path: str) -> KeyHelp | None:
    """Return the help of a key, None for an entry of a list and for what no section knows."""
    nearest = help_of(path)
    return nearest if nearest and nearest.path.split(".")[-1] == path.split(".")[-1] else None


def _path(name: str) -> Path:
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r}: expected a name such as mine.yaml, without a folder")
    return Path(name)


def begin_config(base: str) -> tuple[str, str, str]:
    """Return a free name, the text of a config that extends a shipped one, and what that one says.

    Raises:
        UserError: none is shipped of this name.
    """
    if base not in (known := tree.shipped()):
        raise UserError(f"no shipped config is named {base!r}")
    names = (f"mine{number}" if number > 1 else "mine" for number in itertools.count(1))
    name = next(name for name in names if not Path(f"{name}.yaml").exists())
    return f"{name}.yaml", FIRST_TEXT.format(base=base, name=name), known[base].read_text("utf-8")


def _problems(plain: dict[str, object], lines: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a config by the path of the key; "" where it is more than one key's."""
    try:
        parse(plain, "")
    except WrongKeys as error:
        for path, message in error.problems.items():
            key, _, rest = message.partition(": ")
            yield (key, rest) if not path and key in lines else (path, message)
    except UserError as error:
        yield "", str(error)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
