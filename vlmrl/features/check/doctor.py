"""`vlmrl doctor`: a real batch through data, processor, engine and trainer, one verdict a check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from transformers.utils import logging

from vlmrl.assemble.first_look import epochs
from vlmrl.assemble.sources import all_sources
from vlmrl.assemble.validate import validate
from vlmrl.config import load
from vlmrl.data.source import other_splits
from vlmrl.errors import UserError
from vlmrl.features.check import doctor_data, doctor_model
from vlmrl.features.check.doctor_bench import CheckResult, build, versions

CHECKS = {
    "rows": doctor_data.rows,
    "lengths": doctor_data.lengths,
    "demonstrations": doctor_data.demonstrations,
    "processor": doctor_data.processor,
    "verifiers": doctor_data.verifiers,
    "turns": doctor_model.turns,
    "media": doctor_model.media,
    "coordinates": doctor_model.coordinates,
    "memory": doctor_model.memory,
    "parity": doctor_model.first_parity,
    "step": doctor_model.step,
    "sync": doctor_model.second_parity,
}
"""In this order: `step` and `sync` change the weights."""
WRITING = ("demonstrations", "verifiers", "parity", "step", "sync")
"""Those of a policy that writes and is paid, which a reward model does not."""


def examine(name: str, overrides: Sequence[str] = ()) -> Iterator[CheckResult]:
    """Yield the findings on a config as they are made; nothing is written to the run folder.

    A check that fails does not keep the others from being made, unless they need what it lacks.
    """
    logging.disable_progress_bar()
    yield from versions()
    try:
        config = load(name, overrides)
        validate(config)
        yield CheckResult("ok", "config", f"{name}: every key, name and option is known")
        opened = all_sources(config)
        yield from doctor_data.sources(opened)
        yield CheckResult(
            "ok", "epochs", epochs(config, opened[: len(config.by_stage[0].data.train)])
        )
        for line in other_splits(config):
            yield CheckResult("ok", "evaluation", line)
    except UserError as error:
        yield CheckResult("FAIL", "config", str(error))
        return
    with ExitStack() as stack:
        try:
            bench = build(config, stack)
        except UserError as error:
            yield CheckResult("FAIL", "start", str(error))
            return
        for label, check in CHECKS.items():
            if config.trains_scores and label in WRITING:
                continue
            try:
                yield from check(bench)
            except UserError as error:
                yield CheckResult("FAIL", label, str(error))
