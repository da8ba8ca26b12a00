"""Completions and verdicts of another rank: the numbers that every rank knows of them, nothing else."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NoReturn

from vlmrl.schema.rollouts import Completion, FinishReason, Origin, Verdict

__all__ = ["ElsewhereError", "RemoteCompletion", "RemoteVerdict"]

UNKNOWN = {kind: frozenset(field.name for field in fields(kind)) for kind in (Completion, Verdict)}
"""The fields of each kind; those that its stand-in does not set are not known here."""


class ElsewhereError(RuntimeError):
    """A part asked for what another rank alone knows."""


def _refuse(kind: type[Completion] | type[Verdict], name: str, home: int) -> NoReturn:
    if name not in UNKNOWN[kind]:
        raise AttributeError(name)
    raise ElsewhereError(
        f"{name!r} of this {kind.__name__.lower()} is known to rank {home} alone. A strategy or an "
        "algorithm that reads what other ranks wrote says so: `reads_completions: ClassVar[bool] = "
        "True`; verdicts beside their scores are read at home (`rank_shards.is_here`)"
    )


class RemoteCompletion(Completion):
    """A completion as ranks that are not its prompt's home know it: it stands in its place in a group.

    Its length, finish reason, versions and origin are known. Whatever else is asked of it raises an
    `ElsewhereError`.
    """

    __slots__ = ("_home", "_num_tokens")
    _home: int
    _num_tokens: int

    def __init__(
        self,
        home: int,
        num_tokens: int,
        finish_reason: FinishReason,
        versions: tuple[tuple[int, int], ...],
        origin: Origin = "policy",
    ) -> None:
        """Note what is known of a completion of rank `home`; the other fields stay unset."""
        _set(
            self,
            _home=home,
            _num_tokens=num_tokens,
            finish_reason=finish_reason,
            versions=versions,
            origin=origin,
        )

    @property
    def num_tokens(self) -> int:
        """Return how many tokens the policy wrote."""
        return self._num_tokens

    def with_origin(self, origin: Origin) -> RemoteCompletion:
        """Return it as one that was written by `origin`."""
        return RemoteCompletion(
            self._home, self._num_tokens, self.finish_reason, self.versions, origin
        )

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(Completion, name, self._home)

    def __repr__(self) -> str:
        return f"RemoteCompletion{self._numbers}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteCompletion) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)

    @property
    def _numbers(self) -> tuple[Any, ...]:
        return (self._home, self._num_tokens, self.finish_reason, self.versions, self.origin)


class RemoteVerdict(Verdict):
    """A verdict as ranks know it that did not judge: score, fault, whether it applies, whether it killed.

    `parts`, `answer` and `note` raise an `ElsewhereError`.
    """

    __slots__ = ("_home", "_is_kill")
    _home: int
    _is_kill: bool

    def __init__(
        self, home: int, score: float | None, applies: bool, fault: str | None, is_kill: bool
    ) -> None:
        """Note what is known of a verdict of rank `home`; the other fields stay unset."""
        _set(self, _home=home, score=score, applies=applies, fault=fault, _is_kill=is_kill)

    @property
    def is_kill(self) -> bool:
        """Return whether the completion ended its verifier."""
        return self._is_kill

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(Verdict, name, self._home)

    def __repr__(self) -> str:
        return f"RemoteVerdict{self._numbers}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteVerdict) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)

    @property
    def _numbers(self) -> tuple[Any, ...]:
        return (self._home, self.score, self.applies, self.fault, self._is_kill)


def _set(frozen: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
