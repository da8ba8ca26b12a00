"""The rows of a config's training sources in blocks, and the file of answers that goes on where it stopped.

A block is the unit of a resume: its seed depends on its number alone, so what was stopped and goes on is, for
an engine that repeats itself, what there is without a stop.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from vlmrl.assemble.trained_run import find_run
from vlmrl.config import Config, ModelConfig, SourceConfig
from vlmrl.data.demonstrations import Demonstration
from vlmrl.data.files.rows import RowsView
from vlmrl.data.loader import eval_batches
from vlmrl.data.quarantine import Quarantine, row_id
from vlmrl.data.ratings import MANIFEST, Rating
from vlmrl.data.source import Source, rated_as
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.runs.output.outputs import Output
from vlmrl.schema import Completion, Prompt
from vlmrl.scoring.scorer import Judged, Scorer
from vlmrl.system import files
from vlmrl.system.files import hash_weights
from vlmrl.system.interrupt import Interrupt

MAX_NAMED = 10
"""Rows, or reasons, that a result names at most; its file names all."""

Line = TypeVar("Line", Rating, Demonstration)


@dataclass(frozen=True)
class Read:
    """A row as it was read: its address, its own id if any, and its prompt or why there is none."""

    address: tuple[str, str, int]
    """Source, whole split and row in it."""
    own: str | None
    prompt: Prompt | None
    reason: str = ""


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a source, by their numbers among its rows; `numbers` are the source's and the block's."""

    source: Source
    rows: range
    numbers: tuple[int, int]

    @property
    def addresses(self) -> list[tuple[str, str, int]]:
        """Source, whole split and row in it, of each row."""
        source, split = self.source, self.source.split.partition("[")[0]
        assert isinstance(source.rows, RowsView)
        return [(source.name, split, source.rows.positions[row]) for row in self.rows]

    def read(self, make: Callable[..., Prompt], max_prompt_tokens: int) -> list[Read]:
        """Return the rows in order, those that cannot be read with the reason."""
        source, rows = self.source, self.rows
        split = f"{source.split}[{rows.start}:{rows.stop}]"  # what messages number rows within
        part, bad = replace(source, split=split, rows=RowsView(source.rows, rows)), Quarantine()
        batches = eval_batches(
            [part],
            make,
            len(rows),
            quarantine=bad,
            quarantine_limit=1.0,
            max_prompt_tokens=max_prompt_tokens,
        )
        prompts = iter([prompt for batch in batches for prompt in batch.prompts])
        reasons, readings = bad.reasons(part), []
        for number, address in enumerate(self.addresses):
            reason = reasons.get(number, "")
            prompt = None if reason else next(prompts)
            readings.append(Read(address, row_id(part, number), prompt, reason))
        return readings


def score_of(judged: Judged, metric: str) -> float | None:
    """Return the reward, or the score of a verifier; None for a fault, and where it does not apply."""
    if metric == "reward":
        return judged.reward
    verdict = judged.verdicts.get(metric)
    return verdict.score if verdict is not None and verdict.applies else None


def fault_of(group: Sequence[Judged], metric: str) -> str:
    """Return the commonest reason why the completions of a row have no score; empty of none."""
    reasons = Counter(judged.reason or f"no score of {metric!r}" for judged in group)
    return reasons.most_common(1)[0][0] if reasons else ""


def judge(
    scorer: Scorer, prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]]
) -> list[list[Judged]]:
    """Return the verdicts on the completions of prompts, each judged by itself, as training begins."""
    samples, seen = [prompt.sample for prompt in prompts], [prompt.seen for prompt in prompts]
    return scorer.judge(groups, samples, whole=False, staged=True, seen=seen)


def require_metric(config: Config, metric: str) -> str:
    """Return the metric; refuse one that is not a reward of every source.

    Raises:
        UserError: names the source and its rewards.
    """
    for stage in config.by_stage:
        for source in stage.data.train:
            known = ["reward", *(reward.label for reward in stage.rewards_of(source))]
            if metric not in known:
                raise UserError(
                    f"--metric: expected a reward of source {source.label!r} ({', '.join(known)}), got "
                    f"{metric!r}"
                )
    return metric


