"""ms-swift's GRPO on the rows of the race: `swift rlhf`, and its `--external_plugins` in the same file.

    python swift_grpo.py swift.yaml --model MODEL --dataset ROWS.jsonl [options of swift rlhf]

A user writes `swift rlhf swift.yaml ...`, and has no clock.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from vlmrl.system import torchvision_shim  # noqa: F401  isort: skip  (a CPU's torchvision needs it)
from clock import Clock
from swift.callbacks import TrainerCallback, callbacks_map
from swift.rewards import orms

from vlmrl.features.integrations.ms_swift import orm


class Turns(TrainerCallback):
    """Waits for its turn before each step."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.clock = Clock()
        self.clock.wait(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.clock.wait(state.global_step)


orms["race"] = orm(json.loads(os.environ["RACE_REWARDS"]))
callbacks_map["race"] = Turns


def main() -> None:
    from swift.cli.main import parse_yaml_args
    from swift.pipelines import rlhf_main
    from swift.template.templates.qwen import Qwen2VLTemplate

    words = sys.argv[1:]
    parse_yaml_args(words)
    # It takes the published models' ids for granted, and a small model has a small vocabulary.
    config = json.loads((Path(words[words.index("--model") + 1]) / "config.json").read_text())
    for name in ("image_token_id", "video_token_id"):
        setattr(Qwen2VLTemplate, name, config[name])
    rlhf_main(words)


if __name__ == "__main__":
    main()
