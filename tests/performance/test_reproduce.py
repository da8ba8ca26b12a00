"""`performance/reproduce.py`: records are read strictly, commands run apart, verdicts are right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from vlmrl.errors import UserError

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "performance"))

import reproduce as records  # noqa: E402
from reproduce import RerunOutcome, read_value  # noqa: E402

SCRIPT = """
import argparse, json, pathlib, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--value", type=float, default=0.5)
parser.add_argument("--sleep", action="store_true")
given = parser.parse_args()
if given.sleep:
    (given.out / "asleep").touch()
    time.sleep(120)
if given.value > 1:
    sys.exit("too much")
(given.out / "found.json").write_text(json.dumps({"a": {"b/c": given.value}}))
print("| name | IoU | worse |\\n|---|---|---|\\n| 0 | GRPO 0.25 [0.2, 0.3] | 3 |\\nspeed: 71,306 a second")
"""
TOPIC = """
date: 2026-11-23
hardware: any
records:
  good:
    says: what is so
    command: [python, performance/script.py, --out, "{out}"]
    minutes: 1
    figures:
      equal: {expected: 0.5, read: [found.json, a, b/c]}
      cell: {expected: 0.24, accept: [0.2, 0.3], read: [output, "0", IoU]}
      after: {expected: 70000, relative: 0.1, digits: 0, read: [output, "speed:"]}
      less: {expected: 0.25, read: [found.json, a, b/c], minus: [output, "0", IoU]}
  bad:
    says: what is not so
    command: [python, performance/script.py, --out, "{out}", --value, "0.75"]
    minutes: 2
    figures:
      outside: {expected: 0.5, interval: [0.4, 0.6], read: [found.json, a, b/c]}
      gone: {expected: 0.5, read: [found.json, a, x]}
  failing:
    says: what fails
    command: [python, performance/script.py, --out, "{out}", --value, "2"]
    minutes: 3
    figures: {x: {expected: 1, read: [found.json, a, b/c]}}
  once:
    says: what was seen
    by_hand: it was another machine
    commit: abc1234
    figures: {x: {expected: 1}}
  elsewhere:
    says: what needs more
    command: [python, performance/script.py]
    minutes: 0.1
    needs: [vllm, gpu]
    figures: {x: {expected: 1, read: [output, x]}}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "performance/results").mkdir(parents=True)
    (tmp_path / "performance/script.py").write_text(SCRIPT)
    (tmp_path / "performance/results/topic.yaml").write_text(TOPIC)
    return tmp_path


def outcomes(root: Path, *names: str) -> dict[str, RerunOutcome]:
    chosen = records.choose(records.read_records(root), names)
    return {each.name: each for each in records.reproduce(chosen, root, root / "out")}


# ----------------------------------------------------------------------------------------- running


def test_what_comes_out_again_is_told_from_what_does_not(root: Path) -> None:
    found = outcomes(root, "good", "bad", "failing", "once")
    assert {name: each.verdict for name, each in found.items()} == {
        "good/equal": "reproduced",
        "good/cell": "reproduced",
        "good/after": "reproduced",
        "good/less": "reproduced",
        "bad/outside": "not reproduced",
        "bad/gone": "not reproduced",
        "failing/x": "not reproduced",
        "once/x": "not runnable here",
    }
    assert [found[f"good/{n}"].got for n in ("equal", "cell", "after")] == [0.5, 0.25, 71306]
    assert found["bad/outside"].line(2) == (
        "bad/outside: expected 0.50 [0.4, 0.6], got 0.75: not reproduced"
    )
    assert "no 'x'" in found["bad/gone"].why and "too much" in found["failing/x"].why
    assert "by hand, at abc1234" in found["once/x"].why
    written = (root / "out/outcomes.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in written] == list(found)
    assert 0 < found["good/equal"].minutes < 1


def test_what_is_missing_is_named(root: Path) -> None:
    record = records.read_records(root)["elsewhere"]
    (found,) = records.reproduce({"elsewhere": record}, root, root / "out")
    assert found.verdict == "not runnable here" and found.why in ("it needs vllm", "it needs gpu")
    assert not (root / "out/elsewhere").exists()


def test_the_cheapest_that_fit_are_run(root: Path) -> None:
    known = records.read_records(root)
    assert list(records.fit(known, 3.5)) == ["good", "bad"]
    assert list(records.fit(known, 0.5)) == []


def test_results_are_never_read_from_an_earlier_run(root: Path) -> None:
    outcomes(root, "good")
    with pytest.raises(UserError, match="not there yet"):
        outcomes(root, "good")


def test_one_figure_of_a_record_can_be_asked_for(root: Path) -> None:
    assert list(outcomes(root, "good/cell", "good/equal")) == ["good/cell", "good/equal"]


@pytest.mark.parametrize("name", ["topic", "performance/results/topic.yaml", "results/topic.yaml"])
def test_a_file_names_its_records(root: Path, name: str) -> None:
    assert len(records.choose(records.read_records(root), [name])) == 5


def test_a_name_that_is_not_known_has_the_nearest(root: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'good'"):
        records.choose(records.read_records(root), ["goood"])


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_known_and_ends_the_command(root: Path) -> None:
    topic = root / "performance/results/topic.yaml"
    topic.write_text(TOPIC.replace('"0.75"', '"0.75", --sleep'))
    program = (
        "import signal, sys; from pathlib import Path\n"
        f"sys.path.append({str(ROOT / 'performance')!r}); import reproduce as records\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it\n"
        "root = Path(sys.argv[1]); known = records.choose(records.read_records(root), ['good', 'bad'])\n"
        "for each in records.reproduce(known, root, root / 'out'): print(each.name)"
    )
    words = [sys.executable, "-c", program, str(root)]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(words, env={**os.environ, **paths}, stderr=subprocess.DEVNULL) as process:
        while not (root / "out/bad/asleep").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0
    assert (root / "out/outcomes.jsonl").read_text().count("reproduced") == 4
    mine = str(root / "out/bad")
    commands = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert not any(mine.encode() in each for each in commands)


# ----------------------------------------------------------------------------------------- records


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("expected: 0.24, accept: [0.2, 0.3]", "expected: 0.34, accept: [0.2, 0.3]", "outside of"),
        ("minutes: 1", "minuts: 1", "minuts"),
        ("    minutes: 1\n", "", "expected the CPU minutes"),
        ("commit: abc1234", "minutes: 0", "expected the commit"),
        ("by_hand: it was another machine", "minutes: 0", "either a command or by_hand"),
        ("expected: 0.24", "expected: 0.2412", "more than 3 decimal"),
        ("expected: 0.24", "expected: high", "float"),
        (', read: [output, "speed:"]', "", "`read`"),
        ("needs: [vllm, gpu]", "needs: [luck]", "luck"),
        ("date: 2026-11-23", "date: today", "date"),
        ("hardware: any", "machine: any", "machine"),
    ],
)
def test_a_record_that_cannot_be_meant_is_refused(
    root: Path, old: str, new: str, message: str
) -> None:
    assert old in TOPIC
    (root / "performance/results/topic.yaml").write_text(TOPIC.replace(old, new, 1))
    with pytest.raises(UserError, match=message):
        records.read_records(root)


