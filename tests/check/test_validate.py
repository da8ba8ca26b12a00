"""`vlmrl config validate` means it: what it passes can be built, and names things that are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vlmrl import config, plugins
from vlmrl.assemble.part_source import missing_options, read_part
from vlmrl.assemble.validate import check_paths, load_valid, validate
from vlmrl.errors import UserError

PARTS = [(kind, name) for kind in plugins.KINDS for name in plugins.names(kind)]


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_valid("quickstart", overrides)
    return str(caught.value)


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_a_parts_file_says_what_the_part_has(kind: str, name: str) -> None:
    options = plugins.options_of(plugins.load(kind, name))
    read = read_part(kind, name).options
    assert list(read) == list(options)
    assert missing_options(kind, name) == [key for key, one in options.items() if one.required]


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_every_option_of_a_part_says_what_it_is(kind: str, name: str) -> None:
    options = read_part(kind, name).options
    silent = [key for key, option in options.items() if not option.description]
    file = f"{plugins.KINDS[kind].replace('.', '/')}/{name}.py"
    assert not silent, f"{file}: expected a docstring under each option, got none under {silent}"


def test_an_unknown_template_is_refused() -> None:
    expected = "source 'shapes': no template is named 'think_anser'; did you mean 'think_answer'?"
    assert refusal("data.train.shapes.template=think_anser") == f"quickstart: {expected}"


PART = """
from dataclasses import dataclass
@dataclass
class Needy:
    address: str
    size: int = 1
