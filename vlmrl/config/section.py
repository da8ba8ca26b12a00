"""The base classes of a config's sections."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator


class Section(BaseModel):
    """A part of the config; unknown keys are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        wanted = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in (wanted, *get_args(wanted)):
            raise ValueError(f"{str(value).lower()} is no value for this key")
        return value


class Named(Section):
    """A section that a bare string may stand for: the string is its field `short`."""

    short: ClassVar[str] = "name"

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {cls.short: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(core)]}


class PluginRef(Named):
    """A part by name, with its options."""

    name: str
    """A shipped part, `path/to/file.py:Name` or `package.module:Name`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the part."""