def test_a_name_means_one_record(root: Path) -> None:
    (root / "performance/results/another.yaml").write_text(TOPIC)
    with pytest.raises(UserError, match=r"record 'good' is also in another\.yaml"):
        records.read_records(root)


# ---------------------------------------------------------------------------------------- readings

TABLE = (
    "| a | b |\n|---|---|\n| x | 1 |\n| x y | -2.5e-3 |\n\n| a | b |\n|---|---|\n| z | 9 of 10 |\n"
)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (["output", "x", "b"], 1),
        (["output", "x y", "b"], -0.0025),
        (["output", "z", "b"], 9),
        (["metrics.jsonl", "reward", "2-3"], 2.5),
        (["found.json", "a", "b/c"], 0.5),
    ],
)
def test_a_value_is_read(tmp_path: Path, where: list[str], value: float) -> None:
    write(tmp_path)
    assert read_value(tmp_path, TABLE, where) == value


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (["output", "q", "b"], "got 0"),
        (["output", "x", "c"], "got 0"),
        (["output", "| x"], "2 times"),
        (["output", "9 of 10"], "expected a number"),
        (["metrics.jsonl", "reward", "3-5"], "at each of steps 3-5"),
        (["metrics.jsonl", "loss", "1-2"], "expected loss"),
        (["found.json", "a", "b"], "no 'b'"),
        (["found.json", "a"], "expected a number"),
        (["gone.json", "a"], "wrote no gone.json"),
        (["../found.json", "a"], "own folder"),
    ],
)
def test_a_value_that_is_not_there_is_an_error(
    tmp_path: Path, where: list[str], message: str
) -> None:
    write(tmp_path)
    with pytest.raises(UserError, match=message):
        read_value(tmp_path, TABLE, where)


def write(folder: Path) -> None:
    (folder / "found.json").write_text('{"a": {"b/c": 0.5}}')
    lines = [{"step": step, "reward": float(step)} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))


# ----------------------------------------------------------------------------------------- command


def test_the_records_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    command(monkeypatch)
    assert "CPU minutes in all" in (out := capsys.readouterr().out) and "quickstart-0" in out
    command(monkeypatch, "--json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (figure,) = [line for line in lines if line["name"] == "quickstart-0/after"]
    assert figure["span"] == figure["interval"]
    assert figure["command"][:3] == ["vlmrl", "train", "quickstart"]


def test_the_exit_code_says_whether_all_came_out_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(records, "ROOT", root)
    with pytest.raises(SystemExit) as left:
        command(monkeypatch, "good", "--out", str(root / "a"))
    assert not left.value.code
    with pytest.raises(SystemExit) as left:
        command(monkeypatch, "good", "bad", "--out", str(root / "b"), "--json")
    assert left.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1])["verdict"] == "not reproduced"


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *words])
    records.main()
