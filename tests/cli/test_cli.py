"""The command line: what is printed where, exit codes, and what stays unimported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from vlmrl import cli, plugins
from vlmrl.config import tree
from vlmrl.errors import UserError
from vlmrl.features.check.commands import KINDS

RIGHT = '<think>a box</think><answer>{"bbox_2d": [10, 10, 50, 50]}</answer>'
ROW = {
    "completion": RIGHT,
    "truth": {"boxes": [{"box": [10, 10, 50, 50]}]},
    "media": {"width": 100, "height": 80},
}


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture()
def vlmrl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ran]:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["vlmrl", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        code = exit_.value.code
        return Ran(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


def write_rows(*rows: object) -> Path:
    path = Path("rows.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# ------------------------------------------------------------------------------------------ help


COMMANDS = (
    ",init,train,doctor,plan,eval,try,serve,score,verify,report,export,list,data,data check,data explain,"
    "data rate,data list,mixture,mixture fit,config,config show,config validate,config schema"
)


@pytest.mark.parametrize("command", COMMANDS.split(","))
def test_every_command_explains_itself(vlmrl: Callable[..., Ran], command: str) -> None:
    ran = vlmrl(*command.split(), "--help")
    assert ran.code == 0
    assert f"Usage: vlmrl {command}".rstrip() in ran.out


LIGHT = """
--help
--version
list configs
list verifiers
list truths
list cards
list families
list engines
list algorithms
list trackers
data list
config show quickstart
config validate quickstart
config schema
train quickstart run.stepz=1
train quickstart rewards.box_iou.options.treshold=1
train quickstart algorithm=grop
score format --in rows.jsonl
"""


def test_light_commands_import_no_torch(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW))
    program = f"""
import sys
from vlmrl import cli
for line in {LIGHT.strip().splitlines()!r}:
    sys.argv = ["vlmrl", *line.split()]
    try:
        cli.main()
    except SystemExit:
        pass
    assert not {{"torch", "transformers"}} & set(sys.modules), line
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_help_imports_neither_models_nor_numbers(tmp_path: Path) -> None:
    program = """
import sys
from vlmrl import cli
sys.argv = ["vlmrl", "--help"]
try:
    cli.main()
except SystemExit:
    pass
heavy = {"torch", "transformers", "numpy", "PIL", "scipy", "pydantic.main", "yaml"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_the_version_is_printed(vlmrl: Callable[..., Ran]) -> None:
    assert vlmrl("--version").out == "vlmrl 0.1.0\n"


# ------------------------------------------------------------------------------------ exit codes


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train quikstart", "no config file and no shipped config is named 'quikstart'"),
        (
            "train quickstart run.stepz=1",
            "quickstart: run.stepz: unknown key; did you mean 'steps'",
        ),
        ("train quickstart run.steps", "override 'run.steps': write key=value"),
        ("train quickstart algorithm=grop", "no algorithm is named 'grop'; did you mean 'grpo'"),
        ("train quickstart engine=hff", "no engine is named 'hff'"),
        ("train quickstart data.train.0.card=shape", "no card is named 'shape'; did you mean"),
        ("train quickstart data.train.0.options.sise=8", "card 'shapes' has no option 'sise'"),
        ("train quickstart rewards.format.verifier=formt", "did you mean 'format'"),
        ("train quickstart algorithm.options.klx=1", "algorithm 'grpo' has no option 'klx'"),
        ("train quickstart model.build.family=qwen", "no family is named 'qwen'"),
        ("config validate nowhere.yaml", "no config file and no shipped config is named"),
        ("score formt --in rows.jsonl", "no verifier is named 'formt'; did you mean 'format'"),
        ("score format --in nowhere.jsonl", "nowhere.jsonl: cannot be read"),
        ("score format --in rows.jsonl -o x", "override 'x': write key=value"),
        ("verify nowhere.py:score", "'nowhere.py': there is no such file"),
        ("report .", ".: expected the folder of a run"),
        ("data check nowhere.jsonl", "nowhere.jsonl"),
        (
            "data check shapes task=counting",
            "only a config has keys; a card takes -o task=counting",
        ),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    vlmrl: Callable[..., Ran], command: str, expected: str
) -> None:
    ran = vlmrl(*command.split())
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error: ") and ran.err.count("\n") == 1
    assert expected in ran.err
    assert list(Path().iterdir()) == []  # nothing half-written


@pytest.mark.parametrize("command", ["train", "list nothing", "nothing", "score format --in"])
def test_wrong_usage_is_exit_code_2(vlmrl: Callable[..., Ran], command: str) -> None:
    ran = vlmrl(*command.split())
    assert (
        ran.code == 2
        and ran.err.startswith("error: ")
        and ran.err.count("\n") == 1
        and ran.out == ""
    )


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["vlmrl", "report", str(tmp_path), "--debug"])
    with pytest.raises(UserError, match="expected the folder of a run"):
        cli.main()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
@pytest.mark.parametrize("engine", ["vllm", "vllm_server"])
def test_without_vllm_its_engines_say_how_to_get_it(vlmrl: Callable[..., Ran], engine: str) -> None:
    ran = vlmrl("train", "quickstart", "run.dir=here", "sft=null", f"engine.name={engine}")
    assert ran.code == 2
    assert ran.err.startswith(
        "error: the vllm engines need vLLM: pip install 'vlmrl-perception[vllm]'"
    )
    assert len(ran.err.splitlines()) == 1


def test_a_fault_of_ours_is_exit_code_1_without_a_traceback(vlmrl: Callable[..., Ran]) -> None:
    Path("bad.py").write_text("def score(answer): pass\nscore.__signature__ = 3\n")
    ran = vlmrl("verify", "bad.py:score")
    assert ran.code == 1
    assert ran.err.startswith("failed: TypeError: ") and "Traceback" not in ran.err


@pytest.mark.parametrize("at", ["vlmrl.cli.app", "vlmrl.assemble.validate"])
def test_ctrl_c_while_importing_is_one_line_and_exit_code_130(tmp_path: Path, at: str) -> None:
    program = f"""
