"""What `vlmrl compare` reads besides benchmarks: evaluations of `vlmrl eval --data` and of runs.

Their numbers are scores of samples, which are paired by their ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from vlmrl.benchmarking.scoring import RESULT, Result, RowScore
from vlmrl.errors import UserError
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import Row, cluster_of, score_of
from vlmrl.system.files import read_json, read_lines

DATA = "data"
"""The protocol of a result that is no benchmark's."""
EVALUATION = "evaluation.json"
NO_SETTING = ("versions", "git", "model", "prompts_sha256", "weights_sha256")
"""Keys of a config or a manifest that are no choice of the user's, or are what is compared."""
NAMES = ("run.name", "run.dir")
"""Keys of a config that only say what a run is called."""

Key = tuple[str, str]
"""Source and id of a sample; the source is empty where there is only one."""


@dataclass(frozen=True, slots=True)
class SampleScore(RowScore):
    """What a sample scored: by the name of a number the mean over its completions, None without any."""

    scores: Mapping[str, float | None] = field(default_factory=dict)

    def score(self, number: str) -> float | None:
        """Return what counts for a number."""
        return self.scores.get(number)


@dataclass(frozen=True, slots=True)
class EvaluatedData:
    """A stored evaluation: its numbers, its rows in the same order, and where their media are."""

    name: str
    result: Result
    rows: Sequence[Row]
    media: Path
    settings: Mapping[str, object]
    """What it was made with, by dotted key."""


def split_step(member: str) -> tuple[Path, int | None]:
    """Return the folder and the step that `FOLDER` or `RUN:STEP` names."""
    folder, _, step = member.rpartition(":")
    if folder and step.isdigit() and not Path(member).exists():
        return Path(folder), int(step)
    return Path(member), None


def is_data(member: str) -> bool:
    """Return whether a folder holds an evaluation of data and no result of a benchmark.

    Raises:
        UserError: it holds neither.
    """
    folder, step = split_step(member)
    if step is not None or (folder / EVALUATION).is_file() or (folder / "evals").is_dir():
        return True
    if (folder / RESULT).is_file() or any(folder.glob(f"*/{RESULT}")):
        return False
    what = "no such folder" if not folder.exists() else "neither"
    raise UserError(
        f"{folder}: expected what `vlmrl eval` wrote with --out, or a run with evaluations, got {what}; of a "
        f"model: `vlmrl eval {folder} --data FILE --out results/NAME`, of a run: `evaluation` in its config, "
        "and RUN:STEP for one of them"
    )


def ends_of(run: str) -> list[str]:
    """Return the first and the last evaluation of a run as `RUN:STEP`.

    Raises:
        UserError: it is no run, or has fewer than two.
    """
    steps = [*run_folder.steps_in(Path(run) / "evals", ".jsonl")]
    if len(steps) < 2:
        raise UserError(
            f"vlmrl compare: expected two results at least, or a run with two evaluations, got {run}"
        )
    return [f"{run}:{steps[0]}", f"{run}:{steps[-1]}"]


def read_evaluated(member: str) -> EvaluatedData:
    """Read an evaluation of `vlmrl eval --data`, or one of a run: the last, or that after `:STEP`.

    Raises:
        UserError: there is none, or a file is damaged.
    """
    folder, step = split_step(member)
    if step is None and (folder / EVALUATION).is_file():
        manifest = read_json(folder / EVALUATION)["manifest"]
        settings = {**_flat("", manifest), **settings_of(manifest.get("model", ""))}
        lines = read_lines(folder / "evaluation.jsonl")
        return _evaluated(member, lines, folder / "media", settings, "")
    steps = run_folder.steps_in(folder / "evals", ".jsonl")
    if step is None and steps:
        step = max(steps)
    if step is None or step not in steps:
        known = ", ".join(map(str, steps)) or "none"
        raise UserError(
            f"{member}: expected the step of an evaluation in {folder}/evals, of: {known}"
        )
    config = read_json(folder / "config.json")
    metric = (config.get("evaluation") or {}).get("metric") or "reward"
    name = metric.rpartition("/")[2]
    number = f"sampled/{name}" if metric.startswith("sampled/") else name
    media, settings = run_folder.media_folder(folder), settings_of(str(folder))
    return _evaluated(f"{folder}:{step}", read_lines(steps[step]), media, settings, number)


def settings_of(model: str) -> dict[str, object]:
    """Return the config of the run that a run folder, or a checkpoint in one, belongs to; {} without one."""
    path = Path(model)
    for folder in (path, *path.absolute().parents[1:2]):
        if (folder / "config.json").is_file() and "run" in (
            config := read_json(folder / "config.json")
        ):
            flat = _flat("", config)
            return {key: value for key, value in flat.items() if key not in NAMES}
    return {}


def differing(
    first: Mapping[str, object], second: Mapping[str, object]
) -> list[tuple[str, str, str]]:
    """Return the keys in which two settings differ, with the value of each; "-" where it has none."""

    def said(settings: Mapping[str, object], key: str) -> str:
        return json.dumps(settings[key], ensure_ascii=False) if key in settings else "-"

    keys = sorted({*first, *second})
    return [(k, said(first, k), said(second, k)) for k in keys if said(first, k) != said(second, k)]


