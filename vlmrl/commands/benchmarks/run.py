"""`vlmrl eval --benchmark`: public benchmarks, resumable, with the official and the strict number.

In the output folder each benchmark has a folder of its own: `answers.jsonl`, one line a row, written
as they come; then `result.json` with the manifest, and `rows.csv`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.answers.templates import Template
from vlmrl.assemble.prompts import build_prompt_maker
from vlmrl.benchmarking.base import OURS, Benchmark, BenchmarkCard, open_benchmark
from vlmrl.benchmarking.rows import INDEX
from vlmrl.benchmarking.scoring import Answer, Result, score_answers
from vlmrl.benchmarking.stored import write_result
from vlmrl.commands.benchmarks.export import check_export, export_answers
from vlmrl.commands.evaluate import run_of
from vlmrl.config import ModelConfig, PluginRef
from vlmrl.data.files.rows import View
from vlmrl.data.loader import eval_batches
from vlmrl.data.quarantine import Quarantine
from vlmrl.data.source import Source, read_template
from vlmrl.engines.base import Engine, Sampling
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.scoring.answer_forms import form_of
from vlmrl.system import atomic_files
from vlmrl.truths.json_form import to_json

__all__ = ["Plan", "evaluate_benchmarks"]

Told = Callable[[str, int, int], None]
"""Is told the benchmark's name, the rows answered and all rows, after each batch."""


@dataclass(frozen=True)
class Plan:
    """What to evaluate and how: see `vlmrl eval --help`."""

    protocol: str
    data_root: Path
    out: Path
    engine: PluginRef
    limit: int | None = None
    batch_size: int = 32
    max_tokens: int | None = None
    export: str | None = None


def evaluate_benchmarks(
    model: str, names: Sequence[str], plan: Plan, tell: Told = lambda *_: None
) -> list[Result]:
    """Evaluate a checkpoint folder, a run folder or a hub name on benchmarks, greedily.

    Completions of a run's model are split by that run's template, others are an answer as a whole.

    Rows that `answers.jsonl` in the output folder holds already are not asked again.

    Raises:
        UserError: no such benchmark, protocol or data; a wrong number of rows; answers in the
            output folder that were given under other circumstances.
    """
    run, folder = run_of(model)
    template = read_template(run.data.train[0]) if run else None
    folders = [plan.data_root / name.partition(":")[0] for name in names]
    opened = [open_benchmark(*pair) for pair in zip(names, map(str, folders), strict=True)]
    for benchmark in opened if plan.export else ():
        check_export(str(plan.export), benchmark, plan.protocol)
    sources = [_open(name, one, plan, template) for name, one in zip(names, opened, strict=True)]
    settings = ModelConfig(path=folder)
    policy = Policy(*load_model(settings), settings)
    results = []
    with ExitStack() as stack:
        engine = plugins.build("engine", plan.engine.name, plan.engine.options)
        stack.callback(engine.close)
        engine.start(policy)
        for benchmark, source in zip(opened, sources, strict=True):
            manifest = to_json(_manifest(folder, benchmark, source, policy, plan))
            answers = _answer(engine, policy, benchmark, source, manifest, plan, tell)
            result = score_answers(benchmark, source, plan.protocol, answers)
            write_result(plan.out / source.name, result, manifest)
            if plan.export:
                answers_to = plan.out / plan.export
                export_answers(plan.export, answers_to, benchmark, plan.protocol, result.rows)
            results.append(result)
    return results


def _open(name: str, benchmark: Benchmark, plan: Plan, template: str | Template | None) -> Source:
    """Open the rows of a benchmark and count them; without a run's template they have the prompt's."""
    card = BenchmarkCard(benchmark, plan.protocol)
    template = template or (card.official.template if card.official else "answer_only")
    rows = card.rows(benchmark.split)
    if rows.published != benchmark.count and plan.limit is None:
        raise UserError(
            f"benchmark {name!r}: expected {benchmark.count} rows in split {benchmark.split!r}, got "
            f"{rows.published} in {benchmark.path}; --limit N evaluates the first N whatever there is"
        )
    kept = View(rows, range(min(plan.limit, len(rows)))) if plan.limit else rows
    access = Access(root=card.media_root())
    return Source(name, card, benchmark.split, kept, template=template, access=access)


