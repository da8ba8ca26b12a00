"""Starts of an environment's worlds: the prompt shows the first state and asks for the task.

What the policy does then is up to the source's `environment`, which resets the very world of the
prompt. A hash of the images that the prompt shows and its text decides in which split it may occur, so that
no world is in two splits, whatever the seed. Worlds that begin with a text alone hide what differs between
them: their splits differ by seeds.
"""

from __future__ import annotations

import functools
import hashlib
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from PIL import Image

from vlmrl import plugins
from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.errors import UserError
from vlmrl.schema import Demo, DemoTurn, Frame, Media, Sample, Truth
from vlmrl.schema.media import PilImage
from vlmrl.system.seeds import seed_of, uniform

COUNTS = {"train": 2000, "demos": 2000, "val": 96, "test": 200}
SHARES = {"train": (0.0, 0.4), "demos": (0.4, 0.8), "val": (0.8, 0.9), "test": (0.9, 1.0)}
"""Share of all worlds that belongs to each split, as [from, to)."""
MAX_TRIES = 1000
CORPUS_ROWS = 400
"""Worlds whose texts a small model's tokenizer is trained on."""


@dataclass(frozen=True)
class World(Card):
    """Worlds of an environment, drawn at load; the source's `environment` names it."""

    origin: ClassVar[str] = "drawn by the environment"
    licence: ClassVar[str] = "Apache-2.0"
    splits: ClassVar[tuple[str, ...]] = ("train", "demos", "val", "test")
    verifiers: ClassVar[tuple[str, ...]] = ("world_return",)

    environment: str = "grid_world"
    """One of `vlmrl list environments`, or `path/to/file.py:Name`; that of the source if it names one."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Options of the environment."""
    count: int | None = None
    """Worlds per split; None: train 2000, demos 2000, val 96, test 200."""
    seed: int = 0
    """Seed of the worlds."""

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ValueError(f"count: expected at least 1, got {self.count}")

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one small dictionary for each world; nothing is drawn yet."""
        if split not in COUNTS:
            raise UserError(f"card 'world' has no split {split!r}; there are: {', '.join(COUNTS)}")
        return [
            {"id": f"{self.environment}-{split}-{i}", "split": split, "index": i}
            for i in range(self.count or COUNTS[split])
        ]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Draw the first world of a row's split and show how it begins."""
        low, high = SHARES[row["split"]]
        for tried in range(MAX_TRIES):
            seed = seed_of(self.seed, zlib.crc32(row["split"].encode()), row["index"], tried)
            bare = Sample(row["id"], source, (), Truth(), "none", meta={"environment_seed": seed})
            world, state = self._world, self._world.reset(bare, seed)
            try:
                parts = (*_as_parts(world.observe(state)), world.task(state))
                sample = replace(bare, parts=parts)
                chosen = not sample.media or low <= uniform(_digest(sample)) < high
                played = world.play(state) if chosen and row["split"] == "demos" else ()
            finally:
                world.close(state)
            if chosen:
                turns = tuple(DemoTurn(name, arguments) for name, arguments in played)
                return replace(sample, demo=Demo(turns=turns) if turns else None)
        raise UserError(
            f"{self.environment}: none of {MAX_TRIES} worlds is of split {row['split']!r}: too few look "
            "unlike each other"
        )

    def corpus(self) -> list[str]:
        """Return tasks and scripts as the model is to read and write them."""
        rows = self.rows("demos")[:CORPUS_ROWS]
        first = self.to_sample(rows[0], "corpus")
        return demonstrations.corpus(self, rows, _frame(first))

    @functools.cached_property
    def _world(self) -> Any:
        return plugins.build("environment", self.environment, self.options)


def _as_parts(shown: Sequence[Any]) -> Iterator[Media | str]:
    for part in shown:
        if isinstance(part, PilImage):
            buffer = io.BytesIO()
            part.convert("RGB").save(buffer, format="BMP")  # uncompressed: the quickest to read
            yield Media("image", data=buffer.getvalue())
        elif isinstance(part, str):
            yield part
        else:
            raise UserError(
                f"the first observation of a world: expected texts and images, got {type(part).__name__}"
            )


def _frame(sample: Sample) -> Frame | None:
    """Return the frame of the first image, as a model is shown it that does not resize it."""
    images = [part for part in sample.parts if not isinstance(part, str)]
    if not images:
        return None
    with Image.open(io.BytesIO(images[0].data or b"")) as image:
        width, height = image.size
    return Frame(width, height, resized_width=width, resized_height=height, space="resized")


def _digest(sample: Sample) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in sample.parts:
        digest.update(part.encode() if isinstance(part, str) else part.data or b"")
    return digest.hexdigest()
