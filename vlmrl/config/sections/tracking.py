"""The trackers of a run, by name: `tracking: {tensorboard: false, wandb: {project: grounding}}`."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

__all__ = ["hide_secrets", "without_secrets"]

SECRET = re.compile(r"(?:^|_)(?:key|token|secret|password)$")
"""What the name of an option ends with whose value is never written or sent."""
HIDDEN = "***"


def _read(given: Any) -> Any:
    """Return the options by tracker, False for one that is off; TensorBoard is on where installed."""
    if not isinstance(given, Mapping):
        raise ValueError(f"expected a map of trackers, such as {{wandb: {{}}}}, got {given!r:.80}")
    installed = importlib.util.find_spec("tensorboard") is not None
    trackers: dict[str, Any] = {"tensorboard": installed, **given}
    for name, options in trackers.items():
        if options is True:
            trackers[name] = {}
        elif options is None:
            trackers[name] = False
        elif options is not False and not isinstance(options, Mapping):
            raise ValueError(
                f"{name}: expected true, false or a map of options, got {options!r:.80}; "
                f"a project is {name}: {{project: {options}}}"
            )
    return trackers


Trackers = Annotated[dict[str, bool | dict[str, Any]], BeforeValidator(_read)]


def hide_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as JSON in which options of trackers hold no secrets.

    Values of options named `..._key`, `..._token`, `..._secret` or `..._password` and the user part
    of URLs become `***`.
    """
    tracking = {
        name: without_secrets(options) for name, options in config.get("tracking", {}).items()
    }
    return {**config, "tracking": tracking}


def without_secrets(value: Any) -> Any:
    """Return a JSON value in which secrets are `***`, as `hide_secrets` says."""
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if SECRET.search(name) and inner is not None else without_secrets(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return re.sub(r"://[^/@\s]+@", f"://{HIDDEN}@", value) if isinstance(value, str) else value
