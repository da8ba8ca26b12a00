"""What recipes pay for right, wrong and unformatted completions of a row in their published layout."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.chat_server import chat_servers
from helpers.recipe_rows import write_rows
from helpers.score_server import addresses, score_servers
from vlmrl.answers import templates
from vlmrl.assemble.sources import open_training
from vlmrl.config import load
from vlmrl.schema import Frame
from vlmrl.scoring.scorer import Scorer

Pay = Callable[..., list[float | None]]


@pytest.fixture
def pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pay a group of texts as a recipe does; `script` is what its judge replies to a request."""
    monkeypatch.chdir(tmp_path)
    with chat_servers() as start, score_servers() as score:

        def group(
            name: str,
            texts: Sequence[str],
            script: Callable[[dict[str, Any]], Any] | None = None,
            source: str = "",
            row: int = 0,
            progress: float = 0.0,
            changes: Sequence[str] = (),
            scores: Callable[[dict[str, Any]], Any] | None = None,
        ) -> list[float | None]:
            models = load(name).models if script else {}
            if scores:
                changes = [*changes, *addresses(load(name), score(scores).url)]
            urls = [f"models.{model}.url={start(script).url}" for model in models]
            config = load(name, [*urls, *changes])
            write_rows(config, tmp_path)
            opened = {each.name: each for each in open_training(config)}
            chosen = opened[source or next(iter(opened))]
            sample = chosen.sample(row)
            now = config.at(progress)
            listed = [s for s in now.data.train if s.label == chosen.name]
            rewards = {chosen.name: now.rewards_of(listed[0])}
            completions = [
                templates.completion(text, sample.template, Frame(56, 56)) for text in texts
            ]
            with Scorer(rewards, now.scoring) as scorer:
                (judged,) = scorer.judge([completions], [sample], progress)
            assert not any(v.fault for j in judged for v in j.verdicts.values()), judged
            return [j.reward for j in judged]

        yield group


