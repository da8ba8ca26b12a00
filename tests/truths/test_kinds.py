"""The contract of a kind of truth, for every file of vlmrl/truths."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import dataclass
from typing import ClassVar

import pytest

from vlmrl import plugins
from vlmrl.config import RewardConfig
from vlmrl.features.verify.reference_answers import examples
from vlmrl.rewards.gui_action import GuiAction
from vlmrl.schema import Box, Demo, Frame, Point, Sample, Truth
from vlmrl.scoring.score_rows import read_row, result_line, score
from vlmrl.scoring.verifier import Verifier, judge
from vlmrl.truths import prompting
from vlmrl.truths.base import kinds

UNIT = Frame(space="norm1")
TRUTHS = [sample.truth for sample, _ in examples()]


def stating(name: str) -> list[Truth]:
    return [truth for truth in TRUTHS if truth.value(name) not in (None, False)]


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda t: "+".join(t.stated()))
def test_truths_survive_pickling_and_compare_by_value(truth: Truth) -> None:
    assert pickle.loads(pickle.dumps(truth)) == truth == copy.deepcopy(truth)
    assert Truth.of(truth.stated()) == truth


def test_kinds_are_found_by_file_and_ordered_by_rank() -> None:
    assert set(kinds()) == {*plugins.names("truth"), "none"} - {"nothing"}
    assert list(kinds())[:2] == ["none", "fields"]


@pytest.mark.parametrize("verifier", plugins.names("verifier"))
def test_verifiers_need_kinds_that_exist(verifier: str) -> None:
    for need in plugins.load("verifier", verifier).needs:
        assert {need} if isinstance(need, str) else set(need) <= set(kinds())


@dataclass(frozen=True)
class Both(Verifier):
    """Needs points and boxes, or masks."""

    needs: ClassVar[tuple[str | tuple[str, ...], ...]] = (("points", "boxes"), "masks")


def test_a_verifier_can_need_several_kinds_at_once() -> None:
    box, point = (Box(0, 0, 1, 1),), (Point(0.5, 0.5),)
    applies = {
        truth: Both().applies_to(Sample("1", "s", (), truth))
        for truth in (
            Truth(points=point),
            Truth(boxes=box),
            Truth(points=point, boxes=box),
            Truth(masks=(((0, 0), (1, 0), (1, 1)),)),
        )
    }
    assert list(applies.values()) == [False, False, True, True]
    assert Both().describe_needs() == "points and boxes, or masks"


@pytest.mark.parametrize(
    "truth",
    [
        Truth(fields={"action": "click"}, points=(Point(0.3, 0.4),)),
        Truth(fields={"action": "click"}, boxes=(Box(0.1, 0.1, 0.3, 0.3),)),
        Truth(fields={"action": "type"}, text=("hello",)),
        Truth(fields={"action": "home"}),
    ],
)
def test_a_demonstrated_action_gets_the_full_score(truth: Truth) -> None:
    frame = Frame(640, 480, "norm1000")
    assert prompting.can_write(truth)
    text = prompting.write_demo(Demo(answer=truth), frame)
    assert judge(GuiAction(), text, truth, frame=frame).score == 1.0
    asked = prompting.instruct("none", truth, "norm1000")
    assert all(word in asked for word in ('"action"', '"position"', '"value"'))


@pytest.mark.parametrize(
    ("verifier", "kind", "value"),
    [
        (
            "oks",
            "keypoints",
            {"keypoints": [[10 + i, 20 + 2 * i, 2] for i in range(17)], "area": 900},
        ),
        ("rotated_iou", "rotated_boxes", {"corners": [[10, 10], [40, 20], [36, 32], [6, 22]]}),
        ("mask_iou", "masks", {"polygon": [[10, 10], [40, 20], [36, 32]]}),
    ],
)
def test_a_row_is_scored_and_its_answer_comes_back_in_the_row_s_space(
    verifier, kind, value
) -> None:
    row = read_row(
        {
            "completion": json.dumps([value]),
            "truth": {kind: [value]},
            "media": {"width": 80, "height": 60},
        }
    )
    reward = RewardConfig(verifier=verifier)
    line = result_line(row, score([row], reward)[0])
    assert line["score"] == pytest.approx(1.0)
    (key,) = {"keypoints", "corners", "polygon"} & set(value)
    found = sorted(tuple(round(n, 6) for n in corner) for corner in line["answer"][0][key])
    assert found == sorted(map(tuple, value[key]))
