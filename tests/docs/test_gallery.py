"""The pages of recipes, the matrix and the pages of benchmarks say what configs, parts and tests say."""

from __future__ import annotations

import re
from pathlib import Path

import benchmark_evidence
import coverage_page
import matrix_page
import part_pages
import pytest
import recipe_evidence
import recipe_facts
import recipe_pages

from vlmrl import plugins

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(recipe_pages.pages())


@pytest.mark.slow
def test_every_recipe_has_a_page_a_group_and_a_row_of_the_index(pages: dict[str, str]) -> None:
    listed = [
        page for section in recipe_pages.nav() for group in section.values() for page in group
    ]
    assert sorted(listed) == sorted(pages)
    assert len(listed) == len(recipe_facts.recipes())
    index = recipe_pages.index()
    assert all(f"({recipe.short}.md)" in index for recipe in recipe_facts.recipes().values())


@pytest.mark.parametrize(
    ("recipe", "group"),
    [
        ("visual_rft", 0),
        ("q_insight", 1),
        ("video_r1", 2),
        ("deepeyes", 3),
        ("vagen", 3),
        ("r1_reward", 4),
        ("nft", 5),
        ("adarft", 5),
        ("self", 5),
    ],
)
def test_a_recipe_is_grouped_by_what_it_trains(recipe: str, group: int) -> None:
    assert recipe_facts.recipes()[f"recipes/{recipe}"].group == recipe_facts.GROUPS[group]


@pytest.mark.slow
def test_a_page_states_rewards_settings_tests_and_the_config(pages: dict[str, str]) -> None:
    page = pages["recipes/deepeyes.md"]
    assert (
        "[`tool_used`](../reference/verifiers/tool_used.md) | 1.2 | `gated_by: {accuracy: 0.5}`"
        in page
    )
    assert "deepeyes pays a tool only beside a right answer" in page
    assert "in every run of the tests" in page
    assert "- tools: [`crop`](../reference/tools/crop.md)" in page
    written = recipe_facts.recipes()["recipes/deepeyes"].file.read_text(encoding="utf-8")
    assert written[written.index("extends:") :].strip() in page
    assert "| `clip_high` | `0.28` | `0.2` |" in pages["recipes/dapo.md"]
    assert "in the nightly tests" in pages["recipes/dapo.md"]
    assert "stage" in pages["recipes/humanomni_v2.md"].split("## Rewards")[0]
    assert "`model: grader`" in pages["recipes/humanomni_v2.md"].replace("model: {", "?")


@pytest.mark.slow
def test_a_page_has_published_figures_with_their_source_or_says_that_there_are_none(
    pages: dict[str, str],
) -> None:
    figures = {f.recipe: f for system in coverage_page.read_systems() for f in system.figures}
    for name, page in pages.items():
        section = page.split("## Published figures")[1].split("\n## ")[0]
        recipe = name.removeprefix("recipes/").removesuffix(".md")
        assert ("None given." in section) == (recipe not in figures), recipe
        if recipe in figures:
            assert figures[recipe].source in section


@pytest.mark.slow
def test_tests_that_a_page_names_are_there(pages: dict[str, str]) -> None:
    sentences = {test.words for test in recipe_evidence.all_tests()}
    for page in pages.values():
        listed = page.split("## What was verified here")[1].split("\n\n##")[0]
        for file in re.findall(r"\(`(tests/[\w/]+\.py)", listed):
            assert (ROOT / file).is_file()
    assert "a group of equal rewards still learns from its spans" in sentences


@pytest.mark.slow
def test_the_matrix_goes_by_what_sources_ask_of_each_medium() -> None:
    rows = [line.split(" | ") for line in list(matrix_page.by_task())[2:]]
    found = {(row[0].strip("| "), row[1]): row for row in rows}
    spans = found["video", "when: spans of time"]
    assert "videochat_r1.md" in spans[2] and "charades_sta.md" in spans[4]
    assert "benchmarks/charades_sta.md" in spans[5]
    assert "omni_mixed" not in found["audio", "which: options"][2]
    named = {name for row in rows for name in re.findall(r"benchmarks/(\w+)\.md", row[-1])}
    assert named == set(plugins.names("benchmark"))
    algorithms = [line for line in matrix_page.by_algorithm() if line.startswith("| [")]
    assert len(algorithms) == len(plugins.names("algorithm"))


def test_the_page_of_a_benchmark_says_what_to_bring_and_what_was_compared() -> None:
    page = part_pages.page("benchmark", "chartqa")
    assert "`DATA_ROOT/chartqa`" in page and "GPL-3.0" in page and "2500" in page
    assert "| `lmms_eval@0.7.3` | `relaxed` | on a few rows |" in page
    video = part_pages.page("benchmark", "vsi_bench")
    assert "| `lmms_eval@0.7.3` | `vsi_mean_relative_accuracy`, `vsi_number` | not |" in video
    assert "Video-R1-7B" in video
    assert "--protocol cocoeval " in part_pages.page("benchmark", "coco")


def test_the_table_of_benchmarks_says_medium_task_rows_licence_and_protocols() -> None:
    table = part_pages.index("benchmark", ["chartqa"])
    row = next(line for line in table.splitlines() if "(chartqa.md)" in line)
    told = "image | free answers, reading, mathematics | 2500 | GPL-3.0 | `lmms_eval`, `vlmevalkit`"
    assert told in row


@pytest.mark.parametrize(
    ("scorer", "rule"),
    [("letter_lmms", "lmms_letter"), ("mmmu", "mmmu_open"), ("boxes_odinw", "odinw_row")],
)
def test_the_rules_of_a_scorer_are_those_that_it_calls(scorer: str, rule: str) -> None:
    assert rule in benchmark_evidence.rules_of(scorer)
