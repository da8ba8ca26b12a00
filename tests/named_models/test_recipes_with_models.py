"""Recipes with a second model: two steps against a live server, and what is left when it is killed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.chat_server import Start, chat_servers, hang_up
from helpers.recipe_rows import write_rows
from helpers.runs import metric_lines
from helpers.small_recipes import small
from vlmrl.answers import templates
from vlmrl.assemble import lifecycle
from vlmrl.assemble.sources import open_training
from vlmrl.config import load
from vlmrl.errors import UserError
from vlmrl.schema import Frame, Sample, Truth
from vlmrl.scoring.scorer import Scorer


@pytest.fixture
def serve() -> Iterator[Start]:
    with chat_servers() as start:
        yield start


def data_of(body: dict[str, Any]) -> dict[str, Any]:
    """What a second model is told of a completion, as JSON."""
    content = body["messages"][1]["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    found: dict[str, Any] = json.loads(text)
    return found


def number_of(text: str) -> int:
    """A number from 0 to 10 that a text decides."""
    return sum(text.encode("utf-8", "surrogatepass")) % 11


def grade(body: dict[str, Any]) -> str:
    score = number_of(data_of(body)["candidate"])
    return json.dumps(
        {"score": score / 10 * (5 if "to 5 (best)" in body["messages"][0]["content"] else 1)}
    )


def answer(body: dict[str, Any]) -> str:
    number = number_of(data_of(body)["hint"])
    return json.dumps({"answer": "AB"[number % 2], "confidence": number / 10})


def train(name: str, home: Path, url: str, *more: str) -> dict[str, Any]:
    recipe = load(name)
    write_rows(recipe, home)
    overrides = [
        *small(recipe),
        *(f"models.{one}.url={url}" for one in recipe.models),
        *(f"models.{one}.attempts=1" for one in recipe.models),
        "run.save_every=1", "run.rollouts_every=1", f"run.dir={home / 'run'}",
    ]  # fmt: skip
    return lifecycle.train(load(name, [*overrides, *more]))


def completions_of(home: Path, step: int) -> list[dict[str, Any]]:
    lines = (home / f"run/rollouts/step-{step}.jsonl").read_text().splitlines()
    return [one for line in lines for one in json.loads(line)["completions"]]


# ------------------------------------------------------------------------------------- R1-Reward


@pytest.mark.parametrize(
    ("text", "agrees", "reward"),
    [
        ("<think>The first.</think><answer>1</answer>", 1, 0.5 + 1 * (1 + 0.5)),
        ("<think>The second.</think><answer>1</answer>", 0, 0.5 + 1 * (1 - 0.5)),
        ("<think>Hard to say.</think><answer>1</answer>", 0.5, 0.5 + 1),
        ("<think>The second.</think><answer>2</answer>", 1, 0.5),
        ("The first. <answer>1</answer>", 1, 1 * (1 + 0.5)),
        ("The first.", 1, 0.0),
    ],
)
def test_r1_reward_pays_accuracy_times_consistency_plus_half_the_format(
    serve: Start, text: str, agrees: float, reward: float
) -> None:
    server = serve(lambda body: json.dumps({"score": agrees}))
    config = load("recipes/r1_reward", [f"models.grader.url={server.url}"])
    sample = Sample("1", "preferences", ("Which?",), Truth(text=("1",)))
    with Scorer({"preferences": config.rewards_of(config.data.train[0])}, config.scoring) as scorer:
        completion = templates.completion(text, "think_answer", Frame())
        ((judged,),) = scorer.judge([[completion]], [sample])
    assert judged.reward == pytest.approx(reward)
    assert all("truth" not in data_of(body) for body in server.requests)


@pytest.mark.slow
def test_r1_reward_trains_on_pairs_and_is_evaluated_in_both_orders(
    serve: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = serve(grade)
    name = "recipes/r1_reward"
    held_out = json.dumps(load(name).model_dump(mode="json")["evaluation"])
    more = [f"evaluation={held_out}", "evaluation.limit=4", "evaluation.every=2"]
    summary = train(name, tmp_path, server.url, *more)
    assert summary["steps"] == 2 and summary["faulted"] == {}
    scores = [one["verdicts"] for step in (1, 2) for one in completions_of(tmp_path, step)]
    assert len(scores) == 32
    for one in (c for step in (1, 2) for c in completions_of(tmp_path, step)):
        format_, accuracy, agrees = (
            one["verdicts"][label]["score"] for label in ("format", "accuracy", "consistency")
        )
        assert agrees == pytest.approx(
            number_of(one["text"].strip()) / 10 if one["text"].strip() else 0
        )
        expected = 0.5 * format_ + accuracy * (1 + 0.5 * (2 * agrees - 1))
        assert one["reward"] == pytest.approx(expected)
    found = json.loads((tmp_path / "run/evals/step-2.json").read_text())["metrics"]
    orders = [found[f"better_{place}/accuracy"] for place in ("first", "second")]
    assert found["accuracy"] == pytest.approx(sum(orders) / 2)


# ------------------------------------------------------------------------------------ HumanOmniV2


@pytest.mark.slow
def test_humanomni_v2_judges_context_and_logic_and_then_the_answer_alone(
    serve: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = serve(grade)
    summary = train("recipes/humanomni_v2", tmp_path, server.url)
    assert summary["steps"] == 2 and summary["faulted"] == {}
    first, second = (completions_of(tmp_path, step) for step in (1, 2))
    spans = {"context", "logic"}
    assert all(spans < {*one["verdicts"]} and len(one["verdicts"]) == 4 for one in first)
    assert all(not spans & {*one["verdicts"]} and len(one["verdicts"]) == 2 for one in second)
    for one in first:
        counted = [v["score"] for label, v in one["verdicts"].items() if label not in spans]
        assert one["reward"] == pytest.approx(sum(counted))


# ----------------------------------------------------------------------------------- Prompt4Trust


def killing(
    after: int, answer_: Callable[[dict[str, Any]], str]
) -> Callable[[dict[str, Any]], Any]:
    """A script that answers `after` questions, and none when its server has been killed."""
    lock, count = threading.Lock(), [0]

    def script(body: dict[str, Any]) -> Any:
        with lock:
            count[0] += 1
            return answer_(body) if count[0] <= after else hang_up

    return script


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "label", "replies", "sizes"),
    [
        ("recipes/prompt4trust", "downstream", answer, ["rollout.prompts=8"]),
        ("recipes/r1_reward", "consistency", grade, ["rollout.prompts=32", "rollout.group_size=1"]),
    ],
)
def test_a_second_model_that_is_killed_ends_the_run_in_one_line_and_changes_nothing(
    name: str,
    label: str,
    replies: Callable[[dict[str, Any]], str],
    sizes: list[str],
    serve: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It dies within the second step; what goes on is the undisturbed run, and asks nothing twice."""
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    monkeypatch.chdir(undisturbed)
    live = serve(replies)
    assert train(name, undisturbed, live.url, *sizes)["faulted"] == {}
    right = [one for step in (1, 2) for one in completions_of(undisturbed, step)]
    if label == "downstream":
        scores = [one["verdicts"][label]["score"] for one in right]
        assert [one["reward"] for one in right] == pytest.approx([5 * score for score in scores])
        assert len({*scores}) > 4
    first = int(metric_lines(undisturbed / "run")[0][f"model/{model_of(name)}/requests"])
    monkeypatch.chdir(killed)
    server = serve(killing(first + 3, replies))
    with pytest.raises(UserError, match=rf"^verifier '{label}' failed on \d+ of its last") as told:
        train(name, killed, server.url, *sizes)
    assert "unavailable" in str(told.value)
    assert len(metric_lines(killed / "run")) == 1
    assert not (killed / "run/rollouts/step-2.jsonl").exists()
    server.shutdown()
    server.server_close()
    again = serve(replies, server.server_address[1])
    assert train(name, killed, again.url, *sizes, "resume=auto")["finished"]
    rows = [one for step in (1, 2) for one in completions_of(killed, step)]
    assert [(one["text"], one["reward"]) for one in rows] == [
        (one["text"], one["reward"]) for one in right
    ]
    # What was answered before is not asked again, in the step that was cut short neither.
    assert len(again.requests) == len(live.requests) - first - 3


