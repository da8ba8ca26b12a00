"""A whole step against TRL's GRPOTrainer, with the ways of `step.py`, one after the other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from step_ways import PHASES, PUBLISHED, WAYS, Case, Step, medians, save_inputs

from gpu_day.day import Day
from gpu_day.device import ON_GPU, attempt, release
from gpu_day.report import Row
from vlmrl.engines.vllm_parts.options import scratch

SHAPES = ((256, 64, 8), (1024, 64, 8))


class Turns(list[Step]):
    """A turn that never has to be waited for."""

    send = list.append

    def recv(self) -> None:
        pass


def steps(day: Day) -> Iterator[Row]:
    """Measure a step by way: one group, a frozen tower, all else trained."""
    for shape in SHAPES[:1] if day.tiny else SHAPES:
        own = day.case(*shape)
        policy = day.policy(dtype="float32")
        with scratch(policy.weight_bytes()) as folder:
            sizes = (own.prompt, own.completion, own.group, 1, 1 + day.repeats)
            case = Case(*sizes, Path(folder), frozen_tower=True)
            save_inputs(policy, case)
            del policy
            yield from compare(case)


def compare(case: Case) -> Iterator[Row]:
    theirs: Step | None = None
    for way in PUBLISHED:
        release()
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
        found = attempt(partial(take, way, case))
        theirs = found if way == "trl" else theirs
        row: Row = {"P, C, G": f"{case.prompt}, {case.completion}, {case.group}", "way": way}
        if found is None:
            yield {**row, "step s": "out of memory"}
            continue
        seconds = {f"{phase} s": f"{found[phase]:.3g}" for phase in PHASES}
        gain = {"trl / this": f"{theirs['step'] / found['step']:.2f}x"} if theirs else {}
        memory = {"peak MiB": f"{found['peak']:.0f}"}
        yield {**row, **seconds, "spread": f"{found['spread']:.0%}", **memory, **gain}


def take(way: str, case: Case) -> Step:
    """Return the medians of all steps of a way."""
    turns = Turns()
    WAYS[way](case, turns)
    shutil.rmtree(case.folder / way, ignore_errors=True)  # what it logged
    return medians(way, case, list(turns))
