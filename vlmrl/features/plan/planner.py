"""A config on a number of GPUs: memory of a rank, times of a step, what breaks first, and how it is told."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vlmrl import plugins
from vlmrl.algorithms.base import needs_reference
from vlmrl.config import Config
from vlmrl.config.exclusions import problems_of_sharding
from vlmrl.engines.vllm_parts.options import VllmOptions
from vlmrl.features.plan.layouts import GpuLayout, as_overrides, enumerate_layouts
from vlmrl.features.plan.published import Assumptions, Gpu
from vlmrl.features.plan.sketch import (
    ShallowCounter,
    count_model,
    count_step,
    sketch,
    sketch_prompt,
)
from vlmrl.features.plan.times import (
    Failures,
    Imbalance,
    Times,
    expect_failures,
    simulate_imbalance,
    times,
)
from vlmrl.monitoring.memory_forecast import LOWER, TIGHT, Forecast, Spread, forecast
from vlmrl.policy import checkpoint
from vlmrl.policy.optimizers import STATE_SIZE
from vlmrl.policy.policy import Policy
from vlmrl.schema import Prompt

APART = 0.9
"""Share of the memory of a GPU that only generates."""
WRITERS = 8
"""Ranks that write at a time as fast as one does by itself."""
SPARE = 0.05
"""Shares of memory are given out in multiples of this."""


@dataclass(frozen=True, slots=True)
class PromptContent:
    """What a prompt shows, and how much it says beside."""

    images: int = 1
    pixels: int = 1_003_520
    text_tokens: int = 200


@dataclass(frozen=True, slots=True)
class RatedLayout:
    """A layout with all that was found of it."""

    layout: GpuLayout
    memory: Forecast
    times: Times
    imbalance: Imbalance
    rollouts: int
    """Completions of a step."""

    @property
    def fits(self) -> bool:
        """Return whether the memory of trainers and of servers suffices."""
        return self.memory.share <= TIGHT and self.times.generation.fits > 0

    @property
    def rate(self) -> float:
        """Return the completions that are generated and trained on in a second."""
        return self.rollouts / self.times.step


class Planner:
    """Plans a config. Its model is built from sizes alone, once with and once without checkpointing."""

    def __init__(
        self, config: Config, gpu: Gpu, assumed: Assumptions, shown: PromptContent
    ) -> None:
        """Prepare to plan a config.

        Raises:
            UserError: the architecture is not known here.
        """
        self.config, self.gpu, self.assumed = config.at(0), gpu, assumed
        made = self.config.algorithm
        self.algorithm = plugins.build("algorithm", made.name, made.options)
        self._shown = shown
        self._policies: dict[bool, tuple[Policy, Prompt]] = {}
        self._imbalances: dict[int, Imbalance] = {}
        policy, prompt = self._policy(self.config.model.gradient_checkpointing)
        self.model = count_model(policy)
        self._counter = ShallowCounter(self.config.model)
        self.step = count_step(self.config, policy, self.algorithm, prompt, assumed)
        state = STATE_SIZE[self.config.optimizer.name] * 4 * self.model.trained
        self.checkpoint_bytes = checkpoint.size(policy, state)
        self._memories: dict[GpuLayout, Forecast] = {}

    def with_prompts(self, prompts: int) -> Planner:
        """Return a planner of the same config with `prompts` prompts a step; what was counted is kept."""
        other = copy.copy(self)
        rollout = self.config.rollout.model_copy(update={"prompts": prompts})
        other.config = self.config.model_copy(update={"rollout": rollout})
        policy, prompt = self._policy(self.config.model.gradient_checkpointing)
        other.step = count_step(other.config, policy, self.algorithm, prompt, self.assumed)
        other._imbalances, other._memories = {}, {}
        return other

    def rate(self, layout: GpuLayout) -> RatedLayout:
        """Return what a layout takes."""
        imbalance, option = self._imbalance(layout.teams), self.config.engine.options.get
        run, writers = self.config.run, min(layout.shards, WRITERS)
        # With `fsdp2` every rank writes.
        writing = self.checkpoint_bytes / writers / (self.assumed.disk_gb * 1e9) / run.save_every
        seconds = times(
            layout,
            self.model,
            self.step,
            self.gpu,
            self.assumed,
            useful_share=imbalance.with_stragglers,
            checkpoint=0.0 if run.save_in_background else writing,
            cache_share=layout.utilization,
            max_num_seqs=option("max_num_seqs", VllmOptions.max_num_seqs),
            transfer=option("transfer", "tcp"),
        )
        return RatedLayout(layout, self.memory(layout), seconds, imbalance, self.step.completions)

    def memory(self, layout: GpuLayout) -> Forecast:
        """Return the doctor's forecast of a step, for a rank of this layout."""
        # Neither staleness nor how many GPUs a server has changes what a trainer needs.
        key = replace(layout, servers=min(1, layout.servers), tensor_parallel=1, staleness=0)
        if key in self._memories:
            return self._memories[key]
        policy, prompt = self._policy(layout.checkpointing)
        team = {"sequence_parallel": layout.sequence_parallel}
        packed = {"micro_batch_tokens": layout.micro_batch_tokens}
        now = self.config.model_copy(
            update={
                "distributed": self.config.distributed.model_copy(update=team),
                "optimizer": self.config.optimizer.model_copy(update=packed),
            }
        )
        # A team's prompts are generated by its ranks, each its own.
        spread = Spread(layout.trainers, layout.shards, self.gpu.memory)
        kl, engine = needs_reference(self.algorithm), self._engine(layout)
        made = forecast(now, policy, engine, [prompt], kl, None, spread, self._counter)
        return self._memories.setdefault(key, made)

    def failures(self, judged: RatedLayout) -> Failures:
        """Return what failures may cost in 54 days."""
        every = self.config.run.save_every
        return expect_failures(judged.layout.gpus, judged.times.step, every, self.assumed)

    def sweep(self, gpus: int) -> list[RatedLayout]:
        """Return the layouts that fit, the fastest first."""
        per_node = self.gpu.gpus_per_node
        layouts = enumerate_layouts(self.config, gpus, per_node, self.model.sequence_parts)
        if self.model.unserved:
            layouts = (replace(layout, engine="hf") for layout in layouts if not layout.servers)
        possible = (layout for layout in layouts if not self._refused(layout))
        rated = (self.rate(self.with_utilization(layout)) for layout in possible)
        return sorted((each for each in rated if each.fits), key=lambda each: -each.rate)

    def mend(self, layout: GpuLayout) -> RatedLayout | None:
        """Return the layout with the fewest changes after which a rank has room, None if none help.

        Whether vLLM has room beside it is another verdict.
        """
        per_node = self.gpu.gpus_per_node
        changes: list[dict[str, Any]] = [{"strategy": "fsdp2"}, {"checkpointing": True}]
        least = max(1024, self.step.prompt_tokens + self.step.max_length)
        if layout.micro_batch_tokens > least:
            changes.append({"micro_batch_tokens": least})
        changes += [
            {"sequence_parallel": parts}
            for parts in self.model.sequence_parts
            if parts > 1 and not (layout.trainers % parts or per_node % parts)
        ]
        now = layout
        for change in changes:
            changed = replace(now, **change)
            if self._refused(changed):
                continue
            now = changed
            judged = self.rate(self.with_utilization(now))
            if judged.memory.share <= TIGHT:
                return judged
        return None

    def with_utilization(self, layout: GpuLayout) -> GpuLayout:
        """Return the layout with as much memory for vLLM as there is beside what stays of the trainer."""
        if layout.servers:
            return replace(layout, utilization=APART)
        alone = self.memory(replace(layout, servers=1)).parts
        stays = sum(alone[p] for p in ("weights", "reference", "gradients", "optimizer"))
        left = math.floor((TIGHT - stays / self.gpu.memory) / SPARE) * SPARE
        return replace(layout, utilization=round(max(SPARE, left), 2))

    def _policy(self, checkpointing: bool) -> tuple[Policy, Prompt]:
        if checkpointing not in self._policies:
            change = {"gradient_checkpointing": checkpointing}
            policy = sketch(self.config.model.model_copy(update=change))
            shown = self._shown
            prompt = sketch_prompt(policy, shown.images, shown.pixels, shown.text_tokens)
            self._policies[checkpointing] = policy, prompt
        return self._policies[checkpointing]

    def _engine(self, layout: GpuLayout) -> Any:
        if layout.servers:
            return plugins.build("engine", "vllm_server", {"urls": ["http://elsewhere:8000"]})
        if layout.engine == "hf":
            own = self.config.engine
            return plugins.build("engine", "hf", own.options if own.name == "hf" else {})
        options = {"gpu_memory_utilization": layout.utilization, "enable_sleep_mode": True}
        return plugins.build("engine", "vllm", options)

    def _imbalance(self, teams: int) -> Imbalance:
        if teams not in self._imbalances:
            self._imbalances[teams] = simulate_imbalance(
                teams,
                self.step.prompts / teams,
                self.config.rollout.group_size,
                self.step.mean_length,
                self.assumed.length_sigma,
                self.step.prompt_tokens,
                draws=3,
            )
        return self._imbalances[teams]

    def _refused(self, layout: GpuLayout) -> bool:
        """Return whether vlmrl refuses the layout with the rest of this config."""
        ranks = {"strategy": layout.strategy, "sequence_parallel": layout.sequence_parallel}
        model = {"gradient_checkpointing": layout.checkpointing}
        config = self.config.model_copy(
            update={
                "distributed": self.config.distributed.model_copy(update=ranks),
                "model": self.config.model.model_copy(update=model),
            }
        )
        return (
            (layout.strategy == "fsdp2" and layout.trainers == 1)
            or any(problems_of_sharding(config, layout.trainers))
            or bool(layout.staleness and self.config.strategies)
        )


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
        remedy = f"; change: {as_overrides(self.change)}" if self.change else ""
        return f"{self.level:4}  {self.part:11}  {self.text}{remedy}"


