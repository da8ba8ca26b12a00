"""Our verifiers as an outcome reward model (ORM) of ms-swift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlmrl.config import ScoringConfig
from vlmrl.features.integrations.other_trainers import (
    ForeignScorer,
    Rewards,
    media_columns,
    progress_of,
)


def orm(
    rewards: Rewards,
    scoring: ScoringConfig | None = None,
    template: str | None = "think_answer",
    space: str = "pixel",
    group_size: int | None = None,
) -> type:
    """Build a class to register in an `--external_plugins` file.

    Example: orms["vlmrl_box_iou"] = orm("box_iou")

    The data set's rows have a `truth` and, where the truth has places, `media` (width, height); see
    `vlmrl score`. A masked completion gets None, which ms-swift leaves out. `group_size` is
    `--num_generations`.

    Raises:
        UserError: see `other_trainers.ForeignScorer`; a call: see `ForeignScorer.judge` and
            `leave_out`.
    """
    scorer = ForeignScorer(rewards, scoring, template, space, group_size)

    class VerifierORM:
        def __init__(self, args: object = None, **_: Any) -> None:
            self.args = args

        def __call__(
            self,
            completions: Sequence[str],
            truth: Sequence[object],
            trainer_state: object = None,
            **columns: Any,
        ) -> list[float | None]:
            count = len(completions)
            prompts = [messages[:-1] or "" for messages in columns.get("messages", [])]
            judged = scorer.judge(
                completions,
                truth,
                media_columns(columns, count),
                prompts or [""] * count,
                groups=columns.get("prompt_id", range(count)),
                progress=progress_of(trainer_state),
            )
            return scorer.leave_out(judged)

    VerifierORM.__name__ = VerifierORM.__qualname__ = scorer.name
    return VerifierORM
