"""The text of the config that `vlmrl init` writes: keys in the order of the pages, each with why it is so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

MAX_PIXELS = 401_408
"""Of an image: 512 tokens of Qwen2.5-VL."""
SMALL_PIXELS = 50_176
LENGTHS = {"boxes": 256, "count": 256, "choice": 512, "answer": 512}
"""Task -> tokens of a completion."""


def pretrained(source: dict[str, Any], task: str, verifier: str, model: str) -> dict[str, Any]:
    """Return the tree of a config that trains a published model; what the cards decide comes over it."""
    template = "answer_only" if task == "boxes" else "think_answer"
    return {
        "run": {"steps": 200},
        "model": {
            "path": model,
            "dtype": "bfloat16",
            "freeze": ["vision", "projector"],
            "gradient_checkpointing": True,
            "max_pixels": MAX_PIXELS,
        },
        "data": {"train": [{**source, "template": template}]},
        "rewards": [verifier, {"verifier": "format", "weight": 0.1}],
        "rollout": {"prompts": 32, "group_size": 8, "max_tokens": LENGTHS[task]},
        "algorithm": {"name": "dapo", "options": {"dynamic_sampling_batches": 4}},
        "optimizer": {"lr": 1e-6},
        "evaluation": {"metric": verifier},
    }


def small(source: dict[str, Any], verifier: str, has_demos: bool) -> dict[str, Any]:
    """Return the tree of a config that trains a small model, built from nothing, on a CPU."""
    shown = {**source, "template": "answer_only", "instruct": False}
    cold = {"sft": {"max_steps": 100, "batch_size": 16, "lr": 1.5e-3, "warmup_steps": 10}}
    return {
        "run": {"steps": 50},
        "model": {"build": {"family": "qwen2_5_vl"}, "max_pixels": SMALL_PIXELS},
        "data": {"train": [shown]},
        **(cold if has_demos else {}),
        "rewards": [verifier, {"verifier": "format", "weight": 0.1}],
        "rollout": {"prompts": 8, "group_size": 4, "max_tokens": 64},
        "algorithm": "grpo",
        "optimizer": {"lr": 4e-4},
        "evaluation": {"metric": verifier, "limit": 64},
    }


NOTES = {
    "run.steps": "updates; what is written lies in runs/<name>",
    "model.path": "a folder or a hub name",
    "model.build": "a small model from nothing: it shows that all works, not what a model can do",
    "model.freeze": "only the language model learns",
    "model.gradient_checkpointing": "less memory for more time",
    "model.max_pixels": "larger images are scaled down, their places with them",
    "model.lora": "adapters in place of all weights: less memory",
    "data.train": "where the rows are and how they are read",
    "sft": "cold start on the true answers: RL needs a model that is right sometimes",
    "rewards": "what an answer earns: the verifier of the task, and a little for its form",
    "rollout.prompts": "of an update",
    "rollout.group_size": "completions of a prompt, compared with each other",
    "rollout.max_tokens": "of a completion",
    "algorithm": "dapo asks again where all completions of a prompt earn the same",
    "optimizer.lr": "1.0e-06 for all weights, ten times as much for adapters",
    "optimizer.micro_batch_tokens": "of a forward: smaller needs less memory",
    "engine": "who writes the completions",
    "distributed": "how the cards share the work",
    "evaluation": "what is held out: split test, else val, else what held_out names",
}
"""Key -> the comment on it."""


def write(tree: Mapping[str, Any], head: list[str]) -> str:
    """Return a config's tree as commented YAML, with lines of a comment before it."""
    notes = dict(NOTES)
    if "build" in tree["model"]:
        del notes["algorithm"], notes["optimizer.lr"]
    if tree["evaluation"] is None:
        notes["evaluation"] = "too few rows to hold some out"
    lines = [f"# {line}" for line in head]
    for key, value in tree.items():
        if key == "data":
            lines.append(f"data:\n  train:  # {notes['data.train']}")
            lines += (_source(source) for source in value["train"])
        elif isinstance(value, Mapping) and key not in (
            "sft",
            "algorithm",
            "engine",
            "distributed",
        ):
            lines.append(_noted(f"{key}:", notes.get(key)))
            lines += (
                _noted(f"  {k}: {_flow(v)}", notes.get(f"{key}.{k}")) for k, v in value.items()
            )
        elif isinstance(value, list):
            lines.append(_noted(f"{key}:", notes.get(key)))
            lines += (f"  - {_flow(each)}" for each in value)
        else:
            lines.append(_noted(f"{key}: {_flow(value)}", notes.get(key)))
    return "\n".join(lines) + "\n"


def _source(source: Mapping[str, Any]) -> str:
    pairs = [f"{key}: {_flow(value)}" for key, value in source.items()]
    return "    - " + "\n      ".join(pairs)


def _noted(line: str, note: str | None) -> str:
    return line if note is None else f"{line}  # {note}"


def _flow(value: object) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")
