"""Scoring rows of a file: the columns, the rows that are refused, and `vlmrl score`."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.config import RewardConfig
from vlmrl.errors import UserError
from vlmrl.schema import Box, BoxTrack, Frame, Point, Span, Truth
from vlmrl.scoring.score_rows import read_row, read_rows, result_line, score, score_file
from vlmrl.truths import json_form

VERIFIERS = """
from dataclasses import dataclass
from typing import ClassVar
from vlmrl.answers import geometry, parsing
from vlmrl.schema import Verdict
from vlmrl.scoring.verifier import BatchVerifier, GroupVerifier, Verifier

@dataclass(frozen=True)
class Overlap(Verifier):
    needs: ClassVar = ("boxes",)

    def __call__(self, completion, sample):
        found, note = parsing.boxes(completion.answer or "", completion.frame)
        iou = geometry.iou(found[0], sample.truth.boxes[0]) if found else 0.0
        return Verdict(iou, {"iou": iou}, tuple(found), note)

@dataclass(frozen=True)
class Best(GroupVerifier):
    def judge(self, completions, sample, rewards):
        return [Verdict(float(r == max(rewards))) for r in rewards]

@dataclass(frozen=True)
class Share(BatchVerifier):
    def judge(self, groups, samples):
        return [[Verdict(1 / len(groups)) for _ in group] for group in groups]

def same(answer, truth):
    return float(answer == truth.text[0])
