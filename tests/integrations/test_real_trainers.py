"""Our adaptors in ms-swift, verl and EasyR1 themselves, each in an environment of its own (nightly)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers.small import loaded
from helpers.text_model import save_text_model

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "adaptors"
SCRIPTS = Path(__file__).parent / "scripts"
TRUTH = {"truth": {"boxes": [[20, 10, 120, 60]]}, "media": {"width": 200, "height": 100}}
RIGHT = "<think>so</think><answer>[20, 10, 120, 60]</answer>"
HALF = "<think>so</think><answer>[20, 10, 70, 60]</answer>"
LOOSE = "<answer>[20, 10, 120, 60]</answer>"
SWIFT = """
import vlmrl.system.torchvision_shim
from swift.pipelines import rlhf_main
rlhf_main()
"""

pytestmark = pytest.mark.nightly


def test_ms_swift_trains_with_our_rewards(tmp_path: Path) -> None:
    save_text_model(tmp_path / "model")
    asked = {"messages": [{"role": "user", "content": "a box around the dog"}]}
    (tmp_path / "rows.jsonl").write_text(4 * (json.dumps({**asked, **TRUTH}) + "\n"))
    options = {
        "rlhf_type": "grpo", "model": "model", "model_type": "llama", "template": "default",
        "dataset": "rows.jsonl", "split_dataset_ratio": 0, "remove_unused_columns": "false",
        "external_plugins": EXAMPLES / "ms_swift_plugin.py", "reward_funcs": "vlmrl_box",
        "use_vllm": "false", "use_cpu": "true", "torch_dtype": "float32", "tuner_type": "full",
        "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 4,
        "max_steps": 2, "logging_steps": 1, "save_strategy": "no", "report_to": "none",
        "gradient_checkpointing": "false", "output_dir": "out",
    }  # fmt: skip
    flags = [str(part) for key, value in options.items() for part in (f"--{key}", value)]
    run("ms-swift", ["-c", SWIFT, *flags], tmp_path)
    (logged,) = (tmp_path / "out").glob("*/logging.jsonl")
    steps = [row for row in map(json.loads, logged.read_text().splitlines()) if "reward" in row]
    assert [float(step["rewards/box_iou+format/mean"]) for step in steps] == [0.0, 0.0]


def test_verls_reward_loop_pays_what_we_pay(tmp_path: Path) -> None:
    loaded("qwen2_5_vl").processor.tokenizer.save_pretrained(tmp_path / "tokenizer")
    found = json.loads(run("verl", reward_script("verl_rewards.py", tmp_path), tmp_path))
    assert found == pytest.approx([2.0, 1.5, 1.0])


def test_easy_r1s_reward_manager_pays_what_we_pay(tmp_path: Path) -> None:
    loaded("qwen2_5_vl").processor.tokenizer.save_pretrained(tmp_path / "tokenizer")
    found = json.loads(run("easyr1", reward_script("easy_r1_rewards.py", tmp_path), tmp_path))
    assert found["rewards"] == found["overall"] == pytest.approx([2.0, 1.5, 1.0])
    assert found["box_iou"] == pytest.approx([1.0, 0.5, 1.0]) and found["format"] == [1.0, 1.0, 0.0]


def reward_script(name: str, folder: Path) -> Sequence[str]:
    function = str(EXAMPLES / "verl_reward.py")
    texts = [RIGHT, HALF, LOOSE]
    return [str(SCRIPTS / name), str(folder / "tokenizer"), function, json.dumps(TRUTH), *texts]


def run(trainer: str, arguments: Sequence[str], folder: Path) -> str:
    """Run a trainer's Python in its environment; return the last line of its output."""
    python = (
        Path(os.environ.get("VLMRL_TRAINERS", ROOT / ".venv-trainers")) / trainer / "bin/python"
    )
    if not python.exists():
        pytest.skip(f"{trainer} has no environment: `make nightly-trainers` makes it")
    home = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(python), *arguments], cwd=folder, env={**os.environ, **home}, capture_output=True,
        text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip().splitlines()[-1]
