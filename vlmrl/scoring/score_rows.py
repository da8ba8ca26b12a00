"""`vlmrl score`: rows of a JSONL file in, one result line per row out.

A row is `{"completion": str, "truth": {...}, "media": {"width", "height", "duration"}, "template":
name, "space": name, "prompt": str}`; all but the first two may be absent. `space` names the space
of the truth's and of the completion's coordinates (`pixel` when absent; `resized` needs
`media.resized_width` and `media.resized_height`). `media` may be a list, of which `truth.image` says
which one the places are in. Without a `template` the answer is the `<answer>`
tag if the completion has one, else everything after the thought. `id` and `meta` go to the sample.

For group verifiers rows of one `group` are one group (rows of one prompt, truth and media when
absent), and `reward` is what the item verifiers gave.

A row's own `rewards` (a list of names or of `{verifier, weight, options}`) judge it in place of the
verifier: `score` is then their weighted mean, `parts` their scores. Its `rubric` is what `judge` scores.

A result line is `{"score": float|null, "fault": str|null, "parts": {...}, "answer": ..., "note":
str}`. A bad row is the user's mistake and an error; a hostile completion never is.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from vlmrl.answers import templates
from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.data.row_forms import read_rewards, read_rubric
from vlmrl.errors import UserError
from vlmrl.plugins import nearest
from vlmrl.schema import Completion, Frame, RowReward, Sample, Space, Verdict
from vlmrl.scoring.calls import Calls
from vlmrl.scoring.combine import guard_many
from vlmrl.scoring.reward_components import Component, build, from_row, resolve
from vlmrl.scoring.scorer import Judged, Scorer
from vlmrl.scoring.verifier import GroupVerifier
from vlmrl.truths import json_form
from vlmrl.truths.json_form import to_json

_T = TypeVar("_T")

KEYS = (
    "completion", "truth", "media", "template", "space", "prompt", "id", "meta", "group", "reward",
    "rewards", "rubric",
)  # fmt: skip
MEDIA_KEYS = ("width", "height", "duration", "resized_width", "resized_height")
SOURCE = "rows"


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One row: a completion, the sample it answers, its group and its item reward, if stated."""

    completion: Completion
    sample: Sample
    group: str
    reward: float | None = None


def read_rows(path: str | Path) -> list[ScoredRow]:
    """Return all rows of a JSONL file but blank lines; a UserError names file, line and key."""
    return read_lines(Path(path), read_row)


def read_lines(path: Path, read: Callable[[Any, str], _T]) -> list[_T]:
    """Return what `read` makes of each line's JSON value and its name (`line 3`); blank ones are skipped.

    Raises:
        UserError: no such file, no lines, or a bad one; the message names file, line and key.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(read(json.loads(line), f"line {number}"))
        except ValueError as error:
            raise UserError(f"{path}:{number}: not valid JSON: {error}") from error
        except UserError as error:
            raise UserError(f"{path}:{number}: {error}") from error
    if not rows:
        raise UserError(f"{path}: has no rows")
    return rows


def read_row(row: object, name: str = "row") -> ScoredRow:
    """Return one row; `name` is the sample's id where the row states none.

    Raises:
        UserError: a missing or unknown key, or a value of the wrong kind.
    """
    if not isinstance(row, Mapping):
        raise UserError(f"expected a JSON object, got {row!r:.80}")
    for key in row:
        if key not in KEYS:
            raise UserError(f"unknown key {key!r}{nearest(key, list(KEYS))}")
    text = row.get("completion")
    if not isinstance(text, str):
        raise UserError(f"completion: expected a string, got {text!r:.80}")
    frame = _frame(_choose_medium(row), row.get("space", "pixel"))
    template = row.get("template") or ("answer_only" if "<answer>" in text else "none")
    prompt = str(row.get("prompt", ""))
    sample = Sample(
        id=str(row.get("id", name)),
        source=SOURCE,
        parts=(prompt,),
        truth=json_form.read(row.get("truth"), frame),
        template=template,
        meta=row.get("meta") or {},
        rewards=read_rewards(row.get("rewards")),
        rubric=read_rubric(row.get("rubric")),
    )
    same = [row.get(key) for key in ("prompt", "truth", "media", "rewards")]
    group = json.dumps(row.get("group", same), sort_keys=True)
    return ScoredRow(templates.completion(text, template, frame), sample, group, row.get("reward"))


def _choose_medium(row: Mapping[str, object]) -> Any:
    """Return the medium that the row's truth is about."""
    media, truth = row.get("media") or {}, row.get("truth")
    image = (
        json_form.read_image(truth.get("image", 0), "truth.image") if isinstance(truth, dict) else 0
    )
    listed = media if isinstance(media, list) else [media]
    if image >= len(listed):
        raise UserError(f"truth.image: expected an index below {len(listed)}, got {image}")
    return listed[image]