def data_of(body: dict[str, Any]) -> dict[str, Any]:
    content = body["messages"][1]["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    shown: dict[str, Any] = json.loads(text)
    return shown


def sees_a_dog(body: dict[str, Any]) -> str:
    candidate = data_of(body)["candidate"]
    return json.dumps({"Sees": int("dog" in candidate), "Pitfall": int("cat" in candidate)})


def test_rubrics_as_rewards_and_rubric_anchors_pay_by_the_rows_criteria(pay: Pay) -> None:
    texts = ["A dog.", "A dog and a cat.", "A bird.", ""]
    assert pay("recipes/rubrics_as_rewards", texts, sees_a_dog) == [1.0, 0.6, 0.0, 0.0]
    changes = ["rewards.0.options.scale=[0,1]", "rewards.0.options.media=false"]
    paid = pay("recipes/rubric_anchors", texts, sees_a_dog, changes=changes)
    assert paid == [1.0, 0.6, 0.0, 0.0]


def test_reward_anything_pays_by_its_models_scores_for_the_rows_principle(pay: Pay) -> None:
    def script(body: dict[str, Any]) -> str:
        data = data_of(body)
        assert data["criteria"][0]["text"] == "It names the dog."
        scores = {name: 5 if "dog" in text else 1 for name, text in data["candidates"].items()}
        return json.dumps({"scores": scores, "best-to-worst": sorted(scores)})

    assert pay("recipes/reward_anything", ["A dog.", "A cat.", ""], script) == [1.0, 0.0, 0.0]


THOUGHT = "<think>so</think>"


def answered(*answers: str, before: str = THOUGHT) -> list[str]:
    return [*(f"{before}<answer>{answer}</answer>" for answer in answers), answers[0]]


def near(values: Sequence[float]) -> Any:
    return pytest.approx(list(values), abs=1e-9)


def test_mt_r1_zero_mix_adds_comet_to_bleu_behind_the_format(pay: Pay) -> None:
    def comet(body: dict[str, Any]) -> Any:
        assert set(body) == {"src", "mt", "ref"} and body["ref"] == "7"
        return {"score": 0.8 if body["mt"] == body["ref"] else 0.25}

    assert pay("recipes/mt_r1_zero_mix", answered("7", "9"), scores=comet) == near([5.8, 4.25, 0])


def test_visual_arft_pays_queries_by_cosine_and_answers_by_words(pay: Pay) -> None:
    def cosine(body: dict[str, Any]) -> Any:
        return {"data": [{"score": 0.9 if "seven" in body["text_2"] else 0.4}]}

    texts = [f"{THOUGHT}<search>{query}</search>" for query in ("seven dogs", "a cat")]
    texts += ["seven dogs", f"{THOUGHT}<answer>seven</answer>"]
    assert pay("recipes/visual_arft", texts, scores=cosine) == near([1.9, 1.0, 0.0, 0.0])
    texts = [*answered("7", "7 cats", "9"), f"{THOUGHT}<search>7</search>"]
    paid = pay("recipes/visual_arft", texts, source="answers", scores=cosine)
    assert paid == near([2.0, 1 + 2 / 3, 1.0, 0.0, 0.0])


def test_visual_arft_code_pays_faults_by_their_set_and_code_by_its_form(pay: Pay) -> None:
    def tagged(name: str, *contents: str) -> list[str]:
        return [f"{THOUGHT}<{name}>{content}</{name}>" for content in contents]

    name = "recipes/visual_arft_code"
    pay(name, [], source="problems")  # writes the rows
    true = sorted(truth_of(name, "problems").labels)
    texts = tagged("problem", "{" + ", ".join(map(repr, true)) + "}", true[0], "none")
    texts += [*tagged("code", true[0]), true[0]]
    paid = pay(name, texts, source="problems")
    assert paid == near([2.0, 1.5 if len(true) > 1 else 2.0, 1.0, 0.0, 0.0])
    code = "cv2.imwrite('out.jpg', cv2.rotate(cv2.imread('in.jpg'), cv2.ROTATE_180))"
    texts = [*tagged("code", code), *tagged("problem", code), code]
    assert pay(name, texts, source="code") == near([1.0, 0.0, 0.0])
    assert pay(name, answered("7", "9"), source="answers") == near([2.0, 1.0, 0.0])


def test_ixc_reward_maps_the_number_of_its_server(pay: Pay) -> None:
    def number(body: dict[str, Any]) -> Any:
        return {"score": 5.0 if "dog" in body["completion"] else -30}

    changes = ["rewards.0.options.media=false"]
    paid = pay("recipes/ixc_reward", ["A dog.", "A cat.", ""], scores=number, changes=changes)
    assert paid == near([0.75, 0.0, 0.0])


def test_humansense_pays_a_half_for_a_proper_part_of_the_letters(pay: Pay) -> None:
    texts = answered("A, B", "B", "dog", "B, C", "C", "")
    assert pay("recipes/humansense", texts) == [2.0, 1.5, 1.5, 1.0, 1.0, 0.0, 0.0]


def test_humanomni_pays_each_kind_of_answer_and_tells_its_judge_the_context(pay: Pay) -> None:
    def grades(body: dict[str, Any]) -> str:
        data = data_of(body)
        asked = body["messages"][0]["content"]
        assert ("context" in data.get("row", {})) == ("sums up" in asked)
        return json.dumps({"score": 5 if "7" in data["candidate"] else 1})

    before = "<context>a room</context><think>so</think>"

    def paid(source: str, *answers: str) -> list[float | None]:
        texts = answered(*answers, before=before)
        return pay("recipes/humanomni_v2", texts, grades, source=source)

    assert paid("letter", "B", "A") == [2.0, 1.0, 0.0]
    assert paid("letters", "A,B", "A", "C") == near([2.0, 1 + 2 / 3, 1.0, 0.0])
    assert paid("number", "7.00", "7.1") == [2.0, 1.0, 0.0]
    assert paid("quantity", "7", "3.5") == near([2.0, 1.5, 0.0])
    assert paid("transcript", "7", "9") == [2.0, 1.0, 0.0]
    assert paid("free", "7", "9") == near([2.0, 1.2, 0.0])


def test_craft_gui_asks_a_judge_of_answers_in_words_and_a_rule_of_actions(pay: Pay) -> None:
    def says_seven(body: dict[str, Any]) -> str:
        return json.dumps({"score": int("seven" in data_of(body)["candidate"])})

    texts = answered("It is seven.", "It is nine.")
    paid = pay("recipes/craft_gui", texts, says_seven, source="questions")
    assert paid == [3.0, 1.0, 0.0]


def test_vl_cogito_punishes_repetition_and_length_of_wrong_answers_at_last(pay: Pay) -> None:
    """Independent: the sums of the published code, in loops over words and lengths."""
    long = "<think>" + "no " * 40 + "</think>"
    texts = [
        f"{THOUGHT}<answer>7</answer>",
        f"{long}<answer>9</answer>",
        f"{THOUGHT}<answer>9</answer>",
        "9",
    ]
    lengths = [len(text.split()) for text in texts]

    def repeated(text: str) -> float:
        words = text.lower().split()
        runs = [" ".join(words[i : i + 20]) for i in range(len(words) - 19)]
        return 1 - len(set(runs)) / len(runs) if runs else 0.0

    def dynamic(length: int) -> float:
        return (
            -0.5
            if length >= 2 * lengths[0]
            else -0.25 * (1 + math.cos(math.pi * length / lengths[0]))
        )

    def fixed(length: int) -> float:
        return -0.125 * (1 + math.cos(math.pi * length / 750))

    paid = pay("recipes/vl_cogito", texts, progress=0.9)
    wanted = [
        1.5,
        *(
            0.5 * (text != "9") + dynamic(length) - 0.5 * repeated(text)
            for text, length in zip(texts[1:], lengths[1:], strict=True)
        ),
    ]
    assert paid == near(wanted) and repeated(texts[1]) > 0.4
    paid = pay("recipes/vl_cogito", texts[1:], progress=0.9)
    wanted = [
        0.5 * (text != "9") + fixed(length) - 0.5 * repeated(text)
        for text, length in zip(texts[1:], lengths[1:], strict=True)
    ]
    assert paid == near(wanted)


def test_v_triune_hardens_the_iou_of_its_rows_and_pays_a_quarter_for_each_tag(pay: Pay) -> None:
    def boxes(*sides: float) -> str:
        return json.dumps([{"bbox_2d": [v * 56 / 1000 for v in sides], "label": "dog"}])

    texts = answered(boxes(10, 10, 40, 40), boxes(10, 10, 37, 40), boxes(50, 50, 90, 90))

    def mean(accuracy: float, form: float) -> float:
        return (1.0 * accuracy + 0.1 * form) / 1.1

    for progress, near_miss in ((0.0, 0.7 * 0.9 + 0.3), (0.09, 0.93), (0.1, 0.0), (0.25, 0.0)):
        wanted = [mean(1, 1), mean(near_miss, 1), mean(0, 1), mean(1, 0)]
        assert pay("recipes/v_triune", texts, progress=progress)[:3] == near(wanted[:3])
    texts = [
        "<think>\nso\n</think>\n<answer>\n7\n</answer>",
        "<think>\nso\n</think><answer>7</answer>",
        "<think>so</think><answer>9</answer>",
        "9",
    ]
    marks = ("<think>\n", "\n</think>", "<answer>\n", "\n</answer>")
    share = [sum(text.count(mark) == 1 for mark in marks) / 4 for text in texts]
    wanted = [mean(1, share[0]), mean(1, share[1]), mean(0, share[2]), mean(0, share[3])]
    assert share == [1.0, 0.5, 0.0, 0.0]
    assert pay("recipes/v_triune", texts, row=1) == near(wanted)


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [
        ("choice", "B", "A"),
        ("numerical", "7.001", "8"),
        ("regression", "7", "700"),
        ("ocr", "7", "8"),
        ("open_ended", "7", "a cat"),
        ("math", "7", "8"),
        ("when", "[[0.5, 1.25]]", "[[1.5, 1.75]]"),
        ("where", "[5.6, 11.2, 28, 39.2]", "[40, 44, 50, 55]"),
    ],
)
def test_onethinker_pays_accuracy_tags_and_what_can_be_read(
    pay: Pay, source: str, right: str, wrong: str
) -> None:
    texts = [f"<think>a</think><answer>{answer}</answer>" for answer in (right, wrong)]
    paid = pay("recipes/onethinker", [*texts, "no tags, 3 of them"], source=source)
    assert paid == pytest.approx([1.5, 0.6, 0.0])


