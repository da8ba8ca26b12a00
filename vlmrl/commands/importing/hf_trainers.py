"""Settings of TRL, and of ms-swift and VLM-R1, which share most names with it.

Sources: TRL 1.16, trl/trainer/grpo_config.py; ms-swift, docs on command line parameters; VLM-R1,
src/open-r1-multimodal/src/open_r1/grpo_jsonl.py.
"""

from __future__ import annotations

from typing import Any

from vlmrl.commands.importing.given_settings import Settings
from vlmrl.commands.importing.rules import Note, Rules, chosen_trackers, left, to, top_k, with_keys

__all__ = ["DEFAULTS", "RULES", "sizes"]

DEFAULTS = {
    "optimizer.lr_schedule": "linear",
    "optimizer.betas": [0.9, 0.999],
    "rollout.group_size": 8,
}
"""What those trainers do where nothing is said, and we would do otherwise."""

ALGORITHMS = {
    "grpo": "grpo", "dapo": "dapo", "dr_grpo": "dr_grpo", "bnpo": "bnpo", "cispo": "cispo",
    "sapo": "sapo", "vespo": "vespo", "luspo": "luspo", "gspo": "gspo",
}  # fmt: skip
ADVANTAGES = {"grpo": "grpo", "rloo": "rloo", "reinforce_plus_plus": "reinforce_pp"}
VERIFIERS = {
    "accuracy": "math", "accuracy_reward": "math", "format": "format",
    "think_format_reward": "format", "cosine": "length_cosine", "length": "length_cosine",
    "repetition": "repetition", "soft_overlong": "length_overlong",
    "get_soft_overlong_punishment": "length_overlong",
}  # fmt: skip
OWN = "a function of TRL's form works as it is: {verifier: path/to/file.py:NAME}"
OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw",
    "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "paged_adamw_8bit": "paged_adamw_8bit",
    "paged_adamw_32bit": "paged_adamw", "paged_adamw": "paged_adamw",
}  # fmt: skip
OPTIONS = "algorithm.options."


def _rewards(value: Any) -> tuple[dict[str, Any], str]:
    names = [str(name) for name in (value if isinstance(value, list) else [value])]
    known = [VERIFIERS[name] for name in names if name in VERIFIERS]
    unknown = [name for name in names if name not in VERIFIERS]
    why = f"not known: {', '.join(unknown)}; {OWN}" if unknown else ""
    return ({"rewards": known} if known else {}), why


def _mode(value: Any) -> str:
    return "vllm_server" if value == "server" else "vllm"


def _scale(value: Any) -> str:
    return {"group": "std", "True": "std", "batch": "batch"}.get(str(value), "none")


def _sharded(value: Any) -> str | None:
    return "fsdp2" if "zero3" in str(value) or "fsdp" in str(value) else None


def _low_precision(value: Any) -> str:
    return "bfloat16" if str(value) in ("bfloat16", "bf16", "float16", "True") else "float32"


def _lora(value: Any) -> tuple[dict[str, Any], str]:
    return ({"model.lora.towers": ["language"]}, "") if value in (True, "lora") else ({}, "")


def _vision(value: Any) -> list[str] | None:
    return ["vision"] if value in (True, "True", "true") else None


