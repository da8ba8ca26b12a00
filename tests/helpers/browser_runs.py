"""Run folders for the walk in a browser: trained by the command, or changed to learn or to attack."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from helpers.runs import ROOT, TINY
from vlmrl.runs import run_folder
from vlmrl.system import files

HELPERS = Path(__file__).parent
PAYLOADS = (
    '<img src=x onerror="globalThis.attack=1">',
    '"><script>globalThis.attack=2</script>',
    "</script><script>globalThis.attack=3</script>",
    "javascript:globalThis.attack=4",
    "attack{{7*7}}${7*7}<%= 7*7 %>",
    "<svg onload=globalThis.attack=5>",
    "' autofocus onfocus='globalThis.attack=6' x='",
    '" onpointerenter="globalThis.attack=7" autofocus onfocus="globalThis.attack=8',
    "</title></style></textarea><iframe srcdoc='<script>parent.attack=9</script>'>",
    "--></svg></template><style>@import'//elsewhere.test'</style><a href='javascript:alert(1)'>x</a>",
    "\u202e\u0000]]></dialog><base href=//elsewhere.test><meta http-equiv=refresh content=0;//x.test>",
)
"""Texts that do something where they are taken for markup, for a template or for an address."""
PLAIN = {
    *("kind", "thumbnail", "motion", "sound", "drawn", "by", "finish_reason", "outcome", "space"),
    *("shape", "media", "times"),
}
"""Keys of rows whose texts the program itself writes: names of files and one of a few words."""


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HELPERS.parent), *sys.path]),
    }


def command(*arguments: str) -> str:
    """What `vlmrl ARGUMENTS` printed."""
    done = subprocess.run(
        [sys.executable, "-m", "vlmrl", *arguments],
        env=environment(),
        cwd=ROOT,
        timeout=1200,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train(folder: Path, config: str, *overrides: str) -> Path:
    """Train a few tiny steps with answers read as boxes; nothing is learned in them."""
    own = ("rewards=[box_iou, format]", "evaluation.metric=box_iou", "evaluation.limit=16")
    command("train", config, *TINY, *own, f"run.dir={folder}", "run.report=true", *overrides)
    return folder


def train_turns(folder: Path) -> Path:
    """Train a few tiny steps on two turns, of which the first often calls a tool."""
    return train(
        folder,
        "look_twice",
        f"engine.name={HELPERS / 'asking_engine.py'}:AskingHf",
        "rewards=[exact, format]",
        "evaluation.metric=exact",
        "checks={parity_every: 0}",  # what the stand-in writes, no model would
        "model.max_pixels=3136",
    )


def let_it_learn(folder: Path) -> None:
    """Write evaluations of boxes that come nearer to the true ones, in place of what was answered."""
    found = run_folder.steps_in(folder / "evals", ".jsonl")
    for step, by in zip((min(found), max(found)), (0.12, 0.02), strict=True):
        rows = [row for row in files.read_lines(found[step]) if row["drawn"] == "greedy"]
        scores = [_answer(row, by) for row in rows]
        mean = float(np.mean(scores))
        numbers = {"box_iou": mean, "reward": mean, "format": 1.0, "answered": 1.0}
        intervals = {name: [value - 0.02, value + 0.02] for name, value in numbers.items()}
        result = {"metrics": numbers, "intervals": intervals, "pass_at_k": None}
        run_folder.write_evaluation(folder, step, result, rows)


def _answer(row: dict[str, Any], by: float) -> float:
    """Answer with the true box grown by `by` on every side; return the IoU of the two."""
    x1, y1, x2, y2 = row["truth"]["boxes"][0]["box"]
    box = [max(x1 - by, 0), max(y1 - by, 0), min(x2 + by, 1), min(y2 + by, 1)]
    score = (x2 - x1) * (y2 - y1) / ((box[2] - box[0]) * (box[3] - box[1]))
    said = row["completions"][0]
    said |= {"reward": score, "valid": True, "answer": json.dumps(box)}
    said["verdicts"]["box_iou"] |= {"score": score, "answer": [{"box": box}], "applies": True}
    return float(score)


# -------------------------------------------------------------------------------- attacks


def attack(folder: Path, attacked: Path) -> Path:
    """Copy a run and put an attack into every text that a model, a data set or a user wrote."""
    shutil.copytree(folder, attacked)
    payloads = itertools.cycle(PAYLOADS)
    for path in [*attacked.glob("rollouts/*.jsonl"), *attacked.glob("evals/*.jsonl")]:
        rows = files.read_lines(path)
        files.write_lines(path, [_with_attacks(row, payloads) for row in rows])
    _attack_tokens(attacked, payloads)
    _attack_config(attacked / "config.json", payloads)
    _attack_numbers(attacked, payloads)
    _raise_alarm(attacked, payloads)
    summary = json.loads((attacked / "summary.json").read_text())
    summary["dropped"] = dict.fromkeys(PAYLOADS, 3)  # reasons of quarantine.jsonl
    summary["faulted"] = dict.fromkeys(PAYLOADS, 2)
    summary["wall_seconds"] = {PAYLOADS[0]: 3.0}
    (attacked / "summary.json").write_text(json.dumps(summary))
    _rename_media(attacked)
    return attacked


def _with_attacks(value: Any, payloads: Iterator[str], key: str = "") -> Any:
    """A value of a row with an attack after each text; lists and nested values alike."""
    if isinstance(value, str):
        return value if key in PLAIN else f"{value} {next(payloads)}"
    if isinstance(value, list):
        return [_with_attacks(one, payloads, key) for one in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, one in value.items():
        if name == "verdicts":
            # A verdict's name is that of a verifier of the user's, its note and parts come from it.
            found[name] = {
                f"{verifier}": {**_with_attacks(verdict, payloads), "note": next(payloads)}
                for verifier, verdict in one.items()
            } | {payload: next(iter(one.values())) for payload in PAYLOADS[:2]}
        elif name == "media" and one and isinstance(one[0], dict):
            found[name] = [{**medium, "name": next(payloads)} for medium in one]
        else:
            found[name] = _with_attacks(one, payloads, name)
    return found


def _attack_tokens(folder: Path, payloads: Iterator[str]) -> None:
    """Put an attack into the text of each token, below the names that the attacked rows have."""
    for step, path in run_folder.steps_in(folder / "rollouts", ".jsonl").items():
        rows = files.read_lines(path)
        told = files.read_lines(run_folder.tokens_path(folder, step))
        for row, tokens in zip(rows, told, strict=True):
            tokens |= {"source": row["source"], "id": row["id"]}
            for one in tokens["completions"]:
                one["texts"] = [f"{text}{next(payloads)}" for text in one["texts"]]
        files.write_lines(run_folder.tokens_path(folder, step), told)


def _attack_config(path: Path, payloads: Iterator[str]) -> None:
    config = json.loads(path.read_text())
    config["run"]["name"] = f"run {PAYLOADS[1]}"
    config["evaluation"]["metric"] = f"shapes/{PAYLOADS[0]}"
    config["data"]["train"][0]["name"] = PAYLOADS[5]
    config["model"]["path"] = PAYLOADS[8]
    config["git"] = {"revision": next(payloads), "changed": True}
    path.write_text(json.dumps(config))


def _attack_numbers(folder: Path, payloads: Iterator[str]) -> None:
    """Name curves and held-out numbers (and so tiles, sections' constants and legends) after attacks."""
    metrics = run_folder.metrics_path(folder)
    lines = files.read_lines(metrics)
    for number, line in enumerate(lines):
        for payload in PAYLOADS:
            line[f"reward/{payload}"] = line[f"source/{payload}/reward"] = number / 3
            line[payload] = number / 7
            line[f"model/{payload}/failed"] = 0.5
    files.write_lines(metrics, lines)
    for path in folder.glob("evals/*.json"):
        found = json.loads(path.read_text())
        for payload in PAYLOADS:
            for name in (payload, f"shapes/{payload}", f"sampled/{payload}"):
                found["metrics"][name], found["intervals"][name] = 0.5, [0.4, 0.6]
        path.write_text(json.dumps(found))


def _raise_alarm(folder: Path, payloads: Iterator[str]) -> None:
    """Write an alarm of the loophole watch, with rows and signs to look at."""
    step, path = max(run_folder.steps_in(folder / "rollouts", ".jsonl").items())
    rows = files.read_lines(path)[:2]
    for row in rows:
        for said in row["completions"]:
            said["loophole"] = {"signs": [next(payloads)], "strict": 0.1, "elsewhere": None}
    alarms = {payload: f"an alarm {payload}" for payload in PAYLOADS}
    line = {"step": step, "alarms": alarms, "rows": rows}
    files.write_lines(run_folder.loopholes_path(folder), [line])


def _rename_media(folder: Path) -> None:
    """Give the stored images names that are attacks, as far as a file's name can be one."""
    texts = [
        *folder.glob("rollouts/*.jsonl"),
        *folder.glob("evals/*.jsonl"),
        folder / "loopholes.jsonl",
    ]
    for number, path in enumerate(sorted(run_folder.media_folder(folder).iterdir())):
        renamed = f"{number}\"><img src=x onerror=globalThis.attack=10>'{path.suffix}"
        for text in texts:
            old = text.read_text()
            text.write_text(old.replace(path.name, json.dumps(renamed)[1:-1]))
        path.rename(path.with_name(renamed))