@pytest.mark.parametrize("name", ["noisy_rollout", "vppo", "vl_rethinker"])
def test_recipes_of_geometry3k_pay_the_boxed_answer(pay: Pay, name: str) -> None:
    texts = ["It is so, \\boxed{7}.", "It is so, \\boxed{8}.", "It is 7."]
    assert pay(f"recipes/{name}", texts) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [
        ("letters", "B", "A"),
        ("numbers", "7", "8"),
        ("figures", "7", "8"),
        ("mathematics", "7", "8"),
    ],
)
def test_videoauto_r1_pays_both_answers_and_the_phrase_before_a_right_one(
    pay: Pay, source: str, right: str, wrong: str
) -> None:
    """Independent: the sums of the published code, from which answers are right."""

    def twice(first: str, second: str) -> str:
        return f"<first_answer>{first}</first_answer>{THOUGHT}<answer>{second}</answer>"

    phrase = "Let's analyze the problem step by step."
    pairs = [(a, b) for a in (right, wrong, phrase) for b in (right, wrong)]
    texts = [*(twice(*pair) for pair in pairs), f"{THOUGHT}<answer>{right}</answer>", right]
    wanted = [
        0.9 * (a == right) + 1.1 * (b == right) + 0.3 * (a == phrase and b == right) + 1
        for a, b in pairs
    ]
    assert pay("recipes/videoauto_r1", texts, source=source) == near([*wanted, 1.1, 0.0])


