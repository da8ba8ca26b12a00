"""What of a config is other than when a run began or was last resumed, and whether a resume takes it.

Each key is classed at its field (`config.section.AtResume`); `docs/reference/resume.md` lists all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from vlmrl.config.section import AtResume, Section, section_in
from vlmrl.config.tree import SHORT
from vlmrl.config.whole import Config
from vlmrl.errors import UserError

NOTED = AtResume("noted")
NAMES = ("name", *sorted(set(SHORT.values()) - {"name"}))
"""Fields by which entries of two lists are taken for the same."""
MAX_NAMED = 5
"""Changes that one message names."""


@dataclass(frozen=True, slots=True)
class ChangedKey:
    """A key with another value than before, as JSON values, and how a resume takes it."""

    key: str
    was: object
    now: object
    how: str

    def __str__(self) -> str:
        return f"{self.key} was {_brief(self.was)}, is {_brief(self.now)}"


def changes(was: Mapping[str, object], now: Mapping[str, object]) -> list[ChangedKey]:
    """Return what differs between two configs as JSON trees, but for keys that are free to change.

    A key that the earlier one does not have, because an earlier version wrote it, counts as unchanged.
    """
    return [c for c in _of_section(Config, was, now, "", NOTED) if c.how != "free"]


def require_allowed(changed: Sequence[ChangedKey], allow: Sequence[str]) -> None:
    """Refuse changes of fixed keys that `resume.allow` does not name.

    Raises:
        UserError: there are such; the message names each with both values, and what lets it through.
    """
    refused = [c for c in changed if c.how == "fixed" and not is_allowed(c.key, allow)]
    if refused:
        raise UserError(
            f"resume: {'; '.join(map(str, refused[:MAX_NAMED]))}: that makes the checkpoint another thing; "
            f"to go on all the same: resume.allow=[{','.join(c.key for c in refused)}]"
        )


def is_allowed(key: str, allow: Sequence[str]) -> bool:
    """Return whether `resume.allow` names a key, or one above it."""
    return any(key == above or key.startswith(f"{above}.") for above in allow)


def classes(
    section: type[Section] = Config, above: str = "", mark: AtResume = NOTED
) -> Iterator[tuple[str, str]]:
    """Yield every key of a config with its class, `free`, `noted` or `fixed`; `stages` counts as one key."""
    for name, field in section.model_fields.items():
        own, inner = _mark(field, mark), section_in(field.annotation)
        key = f"{above}{name}"
        if inner is None or name == "stages":
            yield key, own.how
            for entry in own.moved:
                yield f"{key}.{entry}", "noted"
        else:
            yield from classes(inner, f"{key}.", own)


def _of_section(
    section: type[Section],
    was: Mapping[str, object],
    now: Mapping[str, object],
    above: str,
    mark: AtResume,
) -> Iterator[ChangedKey]:
    for name, field in section.model_fields.items():
        if name in was:
            own = _mark(field, mark)
            yield from _of_value(field.annotation, was[name], now.get(name), f"{above}{name}", own)


def _of_value(kind: Any, was: Any, now: Any, key: str, mark: AtResume) -> Iterator[ChangedKey]:
    section = section_in(kind)
    if was == now:
        return
    if isinstance(was, list) and isinstance(now, list) and section is not None:
        before, after = _by_name(was), _by_name(now)
        for name in {**before, **after}:
            yield from _of_value(section, before.get(name), after.get(name), f"{key}.{name}", mark)
    elif isinstance(was, Mapping) and isinstance(now, Mapping):
        if section is not None and not _is_map(kind):
            yield from _of_section(section, was, now, f"{key}.", mark)
        else:
            for name in {**was, **now}:
                how = NOTED if name in mark.moved else mark
                values = was.get(name), now.get(name)
                yield from _of_value(section, *values, f"{key}.{name}", how)
    else:
        yield ChangedKey(key, was, now, mark.how)


def _mark(field: Any, above: AtResume) -> AtResume:
    """Return a field's own mark, else the class of the section above it."""
    own = next((each for each in field.metadata if isinstance(each, AtResume)), None)
    return own or AtResume(above.how)


def _is_map(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping) or any(map(_is_map, get_args(kind)))


def _by_name(entries: Sequence[Any]) -> dict[str, Any]:
    """Return entries by name; those that share one are numbered."""
    named: dict[str, Any] = {}
    for entry in entries:
        fits = [str(entry[key]) for key in NAMES if isinstance(entry, Mapping) and entry.get(key)]
        name = fits[0] if fits else str(len(named))
        named[name if name not in named else f"{name}.{len(named)}"] = entry
    return named


def _brief(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
