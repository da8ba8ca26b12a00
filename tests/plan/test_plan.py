"""`vlmrl plan` from the command line: its verdict, its best layout as keys, and what it refuses."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.runs import TINY
from vlmrl import cli
from vlmrl.config import load
from vlmrl.features.plan.layouts import layout_of

Plan = Callable[..., tuple[int, str, str]]
SMALL = ("quickstart", *TINY, "sft=null", "evaluation=null", "rollout.prompts=4")
PROMPT = ("--pixels", "3136", "--text-tokens", "20")


@pytest.fixture()
def plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Plan:
    """Run the command in an empty folder; return its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vlmrl", "plan", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        code = exit_.value.code
        return (code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


@pytest.mark.slow
def test_more_processes_than_prompts_are_what_breaks_first(plan: Plan) -> None:
    code, out, _ = plan(*SMALL, "--gpus", "8", *PROMPT, "--show", "0")
    verdicts = [line.split()[:2] for line in out.splitlines() if line.startswith(("FAIL", "warn"))]
    assert code == 1 and "breaks first: prompts" in out
    assert verdicts[0] == ["FAIL", "prompts"] and "change: rollout.prompts=8" in out


@pytest.mark.slow
def test_a_family_that_vllm_cannot_serve_is_planned_with_engine_hf(plan: Plan) -> None:
    model = ["model.build.family=voxtral", "engine.name=vllm"]
    code, out, _ = plan(*SMALL, *model, "--gpus", "2", *PROMPT, "--show", "3")
    assert code == 1
    assert re.search(r"FAIL  engine .*Mistral's own format.*; change: engine.name=hf\n", out)
    (keys,) = filter(_keys, out.splitlines())
    assert "engine.name=hf" in keys


@pytest.mark.slow
def test_the_fastest_layout_is_first_and_its_keys_make_it(plan: Plan) -> None:
    code, out, _ = plan(*SMALL, "--gpus", "4", *PROMPT, "--show", "1000")
    lines = out.splitlines()
    rows = lines[lines.index(next(x for x in lines if "completions/s  s a step" in x)) + 1 :]
    rates = [float(row.split()[0]) for row in rows[: rows.index(next(filter(_keys, rows)))]]
    assert code == 0 and len(rates) > 5
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1]
    keys = next(filter(_keys, rows)).split(": ")[1].split()
    assert rows[0].endswith("  " + str(layout_of(load(SMALL[0], [*SMALL[1:], *keys]), 4)))


def _keys(line: str) -> bool:
    return line.startswith("the first, as keys: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu", "h10"), "--gpu: there is no 'h10'; did you mean 'h100'"),
        (("--assume", "mfu=1"), "--assume: there is no 'mfu'"),
        (
            ("distributed.strategy=fsdp2", "distributed.replicas=3"),
            "distributed.replicas: expected a divisor of the 8 GPUs that train, with at least 2 for each "
            "replica, got 3",
        ),
        (
            ("model={path: Qwen/Qwen2.5-VL-3B-Instruct, quantization: nf4, lora: {rank: 8}}",),
            "model.quantization: bitsandbytes needs real weights",
        ),
        (("model={path: mine/checkpoint}",), "the architecture of 'mine/checkpoint' is not among"),
    ],
)
def test_what_is_not_planned_is_refused_in_one_line(
    plan: Plan, arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = plan(*SMALL, *arguments, *PROMPT)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and said in err