def model_of(name: str) -> str:
    (model,) = load(name).models
    return model


# -------------------------------------------------------------------------------- RACRO and CapRL


def read_description(body: dict[str, Any]) -> str:
    """Answer with what stands behind "shows", or its option; without it, with nothing right."""
    data = data_of(body)
    shown = data.get("hint", data.get("description", "")).partition("shows ")[2] or "nothing"
    options = data.get("options", {})
    picked = next((letter for letter, option in options.items() if option == shown), None)
    return json.dumps({"answer": (picked or max(options)) if options else shown})


@pytest.mark.parametrize(
    ("name", "texts", "rewards"),
    [
        ("racro", ["It shows 7", "It shows 8", "A picture.", ""], [1.0, 0.0, 0.0, 0.0]),
        ("caprl", ["It shows dog", "It shows cat", "A picture.", ""], [0.5, 0.5, 0.0, 0.0]),
    ],
)
def test_a_description_is_paid_by_what_its_reader_answers(
    name: str,
    texts: list[str],
    rewards: list[float],
    serve: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    url = serve(read_description).url
    config = load(
        f"recipes/{name}", [f"models.{one}.url={url}" for one in load(f"recipes/{name}").models]
    )
    write_rows(config, tmp_path)
    (source,) = open_training(config)
    sample = source.sample(0)
    described = [templates.completion(text, sample.template, Frame(56, 56)) for text in texts]
    with Scorer({source.name: config.rewards_of(config.data.train[0])}, config.scoring) as scorer:
        (group,) = scorer.judge([described], [sample])
    assert [judged.reward for judged in group] == rewards
