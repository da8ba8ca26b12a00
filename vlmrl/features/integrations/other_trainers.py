"""Our whole scoring (verifiers, combination, schedules, faults) on another trainer's plain rows.

A row holds our `truth` and `media` as in `vlmrl score` (objects, or their JSON text), beside the
completion. Faults come back as None for trainers that leave None out of a group.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.errors import UserError
from vlmrl.scoring.reward_components import resolve
from vlmrl.scoring.score_rows import SOURCE, read_row
from vlmrl.scoring.scorer import Judged, Scorer

Rewards = str | RewardConfig | Sequence[str | RewardConfig]
"""A verifier by name, or several as in a config's `rewards`."""


class ForeignScorer:
    """Scores rows with some verifiers; `group_size` is needed by group and batch verifiers alone.

    Raises:
        UserError: no such verifier or option; a group verifier without a group size.
    """

    def __init__(
        self,
        rewards: Rewards,
        scoring: ScoringConfig | None,
        template: str | None,
        space: str,
        group_size: int | None = None,
    ) -> None:
        listed = [rewards] if isinstance(rewards, str | RewardConfig) else list(rewards)
        self.rewards = [RewardConfig.model_validate(reward) for reward in listed]
        self.name = "+".join(reward.label for reward in self.rewards)
        self.common = {"space": space, **({"template": template} if template else {})}
        self.group_size = group_size
        self.has_scored = False
        self.scorer = Scorer({SOURCE: self.rewards}, scoring or ScoringConfig())
        for reward in self.rewards:
            if resolve(reward).verifier.scope != "item" and group_size is None:
                raise UserError(
                    f"{reward.label!r} compares the completions of a group: give group_size, the "
                    f"trainer's number of completions per prompt"
                )

    def judge(
        self,
        texts: Sequence[str],
        truths: Sequence[object],
        media: Sequence[object],
        prompts: Sequence[object],
        groups: Sequence[Hashable] = (),
        progress: float = 0.0,
    ) -> list[Judged]:
        """One result per completion, in order; `groups` says which belong to one prompt.

        Raises:
            UserError: a row that cannot be read, a group that is not whole, too many faults.
        """
        columns = zip(texts, truths, media, prompts, strict=True)
        rows = [
            read_row(
                {
                    "completion": text,
                    "truth": stated(truth),
                    "media": stated(medium) or {},
                    "prompt": message_text(prompt),
                    **self.common,
                },
                f"completion {i}",
            )
            for i, (text, truth, medium, prompt) in enumerate(columns)
        ]
        members = self._members(groups) if self.group_size else [[i] for i in range(len(rows))]
        judged = self.scorer.judge(
            [[rows[i].completion for i in group] for group in members],
            [rows[group[0]].sample for group in members],
            progress,
            whole=self.group_size is not None,
        )
        by_row = {
            i: judgement
            for group, of in zip(members, judged, strict=True)
            for i, judgement in zip(group, of, strict=True)
        }
        return [by_row[i] for i in range(len(rows))]

    def leave_out(self, judged: Sequence[Judged]) -> list[float | None]:
        """Return the rewards, with None for a masked completion.

        Raises:
            UserError: none has been scored since the beginning, and `fault_limit` is below 1: a trainer would
                run to its end in silence.
        """
        rewards = [judgement.reward for judgement in judged]
        self.has_scored |= any(reward is not None for reward in rewards)
        if not self.has_scored and self.scorer.scoring.fault_limit < 1:
            reasons = Counter(judgement.reason for judgement in judged)
            reason, times = reasons.most_common(1)[0]
            raise UserError(
                f"{self.name}: none of {len(judged)} completions has a reward; {times} of them: {reason}"
            )
        return rewards

    def _members(self, groups: Sequence[Hashable]) -> list[list[int]]:
        members: dict[Hashable, list[int]] = {}
        for i, group in enumerate(groups):
            members.setdefault(group, []).append(i)
        for group, rows in members.items():
            if len(rows) != self.group_size:
                raise UserError(
                    f"a group has {len(rows)} completions here, not {self.group_size} "
                    f"({group!r:.60}): make each process's batch a multiple of the group size"
                )
        return list(members.values())


def stated(value: object) -> Any:
    """Parse an object from its JSON text, without the keys that Arrow fills with None.

    Raises:
        UserError: the text is no JSON.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise UserError(f"expected truth and media as JSON, got {value!r:.80}") from error
    if isinstance(value, Mapping):
        return {key: inner for key, inner in value.items() if inner is not None}
    return value


def message_text(message: object) -> str:
    """Return the text of a completion or prompt: plain, one chat message, or the last of several."""
    if isinstance(message, str):
        return message
    if isinstance(message, Mapping):
        content = message.get("content")
        if isinstance(content, str):
            return content
        return " ".join(part["text"] for part in content or () if part.get("type") == "text")
    if isinstance(message, Sequence) and message:
        return message_text(message[-1])
    raise UserError(f"expected a text or chat messages, got {message!r:.80}")


def media_columns(columns: Mapping[str, Sequence[object]], count: int) -> Sequence[Any]:
    """Sizes of each row's media: its `media`, else those of the image in `image` or `images`."""
    if "media" in columns:
        return columns["media"]
    images = columns.get("image") or columns.get("images") or [None] * count
    return [_size(image) for image in images]


def progress_of(trainer_state: Any) -> float:
    """Return the share of training done, by transformers' TrainerState; 0 where it is not known."""
    total = getattr(trainer_state, "max_steps", 0)
    return trainer_state.global_step / total if total else 0.0


def _size(image: object) -> dict[str, int]:
    image = image[0] if isinstance(image, list | tuple) and image else image
    size = getattr(image, "size", None)
    return {"width": size[0], "height": size[1]} if isinstance(size, tuple) else {}
