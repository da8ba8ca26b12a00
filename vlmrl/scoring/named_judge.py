"""What verifiers share that ask a named model for numbers: the model, and the media that it is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from vlmrl.config import NamedModel
from vlmrl.named_models.asked import open_model
from vlmrl.schema import Verdict
from vlmrl.scoring.verifier import Verifier
from vlmrl.system.chat_endpoint import Invalid, Unavailable

T = TypeVar("T")


@dataclass(frozen=True)
class AskingVerifier(Verifier):
    """Base of verifiers that ask one of the config's `models`; a model that is down is a fault.

    Raises:
        ValueError: `model` names none.
    """

    waits: ClassVar[bool] = True

    model: NamedModel | str = ""
    """One of the config's `models`, by name."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, NamedModel):
            raise ValueError(
                f"model: expected the name of one of the config's models, got {self.model!r}"
            )

    @property
    def concurrency(self) -> int:
        """Questions at a time."""
        assert isinstance(self.model, NamedModel)
        return self.model.concurrency

    def ask(self, body: dict[str, Any], read: Callable[[str], T]) -> T | Verdict:
        """Return what `read` makes of the model's reply, or the verdict of a fault."""
        assert isinstance(self.model, NamedModel)
        try:
            return open_model(self.model).ask(body, read)
        except Unavailable as error:
            return Verdict.failed(f"{self.model.name} unavailable: {error}")
        except Invalid as error:
            return Verdict.failed(f"{self.model.name} invalid: {error}")


def read_json(text: str) -> Any:
    """Return the JSON of a reply; raise Invalid if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"expected JSON, got {text!r:.80}") from error


def finite(value: object) -> float:
    """Return a finite number; raise Invalid if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Invalid(f"expected a finite number, got {value!r:.80}")
    return float(value)
