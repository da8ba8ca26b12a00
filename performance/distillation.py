"""Does a student come nearer to its teacher on prompts that it was not trained on?

    python performance/distillation.py --seeds 0 1 2 --out performance/results/distillation.md

The teacher is the quickstart's model after GRPO (seed 0, 60 steps), the students are smaller and begin at
cold starts of their own (`configs/distillation.yaml` beside this file). From each cold start go three runs
of as many steps: on-policy distillation, GRPO with the teacher beside the rewards, and GRPO alone, the
control.
The figure is the reverse divergence KL(student || teacher) per token, in nats: the mean over what
the student samples at temperature 1 to 200 held-out prompts, 4 completions each, of log student - log
teacher, with a 95 % bootstrap interval by prompt.

Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from learning import CONFIGS, curve, over_seeds, start, tell
from tables import head

from vlmrl import config
from vlmrl.assemble import build
from vlmrl.engines.base import Sampling
from vlmrl.forward.packing import pack
from vlmrl.policy.checkpoint import Progress
from vlmrl.schema import Advantages
from vlmrl.system.files import read_json

SAMPLES = 4
DISTILL = "algorithm=on_policy_distillation"
WAYS = {
    "distillation": (DISTILL,),
    "GRPO + 0.1 teacher_kl": ("algorithm.name=grpo", "algorithm.options.teacher_kl=0.1"),
    "GRPO": ("algorithm=grpo",),
}
TAUGHT = ("distillation", "GRPO + 0.1 teacher_kl")


def newest(folder: Path) -> Path:
    """Return a run's newest checkpoint."""
    found = (folder / "checkpoints").glob("step-*")
    return max(found, key=lambda path: int(path.name.partition("-")[2]))


def divergence(student: Path, teacher: Path, folder: Path) -> list[float]:
    """Return KL(student || teacher) per token on held-out prompts with the ends of its interval.

    It is kept in `folder`, and read from there the next time.
    """
    known = folder.with_suffix(".json")
    if known.exists():
        return list(read_json(known)["divergence"])
    chosen = [f"model.path={student}", "model.build=null", "sft=null", f"teacher.path={teacher}"]
    settings = config.load(
        str(CONFIGS / "distillation.yaml"), [f"run.dir={folder}", DISTILL, *chosen]
    )
    sums = []
    with ExitStack() as stack:
        trainer = build.build_trainer(settings, None, Progress(), stack)
        assert trainer.held_out is not None and trainer.teacher is not None
        for number, batch in enumerate(trainer.held_out()):
            draw = Sampling.of(settings.rollout, SAMPLES, seed=number)
            rollouts = trainer.engine.generate(batch, draw)
            ones = torch.ones(rollouts.shape)
            given = Advantages(ones, ones.bool(), ones)
            packed = pack(rollouts, given, updates=1, micro_tokens=8192, max_tokens=24)
            for micro in trainer.teacher.fill(packed)[0].micro:
                with torch.no_grad():
                    own = trainer.policy.logprobs(micro)[0]
                gap = (own - micro.extra["teacher"]) * micro.mask
                of_rows = torch.stack([gap.sum(-1), micro.mask.sum(-1)], -1).double()
                sums += of_rows.reshape(-1, SAMPLES, 2).sum(1).tolist()
    by_prompt = np.array(sums)
    drawn = np.random.default_rng(0).integers(len(by_prompt), size=(2000, len(by_prompt)))
    resampled = by_prompt[drawn].sum(1)
    total = by_prompt.sum(0)
    low, high = np.quantile(resampled[:, 0] / resampled[:, 1], [0.025, 0.975])
    found = [float(total[0] / total[1]), float(low), float(high)]
    known.write_text(json.dumps({"divergence": found}), encoding="utf-8")
    return found


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = over_seeds(__doc__, "runs/distillation")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs, steps = options.runs, options.steps
    begun = start("quickstart", runs / "teacher-start", 0)
    curve("quickstart", runs / "teacher", 0, begun, "run.threads=1", "run.steps=60")
    teacher = newest(runs / "teacher")
    rows = head("| seed | run | KL(student to teacher) per token | greedy IoU |")
    for seed in options.seeds:
        begin = start("distillation", runs / f"start-{seed}", seed)
        found = divergence(begin, teacher, runs / f"measured-start-{seed}")
        for number, (name, way) in enumerate(WAYS.items()):
            if name not in options.ways:
                continue
            folder = runs / f"way-{number}-{seed}"
            taught = [f"teacher.path={teacher}"] if name in TAUGHT else []
            evaluations = curve(
                "distillation", folder, seed, begin, f"run.steps={steps}", *way, *taught
            )
            if name == options.ways[0]:
                rows.append(_row(seed, "before", found, evaluations[0]["metrics"]["box_iou"]))
            found = divergence(newest(folder), teacher, runs / f"measured-{number}-{seed}")
            rows.append(_row(seed, name, found, evaluations[steps]["metrics"]["box_iou"]))
    tell("\n".join(rows), options.out)


def _row(seed: int, name: str, divergence: list[float], iou: float) -> str:
    middle, low, high = divergence
    return f"| {seed} | {name} | {middle:.3f} [{low:.3f}, {high:.3f}] | {iou:.3f} |"


if __name__ == "__main__":
    main()