"""


@pytest.mark.parametrize("kind", ["engine", "algorithm"])
def test_a_missing_option_of_a_part_of_your_own_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "needy.py").write_text(PART)
    name = f"{tmp_path}/needy.py:Needy"
    wanted = f"quickstart: {kind}: {kind} {name!r}: option 'address' is required"
    assert refusal(f"{kind}={name}") == wanted


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.train=[{card: records}]", "card 'records': option 'path' is required"),
        ("tracking={mlflow: {projct: x}}", "tracker 'mlflow' has no option 'projct'"),
        ("algorithm.options.clip_high=-1", "algorithm 'grpo': "),
        (
            "engine={name: hf, options: {max_num_seq: 4}}",
            "engine 'hf' has no option 'max_num_seq'; did you mean 'max_num_seqs'?",
        ),
    ],
)
def test_a_wrong_or_missing_option_is_refused(override: str, expected: str) -> None:
    said = refusal(override)
    assert said.startswith("quickstart: ") and expected in said


def test_a_shipped_part_whose_option_is_missing_is_refused_unimported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    room = tmp_path / "vlmrl_more"
    room.mkdir()
    (room / "needy.py").write_text(PART + "raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(plugins.KINDS, "engine", "vlmrl_more")
    with pytest.raises(UserError, match="engine 'needy': option 'address' is required"):
        validate(config.load("quickstart", ["engine=needy"]))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.media_root=nowhere", "data.media_root: there is no file or folder 'nowhere'"),
        ("resume=nowhere", "resume: expected never, auto or a checkpoint folder, got 'nowhere'"),
        (
            "model={path: ./nowhere, build: null}",
            "model.path: there is no file or folder './nowhere'",
        ),
        ("model={path: a/b/c, build: null}", "model.path: there is no file or folder 'a/b/c'"),
        (
            "data.train=[{card: records, options: {path: data.jsonl}}]",
            "source 'records', option 'path': there is no file or folder 'data.jsonl'",
        ),
    ],
)
def test_a_path_that_does_not_exist_is_refused(override: str, expected: str) -> None:
    said = refusal(override)
    assert said.startswith("quickstart: ") and expected in said


def test_a_hub_name_is_no_path() -> None:
    check_paths(config.load("quickstart", ["model={path: owner/name, build: null}"]))


def test_a_run_folder_as_model_is_told_its_checkpoint(tmp_path: Path) -> None:
    model = f"model={{path: {tmp_path}, build: null}}"
    (tmp_path / "checkpoints").mkdir()
    assert (
        refusal(model)
        == f"quickstart: model.path: {tmp_path} is a run folder without a GRPO checkpoint"
    )
    for step in (50, 100, 150):
        (tmp_path / f"checkpoints/step-{step}").mkdir()
    message = f"model.path: {tmp_path} is a run folder: use one of its checkpoints, e.g. {tmp_path}"
    assert refusal(model) == f"quickstart: {message}/checkpoints/step-150 (its last)"
    (tmp_path / "summary.json").write_text(json.dumps({"best_evaluation": {"step": 100}}))
    assert refusal(model) == f"quickstart: {message}/checkpoints/step-100 (its best)"


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ('data.train.0.tools=["crops"]', "tools.0: no tool is named 'crops'; did you mean 'crop'?"),
        (
            'data.train.0.tools=[{"name": "crop", "options": {"siz": 3}}]',
            "source 'shapes', tools.0: tool 'crop' has no option 'siz'",
        ),
        ('data.train.0.tools=["crop", "crop"]', "tools.1: tool 'crop' is named twice"),
        (
            "data.train.0.environment=gridworld",
            "environment: no environment is named 'gridworld'; did you mean 'grid_world'?",
        ),
        ('strategies=["hints", "hints"]', "strategies.1: strategy 'hints' is named twice"),
        (
            "data.sampler={name: pool, options: {path: nowhere}}",
            "data.sampler, option 'path': there is no file or folder 'nowhere'",
        ),
        ('strategies=["hint"]', "quickstart: strategies.0: no strategy is named 'hint'"),
        ("data.sampler=adarf", "quickstart: data.sampler: no sampler is named 'adarf'"),
        ("engine=vlm_server", "quickstart: engine: no engine is named 'vlm_server'"),
        ("algorithm=grop", "quickstart: algorithm: no algorithm is named 'grop'"),
        (
            'evaluation.benchmarks=[{"name": "chartqa", "protocol": "lmmseval"}]',
            "evaluation.benchmarks: benchmark 'chartqa' has no protocol 'lmmseval'; it has: lmms_eval",
        ),
        (
            'evaluation.benchmarks=["refcoco:testC"]',
            "evaluation.benchmarks: benchmark 'refcoco' has no split 'testC'; it has: testA, testB",
        ),
        ('stages=[{"name": "a", "until": 0.5}, {"name": "a"}]', "stages.1.name: two stages are"),
    ],
)
def test_a_mistake_in_a_newer_section_is_named_by_its_key(override: str, wanted: str) -> None:
    assert wanted in refusal(override) and "\n" not in refusal(override)


def test_a_benchmark_without_data_is_refused_before_training() -> None:
    said = refusal("evaluation.benchmarks=[chartqa]", "evaluation.metric=chartqa/strict")
    assert said.endswith(
        "evaluation.benchmarks: chartqa: there is no file or folder 'data/chartqa'"
    )


def test_a_misspelt_required_key_is_one_line() -> None:
    assert refusal('rewards=[{"verifer": "box_iou"}]') == (
        "quickstart: rewards.0.verifer: unknown key; did you mean 'verifier'?"
    )


@pytest.mark.parametrize(
    ("override", "excluded"),
    [
        ("strategies=[shuffled_frames]", "strategy 'shuffled_frames'"),
        ("stages=[{until: 0.5}, {}]", "stages"),
        ("algorithm=papo", "algorithm 'papo'"),
    ],
)
def test_what_knows_a_single_turn_is_refused_beside_tools(override: str, excluded: str) -> None:
    said = refusal("data.train.shapes.tools=[crop]", override)
    assert f"a source has tools or an environment, which excludes {excluded}" in said
    load_valid("quickstart", [override])


def test_a_column_that_the_rows_do_not_have_is_refused(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "How many?", "answer": "2", "level": 3}\n')
    source = f"data.train=[{{card: {rows}}}]"
    level = "data.sampler={name: adarft, options: {difficulty: %s}}"
    load_valid("quickstart", [source, level % "level"])
    assert refusal(source, level % "levle") == (
        f"quickstart: data.sampler: {rows}:1: no column 'levle'; did you mean 'level'?"
    )
    assert "data.sampler: shapes train row 0: no column 'level'" in refusal(level % "level")
