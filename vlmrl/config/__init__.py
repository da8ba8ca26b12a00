"""The config of a run: `load` a file, or `parse` a tree of plain values, into a `Config`.

`sections/` has one file for each section and `whole.py` joins them; `tree.py` reads files, `extends`
and `key=value`; `reading.py` turns every mistake into one line that names the key's path and the
nearest valid name. Nothing here imports torch.
"""

from vlmrl.config.reading import load, parse, parse_older, schema
from vlmrl.config.section import PluginRef, Section
from vlmrl.config.sections.data import (
    HELD_OUT,
    AudioConfig,
    DataConfig,
    SourceConfig,
    VideoConfig,
)
from vlmrl.config.sections.model import (
    BuildConfig,
    ClusterConfig,
    DistributedConfig,
    LoraConfig,
    ModelConfig,
    NamedModel,
    NamedModelConfig,
    OptimizerConfig,
    ReferenceConfig,
    SftConfig,
    TeacherConfig,
)
from vlmrl.config.sections.rewards import (
    ChunksConfig,
    RewardConfig,
    RolloutConfig,
    ScoringConfig,
    TurnsConfig,
)
from vlmrl.config.sections.run import (
    BenchmarkConfig,
    ChecksConfig,
    ControlConfig,
    EvaluationConfig,
    ResumeConfig,
    RunConfig,
)
from vlmrl.config.whole import Config, StageConfig
