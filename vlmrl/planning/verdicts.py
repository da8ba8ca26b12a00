"""What breaks first in a layout, and the keys of the config that mend it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vlmrl.monitoring.memory_forecast import LOWER, TIGHT
from vlmrl.planning.layouts import as_overrides
from vlmrl.planning.planner import Planner, RatedLayout

__all__ = ["PlanIssue", "find_verdicts"]

SLOW_SYNC = 0.1
"""Share of a step above which a sync is worth a word."""
SLOW_CHECKPOINT = 0.05
WASTED = 0.8
"""Useful share of the update below which the ranks wait too long for each other."""
LOST = 0.02
"""Share of the time that failures may take."""
IDLE = 0.3
"""Share of the GPU seconds that may be idle."""


@dataclass(frozen=True, slots=True)
class PlanIssue:
    """One thing that does not work or costs much, with the change that mends it."""

    level: Literal["FAIL", "warn"]
    part: str
    text: str
    change: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """One line."""
        said = f"; change: {as_overrides(self.change)}" if self.change else ""
        return f"{self.level:4}  {self.part:11}  {self.text}{said}"


def find_verdicts(planner: Planner, judged: RatedLayout) -> list[PlanIssue]:
    """Return what is wrong, what cannot run first, then what costs most."""
    found = [*_what_fails(planner, judged), *_what_costs(planner, judged)]
    return sorted(found, key=lambda each: each.level != "FAIL")


def _what_fails(planner: Planner, judged: RatedLayout) -> Iterator[PlanIssue]:
    layout, memory, config = judged.layout, judged.memory, planner.config
    if layout.trainers > config.rollout.prompts:
        yield PlanIssue(
            "FAIL",
            "prompts",
            f"{layout.trainers} processes train and a step has {config.rollout.prompts} prompts, fewer than "
            "one each",
            {"rollout.prompts": layout.trainers},
        )
    if memory.share > TIGHT:
        part = max(memory.parts, key=lambda name: memory.parts[name])
        level: Literal["FAIL", "warn"] = "FAIL" if memory.share > 1 else "warn"
        mended = planner.mend(layout)
        text = f"a rank needs {memory.share:.0%} of its memory, most of it {part}"
        if mended is None:
            yield PlanIssue(level, "memory", f"{text}: {LOWER[part]}, or more GPUs")
        else:
            text = f"{text}; {mended.memory.share:.0%} after the change"
            yield PlanIssue(level, "memory", text, mended.layout.changes(config))
    if judged.times.generation.fits < 1:
        size = 2 * planner.model.parameters / 1e9
        needed = math.ceil(size * 1e9 / (0.8 * planner.gpu.memory))
        parallel = 2 ** math.ceil(math.log2(needed))
        where = "a server" if layout.servers else "vLLM on a GPU that trains"
        text = f"{where} has no room for {size:.0f} GB of weights and one completion of full length"
        devices = ",".join(map(str, range(parallel)))
        change: dict[str, Any] = {"engine.name": "vllm_server"}
        if layout.gpus > planner.gpu.gpus_per_node:
            change |= {
                "cluster.serve.replicas": max(1, layout.servers),
                "cluster.serve.gpus": parallel,
                "engine.options.transfer": "tcp",
            }
        else:
            change["engine.options.devices"] = f'["{devices}"]'
        yield PlanIssue("FAIL", "engine", text, change)


def _what_costs(planner: Planner, judged: RatedLayout) -> Iterator[PlanIssue]:
    layout, times, config = judged.layout, judged.times, planner.config
    if layout.servers > config.rollout.prompts:
        text = f"{layout.servers} servers and {config.rollout.prompts} prompts: the rest stays idle"
        yield PlanIssue("warn", "servers", text, {"rollout.prompts": layout.servers})
    if judged.imbalance.dealt < WASTED:
        text = f"ranks wait for the fullest: {judged.imbalance.dealt:.0%} of the update is useful"
        more = 4 * layout.teams
        yield PlanIssue("warn", "imbalance", text, {"rollout.prompts": more})
    if times.sync > SLOW_SYNC * times.step:
        text = f"a sync takes {times.sync / times.step:.0%} of a step ({times.sync_bytes / 1e9:.1f} GB out)"
        assumed = planner.assumed
        one_by_one = layout.servers * assumed.tcp_gb < planner.gpu.network_gb * assumed.link_share
        faster = {"engine.options.transfer": "nccl"} if layout.servers and one_by_one else {}
        yield PlanIssue("warn", "sync", text, faster)
    if times.checkpoint > SLOW_CHECKPOINT * times.step:
        text = f"checkpoints take {times.checkpoint / times.step:.0%} of the time"
        yield PlanIssue("warn", "checkpoint", text, {"run.save_in_background": True})
    if (idle := times.idle(layout)) > IDLE:
        text = f"GPUs are idle for {idle:.0%} of their time"
        can = layout.servers and not layout.staleness and not config.strategies
        yield PlanIssue("warn", "idle", text, {"rollout.max_staleness": 1} if can else {})
    if times.waiting > SLOW_SYNC * times.step:
        text = (
            f"gathering weights takes {times.waiting / times.step:.0%} of a step beside the update"
        )
        wider = 2 * layout.micro_batch_tokens
        change = {"optimizer.micro_batch_tokens": wider} if layout.strategy == "fsdp2" else {}
        yield PlanIssue("warn", "network", text, change)
    lost = planner.failures(judged)
    if 1 - lost.goodput > LOST:
        text = (
            f"{lost.count} failures in 54 days cost {1 - lost.goodput:.0%} of the time (simulated)"
        )
        better = max(1, config.run.save_every // 4)
        yield PlanIssue("warn", "failures", text, {"run.save_every": better})
