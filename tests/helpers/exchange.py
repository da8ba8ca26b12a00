"""What `test_rank_exchange` runs on several ranks, and on one to compare with.

    torchrun --standalone --nproc-per-node 2 tests/helpers/exchange.py FOLDER

writes what one step of every case came to, and what it sent, by rank.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from helpers.rollouts_ahead import HELPERS, TINY, begin_training
from helpers.runs import CLOCKS
from helpers.witness_engine import WITNESSES
from vlmrl.config import load
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf, RunningHf
from vlmrl.runs import rank_shards, run_folder
from vlmrl.schema import ElsewhereError, PromptBatch, Rollouts
from vlmrl.system import distributed
from vlmrl.system.seeds import seed_of

SCORES = HELPERS / "batch_scores.py"
REWARDS = f"rewards=[{SCORES}:Varied, format, {{verifier: {SCORES}:Shaky, weight: 0.1}}]"
BATCH = f"rewards=[{SCORES}:Varied, {SCORES}:Commonness, {SCORES}:Detail]"
FEW = ["rollout.prompts=8", "rollout.group_size=3", "scoring.fault_limit=1"]
MORE = [*FEW, "rollout.group_size=11"]

CASES: dict[str, list[str]] = {
    "plain": [*FEW, REWARDS],
    "more": [*MORE, REWARDS],
    "longer": [*MORE, REWARDS, "rollout.max_tokens=24"],
    "batch-wide": [*FEW, BATCH],
    "reads tokens": [*FEW, REWARDS, "algorithm=t_spmo"],
    "hints": [*FEW, REWARDS, "strategies=[{name: hints, options: {column: boxes, failed_at: 2}}]"],
    "variants": [
        *FEW,
        REWARDS,
        "strategies=[{name: question_variants, options: {column: boxes}}]",
        "algorithm=share_grpo",
    ],
    "masked": [*FEW, REWARDS, "strategies=[masked_tags, rank_sampling]"],
    "critiques": [*FEW, REWARDS, "strategies=[critiques]"],
    "captions": [*FEW, *WITNESSES, "strategies=[caption_sufficiency]"],
    "blind": [*FEW, *WITNESSES, "strategies=[blind_penalty]"],
    "dynamic sampling": [
        *FEW,
        f"rewards=[{{verifier: {SCORES}:Varied, options: {{sparse: true}}}}]",
        "algorithm.options.dynamic_sampling_batches=2",
    ],
}


class PlacedHf(Hf):
    """The engine `hf`, whose draw for a prompt depends on its place in the batch alone."""

    capabilities = replace(Hf.capabilities, placed=True)

    def start(self, policy: Any) -> RunningHf:
        return RunningPlacedHf(self, policy)


class RunningPlacedHf(RunningHf):
    def generate(self, batch: PromptBatch, sampling: Sampling) -> Rollouts:
        keys = sampling.keys or sampling.at(range(len(batch))).keys
        own = tuple(tuple(seed_of(key, g) for g, key in enumerate(group)) for group in keys)
        return super().generate(batch, replace(sampling, keys=own))


@contextmanager
def metered() -> Iterator[Counter[str]]:
    """Bytes that this rank gives to what gathers, by function, while the block runs."""
    sent: Counter[str] = Counter()
    real = {name: getattr(dist, name) for name in ("all_gather", "gather_object")}

    def meter(name: str, place: int) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            given = arguments[place]
            size = given.nbytes if isinstance(given, torch.Tensor) else len(pickle.dumps(given))
            sent[name] += size
            return real[name](*arguments, **named)

        return call

    places = {"all_gather": 1, "gather_object": 0}
    for name, place in places.items():
        setattr(dist, name, meter(name, place))
    try:
        yield sent
    finally:
        for name, function in real.items():
            setattr(dist, name, function)


def outcome(name: str, folder: Path) -> dict[str, Any]:
    """What a step of a case came to."""
    engine = f"engine.name={Path(__file__)}:PlacedHf"
    settings = load("quickstart", [f"run.dir={folder / name}", *TINY, engine, *CASES[name]])
    with begin_training(settings) as trainer:
        with metered() as sent:
            report = trainer.step()
        run_folder.write_rollouts(settings.folder, report)
        counts = {" ".join(key): dict(counter) for key, counter in trainer.scorer.counts.items()}
    away = [
        completion
        for prompt, group in zip(
            report.rollouts.batch.prompts, report.rollouts.completions, strict=True
        )
        for completion in group
        if not rank_shards.is_here(prompt)
    ]
    return {
        "metrics": {k: v for k, v in report.metrics.items() if not k.startswith(CLOCKS)},
        "rewards": report.rewards.total.tolist(),
        "valid": report.rewards.valid.tolist(),
        "lengths": [[c.num_tokens for c in group] for group in report.rollouts.completions],
        "counts": counts,
        "unread": sum(map(_is_unread, away)),
        "away": len(away),
        "sent": dict(sent),
    }


def _is_unread(completion: Any) -> bool:
    """Whether nobody here knows what was written."""
    try:
        return not completion.token_ids
    except ElsewhereError:
        return True


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with distributed.session(60):
        found = {name: outcome(name, folder) for name in CASES}
        (folder / f"rank-{distributed.rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
