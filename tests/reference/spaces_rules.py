"""Rules about space and verdicts, compared with the harnesses' own code: see `compare_rules.py`."""

from __future__ import annotations

import ast
import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from answers import Rule, any_answer, any_places, lift
from PIL import Image

from vlmrl.benchmark_rules import letters, places, preferences, spaces
from vlmrl.benchmarking.aggregates import Rows, estimate

SIZE = (64, 48)
FORMS = (
    "{}",
    "{}.",
    "({})",
    " {} ",
    "{}. a red dog",
    "Answer: {}",
    "answer:{}\n",
    "the answer is {}",
    "The answer is {}",
    "My answer is {}",
    "``{}``",
    "`{}`",
    "`` {} ``",
    "{{{}}}",
    "\\boxed{{{}}}",
    "**{}**",
    '"{}"',
    "<answer>{}</answer>",
    "<Answer>{}</Answer>",
    "<Answer>my answer is {}",
    "<think>A or B</think>{}",
    "<think>so {}</think>",
    "<thought>B</thought><ANSWER>{}</ANSWER>",
    "Option {}: x",
    "option A: x\nOption B: y\n{}",
    "final answer > ({})",
    "答案：{}",
    "选 {}。",
    "【{}】",
    "{})\u200b text",
    "a\n{}\nb",
    "Answer: A\nAnswer: {}",
    "Is it {} or not",
    "I pick {}, not A",
    "<answer>{} ",
    "{}</answer>",
    "{}</ think >\nnone",
)
VERDICTS = (
    "Overall Judgment: Answer {} is better.",
    "**Overall Judgment**:\nAnswer {} is the better one",
    "Therefore, Answer {} is slightly better",
    "Therefore Answer 1 is better, no: Answer {}is better",
    "overall judgment - Answer\n{} is the slightly better",
    "Answer {} is better",
    "Therefore {}",
    "[[A]]",
    "[[B]]",
    "[[B]] or [[A]]",
    "[A]",
    "[[C]]",
    "Overall Judgment: Answer {} is better. So",
)