def _manifest(
    folder: str, benchmark: Benchmark, source: Source, policy: Policy, plan: Plan
) -> dict[str, Any]:
    """Return all that another person needs to get the same number."""
    official = benchmark.official(plan.protocol)
    return {
        "model": folder,
        "weights_sha256": _weights_hash(Path(folder)),
        "benchmark": source.name,
        "split": source.split,
        "rows": len(source.rows),
        "protocol": official.protocol if official else OURS,
        "ask": official.ask if official else None,
        "template": str(source.template),
        "decoding": "greedy",
        "max_tokens": _max_tokens(benchmark, plan),
        "engine": plan.engine.model_dump(mode="json"),
        "space": policy.family.space,
        "pixels": getattr(policy.processor.image_processor, "size", None),
        "versions": run_folder.versions(),
        "git": run_folder.revision(),
    }


def _answer(
    engine: Engine,
    policy: Policy,
    benchmark: Benchmark,
    source: Source,
    manifest: dict[str, Any],
    plan: Plan,
    tell: Told,
) -> list[Answer]:
    """Generate the answers that are not stored yet; return all, in the order of the rows."""
    folder = plan.out / source.name
    stored = {answer.index: answer for answer in _stored(folder, manifest)}
    left = [index for index in range(len(source.rows)) if index not in stored]
    quarantine = Quarantine()
    forms = {source.name: form_of([benchmark.strict.reward()])}
    make = build_prompt_maker(policy, {source.name: plan.protocol == OURS}, forms)
    part = replace(source, rows=View(source.rows, left))
    sampling = Sampling(1, _max_tokens(benchmark, plan), greedy=True)
    for batch in eval_batches([part], make, plan.batch_size, quarantine=quarantine) if left else ():
        rollouts = engine.generate(batch, sampling)
        for prompt, (completion, *_) in zip(batch.prompts, rollouts.completions, strict=True):
            index = prompt.sample.meta[INDEX]
            stored[index] = Answer(
                *(index, completion.text, len(completion.token_ids), completion.finish_reason),
                asdict(completion.frame),
            )
            atomic_files.append_line(folder / "answers.jsonl", asdict(stored[index]))
        tell(source.name, len(stored), len(source.rows))
    if quarantine.counts:
        raise UserError(
            f"benchmark {source.name!r}: rows that cannot be asked: {quarantine.counts}"
        )
    return [stored[index] for index in sorted(stored)]


def _stored(folder: Path, manifest: dict[str, Any]) -> Iterator[Answer]:
    """Yield the answers of an earlier, interrupted evaluation; refuse those of another one."""
    asked = {k: v for k, v in manifest.items() if k not in ("versions", "git", "engine")}
    note = folder / "asked.json"
    if note.is_file():
        before = atomic_files.read_json(note)
        if differing := [key for key in asked if asked[key] != before.get(key)]:
            raise UserError(
                f"{folder}: its answers were given with another {differing[0]}: expected "
                f"{asked[differing[0]]!r}, got {before.get(differing[0])!r}; choose another --out"
            )
        if (folder / "answers.jsonl").is_file():
            yield from (
                Answer(**line) for line in atomic_files.read_lines(folder / "answers.jsonl")
            )
        return
    atomic_files.write_json(note, asked)


def _max_tokens(benchmark: Benchmark, plan: Plan) -> int:
    official = benchmark.official(plan.protocol)
    return plan.max_tokens or (official.max_tokens if official else 512)


def _weights_hash(folder: Path) -> str | None:
    """Return the SHA-256 of a folder's weights; None for the name of a hub."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            while part := content.read(2**20):
                digest.update(part)
    return digest.hexdigest()
