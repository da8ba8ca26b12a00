"""How long the parts of a step take: a roofline of published rates, with the assumed shares of them.

Operations over FLOP/s, or bytes over bytes/s, whichever takes longer. Nothing here was fitted to a run.
Unequal groups and slow ranks are simulated from a seed: the same arguments give the same numbers everywhere.
Groups go to ranks by the function that a run deals them with (`forward.dealing`).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from vlmrl.features.plan.layouts import GpuLayout
from vlmrl.features.plan.published import Assumptions, Gpu
from vlmrl.features.plan.sketch import ModelCounts, StepCounts
from vlmrl.forward.dealing import plan_homes, useful_share


@dataclass(frozen=True, slots=True)
class Generation:
    """How one server, or one GPU that trains, generates its share of a step."""

    seconds: float
    prefill: float
    """Seconds of reading the prompts."""
    batch: float
    """Completions that decode at a time, on average."""
    fits: int
    """Completions of full length whose keys and values fit at a time."""
    used: int
    """Servers that have a prompt."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the parts of a step."""

    generation: Generation
    passes: float
    """Log-probs before the update: old, reference, masked media."""
    update: float
    sync: float
    checkpoint: float
    """Seconds a step, where every `run.save_every`-th step writes one."""
    sync_bytes: int
    """Bytes that leave the trainers in a sync."""
    waiting: float
    """Seconds a step in which communication is not hidden behind the update."""
    staleness: int

    @property
    def training(self) -> float:
        """Return the seconds in which the trainers work."""
        return self.passes + self.update + self.checkpoint

    @property
    def step(self) -> float:
        """Return the seconds of a step: ahead of the trainer, generation overlaps with it."""
        if self.staleness:
            return max(self.generation.seconds, self.training) + self.sync
        return self.generation.seconds + self.training + self.sync

    def idle(self, layout: GpuLayout) -> float:
        """Return the share of all GPU seconds of a step in which a GPU has nothing to do."""
        if not layout.servers:
            return self.sync / self.step
        training = layout.trainers * self.training
        apart = layout.gpus - layout.trainers
        generating = apart * self.generation.seconds * self.generation.used / layout.servers
        return 1 - (training + generating) / (layout.gpus * self.step)


def times(
    layout: GpuLayout,
    model: ModelCounts,
    step: StepCounts,
    gpu: Gpu,
    assumed: Assumptions,
    useful_share: float,
    checkpoint: float,
    cache_share: float,
    max_num_seqs: int,
    transfer: str,
) -> Times:
    """Return the times of a step in a layout.

    `useful_share` is the mean rank's tokens over those of the fullest, `checkpoint` the seconds a step in
    which a checkpoint is waited for, `cache_share` the share of a GPU's memory that an engine may take for
    weights and cache.
    """
    drawn = _generation(layout, model, step, gpu, assumed, cache_share, max_num_seqs)
    rate = layout.trainers * gpu.flops * assumed.train_mfu * useful_share
    vision = step.prompts * step.media_patches * 2 * model.vision
    length = step.prompt_tokens + step.mean_length
    attended = step.update_tokens * model.attention * length / 2  # causal
    layers = 2 * model.active * step.update_tokens + attended
    head = 2 * model.head * step.scored_tokens
    passes = step.forwards * (layers + head + vision) / rate
    again = 1 if layout.checkpointing else 0
    backward = 2 if model.language_trains else 1
    seen = vision * (3 + again if model.vision_trains else 1)
    update = step.epochs * (layers * (1 + backward + again) + 4 * head + seen) / rate
    gathering, hidden, open_ = _communication(layout, model, step, gpu, assumed)
    passes_moved = step.forwards * gathering
    sync, sent = _sync(layout, model, gpu, assumed, transfer)
    return Times(
        generation=drawn,
        passes=max(passes, passes_moved),
        update=max(update, hidden) + open_,
        sync=sync,
        checkpoint=checkpoint,
        sync_bytes=sent,
        waiting=max(0.0, hidden - update) + max(0.0, passes_moved - passes) + open_,
        staleness=layout.staleness,
    )


