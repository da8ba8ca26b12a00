"""The layout of a completion: a template is data, an ordered list of tags."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Presence = Literal["required", "optional", "optional_empty"]


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag of a template.

    `required`: stands once, with content; `optional_empty`: stands once, may be empty; `optional`:
    may be left out, has content if it stands.
    """

    name: str
    presence: Presence = "required"
    open: str = field(init=False)
    """The opening mark, e.g. `<think>`."""
    close: str = field(init=False)
    """The closing mark, e.g. `</think>`."""

    def __post_init__(self) -> None:
        """Spell the marks once: completions are split by the million."""
        object.__setattr__(self, "open", f"<{self.name}>")
        object.__setattr__(self, "close", f"</{self.name}>")


@dataclass(frozen=True, slots=True)
class Template:
    r"""Tags in order, and where the answer stands.

    `answer` names the tag with the answer; `"boxed"` means the last `\boxed{}` and `"text"`
    everything after the thought (both have no tags). `request` tells the model about the layout.
    `name` is what messages call it.

    Example: Template((Tag("think"), Tag("answer")), request="First think ...")
    """

    tags: tuple[Tag, ...]
    answer: str = "answer"
    request: str = ""
    name: str = "of the config"
    thinks: bool = field(init=False)
    """True if the template has a thought."""

    def __post_init__(self) -> None:
        """Look for the thought."""
        object.__setattr__(self, "thinks", any(tag.name == "think" for tag in self.tags))

    def __str__(self) -> str:
        """Return its name."""
        return self.name
