"""Configs: every mistake is a line that names the key; files extend one another; overrides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vlmrl import config
from vlmrl.config import tree
from vlmrl.errors import UserError

SMALL: dict[str, Any] = {
    "model": {"path": "somewhere"},
    "data": {"train": ["shapes"]},
    "rewards": ["format", {"verifier": "box_iou", "options": {"threshold": 0.5}}],
    "algorithm": {"name": "grpo", "options": {"kl": 0.1}},
}


def write(folder: Path, name: str, values: Any) -> str:
    path = folder / name
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return str(path)


def refusal(values: Any) -> str:
    with pytest.raises(UserError) as caught:
        config.parse(values, "my.yaml")
    return str(caught.value)


def with_(*overrides: str) -> config.Config:
    values: Any = SMALL
    for override in overrides:
        values = tree.override(values, override)
    return config.parse(values)


# ------------------------------------------------------------------------------------ validation


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("rollouts={}", "my.yaml: rollouts: unknown key; did you mean 'rollout'?"),
        (
            "models={grader: {urll: 'http://x/v1', model: m}}",
            "my.yaml: models.grader.urll: unknown key; did you mean 'url'?",
        ),
        (
            "models={grader: {url: 'ftp://x', model: m}}",
            "my.yaml: models.grader: url: expected http:// or https://, got 'ftp://x'",
        ),
        (
            "models={a/b: {url: 'http://x/v1', model: m}}",
            "my.yaml: models: expected names of letters, digits, '.', '-' and '_', got 'a/b'",
        ),
        (
            "rollout.grup_size=8",
            "my.yaml: rollout.grup_size: unknown key; did you mean 'group_size'?",
        ),
        (
            "rewards.0={verifer: x}",
            "my.yaml: rewards.0.verifer: unknown key; did you mean 'verifier'?",
        ),
        (
            "model.build={famly: x}",
            "my.yaml: model.build.famly: unknown key; did you mean 'family'?",
        ),
        ("sft={lr_: 1}", "my.yaml: sft.lr_: unknown key; did you mean 'lr'?"),
        ("run.steps=true", "my.yaml: run.steps: true is no value for this key"),
        ("run.report=3", "my.yaml: run.report: Input should be a valid boolean"),
        ("run.steps=1.5", "my.yaml: run.steps: Input should be a valid integer"),
        (
            "run.steps=-1",
            "my.yaml: run.steps: Input should be greater than or equal to 0 (found -1)",
        ),
        ("optimizer.lr=.nan", "my.yaml: optimizer.lr: Input should be a finite number (found nan)"),
        ("optimizer.lr=.inf", "my.yaml: optimizer.lr: Input should be a finite number (found inf)"),
        ("optimizer.betas=[0.9]", "my.yaml: optimizer.betas.1: this key is required"),
        (
            "rollout.group_size=0",
            "my.yaml: rollout.group_size: Input should be greater than or equal",
        ),
        (
            "scoring.combine=add",
            "my.yaml: scoring.combine: Input should be 'sum', 'mean', 'product'",
        ),
        (
            "model.freeze=[vison]",
            "my.yaml: model.freeze.0: Input should be 'vision', 'audio', 'projector'",
        ),
        ("data=3", "my.yaml: data: must be a mapping of keys (found 3)"),
        ("data.train=[]", "my.yaml: data.train: List should have at least 1 item"),
        ("rewards.0.weight={schedul: 1}", "my.yaml: rewards.0.weight: "),
        ("model={}", "my.yaml: model: set exactly one of model.path and model.build"),
        ("model.build={}", "my.yaml: model: set exactly one of model.path and model.build"),
        ("model={path: x, min_pixels: 9, max_pixels: 4}", "my.yaml: model: min_pixels 9 exceeds"),
        ("data.train=[shapes, shapes]", "my.yaml: data: two sources are named 'shapes'"),
        ("rewards=[]", "my.yaml: source 'shapes' has no rewards"),
        ("rewards=[format, format]", "my.yaml: two rewards are named 'format'"),
        (
            "rewards.format.gate=true",
            "my.yaml: a reward has gate: true, but scoring.combine is 'sum'",
        ),
        (
            "rewards.format.gate_above=0.4",
            "my.yaml: rewards.0: gate_above is of a gate: expected gate: true beside it",
        ),
        (
            "rewards.format={verifier: format, max_with: box_iou, multiplies: box_iou}",
            "my.yaml: rewards.0: expected at most one of gate, max_with, multiplies, got max_with and",
        ),
        (
            "rewards.format.multiplies=box_iuo",
            "my.yaml: reward 'format': multiplies: expected the name of another reward of its source, "
            "got 'box_iuo'; did you mean 'box_iou'?",
        ),
        ("optimizer.minibatches=3", "my.yaml: rollout.prompts (16) must be a multiple of"),
        (
            "evaluation.metric=box_iuo",
            "my.yaml: evaluation.metric: there is no metric 'box_iuo'; did you mean 'box_iou'?",
        ),
        ("sft={stop_at: 1, stop_metric: x}", "my.yaml: sft.stop_metric: there is no metric 'x'"),
    ],
)
def test_a_mistake_is_one_line_with_the_path_of_its_key(change: str, expected: str) -> None:
    message = refusal(tree.override(SMALL, change))
    assert message.splitlines()[0].startswith(expected)


def test_every_mistake_gets_its_own_line() -> None:
    message = refusal({**SMALL, "run": {"stepz": 1, "seed": "x"}, "daat": {}})
    assert {line.split(": ")[1] for line in message.splitlines()} == {
        "run.stepz",
        "run.seed",
        "daat",
    }


def test_a_missing_key_is_named() -> None:
    assert refusal({"data": {"train": ["shapes"]}}) == "my.yaml: model: this key is required"


@pytest.mark.parametrize("metric", ["reward", "box_iou", "shapes/reward", "shapes/format"])
def test_metrics_of_the_evaluation_are_accepted(metric: str) -> None:
    evaluation = with_(f"evaluation.metric={metric}").evaluation
    assert evaluation is not None and evaluation.metric == metric


def test_a_source_may_have_its_own_rewards() -> None:
    settings = with_("rewards=[]", "data.train.0.rewards=[format]")
    assert [r.label for r in settings.rewards_of(settings.data.train[0])] == ["format"]


def test_a_long_value_is_shortened_in_the_message() -> None:
    assert len(refusal({**SMALL, "run": {"steps": "x" * 100_000}})) < 300


# ------------------------------------------------------------------------------- files, extends


def test_a_child_overrides_only_what_it_names(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", SMALL)
    write(tmp_path, "middle.yaml", {"extends": "base", "run": {"steps": 7, "seed": 1}})
    child = write(tmp_path, "child.yaml", {"extends": "middle.yaml", "run": {"seed": 2}})
    settings = config.load(child)
    assert (settings.run.steps, settings.run.seed) == (7, 2)
    assert settings.rewards[1].options == {"threshold": 0.5}


def test_a_list_of_a_child_replaces_that_of_its_base(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", SMALL)
    child = write(tmp_path, "child.yaml", {"extends": "base", "rewards": ["exact"]})
    assert [r.verifier for r in config.load(child).rewards] == ["exact"]


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ("dapo", {}),
        ({"name": "dapo"}, {}),
        ({"name": "dapo", "options": {"kl": 1}}, {"kl": 1}),
        ({"name": "grpo", "options": {"clip_low": 0.1}}, {"kl": 0.1, "clip_low": 0.1}),
        ({"options": {"kl": 0.2}}, {"kl": 0.2}),
    ],
)
def test_another_algorithm_does_not_inherit_options(
    tmp_path: Path, change: Any, options: dict[str, Any]
) -> None:
    write(tmp_path, "base.yaml", SMALL)
    child = write(tmp_path, "child.yaml", {"extends": "base", "algorithm": change})
    assert config.load(child).algorithm.options == options


def test_a_name_in_the_base_takes_options_of_the_child(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", {**SMALL, "algorithm": "grpo"})
    child = write(tmp_path, "c.yaml", {"extends": "base", "algorithm": {"options": {"kl": 0.2}}})
    algorithm = config.load(child).algorithm
    assert (algorithm.name, algorithm.options) == ("grpo", {"kl": 0.2})


def test_of_several_bases_later_ones_are_laid_over_earlier_ones_and_the_file_over_all(
    tmp_path: Path,
) -> None:
    write(tmp_path, "task.yaml", {"extends": "base", "run": {"steps": 7, "seed": 1}})
    write(tmp_path, "machine.yaml", {"run": {"seed": 2}, "optimizer": {"micro_batch_tokens": 4096}})
    write(tmp_path, "base.yaml", SMALL)
    own = {"extends": ["task.yaml", "machine"], "optimizer": {"lr": 1e-5}}
    found = config.load(str(write(tmp_path, "own.yaml", own)))
    assert (found.run.steps, found.run.seed) == (7, 2)
    assert (found.optimizer.lr, found.optimizer.micro_batch_tokens) == (1e-5, 4096)
    write(tmp_path, "machine.yaml", {"extends": ["task", "own"]})
    with pytest.raises(UserError, match=r"extends itself through own\.yaml -> machine\.yaml"):
        config.load(str(tmp_path / "own.yaml"))


def test_a_cycle_of_extends_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", {"extends": "b"})
    write(tmp_path, "b.yaml", {"extends": "a"})
    with pytest.raises(UserError, match=r"a\.yaml: extends itself through a\.yaml -> b\.yaml"):
        config.load(str(tmp_path / "a.yaml"))


def test_a_missing_base_names_the_file_that_extends_it(tmp_path: Path) -> None:
    child = write(tmp_path, "a.yaml", {"extends": "quikstart"})
    with pytest.raises(UserError, match=r"a\.yaml: extends: .*did you mean 'quickstart'"):
        config.load(child)


def test_a_missing_config_suggests_the_nearest_shipped_one() -> None:
    with pytest.raises(UserError, match="'quikstart'; did you mean 'quickstart'"):
        config.load("quikstart")


@pytest.mark.parametrize(
    "content", ["[1, 2]", "just text", "a: b: c", "a: !!python/name:os.system x"]
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: str) -> None:
    path = write(tmp_path, "bad.yaml", content)
    with pytest.raises(UserError, match=r"bad\.yaml"):
        config.load(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"\xff\xfe\x00run")
    with pytest.raises(UserError, match=r"bad\.yaml: cannot be read"):
        config.load(str(path))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("2E+3", 2000.0),
        (".5", 0.5),
        ("-3", -3),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("", None),
        ("null", None),
        ("true", True),
        ("[a, 1e-3]", ["a", 1e-3]),
    ],
)
def test_scalars_mean_what_a_person_means(text: str, value: Any) -> None:
    assert tree.override({}, f"key={text}") == {"key": value}


# ------------------------------------------------------------------------------------ overrides


def test_overrides_set_values_at_any_depth() -> None:
    settings = with_("run.steps=3", "optimizer.lr=1e-4", "sft.batch_size=4", "evaluation=")
    assert settings.run.steps == 3
    assert settings.optimizer.lr == 1e-4
    assert settings.sft is not None and settings.sft.batch_size == 4
    assert settings.evaluation is None


def test_entries_of_a_list_go_by_name_or_position() -> None:
    settings = with_("rewards.box_iou.weight=2", "rewards.0.weight=3", "data.train.shapes.weight=4")
    assert [r.weight for r in settings.rewards] == [3, 2]
    assert settings.data.train[0].weight == 4


def test_a_bare_name_takes_options() -> None:
    assert with_("rewards.format.options.strict=true").rewards[0].options == {"strict": True}
    settings = with_("engine=hf", "engine.options.batch=2")
    assert (settings.engine.name, settings.engine.options) == ("hf", {"batch": 2})


def test_a_schedule_can_be_given_as_an_override() -> None:
    weight = with_("rewards.box_iou.weight={schedule: [[0, 0.5], [0.5, 1]]}").rewards[1].weight
    assert weight == {"schedule": [(0, 0.5), (0.5, 1)]}


def test_an_override_leaves_the_tree_it_was_given() -> None:
    before = json.dumps(SMALL)
    tree.override(SMALL, "rewards.box_iou.options.threshold=0.9")
    assert json.dumps(SMALL) == before


def test_an_override_touches_one_place_of_a_yaml_anchor(tmp_path: Path) -> None:
    text = "model: {path: x}\nrewards: [format]\ndata: {train: [&s {card: shapes}]}\n"
    path = write(tmp_path, "a.yaml", text + "evaluation: {sources: [*s]}\n")
    settings = config.load(path, ["data.train.0.limit=5"])
    assert settings.evaluation is not None
    assert (settings.data.train[0].limit, settings.evaluation.sources[0].limit) == (5, None)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("run.steps", "write key=value"),
        ("=3", "write key=value"),
        ("run..steps=3", "write key=value"),
        ("run.steps=[", "not valid YAML"),
        ("model.path.x=3", "path is the single value 'somewhere', it has no 'x'"),
        ("rewards.box_iuo.weight=3", "no entry 'box_iuo'; did you mean 'box_iou'"),
        ("rewards.7.weight=3", "no entry '7'; there are: format, box_iou"),
        ("rewards.box_iou=&a [*a]", "an alias that is a part of itself"),
    ],
)
def test_an_override_that_fits_nothing_is_refused(override: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        with_(override)
    assert expected in str(caught.value)


KEYS = st.sampled_from(
    "run steps rewards 0 1 box_iou weight schedule model path build text data train shapes "
    "algorithm options sft evaluation sources card name optimizer betas".split()
)
VALUES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["[]", "{}", "1", "1e400", "-0", "{a: 1}", "[[0, 1]]", "&a [*a]", "!!int x", "~"]
    ),
)


@given(st.one_of(st.text(max_size=30), st.tuples(st.lists(KEYS, max_size=5), VALUES)))
def test_no_override_gives_anything_but_a_config_or_a_clear_refusal(
    override: str | tuple[list[str], str],
) -> None:
    if isinstance(override, tuple):
        override = f"{'.'.join(override[0])}={override[1]}"
    try:
        assert with_(override).model_dump_json()
    except UserError as error:
        assert str(error)


# ------------------------------------------------------------------------------------ JSON schema


def test_the_json_schema_accepts_every_shipped_config_as_written() -> None:
    schema = json.loads(config.schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in tree.shipped().values():
        validator.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "wrong", [{"rum": {}}, {"run": {"stepz": 1}}, {"run": {"steps": "x"}}, {"rewards": [{"w": 1}]}]
)
def test_the_json_schema_refuses_what_the_config_refuses(wrong: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, json.loads(config.schema()))


def test_the_json_schema_explains_its_keys() -> None:
    schema = json.loads(config.schema())
    assert (
        "completions per prompt"
        in schema["$defs"]["RolloutConfig"]["properties"]["group_size"]["description"]
    )
    assert "extends" in schema["properties"]


def test_a_resolved_config_loads_to_itself() -> None:
    settings = with_("rewards.box_iou.weight={schedule: [[0, 0.5], [0.5, 1]]}", "sft={}")
    assert config.parse(json.loads(settings.model_dump_json())) == settings


def test_every_key_has_a_description() -> None:
    tree_ = json.loads(config.schema())
    sections = {"config": tree_, **tree_["$defs"]}
    keys = {
        f"{name}.{key}": value
        for name, section in sections.items()
        for part in (section, *section.get("anyOf", ()))
        for key, value in part.get("properties", {}).items()
    }
    assert len(keys) > 100
    # pydantic leaves out a description that is the one of the section itself
    of_section = {
        f"#/$defs/{name}": section.get("description") for name, section in sections.items()
    }
    described = {
        path: value.get("description") or of_section.get(value.get("$ref"))
        for path, value in keys.items()
    }
    assert [path for path, text in described.items() if not text] == []


# ---------------------------------------------------------------------------------- YAML, parts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run: {}\nmodel: {}\nrun: {}\n", "line 3: key 'run' is already set in line 1"),
        (
            "run:\n  steps: 1\n  seed: 2\n  steps: 3\n",
            "line 4: key 'steps' is already set in line 2",
        ),
        ("optimizer: {lr: 1, lr: 2}", "line 1: key 'lr' is already set in line 1"),
    ],
)
def test_a_key_that_is_set_twice_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, "my.yaml", text)
    with pytest.raises(UserError) as caught:
        config.load(path)
    assert str(caught.value) == f"{path}, {expected}"


def test_a_key_over_a_merged_one_is_not_set_twice() -> None:
    text = "{a: &a {x: 1, y: 1}, b: &b {<<: *a, y: 2}, c: {<<: *b, y: 3}}"
    assert tree.override({}, f"k={text}")["k"] == {
        "a": {"x": 1, "y": 1},
        "b": {"x": 1, "y": 2},
        "c": {"x": 1, "y": 3},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exact", ("exact", {})),
        ("box_iou()", ("box_iou", {})),
        ("box_iou(threshold=0.5, binary=true)", ("box_iou", {"threshold": 0.5, "binary": True})),
        (
            "my.py:score(names=[a, b], by={x: 1})",
            ("my.py:score", {"names": ["a", "b"], "by": {"x": 1}}),
        ),
        (
            "x(steps=[[0, 1], [2, 3]], text='a, b)')",
            ("x", {"steps": [[0, 1], [2, 3]], "text": "a, b)"}),
        ),
    ],
)
def test_a_part_with_options_in_parentheses(text: str, expected: Any) -> None:
    assert tree.named(text) == expected


@pytest.mark.parametrize("text", ["", "(x=1)", "x(y)", "x(y=1", "x(y=1) z"])
def test_what_is_no_part_with_options_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        tree.named(text)


def test_a_misspelt_verifier_comes_before_the_metric_that_it_leaves_unknown() -> None:
    wrong = tree.override(SMALL, "rewards=[box_iuo]")
    wrong = tree.override(wrong, "evaluation.metric=box_iou")
    assert (
        refusal(wrong)
        == "my.yaml: rewards: no verifier is named 'box_iuo'; did you mean 'box_iou'?"
    )


# ------------------------------------------------------------------------------------ laid over


def test_a_config_is_laid_over_another_and_keys_come_last(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("extends: recipes/r1v\nengine: {name: hf}\n")
    (tmp_path / "over.yaml").write_text("run: {steps: 7}\nrollout: {prompts: 4}\nengine: vllm\n")
    (tmp_path / "last.yaml").write_text("run: {steps: 8}\n")
    over, last = str(tmp_path / "over.yaml"), str(tmp_path / "last.yaml")
    found = config.load(str(tmp_path / "base.yaml"), ["rollout.prompts=6", over, last])
    assert (found.run.steps, found.run.name) == (8, "r1v")
    assert (found.rollout.prompts, found.rollout.group_size) == (6, 8)
    assert found.engine.name == "vllm"


@pytest.mark.parametrize("machine", [n for n in tree.shipped() if n.startswith("machines/")])
def test_a_machine_changes_nothing_of_the_method(machine: str) -> None:
    for recipe in ("recipes/vlm_r1", "recipes/areal"):
        plain, laid = config.load(recipe), config.load(recipe, [machine])
        assert laid.engine.name == "vllm" and laid.model.gradient_checkpointing
        assert (laid.rewards, laid.algorithm, laid.run) == (
            plain.rewards,
            plain.algorithm,
            plain.run,
        )
