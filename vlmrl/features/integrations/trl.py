"""Our verifiers as a TRL reward function (`GRPOTrainer(reward_funcs=...)`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vlmrl.config import ScoringConfig
from vlmrl.features.integrations.other_trainers import (
    ForeignScorer,
    Rewards,
    media_columns,
    message_text,
    progress_of,
)


def reward_function(
    rewards: Rewards,
    scoring: ScoringConfig | None = None,
    template: str | None = "think_answer",
    space: str = "pixel",
    group_size: int | None = None,
) -> Callable[..., list[float | None]]:
    """Build a function for `reward_funcs` that pays what our scorer pays.

    The data set has a column `truth` and, where the truth has places, `media` (width, height) or a
    column `image` or `images` of PIL images. A masked completion gets None, which TRL leaves out
    of its group; schedules follow the trainer's steps; each verifier has a curve of its own.

    Example: GRPOTrainer(model, reward_funcs=reward_function(["box_iou", "format"]), ...)

    Raises:
        UserError: see `other_trainers.ForeignScorer`; the function itself: see `ForeignScorer.judge`
            and `leave_out`.
    """
    scorer = ForeignScorer(rewards, scoring, template, space, group_size)

    def reward(
        prompts: Sequence[object],
        completions: Sequence[object],
        truth: Sequence[object],
        trainer_state: object = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        judged = scorer.judge(
            [message_text(completion) for completion in completions],
            truth,
            media_columns(columns, len(completions)),
            prompts,
            # TRL repeats a row for each of its completions, side by side. It puts the row's images
            # into the prompt anew each time: what tells rows apart is the text and the truth.
            groups=[
                (i // (group_size or 1), message_text(prompt), repr(stated))
                for i, (prompt, stated) in enumerate(zip(prompts, truth, strict=True))
            ],
            progress=progress_of(trainer_state),
        )
        if log_metric:
            for label in judged[0].verdicts:
                scores = [j.verdicts[label].score for j in judged]
                known = [score for score in scores if score is not None]
                if known:
                    log_metric(f"vlmrl/{label}", sum(known) / len(known))
            log_metric("vlmrl/masked", sum(j.reward is None for j in judged) / len(judged))
        return scorer.leave_out(judged)

    reward.__name__ = scorer.name
    return reward