LOGS = left("each step is logged, and samples of completions are in the report")
WORKS = left("done by itself where it pays")
RULES: Rules = {
    "model_name_or_path": to("model.path"),
    "model": to("model.path"),
    "learning_rate": to("optimizer.lr"),
    "num_generations": to("rollout.group_size"),
    "max_completion_length": to("rollout.max_tokens"),
    "max_prompt_length": to("data.max_prompt_tokens"),
    "max_length": to("data.max_prompt_tokens"),
    "temperature": to("rollout.temperature"),
    "top_p": to("rollout.top_p"),
    "top_k": to("rollout.top_k", top_k),
    "beta": to(OPTIONS + "kl"),
    "num_iterations": to("optimizer.epochs"),
    "epsilon": to(OPTIONS + "clip_low"),
    "epsilon_high": to(OPTIONS + "clip_high"),
    "delta": to(OPTIONS + "dual_clip"),
    "loss_type": to("algorithm.name", lambda name: ALGORITHMS.get(str(name))),
    "importance_sampling_level": to(
        "algorithm.name", {"sequence": "gspo", "sequence_token": "gspo_token"}.get
    ),
    "advantage_estimator": to("algorithm.name", ADVANTAGES.get),
    "scale_rewards": to(OPTIONS + "scale", _scale),
    "mask_truncated_completions": with_keys({"scoring.truncated": "mask"}),
    "overlong_filter": with_keys({"scoring.truncated": "mask"}),
    "top_entropy_quantile": left("algorithm `high_entropy` learns from the tokens of high entropy"),
    "dynamic_sample": with_keys({OPTIONS + "dynamic_sampling_batches": 9}),
    "reward_funcs": _rewards,
    "external_plugins": left(OWN),
    "reward_model": left("`models:` names a model that judges, rewards/judge.py asks it"),
    "max_steps": to("run.steps", lambda steps: int(steps) if int(steps) > 0 else None),
    "num_train_epochs": left("we count steps: rows times epochs, over `rollout.prompts`"),
    "warmup_steps": to("optimizer.warmup_steps"),
    "lr_scheduler_type": to(
        "optimizer.lr_schedule",
        lambda name: str(name) if str(name) in ("linear", "cosine", "constant") else None,
    ),
    "max_grad_norm": to("optimizer.max_grad_norm"),
    "weight_decay": to("optimizer.weight_decay"),
    "adam_epsilon": to("optimizer.eps"),
    "optim": to("optimizer.name", lambda name: OPTIMIZERS.get(str(name))),
    "vit_lr": left("`optimizer.lr_factors: {vision: ...}` is a factor on the rate"),
    "bf16": to("model.dtype", _low_precision),
    "torch_dtype": to("model.dtype", _low_precision),
    "dtype": to("model.dtype", _low_precision),
    "gradient_checkpointing": to("model.gradient_checkpointing", bool),
    "attn_implementation": left("`model.attention` is chosen by the machine"),
    "attn_impl": left("`model.attention` is chosen by the machine"),
    "use_peft": _lora,
    "train_type": _lora,
    "tuner_type": _lora,
    "lora_r": to("model.lora.rank"),
    "lora_rank": to("model.lora.rank"),
    "lora_alpha": to("model.lora.alpha"),
    "lora_dropout": to("model.lora.dropout"),
    "lora_target_modules": left("all linear layers of a tower; `model.lora.towers` says of which"),
    "target_modules": left("all linear layers of a tower; `model.lora.towers` says of which"),
    "freeze_vision_modules": to("model.freeze", _vision, ""),
    "freeze_vit": to("model.freeze", _vision, ""),
    "load_in_4bit": with_keys({"model.quantization": "nf4"}),
    "MAX_PIXELS": to("model.max_pixels"),
    "max_pixels": to("model.max_pixels"),
    "min_pixels": to("model.min_pixels"),
    "use_vllm": with_keys({"engine.name": "vllm"}),
    "vllm_mode": to("engine.name", _mode),
    "vllm_gpu_memory_utilization": to("engine.options.gpu_memory_utilization"),
    "vllm_tensor_parallel_size": to("engine.options.tensor_parallel_size"),
    "vllm_server_host": left("our servers are others (`vlmrl serve-vllm`): docs/scale/engines.md"),
    "vllm_server_port": left("see vllm_server_host"),
    "deepspeed": to("distributed.strategy", _sharded),
    "fsdp": to("distributed.strategy", _sharded),
    "output_dir": to("run.dir"),
    "run_name": to("run.name"),
    "seed": to("run.seed"),
    "data_seed": left("`run.seed` seeds the order of the data too"),
    "save_steps": to("run.save_every"),
    "save_total_limit": to("run.keep_checkpoints"),
    "eval_steps": to("evaluation.every"),
    "report_to": to("tracking", chosen_trackers),
    "logging_steps": LOGS,
    "log_completions": LOGS,
    "dataloader_num_workers": to("data.workers"),
    "dataset_num_proc": WORKS,
    "sleep_level": with_keys({"engine.options.enable_sleep_mode": True}),
    "system": left("a text for `data.system`, if it is one; a file's text is to be put there"),
    "ddp_timeout": to("distributed.timeout_s"),
    "save_strategy": WORKS,
    "eval_strategy": WORKS,
    "rlhf_type": left("it is GRPO"),
}


def sizes(settings: Settings, gpus: int) -> tuple[list[Note], set[str]]:
    """Return the sizes of a step, which those trainers state in completions for each GPU."""
    group = int(settings.get("num_generations", 8))
    each = int(settings.get("per_device_train_batch_size", 8))
    accumulated = int(settings.get("gradient_accumulation_steps", 1))
    steps = int(settings.get("steps_per_generation", accumulated))
    total = int(settings.get("generation_batch_size", each * gpus * steps))
    keys: dict[str, Any] = {"rollout.prompts": max(1, round(total / group))}
    why = f"{total} completions a batch over {gpus} GPUs, {group} for a prompt"
    if total % group:
        why += f"; {total / group:g} prompts are no whole number"
    if steps > accumulated:
        keys["optimizer.minibatches"] = steps // accumulated
    used = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation",
            "generation_batch_size")  # fmt: skip
    notes = [Note(next((u for u in used if u in settings), used[0]), keys, why)]
    if "warmup_ratio" in settings and int(settings.get("max_steps", -1)) > 0:
        warm = round(float(settings["warmup_ratio"]) * int(settings["max_steps"]))
        notes.append(Note("warmup_ratio", {"optimizer.warmup_steps": warm}))
    elif "warmup_ratio" in settings:
        notes.append(Note("warmup_ratio", {}, "`optimizer.warmup_steps` is a number of steps"))
    betas = [float(settings.get(f"adam_beta{i}", b)) for i, b in ((1, 0.9), (2, 0.999))]
    notes.append(Note("adam_beta1, adam_beta2", {"optimizer.betas": betas}))
    return notes, {*used, "warmup_ratio", "adam_beta1", "adam_beta2"}
