"""`oks` against pycocotools' computeOks, and what does not count."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pycocotools.cocoeval import COCOeval, Params

from vlmrl.rewards.oks import COCO_SIGMAS, Oks, similarity
from vlmrl.schema import Frame, Truth
from vlmrl.scoring.verifier import judge
from vlmrl.truths import json_form, keypoints

FRAME = Frame(640, 480)


def coco_oks(truths: list[dict], found: list[dict]) -> np.ndarray:
    """computeOks of one image, [P, N]."""
    evaluation = COCOeval(iouType="keypoints")
    evaluation.params = Params(iouType="keypoints")
    evaluation._gts, evaluation._dts = {(1, 1): truths}, {(1, 1): found}
    return evaluation.computeOks(1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_oks_equals_that_of_pycocotools(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truths, found = [], []
    for i in range(3):
        spots = np.column_stack(
            [rng.uniform(0, 640, 17), rng.uniform(0, 480, 17), rng.integers(0, 3, 17)]
        )
        spots[0, 2] = 2
        box = [10.0, 10.0, 100.0, 100.0]
        area = float(rng.uniform(1e3, 9e4))
        truths.append({"keypoints": spots.ravel().tolist(), "area": area, "bbox": box, "ignore": 0})
        near = spots + rng.normal(0, 9, spots.shape)
        near[:, 2] = 2
        found.append({"keypoints": near.ravel().tolist(), "score": 1.0 - i / 10})
    stated = [{"keypoints": t["keypoints"], "area": t["area"]} for t in truths]
    right = json_form.read({"keypoints": stated}, FRAME).value("keypoints")
    read, note = keypoints.read(json.dumps([{"keypoints": f["keypoints"]} for f in found]), FRAME)
    ours = [[similarity(f, r, COCO_SIGMAS, FRAME) for r in right] for f in read]
    assert note == ""
    np.testing.assert_allclose(ours, coco_oks(truths, found), atol=1e-9)


def person(v: int = 2, x: float = 50.0) -> Truth:
    spots = [[x, 10 + 4 * i, 2] for i in range(17)]
    spots[3][2] = v
    return json_form.read({"keypoints": [{"keypoints": spots, "area": 900}]}, Frame(100, 100))


def answer(change: dict[int, object] | None = None, scale: float = 1.0) -> str:
    spots: list[object] = [[50 * scale, (10 + 4 * i) * scale, 2] for i in range(17)]
    for i, spot in (change or {}).items():
        spots[i] = spot
    return json.dumps({"keypoints": spots})


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        (answer(), person(), 1.0),
        (answer({3: [90, 90, 2]}), person(v=0), 1.0),  # not labelled: does not count
        (answer({3: None}), person(), 16 / 17),
        (answer({3: [50, 22, 0]}), person(), 16 / 17),
        (answer({3: [50, 22]}), person(v=1), 1.0),
        (answer({3: "left"}), person(), 0.0),
        (f"[{answer()}, {answer()}]", person(), 0.5),
        ('{"keypoints": [[50, 10, 2]]}', person(), 0.0),
        ("[]", person(), 0.0),
    ],
)
def test_what_counts(text: str, truth: Truth, score: float) -> None:
    assert judge(Oks(), text, truth).score == pytest.approx(score)


@pytest.mark.parametrize(("space", "scale"), [("norm1000", 10.0), ("norm1", 0.01)])
def test_an_answer_is_read_in_the_space_of_its_model(space, scale: float) -> None:
    frame = Frame(100, 100, space)
    assert judge(Oks(), answer(scale=scale), person(), frame=frame).score == pytest.approx(1.0)


def test_other_skeletons_state_their_sigmas() -> None:
    verdict = Oks(sigmas=(0.1,) * 17, threshold=0.9)
    assert judge(verdict, answer({i: [52, 10 + 4 * i, 2] for i in range(17)}), person()).score
    with pytest.raises(ValueError, match="expected 2 keypoints, one a sigma, got 17"):
        judge(Oks(sigmas=(0.1, 0.1)), answer(), person())
    with pytest.raises(ValueError, match="sigmas greater than 0"):
        Oks(sigmas=())
