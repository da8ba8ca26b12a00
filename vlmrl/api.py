"""What the commands do, as functions: `from vlmrl import load, train, evaluate, generate, verify`.

Each reads what its command reads and gives what that writes, as values. Nothing here imports torch before
it is called. Rewards run in processes that import the main script again: its work is to be below
`if __name__ == "__main__":`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlmrl.config import Config
    from vlmrl.features.benchmarks.sweep_table import Sweep
    from vlmrl.features.serve.predict import Prediction
    from vlmrl.features.verify.attack_bench import Report
    from vlmrl.runs.output.outputs import Output
    from vlmrl.schema import StepReport, Verdict


def load(name: str, *overrides: str) -> Config:
    """Return a config by path or shipped name, checked whole, with the overrides of the command line.

    Example: load("quickstart", "run.steps=3", "algorithm=dr_grpo")

    Raises:
        UserError: what is wrong, a line a problem.
    """
    from vlmrl.assemble.validate import load_valid

    return load_valid(name, overrides)


@dataclass(frozen=True)
class Run:
    """A run of a config: a loop over it trains, and gives every GRPO step as it is done.

    The cold start comes before the first step. Leaving the loop ends the run as Ctrl-C does: it is saved, and
    `resume=auto` goes on. What the run has written can be read at any time, also by another process.

    Example: rewards = [step.metrics["reward/mean"] for step in Run(load("quickstart"))]
    """

    config: Config
    output: Output | None = None
    """Says how it goes; None: what fits standard output."""

    def __iter__(self) -> Iterator[StepReport]:
        """Train, and yield the steps, each with its metrics, rollouts, rewards and advantages.

        Raises:
            UserError: the user's mistakes, before anything is written where that can be known.
        """
        from vlmrl.assemble import lifecycle
        from vlmrl.features.launch.pools import pools_of

        pools = pools_of(self.config)
        return lifecycle.run_steps(
            self.config, pools, output=self.output, write_report=write_report
        )

    @property
    def folder(self) -> Path:
        """Where it writes, `runs/<run.name>`."""
        return self.config.folder

    @property
    def summary(self) -> dict[str, Any] | None:
        """What summary.json says; None before the run has ended or was interrupted."""
        from vlmrl.runs import run_folder

        return run_folder.read_summary(self.folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, one a step."""
        from vlmrl.runs import run_folder

        return run_folder.read_metrics(self.folder)

    @property
    def evaluations(self) -> dict[int, dict[str, Any]]:
        """The result of every evaluation, by the steps that were done."""
        from vlmrl.runs import run_folder
        from vlmrl.system.files import read_json

        files = run_folder.steps_in(self.folder / "evals", ".json")
        return {step: read_json(file) for step, file in files.items()}

    @property
    def checkpoints(self) -> list[Path]:
        """The folders of the checkpoints that are kept, the furthest last."""
        from vlmrl.runs import run_folder

        kept = run_folder.checkpoints(self.folder)
        return sorted(kept, key=lambda path: run_folder.checkpoint_order(path.name))


def write_report(folder: Path) -> None:
    """Write the page of a run that has ended, report.html."""
    from vlmrl.features.report.page import build_report  # brings matplotlib, needed only at the end

    build_report(folder)


def train(
    config: Config,
    *,
    on_step: Callable[[StepReport], object] | None = None,
    output: Output | None = None,
) -> Run:
    """Run a config to its end, or to Ctrl-C, as `vlmrl train` does, and return the run.

    `on_step` is called after every GRPO step, when it is evaluated and written.

    Raises:
        UserError: as a loop over `Run`.
    """
    run = Run(config, output)
    for step in run:
        if on_step is not None:
            on_step(step)
    return run


