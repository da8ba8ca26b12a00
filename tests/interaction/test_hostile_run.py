"""A whole run over a tool that hangs, crashes, leaks, and returns what is hostile."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from helpers.hostile_engine import HOWS
from helpers.runs import TINY, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.config import load

HELPERS = Path(__file__).parents[1] / "helpers"
HARMLESS = {"work", "refuse", "return_a_large_image", "return_a_megabyte"}
"""What is shown to the policy, however long; a leak is harmless until the worker is full."""


@pytest.mark.nightly
def test_a_thousand_rollouts_over_a_hostile_tool_end_normally_and_are_counted_right(
    tmp_path: Path,
) -> None:
    folder, steps, prompts, group = tmp_path / "run", 5, 25, 8
    tool = f"{{name: '{HELPERS}/hostile_tools.py:Misbehave', options: {{limit_s: 1}}}}"
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
                f"data.train=[{{card: shapes, tools: [{tool}], instruct: false}}]",
                "rollout.turns={max_turns: 2, fault_limit: 1, workers: 2}",
                f"rollout.prompts={prompts}",
                f"rollout.group_size={group}",
                "rollout.max_tokens=4",
                f"engine.name={HELPERS}/hostile_engine.py:HostileHf",
            ],
        )
    )
    assert summary["finished"]
    lines, seen, faults = metric_lines(folder), Counter[str](), Counter[str]()
    for step, line in enumerate(lines, 1):
        rows = (folder / f"rollouts/step-{step}.jsonl").read_text().splitlines()
        said = [one for row in rows for one in json.loads(row)["completions"]]
        assert len(said) == prompts * group
        failed = 0
        for one in said:
            (call,) = one["segments"][0]["calls"]
            how, fault = call["arguments"]["how"], call["outcome"] == "fault"
            seen[how] += 1
            faults[how] += fault
            failed += fault
            assert (one["finish_reason"] == "abort") == fault == (not one["valid"])
            assert not fault or one["reward"] == 0  # nothing is paid
            assert len(one["segments"]) == (1 if fault else 3)
        assert line["rollout/masked"] == pytest.approx(failed / len(said))
        assert line["tool/fault"] == pytest.approx(failed / len(said))
        assert line["rollout/answered"] == 0  # what a tool wrote is no answer
        assert line["update/tokens"] > 0
    assert len(lines) == steps
    assert sum(seen.values()) == 1000
    assert {*seen} == {*HOWS}
    for how in HOWS:
        if how in HARMLESS:
            assert faults[how] == 0, how
        elif how != "leak":
            assert faults[how] == seen[how], how