def pair(arms: Sequence[Sequence[EvaluatedData]]) -> tuple[list[list[EvaluatedData]], list[str]]:
    """Return the evaluations with the rows that all of them have, and a line on rows that were left out.

    Raises:
        UserError: no row is in all of them.
    """
    everything = [each for arm in arms for each in arm]
    alone = all(len({row["source"] for row in each.rows}) == 1 for each in everything)
    places = [_places(each, alone) for each in everything]
    shared = [key for key in places[0] if all(key in known for known in places)]
    if not shared:
        first, other = (next(iter(known))[1] for known in (places[0], places[-1]))
        raise UserError(
            f"expected results that share samples, paired by id, got none: {everything[0].name} has "
            f"{first!r}, {everything[-1].name} {other!r}"
        )
    notes = []
    for each, known in zip(everything, places, strict=True):
        if left := [name for source, name in known if (source, name) not in {*shared}]:
            some = ", ".join(left[:3]) + (" ..." if len(left) > 3 else "")
            notes.append(
                f"{each.name}: {len(left)} of {len(known)} rows are not in all, left out: {some}"
            )
    chosen = iter(
        [
            _chosen(each, [known[k] for k in shared])
            for each, known in zip(everything, places, strict=True)
        ]
    )
    return [[next(chosen) for _ in arm] for arm in arms], notes


def _places(evaluated: EvaluatedData, alone: bool) -> dict[Key, int]:
    """Return the place of each row by its key; of rows with one id each further one is numbered."""
    places: dict[Key, int] = {}
    for at, row in enumerate(evaluated.rows):
        key = ("" if alone else row["source"], row["id"])
        number = 2
        while key in places:
            key, number = (key[0], f"{row['id']} ({number})"), number + 1
        places[key] = at
    return places


def _chosen(evaluated: EvaluatedData, places: Sequence[int]) -> EvaluatedData:
    scores = [replace(evaluated.result.rows[at], index=n) for n, at in enumerate(places)]
    rows = [evaluated.rows[at] for at in places]
    return replace(evaluated, rows=rows, result=replace(evaluated.result, rows=scores))


def _evaluated(
    name: str, lines: Sequence[Row], media: Path, settings: Mapping[str, object], main: str
) -> EvaluatedData:
    """Sum up the lines of an evaluation; `main` is its first number, "" the first verifier's."""
    if not lines:
        raise UserError(f"{name}: expected samples, got an evaluation without any")
    rows: dict[tuple[str, str, int], dict[str, Row]] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for line in lines:
        drawn = line.get("drawn", "greedy")
        seen = (drawn, line["source"], line["id"])
        counts[seen] = counts.get(seen, 0) + 1
        rows.setdefault((line["source"], line["id"], counts[seen]), {})[drawn] = line
    scores = [dict(_scores(by_drawn)) for by_drawn in rows.values()]
    first = [next(iter(by_drawn.values())) for by_drawn in rows.values()]
    names = list(
        dict.fromkeys(name for each in scores for name, v in each.items() if v is not None)
    )
    names.sort(key=lambda number: number != main)
    sources = list(dict.fromkeys(row["source"] for row in first))
    result = Result(
        benchmark=", ".join(sources),
        protocol=DATA,
        unit="fraction",
        numbers=dict.fromkeys(names, ("mean", "")),
        figures={},
        groups={"source": {source: {} for source in sources}} if len(sources) > 1 else {},
        unread=0.0,
        truncated=0.0,
        disagreeing=0,
        rows=[_row(n, row, each) for n, (row, each) in enumerate(zip(first, scores, strict=True))],
    )
    return EvaluatedData(name, result, first, media, settings)


def _scores(by_drawn: Mapping[str, Row]) -> Iterator[tuple[str, float | None]]:
    for drawn, prefix in (("greedy", ""), ("sampled", "sampled/")):
        completions = by_drawn[drawn]["completions"] if drawn in by_drawn else ()
        names = [name for completion in completions for name in completion["verdicts"]]
        for name in dict.fromkeys([*names, "reward"] if completions else ()):
            known = [
                s for completion in completions if (s := score_of(completion, name)) is not None
            ]
            yield prefix + name, fmean(known) if known else None


def _row(index: int, row: Row, scores: Mapping[str, float | None]) -> SampleScore:
    completion = row["completions"][0]
    return SampleScore(
        index=index,
        id=row["id"],
        cluster=cluster_of(row),
        groups={"source": row["source"]},
        official=None,
        strict=None,
        read=completion["answer"] is not None,
        finish_reason=completion["finish_reason"],
        said="",
        right="",
        text=completion["text"],
        answer=completion["answer"],
        question=row["question"],
        truth=json.dumps(row["truth"], ensure_ascii=False),
        scores=scores,
    )


def _flat(prefix: str, tree: Mapping[str, Any]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if not prefix and key in NO_SETTING:
            continue
        if isinstance(value, Mapping) and value:
            flat |= _flat(f"{prefix}{key}.", value)
        else:
            flat[f"{prefix}{key}"] = value
    return flat
