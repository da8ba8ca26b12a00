"""`vlmrl prove`: run the last steps of a run again, and say whether all of it is equal to the bit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmrl.commands.proof.causes import list_changes, list_inexact, list_unfinished
from vlmrl.commands.proof.compare import ProofDifference, compare_runs, read_ranks
from vlmrl.commands.proof.rerun import run_again
from vlmrl.commands.proof.unsteady_calls import find_unsteady_calls
from vlmrl.commands.trained_run import read_config
from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.runs import run_folder
from vlmrl.system.atomic_files import read_json


@dataclass(frozen=True, slots=True)
class Proof:
    """What came of running steps `start + 1` to `end` again on `ranks` ranks."""

    run: Path
    start: int
    end: int
    ranks: int
    differences: Sequence[ProofDifference]
    causes: Sequence[str]
    """What may have made a difference: what is other than it was, and what is never the same twice."""

    @property
    def equal(self) -> bool:
        """Return whether nothing differs."""
        return not any(difference.unequal for difference in self.differences)

    def lines(self) -> Iterator[str]:
        """Yield the outcome for a person, the verdict first."""
        steps = f"steps {self.start + 1} to {self.end} of {self.run}, run again"
        on = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        yield f"{'EQUAL' if self.equal else 'NOT EQUAL'}: {steps}{on} from checkpoint step-{self.start}"
        yield from (f"  {difference}" for difference in self.differences)
        if not self.equal:
            yield "what may have made the difference:" if self.causes else "no cause is known"
            yield from (f"  - {cause}" for cause in self.causes)


def prove(run: Path, steps: int | None = None) -> Proof:
    """Run the steps after an earlier checkpoint again in a scratch folder; `run` is only read.

    They begin from the last checkpoint before the newest one, or the last that is at least `steps`
    before it.

    Raises:
        UserError: no run, no such checkpoint, or the steps cannot be run again.
    """
    if not (run / "config.json").is_file():
        raise UserError(f"{run}: not a run folder (it has no config.json)")
    config = read_config(run)
    start, end = _choose(run, steps, config)
    ranks = read_ranks(run)
    with tempfile.TemporaryDirectory(prefix="vlmrl-prove-") as folder:
        run_again(run, Path(folder), start, end, ranks)
        differences = compare_runs(run, Path(folder), start, end)
        unsteady = find_unsteady_calls(run, Path(folder), start, end)
    causes = [
        *unsteady,
        *list_unfinished(run / "checkpoints" / f"step-{start}", config),
        *list_changes(read_json(run / "config.json")),
        *list_inexact(config, ranks),
    ]
    return Proof(run, start, end, ranks, differences, causes)


def _choose(run: Path, steps: int | None, config: Config) -> tuple[int, int]:
    """Return the steps of the checkpoints to begin from and to end at."""
    orders = (run_folder.checkpoint_order(path.name) for path in run_folder.checkpoints(run))
    found = sorted(step for is_rl, step in orders if is_rl)
    if not found:
        raise UserError(f"{run}: expected checkpoints of GRPO steps, got none")
    end = found[-1]
    earlier = [step for step in found if step <= end - (steps or 1)]
    if not earlier:
        far = f" at least {steps} steps" if steps else ""
        raise UserError(
            f"{run}: expected a checkpoint{far} before step-{end}, got "
            f"{', '.join(f'step-{step}' for step in found)}: this run kept the last "
            f"{config.run.keep_checkpoints} (run.keep_checkpoints; run.save_every is "
            f"{config.run.save_every}), so its steps cannot be run again"
        )
    for step in (earlier[-1], end):
        path = run / "checkpoints" / f"step-{step}"
        if damage := checkpoint.damage_of(path):
            raise UserError(f"{path} is damaged: {damage}")
    return earlier[-1], end
