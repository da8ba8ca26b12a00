"""What a message has to say, without its wording: the keys it names, on one line, and the exit code."""

from __future__ import annotations


def require_named(text: str, *keys: str) -> None:
    """Fail unless the text names every key, e.g. a key of the config, a file or a number."""
    missing = [key for key in keys if key not in text]
    assert not missing, f"expected {missing} in {text!r}"


def require_refusal(code: object, err: str, *keys: str) -> None:
    """Fail unless a command ended as on a user's mistake: 2, and one line that names the keys."""
    assert code == 2, err
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n"), err
    require_named(err, *keys)
