"""What a model learns from groups as they finish: held-out IoU beside whole batches, on real vLLM servers.

    export OMP_NUM_THREADS=1
    .venv-vllm/bin/python performance/streaming_learning.py --out performance/results/streaming_learning.md

The quickstart's cold start of each seed, then GRPO from it three ways: each batch generated when the step
needs it, the next batch generated meanwhile, and groups taken as they finish (`rollout.streaming`). The
answer to each request is held back for lognormal seconds, drawn from the request's seed, as long thoughts
or slow tools would: all completions of a group wait alike, and the text is the model's own.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from learning import evaluations, from_one_start, over_seeds, tell
from tables import head

from vlmrl.engines import vllm_server
from vlmrl.runs.metrics import step_seconds

ENGINE = (
    "engine={name: vllm_server, options: {enforce_eager: true, max_model_len: 1024, block_size: 32, "
    "kv_cache_gib: 0.5}}"
)
"""Options of a small server."""
QUEUED = ["rollout.max_staleness=1"]
ARMS = {
    "each batch when it is needed": ["rollout.max_staleness=0"],
    "the next batch meanwhile": QUEUED,
    "groups as they finish": [*QUEUED, "rollout.streaming=true"],
}


def hold_back(median: float, sigma: float, longest: float) -> None:
    """Let every answer of a server wait for lognormal seconds."""
    ask = vllm_server.ask

    def late(server: Any, prompt: Any, fields: Mapping[str, Any], *rest: Any) -> Any:
        seconds = random.Random(fields["seed"]).lognormvariate(math.log(median), sigma)
        answer = ask(server, prompt, fields, *rest)
        time.sleep(min(longest, seconds))
        return answer

    vllm_server.ask = late


def row(arm: str, seed: int, folder: Path, steps: int) -> str:
    """Return the line of a run."""
    curve = evaluations(folder)
    written = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    lines = [line for line in map(json.loads, written) if "reward/mean" in line]
    pace = 3600 / fmean(step_seconds(line) for line in lines[1:])
    before, after = (curve[step]["metrics"]["box_iou"] for step in (0, steps))
    stale, late = (
        fmean(line.get(key, 0.0) for line in lines)
        for key in ("rollout/staleness", "rollout/too_old")
    )
    return (
        f"| {arm} | {seed} | {before:.3f} -> {after:.3f} | {pace:.0f} | {stale:.2f} | {late:.1%} |"
    )


def main() -> None:
    """Run, print, and write where asked."""
    parser = over_seeds(__doc__, "runs/streaming_learning")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--median", type=float, default=0.3, help="seconds of the median answer's wait"
    )
    parser.add_argument("--sigma", type=float, default=1.0, help="deviation of the logarithm")
    parser.add_argument("--longest", type=float, default=10.0, help="seconds of the longest wait")
    options = parser.parse_args()
    hold_back(options.median, options.sigma, options.longest)
    table = head("| way | seed | held-out IoU | steps an hour | staleness | too old |")
    evaluated = [
        ENGINE,
        f"run.steps={options.steps}",
        f"evaluation.every={options.steps}",
        "sft=null",
    ]
    for seed in options.seeds:
        _, runs = from_one_start(
            "quickstart", options.runs, seed, ARMS, ["rollout.prompts=8"], evaluated
        )
        table += [row(arm, seed, folder, options.steps) for arm, folder in runs.items()]
        tell("\n".join(table), options.out)


if __name__ == "__main__":
    main()
