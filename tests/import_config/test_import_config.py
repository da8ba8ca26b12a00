"""`vlmrl import-config`: what runs of other trainers become, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vlmrl.config import parse
from vlmrl.errors import UserError
from vlmrl.features.import_config.convert import import_config

SWIFT = r"""
# a comment
export MODEL=Qwen/Qwen2.5-VL-7B-Instruct
MAX_PIXELS=1003520 \
NPROC_PER_NODE=8 \
swift rlhf \
    --rlhf_type grpo \
    --model ${MODEL} \
    --train_type lora \
    --lora_rank 8 \
    --dataset 'owner/charts#1000' \
    --use_vllm true \
    --vllm_mode server \
    --torch_dtype bfloat16 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 \
    --steps_per_generation 8 \
    --learning_rate 1e-6 \
    --max_steps 200 \
    --warmup_ratio 0.05 \
    --max_completion_length 1024 \
    --reward_funcs accuracy format my_own \
    --num_generations 8 \
    --epsilon_high 0.28 \
    --beta 0.001
"""
EASYR1 = """
data: {train_files: hiyouga/geometry3k@train, max_response_length: 2048, rollout_batch_size: 512}
algorithm: {adv_estimator: grpo, use_kl_loss: true, kl_penalty: low_var_kl, kl_coef: 1.0e-2}
worker:
  actor:
    global_batch_size: 128
    model: {model_path: Qwen/Qwen2.5-VL-7B-Instruct, freeze_vision_tower: true}
    optim: {lr: 1.0e-6}
  rollout: {n: 5, top_p: 0.99}
trainer: {total_epochs: 15, logger: [console, wandb], n_gpus_per_node: 8}
"""
TRL = """
model_name_or_path: Qwen/Qwen2.5-VL-3B-Instruct
dataset_name: data/clevr
loss_type: dr_grpo
scale_rewards: none
per_device_train_batch_size: 4
num_generations: 4
bf16: true
logging_steps: 1
"""
VLM_R1 = r"""
torchrun --nproc_per_node="8" src/open_r1/grpo_jsonl.py \
    --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct \
    --data_file_paths a.jsonl:b.jsonl --image_folders coco:lisa \
    --per_device_train_batch_size 8 --gradient_accumulation_steps 2 --num_generations 8 \
    --freeze_vision_modules true --bf16
