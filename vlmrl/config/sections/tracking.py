"""The trackers of a run, by name: `tracking: {tensorboard: false, wandb: {project: grounding}}`."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator

__all__ = ["hide_secrets", "without_secrets"]

SECRET = re.compile(r"(?:^|_)(?:key|token|secret|password)$")
"""What the name of a tracker's option ends with whose value is never written or sent."""
SECRET_ELSEWHERE = re.compile(
    r"(?i)(?:(?:api|access|auth|private)_?key|(?:^|_)(?:token|secret|password))$"
)
"""The same in all other sections, where a `key` may be that of a JSON answer."""
SECRET_VARIABLE = re.compile(r"(?i)(?:key|token|secret|password)$")
"""What the name of an environment variable ends with whose value is never written or sent."""
MIN_SECRET = 8
"""Characters below which the value of such a variable is no secret, but a word such as `none`."""
SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{16,}|gh[opsu]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{20,}|AKIA[A-Z0-9]{16}|xox[abps]-[\w-]{10,})"
)
"""Tokens of known services, wherever they stand."""
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
    """Return a config, or a part of one, as JSON without secrets; `***` stands for each.

    Hidden by name: values of options such as "api_key", `token` or `password`. Hidden by value, in
    any text: the user part of URLs, tokens of known services, and what an environment variable
    named `..._KEY`, `..._TOKEN`, `..._SECRET` or `..._PASSWORD` holds.
    """
    variables = _secret_variables()
    return {
        name: _hide(part, SECRET if name == "tracking" else SECRET_ELSEWHERE, variables)
        for name, part in config.items()
    }


def without_secrets(value: Any) -> Any:
    """Return a JSON value of no section in which secrets are `***`, as `hide_secrets` says."""
    return _hide(value, SECRET_ELSEWHERE, _secret_variables())


def _secret_variables() -> list[str]:
    values = [
        value
        for name, value in os.environ.items()
        if SECRET_VARIABLE.search(name) and len(value) >= MIN_SECRET
    ]
    return sorted(values, key=len, reverse=True)


def _hide(value: Any, names: re.Pattern[str], variables: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            name: HIDDEN
            if isinstance(inner, str) and names.search(str(name))
            else _hide(inner, names, variables)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_hide(inner, names, variables) for inner in value]
    if not isinstance(value, str):
        return value
    for secret in variables:
        value = value.replace(secret, HIDDEN)
    return SHAPES.sub(HIDDEN, re.sub(r"://[^/@\s]+@", f"://{HIDDEN}@", value))