def spaces_rules(lmms_eval: Path, vlmeval: Path, own: Path | None) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of all three: from a random state to (theirs, ours)."""
    tasks = lmms_eval / "lmms_eval/tasks"
    yield from _lmms_letters(tasks)
    yield from _lmms_omnispatial(tasks)
    yield "robospatial lmms_eval", _robospatial_lmms(tasks / "robo_spatial/utils.py")
    yield "3dsrbench groups", _groups(tasks / "3dsrbench/utils.py")
    yield from _verdicts(tasks)
    matching = vlmeval / "vlmeval/dataset/utils/spatial_bench/matching_func.py"
    match = lift(matching, "can_match_option", "ZW_RE", "TAGGED_ANSWER_BLOCK")["can_match_option"]
    yield (
        "spatial_letter vlmevalkit",
        _on_letters(lambda a: match(a) or None, spaces.spatial_letter),
    )
    yield "robospatial vlmevalkit", _robospatial_vlmeval(vlmeval / "vlmeval/dataset")
    if own is not None and (own / "RoboSpatial-Eval").exists():
        yield "robospatial own", _robospatial_own(own / "RoboSpatial-Eval/evaluation.py")


def any_letter_answer(draw: random.Random) -> str:
    """Draw a letter in one of many forms, alone or with hostile words around it."""
    stated = draw.choice(FORMS).format(draw.choice("AABBCCDDEFGab"))
    return draw.choice(
        (
            stated,
            any_answer(draw),
            f"{any_answer(draw)}{draw.choice((' ', chr(10), ''))}{stated}",
            f"{stated}{draw.choice((' ', chr(10), ''))}{any_answer(draw)}",
            f"{draw.choice(FORMS).format(draw.choice('ABCD'))}\n{stated}",
            f"{'x ' * 450}{stated}",
        )
    )


def any_right_letter(draw: random.Random, answer: str) -> str:
    """Draw a letter, half of the time the first capital one of an answer."""
    first = next((letter for letter in answer if letter in "ABCDE"), "A")
    return draw.choice((first, draw.choice("ABCDE")))


def any_polygon(draw: random.Random) -> list[tuple[float, float]]:
    """Draw the corners of a polygon of 0 to 1, on a grid so that points hit edges and corners."""
    if draw.random() < 0.6:
        return [(0, 0), (1, draw.randint(0, 4) / 10), (0.9, 1), (draw.randint(0, 5) / 10, 0.8)]
    return [(draw.randint(0, 10) / 10, draw.randint(0, 10) / 10) for _ in range(draw.randint(3, 7))]


def any_point_answer(draw: random.Random) -> str:
    """Draw points in the forms that models and prompts have, and in others."""
    scale = draw.choice((1, 1, 1, 1, 10, 64, 1000, 1000, 2000))
    numbers = [round(draw.randint(0, 20) / 20 * scale, 2) for _ in range(8)]
    if draw.random() < 0.3:
        point = {"point_2d": [draw.randint(0, 1000), draw.randint(0, 1000)]}
        return f"```json\n{json.dumps([point] * draw.randint(1, 2))}\n```"
    x, y, *more = numbers
    pairs = [{"point_2d": [x, y], "label": "a"}, {"point_2d": more[:2]}, {"point": [x, y]}]
    listed = [pairs[0], draw.choice((pairs[1], pairs[2], {"point_2d": [x]}, {"box": [1]}, "no", 3))]
    text = json.dumps(listed[: draw.randint(0, 2)])
    forms = (
        f"[({x}, {y}), ({more[0]},{more[1]})]",
        f"({x},{y})",
        f"[{x}, {y}]",
        f"[[{x}, {y}], [1, 2]]",
        f"({x}, {y}, {more[0]}, {more[1]})",
        f"(-{x}, {y})",
        f"[(-{x}, {y})]",
        f"[-{x}, {y}]",
        f"[({x}, {y}, 1)]",
        "[(.5, .5)]",
        "[('0.5', '0.5')]",
        "[True, False]",
        "[]",
        "[[.5, .25],]",
        text,
        f"```json\n{text}\n```",
        f"so\n```json\n{text}\n```",
        f"```\n{text}```",
        str(listed),
        json.dumps(pairs[0]),
        json.dumps(pairs[2]),
        f"```json\n{json.dumps(pairs[0])}\n```",
        '[{"point_2d": ["1", "2"]}]',
        '```json\n[{"point_2d": [null, 2]}]\n```',
        "null",
        "[{}]",
        any_places(draw),
        any_answer(draw),
        f"<think>({y}, {x})</think>{text}",
        "```json\nnone\n```",
    )
    return draw.choice(forms)


def any_word_answer(draw: random.Random) -> str:
    """Draw yes, no, words that hold them, and what stands around them."""
    word = draw.choice(("Yes", "no", "No.", "YES", "not", "know", "yesterday", "", "yes and no"))
    forms = (
        "{}",
        "Answer: {}",
        "so\nAnswer: {}\n",
        "{}\nbecause",
        "<think>no</think>{}",
        "{} it is",
    )
    return draw.choice((draw.choice(forms).format(word), any_answer(draw)))


def _on_letters(theirs: Callable[[str], Any], ours: Callable[[str], Any]) -> Rule:
    def compare(draw: random.Random) -> tuple[Any, Any]:
        answer = any_letter_answer(draw)
        return theirs(answer), ours(answer)

    return compare


def _lmms_letters(tasks: Path) -> Iterator[tuple[str, Rule]]:
    muir = lift(tasks / "muirbench/utils.py", "apply", "muir_aggregation", print=lambda *_: None)

    def muirbench(draw: random.Random) -> tuple[Any, Any]:
        brief = draw.choice(FORMS[:6]).format(draw.choice("ABCDab"))
        answer = draw.choice((any_letter_answer(draw), brief))
        right = any_right_letter(draw, answer)
        (filtered,) = muir["apply"](None, [[answer]], [{}])
        theirs = muir["muir_aggregation"]([{"task": "x", "pred": filtered, "answer": right}])
        return theirs, float(letters.option_start(answer).lower().strip() == right.lower())

    yield "muirbench", muirbench
    name = "extract_single_choice_with_word_boundary"
    mmsi = lift(tasks / "mmsi_bench/utils.py", name)[name]

    def mmsi_letter(draw: random.Random) -> tuple[Any, Any]:
        answer, right = any_letter_answer(draw), draw.choice("ABCD")
        letter = spaces.mmsi_letter(answer)
        return mmsi(answer, right), None if letter is None else float(letter == right)

    yield "mmsi_letter", mmsi_letter
    mindcube = lift(tasks / "mindcube/utils.py", "extract_answer")["extract_answer"]
    yield "mindcube_letter", _on_letters(lambda a: mindcube(a.strip()), spaces.mindcube_letter)
    dsr = lift(tasks / "3dsrbench/utils.py", "extract_answer")["extract_answer"]
    yield "dsr_letter", _on_letters(dsr, spaces.dsr_letter)


def _lmms_omnispatial(tasks: Path) -> Iterator[tuple[str, Rule]]:
    direct = lift(tasks / "omni_spatial/utils.py", "_strip_think", "omni_spatial_process_results")

    def first_capital(draw: random.Random) -> tuple[Any, Any]:
        answer = any_letter_answer(draw)
        right = any_right_letter(draw, answer)
        row = {"answer": "ABCDE".index(right)}
        theirs = direct["omni_spatial_process_results"](row, [answer])
        ours = spaces.first_capital(answer) == right
        return theirs["omni_spatial_score"]["score"], int(ours)

    yield "first_capital", first_capital
    config = {"metadata": {"eval_type": "re"}}
    given = {"config": config, "omnispatial_doc_to_text": lambda _: ""}
    reasoned = lift(tasks / "omnispatial/utils.py", "omnispatial_process_results", **given)
    row = {"sub_task_type": "x", "task_type": "x", "id": 0}

    def last_answer_letter(draw: random.Random) -> tuple[Any, Any]:
        answer, right = any_letter_answer(draw), draw.choice("ABCD")
        theirs = reasoned["omnispatial_process_results"]({**row, "gt": right}, [answer])
        ours = (spaces.last_answer_letter(answer) or "A") == right
        return theirs["omnispatial"]["is_correct"], ours

    yield "last_answer_letter", last_answer_letter


def _robospatial_lmms(file: Path) -> Rule:
    parts = lift(
        file,
        *("remove_think", "json2pts", "evaluate_binary_answer", "evaluate_pointing_with_mask"),
        *("robo_spatial_doc_to_answer", "robo_spatial_process_results_generation"),
        Image=Image,
    )
    folder = tempfile.TemporaryDirectory()
    drawn = np.random.default_rng(0).random((8, *SIZE[::-1])) < 0.5
    for number, mask in enumerate(drawn):
        Image.fromarray(mask.astype(np.uint8) * 255).save(f"{folder.name}/{number}.png")

    def compare(draw: random.Random) -> tuple[Any, Any]:
        right, number = draw.choice(("yes", "no", "[]", "[]")), draw.randrange(len(drawn))
        answer = any_point_answer(draw) if right == "[]" else any_word_answer(draw)
        row = {"answer": right, "category": "x", "mask_path": f"{folder.name}/{number}.png"}
        try:
            theirs = parts["robo_spatial_process_results_generation"](row, [answer])["score"]
        except (TypeError, ValueError, OverflowError):  # ends their run
            theirs = 0
        reply = spaces.after_thought(answer)
        if right != "[]":
            return theirs, int(spaces.yes_no_last_line(reply) == right)
        points = spaces.thousandth_points(reply, *SIZE)
        return theirs, float(places.share_in_mask(points, drawn[number]) > 0)

    return compare


def _robospatial_own(file: Path) -> Rule:
    theirs = lift(file, "point_in_polygon", "evaluate_answer", ast=ast, print=lambda *_: None)

    def compare(draw: random.Random) -> tuple[Any, Any]:
        right, polygon = draw.choice(("yes", "no", "", "", "")), any_polygon(draw)
        answer = any_word_answer(draw) if right else any_point_answer(draw)
        correct = theirs["evaluate_answer"](right or str(polygon), answer)[0]
        if right:
            return correct, spaces.yes_no_start(answer) == right
        point = spaces.first_unit_point(answer)
        return correct, point is not None and spaces.in_polygon(point, polygon)

    return compare


def _robospatial_vlmeval(folder: Path) -> Rule:
    parser = lift(
        folder / "utils/spatial_bench/tools/utils.py", "Point2DParser", ast=ast, json=json
    )["Point2DParser"]
    bench = SimpleNamespace()
    theirs = lift(
        folder / "robospatialbench.py",
        *("point_in_polygon", "evaluate_answer"),
        **{"ast": ast, "RoboSpatialBench": bench, "Point2DParser": parser},
        print=lambda *_: None,
    )
    bench.point_in_polygon = theirs["point_in_polygon"]

    def compare(draw: random.Random) -> tuple[Any, Any]:
        right, polygon = draw.choice(("yes", "no", "", "", "")), any_polygon(draw)
        answer = any_word_answer(draw) if right else any_point_answer(draw)
        correct = theirs["evaluate_answer"](right or str(polygon), answer, *SIZE)[0]
        if right:
            return correct, spaces.yes_no_start(answer) == right
        point = spaces.first_scaled_point(answer, *SIZE)
        inside = point is not None and spaces.in_polygon_vlmeval(point, polygon)
        return correct, inside

    return compare


def _groups(file: Path) -> Rule:
    names = ("flip", "circular", "flip_circular")
    parts = lift(file, "get_qid_key", *(f"aggregate_{name}_accuracy" for name in names))
    keys: tuple[Callable[[str], str], ...] = (
        lambda qid: qid.replace("-flip", ""),
        lambda qid: qid[:8] + "-flip" * ("-flip" in qid),
        lambda qid: qid[:8],
    )

    def compare(draw: random.Random) -> tuple[Any, Any]:
        bases = [f"VIN6MS3{letter}" for letter in "ABCD"[: draw.randint(1, 4)]]
        ends = ("", "-1", "-2", "-flip", "-flip-1")
        qids = [base + end for base in bases for end in ends if not end or draw.random() < 0.7]
        scores = [float(draw.random() < 0.8) for _ in qids]
        results = [{"qid": qid, "score": score} for qid, score in zip(qids, scores, strict=True)]
        theirs = [parts[f"aggregate_{name}_accuracy"](results) for name in names]
        ours = []
        for key in keys:
            rows = Rows(np.array(scores), [key(qid) for qid in qids], qids, qids)
            ours.append(estimate("all_of_groups", rows, qids, resamples=1)[0])
        return [round(n, 9) for n in theirs], [round(n, 9) for n in ours]

    return compare


def _verdicts(tasks: Path) -> Iterator[tuple[str, Rule]]:
    class NoDraw:
        choice = staticmethod(lambda _: None)

    quiet = SimpleNamespace(warning=lambda *_: None, info=lambda *_: None)
    given = {"parse_by_llm": lambda _: "", "eval_logger": quiet, "defaultdict": defaultdict}
    reward = lift(tasks / "vl_rewardbench/utils.py", "parse_pred_ans", random=NoDraw, **given)

    def better_answer(draw: random.Random) -> tuple[Any, Any]:
        answer = any_verdict(draw)
        return reward["parse_pred_ans"](answer), preferences.better_answer(answer)

    yield "better_answer", better_answer
    names = ("extract_judgment", "multimodal_rewardbench_process_results")
    multimodal = lift(tasks / "multimodal_rewardbench/utils.py", *names)

    def bracketed_verdict(draw: random.Random) -> tuple[Any, Any]:
        answer, right = any_verdict(draw), draw.choice("AB")
        row = {"Better": f"Output{'AB'.index(right) + 1}", "Category": "", "ID": ""}
        theirs = multimodal["multimodal_rewardbench_process_results"](row, [answer])
        ours = (preferences.bracketed_verdict(answer) or "A") == right
        return theirs["multimodal_rewardbench_accuracy"]["score"], int(ours)

    yield "bracketed_verdict", bracketed_verdict


def any_verdict(draw: random.Random) -> str:
    """Draw one or two verdicts, with hostile words around them."""
    parts = [
        draw.choice(
            (draw.choice(VERDICTS).format(draw.choice((1, 2, 3, 12))), any_answer(draw), "\n", "**")
        )
        for _ in range(draw.randint(1, 3))
    ]
    return draw.choice((" ", "\n", "")).join(parts)
