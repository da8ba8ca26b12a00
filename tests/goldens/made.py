"""How goldens are hashed, stored and compared; `make` makes those of a group."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "goldens"
MODULES = {
    "runs": "trained",
    "ranks": "trained",
    "algorithms": "parts",
    "verifiers": "parts",
    "benchmarks": "parts",
    "report": "texts",
    "schema": "texts",
    "help": "texts",
}
DIGITS = 9
"""Significant digits of floats in goldens that every machine compares."""

Numbers = Mapping[str, Mapping[str, float]]


@dataclass
class Golden:
    """The hashes of a group by name; `numbers` only of a group whose bits depend on the machine.

    `tolerance` is relative, of those numbers.
    """

    group: str
    exact: bool = False
    tolerance: float = 1e-4
    hashes: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, name: str, content: Any, *folders: Path) -> None:
        """Hash a text or what JSON can hold; paths of the repository and of `folders` are taken out."""
        text = content if isinstance(content, str) else to_text(content, exact=self.exact)
        for path, mark in ((ROOT, "ROOT"), *((folder, "FOLDER") for folder in folders)):
            text = text.replace(str(path), mark)
        assert name not in self.hashes, name
        self.hashes[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
        file = contents(self.group) / name.replace("/", "_")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def contents(group: str) -> Path:
    """Return the folder of what was hashed last."""
    return BUILT / group


def make(group: str) -> Golden:
    """Make the goldens of a group."""
    folder = Path(tempfile.mkdtemp(prefix="goldens-"))
    try:
        golden: Golden = getattr(importlib.import_module(MODULES[group]), f"make_{group}")(folder)
        return golden
    finally:
        shutil.rmtree(folder)


def to_text(value: Any, exact: bool = False) -> str:
    """Return a value as JSON, a line each key; floats are rounded unless `exact`."""
    plain = _plain(value, exact)
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, indent=0)


def _plain(value: Any, exact: bool) -> Any:
    if isinstance(value, float) and not exact:
        return float(f"{value:.{DIGITS}g}")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), exact) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, exact) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, exact) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner, exact) for inner in value), key=repr)
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), exact)
    raise TypeError(f"expected plain values, got {type(value).__name__}: {value!r:.80}")


# -------------------------------------------------------------------------------------- files


def write_lines(path: Path, lines: Mapping[str, str]) -> None:
    """Write `name  value` a line, sorted by name."""
    path.write_text("".join(f"{name}  {lines[name]}\n" for name in sorted(lines)), encoding="utf-8")


def read_lines(path: Path) -> dict[str, str]:
    """Return the values by name; none of a file that was never written."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {name: value for name, _, value in (line.rpartition("  ") for line in lines)}


def write_numbers(path: Path, numbers: Numbers) -> None:
    """Write numbers as JSON, a thing a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(numbers[name])}" for name in sorted(numbers)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read_numbers(path: Path) -> Numbers:
    """Return the stored numbers; none of a file that was never written."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


# --------------------------------------------------------------------------------- comparison


def differences(
    stored: Mapping[str, str], made: Mapping[str, str], names_only: bool = False
) -> Iterator[str]:
    """Yield a line for each thing that is missing, new or different.

    A stored value may be several, with `|` between: those of kinds of CPU that the probe does not tell apart.
    """
    for name in sorted({*stored, *made}):
        if name not in made:
            yield f"{name}: missing"
        elif name not in stored:
            yield f"{name}: new"
        elif made[name] not in stored[name].split("|") and not names_only:
            yield f"{name}: different"


def distances(stored: Numbers, made: Numbers, tolerance: float) -> Iterator[str]:
    """Yield a line for each stored number that is missing, or further away than the tolerance."""
    for name, values in stored.items():
        for key, value in values.items():
            now = made.get(name, {}).get(key, math.nan)
            if not math.isclose(value, now, rel_tol=tolerance, abs_tol=tolerance / 10):
                yield f"{name}: {key}: {value:.6g} is {now:.6g} here"
