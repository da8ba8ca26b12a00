"""A config on a number of GPUs: the forecast of a rank, the times of a step, and what breaks first."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

from vlmrl import plugins
from vlmrl.algorithms.base import needs_reference
from vlmrl.config import Config
from vlmrl.engines.vllm_parts.options import VllmOptions
from vlmrl.monitoring.memory_forecast import TIGHT, Forecast, forecast
from vlmrl.monitoring.rank_share import Spread
from vlmrl.planning.counts import ModelCounts, StepCounts, count_model, count_step
from vlmrl.planning.layouts import GpuLayout, enumerate_layouts, layout_of
from vlmrl.planning.published import Assumptions, Gpu
from vlmrl.planning.shallow_counter import ShallowCounter
from vlmrl.planning.simulation import Failures, Imbalance, simulate_failures, simulate_imbalance
from vlmrl.planning.sketch import sketch, sketch_prompt
from vlmrl.planning.times import Times, times
from vlmrl.policy import checkpoint
from vlmrl.policy.optimizers import STATE_SIZE
from vlmrl.policy.policy import Policy
from vlmrl.schema import Prompt

__all__ = ["Planner", "PromptContent", "RatedLayout"]

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
        found = times(
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
        return RatedLayout(layout, memory, found, imbalance, self.step.completions)

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
        found = []
        per_node = self.gpu.gpus_per_node
        for layout in enumerate_layouts(self.config, gpus, per_node, self.model.kv_heads):
            if self._refused(layout):
                continue
            judged = self.rate(self._with_utilization(layout))
            if judged.fits:
                found.append(judged)
        return sorted(found, key=lambda each: -each.rate)

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
        optimizer = self.config.optimizer
        if layout.strategy == "fsdp2" and layout.trainers == 1:
            return True
        if layout.strategy == "fsdp2" and (
            optimizer.name != "adamw" or optimizer.shared_forward == "low_memory"
        ):
            return True
        if layout.sequence_parallel > 1 and optimizer.shared_forward == "low_memory":
            return True
        return bool(layout.staleness and self.config.strategies)
