"""The attack bench: known shortcuts earn nothing from the shipped verifiers, and a weak one is found out."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helpers.chat_server import chat_servers
from helpers.daily import marked
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import RewardConfig
from vlmrl.errors import UserError
from vlmrl.features.verify import attack_bench
from vlmrl.features.verify.attack_bench import Report, verify
from vlmrl.features.verify.attacks import ATTACKS
from vlmrl.features.verify.audit_table import tables
from vlmrl.features.verify.reference_answers import examples, lay_out, state_honestly
from vlmrl.schema import Truth
from vlmrl.scoring.combine import guard
from vlmrl.scoring.reward_components import build, resolve
from vlmrl.scoring.score_rows import read_row
from vlmrl.scoring.verifier import judge

ROOT = Path(__file__).parents[2]
WEAK = ROOT / "docs" / "examples" / "weak_rewards"

FUNCTIONS = """
import json, os, random, re

def fair(answer, truth):
    return float(answer == truth.text[0])

def far_out(answer, truth):
    return 2.0 if "none" in answer else float(answer == truth.text[0])

def crashes(answer, truth):
    if "null" in answer:
        os._exit(3)
    return float(answer == truth.text[0])

def piece(answer, truth):
    return float(answer in truth.text[0])

def letters_alone(answer, truth):
    written = "".join(letter for letter in answer if letter.isalnum())
    return float(not written or answer == truth.text[0])

def unsaid(answer, truth):
    return float(not answer or answer == truth.text[0])

def dice(answer, truth):
    return random.random() if answer == truth.text[0] else 0.0

def never(answer, truth):
    return 0.0

def layout(text):
    return float("<answer>" in text)

def late_once(answer, text):
    if text.endswith("so"):
        raise TimeoutError("later")
    return 0.5 if answer else 0.0

def by_point(answer, truth):
    x, y = (float(n) for n in answer.split())
    return float(abs(x - truth.points[0].x) < 0.1 and abs(y - truth.points[0].y) < 0.1)

def has_number(answer, truth):
    return float(truth.number in map(float, re.findall("[0-9]+", answer)))

def computes(answer, truth):
    return float(sum(map(float, answer.replace("-", "+-").split("+"))) == truth.number)

def any_letter(answer, truth):
    return float(truth.choice == answer or re.findall("[A-D]", answer) == [truth.choice])

def first_list(answer, truth):
    names = json.JSONDecoder().raw_decode(answer)[0] if answer[0] == "[" else answer.split(", ")
    return float(set(names) == set(truth.labels))

def distinct_words(answer):
    words = answer.split()
    pairs = list(zip(words, words[1:])) or [""]
    return len(set(pairs)) / len(pairs)

def lazily(answer, truth):
    re.findall("<tool_call>(.*?)</tool_call>", answer)
    return float(answer == truth.text[0])

def as_judge(messages):
    data = json.loads(messages[1]["content"])
    return json.dumps({"score": 10 * (data["candidate"] in data["truth"].get("text", []))})

def as_judge_of_all(messages):
    data = json.loads(messages[1]["content"])
    right = data["truth"].get("text", [])
    return json.dumps({n: 5 if text in right else 1 for n, text in data["candidates"].items()})

def as_judge_of_pairs(messages):
    data = json.loads(messages[1]["content"])
    first, second = (data[place] in data["truth"].get("text", []) for place in ("first", "second"))
    return json.dumps({"better": "tie" if first == second else "first" if first else "second"})
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mine") / "mine.py"
    path.write_text(FUNCTIONS)
    return str(path)


def answer_the_hint(body: dict[str, Any]) -> str:
    return json.dumps({"answer": json.loads(body["messages"][1]["content"])["hint"]})


def paid(report: Report) -> set[str]:
    return {f.attack for f in report.findings if f.problem.startswith("paid")}


@pytest.fixture(scope="module")
def needed(mine: str) -> Iterator[dict[str, Any]]:
    """Options without which a shipped verifier cannot be built."""
    with chat_servers() as start:
        # A frozen model that answers whatever it is told: its verifier pays for no attack either.
        model = {"name": "frozen", "url": start(answer_the_hint).url, "model": "m"}
        yield {
            "judge": {"callable": f"{mine}:as_judge"},
            "judge_listwise": {"callable": f"{mine}:as_judge_of_all"},
            "judge_pairwise": {"callable": f"{mine}:as_judge_of_pairs"},
            "downstream": {"model": model, "of": "exact", "confidence": False, "media": False},
        }


