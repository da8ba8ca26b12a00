"""Names that changed: whoever writes an old one is told the new one, in one line.

There are no aliases: an old name is an error. An entry may go when a release has carried it.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["KEYS", "MOVED", "OPTIONS", "PARTS"]

KEYS: Mapping[str, Mapping[str, str]] = {
    "RunConfig": {"keep": "keep_checkpoints"},
    "DataConfig": {"root": "media_root", "decode_seconds": "decode_timeout_s"},
    "VideoConfig": {"factor": "size_divisor", "sound": "audio"},
    "AudioConfig": {"rate": "sampling_rate", "max_seconds": "max_duration_s"},
    "RewardConfig": {"deadline": "timeout_s"},
    "SftConfig": {
        "batch": "batch_size",
        "check_every": "validate_every",
        "check_from": "validate_from",
    },
    "RolloutConfig": {"staleness": "max_staleness"},
    "OptimizerConfig": {
        "clip_norm": "max_grad_norm",
        "schedule": "lr_schedule",
        "updates": "minibatches",
        "micro_tokens": "micro_batch_tokens",
    },
    "EvaluationConfig": {
        "batch": "batch_size",
        "forced": "force_thinking",
        "pass_at": "pass_threshold",
        "bootstrap": "bootstrap_resamples",
    },
    "ChecksConfig": {
        "canary_every": "media_ablation_every",
        "canary_prompts": "media_ablation_prompts",
        "canary_floor": "media_ablation_min_drop",
        "canary_stop": "media_ablation_stop",
    },
}
"""Section of the config -> its old key -> the new one."""

_GROUP = "strategies: [{name: shuffled_frames, options: {group_size: N}}]"
MOVED: Mapping[str, Mapping[str, str]] = {
    "RolloutConfig": {"contrast": _GROUP, "shuffled_group_size": _GROUP},
}
"""Section of the config -> its old key -> what says the same elsewhere in the config."""

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "algorithm": {"refill": "dynamic_sampling_batches"},
    "engine": {
        "max_rows": "max_num_seqs",
        "max_recordings": "max_audios",
        "max_clips": "max_videos",
        "restarts": "max_restarts",
        "timeout": "generate_timeout_s",
        "start_timeout": "start_timeout_s",
        "sync_timeout": "sync_timeout_s",
        "sleep": "enable_sleep_mode",
        "servers": "num_servers",
        "address": "transfer_address",
    },
}
"""Kind of part -> an old option of such a part -> the new one."""

PARTS: Mapping[str, Mapping[str, str]] = {"card": {"clips": "videos"}}
"""Kind of part -> the old name of one -> the new one."""