def _communication(
    layout: GpuLayout, model: ModelCounts, step: StepCounts, gpu: Gpu, assumed: Assumptions
) -> tuple[float, float, float]:
    """Return seconds of communication: of a forward's gathering, of updates beside computing, and after it.

    Ranks that share a replica gather its layers twice in each micro-batch and sum gradients once; replicas
    sum theirs once an update, each rank its own slices.
    """
    shards, copies = layout.shards, layout.trainers // layout.shards
    if shards == 1:
        link = _link_of(layout.trainers, gpu, assumed)
    else:  # ranks of other replicas sum at the same time, each through a port of its own
        inside = layout.trainers <= gpu.gpus_per_node
        link = (gpu.nvlink_gb if inside else gpu.network_gb) * 1e9 * assumed.link_share
    summing = 2 * (4 * model.trained / shards) * (copies - 1) / copies
    after = step.epochs * step.minibatches * summing / link
    if shards == 1:
        return 0.0, 0.0, after
    cuts = step.plain_tokens / step.minibatches / layout.teams / layout.micro_batch_tokens
    micro = step.minibatches * math.ceil(cuts)
    own = (shards - 1) / shards / _link_of(shards, gpu, assumed)
    gathering = micro * model.gathered_bytes * own
    return gathering, step.epochs * (2 * gathering + micro * 4 * model.trained * own), after


def _link_of(ranks: int, gpu: Gpu, assumed: Assumptions) -> float:
    """Return the bytes/s at which each of `ranks` ranks gets what a collective of all of them gathers.

    Between machines every rank needs what comes in through all ports of its machine, and shares it by NVLink.
    """
    ports = gpu.network_gb * gpu.gpus_per_node
    gb = gpu.nvlink_gb if ranks <= gpu.gpus_per_node else min(gpu.nvlink_gb, ports)
    return gb * 1e9 * assumed.link_share


def _sync(
    layout: GpuLayout, model: ModelCounts, gpu: Gpu, assumed: Assumptions, transfer: str
) -> tuple[float, int]:
    """Return the seconds of a sync, and the bytes that leave the trainers."""
    gather = 0.0
    if layout.shards > 1:
        gather = model.sync_bytes / _link_of(layout.shards, gpu, assumed)
    if not layout.servers:
        return gather + 2 * model.sync_bytes / (gpu.hbm_tb * 1e12 * assumed.hbm_share), 0
    if transfer == "nccl":  # to each server by itself
        sent = layout.servers * model.sync_bytes
        return gather + sent / (gpu.network_gb * 1e9 * assumed.link_share), sent
    return gather + model.sync_bytes / (assumed.tcp_gb * 1e9), model.sync_bytes