import sys
class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == {at!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from vlmrl.cli import main
sys.argv = ["vlmrl", "train", "quickstart"]
main()
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr, ran.stdout) == (130, "interrupted\n", "")


# --------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    "what", ["verifiers", "cards", "layouts", "families", "algorithms", "engines"]
)
def test_list_names_every_part_with_its_options(vlmrl: Callable[..., Ran], what: str) -> None:
    kind = KINDS[what]
    out = vlmrl("list", what).out
    for name in plugins.names(kind):
        assert f"\n{name}: " in "\n" + out
        for key in plugins.options_of(plugins.load(kind, name)):
            assert f"    {key}: " in out


def test_list_names_every_shipped_config(vlmrl: Callable[..., Ran]) -> None:
    out = vlmrl("list", "configs").out
    assert [line.split(":")[0] for line in out.splitlines()] == sorted(tree.shipped())


def test_config_show_prints_what_will_run(vlmrl: Callable[..., Ran]) -> None:
    shown = json.loads(vlmrl("config", "show", "quickstart", "run.steps=3").out)
    assert shown["run"]["steps"] == 3
    assert shown["optimizer"]["max_grad_norm"] == 1.0  # a default


def test_data_check_of_a_config_takes_keys_and_says_who_asks_for_a_split(
    vlmrl: Callable[..., Ran],
) -> None:
    Path("my.yaml").write_text("extends: quickstart\n")
    few = ["data.train.0.options.count=3", "evaluation.limit=2"]
    ran = vlmrl("data", "check", "my.yaml", *few)
    assert ran.code == 0
    assert [line for line in ran.out.splitlines() if line.startswith("shapes")] == [
        "shapes train: 3 rows, 3 good, 0 bad",
        "shapes test: 2 rows, 2 good, 0 bad",
    ]
    Path("mine").mkdir()
    Path("mine/train.jsonl").write_text("{}\n")
    ran = vlmrl("data", "check", "my.yaml", "data.train=[{card: records, options: {path: mine}}]")
    assert ran.code == 2 and ran.err.startswith("error: evaluation: ")
    assert (
        "Without evaluation.sources the split 'test' of the training sources is evaluated"
        in ran.err
    )


def test_score_prints_a_line_for_every_row(vlmrl: Callable[..., Ran]) -> None:
    path = write_rows(ROW, {**ROW, "completion": "nothing"})
    right, wrong = map(json.loads, vlmrl("score", "box_iou", "--in", str(path)).out.splitlines())
    assert set(right) == {"score", "fault", "parts", "answer", "note"}
    assert (right["score"], wrong["score"]) == (1.0, 0.0)


def test_score_writes_a_file(vlmrl: Callable[..., Ran]) -> None:
    path = write_rows(ROW)
    assert vlmrl("score", "box_iou", "--in", str(path), "--out", "scores.jsonl").out == ""
    assert json.loads(Path("scores.jsonl").read_text())["score"] == 1.0


def test_score_runs_a_function_of_the_user(vlmrl: Callable[..., Ran]) -> None:
    Path("mine.py").write_text("def score(answer, bonus=0.0): return 0.25 + bonus\n")
    path = write_rows(ROW)
    ran = vlmrl("score", "mine.py:score", "--in", str(path), "-o", "bonus=0.5")
    assert json.loads(ran.out)["score"] == 0.75


@pytest.mark.slow
def test_verify_says_yes_or_no(vlmrl: Callable[..., Ran]) -> None:
    Path("mine.py").write_text("def score(text): return min(1.0, len(text) / 200)\n")
    ran = vlmrl("verify", "mine.py:score", "--out", "report.json")
    assert ran.code == 1 and "failed" in ran.out
    assert json.loads(Path("report.json").read_text())["passed"] is False
    assert vlmrl("verify", "exact").code == 0


def test_the_shipped_wheel_has_an_entry_point() -> None:
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="console_scripts", name="vlmrl")
    assert entry.load() is cli.main
