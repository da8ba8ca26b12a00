"""A plan as text: what a rank needs, how long a step takes, what breaks first, which layouts are best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vlmrl.planning.planner import Planner, RatedLayout
from vlmrl.planning.verdicts import PlanIssue

__all__ = ["HONEST", "describe", "describe_sweep"]

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


def describe_sweep(found: Sequence[RatedLayout], most: int) -> Iterator[str]:
    """Yield a line for each of the fastest layouts."""
    if not found:
        yield (
            "no layout fits with at most one process a prompt: raise rollout.prompts or --gpus, or use "
            "model.lora or a smaller model"
        )
        return
    yield f"{'completions/s':>13}  {'s a step':>8}  {'memory':>6}  {'idle':>4}  layout"
    for judged in found[:most]:
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
    found = judged.imbalance
    return (
        f"{found.with_stragglers:.0%} of it useful ({found.undealt:.0%} if groups were not dealt); "
        f"{judged.times.waiting:.2f} s of it communication alone"
    )