def _generation(
    layout: GpuLayout,
    model: ModelCounts,
    step: StepCounts,
    gpu: Gpu,
    assumed: Assumptions,
    cache_share: float,
    max_num_seqs: int,
) -> Generation:
    """Return how a server generates its share of the step's completions."""
    servers, parallel = layout.servers or layout.trainers, layout.tensor_parallel
    prompts = math.ceil(step.prompts / servers)
    own = prompts * step.completions / step.prompts
    weights, length = 2 * model.parameters, step.prompt_tokens + step.max_length
    room = parallel * cache_share * gpu.memory - weights
    fits = max(0, int(room // (model.kv_bytes * length + model.state_bytes)))
    full = max(1, min(max_num_seqs, own, fits or 1))
    tail = step.max_length if own <= full else step.max_length - step.mean_length
    steps = tail + (own * step.mean_length / full if own > full else 0.0)
    batch = own * step.mean_length / steps
    memory = gpu.hbm_tb * 1e12 * assumed.hbm_share * parallel
    context = step.prompt_tokens + step.mean_length / 2
    read = (weights + batch * (context * model.kv_bytes + model.state_bytes)) / memory
    computed = 2 * (model.active + model.head) + model.attention * context
    computed *= batch / (parallel * gpu.flops * assumed.decode_mfu)
    beside = assumed.decode_overhead_ms / 1e3
    if parallel > 1:
        beside += 2 * model.num_layers * assumed.tp_latency_us / 1e6
    reading = prompts * (
        2 * model.active * step.prompt_tokens
        + model.attention * step.prompt_tokens**2 / 2
        + 2 * model.vision * step.media_patches
    )
    prefill = reading / (parallel * gpu.flops * assumed.prefill_mfu)
    seconds = prefill + steps * (max(read, computed) + beside)
    return Generation(seconds, prefill, batch, fits, min(servers, step.prompts))


HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Useful shares of an update, in (0, 1]: the mean rank's time over that of the one all wait for."""

    undealt: float
    """Each rank trains on what it generated."""
    dealt: float
    """Groups were dealt to the ranks by their tokens."""
    with_stragglers: float
    """Dealt, and some ranks are slower than others."""


@dataclass(frozen=True, slots=True)
class Failures:
    """What failures may be expected to cost a run."""

    count: float
    lost_steps: float
    """Steps that were done twice."""
    goodput: float
    """Share of the time that went into steps that count and their checkpoints."""


def draw_costs(
    groups: int, group_size: int, mean: float, sigma: float, prompt: int, seed: int
) -> list[int]:
    """Return the tokens of groups whose completions have lognormal lengths of this mean, in tokens.

    `sigma` is the standard deviation of the logarithm, of a group's own mean: some questions take long.
    Lengths within a group vary as much again by half of it.
    """
    rng, spread = random.Random(seed), sigma / 2
    costs = []
    for _ in range(groups):
        level = rng.lognormvariate(-(sigma**2) / 2, sigma)
        lengths = [rng.lognormvariate(-(spread**2) / 2, spread) for _ in range(group_size)]
        costs.append(round(prompt + mean * level * sum(lengths)))
    return costs


def simulate_imbalance(
    ranks: int,
    groups_per_rank: float,
    group_size: int = 8,
    mean: float = 400.0,
    sigma: float = 0.6,
    prompt: int = 0,
    slow_share: float = 0.01,
    slowness: float = 1.2,
    draws: int = 5,
    seed: int = 0,
) -> Imbalance:
    """Return the mean useful shares over some draws of lengths.

    `slow_share` of the ranks takes `slowness` times as long for the same tokens.
    """
    shares = []
    groups = round(ranks * groups_per_rank)
    for draw in range(draws):
        costs = draw_costs(groups, group_size, mean, sigma, prompt, seed + draw)
        homes = [number % ranks for number in range(groups)]
        dealt = plan_homes(costs, homes, ranks)
        rng = random.Random(f"slow {seed + draw}")
        factors = [slowness if rng.random() < slow_share else 1.0 for _ in range(ranks)]
        loads = [0.0] * ranks
        for cost, home in zip(costs, dealt, strict=True):
            loads[home] += cost * factors[home]
        worst = sum(costs) / (ranks * max(loads)) if max(loads) else 1.0
        shares.append((useful_share(costs, homes, ranks), useful_share(costs, dealt, ranks), worst))
    undealt, dealt_share, slow = (sum(column) / draws for column in zip(*shares, strict=True))
    return Imbalance(undealt, dealt_share, slow)


def expect_failures(
    gpus: int, step_s: float, save_every: int, assumed: Assumptions, hours: float = 24 * 54
) -> Failures:
    """Return what to expect of `hours` hours with failures at random, each back to the last checkpoint.

    A failure costs its detection, a restart, and all since the last checkpoint. Failures that come while a
    restart is under way begin it anew. The times between failures are exponential, and so all is exact.
    """
    mean = assumed.gpu_hours_per_failure / gpus * HOUR
    down = assumed.detect_s + assumed.restart_s
    end = hours * HOUR
    stretches = end / mean * math.exp(-down / mean)  # of training between two restarts

    def whole(seconds: float) -> float:
        """Return how many times `seconds` fit into a stretch."""
        return math.exp(-seconds / mean) / -math.expm1(-seconds / mean)

    kept = save_every * whole(save_every * step_s)
    lost = stretches * (whole(step_s) - kept)
    return Failures(end / mean, lost, stretches * kept * step_s / end)
