"""The page of what H100s train says what `vlmrl plan` says, row by row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")

import hook
import plan_page

from vlmrl.features.plan.layouts import as_overrides, layout_of
from vlmrl.features.plan.planner import find_verdicts

PAGE = Path(__file__).parents[2] / "docs" / "scale" / "plan_verdicts.md"


@pytest.mark.nightly
def test_a_section_has_the_numbers_of_the_plan() -> None:
    page = "\n".join(plan_page.section("72B", (8, 64)))
    verdicts, seconds = _tables(page)
    counted = plan_page.planner_of("72B")
    for gpus in (8, 64):
        planner = counted.with_prompts(plan_page.prompts_of(gpus))
        written = planner.rate(layout_of(planner.config, gpus))
        fails = [each for each in find_verdicts(planner, written) if each.level == "FAIL"]
        assert fails and all(f"**{each.part}**" in verdicts[gpus][1] for each in fails)
        found = planner.sweep(gpus)
        if not found:
            assert verdicts[gpus][2] == "none" and seconds[gpus][1] == "-"
            continue
        times, keys = found[0].times, found[0].layout.changes(planner.config)
        assert verdicts[gpus][2] == str(found[0].layout)
        assert f"\n- {gpus}: `{as_overrides(keys)}`" in page
        shown = [float(cell) for cell in seconds[gpus][1:8]]
        expected = [times.generation.seconds, times.passes, times.update, times.sync]
        expected += [times.sync_bytes / 1e9, times.step, found[0].rate]
        assert shown == pytest.approx(expected, abs=0.051)
    # A machine of 8 cannot hold 12 bytes a weight for 72 billion that train.
    assert verdicts[8][2] == "none" and verdicts[64][2] != "none"


def test_the_page_is_filled_in_and_says_that_nothing_was_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(hook.FILLED, "<!-- plan -->", lambda: "THE TABLES")
    filled = hook._filled(PAGE.read_text(encoding="utf-8"))
    assert "THE TABLES" in filled and "None of these runs was ever made" in filled


def _tables(text: str) -> list[dict[int, list[str]]]:
    """Return the rows of each table by their number of GPUs."""
    found: list[dict[int, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("| H100"):
            found.append({})
        elif match := re.match(r"\| (\d+) \|", line):
            found[-1][int(match[1])] = [cell.strip() for cell in line.strip("|").split(" | ")]
    return found
