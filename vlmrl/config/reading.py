"""Read a config, validate it, and say what is wrong with it in one line per mistake."""

from __future__ import annotations

import json
import reprlib
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from vlmrl.config import tree as config_tree
from vlmrl.config import whole as stages
from vlmrl.config.section import Section, section_in
from vlmrl.config.whole import Config
from vlmrl.errors import UserError
from vlmrl.plugins import nearest


class WrongKeys(UserError):
    """Mistakes in a config; `problems` has for the path of each key ("": the whole) what is wrong."""

    def __init__(self, name: str, problems: Mapping[str, str]) -> None:
        lines = [": ".join(filter(None, (name, *problem))) for problem in problems.items()]
        super().__init__("\n".join(dict.fromkeys(lines)))
        self.problems = problems


def load(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config by path or shipped name, with overrides as `tree.read` takes them.

    Raises:
        UserError: a line a problem.
    """
    return parse(config_tree.read(name, overrides), name)


def parse(tree: Mapping[str, object], name: str = "config") -> Config:
    """Validate a tree of plain values; UserError: for each problem a line with `name` and the key's path."""
    try:
        plain = json.loads(json.dumps(tree))
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{name}: a value that JSON cannot hold: {error}") from error
    config = _validate(plain, name)
    _check_over_training(config, name)
    return config


def parse_older(tree: Mapping[str, object], name: str) -> tuple[Config, list[str]]:
    """Validate a tree that an earlier version wrote; also return the keys that are left out, as it had them.

    These are unknown by now: renamed, or for what there is no more.

    Raises:
        UserError: as `parse`; a key has a value that it cannot have any more, or is missing.
    """
    plain, unknown = json.loads(json.dumps(tree)), list[str]()
    while True:
        try:
            return parse(plain, name), unknown
        except UserError:
            taken = _take_unknown(plain)
            if not taken:
                raise
            unknown += taken


def _take_unknown(tree: dict[str, Any]) -> list[str]:
    """Take the keys that no section has out of a tree, and return them with their values."""
    try:
        Config.model_validate(tree)
    except ValidationError as error:
        extra = [e["loc"] for e in error.errors() if e["type"] == "extra_forbidden"]
    else:
        return []
    taken = []
    for *inside, key in extra:
        node: Any = tree
        for part in inside:  # pydantic names the branch of a union, too
            if isinstance(part, int):
                node = node[part]
            elif isinstance(node, dict):
                node = node.get(part, node)
        if isinstance(node, dict) and key in node:
            value = reprlib.repr(node.pop(key))
            taken.append(f"{'.'.join(map(str, inside))}.{key}: {value}".lstrip("."))
    return taken


def _check_over_training(config: Config, name: str) -> None:
    """Refuse what is wrong in a stage, or with a later value of a schedule."""
    whole = config.model_dump(mode="json")
    for index, stage in enumerate(config.stages):
        where = f"{name}: {stages.label(config.stages, index)}"
        try:
            laid_over = stages.lay_over(whole, stage)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        _validate(laid_over, where)
    for moment in config.moments[1:]:
        where = f"{name}: {100 * moment:g} % into training"
        if config.stages:
            where += f", {stages.label(config.stages, config.stage_at(moment))}"
        _validate(config.at(moment).model_dump(mode="json"), where)
    data: dict[str, Any] = {}
    for index, now in enumerate(config.by_stage):
        for source in now.data.train:
            own = (source.card, source.options)
            if data.setdefault(source.label, own) != own:
                raise UserError(
                    f"{name}: {stages.label(config.stages, index)}: source {source.label!r} has other "
                    "data in an earlier stage: give one of them another `name`"
                )


def _validate(tree: Mapping[str, object], name: str) -> Config:
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        # A misspelt key comes before the required key that it leaves missing.
        problems = sorted(error.errors(), key=lambda problem: problem["type"] == "missing")
        # Where a union was expected each of its branches has a problem: the first says enough.
        messages: dict[str, str] = {}
        for problem in problems:
            key = _section_at(problem["loc"])[1]
            if problem["type"] == "missing" and _is_misspelt(key, messages):
                continue
            messages.setdefault(key, _message(problem))
        raise WrongKeys(name, messages) from error


def _is_misspelt(key: str, messages: Mapping[str, str]) -> bool:
    """Return whether one of the messages, by key, suggests a missing key for an unknown one beside it."""
    section, _, name = key.rpartition(".")
    return any(
        other.rpartition(".")[0] == section and message.endswith(f"did you mean {name!r}?")
        for other, message in messages.items()
    )


def schema() -> str:
    """JSON schema of a config file, for editors; no key is required: `extends` may supply it."""
    tree = Config.model_json_schema()
    for section in (tree, *tree["$defs"].values()):
        for form in (section, *section.get("anyOf", ())):  # a part is a name, or a mapping
            form.pop("required", None)
    tree["properties"]["extends"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "Path (relative to this file) or shipped name of the config to start from, or a list "
        "of them: later ones are laid over earlier ones.",
    }
    return json.dumps(tree, indent=2)


def _message(problem: Any) -> str:
    section = _section_at(problem["loc"])[0]
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        key = str(problem["loc"][-1])
        message = f"unknown key{nearest(key, sorted(section.model_fields))}"
    elif problem["type"] == "missing":
        message = "this key is required"
    elif problem["type"] == "model_type":
        message = f"must be a mapping of keys (found {reprlib.repr(problem['input'])})"
    elif problem["type"] != "value_error":
        message = f"{message} (found {reprlib.repr(problem.get('input'))})"
    return message


def _section_at(loc: Sequence[Any]) -> tuple[type[Section], str]:
    """Find the section that holds the last key of an error's place, and the place as `a.b.0.c`.

    pydantic appends the branch of a union to the place; it says nothing to a user.
    """
    section: type[Section] = Config
    keys: list[str] = []
    inside: type[Section] | None = section
    named = False
    for part in loc:
        if isinstance(part, int) or named:  # a place in a list, or a name in a map of sections
            keys.append(str(part))
            named = False
        elif inside is not None:
            keys.append(part)
            section = inside
            field = section.model_fields.get(part)
            inside = section_in(field.annotation) if field else None
            named = field is not None and typing.get_origin(field.annotation) is dict
    return section, ".".join(keys)
