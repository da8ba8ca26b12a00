"""`vlmrl sweep`: a run for every combination of values of a few keys, one after another.

Each has a folder of its own, named by its values. A finished one is left as it is, an interrupted one goes
on: the same sweep, asked for again, runs what is missing.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from vlmrl import config as configs
from vlmrl.assemble.validate import require_valid
from vlmrl.config import Config, tree
from vlmrl.config.changes import MAX_NAMED, changes
from vlmrl.config.sections.run import hide_secrets
from vlmrl.errors import MissingExtra, UserError
from vlmrl.features.benchmarks.evaluated_data import NAMES
from vlmrl.runs.output.events import Noted, Warned
from vlmrl.runs.output.outputs import Output
from vlmrl.system import distributed
from vlmrl.system.files import read_json
from vlmrl.truths.json_form import to_json

PLAIN = re.compile(r"[\w.+-]{1,40}", re.ASCII)
"""A value that names a folder as it is."""


@dataclass(frozen=True)
class Combination:
    """One run of a sweep."""

    values: Mapping[str, Any]
    """By swept key."""
    config: Config

    @property
    def folder(self) -> Path:
        """Where it writes."""
        return self.config.folder


@dataclass(frozen=True)
class SweptRuns:
    """What became of the runs of a sweep."""

    combinations: Sequence[Combination]
    errors: Mapping[Path, str] = field(default_factory=dict)
    """By the folder of a run that failed: why."""
    interrupted: bool = False
    """Whether Ctrl-C ended it: the run in hand is saved, and those after it have not begun."""


def read_values(overrides: Sequence[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the keys with several values, `key=a,b`, and the overrides that are none of these.

    Values are YAML; a comma within brackets, braces or quotes belongs to its value.

    Raises:
        UserError: no key has several values, one is there twice, or a value is no YAML.
    """
    values: dict[str, list[Any]] = {}
    plain = []
    for text in overrides:
        key, equals, raw = text.partition("=")
        pieces = tree.split_at_commas(raw)
        if not equals or len(pieces) == 1:
            plain.append(text)
        elif key in values:
            raise UserError(f"vlmrl sweep: {key} is there twice: name all of its values at once")
        else:
            parsed = [tree.pairs([f"{key}={piece.strip()}"]) for piece in pieces]
            values[key] = [reduce(operator.getitem, key.split("."), each) for each in parsed]
    if not values:
        raise UserError(
            "vlmrl sweep: expected a key with several values, e.g. optimizer.lr=1e-4,4e-4, got none"
        )
    return values, plain


def combine(config: Config, values: Mapping[str, Sequence[Any]]) -> list[Combination]:
    """Return every combination, the last key's values changing fastest; each is checked whole.

    Raises:
        UserError: no key, or one without values, with a value twice or that names runs; a combination is no
            valid config; a folder holds a run of another one.
    """
    values = {key: _values_of(key, some) for key, some in values.items()}
    if not values:
        raise UserError("sweep: expected a key with its values, got none")
    plain = config.model_dump(mode="json")
    combinations = []
    for chosen in itertools.product(*values.values()):
        own = dict(zip(values, chosen, strict=True))
        label = _label(own)
        texts = [f"{key}={json.dumps(value)}" for key, value in own.items()]
        renamed = [f"run.name={json.dumps(f'{config.run.name}_{label}')}", "resume.start=auto"]
        if config.run.dir:
            renamed.append(f"run.dir={json.dumps(f'{config.run.dir}_{label}')}")
        settings = configs.parse(reduce(tree.override, [*texts, *renamed], plain), label)
        require_valid(settings, label)
        _require_same(settings)
        combinations.append(Combination(own, settings))
    return combinations


def run_all(
    combinations: Sequence[Combination],
    train: Callable[[Config], Mapping[str, Any] | None],
    output: Output,
) -> SweptRuns:
    """Run combinations one after another; what one fails of is said, and the next one begins.

    `train` runs a config to its end, or goes on with it, and returns its summary.

    Raises:
        UserError: this process is one of several of a launcher.
    """
    if distributed.launched():
        raise UserError(
            "vlmrl sweep: expected one process, got one of several: start each run by `vlmrl train`"
        )
    errors: dict[Path, str] = {}
    for number, each in enumerate(combinations, start=1):
        output.say(Noted(f"run {number} of {len(combinations)}: {each.folder}"))
        try:
            summary = train(each.config)
        except Exception as error:
            is_known = isinstance(error, UserError | MissingExtra)
            errors[each.folder] = f"{'' if is_known else f'{type(error).__name__}: '}{error}"
            output.say(Warned(f"{each.folder}: failed: {errors[each.folder]}"))
        else:
            if summary is None or not summary["finished"]:
                return SweptRuns(combinations, errors, interrupted=True)
        gc.collect()  # a model may be held by circles, and the next one needs its memory
    return SweptRuns(combinations, errors)


def _values_of(key: str, values: Sequence[Any]) -> list[Any]:
    """Return the values of a key as JSON; UserError: none, one twice, or the key names the runs."""
    if key in NAMES or key.partition(".")[0] == "resume":
        raise UserError(f"sweep: {key}: the runs of a sweep are named, and resumed, by it")
    if isinstance(values, str) or not values:
        raise UserError(f"sweep: {key}: expected a list of values, got {values!r}")
    plain = [to_json(value) for value in values]
    if len({_text(value) for value in plain}) < len(plain):
        raise UserError(f"sweep: {key}: expected different values, got {values!r}")
    return plain


def _label(values: Mapping[str, Any]) -> str:
    """Return the end of a run's name, such as `lr=0.0001_seed=0`."""
    return "_".join(f"{name}={_text(values[key])}" for key, name in short_names(values).items())


def short_names(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return for each key its last part, or all of it where two would be called the same."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}


def _text(value: Any) -> str:
    """Return a value as a part of a file name: what is not plain by its hash."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if PLAIN.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()[:8]


def _require_same(config: Config) -> None:
    """Refuse a folder with a run of another config: the sweep would read it as its own."""
    file = config.folder / "config.json"
    if not file.is_file():
        return
    changed = changes(read_json(file), hide_secrets(config.model_dump(mode="json")))
    if changed:
        more = f" and {len(changed) - MAX_NAMED} more keys" if len(changed) > MAX_NAMED else ""
        raise UserError(
            f"{config.folder}: holds a run of another config: {'; '.join(map(str, changed[:MAX_NAMED]))}"
            f"{more}; give the sweep another run.name, or delete that folder"
        )
