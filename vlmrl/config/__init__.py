"""The config of a run: `load` a file, or `parse` a tree of plain values, into a `Config`.

`sections.py` says what a config holds, `tree.py` reads files, `extends` and `key=value`, and
`reading.py` turns every mistake into one line that names the key's path and the nearest valid name.
Nothing here imports torch.
"""

from vlmrl.config.media import AudioConfig, VideoConfig
from vlmrl.config.reading import load, parse, schema
from vlmrl.config.rollout import RolloutConfig
from vlmrl.config.section import PluginRef, Section
from vlmrl.config.sections import (
    BuildConfig,
    ChecksConfig,
    Config,
    ControlConfig,
    DataConfig,
    EvaluationConfig,
    LoraConfig,
    ModelConfig,
    OptimizerConfig,
    RewardConfig,
    RunConfig,
    ScoringConfig,
    SftConfig,
    SourceConfig,
    TrackingConfig,
)

__all__ = [
    "AudioConfig",
    "BuildConfig",
    "ChecksConfig",
    "Config",
    "ControlConfig",
    "DataConfig",
    "EvaluationConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PluginRef",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "ScoringConfig",
    "Section",
    "SftConfig",
    "SourceConfig",
    "TrackingConfig",
    "VideoConfig",
    "load",
    "parse",
    "schema",
]
