"""Tables of other trainers' settings: what each becomes here, or why it becomes nothing.

Sources: TRL 1.16, trl/trainer/grpo_config.py; ms-swift, docs on command line parameters; VLM-R1,
src/open-r1-multimodal/src/open_r1/grpo_jsonl.py; EasyR1, examples/config.yaml and verl/trainer/config.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.data.files.hub_download import HUB


@dataclass(frozen=True)
class Note:
    """What became of a setting: our keys with their values, or none and the reason."""

    name: str
    keys: Mapping[str, Any]
    why: str = ""


TRACKERS = ("wandb", "swanlab", "mlflow", "trackio", "tensorboard")
"""Trackers that have the same name here."""
Rule = Callable[[Any], tuple[dict[str, Any], str]]
"""Returns our keys with their values, and a remark, for the value of a setting."""
Rules = Mapping[str, Rule]
Settings = dict[str, Any]
"""The settings of a run by name, parts with dots between them."""


def to(key: str, read: Callable[[Any], Any] = lambda value: value, why: str = "") -> Rule:
    """Return the rule of a setting that is one of our keys; a value that `read` makes None is left out."""

    def rule(value: object) -> tuple[dict[str, Any], str]:
        converted = read(value)
        if converted is None:
            return {}, why or f"{value!r} has no counterpart"
        return {key: converted}, why

    return rule


def left(why: str) -> Rule:
    """Return the rule of a setting that goes nowhere."""
    return lambda value: ({}, why)


def with_keys(keys: Mapping[str, object], why: str = "") -> Rule:
    """Return the rule of a setting that means these keys where it is true."""
    return lambda value: (dict(keys), why) if value else ({}, "it is off")


def chosen_trackers(value: object) -> dict[str, Any] | None:
    """Return our `tracking` for the trackers that another trainer names; None: we have none of them."""
    names = value if isinstance(value, list) else [value]
    return {name: True for name in names if name in TRACKERS} or None


def top_k(value: Any) -> int:
    """Return our `rollout.top_k`, where 0 and not -1 is no limit."""
    return max(0, int(value))


NAMES = ("data_file_paths", "image_folders", "dataset", "dataset_name", "dataset_train_split",
         "dataset_test_split", "dataset_config", "val_dataset")  # fmt: skip
LAYOUTS = {"ms-swift": "ms_swift", "vlm-r1": "vlm_r1"}


def source_of(path: str, layout: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a source of `owner/name` of the hub, or of a file or folder; `#N` behind it is a limit."""
    path, _, limit = path.partition("#")
    on_hub = path.count("/") == 1 and "." not in path and not path.startswith(("/", "data/"))
    options = {"path": f"{HUB}{path}" if on_hub else path}
    if layout:
        options["layout"] = layout
    source = {"card": "auto", "options": {**options, **more}}
    return source | ({"limit": int(limit)} if limit.isdigit() else {})


def data_of(settings: Settings, trainer: str) -> tuple[list[Note], set[str]]:
    """Return the sources of TRL, ms-swift and VLM-R1, and the names of the settings that they are of."""
    layout = LAYOUTS.get(trainer)
    notes = []
    if files := _parts(settings.get("data_file_paths")):
        folders = _parts(settings.get("image_folders"))
        roots: Sequence[dict[str, str]] = [{"root": folder} for folder in folders]
        roots = roots if len(roots) == len(files) else [{}] * len(files)
        train = [source_of(file, layout, **root) for file, root in zip(files, roots, strict=True)]
        notes.append(Note("data_file_paths", {"data.train": _named(train)}))
    keys = dict.fromkeys(("dataset", "dataset_name"), "data.train")
    for name, key in {**keys, "val_dataset": "evaluation.sources"}.items():
        stated = settings.get(name)
        if stated and not files:
            places = stated if isinstance(stated, list) else [stated]
            sources = [source_of(str(path), layout) for path in places]
            split = settings.get("dataset_train_split")
            if split and name != "val_dataset":
                sources = [{**source, "split": split} for source in sources]
            notes.append(Note(name, {key: _named(sources)}, "`vlmrl data explain` shows its rows"))
    return notes, set(NAMES)


def _parts(value: object) -> list[str]:
    """Return the places of a text with colons between them; a list of places as it is."""
    if isinstance(value, list):
        return [str(path) for path in value]
    return [path for path in str(value).split(":") if path] if value else []