def find_verdicts(planner: Planner, judged: RatedLayout) -> list[PlanIssue]:
    """Return what is wrong, what cannot run first, then what costs most."""
    issues = [*_what_fails(planner, judged), *_what_costs(planner, judged)]
    return sorted(issues, key=lambda each: each.level != "FAIL")


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
    if planner.model.unserved and (layout.servers or layout.engine != "hf"):
        yield PlanIssue("FAIL", "engine", planner.model.unserved, {"engine.name": "hf"})
    elif judged.times.generation.fits < 1 and (layout.servers or layout.engine != "hf"):
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
    prompts, step, lost = config.rollout.prompts, times.step, 1 - planner.failures(judged).goodput
    idle, dealt = times.idle(layout), judged.imbalance.dealt
    port = planner.gpu.network_gb * planner.assumed.link_share
    nccl = layout.servers and layout.servers * planner.assumed.tcp_gb < port
    ahead = layout.servers and not layout.staleness and not config.strategies
    costs: list[tuple[str, bool, str, Mapping[str, Any]]] = [
        (
            "servers",
            layout.servers > prompts,
            f"{layout.servers} servers and {prompts} prompts: the rest stays idle",
            {"rollout.prompts": layout.servers},
        ),
        (
            "imbalance",
            dealt < WASTED,
            f"ranks wait for the fullest: {dealt:.0%} of the update is useful",
            {"rollout.prompts": 4 * layout.teams},
        ),
        (
            "sync",
            times.sync > SLOW_SYNC * step,
            f"a sync takes {times.sync / step:.0%} of a step ({times.sync_bytes / 1e9:.1f} GB out)",
            {"engine.options.transfer": "nccl"} if nccl else {},
        ),
        (
            "checkpoint",
            times.checkpoint > SLOW_CHECKPOINT * step,
            f"checkpoints take {times.checkpoint / step:.0%} of the time",
            {"run.save_in_background": True},
        ),
        (
            "idle",
            idle > IDLE,
            f"GPUs are idle for {idle:.0%} of their time",
            {"rollout.max_staleness": 1} if ahead else {},
        ),
        (
            "network",
            times.waiting > SLOW_SYNC * step,
            f"gathering weights takes {times.waiting / step:.0%} of a step beside the update",
            {"optimizer.micro_batch_tokens": 2 * layout.micro_batch_tokens}
            if layout.strategy == "fsdp2"
            else {},
        ),
        (
            "failures",
            lost > LOST,
            f"failures in 54 days cost {lost:.0%} of the time (expected)",
            {"run.save_every": max(1, config.run.save_every // 4)},
        ),
    ]
    return (PlanIssue("warn", part, text, change) for part, bad, text, change in costs if bad)


HONEST = (
    "Memory is counted as `vlmrl doctor` counts it, on a model of this size without numbers. Times are "
    "rooflines of published rates with assumed shares (--assume); none was compared with a GPU. Not counted: "
    "decoding media, verifiers, tools, fragmentation."
)


def describe(planner: Planner, judged: RatedLayout, verdicts: Sequence[PlanIssue]) -> Iterator[str]:
    """Yield the lines of one layout, then its verdicts."""
    layout, times, model, step = judged.layout, judged.times, planner.model, planner.step
    gpu, drawn, imbalance = planner.gpu, times.generation, judged.imbalance
    yield f"layout      {layout}: {layout.gpus} x {gpu.name}"
    yield (
        f"model       {model.parameters / 1e9:.2f} B weights, {model.trained / 1e9:.2f} B of them train; "
        f"a token passes {(model.active + model.head) / 1e9:.2f} B"
    )
    yield (
        f"step        {step.prompts} prompts of {step.prompt_tokens} tokens x "
        f"{step.completions // step.prompts} completions of {step.mean_length:.0f} (assumed mean) to "
        f"{step.max_length} tokens"
    )
    yield f"memory      {judged.memory}"
    for label, seconds, note in (
        (
            "generation",
            drawn.seconds,
            f"{drawn.batch:.0f} completions decode at a time, {drawn.fits} of full length fit; "
            f"{drawn.prefill:.2f} s of it read prompts",
        ),
        ("log-probs", times.passes, f"{step.forwards} passes before the update"),
        (
            "update",
            times.update,
            f"{imbalance.with_stragglers:.0%} of it useful ({imbalance.undealt:.0%} if groups were not "
            f"dealt); {times.waiting:.2f} s of it communication alone",
        ),
        ("sync", times.sync, f"{times.sync_bytes / 1e9:.2f} GB leave the trainers"),
        (
            "checkpoint",
            times.checkpoint,
            f"{planner.checkpoint_bytes / 1e9:.1f} GB, spread over its steps",
        ),
    ):
        yield f"{label:10}  {seconds:8.2f} s  {note}"
    yield (
        f"{'a step':10}  {times.step:8.2f} s  {judged.rate:.2f} completions/s; GPUs idle "
        f"{times.idle(layout):.0%} of their time"
    )
    lost = planner.failures(judged)
    yield (
        f"failures    {lost.count:.1f} in 54 days, {lost.lost_steps:.0f} steps done twice, "
        f"{lost.goodput:.1%} of the time is progress (expected)"
    )
    if verdicts:
        yield f"breaks first: {verdicts[0].part}"
    yield from map(str, verdicts)


def describe_sweep(rated: Sequence[RatedLayout], most: int) -> Iterator[str]:
    """Yield a line for each of the fastest layouts."""
    if not rated:
        yield (
            "no layout fits with at most one process a prompt: raise rollout.prompts or --gpus, or use "
            "model.lora or a smaller model"
        )
        return
    yield f"{'completions/s':>13}  {'s a step':>8}  {'memory':>6}  {'idle':>4}  layout"
    for judged in rated[:most]:
        yield (
            f"{judged.rate:13.2f}  {judged.times.step:8.1f}  {judged.memory.share:6.0%}  "
            f"{judged.times.idle(judged.layout):4.0%}  {judged.layout}"
        )
