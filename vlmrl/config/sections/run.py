"""The section `run` of a config."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from vlmrl.config.section import Section


class RunConfig(Section):
    """Where a run is written, how long it takes, and what it keeps."""

    name: str = "run"
    """Name of the run, in its folder and in trackers."""
    dir: str | None = None
    """Run folder. Absent: `runs/<name>`."""
    seed: int = 0
    """Seed of everything that is drawn at random: data order, completions, a built model's weights."""
    steps: int = Field(100, ge=0)
    """GRPO steps. One step: generate, score, update."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of torch. Absent: torch's own choice."""
    save_every: int = Field(50, ge=1)
    """Steps between checkpoints."""
    save_in_background: bool = False
    """Go on training while a checkpoint is written, from a copy of weights and optimizer state in the
    host's memory. The next checkpoint and the end of the run wait for it."""
    keep_checkpoints: int = Field(2, ge=1)
    """Number of recent checkpoints to keep, beside the best one and the last of the cold start."""
    mirror: str | None = None
    """URL of a folder of runs in an object store, such as `s3://bucket/runs`, or of any other kind that
    fsspec knows. Each checkpoint is copied to the folder of the run's name in it, with the logs, and
    `resume=auto` goes on from there where the run folder is empty. Credentials come from the environment."""
    rollouts_every: int = Field(10, ge=1)
    """Steps between the files `rollouts/step-N.jsonl` and `tokens/step-N.jsonl`. The first and the last step
    are always written."""
    on_full_disk: Literal["stop", "wait"] = "stop"
    """What a full disk does: stop the run in one line, or let it wait until there is room."""
    report: bool = True
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
