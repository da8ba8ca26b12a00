"""The checks of a day, in order of worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from gpu_day.attention import attention
from gpu_day.day import Day
from gpu_day.decode import decode, shortcuts, vllm
from gpu_day.families import families
from gpu_day.forecast import forecast
from gpu_day.low_bits import low_bits
from gpu_day.parity import parity
from gpu_day.report import Row
from gpu_day.steps import steps
from gpu_day.trainings import race, trainings
from gpu_day.updates import updates


@dataclass(frozen=True)
class Check:
    """A question, the minutes that its answer may take, the packages that it needs."""

    name: str
    question: str
    minutes: float
    run: Callable[[Day], Iterator[Row]]
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """Say what is not installed; empty if nothing is missing."""
        lacking = [package for package in self.needs if find_spec(package) is None]
        return f"{' and '.join(lacking)} is not installed" if lacking else ""


CHECKS = (
    Check("parity", "How far is bfloat16 from float32, in every forward?", 2, parity),
    Check("update", "What does an update take, and how much of the card does it use?", 4, updates),
    Check("step", "How long is a step compared with TRL's?", 5, steps, ("trl", "datasets")),
    Check("families", "How far is bfloat16 from float32 in the newer families?", 2, families),
    Check("shortcuts", "What do 8 bits and guesses gain in vLLM?", 5, shortcuts, ("vllm",)),
    Check("trainings", "What is a step with 8 bits, guesses, servers, streaming?", 5, trainings),
    Check("attention", "What does a flash kernel gain in the shared forward?", 3, attention),
    Check("forecast", "Is the forecast of memory right?", 4, forecast, ("peft",)),
    Check(
        "low_bits", "What do 4-bit weights and small states save?", 3, low_bits, ("bitsandbytes",)
    ),
    Check("decode", "How many tokens a second does engine hf write?", 3, decode),
    Check(
        "vllm", "What does vLLM beside the trainer gain, and does it make room?", 4, vllm, ("vllm",)
    ),
    Check("race", "Who is sooner as good in bfloat16, TRL or we?", 10, race, ("trl", "datasets")),
)
"""Add one here: a function that takes the day and yields rows."""
