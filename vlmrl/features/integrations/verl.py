"""Our verifiers as `compute_score` of verl and of EasyR1.

`ground_truth` is JSON text (or an object) with our `truth` and, where it has places, `media`:
`{"truth": {"boxes": [[10, 10, 50, 50]]}, "media": {"width": 640, "height": 480}}`.

Neither trainer can leave a completion out of its group, so a fault has no honest reward there: it
raises, which stops the run, unless `on_fault` names the reward that you want to give instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlmrl.config import ScoringConfig
from vlmrl.errors import UserError
from vlmrl.features.integrations.other_trainers import ForeignScorer, Rewards, stated
from vlmrl.scoring.scorer import Judged


def compute_score(
    rewards: Rewards,
    scoring: ScoringConfig | None = None,
    template: str | None = "think_answer",
    space: str = "pixel",
    on_fault: float | None = None,
) -> Callable[..., dict[str, float]]:
    """Build a function for verl's `reward.custom_reward_function`, called with one completion.

    It returns `score` and `fault` (1 where the verifier failed). Group verifiers cannot be used.

    Raises:
        UserError: see `other_trainers.ForeignScorer`; the function itself: see `ForeignScorer.judge`.
    """
    scorer = ForeignScorer(rewards, scoring, template, space)

    def compute(
        data_source: str,
        solution_str: str,
        ground_truth: object,
        extra_info: object = None,
        **_: Any,
    ) -> dict[str, float]:
        (judged,) = _judge(scorer, [solution_str], [ground_truth])
        return {"score": _paid(judged, on_fault), "fault": float(judged.reward is None)}

    return compute


def easy_r1_compute_score(
    rewards: Rewards,
    scoring: ScoringConfig | None = None,
    template: str | None = "think_answer",
    space: str = "pixel",
    on_fault: float | None = None,
) -> Callable[[Sequence[Mapping[str, Any]]], list[dict[str, float]]]:
    """Build a function for EasyR1's `reward_function`, for `reward_type=batch`.

    It returns `overall`, `fault`, and the score of each verifier that has one for every completion.

    Raises:
        UserError: see `other_trainers.ForeignScorer`; the function itself: see `ForeignScorer.judge`.
    """
    scorer = ForeignScorer(rewards, scoring, template, space)

    def compute(reward_inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
        texts = [fields["response"] for fields in reward_inputs]
        judged = _judge(scorer, texts, [fields["ground_truth"] for fields in reward_inputs])
        parts = [{k: v.score for k, v in j.verdicts.items() if v.score is not None} for j in judged]
        shared = set.intersection(*map(set, parts)) if parts else set()
        return [
            {
                "overall": _paid(j, on_fault),
                "fault": float(j.reward is None),
                **{label: part[label] for label in sorted(shared)},
            }
            for j, part in zip(judged, parts, strict=True)
        ]

    return compute


def _judge(scorer: ForeignScorer, texts: Sequence[str], truths: Sequence[object]) -> list[Judged]:
    rows = [stated(truth) for truth in truths]
    for row in rows:
        if not isinstance(row, Mapping) or "truth" not in row:
            raise UserError(f"expected a ground_truth object with truth and media, got {row!r:.80}")
    media = [row.get("media") for row in rows]
    return scorer.judge(texts, [row["truth"] for row in rows], media, [""] * len(texts))


def _paid(judged: Judged, on_fault: float | None) -> float:
    if judged.reward is not None:
        return judged.reward
    if on_fault is None:
        raise RuntimeError(f"not scored: {judged.reason}; set on_fault to go on regardless")
    return on_fault
