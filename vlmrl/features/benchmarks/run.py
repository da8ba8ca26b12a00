"""`vlmrl eval --benchmark`: public benchmarks, resumable, with the official and the strict number.

In the output folder each benchmark has a folder of its own: `answers.jsonl`, one line a row, written
as they come; then `result.json` with the manifest, and `rows.csv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from vlmrl import plugins
from vlmrl.answers.templates import Template
from vlmrl.assemble.trained_run import run_of
from vlmrl.benchmarking.aggregates import require_packages
from vlmrl.benchmarking.base import Benchmark, BenchmarkCard, name_of, open_benchmark
from vlmrl.config import Config, ModelConfig, SourceConfig, TurnsConfig
from vlmrl.data.files.rows import RowsView
from vlmrl.data.source import Source, read_template, run_template
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.controls import NO_THINK, controlled
from vlmrl.features.benchmarks.export import can_export, export_answers
from vlmrl.features.benchmarks.judge import check_judge
from vlmrl.features.benchmarks.session import EvaluatedBenchmark, Plan, Session, build_engine
from vlmrl.features.benchmarks.tables import sum_up
from vlmrl.media.access import Access
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.runs.output.outputs import Output
from vlmrl.runs.run_log import SILENT

MAX_LENGTH = 32768
"""Longest rollout of several turns of a model without a run, in tokens: benchmarks have large images."""


def evaluate_benchmarks(
    model: str, names: Sequence[str], plan: Plan, output: Output = SILENT
) -> list[EvaluatedBenchmark]:
    """Evaluate a checkpoint folder, a run folder or a hub name on benchmarks, greedily.

    Completions are split by the plan's template, else by that of the model's run; without either, an answer
    to a harness's prompt is a whole, and one to ours stands in its tag.

    Rows that `answers.jsonl` in the output folder holds already are not asked again. `output` says how far it
    is, and each result as soon as it is there.

    Raises:
        UserError: no such benchmark, protocol or data; a wrong number of rows; answers in the
            output folder that were given under other circumstances.
    """
    run, folder = run_of(model)
    template = _template(plan, run, model)
    folders = [plan.data_root / plugins.label_of(name).partition(":")[0] for name in names]
    opened = [open_benchmark(*pair) for pair in zip(names, map(str, folders), strict=True)]
    exported = _exported(opened, plan)
    if plan.judge:
        check_judge(plan.judge, opened, plan.protocol, run)
    sources = [
        _open(name, benchmark, plan, template)
        for name, benchmark in zip(names, opened, strict=True)
    ]
    for source in sources:
        for control in plan.controls:
            controlled(source, control)  # refused before the model is loaded
    settings = ModelConfig(path=folder)
    with output.doing(f"loading model {folder}"):
        policy = Policy(*load_model(settings), settings)
    turns = _turns(run, plan)
    results = []
    with ExitStack() as stack:
        chosen = build_engine(plan, sources, turns)
        with output.doing(f"starting engine {plan.engine.name}"):
            engine = chosen.start(policy)
        stack.callback(engine.close)
        for benchmark, source in zip(opened, sources, strict=True):
            session = Session(engine, policy, plan, folder, output, turns, run)
            result = session.evaluate(benchmark, source)
            if plan.export and benchmark in exported:
                export_answers(plan.export, plan.out / plan.export, source, result)
            results.append(session.with_controls(benchmark, source, result))
            output.say(sum_up(results[-1], plan.out / source.name))
    if plan.export and (left := [name_of(each) for each in opened if each not in exported]):
        output.show(f"not exported, {plan.export} has no task for them: {', '.join(left)}")
    return results


def _exported(opened: Sequence[Benchmark], plan: Plan) -> list[Benchmark]:
    """Return the benchmarks that the plan exports.

    Raises:
        UserError: the harness is not that of the protocol, or has no task for any of them.
    """
    if not plan.export:
        return []
    chosen = [each for each in opened if can_export(plan.export, each, plan.protocol)]
    if not chosen:
        names = ", ".join(map(name_of, opened))
        raise UserError(f"vlmrl eval --export: {plan.export} has no task for any of {names}")
    return chosen


def _template(plan: Plan, run: Config | None, model: str) -> str | Template | None:
    if plan.template is not None:
        return read_template(SourceConfig(card="benchmark", template=plan.template))
    if run is None:
        return None
    try:
        return run_template(run)
    except UserError as error:
        raise UserError(
            f"{model}: its config names no template, and its data do not tell: {error}; give --template"
        ) from error


def _turns(run: Config | None, plan: Plan) -> TurnsConfig | None:
    """Return the limits of several turns where the plan has tools: the run's, if there is one."""
    if not plan.tools:
        return None
    if NO_THINK in plan.controls:
        raise UserError(f"vlmrl eval --control {NO_THINK}: expected no --tools")
    return run.last.rollout.turns if run else TurnsConfig(max_length=MAX_LENGTH)


def _open(name: str, benchmark: Benchmark, plan: Plan, template: str | Template | None) -> Source:
    """Open the rows of a benchmark and count them; without a template they have the prompt's."""
    card = BenchmarkCard(benchmark, plan.protocol)
    if card.official:
        require_packages((card.official.aggregate, *card.official.also))
    template = template or (card.official.template if card.official else "answer_only")
    rows = card.rows(benchmark.split)
    if rows.published != benchmark.count and plan.limit is None:
        raise UserError(
            f"benchmark {name!r}: expected {benchmark.count} rows in split {benchmark.split!r}, got "
            f"{rows.published} in {benchmark.path}; --limit N evaluates the first N whatever there is"
        )
    kept = RowsView(rows, range(min(plan.limit, len(rows)))) if plan.limit else rows
    access = Access(root=card.media_root())
    label = plugins.label_of(name)
    return Source(label, card, benchmark.split, kept, template=template, access=access)
