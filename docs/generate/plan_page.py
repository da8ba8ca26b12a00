"""The tables of `docs/scale/plan_verdicts.md`: what `vlmrl plan` says of published models on H100s."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tables import code, header, row

from vlmrl.config import Config
from vlmrl.features.plan.layouts import as_overrides, layout_of
from vlmrl.features.plan.planner import Planner, PromptContent, RatedLayout, find_verdicts
from vlmrl.features.plan.published import Assumptions, gpu

SIZES = ("3B", "7B", "32B", "72B")
GPUS = (8, 64, 256, 1024)
CONFIG: dict[str, Any] = {
    "data": {"train": ["shapes"]},
    "rewards": ["box_iou"],
    "engine": {"name": "vllm", "options": {"enable_sleep_mode": True}},
    "rollout": {"group_size": 8, "max_tokens": 2048},
    "optimizer": {"micro_batch_tokens": 16384},
}
"""What all rows have in common."""


def planner_of(size: str) -> Planner:
    """Return the planner of a model whose tower is frozen, in bfloat16; its step is that of 8 GPUs."""
    model = {
        "path": f"Qwen/Qwen2.5-VL-{size}-Instruct",
        "dtype": "bfloat16",
        "freeze": ["vision"],
    }
    config = Config.model_validate({**CONFIG, "model": model})
    return Planner(config, gpu("h100"), Assumptions.of(), PromptContent()).with_prompts(
        prompts_of(GPUS[0])
    )


def prompts_of(gpus: int) -> int:
    """Return the prompts of a step: a job grows with its machines."""
    return max(64, 2 * gpus)


def draw() -> str:
    """Return a section for each model."""
    return "\n\n".join("\n".join(section(size)) for size in SIZES)


def section(size: str, numbers: Sequence[int] = GPUS) -> Iterator[str]:
    """Yield the lines of a model's section: verdicts, then seconds and keys of the fastest layouts."""
    counted = planner_of(size)
    verdicts, seconds, keys = [], [], []
    for gpus in numbers:
        planner = counted.with_prompts(prompts_of(gpus))
        found = planner.sweep(gpus)
        verdicts.append(_verdict(planner, gpus, found))
        seconds.append(_seconds(planner, gpus, found))
        for best in found[:1]:
            changes = as_overrides(best.layout.changes(planner.config))
            keys.append(f"- {gpus}: {code(changes)}")
    yield f"## Qwen2.5-VL-{size}\n"
    yield from header("H100", "as written", "fastest layout that fits", "its memory, of 80 GB")
    yield from verdicts
    yield ""
    yield from header(
        "H100",
        "generation, s",
        "log-probs, s",
        "update, s",
        "sync, s",
        "sync, GB",
        "step, s",
        "completions/s",
        "GPUs idle",
        "failures a day",
        "costs most",
    )
    yield from seconds
    yield from ("", "Keys of these layouts:", "", *keys)


def _verdict(planner: Planner, gpus: int, found: Sequence[RatedLayout]) -> str:
    written = planner.rate(layout_of(planner.config, gpus))
    fails = [each for each in find_verdicts(planner, written) if each.level == "FAIL"]
    said = "<br>".join(
        f"**{each.part}**: {each.text}; change {code(as_overrides(each.change))}"
        if each.change
        else f"**{each.part}**: {each.text}"
        for each in fails
    )
    if not found:
        return row(str(gpus), said or "fits", "none", "")
    best = found[0]
    return row(str(gpus), said or "fits", str(best.layout), f"{best.memory.share:.0%}")


def _seconds(planner: Planner, gpus: int, found: Sequence[RatedLayout]) -> str:
    daily = f"{24 * gpus / planner.assumed.gpu_hours_per_failure:.2g}"
    if not found:
        return row(str(gpus), *["-"] * 8, daily, "")
    best = found[0]
    times = best.times
    parts = (times.generation.seconds, times.passes, times.update, times.sync)
    costs = find_verdicts(planner, best)
    return row(
        str(gpus),
        *(f"{seconds:.1f}" for seconds in parts),
        f"{times.sync_bytes / 1e9:.1f}",
        f"{times.step:.1f}",
        f"{best.rate:.1f}",
        f"{times.idle(best.layout):.0%}",
        daily,
        costs[0].text if costs else "",
    )
