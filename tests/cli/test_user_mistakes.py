"""Mistakes that users make, each answered by one right line: where it is, what is wrong, what to do.

Every mistake goes through the command line as `vlmrl` starts it, in this process. `MISTAKES` is the one
table of whole sentences; other tests assert which keys a message names, through `helpers/messages.py`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from helpers.messages import require_named, require_refusal
from vlmrl import cli
from vlmrl.errors import UserError
from vlmrl.runs import run_lock

BOX = {"id": "a", "images": ["a.png"], "question": "Where?", "answer": "[[1, 1, 5, 5]]"}
BOX |= {"boxes": [[1, 1, 5, 5]], "width": 20, "height": 10}
SCORED = {"completion": "<answer>B</answer>", "truth": {"choice": "B"}}
CONFIG = """
model: {build: {family: qwen2_5_vl}}
data:
  train:
    - {card: records, options: {path: rows}}
rewards: [box_iou]
evaluation: null
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a user has it: a config, rows with an image, completions to score, a run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    Image.new("RGB", (20, 10)).save(tmp_path / "rows" / "a.png")
    (tmp_path / "rows" / "train.jsonl").write_text(json.dumps(BOX) + "\n")
    (tmp_path / "scored.jsonl").write_text(json.dumps(SCORED) + "\n")
    (tmp_path / "my.yaml").write_text(CONFIG)
    (tmp_path / "runs/old/checkpoints/step-5").mkdir(parents=True)
    (tmp_path / "own.py").write_text("def score(answer, truht):\n    return 1.0\n")
    return tmp_path