def test_videoauto_r1_pays_the_overlap_of_both_spans_and_the_phrase_from_0_7_on(pay: Pay) -> None:
    phrase = "Let's analyze the problem step by step"

    def paid(first: str, second: str) -> list[float | None]:
        text = f"<first_answer>{first}</first_answer>{THOUGHT}<answer>{second}</answer>"
        return pay("recipes/videoauto_r1", [text], source="moments")

    whole, more, half = "0 to 1.5", "0 to 1.875", "0 to 0.75"
    assert paid(whole, whole) == near([0.9 + 1.1 + 1])
    assert paid(half, whole) == near([0.45 + 1.1 + 1])
    assert paid(phrase, more) == near([1.1 * 0.8 + 0.3 + 1])
    assert paid(phrase, half) == near([1.1 * 0.5 + 1])


def test_srpo_pays_for_mending_the_first_answer_and_for_a_second_part_as_long(pay: Pay) -> None:
    """Independent: the branches of the published code."""

    def text(first: str, second: str) -> str:
        begin = f"<think>so it is</think><first_answer>{first}</first_answer>"
        return f"{begin}<reflection>hm</reflection><rethink>so</rethink><answer>{second}</answer>"

    accuracy = {("7", "7"): 0.75, ("8", "7"): 1.0, ("7", "8"): 0.25, ("8", "9"): 0.0}
    texts = [text(*pair) for pair in accuracy]
    measure = len("so it is" + "7")
    length = math.exp(-(((len(texts[0]) - 2 * measure) / (2.5 * measure - 2 * measure)) ** 2))
    wanted = [paid + 0.5 + 0.1 * length for paid in accuracy.values()]
    paid = pay("recipes/srpo", [*texts, f"{THOUGHT}<answer>7</answer>", "7"])
    assert paid[:4] == near(wanted) and paid[4:] == [1.0, 0.0]
    long = (
        "<think>"
        + "so it is " * 30
        + "</think><first_answer>7</first_answer><reflection>hm</reflection>"
    )
    texts = [f"{long}<rethink>{'so ' * n}</rethink><answer>7</answer>" for n in (10, 50, 200)]
    lengths = [(len(t) - 2 * 271) / (0.5 * 271) for t in texts]
    wanted = [0.75 + 0.5 + 0.1 * math.exp(-(far**2)) for far in lengths]
    assert pay("recipes/srpo", texts) == near(wanted) and max(wanted) > 1.3 > min(wanted)


