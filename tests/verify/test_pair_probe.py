"""The probe of a judge of pairs: shares with intervals, Cohen's kappa, and what it makes of biased judges."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from helpers.chat_server import chat_servers
from vlmrl.config import RewardConfig
from vlmrl.errors import UserError
from vlmrl.features.verify.audit_table import probe_pairs
from vlmrl.features.verify.pair_probe import Share, kappa


@pytest.mark.parametrize(("times", "count"), [(0, 5), (5, 5), (3, 8), (517, 1000), (1, 1)])
def test_the_interval_of_a_share_is_wilsons(times: int, count: int) -> None:
    expected = binomtest(times, count).proportion_ci(0.95, method="wilson")
    assert Share(times, count).interval == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_nothing_is_known_of_no_case() -> None:
    assert Share(0, 0).interval == (0.0, 1.0) and str(Share(0, 0)) == "no case"


def test_kappa_of_a_textbook_table_and_of_extremes() -> None:
    # 50 cases: both yes 20, both no 15, yes and no 5, no and yes 10: 0.7 by 0.5 of chance.
    one = ["yes"] * 25 + ["no"] * 25
    other = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert kappa(one, other) == pytest.approx(0.4)
    assert kappa(one, one) == 1.0
    assert kappa(["yes", "no"], ["no", "yes"]) == -1.0
    assert kappa(["yes"] * 3, ["yes"] * 3) is None and kappa([], []) is None


def pairs_file(path: Path, count: int = 12, **more: Any) -> Path:
    """Pairs of which the longer one is said to be better, in the first place every third time."""
    with path.open("w") as file:
        for number in range(count):
            short, long = f"a{number}", f"a{number} and more"
            texts, better = (
                ([long, short], "first") if number % 3 == 0 else ([short, long], "second")
            )
            row = {"prompt": f"Say {number}.", "completions": texts, "better": better, **more}
            file.write(json.dumps(row) + "\n")
    return path


def longer(data: dict[str, Any]) -> str:
    return "first" if len(data["first"]) > len(data["second"]) else "second"


def lines_of(
    say: Callable[[dict[str, Any]], str | int], path: Path, out: Path | None = None
) -> dict[str, str]:
    def script(body: dict[str, Any]) -> Any:
        said = say(json.loads(body["messages"][1]["content"]))
        return said if isinstance(said, int) else json.dumps({"better": said})

    with chat_servers() as start:
        server = start(script)
        options = {"url": server.url, "model": "m", "attempts": 1}
        text = probe_pairs(RewardConfig(verifier="judge_pairwise", options=options), path, out)
        assert len(server.requests) == 3 * 12
    return {line[:18].strip(): line[18:].strip() for line in text.splitlines()[1:]}


def test_a_fair_judge_agrees_with_itself_and_with_people(tmp_path: Path) -> None:
    found = lines_of(longer, pairs_file(tmp_path / "pairs.jsonl"))
    assert found["both orders agree"].startswith("1.000 [")
    assert (
        found["first place wins"].startswith("0.500 [") and "12 of 24" in found["first place wins"]
    )
    assert found["the same twice"].startswith("1.000")
    assert found["ties"].startswith("0.000")
    assert found["agrees with better"].endswith("Cohen's kappa 1.000")


def test_a_judge_that_names_the_first_place_is_found_out(tmp_path: Path) -> None:
    out = tmp_path / "judged.jsonl"
    found = lines_of(lambda data: "first", pairs_file(tmp_path / "pairs.jsonl"), out)
    assert found["both orders agree"].startswith("0.000")
    assert found["first place wins"].startswith("1.000 [0.862")
    assert found["ties"].startswith("1.000") and "kappa 0.000" in found["agrees with better"]
    assert {json.loads(line)["better"] for line in out.read_text().splitlines()} == {"tie"}


def test_verdicts_of_one_judge_are_what_another_is_held_against(tmp_path: Path) -> None:
    out = tmp_path / "judged.jsonl"
    lines_of(lambda data: longer(data), pairs_file(tmp_path / "pairs.jsonl"), out)
    swapped = {"first": "second", "second": "first"}
    found = lines_of(lambda data: swapped[longer(data)], out)
    # Four of twelve are said to be first: chance alone agrees in 2 * 4/12 * 8/12 = 4/9.
    assert found["agrees with better"].startswith("0.000")
    assert found["agrees with better"].endswith("kappa -0.800")


def test_a_judge_of_chance_does_not_say_the_same_twice(tmp_path: Path) -> None:
    asked: list[str] = []

    def moody(data: dict[str, Any]) -> str:
        asked.append(data["first"])
        return "first" if asked.count(data["first"]) % 2 else "second"

    found = lines_of(moody, pairs_file(tmp_path / "pairs.jsonl"))
    assert found["the same twice"].startswith("0.000")


def test_what_cannot_be_judged_is_counted_and_left_out(tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> Any:
        data = json.loads(body["messages"][1]["content"])
        return 500 if data["question"] == "Say 3." else json.dumps({"better": longer(data)})

    path, out = pairs_file(tmp_path / "pairs.jsonl", truth={"text": "a"}), tmp_path / "out.jsonl"
    with chat_servers() as start:
        options = {"url": start(script).url, "model": "m", "attempts": 1}
        text = probe_pairs(RewardConfig(verifier="judge_pairwise", options=options), path, out)
    assert text.startswith("12 pairs, 1 without a verdict\n")
    assert text.endswith("1 times: judge unavailable: HTTP 500")
    assert "11 of 11" in text and len(out.read_text().splitlines()) == 11


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"completions": ["a"]}, "list of two texts"),
        ({"completions": ["a", 1]}, "list of two texts"),
        ({"completions": ["a", "b"], "better": "left"}, "expected first, second, tie, got 'left'"),
        ({"completions": ["a", "b"], "promt": "x"}, "unknown key 'promt'; did you mean 'prompt'"),
        ([], "expected a JSON object"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: Any, message: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n" + json.dumps(row))
    options = {"url": "http://localhost:1/v1", "model": "m"}
    with pytest.raises(UserError, match=rf"pairs.jsonl:2: .*{message}"):
        probe_pairs(RewardConfig(verifier="judge_pairwise", options=options), path)


def test_another_verifier_is_refused(tmp_path: Path) -> None:
    path = pairs_file(tmp_path / "pairs.jsonl")
    with pytest.raises(UserError, match="expected a judge of pairs, got Exact"):
        probe_pairs(RewardConfig(verifier="exact"), path)
