"""Out of memory in a forward or backward: do it again with smaller micro-batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from vlmrl.errors import UserError
from vlmrl.forward import packing
from vlmrl.schema import TrainBatch

_T = TypeVar("_T")
log = logging.getLogger("vlmrl")


class MemoryRetry:
    """Runs work on a batch, and again in halved micro-batches when the device is out of memory.

    The smaller budget stays for the rest of the run.
    """

    def __init__(self, in_step: str | None) -> None:
        """Take the config's key and value by which all ranks work in step, if any do."""
        self._in_step = in_step
        self._micro_tokens: int | None = None

    def run(self, batch: TrainBatch, work: Callable[[TrainBatch], _T]) -> _T:
        """Return what `work` makes of the batch.

        Raises:
            UserError: even a single completion does not fit, or the ranks work in step.
        """
        while True:
            if self._micro_tokens is not None:
                batch = packing.recut(batch, self._micro_tokens)
            try:
                return work(batch)
            except torch.OutOfMemoryError as error:
                if self._in_step:
                    raise UserError(
                        f"out of memory: with {self._in_step} no rank can cut its micro-batches "
                        "alone; lower optimizer.micro_batch_tokens"
                    ) from error
                if all(len(micro.group) == 1 for micro in batch.micro):
                    raise UserError(
                        "out of memory with a single completion: use model.gradient_checkpointing, "
                        "model.lora, shorter completions or smaller media"
                    ) from error
            self._micro_tokens = max(packing.num_tokens(micro) for micro in batch.micro) // 2
            log.warning(
                "out of memory: the step is repeated with micro-batches of at most %d tokens",
                self._micro_tokens,
            )
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
