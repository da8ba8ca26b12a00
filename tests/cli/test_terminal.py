"""What commands show in terminals of several widths, write for programs, leave when quiet, say at Ctrl-C."""

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

from helpers.chat_calls import save_small_model
from helpers.messages import require_named, require_refusal
from helpers.published import ROWS, write_published
from helpers.runs import TINY
from vlmrl.runs.metrics import find
from vlmrl.runs.output import events

SHORT = [*TINY, "run.steps=2", "evaluation.limit=3", "sft.max_steps=2"]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|9\d)(?:;\d+)*m")

SAYING = """
import sys
from pathlib import Path
from vlmrl.runs.output import events
from vlmrl.runs.output.terminal import choose
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
    for number in ("10/150", "13 min", "0.612 [0.590, 0.634]", "0.620"):
        assert any(number in line for line in lines), number
    assert any("shapes: box_iou 0.512" in line for line in lines)


def test_a_terminal_without_colours_gets_none() -> None:
    assert COLOURS.search(run_in_terminal([sys.executable, "-c", SAYING], 80)[1])
    _, written = run_in_terminal([sys.executable, "-c", SAYING], 80, NO_COLOR="1")
    assert not COLOURS.search(written) and "10/150" in written


def test_a_terminal_that_cannot_move_its_cursor_gets_lines_that_fit() -> None:
    _, written = run_in_terminal([sys.executable, "-c", SAYING], 40, TERM="dumb")
    assert "\x1b" not in written
    started, step, source = written.splitlines()[:3]
    assert max(len(started), len(step), len(source)) <= 40
    require_named(started, "quickstart", "grpo", "runs/quickstart")
    require_named(step, "10/150", "13 min", "0.612")
    require_named(source, "shapes", "box_iou 0.512", "23.4")


@pytest.mark.slow
def test_a_run_in_a_narrow_terminal_ends_at_ctrl_c_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = vlmrl("train", "quickstart", *SHORT, "run.steps=500", f"run.dir={folder}")
    code, written = run_in_terminal(command, 40, interrupt_at="1/500")
    lines = seen(written.replace("^C", ""))  # the terminal's own echo
    assert code == 130
    assert any(re.match(r"step +\d+/500", line) for line in lines)
    assert any("interrupted" in line for line in lines)
    assert "resume=auto" in written and (folder / "checkpoints").is_dir()
    assert [line for line in lines if len(line) > 40 and str(folder) not in line] == []


# -------------------------------------------------------------------------------------- programs


def run_program(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(vlmrl(*arguments), capture_output=True, text=True)
    assert ran.returncode == code, ran.stderr
    return ran


def objects(ran: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return the lines of --json; each is an object whose keys are those of its kind, in their order."""
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    kinds = events.kinds()
    for one in told:
        fields = dataclasses.fields(kinds[one["kind"]])
        assert list(one) == ["kind", *(field.name for field in fields)]
    return told


@pytest.mark.slow
def test_a_run_for_programs_writes_objects_alone_with_known_keys(tmp_path: Path) -> None:
    noisy = tmp_path / "noisy.py"
    noisy.write_text("def score(completion):\n    print('a verifier prints')\n    return 0.5\n")
    more = [f"rewards=[{noisy}:score]", "evaluation.metric=score", f"run.dir={tmp_path / 'run'}"]
    ran = run_program("train", "quickstart", *SHORT, *more, "--json")
    told = objects(ran)
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
    *doing, result = objects(run_program("eval", str(run), *asked, "--max-tokens", "4", "--json"))
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
    assert (told["kind"], told["mistake"]) == ("failed", True)
    require_refusal(ran.returncode, ran.stderr, told["error"], "stepz")