"""


def imported(folder: Path, name: str, text: str, **more: object):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    found = import_config(path, **more)
    whole = {"rewards": ["format"], **yaml.safe_load(found.as_yaml(name))}
    return parse(whole, name), {note.name: note for note in found.notes}, found.trainer


def test_a_script_of_ms_swift(tmp_path: Path) -> None:
    config, notes, trainer = imported(tmp_path, "run.sh", SWIFT)
    assert trainer == "ms-swift"
    assert config.model.path == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert config.model.lora and config.model.lora.rank == 8
    assert (config.model.dtype, config.model.max_pixels) == ("bfloat16", 1003520)
    # 2 on each of 8 GPUs, 8 micro-batches: 128 completions, of which 64 make an update.
    assert (config.rollout.prompts, config.rollout.group_size) == (16, 8)
    assert config.optimizer.minibatches == 2
    assert (config.run.steps, config.optimizer.warmup_steps) == (200, 10)
    assert (config.optimizer.lr, config.optimizer.lr_schedule) == (1e-6, "linear")
    assert config.algorithm.options == {"clip_high": 0.28, "kl": 0.001}
    assert config.engine.name == "vllm_server"
    assert [reward.verifier for reward in config.rewards] == ["math", "format"]
    assert "my_own" in notes["reward_funcs"].why and "TRL's form" in notes["reward_funcs"].why
    (source,) = config.data.train
    assert (source.options["path"], source.limit) == ("hf://datasets/owner/charts", 1000)


def test_a_file_of_easyr1(tmp_path: Path) -> None:
    config, notes, trainer = imported(tmp_path, "run.yaml", EASYR1)
    assert trainer == "easyr1"
    assert (config.rollout.prompts, config.rollout.group_size) == (512, 5)
    assert (config.rollout.max_tokens, config.rollout.top_p) == (2048, 0.99)
    assert config.optimizer.minibatches == 4 and config.engine.name == "vllm"
    assert config.model.freeze == ["vision"]
    assert config.algorithm.options == {"kl": 0.01, "kl_estimator": "k3", "kl_in_reward": False}
    (source,) = config.data.train
    assert source.options == {"path": "hf://datasets/hiyouga/geometry3k", "layout": "easyr1"}
    assert source.split == "train"
    assert not notes["trainer.total_epochs"].keys and "(rewards)" in notes


def test_settings_of_trl(tmp_path: Path) -> None:
    config, notes, trainer = imported(tmp_path, "run.yaml", TRL, gpus=2)
    assert trainer == "trl"
    assert config.algorithm.name == "dr_grpo" and config.algorithm.options == {"scale": "none"}
    assert (config.rollout.prompts, config.rollout.group_size) == (2, 4)
    assert (config.model.dtype, config.engine.name) == ("bfloat16", "hf")
    assert not notes["logging_steps"].keys


def test_corrections_of_trl(tmp_path: Path) -> None:
    sampled = (
        "vllm_importance_sampling_mode: sequence_mask\nvllm_importance_sampling_clip_max: 3.0\n"
    )
    text = f"{TRL}{sampled}vllm_importance_sampling_clip_min: 0.5\noff_policy_mask_threshold: 0.4\n"
    config, *_ = imported(tmp_path, "run.yaml", text)
    options = {"correction": "decoupled", "correction_level": "sequence", "importance_cap": 3.0}
    options |= {"importance_floor": 0.5, "off_policy_threshold": 0.4, "scale": "none"}
    assert config.algorithm.options == options


@pytest.mark.parametrize(
    ("loss", "name", "aggregation"),
    [("luspo", "luspo", None), ("dr_grpo", "gspo", "constant"), ("dapo", "gspo", "token")],
)
def test_a_ratio_of_completions_of_trl(
    tmp_path: Path, loss: str, name: str, aggregation: str | None
) -> None:
    text = TRL.replace("loss_type: dr_grpo", f"loss_type: {loss}")
    config, *_ = imported(tmp_path, "run.yaml", f"{text}importance_sampling_level: sequence\n")
    assert config.algorithm.name == name
    options = config.algorithm.options
    assert options.get("aggregation") == aggregation
    assert (options["clip_low"], options["clip_high"]) == (0.2, 0.2)


def test_a_script_of_vlm_r1(tmp_path: Path) -> None:
    config, _, trainer = imported(tmp_path, "run.sh", VLM_R1)
    assert trainer == "vlm-r1"
    assert [source.options for source in config.data.train] == [
        {"path": "a.jsonl", "layout": "vlm_r1", "root": "coco"},
        {"path": "b.jsonl", "layout": "vlm_r1", "root": "lisa"},
    ]
    assert (config.rollout.prompts, config.model.freeze) == (16, ["vision"])


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = f"X=$(touch {made})\n`touch {made}`\nswift rlhf --rlhf_type grpo --model $(touch {made}) --seed $X"
    path = tmp_path / "run.sh"
    path.write_text(text)
    notes = {note.name: note for note in import_config(path).notes}
    assert not made.exists()
    assert not notes["model"].keys and not notes["seed"].keys
    assert "add `model.path`" in notes["(model)"].why


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "no command"), ("echo --a 1 --b 2", "none of trl"), ("ls -l", "no command")],
)
def test_what_is_no_run_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        import_config(path)
    with pytest.raises(UserError, match=r"absent\.yaml"):
        import_config(tmp_path / "absent.yaml")
