"""Settings of EasyR1. Source: EasyR1, examples/config.yaml and verl/trainer/config.py."""

from __future__ import annotations

from typing import Any

from vlmrl.commands.importing.data_sources import source_of
from vlmrl.commands.importing.given_settings import Settings
from vlmrl.commands.importing.rules import Note, Rules, chosen_trackers, left, to, top_k

__all__ = ["RULES", "sizes"]

OPTIONS = "algorithm.options."
ACTOR = "worker.actor."
ROLLOUT = "worker.rollout."
ESTIMATORS = {"grpo": "grpo", "rloo": "rloo", "reinforce_plus_plus": "reinforce_pp", "gpg": "gpg"}
DIVERGENCES = {"low_var_kl": "k3", "kl": "k1", "mse": "k2"}


def _positive(value: Any) -> Any:
    return value if value and int(value) > 0 else None


RULES: Rules = {
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


def sizes(settings: Settings) -> tuple[list[Note], set[str]]:
    """Return what follows from several settings: data, updates a batch, and the engine."""
    notes = [Note("the engine", {"engine.name": "vllm"}, "EasyR1 samples with vLLM in the trainer")]
    for name, key in (("data.train_files", "data.train"), ("data.val_files", "evaluation.sources")):
        if isinstance(given := settings.get(name), str):
            place, _, split = given.partition("@")
            made = source_of(place, "easyr1") | ({"split": split} if split else {})
            notes.append(Note(name, {key: [made]}, "`vlmrl data explain` shows its rows"))
    each, all_ = ACTOR + "global_batch_size", "data.rollout_batch_size"
    if each in settings and all_ in settings:
        count = max(1, int(settings[all_]) // int(settings[each]))
        notes.append(Note(each, {"optimizer.minibatches": count}, "updates on one batch"))
    if settings.get("algorithm.disable_kl"):
        notes.append(Note("algorithm.disable_kl", {OPTIONS + "kl": 0.0}))
    return notes, {"data.train_files", "data.val_files", each, "algorithm.disable_kl", "config"}