def _frame(media: Any, space: Any) -> Frame:
    if not isinstance(media, Mapping):
        raise UserError(f"media: expected an object, got {media!r:.80}")
    for key, value in media.items():
        if key not in MEDIA_KEYS:
            raise UserError(f"media has no key {key!r}{nearest(str(key), list(MEDIA_KEYS))}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise UserError(f"media.{key}: expected a positive number, got {value!r:.80}")
    if space not in get_args(Space):
        raise UserError(f"space {space!r}; there are: {', '.join(get_args(Space))}")
    return Frame(space=space, **media)


def score(rows: Sequence[ScoredRow], reward: RewardConfig) -> list[Verdict]:
    """Return the verdict of one verifier on every row, in order; UserError: it cannot judge one of them."""
    component = resolve(reward)
    kinds = [[i for i, r in enumerate(rows) if bool(r.sample.rewards) == own] for own in (1, 0)]
    own, others = ([rows[i] for i in kind] for kind in kinds)
    return _by_row(kinds, [_score_by_own(own), _score_by(others, reward, component)])


def by_reward(
    rows: Sequence[ScoredRow], reward: RewardConfig
) -> list[tuple[RewardConfig, list[ScoredRow]]]:
    """Return every distinct verifier with its rows: those that rows name, and `reward` for the others."""
    groups: dict[RowReward | None, list[ScoredRow]] = {}
    for row in rows:
        for own in row.sample.rewards or (None,):
            groups.setdefault(own and replace(own, weight=1.0), []).append(row)
    return [(from_row(own) if own else reward, of) for own, of in groups.items()]


def _score_by_own(rows: Sequence[ScoredRow]) -> list[Verdict]:
    """Return what the rewards that each row names for itself add up to."""
    if not rows:
        return []
    groups = _groups(rows, alone=False)
    samples = [rows[group[0]].sample for group in groups]
    with Scorer({SOURCE: []}, ScoringConfig(combine="mean", fault_limit=1.0)) as scorer:
        judged = scorer.judge([[rows[i].completion for i in group] for group in groups], samples)
    return _by_row(groups, [[_add_up(judgement) for judgement in group] for group in judged])


def _add_up(judged: Judged) -> Verdict:
    if judged.reward is None:
        return Verdict.failed(judged.reason)
    scored = {label: v for label, v in judged.verdicts.items() if v.applies and v.score is not None}
    parts = {label: float(v.score or 0.0) for label, v in scored.items()}
    answers = [v.answer for v in scored.values() if v.answer is not None]
    return Verdict(judged.reward, parts, answer=answers[0] if answers else None)


def _score_by(
    rows: Sequence[ScoredRow], reward: RewardConfig, component: Component
) -> list[Verdict]:
    verifier = component.verifier
    groups = _groups(rows, alone=verifier.scope == "item")
    completions = [[rows[i].completion for i in group] for group in groups]
    samples = [rows[group[0]].sample for group in groups]
    if isinstance(verifier, GroupVerifier):
        paid = [[rows[i].reward for i in group] for group in groups]
        verdicts = _judge_groups(component, list(zip(completions, samples, paid, strict=True)))
    else:
        with Scorer({SOURCE: [reward]}, ScoringConfig(fault_limit=1.0)) as scorer:
            judged = scorer.judge(completions, samples)
        verdicts = [[judgement.verdicts[reward.label] for judgement in group] for group in judged]
    return _by_row(groups, verdicts)


def _judge_groups(component: Component, groups: Sequence[tuple[Any, ...]]) -> list[list[Verdict]]:
    """Return the verdicts of a group verifier on each (completions, sample, item rewards)."""
    verifier = component.verifier
    assert isinstance(verifier, GroupVerifier)
    memory = ScoringConfig().worker_memory_mb
    with contextlib.closing(Calls(1, [component.spec], memory)) as calls:

        def judge(*arguments: Any) -> Any:
            if component.deadline is None:
                return verifier.judge(*arguments)
            return calls.result(component, calls.start(component, *arguments))

        return [guard_many(verifier, len(g[0]), judge, *g) for g in groups]


def _groups(rows: Sequence[ScoredRow], alone: bool) -> list[list[int]]:
    """Return the rows of each group, by position."""
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(str(i) if alone else row.group, []).append(i)
    return list(groups.values())


def _by_row(groups: Sequence[list[int]], verdicts: Sequence[list[Verdict]]) -> list[Verdict]:
    """Return the verdicts of groups in the order of their rows."""
    numbers, flat = itertools.chain(*groups), itertools.chain(*verdicts)
    return [verdict for _, verdict in sorted(zip(numbers, flat, strict=True), key=lambda p: p[0])]


def result_line(row: ScoredRow, verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as the contract's plain values; places are in the row's space, times in seconds."""
    return {
        "score": to_json(verdict.score),
        "fault": verdict.fault,
        "parts": to_json(verdict.parts),
        "answer": to_json(json_form.convert(verdict.answer, row.completion.frame)),
        "note": verdict.note if verdict.applies else f"does not apply {verdict.note}".strip(),
    }


def score_file(path: str | Path, reward: RewardConfig) -> list[dict[str, Any]]:
    """Return the result lines of all rows of a file, in order.

    Raises:
        UserError: as `read_rows` and `score`; nothing is scored unless every row can be read.
    """
    build(resolve(reward).spec)  # a misspelt verifier shows before a large file is read
    rows = read_rows(path)
    return [result_line(r, v) for r, v in zip(rows, score(rows, reward), strict=True)]
