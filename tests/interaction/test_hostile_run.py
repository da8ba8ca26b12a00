"""A whole run over a tool that hangs, crashes, leaks, and returns what is hostile."""

from __future__ import annotations

import json
import multiprocessing.util
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from helpers.hostile_engine import HOWS
from helpers.runs import TINY, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.config import load

HELPERS = Path(__file__).parents[1] / "helpers"
FAILED = {
    "hang": r"killed: no result within 1 s",
    "spin": r"killed: no result within 1 s",
    "abort": r"its process died: SIGABRT",
    "leave": r"(its process died: exit code 0|killed: no result within 1 s)",
    "allocate": r"its process died: it may not take that much memory .*",
    "leak": r"its process died: it may not take that much memory .*",
    "raise": r"ConnectionRefusedError: nobody listens",
    "return_nothing": r"TypeError: expected a text, .* of a tool, got NoneType",
    "return_an_object": r"TypeError: expected a text, .* of a tool, got object",
    "write": r"OSError: .*File too large",
    "return_an_empty_image": r"ValueError: an image of 0x0 pixels",
    "return_a_huge_image": r"its process died: it may not take that much memory .*",
    "return_a_bomb": r"ValueError: an image of 9000x9000 pixels",
    "return_a_broken_image": r".*(truncated|broken).*",
    "return_silence": r"ValueError: audio: expected finite samples, at least one",
    "return_a_broken_sound": r"ValueError: audio: expected finite samples, at least one",
    "return_an_empty_video": r"ValueError: a video: expected frames .*",
    "return_many_images": r"ValueError: expected at most 32 parts, got 10000",
}
"""What is said of each fault."""
HARMLESS = {"work", "refuse", "return_a_large_image", "return_a_megabyte"}
"""What is shown to the policy, however long."""


@pytest.mark.nightly
def test_a_thousand_rollouts_over_a_hostile_tool_end_normally_and_are_counted_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    multiprocessing.util.get_temp_dir()  # that of the fork server stays where it is
    main = sys.modules["__main__"]  # no worker is to import pytest
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder, steps, prompts, group = tmp_path / "run", 5, 25, 8
    tools = [f"{HELPERS}/hostile_tools.py:{name}" for name in ("Misbehave", "Hang")]
    summary = lifecycle.train(
        load(
            "quickstart",
            [
                *TINY,
                f"run.dir={folder}",
                f"run.steps={steps}",
                "run.rollouts_every=1",
                "sft=null",
                "evaluation=null",
                "checks={media_ablation_every: 0, parity_every: 0}",
                f"data.train=[{{card: shapes, tools: {tools}, instruct: false}}]",
                "rollout.turns={max_turns: 2, max_length: 2048, fault_limit: 1, workers: 2}",
                f"rollout.prompts={prompts}",
                f"rollout.group_size={group}",
                "rollout.max_tokens=4",
                f"engine.name={HELPERS}/hostile_engine.py:HostileHf",
            ],
        )
    )
    assert summary["finished"]
    assert workers_left() == []
    assert [one.name for one in temporary.iterdir() if one.name.startswith("vlmrl")] == []
    lines, seen, faults = metric_lines(folder), Counter[str](), Counter[str]()
    asked = Counter[str]()
    for step, line in enumerate(lines, 1):
        rows = (folder / f"rollouts/step-{step}.jsonl").read_text().splitlines()
        asked.update(json.loads(row)["id"] for row in rows)
        said = [one for row in rows for one in json.loads(row)["completions"]]
        assert len(said) == prompts * group
        failed = 0
        for one in said:
            (call,) = one["segments"][0]["calls"]
            how, fault = call["arguments"]["how"], call["outcome"] == "fault"
            seen[how] += 1
            faults[how] += fault
            failed += fault
            assert not fault or re.fullmatch(FAILED[how], call["note"]), (how, call["note"])
            assert (one["finish_reason"] == "abort") == fault == (not one["valid"])
            assert not fault or one["reward"] == 0  # nothing is paid
            cut = how == "return_a_megabyte"  # for which there is no room
            assert one["finish_reason"] == "budget" or not cut
            assert len(one["segments"]) == (1 if fault or cut else 3)
        assert line["rollout/masked"] == pytest.approx(failed / len(said))
        assert line["tool/fault"] == pytest.approx(failed / len(said))
        assert line["rollout/answered"] == 0  # what a tool wrote is no answer
        assert line["update/tokens"] > 0
    assert len(lines) == steps
    assert asked.total() == len(asked) == steps * prompts  # no row is lost or asked twice
    assert sum(seen.values()) == 1000
    assert {*seen} == {*HOWS}
    for how in HOWS:
        if how != "leak":  # which is harmless until its worker is full
            assert faults[how] == (0 if how in HARMLESS else seen[how]), how
    print(f"{sum(faults.values())} faults of {sum(seen.values())} rollouts:", dict(faults))


def workers_left(seconds: float = 5.0) -> list[str]:
    """Processes that tools ran in and that did not end soon; the fork server itself stays."""
    end = time.monotonic() + seconds
    while True:
        own = psutil.Process().children()
        left = [worker for one in own for worker in one.children(recursive=True)]
        if not left or time.monotonic() > end:
            return [str(worker) for worker in left]
        time.sleep(0.1)