def _named(sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sources, with names where several have one card."""
    if len(sources) == 1:
        return sources
    return [{"name": f"part{i}", **source} for i, source in enumerate(sources, start=1)]


HF_DEFAULTS = {
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


def _rewards(value: object) -> tuple[dict[str, Any], str]:
    names = [str(name) for name in (value if isinstance(value, list) else [value])]
    known = [VERIFIERS[name] for name in names if name in VERIFIERS]
    unknown = [name for name in names if name not in VERIFIERS]
    why = f"not known: {', '.join(unknown)}; {OWN}" if unknown else ""
    return ({"rewards": known} if known else {}), why


def _sharded(value: object) -> str | None:
    return "fsdp2" if "zero3" in str(value) or "fsdp" in str(value) else None


def _low_precision(value: object) -> str:
    return "bfloat16" if str(value) in ("bfloat16", "bf16", "float16", "True") else "float32"


def _lora(value: object) -> tuple[dict[str, Any], str]:
    return ({"model.lora.towers": ["language"]}, "") if value in (True, "lora") else ({}, "")


def _correction(mode: object) -> tuple[dict[str, Any], str]:
    level, _, bound = str(mode).partition("_")
    how = {"truncate": "truncated", "mask": "decoupled"}.get(bound)
    keys = {OPTIONS + "correction": how, OPTIONS + "correction_level": level}
    return (keys, "") if how else ({}, f"not known: {mode}")


def _vision(value: object) -> list[str] | None:
    return ["vision"] if value in (True, "True", "true") else None


LOGS = left("each step is logged, and samples of completions are in the report")
WORKS = left("done by itself where it pays")
HF_RULES: Rules = {
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
    "off_policy_mask_threshold": to(OPTIONS + "off_policy_threshold"),
    "vllm_importance_sampling_mode": _correction,
    "vllm_importance_sampling_clip_max": to(OPTIONS + "importance_cap"),
    "vllm_importance_sampling_cap": to(OPTIONS + "importance_cap"),
    "vllm_importance_sampling_clip_min": to(OPTIONS + "importance_floor"),
    "advantage_estimator": to("algorithm.name", ADVANTAGES.get),
    "scale_rewards": to(
        OPTIONS + "scale",
        lambda value: {"group": "std", "True": "std", "batch": "batch"}.get(str(value), "none"),
    ),
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
    "use_rslora": to("model.lora.rslora", bool),
    "use_dora": to("model.lora.dora", bool),
    "lora_target_modules": left("`model.lora.targets` names layers of `model.lora.towers`"),
    "target_modules": left("`model.lora.targets` names layers of `model.lora.towers`"),
    "freeze_vision_modules": to("model.freeze", _vision, ""),
    "freeze_vit": to("model.freeze", _vision, ""),
    "load_in_4bit": with_keys({"model.quantization": "nf4"}),
    "MAX_PIXELS": to("model.max_pixels"),
    "max_pixels": to("model.max_pixels"),
    "min_pixels": to("model.min_pixels"),
    "use_vllm": with_keys({"engine.name": "vllm"}),
    "vllm_mode": to("engine.name", lambda mode: "vllm_server" if mode == "server" else "vllm"),
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


def hf_sizes(settings: Settings, gpus: int) -> tuple[list[Note], set[str]]:
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


LEVELED: Mapping[str, dict[str, Any]] = {
    "luspo": {"algorithm.name": "luspo"},
    "grpo": {"algorithm.name": "gspo"},
    "dapo": {"algorithm.name": "gspo", OPTIONS + "aggregation": "token"},
    "bnpo": {"algorithm.name": "gspo", OPTIONS + "aggregation": "token"},
    "dr_grpo": {"algorithm.name": "gspo", OPTIONS + "aggregation": "constant"},
}
"""The recipe whose ratio is of completions, by TRL's loss."""


def hf_level(settings: Settings) -> tuple[list[Note], set[str]]:
    """Return the recipe of a loss with one ratio a completion, which those trainers state in two settings.

    Their clip is 0.2 there as well where none is stated, and without an upper one the lower.
    """
    pair = ("loss_type", "importance_sampling_level")
    loss, level = (str(settings.get(name)) for name in pair)
    if level != "sequence" or loss not in LEVELED:
        return [], set()
    low = settings.get("epsilon", 0.2)
    clip = {OPTIONS + "clip_low": low, OPTIONS + "clip_high": settings.get("epsilon_high", low)}
    return [Note(", ".join(pair), {**LEVELED[loss], **clip})], set(pair)


ACTOR = "worker.actor."
ROLLOUT = "worker.rollout."
ESTIMATORS = {"grpo": "grpo", "rloo": "rloo", "reinforce_plus_plus": "reinforce_pp", "gpg": "gpg"}
DIVERGENCES = {"low_var_kl": "k3", "kl": "k1", "mse": "k2"}


def _positive(value: Any) -> Any:
    return value if value and int(value) > 0 else None


EASYR1_RULES: Rules = {
    "data.max_prompt_length": to("data.max_prompt_tokens"),
    "data.max_response_length": to("rollout.max_tokens"),
    "data.rollout_batch_size": to("rollout.prompts"),
    "data.max_pixels": to("model.max_pixels"),
    "data.min_pixels": to("model.min_pixels"),
    "data.seed": left("`run.seed` seeds the order of the data too"),
    "data.prompt_key": left("layout `easyr1` reads `problem`; others: card `table` with `columns`"),
    "data.answer_key": left("layout `easyr1` reads `answer`; others: card `table` with `columns`"),
    "data.image_key": left("layout `easyr1` reads `images`; others: card `table` with `columns`"),
    "data.format_prompt": left("`template` of the source says how to answer"),
    "algorithm.adv_estimator": to("algorithm.name", ESTIMATORS.get),
    "algorithm.kl_coef": to(OPTIONS + "kl"),
    "algorithm.kl_penalty": to(OPTIONS + "kl_estimator", DIVERGENCES.get),
    "algorithm.use_kl_loss": to(OPTIONS + "kl_in_reward", lambda value: not value),
    "algorithm.online_filtering": to(
        OPTIONS + "dynamic_sampling_batches", lambda value: 9 if value else 0
    ),
    ACTOR + "loss_type": to("algorithm.name", {"cispo": "cispo", "gspo": "gspo"}.get),
    ACTOR + "clip_ratio_low": to(OPTIONS + "clip_low"),
    ACTOR + "clip_ratio_high": to(OPTIONS + "clip_high"),
    ACTOR + "clip_ratio_dual": to(OPTIONS + "dual_clip"),
    ACTOR + "max_grad_norm": to("optimizer.max_grad_norm"),
    ACTOR + "ppo_epochs": to("optimizer.epochs"),
    ACTOR + "ulysses_sequence_parallel_size": to("distributed.sequence_parallel"),
    ACTOR + "model.model_path": to("model.path"),
    ACTOR + "model.enable_gradient_checkpointing": to("model.gradient_checkpointing"),
    ACTOR + "model.freeze_vision_tower": to(
        "model.freeze", lambda v: ["vision"] if v else None, "nothing is frozen"
    ),
    ACTOR + "model.lora.rank": to("model.lora.rank", _positive),
    ACTOR + "model.lora.alpha": to("model.lora.alpha"),
    ACTOR + "optim.lr": to("optimizer.lr"),
    ACTOR + "optim.weight_decay": to("optimizer.weight_decay"),
    ACTOR + "optim.lr_warmup_ratio": left("`optimizer.warmup_steps` is a number of steps"),
    ACTOR + "fsdp.enable_full_shard": to("distributed.strategy", lambda v: "fsdp2" if v else None),
    ROLLOUT + "n": to("rollout.group_size"),
    ROLLOUT + "temperature": to("rollout.temperature"),
    ROLLOUT + "top_p": to("rollout.top_p"),
    ROLLOUT + "top_k": to("rollout.top_k", top_k),
    ROLLOUT + "gpu_memory_utilization": to("engine.options.gpu_memory_utilization"),
    ROLLOUT + "tensor_parallel_size": to("engine.options.tensor_parallel_size"),
    ROLLOUT + "enforce_eager": to("engine.options.enforce_eager"),
    "worker.reward.reward_function": left("a verifier of ten lines: docs/rewards/your_own.md"),
    "worker.reward.score_function": left("a verifier of ten lines: docs/rewards/your_own.md"),
    "trainer.max_steps": to("run.steps", _positive),
    "trainer.total_epochs": left("we count steps: rows times epochs, over `rollout.prompts`"),
    "trainer.total_episodes": left("we count steps: rows times epochs, over `rollout.prompts`"),
    "trainer.experiment_name": to("run.name"),
    "trainer.save_freq": to("run.save_every", _positive),
    "trainer.save_limit": to("run.keep_checkpoints", _positive),
    "trainer.save_checkpoint_path": to("run.dir"),
    "trainer.val_freq": to("evaluation.every", _positive),
    "trainer.logger": to("tracking", chosen_trackers),
    "trainer.nnodes": left("`vlmrl launch --nodes`"),
    "trainer.n_gpus_per_node": left("`vlmrl launch --gpus-per-node`"),
}


def easyr1_sizes(settings: Settings) -> tuple[list[Note], set[str]]:
    """Return what follows from several settings: data, updates a batch, and the engine."""
    notes = [Note("the engine", {"engine.name": "vllm"}, "EasyR1 samples with vLLM in the trainer")]
    for name, key in (("data.train_files", "data.train"), ("data.val_files", "evaluation.sources")):
        if isinstance(stated := settings.get(name), str):
            path, _, split = stated.partition("@")
            made = source_of(path, "easyr1") | ({"split": split} if split else {})
            notes.append(Note(name, {key: [made]}, "`vlmrl data explain` shows its rows"))
    each, all_ = ACTOR + "global_batch_size", "data.rollout_batch_size"
    if each in settings and all_ in settings:
        count = max(1, int(settings[all_]) // int(settings[each]))
        notes.append(Note(each, {"optimizer.minibatches": count}, "updates on one batch"))
    if settings.get("algorithm.disable_kl"):
        notes.append(Note("algorithm.disable_kl", {OPTIONS + "kl": 0.0}))
    return notes, {"data.train_files", "data.val_files", each, "algorithm.disable_kl", "config"}
