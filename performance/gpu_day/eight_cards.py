"""What eight cards of one machine would add to the day, in order of worth: on paper, none was run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class PaperCheck:
    """A question that one card cannot answer, the minutes its answer may take, and the command."""

    question: str
    minutes: float
    command: str


RANKS = "torchrun --nproc-per-node"
SMALL = "quickstart sft=null evaluation=null run.steps=20"
PAPER_CHECKS = (
    PaperCheck(
        "Do two ranks and eight give the gradient of one, by NCCL?",
        4,
        f"{RANKS} 8 -m vlmrl train {SMALL} distributed.strategy=ddp model.dtype=bfloat16",
    ),
    PaperCheck(
        "What does a step of fsdp2 take on 1, 2, 4 and 8 cards, beside `vlmrl plan`?",
        6,
        f"{RANKS} 8 -m vlmrl train {SMALL} distributed.strategy=fsdp2 model.dtype=bfloat16",
    ),
    PaperCheck(
        "How long does one prompt of 8 times the length take over all cards?",
        4,
        f"{RANKS} 8 -m vlmrl train {SMALL} distributed.strategy=fsdp2 distributed.sequence_parallel=8",
    ),
    PaperCheck(
        "How many seconds is a sync by NCCL from four ranks to four servers?",
        5,
        f"{RANKS} 4 -m vlmrl train {SMALL} rollout.max_staleness=1 "
        '\'engine={name: vllm_server, options: {num_servers: 4, devices: ["4", "5", "6", "7"], '
        "transfer: nccl}}'",
    ),
    PaperCheck(
        "How much less do four ranks wait for four servers with `rollout.streaming`?",
        6,
        f"{RANKS} 4 -m vlmrl train {SMALL} rollout.max_staleness=1 rollout.streaming=true "
        '\'engine={name: vllm_server, options: {num_servers: 4, devices: ["4", "5", "6", "7"], '
        "transfer: nccl}}'",
    ),
)


def describe_paper() -> Iterator[str]:
    """Yield two lines on each question, for `--help`."""
    for check in PAPER_CHECKS:
        yield f"  {check.question} ({check.minutes:g} minutes)"
        yield f"    {check.command}"
