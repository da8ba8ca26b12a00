"""What a file of ratings, or of demonstrations, says of itself; how one that is there goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from vlmrl.commands.curricula.row_blocks import RowBlock
from vlmrl.config import Config, SourceConfig
from vlmrl.data.files.rows import RowsView
from vlmrl.data.joined.demonstrations import Demonstration
from vlmrl.data.joined.ratings import MANIFEST, Rating
from vlmrl.data.source import Source, rated_as
from vlmrl.errors import UserError
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.system import atomic_files
from vlmrl.system.checksums import hash_weights

__all__ = ["begin", "keep_whole", "manifest_of"]

_T = TypeVar("_T", Rating, Demonstration)
Read = Callable[[Path], tuple[dict[str, Any], Iterator[tuple[int, _T]]]]
"""Reads a file: its manifest, and its lines with their numbers."""

MAY_CHANGE = ("versions", "git")
"""Keys of a manifest that may differ at a resume."""


def manifest_of(
    config: Config,
    policy: Policy,
    chosen: Sequence[tuple[Config, SourceConfig]],
    sources: Sequence[Source],
    asked: Mapping[str, Any],
) -> dict[str, Any]:
    """Return all that another person needs to get the same ratings."""
    path, build = policy.config.path, policy.config.build
    rows = [len(source.rows.whole) for source in sources if isinstance(source.rows, RowsView)]
    return {
        **asked,
        "model": asked["model"] or path or (build and build.model_dump(mode="json")),
        "weights_sha256": hash_weights(Path(path)) if path else None,
        "commit": getattr(policy.base.config, "_commit_hash", None),
        "seed": config.run.seed,
        "engine": config.engine.model_dump(mode="json"),
        "rollout": config.at(0.0).rollout.model_dump(mode="json"),
        "config_sha256": _digest(config, [source for _, source in chosen]),
        "sources": [
            {**rated_as(one), "rows": count} for (_, one), count in zip(chosen, rows, strict=True)
        ],
        "versions": run_folder.versions(),
        "git": run_folder.revision(),
    }


def _digest(config: Config, sources: Sequence[SourceConfig]) -> str:
    """Return a hash of what decides the prompts and their rewards."""
    own = {"weight", "limit", "where", "ratings", "demonstrations"}
    data = {"train", "sampler", "workers", "prefetch_mb", "quarantine_limit"}
    tree = [
        [source.model_dump(mode="json", exclude=own) for source in sources],
        config.data.model_dump(mode="json", exclude=data),
        [reward.model_dump(mode="json") for reward in config.rewards],
        config.scoring.model_dump(mode="json"),
    ]
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def begin(out: Path, manifest: dict[str, Any], read: Read[_T]) -> list[_T]:
    """Return the lines of a file that goes on; begin one that there is not.

    Raises:
        UserError: it was made in another way.
    """
    if not out.exists() or not out.stat().st_size:
        atomic_files.write_lines(out, [{MANIFEST: manifest}])
        return []
    before, lines = read(out)
    _check_manifest(out, before, manifest)
    return [line for _, line in lines]


def keep_whole(
    out: Path, before: Sequence[_T], blocks: Sequence[RowBlock], read: Read[_T]
) -> list[_T]:
    """Return the lines of blocks that are whole, and leave no others in the file."""
    by_place = {(one.source, one.split, one.row): one for one in before}
    found: list[_T] = [
        by_place[place]
        for block in blocks
        if all(place in by_place for place in block.places)
        for place in block.places
    ]
    if len(found) < len(before):
        manifest, _ = read(out)
        atomic_files.write_lines(out, [{MANIFEST: manifest}, *(asdict(one) for one in found)])
    return found


def _check_manifest(out: Path, before: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Refuse to go on with a file in another way than that in which it was begun.

    Raises:
        UserError: names the first key that differs.
    """
    for key, now in json.loads(json.dumps(manifest)).items():
        if key not in MAY_CHANGE and before.get(key) != now:
            raise UserError(
                f"{out}: was made with another {key}: expected {now!r}, got {before.get(key)!r}; choose "
                "another --out"
            )