def test_arena_pays_citations_beside_the_answer_and_ten_for_all_of_them(pay: Pay) -> None:
    """Independent: the published scores, but for a wrong citation beside a right one."""

    def text(cited: str, answer: str) -> str:
        return f"<relevance>{cited}</relevance><analysis>so</analysis>\n<answer>{answer}</answer>"

    texts = [
        text("[1, 3]", "7"),
        text("[3,1]", "7"),
        text("[1]", "7"),
        text("[1, 3]", "8"),
        text("[2]", "7"),
        text("[1, 2, 3, 4]", "7"),
        "<answer>7</answer>",
        f"{text('[1, 3]', '7')} so",
        "7",
    ]
    wanted = [13.0, 13.0, 2.5, 2.0, 2.0, 2.0, 1.0, 2.0, 0.0]
    assert pay("recipes/arena", texts) == near(wanted)


def test_toolrl_pays_calls_and_where_nothing_is_called_the_format_alone(pay: Pay) -> None:
    def call(position: str, value: str = "null") -> str:
        named = f'"action": "CLICK", "value": {value}, "position": {position}, "kind": "noise"'
        return f"{THOUGHT}<tool_call>{{{named}}}</tool_call>"

    reply = f"{THOUGHT}<response>It is seven.</response>"
    texts = [call("[0.5, 0.5]"), call("[0.1, 0.5]"), reply, "It is seven."]
    # 1 for the name, then of one call 1 for its arguments' names and 4 for their values
    assert pay("recipes/toolrl", texts, source="calls") == near([7.0, 1 + 6 * 5 / 6, 0.0, 0.0])
    texts = [reply, f"{call('[0.5, 0.5]')}<response>so</response>", "It is seven."]
    assert pay("recipes/toolrl", texts, source="replies") == [1.0, 0.0, 0.0]


def test_vicrit_pays_the_changed_phrase_alone(pay: Pay) -> None:
    texts = ["So \\boxed{7}.", "So \\boxed{7 cats}.", "So \\boxed{8}.", "It is 7."]
    assert pay("recipes/vicrit", texts) == near([1.1, 0.1, 0.1, 0.0])


def swapped(order: Sequence[str]) -> list[str]:
    return [order[1], order[0], *order[2:]]


def truth_of(name: str, source: str) -> Any:
    (opened,) = [each for each in open_training(load(name)) if each.name == source]
    return opened.sample(0).truth


@pytest.mark.parametrize("source", ["images", "videos"])
def test_visual_jigsaw_discounts_the_share_of_right_places(pay: Pay, source: str) -> None:
    """Independent: the branches of the published code."""
    pay("recipes/visual_jigsaw", [])  # writes the rows
    right = list(truth_of("recipes/visual_jigsaw", source).value("order"))
    answers = [right, swapped(right), right[1:] + right[:1], right[:-1], [*right[:-1], right[0]]]
    texts = [f"{THOUGHT}<answer>{', '.join(answer)}</answer>" for answer in answers]
    texts += [f"{THOUGHT}<answer>{right}</answer>".replace("'", ""), ", ".join(right), "so"]
    share = (len(right) - 2) / len(right)
    wanted = [1.2, 0.2 * share + 0.2, 0.2, 0.2, 0.2, 1.2, 0.0, 0.0]
    assert pay("recipes/visual_jigsaw", texts, source=source) == near(wanted)


@pytest.mark.parametrize("source", ["two", "three", "four"])
def test_jigsaw_r1_pays_the_share_of_right_places(pay: Pay, source: str) -> None:
    pay("recipes/jigsaw_r1", [])
    right = list(truth_of("recipes/jigsaw_r1", source).value("order"))
    answers = [", ".join(answer) for answer in (right, swapped(right), right[:1])]
    share = (len(right) - 2) / len(right)
    assert pay("recipes/jigsaw_r1", answered(*answers), source=source) == near(
        [1.5, share + 0.5, 0.5, 0.0]
    )


