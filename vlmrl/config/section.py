"""The base classes of a config's sections."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializationInfo,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from vlmrl.config import schedule
from vlmrl.errors import UserError

T = TypeVar("T")
S = TypeVar("S", bound="Section")


@contextlib.contextmanager
def refusing(where: str = "") -> Iterator[None]:
    """Turn a UserError into the error that pydantic expects of a validator, `where` before it."""
    try:
        yield
    except UserError as error:
        raise ValueError(f"{where}{error}") from error


class MayChange:
    """Marks a key whose value may be a schedule over training (`config.schedule`)."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [handler(core), schedule.JSON_SCHEMA]}


Scheduled = Annotated[T, MayChange()]
"""The type of a key whose value may be a schedule: the section holds the value at the start."""


@dataclass(frozen=True)
class AtResume:
    """Marks what a resume does with another value of a key, and of all below it that have no mark.

    `free` lets it pass, `noted` says so, `fixed` refuses it; a key without a mark is noted. `moved` names
    entries of a mapping that are noted all the same: what lies elsewhere is told by its content.
    """

    how: Literal["free", "noted", "fixed"]
    moved: tuple[str, ...] = ()


Free = Annotated[T, AtResume("free")]
"""The type of a key that a resumed run may change silently: where it writes, how fast it goes."""
Fixed = Annotated[T, AtResume("fixed")]
"""The type of a key that makes a checkpoint another thing if it changes."""
Unfixed = Annotated[T, AtResume("noted")]
"""The type of a key that may change though what it belongs to is fixed."""


class Section(BaseModel):
    """A part of the config; unknown keys are refused.

    A key of type `Scheduled` that is given a schedule has its first value; `at` gives later ones, and
    a dump the schedule itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
    _schedules: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        # Here, as pydantic's `use_attribute_docstrings` would read the sources at each import.
        from vlmrl.config.docstrings import field_docstrings

        tree: dict[str, Any] = handler(core)
        described = field_docstrings(cls)
        for key, form in handler.resolve_ref_schema(tree).get("properties", {}).items():
            if key in described:
                form["description"] = described[key]
        return tree

    @classmethod
    def may_change(cls, key: str) -> bool:
        """Return whether a key may have a schedule."""
        field = cls.model_fields.get(key)
        return field is not None and any(isinstance(m, MayChange) for m in field.metadata)

    def at(self: S, progress: float) -> S:
        """Return the section with the values that its own keys have at `progress`, in [0, 1]."""
        if not self._schedules:
            return self
        now = {key: self._value_at(key, plan, progress) for key, plan in self._schedules.items()}
        return type(self).model_validate({**self.model_dump(), **now})

    @classmethod
    def _value_at(cls, key: str, plan: object, progress: float) -> Any:
        value = schedule.resolve(plan, progress)
        whole = cls.model_fields[key].annotation is int and isinstance(value, float)
        return round(value) if whole else value

    @model_validator(mode="wrap")
    @classmethod
    def _keep_schedules(cls, value: object, handler: Callable[[Any], S]) -> S:
        section = handler(value)
        if isinstance(value, Mapping):
            section._schedules = {
                key: plan
                for key, plan in value.items()
                if cls.may_change(key) and schedule.is_schedule(plan)
            }
        return section

    @field_validator("*", mode="wrap")
    @classmethod
    def _first_of_schedule(
        cls, value: object, handler: Callable[[Any], Any], info: ValidationInfo
    ) -> Any:
        key = str(info.field_name)
        wanted = cls.model_fields[key].annotation
        if isinstance(value, bool) and bool not in (wanted, *get_args(wanted)):
            raise ValueError(f"{str(value).lower()} is no value for this key")
        if not schedule.is_schedule(value):
            return handler(value)
        if not cls.may_change(key):
            if wanted in (int, float, str):
                raise ValueError("this key takes no schedule: it is the same during a whole run")
            return handler(value)
        with refusing():
            moments = schedule.moments(value)
        first, *_ = [handler(cls._value_at(key, value, moment)) for moment in moments]
        return first

    @model_serializer(mode="wrap")
    def _as_written(
        self, handler: Callable[[Any], dict[str, Any]], info: SerializationInfo
    ) -> dict[str, Any]:
        tree = handler(self)
        # A schedule that begins with the default is no default.
        whole = info.exclude_defaults and not (info.include or info.exclude)
        return {**tree, **{k: plan for k, plan in self._schedules.items() if whole or k in tree}}


class Named(Section):
    """A section that a bare string may stand for: the string is its field `short`."""

    short: ClassVar[str] = "name"

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: object) -> Any:
        return {cls.short: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, super().__get_pydantic_json_schema__(core, handler)]}


class PluginRef(Named):
    """A part by name, with its options."""

    name: str
    """A shipped part, `path/to/file.py:Name` or `package.module:Name`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the part."""


def section_in(kind: Any) -> type[Section] | None:
    """Return the section that a type holds: itself, in a list, by name or perhaps; None: it holds none."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind
    return next(filter(None, map(section_in, get_args(kind))), None)