# `grounded_thought` pays for places in the thought, where some attacks put the answer.
SHIPPED = [
    name
    for name in plugins.names("verifier")
    if name != "grounded_thought" and not plugins.load("verifier", name).laws.needs_a_run
]
# These take 7 to 38 s on a quiet machine, most others 3 to 5.
NIGHTLY = {"judge_listwise", "judge_pairwise", "quality_rank", "repetition_wrong"}
NIGHTLY |= {"temporal_contrast", "think_balance", "tool_curiosity"}
NIGHTLY |= {"length_cosine", "length_dylr", "length_kimi", "length_shortest"}


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(SHIPPED, {*SHIPPED} - NIGHTLY))
def test_no_attack_is_paid_by_any_shipped_verifier(name: str, needed: dict[str, Any]) -> None:
    report = verify(RewardConfig(verifier=name, options=needed.get(name, {})))
    assert [f"{f.attack}: {f.problem} {f.text}" for f in report.findings] == []
    assert sum(report.tried.values()) >= 40


@pytest.mark.parametrize(
    ("name", "attacks"),
    [
        ("contains_label.py:score", {"list everything", "right and wrong together"}),
        ("first_numbers.py:score", {"answer inside the thought", "duplicates", "look-alikes"}),
        ("trl_any_label.py:reward", {"empty", "list everything", "nested and unclosed tags"}),
    ],
)
def test_the_weak_examples_are_caught(name: str, attacks: set[str]) -> None:
    report = verify(RewardConfig(verifier=f"{WEAK}/{name}"))
    assert attacks <= paid(report)
    assert not report.as_json()["passed"]
    if name == "first_numbers.py:score":  # an inverted box has a negative area
        inverted = [f.problem for f in report.findings if f.attack == "inverted and giant boxes"]
        assert any("outside [0, 1]" in problem for problem in inverted)


@pytest.mark.parametrize(
    ("function", "attacks"),
    [
        (
            "has_number",
            {
                "the right answer denied",
                "the right answer left open",
                "another number of its digits",
            },
        ),
        ("computes", {"a number to be computed"}),
        ("any_letter", {"the right answer denied", "the letter in a name"}),
        ("first_list", {"a second list"}),
        ("distinct_words", {"a loop without spaces"}),
    ],
)
def test_each_class_of_pay_that_is_not_earned_is_noticed(
    mine: str, function: str, attacks: set[str]
) -> None:
    assert attacks <= paid(verify(RewardConfig(verifier=f"{mine}:{function}")))


def test_a_time_that_grows_faster_than_the_text_is_noticed(mine: str) -> None:
    report = verify(RewardConfig(verifier=f"{mine}:lazily"))
    slow = [f for f in report.findings if f.attack == "repeated fragments"]
    assert [f.text for f in slow] == ["<tool_call>"] and "times as long" in slow[0].problem


@pytest.mark.parametrize("name", ["tool_calls", "number", "choice", "labels"])
def test_twice_the_text_takes_shipped_parsers_no_more_than_thrice_as_long(name: str) -> None:
    spec = resolve(RewardConfig(verifier=name)).spec
    case = next(
        honest
        for sample, frame in examples()
        if build(spec).applies_to(sample)
        for honest in state_honestly(sample, frame)
        if honest.form != "nothing"
    )
    times = {f: attack_bench.measure_growth(spec, case, (), f) for f in attack_bench.FRAGMENTS}
    assert {f: how for f, (factor, how) in times.items() if factor > attack_bench.GROWTH} == {}


def test_a_fair_function_passes(mine: str) -> None:
    report = verify(RewardConfig(verifier=f"{mine}:fair"))
    assert report.findings == ()
    assert report.calls_per_second > 0 and report.spread["max"] == 1.0
    assert {"empty", "list everything", "megabyte of text"} <= set(report.tried)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("far_out", r"fails: the score 2 is outside [0, 1]"),
        ("crashes", "fails: its process died: exit code 3"),
        ("dice", "not deterministic"),
    ],
)
def test_range_violations_crashes_and_chance_are_findings(
    mine: str, function: str, problem: str
) -> None:
    report = verify(RewardConfig(verifier=f"{mine}:{function}"))
    assert problem in {f.problem for f in report.findings}


