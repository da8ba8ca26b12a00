"""Completions and verdicts of another rank: the numbers that every rank knows of them, nothing else."""

from __future__ import annotations

from dataclasses import Field
from typing import Any, ClassVar, NoReturn

from vlmrl.schema.rollouts import Completion, FinishReason, Origin, Verdict

__all__ = ["ElsewhereError", "RemoteCompletion", "RemoteVerdict"]


class ElsewhereError(RuntimeError):
    """A part asked for what another rank alone knows."""


class _Remote:
    """What stands for a value of rank `_home`: its numbers are known, other fields refused."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    KNOWN: ClassVar[tuple[str, ...]]
    """The attributes that make up its numbers."""
    _home: int

    def _note(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def _numbers(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.KNOWN)

    def __getattr__(self, name: str) -> NoReturn:
        if name not in self.__dataclass_fields__:
            raise AttributeError(name)
        kind = type(self).__name__.removeprefix("Remote").lower()
        raise ElsewhereError(
            f"{name!r} of this {kind} is known to rank {self._home} alone. A strategy or an "
            "algorithm that reads what other ranks wrote says so: `reads_completions: ClassVar[bool] "
            "= True`; verdicts beside their scores are read at home (`rank_shards.is_here`)"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._numbers}"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)


class RemoteCompletion(_Remote, Completion):
    """A completion as ranks that are not its prompt's home know it: it stands in its place in a group.

    Its length, finish reason, versions and origin are known. Whatever else is asked of it raises an
    `ElsewhereError`.
    """

    __slots__ = ("_home", "_num_tokens")
    KNOWN = ("_home", "_num_tokens", "finish_reason", "versions", "origin")
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
        self._note(
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


class RemoteVerdict(_Remote, Verdict):
    """A verdict as ranks know it that did not judge: score, fault, whether it applies, whether it killed.

    `parts`, `answer` and `note` raise an `ElsewhereError`.
    """

    __slots__ = ("_home", "_is_kill")
    KNOWN = ("_home", "score", "applies", "fault", "_is_kill")
    _is_kill: bool

    def __init__(
        self, home: int, score: float | None, applies: bool, fault: str | None, is_kill: bool
    ) -> None:
        """Note what is known of a verdict of rank `home`; the other fields stay unset."""
        self._note(_home=home, score=score, applies=applies, fault=fault, _is_kill=is_kill)

    @property
    def is_kill(self) -> bool:
        """Return whether the completion ended its verifier."""
        return self._is_kill