"""
MEDIA = {"width": 200, "height": 100}
TRUTH = {"boxes": [{"box": [20, 10, 120, 60], "label": "dog"}]}


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(VERIFIERS)
    return str(tmp_path / "mine.py")


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def scored(mine: str, verifier: str, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    path = write(Path(mine).parent, *rows)
    return score_file(path, RewardConfig(verifier=f"{mine}:{verifier}"))


def test_a_result_line_has_the_contracts_keys_and_the_rows_space(mine: str) -> None:
    row = {"completion": "<think>x</think><answer>[20, 10, 120, 60]</answer>", "truth": TRUTH}
    (line,) = scored(mine, "Overlap", {**row, "media": MEDIA, "template": "think_answer"})
    box = pytest.approx([20, 10, 120, 60])
    assert line == {
        "score": pytest.approx(1.0),
        "fault": None,
        "parts": {"iou": pytest.approx(1.0)},
        "answer": [{"box": box}],
        "note": "",
    }
    assert json.loads(json.dumps(line)) == line


@pytest.mark.parametrize(
    ("space", "truth", "completion"),
    [
        ("pixel", [20, 10, 120, 60], [20, 10, 120, 110]),
        ("norm1000", [100, 100, 600, 600], [100, 100, 600, 1100]),
        ("norm1", [0.1, 0.1, 0.6, 0.6], [0.1, 0.1, 0.6, 1.1]),
        ("resized", [40, 40, 240, 240], [40, 40, 240, 440]),
    ],
)
def test_space_names_the_coordinates_of_truth_and_completion_alike(
    mine: str, space: str, truth: list[float], completion: list[float]
) -> None:
    media = {**MEDIA, "resized_width": 400, "resized_height": 400}
    row = {"completion": str(completion), "truth": {"boxes": [truth]}, "media": media}
    (line,) = scored(mine, "Overlap", {**row, "space": space})
    # the prediction is clipped at the lower edge: height 0.9 against the truth's 0.5
    assert line["score"] == pytest.approx(0.5 / 0.9)


def test_without_a_template_the_answer_tag_or_the_whole_text_is_graded(mine: str) -> None:
    rows = [
        {"completion": text, "truth": {"text": "cat"}}
        for text in ("cat", "<think>dog</think>cat", "so <answer> cat </answer>.", "<think>cat")
    ]
    assert [line["score"] for line in scored(mine, "same", *rows)] == [1.0, 1.0, 1.0, 0.0]


def test_rows_of_one_group_are_judged_together(mine: str) -> None:
    rows = [
        {"completion": "a", "truth": {"number": 1}, "group": g, "reward": r}
        for g, r in [("x", 0.1), ("y", 0.9), ("x", 0.4), ("y", 0.2)]
    ]
    assert [line["score"] for line in scored(mine, "Best", *rows)] == [0.0, 1.0, 1.0, 0.0]
    assert [line["score"] for line in scored(mine, "Share", *rows)] == [0.5] * 4


def test_rows_without_a_group_belong_together_by_prompt_and_truth(mine: str) -> None:
    rows = [
        {"completion": "a", "truth": {"number": n}, "prompt": "?", "reward": r}
        for n, r in [(1, 0.1), (2, 0.9), (1, 0.4)]
    ]
    assert [line["score"] for line in scored(mine, "Best", *rows)] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "completion",
    [
        "", "   ", "[NaN, 0, 1, 1]", "[1e999, 0, 5, 5]", "[120, 60, 20, 10]", "[0,0,1e308,1e308]",
        "<answer>" * 50 + "[1,2,3,4]" + "</answer>" * 50, "[" * 10_000, "\n" * 1_000_000,
        "[20,10,120,60]" * 100_000, "\ud800[20, 10, 120, 60]", "9" * 400, "<think>[20,10,120,60]",
        "[٢٠, ١٠, ١٢٠, ٦٠]", "\x00", "<|image_pad|>[20, 10, 120, 60]",
    ],
)  # fmt: skip
def test_a_hostile_completion_gives_a_bounded_score_and_a_line(mine: str, completion: str) -> None:
    (line,) = scored(mine, "Overlap", {"completion": completion, "truth": TRUTH, "media": MEDIA})
    assert line["fault"] is None and 0.0 <= line["score"] <= 1.0
    json.dumps(line, allow_nan=False)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object"),
        ({"truth": TRUTH}, "completion: expected a string, got None"),
        ({"completion": "x"}, "expected a truth with some of"),
        ({"completion": "x", "truth": {}}, "expected a truth with some of"),
        ({"completion": "x", "truth": {"box": []}}, "truth has no key 'box'; did you mean 'boxes'"),
        ({"completion": "x", "truth": {"number": "3"}}, r"truth\.number: expected a finite number"),
        (
            '{"completion": "x", "truth": {"number": NaN}}',
            r"truth\.number: expected a finite number",
        ),
        ({"completion": "x", "truth": {"text": ""}}, r"truth\.text: expected a text"),
        (
            {"completion": "x", "truth": {"none": False}},
            "expected true, got False; leave the key out",
        ),
        ({"completion": "x", "truth": TRUTH}, "expected the media's width and height"),
        (
            {"completion": "x", "truth": {"boxes": [[1, 2, 3]]}, "media": MEDIA},
            "expected 4 numbers for a box",
        ),
        (
            {"completion": "x", "truth": {"boxes": [[300, 0, 400, 9]]}, "media": MEDIA},
            "expected a box with area inside the media",
        ),
        (
            {"completion": "x", "truth": TRUTH, "media": {"width": 0}},
            r"media\.width: expected a positive",
        ),
        ({"completion": "x", "truth": TRUTH, "media": {"heigth": 1}}, "did you mean 'height'"),
        ({"completion": "x", "truth": {"number": 1}, "space": "px"}, "space 'px'; there are"),
        ({"completion": "x", "truth": {"number": 1}, "template": "thnk_answer"}, "did you mean"),
        (
            {"completion": "x", "truth": {"number": 1}, "tempalte": "none"},
            "did you mean 'template'",
        ),
    ],
)
def test_a_bad_row_is_an_error_that_names_file_line_and_key(
    tmp_path: Path, row: Any, message: str
) -> None:
    path = write(tmp_path, {"completion": "x", "truth": {"number": 1}}, row)
    with pytest.raises(UserError, match=rf"rows\.jsonl:2: .*{message}"):
        read_rows(path)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"completion": "\xff", "truth": {"number": 1}}\n')
    with pytest.raises(UserError, match=r"rows\.jsonl:1: not valid JSON"):
        read_rows(path)


def test_a_file_that_is_missing_or_empty_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_rows(tmp_path / "no.jsonl")
    with pytest.raises(UserError, match="has no rows"):
        read_rows(write(tmp_path, "", " "))


def test_a_truth_without_what_the_verifier_needs_names_the_row(mine: str) -> None:
    with pytest.raises(UserError, match=r"sample 'line 1'.*Overlap needs boxes"):
        scored(mine, "Overlap", {"completion": "x", "truth": {"number": 1}})


def test_a_fault_is_a_line_with_a_reason_and_no_score(mine: str) -> None:
    (line,) = scored(mine, "same", {"completion": "x", "truth": {"number": 1}})
    assert line["score"] is None and line["fault"].startswith("TypeError")


def test_every_kind_of_truth_is_read_into_the_unit_square() -> None:
    frame = Frame(200, 100, duration=9.0)
    read = json_form.read(
        {
            "boxes": [[20, 10, 120, 60]],
            "points": [{"point": [100, 50], "label": "nose"}],
            "spans": [{"span": [2, 20]}, [1, 3.5]],
            "track": [{"time": 0, "box": [0, 0, 20, 10]}, {"time": 0.5, "box": [20, 0, 40, 10]}],
            "text": "cat",
            "number": 3,
            "choice": "B",
            "options": ["x", "y"],
            "labels": ["edema"],
            "masks": [[[0, 0], [200, 0], [0, 100]], {"size": [2, 2], "counts": "04"}],
            "fields": {"action": "click"},
        },
        frame,
    )
    assert read == Truth(
        boxes=(Box(0.1, 0.1, 0.6, 0.6),),
        points=(Point(0.5, 0.5, "nose"),),
        spans=(Span(2.0, 9.0), Span(1.0, 3.5)),
        track=BoxTrack((0.0, 0.5), (Box(0.0, 0.0, 0.1, 0.1), Box(0.1, 0.0, 0.2, 0.1))),
        text=("cat",),
        number=3.0,
        choice="B",
        options=("x", "y"),
        labels=("edema",),
        masks=(((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)), {"size": [2, 2], "counts": "04"}),
        fields={"action": "click"},
    )


edge = st.floats(0, 1).map(lambda x: round(x, 6))


@given(x1=edge, y1=edge, w=st.floats(1e-3, 1), h=st.floats(1e-3, 1))
def test_an_answer_goes_back_to_the_space_it_came_from(
    x1: float, y1: float, w: float, h: float
) -> None:
    frame = Frame(640, 480, space="pixel")
    box = Box(x1, y1, x1 + w, y1 + h)
    back = json_form.convert([box], frame)[0]
    assert back.xyxy == pytest.approx((x1 * 640, y1 * 480, (x1 + w) * 640, (y1 + h) * 480))


def test_rows_can_be_scored_one_by_one_in_memory(mine: str) -> None:
    row = read_row({"completion": "cat", "truth": {"text": ["dog", "cat"]}})
    (verdict,) = score([row], RewardConfig(verifier=f"{mine}:same"))
    assert result_line(row, verdict)["score"] == 0.0
