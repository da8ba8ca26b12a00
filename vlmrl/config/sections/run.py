"""The section `run` of a config."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from vlmrl import plugins
from vlmrl.config.section import Fixed, Free, Named, Section, refusing
from vlmrl.config.sections.data import SourceConfig
from vlmrl.errors import UserError

# --------------------------------------------------------------------------------------------------
# The section `evaluation` of a config.


class BenchmarkConfig(Named):
    """A public benchmark that is asked during training; a bare string is its name."""

    name: str
    """One of `vlmrl list benchmarks`, one of its other splits, as in `refcoco:testB`, or one of your own:
    `path/own.py:Own` or `package.own:Own`, whose metrics begin with the name of its file, `own/strict`."""
    path: str | None = None
    """Folder of the published data. Absent: the folder of the benchmark's name in `data`."""
    protocol: str = "ours"
    """How it is asked and scored: `ours`, or a harness such as `lmms_eval`, whose number then stands
    beside the strict one. Completions have `rollout.max_tokens` at most."""
    limit: int | None = Field(None, ge=1)
    """Ask at most this many rows, evenly spread over the split. Absent: all."""

    @property
    def label(self) -> str:
        """What its folder and its metrics are called."""
        return plugins.label_of(self.name)

    @property
    def folder(self) -> str:
        """Where its published data are."""
        return self.path or f"data/{self.label.partition(':')[0]}"


class EvaluationConfig(Section):
    """Held-out evaluation with the verifiers that train."""

    sources: Annotated[list[SourceConfig], BeforeValidator(lambda stated: stated or [])] = []
    """Held-out sources. Absent or null: none if there are benchmarks, else the `held_out` split
    of each training source."""
    benchmarks: list[BenchmarkConfig] = []
    """Public benchmarks, whose numbers are the metrics `<benchmark>/strict` and `<benchmark>/official`."""
    every: int = Field(50, ge=1)
    """Steps between evaluations. The model is also evaluated before the first step and after the last."""
    samples: int = Field(0, ge=0)
    """Completions to sample per prompt at temperature 1, in addition to the greedy one; pass@k is
    computed from these."""
    limit: int | None = Field(None, ge=1)
    """Use only the first N rows of each source."""
    batch_size: Free[int] = Field(32, ge=1)
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
    names = [benchmark.label for benchmark in benchmarks]
    for benchmark in benchmarks:
        with refusing("evaluation.benchmarks: "):
            _check_benchmark(benchmark)
        if names.count(benchmark.label) > 1:
            raise ValueError(f"evaluation.benchmarks: {benchmark.name!r} is named twice")
    metrics = ["reward", *(f"{name}/{number}" for name in names for number in ("reward", "strict"))]
    official = [
        f"{benchmark.label}/official" for benchmark in benchmarks if benchmark.protocol != "ours"
    ]
    return [*metrics, *official] if names else []


def _check_benchmark(benchmark: BenchmarkConfig) -> None:
    """Refuse a benchmark, split or protocol that there is not."""
    name, split = plugins.split_of(benchmark.name)
    plugins.check("benchmark", name)
    if split or benchmark.protocol != "ours":
        built = plugins.build("benchmark", name, {"path": benchmark.path or ""})
        built.official(benchmark.protocol)
        if split not in ("", *(known := (built.split, *built.splits))):
            raise UserError(
                f"benchmark {name!r} has no split {split!r}; it has: {', '.join(known)}"
            )


# --------------------------------------------------------------------------------------------------
# The trackers of a run, by name: `tracking: {tensorboard: false, wandb: {project: grounding}}`.


