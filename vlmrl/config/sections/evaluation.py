"""The section `evaluation` of a config."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from vlmrl import plugins
from vlmrl.config.section import Named, Section
from vlmrl.config.sections.data import SourceConfig
from vlmrl.errors import UserError


class BenchmarkConfig(Named):
    """A public benchmark that is asked during training; a bare string is its name."""

    name: str
    """One of `vlmrl list benchmarks`, or one of its other splits, as in `refcoco:testB`."""
    path: str | None = None
    """Folder of the published data. Absent: the folder of the benchmark's name in `data`."""
    protocol: str = "ours"
    """How it is asked and scored: `ours`, or a harness such as `lmms_eval`, whose number then stands
    beside the strict one. Completions have `rollout.max_tokens` at most."""
    limit: int | None = Field(None, ge=1)
    """Ask at most this many rows, evenly spread over the split. Absent: all."""


class EvaluationConfig(Section):
    """Held-out evaluation with the verifiers that train."""

    sources: list[SourceConfig] = []
    """Held-out sources. Absent: none if there are benchmarks, else the training sources with split
    `test`."""
    benchmarks: list[BenchmarkConfig] = []
    """Public benchmarks, whose numbers are the metrics `<benchmark>/strict` and `<benchmark>/official`."""
    every: int = Field(50, ge=1)
    """Steps between evaluations. The model is also evaluated before the first step and after the last."""
    samples: int = Field(0, ge=0)
    """Completions to sample per prompt at temperature 1, in addition to the greedy one; pass@k is
    computed from these."""
    limit: int | None = Field(None, ge=1)
    """Use only the first N rows of each source."""
    batch_size: int = Field(32, ge=1)
    """Prompts to generate at a time."""
    force_thinking: bool = False
    """Also answer every question twice more, greedily: once forced to think and once forced not to.
    Needs a template that begins with a thought."""
    metric: str = "reward"
    """Metric that chooses the best checkpoint: `reward`, a verifier's name, `<source>/<verifier>`, or a
    benchmark's number, such as `chartqa/strict`."""
    pass_threshold: float = 0.5
    """A completion passes (pass@k) when its `metric` is at least this."""
    bootstrap_resamples: int = Field(1000, ge=100)
    """Resamples of the bootstrap that gives the 95 % intervals."""


def benchmark_metrics(benchmarks: Sequence[BenchmarkConfig]) -> list[str]:
    """Return the metrics that benchmarks give; refuse one that there is not, or that is named twice."""
    names = [one.name for one in benchmarks]
    for one in benchmarks:
        try:
            _check_benchmark(one)
        except UserError as error:
            raise ValueError(f"evaluation.benchmarks: {error}") from error
        if names.count(one.name) > 1:
            raise ValueError(f"evaluation.benchmarks: {one.name!r} is named twice")
    given = ["reward", *(f"{name}/{number}" for name in names for number in ("reward", "strict"))]
    official = [f"{one.name}/official" for one in benchmarks if one.protocol != "ours"]
    return [*given, *official] if names else []


def _check_benchmark(one: BenchmarkConfig) -> None:
    """Refuse a benchmark, split or protocol that there is not."""
    name, _, split = one.name.partition(":")
    plugins.check("benchmark", name)
    if split or one.protocol != "ours":
        found = plugins.build("benchmark", name, {"path": one.path or ""})
        found.official(one.protocol)
        if split not in ("", *(known := (found.split, *found.splits))):
            raise UserError(
                f"benchmark {name!r} has no split {split!r}; it has: {', '.join(known)}"
            )