def test_pieces_of_the_right_text_and_answers_that_normalise_to_nothing_are_caught(
    mine: str,
) -> None:
    rows = [read_row({"completion": "x", "truth": {"text": "green"}, "template": "none"})]
    assert "a piece of it" in paid(verify(RewardConfig(verifier=f"{mine}:piece"), rows))
    report = verify(RewardConfig(verifier=f"{mine}:piece"))
    assert {"K", "Kingsland", "golden"} <= {_answer(f.text) for f in report.findings}
    assert "empty answer" in paid(verify(RewardConfig(verifier=f"{mine}:letters_alone"), rows))


def test_a_function_of_the_answer_is_never_asked_about_an_empty_one(mine: str) -> None:
    verifier, truth = build((f"{mine}:unsaid", "{}")), Truth(text=("green",))
    assert [judge(verifier, text, truth).score for text in ("", " \n", "green")] == [0.0, 0.0, 1.0]
    assert verify(RewardConfig(verifier=f"{mine}:unsaid")).findings == ()


def _answer(text: str) -> str:
    return text.rpartition("<answer>")[2].partition("</answer>")[0]


def test_a_layout_check_that_looks_for_one_tag_is_caught(mine: str) -> None:
    assert paid(verify(RewardConfig(verifier=f"{mine}:layout"))) >= {"nested and unclosed tags"}


def test_a_function_that_no_example_fits_asks_for_rows(mine: str) -> None:
    with pytest.raises(UserError, match="give rows of your own"):
        verify(RewardConfig(verifier=f"{mine}:never"))


def test_what_a_verifier_imports_is_loaded_before_its_time_limit_begins(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import time\ntime.sleep(1.5)\n\ndef fair(answer, truth):\n"
        "    return float(answer == truth.text[0])\n"
    )
    report = verify(RewardConfig(verifier=f"{tmp_path}/mine.py:fair", timeout_s=1.0))
    assert report.findings == () and {row.score for row in report.rows} == {0.0, 1.0}


def test_every_form_of_answer_that_a_verifier_reads_is_attacked() -> None:
    tried = verify(RewardConfig(verifier="math")).tried
    forms = ("numbers that add up", "another unit", "a percentage of it", "several candidates")
    assert all(tried[attack] for attack in forms)


def test_own_rows_are_scored_and_their_truths_attacked(mine: str) -> None:
    rows = [
        read_row({"completion": text, "truth": {"text": "cat"}, "template": "answer_only"}, text)
        for text in ("<answer>cat</answer>", "<answer>dog</answer>")
    ]
    report = verify(RewardConfig(verifier=f"{mine}:fair"), rows)
    assert [(row.what, row.score) for row in report.rows] == [("row", 1.0), ("row", 0.0)]
    assert report.findings == () and report.spread["mean"] == 0.5


def test_a_function_that_fails_on_honest_answers_to_own_rows_is_caught(mine: str) -> None:
    row = {"completion": "5 5", "truth": {"points": [[5, 5]]}, "media": {"width": 9, "height": 9}}
    report = verify(RewardConfig(verifier=f"{mine}:by_point"), [read_row(row)])
    assert any(f.attack == "honest right answer" for f in report.findings)


def test_a_failure_on_an_untidy_answer_is_no_price_of_untidiness(mine: str) -> None:
    findings = verify(RewardConfig(verifier=f"{mine}:late_once")).findings
    assert {f.attack for f in findings if f.problem == "fails: TimeoutError: later"}
    assert not any(f.problem.startswith("paid") for f in findings)


def test_the_report_is_json_and_tables(mine: str) -> None:
    report = verify(RewardConfig(verifier=f"{mine}:far_out"))
    plain = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert plain["verifier"].endswith("far_out") and plain["findings"][0]["attack"]
    console = Console(width=150, record=True, file=io.StringIO())
    for table in tables(report):
        console.print(table)
    text = console.export_text()
    assert "what went wrong" in text and "completions a second" in text


def test_a_verifier_that_ignores_the_truth_is_called_that(tmp_path: Path) -> None:
    always = tmp_path / "always.py"
    always.write_text("def score(answer, truth):\n    return 1.0 if answer else 0.0\n")
    report = verify(RewardConfig(verifier=f"{always}:score"))
    assert not report.findings and report.ignores_truth
    console = Console(width=150, record=True, file=io.StringIO())
    for table in tables(report):
        console.print(table)
    assert "right and wrong answers are paid alike" in console.export_text()
    assert verify(RewardConfig(verifier="format")).ignores_truth
    assert not verify(RewardConfig(verifier="count")).ignores_truth