SECRET = re.compile(r"(?:^|_)(?:key|token|secret|password)$")
"""What the name of a tracker's option ends with whose value is never written or sent."""
SECRET_ELSEWHERE = re.compile(
    r"(?i)(?:(?:api|access|auth|private)_?key|(?:^|_)(?:token|secret|password))$"
)
"""The same in all other sections, where a `key` may be that of a JSON answer."""
SECRET_VARIABLE = re.compile(r"(?i)(?:key|token|secret|password)$")
"""What the name of an environment variable ends with whose value is never written or sent."""
MIN_SECRET = 8
"""Characters below which the value of such a variable is no secret, but a word such as `none`."""
SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{16,}|gh[opsu]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{20,}|AKIA[A-Z0-9]{16}|xox[abps]-[\w-]{10,})"
)
"""Tokens of known services, wherever they stand."""
HIDDEN = "***"


def _read(value: object) -> Any:
    """Return the options by tracker, False for one that is off; TensorBoard is on where installed."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a map of trackers, such as {{wandb: {{}}}}, got {value!r:.80}")
    installed = importlib.util.find_spec("tensorboard") is not None
    trackers: dict[str, Any] = {"tensorboard": installed, **value}
    for name, options in trackers.items():
        if options is True:
            trackers[name] = {}
        elif options is None:
            trackers[name] = False
        elif options is not False and not isinstance(options, Mapping):
            raise ValueError(
                f"{name}: expected true, false or a map of options, got {options!r:.80}; "
                f"a project is {name}: {{project: {options}}}"
            )
    return trackers


Trackers = Annotated[dict[str, bool | dict[str, Any]], BeforeValidator(_read)]


def hide_secrets(config: Mapping[str, object]) -> dict[str, Any]:
    """Return a config, or a part of one, as JSON without secrets; `***` stands for each.

    Hidden by name: values of options such as "api_key", `token` or `password`. Hidden by value, in
    any text: the user part of URLs, tokens of known services, and what an environment variable
    named `..._KEY`, `..._TOKEN`, `..._SECRET` or `..._PASSWORD` holds.
    """
    variables = _secret_variables()
    return {
        name: _hide(part, SECRET if name == "tracking" else SECRET_ELSEWHERE, variables)
        for name, part in config.items()
    }


def without_secrets(value: object) -> Any:
    """Return a JSON value of no section in which secrets are `***`, as `hide_secrets` says."""
    return _hide(value, SECRET_ELSEWHERE, _secret_variables())


def _secret_variables() -> list[str]:
    values = [
        value
        for name, value in os.environ.items()
        if SECRET_VARIABLE.search(name) and len(value) >= MIN_SECRET
    ]
    return sorted(values, key=len, reverse=True)


def _hide(value: object, names: re.Pattern[str], variables: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            name: HIDDEN
            if isinstance(inner, str) and names.search(str(name))
            else _hide(inner, names, variables)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_hide(inner, names, variables) for inner in value]
    if not isinstance(value, str):
        return value
    for secret in variables:
        value = value.replace(secret, HIDDEN)
    return SHAPES.sub(HIDDEN, re.sub(r"://[^/@\s]+@", f"://{HIDDEN}@", value))


# --------------------------------------------------------------------------------------------------
# The section `checks` of a config.


class ChecksConfig(Section):
    """Checks during a run: does the engine compute what the trainer does, does the model use its media?"""

    parity_every: int = Field(50, ge=0)
    """Compare the engine's log-probs with the trainer's at the start, after the first update and
    every N steps; 0: never."""
    parity_tolerance: float | None = Field(None, gt=0)
    """Largest mean difference in nats; a larger one stops the run. Absent: chosen by `model.dtype`."""
    parity_exact: bool = False
    """Also compare engines that are exact by construction (`hf`)."""
    media_ablation_every: int = Field(50, ge=0)
    """Blank and swap the media of a few prompts at the start and every N steps; 0: never."""
    media_ablation_prompts: int = Field(8, ge=2)
    """Prompts whose media are blanked and swapped. They stay in memory."""
    media_ablation_min_drop: float | None = Field(0.01, ge=0)
    """Warn when other media lower the log-prob of the model's own answers by less than this many
    nats per token; absent: never."""
    media_ablation_stop: bool = False
    """Stop the run instead of warning."""
    loopholes_every: int = Field(1, ge=0)
    """Compare the reward with strict readings of the same answers, and with what they earn by other prompts'
    truths, every N steps; 0: never."""


# --------------------------------------------------------------------------------------------------
# The section `control` of a config.


class ControlConfig(Section):
    """Control experiments that must not learn."""

    shuffle_rewards: bool = False
    """Permute the rewards over the whole batch before advantages are computed."""
    random_rewards: float | None = Field(None, gt=0, lt=1)
    """Reward each completion with 1 by this chance, else with 0, whatever it says."""


# --------------------------------------------------------------------------------------------------
# The section `run` of a config.


class ResumeConfig(Named):
    """Where a run begins, and what of its config may have changed since."""

    short = "start"
    start: str = "never"
    """`never`, `auto` (from the run folder's last whole checkpoint, if any), or a checkpoint's path."""
    allow: list[str] = []
    """Keys that may have changed though they make the checkpoint another thing, such as `model.path`; a key
    stands for all below it, `data` also for changed rows. Other changes are noted, or of no matter."""


class RunConfig(Section):
    """Where a run is written, how long it takes, and what it keeps."""

    name: Free[str] = "run"
    """Name of the run, in its folder and in trackers."""
    dir: Free[str | None] = None
    """Run folder. Absent: `runs/<name>`."""
    seed: Fixed[int] = 0
    """Seed of everything that is drawn at random: data order, completions, a built model's weights."""
    steps: int = Field(100, ge=0)
    """GRPO steps. One step: generate, score, update."""
    threads: Free[int | None] = Field(None, ge=1)
    """CPU threads of torch. Absent: torch's own choice."""
    cpu_products: Free[Literal["torch", "onednn"]] = "torch"
    """What multiplies float32 matrices on a CPU: torch as it chooses, or oneDNN, about twice as fast on AMD
    CPUs with AVX-512, with results that differ in their last bits and up to 0.1 GB more memory."""
    save_every: Free[int] = Field(50, ge=1)
    """Steps between checkpoints."""
    save_in_background: Free[bool] = False
    """Go on training while a checkpoint is written, from a copy of weights and optimizer state in the
    host's memory. The next checkpoint and the end of the run wait for it."""
    keep_checkpoints: Free[int] = Field(2, ge=1)
    """Number of recent checkpoints to keep, beside the best one and the last of the cold start."""
    mirror: Free[str | None] = None
    """URL of a folder of runs in an object store, such as `s3://bucket/runs`, or of any other kind that
    fsspec knows. Each checkpoint is copied to the folder of the run's name in it, with the logs, and
    `resume=auto` goes on from there where the run folder is empty. Credentials come from the environment."""
    rollouts_every: Free[int] = Field(10, ge=1)
    """Steps between the files `rollouts/step-N.jsonl` and `tokens/step-N.jsonl`. The first and the last step
    are always written."""
    on_full_disk: Free[Literal["stop", "wait"]] = "stop"
    """What a full disk does: stop the run in one line, or let it wait until there is room."""
    report: Free[bool] = True
    """Write report.html at the end."""

    def stores_rollouts(self, step: int) -> bool:
        """Return whether the rollouts of a step, from 1, are written."""
        return step in (1, self.steps) or step % self.rollouts_every == 0

    @field_validator("mirror")
    @classmethod
    def _check_mirror(cls, mirror: str | None) -> str | None:
        """Refuse what is no URL or may hold credentials; the message does not repeat it."""
        if mirror is None:
            return None
        protocol, mark, rest = mirror.partition("://")
        if not mark or not protocol or not rest.strip("/"):
            raise ValueError(
                "expected a URL such as s3://bucket/runs, got none or one without a path"
            )
        if "@" in rest or "?" in rest or "#" in rest:
            raise ValueError(
                "expected a URL without user, password and parameters: credentials come from the "
                "environment of the store's package"
            )
        if "::" in mirror:
            raise ValueError("expected one URL, got a chain of them (::)")
        return mirror