def sweep(
    config: Config, values: Mapping[str, Sequence[Any]], *, output: Output | None = None
) -> Sweep:
    """Run every combination of values, as `vlmrl sweep` does, and return the table; `print` shows it.

    Each run has a folder of its own, `runs/<run.name>_lr=0.0001_seed=0`; a finished one is not run again.

    Example: sweep(load("quickstart"), {"optimizer.lr": [1e-4, 4e-4], "run.seed": [0, 1]})

    Raises:
        UserError: a combination is no valid config, or its folder holds a run of another one; what fails
            later is a row's `error`.
    """
    from contextlib import nullcontext

    from vlmrl.features.benchmarks.sweep import combine, run_all
    from vlmrl.features.benchmarks.sweep_table import sum_up
    from vlmrl.runs.output.terminal import choose

    combinations = combine(config, values)
    with choose() if output is None else nullcontext(output) as speaker:
        runs = run_all(combinations, lambda each: train(each, output=speaker).summary, speaker)
    return sum_up(runs)


def evaluate(
    model: str | Path | Run,
    data: str,
    *,
    verifiers: Sequence[str] = (),
    engine: str = "hf",
    out: Path | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Return what `vlmrl eval MODEL --data DATA` measures: metrics, 95 % intervals, faults, manifest.

    `verifiers` and `engine` are as on the command line, `box_iou(threshold=0.5)`. `asked` are `samples`,
    `limit`, `batch_size`, `max_tokens`, `template`, `force_thinking`, and `options` of the card.

    Raises:
        UserError: no such model, card, split or verifier; nothing judges these data; a verifier failed on
            more completions than `scoring.fault_limit` allows.
    """
    from vlmrl.arguments import reference
    from vlmrl.config import RewardConfig, tree
    from vlmrl.features.benchmarks.evaluate import evaluate_model, require_verdicts

    named = [tree.named(text) for text in verifiers]
    rewards = [RewardConfig(verifier=name, options=options) for name, options in named]
    result = evaluate_model(
        _name_of(model), data, rewards=rewards, engine=reference(engine), out=out, **asked
    )
    require_verdicts(result)
    return result


def generate(
    model: str | Path | Run,
    images: Sequence[str | Path],
    question: str,
    *,
    max_tokens: int = 512,
    batch: int = 8,
    plain: bool = False,
    engine: str = "hf",
) -> list[Prediction]:
    """Return the greedy answer about each image, with its boxes and points in pixels.

    A model of a run is asked as its training asked, unless `plain`. An image that cannot be read has its
    `error`.

    Raises:
        UserError: no such model, or the data of its run cannot be read.
    """
    from vlmrl.arguments import reference
    from vlmrl.features.serve.asked_model import ServedModel
    from vlmrl.features.serve.predict import AskedImage, answer_images

    rows = [AskedImage(str(image), question) for image in images]
    asked = ServedModel(_name_of(model), reference(engine))
    try:
        blocks = answer_images(asked, rows, max_tokens=max_tokens, batch=batch, plain=plain)
        return [prediction for block in blocks for prediction in block]
    finally:
        asked.close()


def verify(verifier: str, rows: Sequence[Mapping[str, Any]] = (), **options: Any) -> Report:
    """Attack a verifier, as `vlmrl verify` does; without `findings` no attack was paid.

    `rows` are as for `score`; without them it is attacked on built-in examples.

    Raises:
        UserError: no such verifier or option, a bad row, or nothing to attack it with.
    """
    from vlmrl.config import RewardConfig
    from vlmrl.features.verify.attack_bench import verify as attack
    from vlmrl.scoring.score_rows import read_row

    reward = RewardConfig(verifier=verifier, options=options)
    return attack(reward, [read_row(row, f"row {n}") for n, row in enumerate(rows, start=1)])


def score(verifier: str, rows: Sequence[Mapping[str, Any]], **options: Any) -> list[Verdict]:
    """Return the verdict of a shipped verifier, or of `file.py:function`, on each row of `vlmrl score`.

    Raises:
        UserError: no such verifier or option, or a bad row; a bad completion is never one.
    """
    from vlmrl.config import RewardConfig
    from vlmrl.scoring.score_rows import read_row
    from vlmrl.scoring.score_rows import score as judge

    reward = RewardConfig(verifier=verifier, options=options)
    return judge([read_row(row, f"row {n}") for n, row in enumerate(rows, start=1)], reward)


def _name_of(model: str | Path | Run) -> str:
    return str(model.folder if isinstance(model, Run) else model)
