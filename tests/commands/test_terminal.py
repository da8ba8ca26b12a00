"""What `vlmrl train` shows in terminals of several widths, writes for programs, and says at Ctrl-C."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.runs import TINY
from vlmrl.runs.metric_glossary import find
from vlmrl.runs.output import events

SHORT = [*TINY, "run.steps=2", "evaluation.limit=3", "sft.max_steps=2"]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|9\d)(?:;\d+)*m")

SAYING = """
import sys
from pathlib import Path
from vlmrl.runs.output import events
from vlmrl.runs.output.choose import choose
metrics = {"reward/mean": 0.612, "source/shapes/reward": 0.612, "source/shapes/box_iou": 0.512,
           "rollout/length": 23.4, "time/generate": 0.15, "time/update": 0.04}
with choose() as output:
    output.say(events.Started("quickstart", "grpo", Path("runs/quickstart"), 0, 150))
    with output.doing("evaluation at step 0", 256) as activity:
        activity.done(128)
    output.say(events.Step(10, 150, 754.0, metrics))
    output.say(events.Evaluated(50, "box_iou", 0.612, (0.59, 0.634), 0.134, 0.62, 40, 256, 3.25, metrics))
"""


def run_in_terminal(
    command: Sequence[str], columns: int, interrupt_at: str | None = None, **environment: str
) -> tuple[int, str]:
    """Run a command in a terminal `columns` wide; return its exit code and everything it wrote.

    Once it has written `interrupt_at` it gets a Ctrl-C from the keyboard.
    """
    main, sub = pty.openpty()
    fcntl.ioctl(sub, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    known = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        command,
        stdin=sub,
        stdout=sub,
        stderr=sub,
        env={**known, "TERM": "xterm-256color", **environment},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
    )
    os.close(sub)
    written = b""
    try:
        while True:
            try:
                new = os.read(main, 65536)
            except OSError:  # the other end is closed
                break
            if not new:
                break
            written += new
            if interrupt_at and interrupt_at.encode() in written:
                interrupt_at = None
                os.write(main, b"\x03")
        return process.wait(600), written.decode()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(main)


def seen(written: str) -> list[str]:
    """The lines as they were written, panels again and again, without what moves the cursor."""
    return [line.rstrip() for line in re.split(r"[\r\n]+", ESCAPES.sub("", written))]


def vlmrl(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "vlmrl", *arguments]


# ------------------------------------------------------------------------------------- terminals


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_nothing_is_wider_than_the_terminal_and_no_number_is_cut(columns: int) -> None:
    code, written = run_in_terminal([sys.executable, "-c", SAYING], columns)
    lines = seen(written)
    assert code == 0 and all(len(line) <= columns for line in lines)
    for whole in ("10/150  13 min left", "box_iou 0.612 [0.590, 0.634]", "best 0.620 at step 40"):
        assert any(whole in line for line in lines), whole
    assert any(re.match(r"shapes +0\.612 +0\.512$", line) for line in lines)


def test_a_terminal_without_colours_gets_none() -> None:
    assert COLOURS.search(run_in_terminal([sys.executable, "-c", SAYING], 80)[1])
    _, written = run_in_terminal([sys.executable, "-c", SAYING], 80, NO_COLOR="1")
    assert not COLOURS.search(written) and "10/150" in written


def test_a_terminal_that_cannot_move_its_cursor_gets_lines_that_fit() -> None:
    _, written = run_in_terminal([sys.executable, "-c", SAYING], 40, TERM="dumb")
    assert "\x1b" not in written
    assert written.splitlines()[:3] == [
        "quickstart · grpo · runs/quickstart",
        "step  10/150  13 min left  reward 0.612",
        "  shapes: box_iou 0.512  length 23.4",
    ]


@pytest.mark.slow
def test_a_run_in_a_narrow_terminal_ends_at_ctrl_c_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = vlmrl("train", "quickstart", *SHORT, "run.steps=500", f"run.dir={folder}")
    code, written = run_in_terminal(command, 40, interrupt_at="1/500")
    lines = seen(written.replace("^C", ""))  # the terminal's own echo
    assert code == 130
    assert any(re.match(r"steps .*\b\d+/500", line) for line in lines)
    assert any(line.startswith("interrupted; saved in") for line in lines)
    assert "resume=auto" in written and (folder / "checkpoints").is_dir()
    assert [line for line in lines if len(line) > 40 and str(folder) not in line] == []


# -------------------------------------------------------------------------------------- programs


@pytest.mark.slow
def test_a_run_for_programs_writes_objects_alone_with_known_keys(tmp_path: Path) -> None:
    noisy = tmp_path / "noisy.py"
    noisy.write_text("def score(completion):\n    print('a verifier prints')\n    return 0.5\n")
    more = [f"rewards=[{noisy}:score]", "evaluation.metric=score", f"run.dir={tmp_path / 'run'}"]
    command = vlmrl("train", "quickstart", *SHORT, *more, "--json")
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    kinds = events.kinds()
    for one in told:
        fields = dataclasses.fields(kinds[one["kind"]])
        assert list(one) == ["kind", *(field.name for field in fields)]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for one in told:
        by_kind.setdefault(one["kind"], []).append(one)
    assert [one["step"] for one in by_kind["step"]] == [1, 2]
    assert [one["step"] for one in by_kind["cold_start"]] == [1, 2]
    assert [one["step"] for one in by_kind["evaluation"]] == [0, 2]
    for one in by_kind["step"]:
        assert all(find(name) for name in one["metrics"]), one["metrics"]
    done = {one["what"] for one in by_kind["doing"] if one["ended"]}
    assert {"opening the data", "building the model", "starting engine hf"} <= done
    assert by_kind["evaluation"][1]["change"] == 0 and by_kind["evaluation"][1]["samples"] == 3
    assert [Path(one["folder"]).is_dir() for one in by_kind["saved"]][-1]
    assert told[0]["kind"] == "doing" and told[-1]["kind"] == "finished"
    assert (told[-1]["metric"], told[-1]["last"], told[-1]["steps"]) == ("score", 0.5, 2)
    assert "a verifier prints" in ran.stderr
    evaluate_for_programs(tmp_path / "run", noisy)


def evaluate_for_programs(run: Path, verifier: Path) -> None:
    """`vlmrl eval` of this run: what it did, and its numbers at the end."""
    asked = ["--data", "shapes:test", "--limit", "3", "--verifier", f"{verifier}:score"]
    command = vlmrl("eval", str(run), *asked, "--max-tokens", "4", "--json")
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    *doing, result = map(json.loads, ran.stdout.splitlines())
    assert {one["kind"] for one in doing} == {"doing"}
    assert (doing[-1]["done"], doing[-1]["total"], doing[-1]["ended"]) == (3, 3, True)
    assert (result["kind"], result["samples"], result["pass_at_k"]) == ("result", 3, None)
    assert result["metrics"]["score"] == 0.5 and result["intervals"]["score"] == [0.5, 0.5]


@pytest.mark.slow
def test_a_quiet_run_says_what_has_to_be_known(tmp_path: Path) -> None:
    command = vlmrl("train", "quickstart", *SHORT, f"run.dir={tmp_path / 'run'}", "--quiet")
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    first, *others, last = ran.stdout.splitlines()
    assert first.startswith("evaluation at step 0  varied ") and last.startswith(
        "held-out varied: "
    )
    assert not any(line.startswith(("step ", "cold start ", "quickstart ·")) for line in others)
    assert ran.stderr == ""


def test_a_mistake_is_an_object_and_one_line(tmp_path: Path) -> None:
    ran = subprocess.run(
        vlmrl("train", "quickstart", "run.stepz=1", "--json"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    (line,) = ran.stdout.splitlines()
    told = json.loads(line)
    assert (ran.returncode, told["kind"], told["mistake"]) == (2, "failed", True)
    assert ran.stderr == f"error: {told['error']}\n" and "stepz" in told["error"]