VALIDATE = ("config", "validate", "my.yaml")
TRAIN = "data.train.0"
MISTAKES: list[tuple[str, Sequence[str], dict[str, str], str]] = [
    (
        "a command",
        ("trian", "my.yaml"),
        {},
        "No such command 'trian'. Did you mean 'train'?; see `vlmrl --help`",
    ),
    (
        "an option of a command",
        ("report", "runs/old", "--opne"),
        {},
        "No such option: --opne; see `vlmrl report --help`",
    ),
    (
        "a config that is not there",
        ("train", "mine.yaml"),
        {},
        "no config file and no shipped config is named 'mine.yaml'",
    ),
    ("a shipped config", ("train", "quikstart"), {}, "'quikstart'; did you mean 'quickstart'?"),
    (
        "a section",
        (*VALIDATE, "optimiser.lr=1"),
        {},
        "optimiser: unknown key; did you mean 'optimizer'?",
    ),
    ("a key", (*VALIDATE, "optimizer.lrr=1"), {}, "optimizer.lrr: unknown key; did you mean 'lr'?"),
    ("a text for a number", (*VALIDATE, "optimizer.lr=fast"), {}, "optimizer.lr: "),
    ("a number out of range", (*VALIDATE, "rollout.group_size=0"), {}, "rollout.group_size: "),
    (
        "an override without a value",
        (*VALIDATE, "run.steps"),
        {},
        "override 'run.steps': write key=value",
    ),
    ("an override into a value", (*VALIDATE, "run.steps.max=3"), {}, "run.steps"),
    (
        "an entry of a list",
        (*VALIDATE, "rewards.box_iuo.weight=2"),
        {},
        "no entry 'box_iuo'; did you mean 'box_iou'?",
    ),
    (
        "a key twice",
        VALIDATE,
        {"my.yaml": CONFIG + "rewards: [format]\n"},
        "my.yaml, line 8: key 'rewards' is already set in line 6",
    ),
    (
        "YAML with a tab",
        VALIDATE,
        {"my.yaml": "run:\n\tsteps: 3\n"},
        "indent with spaces, not with tabs",
    ),
    (
        "a question without quotes",
        VALIDATE,
        {"my.yaml": "data: {train: [{card: auto, options: {path: a, question: Is it red?}}]}\n"},
        "my.yaml, line 1: not valid YAML: expected ',' or '}', but got '?': data: {train: [{card: auto, "
        "options: {path: a, question: Is it red?}}]}; put a text with `?` or `: ` in it in quotes",
    ),
    (
        "a config of the folder",
        ("config", "validate", "minee.yaml"),
        {"mine.yaml": CONFIG},
        "is named 'minee.yaml'; did you mean 'mine.yaml'?",
    ),
    (
        "a config that is like no other",
        ("config", "validate", "elsewhere.yaml"),
        {"mine.yaml": CONFIG},
        "holds mine.yaml, my.yaml; `vlmrl list configs` lists the",
    ),
    ("an empty config", VALIDATE, {"my.yaml": ""}, "my.yaml: expected a mapping, got NoneType"),
    (
        "a config without data",
        VALIDATE,
        {"my.yaml": "model: {path: ./x}\nrewards: [exact]\n"},
        "data: this key is required",
    ),
    (
        "a parent that is not there",
        VALIDATE,
        {"my.yaml": "extends: quick\n"},
        "my.yaml: extends: no config file",
    ),
    ("a verifier", (*VALIDATE, "rewards=[box_iu]"), {}, "'box_iu'; did you mean 'box_iou'?"),
    (
        "an option of a verifier",
        (*VALIDATE, "rewards=[{verifier: box_iou, options: {treshold: 1}}]"),
        {},
        "'treshold'; did you mean 'threshold'?",
    ),
    (
        "two rewards of one name",
        (*VALIDATE, "rewards=[box_iou, box_iou]"),
        {},
        "two rewards are named 'box_iou': give one of them a `name`",
    ),
    (
        "two keys for one answer",
        (
            *VALIDATE,
            "rewards=[{name: a, verifier: regression, options: {key: a}}, "
            "{name: b, verifier: regression, options: {key: b}}]",
        ),
        {},
        "under two keys, 'a' and 'b': give both the same key",
    ),
    (
        "a template",
        (*VALIDATE, f"{TRAIN}.template=think_anser"),
        {},
        "source 'records': no template is named 'think_anser'; did you mean 'think_answer'?",
    ),
    (
        "a tag of an own template",
        (*VALIDATE, f"{TRAIN}.template={{tags: {{think: needed}}}}"),
        {},
        "template.tags.think: expected required, optional",
    ),
    (
        "a file of a template",
        (*VALIDATE, f"{TRAIN}.template=mine.yaml"),
        {},
        "source 'records': mine.yaml: cannot be read",
    ),
    ("an algorithm", (*VALIDATE, "algorithm=gpro"), {}, "'gpro'; did you mean 'grpo'?"),
    ("an engine", (*VALIDATE, "engine=vlm"), {}, "'vlm'; did you mean 'vllm'?"),
    ("a tracker", (*VALIDATE, "tracking.wandbb=true"), {}, "'wandbb'; did you mean 'wandb'?"),
    (
        "a family",
        (*VALIDATE, "model.build.family=qwen25_vl"),
        {},
        "'qwen25_vl'; did you mean 'qwen2_5_vl'?",
    ),
    ("a card", (*VALIDATE, f"{TRAIN}.card=recrods"), {}, "'recrods'; did you mean 'records'?"),
    (
        "a card without its path",
        (*VALIDATE, f"{TRAIN}.options={{}}"),
        {},
        "card 'records': option 'path' is required",
    ),
    (
        "a folder of data",
        (*VALIDATE, f"{TRAIN}.options.path=./data"),
        {},
        "source 'records', option 'path': there is no file or folder './data'",
    ),
    (
        "a metric",
        (*VALIDATE, "evaluation={metric: rewrad}"),
        {},
        "evaluation.metric: there is no metric 'rewrad'; did you mean 'reward'?",
    ),
    (
        "a model",
        (*VALIDATE, "model={path: ./nowhere}"),
        {},
        "model.path: there is no file or folder",
    ),
    (
        "a run folder as model",
        (*VALIDATE, "model={path: runs/old}"),
        {},
        "use one of its checkpoints, e.g. runs/old/checkpoints/step-5",
    ),
    (
        "a checkpoint to resume",
        (*VALIDATE, "resume=runs/old/checkpoints/step-9"),
        {},
        "resume: expected never, auto or a checkpoint folder, got 'runs/old/checkpoints/step-9'",
    ),
    (
        "groups that do not divide",
        (*VALIDATE, "rollout.prompts=3", "optimizer.minibatches=2"),
        {},
        "rollout.prompts (3) must be a multiple of optimizer.minibatches (2)",
    ),
    (
        "a cut of a split",
        (*VALIDATE, f"{TRAIN}.split=train[0"),
        {},
        "split 'train[0': write a name, name[start:stop] or name[start%:stop%]",
    ),
    (
        "a cut that leaves nothing",
        (*VALIDATE, f"{TRAIN}.split=train[50%:20%]"),
        {},
        "split 'train[50%:20%]': expected start < stop, got no row",
    ),
    (
        "a weight",
        (*VALIDATE, "rewards=[{verifier: box_iou, weight: heavy}]"),
        {},
        "rewards.0.weight: Input should be a valid number",
    ),
    (
        "a split",
        ("data", "check", "rows:vall"),
        {},
        "rows: no file for split 'vall'; there are: train.jsonl",
    ),
    (
        "a row that is there not",
        ("data", "explain", "rows", "--row", "7"),
        {},
        "rows train has rows 0 to 0, not 7",
    ),
    (
        "a column",
        (
            "data",
            "check",
            "rows/train.jsonl",
            "-o",
            "columns={image: img, question: question, answer: answer}",
        ),
        {},
        "columns.image: no column 'img'; did you mean 'images'?",
    ),
    (
        "boxes without a space",
        ("data", "check", "rows/train.jsonl", "-o", "columns={question: question, boxes: boxes}"),
        {},
        "box_space must say in which space they are",
    ),
    (
        "an option of a card",
        ("data", "check", "shapes", "-o", "taks=counting"),
        {},
        "'taks'; did you mean 'task'?",
    ),
    (
        "an override of a card",
        ("data", "check", "shapes", "task=counting"),
        {},
        "'task=counting': only a config has keys; a card takes -o task=counting",
    ),
    (
        "a file to score",
        ("score", "choice", "--in", "score.jsonl"),
        {},
        "score.jsonl: cannot be read: No such file",
    ),
    (
        "a row that is no JSON",
        ("score", "choice", "--in", "scored.jsonl"),
        {"scored.jsonl": "{'a': 1}\n"},
        "scored.jsonl:1: not valid JSON",
    ),
    (
        "a key of a row",
        ("score", "choice", "--in", "scored.jsonl"),
        {"scored.jsonl": '{"completion": "B", "truht": {}}\n'},
        "scored.jsonl:1: unknown key 'truht'; did you mean 'truth'?",
    ),
    (
        "a kind of truth",
        ("score", "choice", "--in", "scored.jsonl"),
        {"scored.jsonl": '{"completion": "B", "truth": {"chioce": "B"}}\n'},
        "scored.jsonl:1: truth has no key 'chioce'; did you mean 'choice'?",
    ),
    (
        "a span that runs backwards",
        ("score", "temporal_iou", "--in", "scored.jsonl"),
        {"scored.jsonl": '{"completion": "B", "truth": {"spans": [[9, 3]]}}\n'},
        "scored.jsonl:1: truth.spans: expected start <= end",
    ),
    (
        "a function of one's own",
        ("verify", "own.py:score"),
        {},
        "asks for 'truht', which nobody passes",
    ),
    (
        "a file of one's own",
        ("verify", "owm.py:score"),
        {},
        "verifier 'owm.py': there is no such file",
    ),
    (
        "a name in a file of one's own",
        ("verify", "own.py:scores"),
        {},
        "own.py has no 'scores'; did you mean 'score'?",
    ),
    ("a part to list", ("list", "verifier"), {}, "'verifier' is not one of 'verifiers'"),
    (
        "a forgotten option",
        ("eval", "runs/old"),
        {},
        "vlmrl eval: expected --data or --benchmark, got neither; see `vlmrl eval --help`",
    ),
    ("a run without a config", ("eval", "runs/old", "--data", "rows:train"), {}, "runs/old"),
    (
        "a verifier of another truth",
        ("verify", "choice", "--data", "scored.jsonl"),
        {"scored.jsonl": '{"completion": "B", "truth": {"number": 3}}\n'},
        "choice",
    ),
    ("a report of nothing", ("report", "runs/new"), {}, "runs/new: expected the folder of a run"),
    (
        "a model of the wrong kind",
        (*VALIDATE, "model={path: my.yaml}"),
        {},
        "model.path: expected a checkpoint folder or",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "files", "line"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_a_mistake_is_answered_by_one_line_that_names_it(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    files: dict[str, str],
    line: str,
) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
    code, out, err = ask(monkeypatch, capsys, arguments)
    assert out == ""
    require_refusal(code, err, line)


def ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: Sequence[str]
) -> tuple[object, str, str]:
    monkeypatch.setattr(sys, "argv", ["vlmrl", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return exit_.value.code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"boxes": [[100, 100, 900, 900]]}, ("0..20 x 0..10", "'pixel'")),
        ({"boxes": [[1, 1, 5]]}, ("[1, 1, 5]",)),
        ({"images": ["b.png"]}, ("b.png",)),
        ({"images": ["../own.py"]}, ("own.py",)),
        ({"question": ""}, ("'question'",)),
        ({"width": 99}, ("99x10", "20x10")),
        ({"image_index": 1}, ("truth.image",)),
    ],
)
def test_a_mistake_in_a_row_is_one_line_that_names_the_row(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object],
    keys: Sequence[str],
) -> None:
    (folder / "rows" / "train.jsonl").write_text(json.dumps({**BOX, **change}) + "\n")
    code, out, err = ask(monkeypatch, capsys, ("data", "check", "rows"))
    assert (code, err) == (1, "")
    card, first, second, *_ = out.splitlines()
    assert card == "card records"
    assert first.startswith("bad  a: ")
    require_named(first, *keys)
    require_named(second, "rows train", "0 good", "1 bad")


def test_a_missing_package_is_one_line_with_its_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"id": "a", "audios": ["a.wav"], "question": "What is it?", "answer": "a bell"}
    (folder / "rows" / "train.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    code, _, err = ask(monkeypatch, capsys, ("data", "check", "rows"))
    require_refusal(code, err, "'soundfile'", "'vlmrl-perception[audio]'")


def test_a_run_folder_that_another_run_owns_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_lock.own(folder / "runs/mine"), pytest.raises(UserError) as refused:
        run_lock.own(folder / "runs/mine").__enter__()
    line = str(refused.value)
    assert "\n" not in line
    require_named(line, "runs/mine", str(os.getpid()))
