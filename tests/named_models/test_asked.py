"""A model behind a faulty server: every verdict is right or masked, and every reply is paid for once."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.chat_server import Exchange, Server, chat_servers
from vlmrl.answers import templates
from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.errors import UserError
from vlmrl.named_models.asked import Replies, keeping_replies, take_metrics
from vlmrl.schema import Completion, Frame, Sample, Truth
from vlmrl.scoring.scorer import Judged, Scorer

SAMPLE = Sample("1", "s", ("How many?",), Truth(number=3))
BROKEN = ("500", "cut", "schema", "prose", "dropped", "stalled")
"""What the server does to some questions at first: an error, a body that breaks off, another schema, prose
around the JSON, a connection that closes at once, and one that does after a silence. (Silence past the
deadline is in tests/rewards/test_judge.py.)"""


class Faulty:
    """A judge that breaks its first reply to two questions of three, and every reply to one of ten."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.good: Counter[int] = Counter()
        self.seen: Counter[int] = Counter()

    def __call__(self, body: dict[str, Any]) -> Any:
        number = int(json.loads(body["messages"][1]["content"])["candidate"])
        with self.lock:
            self.seen[number] += 1
            first = self.seen[number] == 1
        if number % 10 == 0 or (first and number % 3):
            return self._break(BROKEN[number // 3 % len(BROKEN)], number)
        with self.lock:
            self.good[number] += 1
        return json.dumps({"score": score_of(number)})

    def _break(self, how: str, number: int) -> Any:
        if how == "500":
            return 500
        if how == "cut":
            return json.dumps({"choices": [{"message": {"content": '{"score": 10}'}}]}).encode()[
                :40
            ]
        if how in ("schema", "prose"):
            return '{"grade": 10}' if how == "schema" else 'Sure: {"score": 10}'
        return hang_up if how == "dropped" else stall


def hang_up(exchange: Exchange) -> None:
    exchange.connection.close()


def stall(exchange: Exchange) -> None:
    time.sleep(0.1)
    exchange.connection.close()


def score_of(number: int) -> int:
    return number % 11


def completion(number: int) -> Completion:
    return templates.completion(str(number), "none", Frame())


@pytest.fixture
def server() -> Iterator[Server]:
    with chat_servers() as start:
        yield start(Faulty())


def judge(server: Server, numbers: list[int], **limits: Any) -> list[Judged]:
    model = {"name": "grader", "url": server.url, "model": "m", "timeout_s": 60.0, "attempts": 2}
    options = {"model": {**model, "concurrency": 32, **limits}}
    with Scorer(
        {"s": [RewardConfig(verifier="judge", options=options)]}, ScoringConfig(fault_limit=1.0)
    ) as scorer:
        (found,) = scorer.judge([[completion(number) for number in numbers]], [SAMPLE])
    return found


def test_a_thousand_questions_to_a_faulty_judge_are_right_or_masked_and_known_afterwards(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlmrl.named_models.asked.FIRST_PAUSE", 0.001)
    numbers = [number % 700 for number in range(1000)]  # 300 come twice
    faulty: Any = server.script
    with keeping_replies(tmp_path):
        found = judge(server, numbers)
        for number, one in zip(numbers, found, strict=True):
            assert one.reward is None or one.reward == pytest.approx(score_of(number) / 10)
            if number % 10 == 0:
                assert one.reward is None and one.reason.startswith("judge: judge ")
        metrics = take_metrics()
    masked = {number for number, one in zip(numbers, found, strict=True) if one.reward is None}
    assert masked == {*range(0, 700, 10)}  # all others had their second attempt
    assert metrics["model/grader/questions"] == 1000
    assert metrics["model/grader/requests"] == sum(faulty.seen.values())
    assert metrics["model/grader/failed"] == sum(one.reward is None for one in found) / 1000
    assert set(faulty.good.values()) == {1}  # no reply was paid for twice
    before = sum(faulty.seen.values())
    with keeping_replies(tmp_path):  # as a run that goes on
        known = [number for number in numbers if number not in masked]
        again = judge(server, known)
    assert sum(faulty.seen.values()) == before
    first = {number: one.reward for number, one in zip(numbers, found, strict=True)}
    assert [one.reward for one in again] == [first[number] for number in known]


def test_a_step_has_its_budget_and_the_next_one_another(tmp_path: Path) -> None:
    with chat_servers() as start, keeping_replies(tmp_path):
        server = start(lambda body: '{"score": 5}')
        for step in range(2):
            found = judge(
                server, [1 + 10 * step, 2 + 10 * step, 3 + 10 * step], max_requests_per_step=2
            )
            assert sorted(str(one.reward) for one in found) == ["0.5", "0.5", "None"]
            take_metrics()
    assert len(server.requests) == 4


def test_more_questions_than_sixteen_are_under_way_where_the_model_allows_it() -> None:
    together = threading.Barrier(40, timeout=20)

    def script(body: dict[str, Any]) -> str:
        together.wait()  # passes only if forty requests are in flight at once
        return '{"score": 5}'

    with chat_servers() as start:
        found = judge(start(script), [*range(40)], concurrency=40, timeout_s=30.0)
    assert [one.reward for one in found] == [0.5] * 40


def test_half_a_line_of_a_killed_run_is_skipped_and_what_follows_is_kept(tmp_path: Path) -> None:
    path, key = tmp_path / "replies.jsonl", "ab" * 32
    for reply in ("one", "two"):
        replies = Replies(path)
        replies.remember(key, reply)
        replies.close()
        path.write_bytes(path.read_bytes() + b'{"key": "' + key.encode() + b'", "rep')
    assert Replies(path).recall(key) == "two"
    assert Replies(None, [path]).recall(key) == "two"


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    path.write_bytes(b"SQLite format 3\x00")
    with pytest.raises(UserError, match="expected replies as JSON lines"):
        Replies(path).recall("ab" * 32)