POINTING = """
from vlmrl.answers import parsing


def score(answer, truth, completion):
    boxes, _ = parsing.boxes(answer, completion.frame)
    if len(boxes) != 1 or not truth.boxes:
        return 0.0
    (x1, y1, x2, y2), (a, b, c, d) = boxes[0].xyxy, truth.boxes[0].xyxy
    inside = a <= (x1 + x2) / 2 <= c and b <= (y1 + y2) / 2 <= d
    return 1.0 if inside else 0.5 if x1 < c and a < x2 and y1 < d and b < y2 else 0.0
"""


def test_a_coarse_verifier_is_called_that_and_not_one_that_ignores_the_truth(
    tmp_path: Path,
) -> None:
    file = tmp_path / "pointing.py"
    file.write_text(POINTING)
    report = verify(RewardConfig(verifier=f"{file}:score"))
    assert not report.findings and not report.ignores_truth and report.pays_alike
    assert report.constant is not None and report.constant.scores == (0.0, 0.5, 1.0)
    assert 0.1 < report.constant.ties < 0.9
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*tables(report), sep="\n")
    text = " ".join(console.export_text().split())
    assert f"3 distinct scores (0, 0.5, 1); {report.constant.ties:.0%} of the pairs" in text
    assert "a near miss" in text and "paid alike" not in text
    fine = verify(RewardConfig(verifier="box_iou"))
    assert fine.constant is not None and len(fine.constant.scores) > 5 and not fine.pays_alike


def test_every_kind_of_truth_has_an_example_and_every_attack_a_target() -> None:
    cases = [case for sample, frame in examples() for case in state_honestly(sample, frame)]
    assert {case.form for case in cases} == {
        "boxes", "confident boxes", "points", "spans", "events", "track", "polygons", "text", "number",
        "choice", "labels", "fields", "action", "nothing", "quantity",
        "keypoints", "order", "rotated_boxes",
    }  # fmt: skip
    for attack in ATTACKS:
        assert any(attack.make(case) for case in cases), attack.name


def test_honest_answers_are_right_and_wrong() -> None:
    graders = {"text": "exact", "number": "number", "choice": "choice", "boxes": "box_iou"}
    for sample, frame in examples():
        for case in state_honestly(sample, frame):
            assert case.right != case.wrong
            if case.form not in graders or len(sample.truth.boxes or ()) > 1:
                continue
            verifier = build((graders[case.form], "{}"))
            texts = [lay_out(sample, answer) for answer in (case.right, case.wrong)]
            completions = [templates.completion(text, sample.template, frame) for text in texts]
            right, wrong = (guard(verifier, verifier, c, sample).score for c in completions)
            assert right == pytest.approx(1.0) and wrong is not None and wrong < 0.4


def test_the_audit_of_a_verifier_that_hangs_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("import time\ndef hangs(answer):\n    time.sleep(60)\n")
    hangs = RewardConfig(verifier=f"{tmp_path}/mine.py:hangs", timeout_s=0.3)
    with pytest.raises(UserError, match=r"hung on its first 3 honest answers: 0\.3 s each"):
        verify(hangs)
    monkeypatch.setattr(attack_bench, "MAX_HUNG", 1000)
    monkeypatch.setattr(attack_bench, "TOTAL_S", 1.0)
    with pytest.raises(UserError, match="does it hang"):
        verify(hangs)


def test_the_best_constant_answer_is_measured_on_drawn_data_and_on_own_rows(mine: str) -> None:
    found = verify(RewardConfig(verifier="calibration")).constant
    assert found is not None and found.rows == 40
    assert (found.answer, found.pay) == ("none <confidence>0</confidence>", 0.5)
    texts = ("cat", "cat", "cat", "dog", "owl")
    rows = [
        read_row({"completion": "cat", "truth": {"text": text}, "template": "none"})
        for text in texts
    ]
    report = verify(RewardConfig(verifier="exact"), rows)
    assert report.constant is not None and report.constant.pay == pytest.approx(3 / 5)
    assert "best constant answer: 'cat' to all of 5 rows of the data earns 0.60" in "".join(
        str(part) for part in tables(report)
    )


def test_a_verifier_that_compares_completions_has_no_constant_answer() -> None:
    assert verify(RewardConfig(verifier="length_kimi")).constant is None