@pytest.mark.nightly
def test_rating_and_demonstrating_say_as_much_to_programs_as_to_people(tmp_path: Path) -> None:
    model = str(save_small_model(tmp_path / "tiny"))
    common = [*TINY, "--samples", "2", "--limit", "6", "--batch-size", "2", "--metric", "reward"]
    out = str(tmp_path / "ratings.jsonl")
    rate = ["data", "rate", "quickstart", *common, "--out", out]
    *before, rated = objects(run_program(*rate, "--model", model, "--json"))
    assert {one["kind"] for one in before} == {"doing"}
    assert [one["what"] for one in before if one["ended"]] == [
        "opening the data",
        "loading model",
        "starting engine hf",
        "rating",
    ]
    assert (before[-1]["done"], before[-1]["total"], before[-1]["left_s"]) == (6, 6, 0)
    assert (rated["kind"], rated["file"], rated["rows"]) == ("rated", out, 6)
    assert rated["finished"] and rated["not_rated"] == 0 and sum(rated["solved"].values()) == 6
    # The policy as it is, before its cold start; a second time, and with nothing to go on with.
    first = run_program(*rate[:-1], str(tmp_path / "again.jsonl"), "--quiet")
    warning, counts, solved = first.stdout.splitlines()
    assert not first.stderr
    require_named(warning, "cold start")
    require_named(counts, "6 rows", "0 not rated")
    assert sum(map(int, re.findall(r"\d+", solved))) == 6
    refused = run_program(*rate, "--model", model, "--json", code=2)
    assert objects(refused)[-1]["mistake"]
    require_refusal(2, refused.stderr, out, "--resume")

    out = str(tmp_path / "demonstrations.jsonl")
    teach = ["data", "demonstrate", "quickstart", model, *common, "--threshold", "9", "--out", out]
    *before, made = objects(run_program(*teach, "--json"))
    assert before[-1]["what"] == "asking the teacher" and before[-1]["done"] == 6
    assert (made["kind"], made["rows"], made["kept"]) == ("demonstrated", 6, 0)
    assert made["dropped"] == {"none has reward of 9": 6} and len(made["named"]) == 6
    said = run_program(*teach, "--resume", "--quiet").stdout.splitlines()
    require_named(said[-2], out, "6 rows", "0 kept", "6 dropped")
    require_named(said[-1], "6 rows", "reward of 9")


@pytest.mark.nightly
def test_a_benchmark_is_an_object_and_a_line_of_its_own(tmp_path: Path) -> None:
    model, data = save_small_model(tmp_path / "tiny"), tmp_path / "data"
    for name in ("chartqa", "ai2d"):
        write_published(data, name, "test", ROWS[name])
    asked = ["--benchmark", "chartqa,ai2d", "--protocol", "lmms_eval", "--data-root", str(data)]
    asked += ["--out", str(tmp_path / "out"), "--limit", "4", "--max-tokens", "4"]
    told = objects(run_program("eval", str(model), *asked, "--samples", "2", "--json"))
    done = [one["what"] for one in told if one["kind"] == "doing" and one["ended"]]
    assert done[:2] == [f"loading model {model}", "starting engine hf"]
    assert done[2:5] == ["asking chartqa", "scoring chartqa", "sampling chartqa"]
    chartqa, ai2d = (one for one in told if one["kind"] == "benchmark")
    stored = json.loads((tmp_path / "out/chartqa/result.json").read_text())
    assert chartqa["figures"] == stored["figures"] and chartqa["rows"] == 4
    assert (ai2d["benchmark"], set(ai2d["pass_at_k"])) == ("ai2d", {"1", "2"})
    page = tmp_path / "out/report.html"
    assert told[-1] == {"kind": "report", "page": str(page)} and page.is_file()
    # All answers are there: nothing is asked again.
    quiet = run_program("eval", str(model), *asked, "--quiet")
    first, second, last = quiet.stdout.splitlines()
    require_named(first, "chartqa", str(chartqa["shown"]["official"]))
    require_named(second, "ai2d")
    require_named(last, str(page))
    assert not quiet.stderr
    require_named(run_program("eval", str(model), *asked).stdout, first, "lmms_eval")


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "command", [["-c", SAYING], ["-m", "vlmrl", "list", "samplers"]], ids=["a run", "a list"]
)
def test_a_log_on_a_full_disk_ends_no_run_and_is_one_line_at_the_end(
    command: list[str], buffered: bool
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    if not buffered:
        environment["PYTHONUNBUFFERED"] = "1"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0
    assert "standard output: cannot be written: No space left on device" in last
    assert "Exception ignored" not in done.stderr
