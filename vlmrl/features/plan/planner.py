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
from vlmrl.features.plan.layouts import GpuLayout, as_overrides, enumerate_layouts, layout_of
from vlmrl.features.plan.published import Assumptions, Gpu
from vlmrl.features.plan.sketch import (
    ModelCounts,
    ShallowCounter,
    StepCounts,
    count_model,
    count_step,
    sketch,
    sketch_prompt,
)
from vlmrl.features.plan.times import (
    Failures,
    Imbalance,
    Times,
    simulate_failures,
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
        self.model: ModelCounts = count_model(policy)
        self._counter = ShallowCounter(self.config.model, self.model.num_layers)
        self.step: StepCounts = count_step(self.config, policy, self.algorithm, prompt, assumed)
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

    # ------------------------------------------------------------------------------- one layout

    def rate(self, layout: GpuLayout) -> RatedLayout:
        """Return what a layout takes."""
        memory = self.memory(layout)
        imbalance = self._imbalance(layout.teams)
        seconds = times(
            layout,
            self.model,
            self.step,
            self.gpu,
            self.assumed,
            useful_share=imbalance.with_stragglers,
            checkpoint=self._checkpoint_seconds(layout),
            cache_share=layout.utilization,
            max_num_seqs=self._option("max_num_seqs", VllmOptions.max_num_seqs),
            transfer=self._option("transfer", "tcp"),
        )
        return RatedLayout(layout, memory, seconds, imbalance, self.step.completions)

    def memory(self, layout: GpuLayout) -> Forecast:
        """Return the doctor's forecast of a step, for a rank of this layout."""
        # Neither staleness nor how many GPUs a server has changes what a trainer needs.
        key = replace(layout, servers=min(1, layout.servers), tensor_parallel=1, staleness=0)
        if key not in self._memories:
            self._memories[key] = self._forecast(layout)
        return self._memories[key]

    def _forecast(self, layout: GpuLayout) -> Forecast:
        policy, prompt = self._policy(layout.checkpointing)
        tree = {
            "distributed": {"sequence_parallel": layout.sequence_parallel},
            "optimizer": {"micro_batch_tokens": layout.micro_batch_tokens},
        }
        now = self.config.model_copy(
            update={
                name: getattr(self.config, name).model_copy(update=u) for name, u in tree.items()
            }
        )
        # A team's prompts are generated by its ranks, each its own.
        spread = Spread(layout.trainers, layout.shards, self.gpu.memory)
        kl = needs_reference(self.algorithm)
        engine = self._engine(layout)
        return forecast(now, policy, engine, [prompt], kl, None, spread, self._counter)

    def failures(self, judged: RatedLayout) -> Failures:
        """Simulate the failures of 54 days."""
        return simulate_failures(
            judged.layout.gpus,
            judged.times.step,
            self.config.run.save_every,
            gpu_hours_per_failure=self.assumed.gpu_hours_per_failure,
            detect_s=self.assumed.detect_s,
            restart_s=self.assumed.restart_s,
        )

    def as_configured(self, gpus: int) -> GpuLayout:
        """Return the config's own layout on `gpus` GPUs."""
        return layout_of(self.config, gpus)

    # -------------------------------------------------------------------------------- many layouts

    def sweep(self, gpus: int) -> list[RatedLayout]:
        """Return the layouts that fit, the fastest first."""
        rated = []
        per_node = self.gpu.gpus_per_node
        for layout in enumerate_layouts(self.config, gpus, per_node, self.model.kv_heads):
            if self._refused(layout):
                continue
            judged = self.rate(self._with_utilization(layout))
            if judged.fits:
                rated.append(judged)
        return sorted(rated, key=lambda each: -each.rate)

    def mend(self, layout: GpuLayout) -> RatedLayout | None:
        """Return the layout with the fewest changes after which a rank has room, None if none help.

        Whether vLLM has room beside it is another verdict.
        """
        per_node = self.gpu.gpus_per_node
        changes: list[dict[str, Any]] = [{"strategy": "fsdp2"}, {"checkpointing": True}]
        longest = self.step.prompt_tokens + self.step.max_length
        least = max(1024, longest)
        if layout.micro_batch_tokens > least:
            changes.append({"micro_batch_tokens": least})
        changes += [
            {"sequence_parallel": parts}
            for parts in (2, 4, 8)
            if not (layout.trainers % parts or per_node % parts or self.model.kv_heads % parts)
        ]
        now = layout
        for change in changes:
            changed = replace(now, **change)
            if self._refused(changed):
                continue
            now = changed
            judged = self.rate(self._with_utilization(now))
            if judged.memory.share <= TIGHT:
                return judged
        return None

    # ---------------------------------------------------------------------------------------- parts

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
            return plugins.build("engine", "hf", {})
        options = {"gpu_memory_utilization": layout.utilization, "enable_sleep_mode": True}
        return plugins.build("engine", "vllm", options)

    def _with_utilization(self, layout: GpuLayout) -> GpuLayout:
        """Return the layout with as much memory for vLLM as there is beside what stays of the trainer."""
        if layout.servers:
            return replace(layout, utilization=APART)
        alone = self.memory(replace(layout, servers=1)).parts
        stays = sum(alone[p] for p in ("weights", "reference", "gradients", "optimizer"))
        left = math.floor((TIGHT - stays / self.gpu.memory) / SPARE) * SPARE
        return replace(layout, utilization=round(max(SPARE, left), 2))

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

    def _checkpoint_seconds(self, layout: GpuLayout) -> float:
        """Return the seconds a step in which all wait for a checkpoint: with `fsdp2` every rank writes."""
        run = self.config.run
        if run.save_in_background:
            return 0.0
        writers = min(layout.shards, WRITERS)
        return self.checkpoint_bytes / writers / (self.assumed.disk_gb * 1e9) / run.save_every

    def _option(self, name: str, default: Any) -> Any:
        return self.config.engine.options.get(name, default)

    def _refused(self, layout: GpuLayout) -> bool:
        """Return whether vlmrl refuses the layout with the rest of this config."""
        changes = {
            "distributed": {
                "strategy": layout.strategy,
                "sequence_parallel": layout.sequence_parallel,
            },
            "model": {"gradient_checkpointing": layout.checkpointing},
        }
        config = self.config.model_copy(
            update={n: getattr(self.config, n).model_copy(update=u) for n, u in changes.items()}
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


GIB = 2**30
HONEST = (
    "Memory is counted as `vlmrl doctor` counts it, on a model of this size without numbers. Times are "
    "rooflines of published rates with assumed shares (--assume); none was compared with a GPU. Not counted: "
    "decoding media, verifiers, tools, fragmentation."
)


def describe(planner: Planner, judged: RatedLayout, verdicts: Sequence[PlanIssue]) -> Iterator[str]:
    """Yield the lines of one layout, then its verdicts."""
    layout, times, model, step = judged.layout, judged.times, planner.model, planner.step
    gpu, drawn = planner.gpu, times.generation
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
        ("generation", drawn.seconds, _generation_note(judged)),
        ("log-probs", times.passes, f"{step.forwards} passes before the update"),
        ("update", times.update, _update_note(judged)),
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
        f"failures    {lost.count} in 54 days, {lost.lost_steps} steps done twice, "
        f"{lost.goodput:.1%} of the time is progress (simulated)"
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


def _generation_note(judged: RatedLayout) -> str:
    drawn = judged.times.generation
    return (
        f"{drawn.batch:.0f} completions decode at a time, {drawn.fits} of full length fit; "
        f"{drawn.prefill:.2f} s of it read prompts"
    )


def _update_note(judged: RatedLayout) -> str:
    imbalance = judged.imbalance
    return (
        f"{imbalance.with_stragglers:.0%} of it useful ({imbalance.undealt:.0%} if groups were not dealt); "
        f"{judged.times.waiting:.2f} s of it communication alone"
    )