def test_jigsaw_r1_pays_how_two_tiles_lie(pay: Pay) -> None:
    pay("recipes/jigsaw_r1", [])
    truth = truth_of("recipes/jigsaw_r1", "pairs")
    wrong = "A" if truth.choice != "A" else "B"
    paid = pay("recipes/jigsaw_r1", answered(truth.choice, wrong), source="pairs")
    assert paid == [1.5, 0.5, 0.0]


def test_grit_pays_boxes_in_the_first_thought_and_their_number(pay: Pay) -> None:
    boxes = [f"[{n}, 2, {n + 9}, 20]" for n in range(7)]

    def of(places: Sequence[str], answer: str) -> str:
        thought = f"<think>I see {' and '.join(places)}.</think><rethink>So it is, yes.</rethink>"
        return f"{thought}<answer>{answer}</answer>"

    texts = [of(boxes, "7"), of(boxes[:2], "7"), of([boxes[0], boxes[0]], "8"), of([], "7")]
    texts += [of(["[9, 2, 9, 20]", "[60, 2, 70, 20]"], "8"), "7 at [1, 2, 10, 20]"]
    assert pay("recipes/grit", texts, source="tallyqa") == near([4.0, 3.0, 2.0, 2.5, 1.5, 0.0])
    assert pay("recipes/grit", texts[:2], source="vsr") == near([3.0, 3.0])


def test_vigorl_pays_a_point_in_a_well_formed_thought(pay: Pay) -> None:
    texts = [
        "<think>It is at (12, 30).</think><answer>7</answer>",
        "<think>It is at (12, 30).</think><answer>8</answer>",
        "<think>It is at (99, 30), [1, 2].</think><answer>7</answer>",
        "<think>It is there.</think><answer>(12, 30)</answer>",
        "<think>It is at (12, 30).</think> so <answer>7</answer>",
    ]
    assert pay("recipes/vigorl", texts) == near([1.0, 0.5, 0.5, 0.0, 0.5])


def test_video_rft_pays_what_describes_the_frames_where_the_answer_earns(pay: Pay) -> None:
    config = load("recipes/video_rft")
    kept = [r for r in config.data.train[0].rewards or () if r.verifier == "http_score"]
    assert [r.options["media"] for r in kept] == [True]

    def cosine(body: dict[str, Any]) -> Any:
        assert set(body) == {"prompt", "completion", "row"}
        return {"score": {"A dog runs.": 0.2, "A dog runs and barks.": 0.7}[body["completion"]]}

    texts = [
        f"<think>{t}</think><answer>B</answer>" for t in ("A dog runs.", "A dog runs and barks.")
    ]
    texts += [texts[1].replace("B<", "A<"), "A dog runs. B"]
    blind = "data.train.0.rewards.1.options.media=false"  # no run, so no frames at hand
    found = pay("recipes/video_rft", texts, scores=cosine, changes=[blind])
    assert found == near([2.4, 3.0, 1.0, 0.0])


@pytest.mark.parametrize(("name", "best"), [("vision_reasoner", 7.0), ("seg_zero", 5.0)])
def test_boxes_with_points_are_paid_by_their_pairs(pay: Pay, name: str, best: float) -> None:
    """Independent: the published sums of the row's one object, box (10, 10, 40, 40), point (10, 10)."""

    def listed(*objects: tuple[list[int], list[int]]) -> str:
        return json.dumps([{"bbox_2d": box, "point_2d": point} for box, point in objects])

    right = ([10, 10, 40, 40], [10, 10])
    far = ([10, 10, 40, 36], [40, 36])  # IoU 0.87, corners 15 and points 596 pixels of 840 away
    texts = answered(listed(right), listed(far), listed(right, far), "nothing to see")
    rest = best - 3.0
    unread = rest - (2.0 if name == "vision_reasoner" else 1.0)
    assert pay(f"recipes/{name}", texts) == near([best, rest + 1, rest + 1.5, unread, 0.0])