def sources_of(config: Config) -> list[tuple[Config, SourceConfig]]:
    """Return the training sources of all stages without their choice of rows, each once.

    Raises:
        UserError: two differ in their data, and ratings could not tell them apart.
    """
    by_split: dict[tuple[str, str], tuple[Config, SourceConfig]] = {}
    for stage in config.by_stage:
        for source in stage.data.train:
            plain = source.whole(source.split)
            named = rated_as(source)
            known = by_split.setdefault((named["name"], named["split"]), (stage, plain))
            if _identity(known[1]) != _identity(plain):
                raise UserError(
                    f"data.train: two sources of split {named['split']!r} are named {source.label!r}: "
                    "give one of them a `name`"
                )
    return list(by_split.values())


def _identity(source: SourceConfig) -> str:
    return source.model_dump_json(include={"card", "options", "split", "limit"})


def load_asked(config: Config, model: str | None, sources: Sequence[Source]) -> Policy:
    """Load a config's model as it is without training, or another one that is asked in its place."""
    update: dict[str, Any] = {"lora": None, "quantization": None}
    settings = config.model.model_copy(update=update)
    if model is not None:
        settings = ModelConfig(path=str(find_run(model)[1] or model), dtype=config.model.dtype)
    corpus = [text for s in sources for text in s.card.corpus()] if settings.build else []
    loaded = load_model(settings, corpus, config.run.seed)
    return Policy(*loaded, settings, config.at(0.0).rollout.temperature)


def cut_blocks(sources: Sequence[Source], limit: int | None, size: int) -> list[RowBlock]:
    """Return the blocks of the first `limit` rows of each source."""
    blocks = []
    for which, source in enumerate(sources):
        rows = range(len(source.rows))[:limit]
        for number, first in enumerate(range(0, len(rows), size)):
            blocks.append(RowBlock(source, rows[first : first + size], (which, number)))
    return blocks


def write_blocks(
    answer: Callable[[RowBlock], list[Line]],
    blocks: Sequence[RowBlock],
    out: Path,
    kept: list[Line],
    output: Output,
    what: str,
) -> bool:
    """Answer the blocks that are not kept, add their lines to `kept` and to a file; return whether all are.

    Ctrl-C ends it after the block in hand. `output` says how far `what` is.
    """
    done = {(line.source, line.split, line.row) for line in kept}
    total = sum(len(block.rows) for block in blocks)
    with Interrupt() as interrupt, output.doing(what, total, len(kept)) as activity:
        for block in blocks:
            if block.addresses[0] in done:
                continue
            if interrupt.asked:
                return False
            lines = answer(block)
            files.append_lines(out, [asdict(line) for line in lines])
            kept += lines
            activity.done(len(kept))
    return True


_T = TypeVar("_T", Rating, Demonstration)
ReadFile = Callable[[Path], tuple[dict[str, Any], Iterator[tuple[int, _T]]]]
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
            {**rated_as(data), "rows": count} for (_, data), count in zip(chosen, rows, strict=True)
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


def begin(out: Path, manifest: dict[str, Any], read: ReadFile[_T]) -> list[_T]:
    """Return the lines of a file that goes on; begin one that there is not.

    Raises:
        UserError: it was made in another way.
    """
    if not out.exists() or not out.stat().st_size:
        files.write_lines(out, [{MANIFEST: manifest}])
        return []
    before, lines = read(out)
    for key, now in json.loads(json.dumps(manifest)).items():
        if key not in MAY_CHANGE and before.get(key) != now:
            raise UserError(
                f"{out}: was made with another {key}: expected {now!r}, got {before.get(key)!r}; choose "
                "another --out"
            )
    return [line for _, line in lines]


def keep_whole(
    out: Path, before: Sequence[_T], blocks: Sequence[RowBlock], read: ReadFile[_T]
) -> list[_T]:
    """Return the lines of blocks that are whole, and leave no others in the file."""
    by_address = {(line.source, line.split, line.row): line for line in before}
    whole: list[_T] = [
        by_address[address]
        for block in blocks
        if all(address in by_address for address in block.addresses)
        for address in block.addresses
    ]
    if len(whole) < len(before):
        manifest, _ = read(out)
        files.write_lines(out, [{MANIFEST: manifest}, *(asdict(line) for line in whole)])
    return whole
