"""Numbers about a run as a whole, each with its name and a note: the list "In numbers" of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.pages.render import number
from vlmrl.report.compute_fit import ComputeFit
from vlmrl.report.stages import Stretch
from vlmrl.runs import run_folder
from vlmrl.system.atomic_files import read_json

__all__ = ["Tile", "tiles_of"]


@dataclass(frozen=True, slots=True)
class Tile:
    """One number."""

    name: str
    value: str
    note: str = ""


def tiles_of(
    folder: Path,
    evaluations: Sequence[Mapping[str, Any]],
    lines: Sequence[Mapping[str, Any]],
    stages: Sequence[Stretch],
    fit: ComputeFit | None,
    left_out: int,
) -> list[Tile]:
    """Return the numbers of a run; `lines` are those of metrics.jsonl, `left_out` counts images."""
    found = [*_evaluated(evaluations), *_summed_up(folder), *map(_of_stage, stages)]
    found += _of_compute(fit) + _of_ranks(folder, lines)
    if left_out:
        note = "their files are gone, or the page would be too large"
        found.append(Tile("images left out", str(left_out), note))
    return found


def _evaluated(evaluations: Sequence[Mapping[str, Any]]) -> list[Tile]:
    tiles = []
    if evaluations:
        first, last = evaluations[0], evaluations[-1]
        for name, value in last["metrics"].items():
            if "/" not in name:
                before = first["metrics"].get(name)
                low, high = (number(v) for v in last["intervals"].get(name, (None, None)))
                change = f"{number(before)} → {number(value)}"
                tiles.append(Tile(f"held-out {name}", change, f"95 %: {low} to {high}"))
    return tiles


def _of_stage(stage: Stretch) -> Tile:
    return Tile(
        stage.label, f"reward {number(stage.reward)}", f"steps {stage.first} to {stage.last}"
    )


def _of_compute(fit: ComputeFit | None) -> list[Tile]:
    if fit is None:
        return []
    low, high, middle = number(fit.low), number(fit.high), number(fit.middle, "s")
    note = f"95 %: {low} to {high}; half of the way after {middle}, exponent {number(fit.power)}"
    return [Tile("limit of more compute", number(fit.top), note)]


def _of_ranks(folder: Path, steps: Sequence[Mapping[str, Any]]) -> list[Tile]:
    """Return a tile that names the rank that was slowest most often, where there are several."""
    compared = [line for line in steps if "ranks/work/slowest" in line]
    path = run_folder.ranks_path(folder)
    if not compared or not path.exists():
        return []
    hosts = {int(done): names for done, names in read_json(path).items()}
    found: dict[str, list[float]] = {}
    for line in compared:
        begun = max((done for done in hosts if done < line["step"]), default=min(hosts))
        rank = int(line["ranks/work/slowest"])
        found.setdefault(f"{rank} on {hosts[begun][rank]}", []).append(line["ranks/excess"])
    who, excesses = max(found.items(), key=lambda item: len(item[1]))
    over = number(sum(excesses) / len(excesses), "share")
    note = f"in {len(excesses)} of {len(compared)} steps, by {over} over the median"
    return [Tile("slowest rank", who, note)]


def _summed_up(folder: Path) -> list[Tile]:
    path = folder / "summary.json"
    summary = read_json(path) if path.exists() else {}
    tiles = []
    if "steps" in summary:
        tiles.append(Tile("steps", f"{summary['steps']:,}"))
    if wall := summary.get("wall_seconds"):
        longest = max(wall, key=lambda phase: wall[phase])
        note = f"most of it: {longest} {wall[longest]:.0f} s"
        tiles.append(Tile("wall time", f"{sum(wall.values()):.0f} s", note))
    if peak := summary.get("peak_memory_mb"):
        tiles.append(Tile("peak memory", f"{max(peak.values()):,.0f} MiB"))
    for name in ("dropped", "faulted"):
        if counts := summary.get(name):
            note = ", ".join(f"{reason}: {count}" for reason, count in counts.items())
            tiles.append(Tile(name, str(sum(counts.values())), note))
    return tiles
