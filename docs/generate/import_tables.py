"""The key maps of `docs/start/coming_from.md`, from the rules of `vlmrl import-config`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tables import code, escape, header, row

from vlmrl.features.import_config.tables import EASYR1_RULES, HF_RULES, Rule

TRIED: tuple[Any, ...] = ("lora", ["accuracy"], "sequence_mask")
"""Values of which a rule of several keys says what they are."""
JOINT = {
    "per_device_train_batch_size, gradient_accumulation_steps, steps_per_generation, "
    "generation_batch_size": "rollout.prompts, optimizer.minibatches",
    "warmup_ratio": "optimizer.warmup_steps",
    "adam_beta1, adam_beta2": "optimizer.betas",
    "data_file_paths, image_folders": "data.train",
    "dataset, dataset_name, dataset_train_split, dataset_test_split, dataset_config": "data.train",
    "val_dataset": "evaluation.sources",
}
"""Settings of TRL, ms-swift and VLM-R1 that count together, and what they become."""
JOINT_EASYR1 = {
    "data.train_files": "data.train",
    "data.val_files": "evaluation.sources",
    "worker.actor.global_batch_size, data.rollout_batch_size": "optimizer.minibatches",
    "algorithm.disable_kl": "algorithm.options.kl",
}
"""The same of EasyR1."""


def tables() -> str:
    """Return a table for TRL, ms-swift and VLM-R1, and one for EasyR1."""
    return "\n".join(
        [
            *("### TRL, ms-swift, VLM-R1", "", *_table(JOINT, HF_RULES), ""),
            *("### EasyR1", "", *_table(JOINT_EASYR1, EASYR1_RULES)),
        ]
    )


def _table(joint: Mapping[str, str], rules: Mapping[str, Rule]) -> Iterator[str]:
    """Yield a row for settings that count together, for each that becomes a key, and for the rest."""
    yield from header("theirs", "here", "remark")
    for names, keys in joint.items():
        yield row(_codes(names.split(", ")), _codes(keys.split(", ")), "")
    told = {name: told_of(rule) for name, rule in rules.items()}
    for name, (keys, why) in sorted(told.items(), key=lambda item: not item[1][0]):
        yield row(code(name), _codes(keys) or "nothing", escape(why))


def _codes(names: Sequence[str]) -> str:
    return ", ".join(map(code, names))


def told_of(rule: Rule) -> tuple[list[str], str]:
    """Return the keys that a setting may become, none if it goes nowhere, and the remark."""
    stated = inspect.getclosurevars(rule).nonlocals
    why = str(stated.get("why", ""))
    if "key" in stated:
        return [str(stated["key"])], ""
    if "keys" in stated:
        return [f"{key}: {value}" for key, value in stated["keys"].items()], why
    if "why" in stated:
        return [], why
    return [*dict.fromkeys(key for value in TRIED for key in rule(value)[0])], ""
