"""The rules of short answers about photographs, charts and drawings: see `compare_rules.py`."""

from __future__ import annotations

import ast
import itertools
import json
import math
import random
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from answers import Rule, any_answer, lift

from vlmrl.benchmark_rules import Harness, letters, words
from vlmrl.benchmarking import chart_prompts
from vlmrl.benchmarking.scorers import SCORERS
from vlmrl.benchmarks.ocrbench_v2 import TASKS, OcrbenchV2
from vlmrl.schema import Frame, Sample, Truth


def lmms_document_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of lmms-eval's tasks: from a random state to (theirs, ours)."""
    tasks = root / "lmms_eval/tasks"
    shared = lift(tasks / "_task_utils/vqa_eval_metric.py", "EvalAIAnswerProcessor")
    given = {"EvalAIAnswerProcessor": shared["EvalAIAnswerProcessor"], "statistics": statistics}
    plain = lift(tasks / "vqav2/utils.py", "vqav2_process_results", **given)
    yield "vqa_accuracy vqav2", _vqa(plain["vqav2_process_results"], tokenized=False)
    vizwiz = lift(tasks / "vizwiz_vqa/utils.py", "vizwiz_vqa_process_results", **given)
    yield "vqa_accuracy vizwiz", _vqa(vizwiz["vizwiz_vqa_process_results"], tokenized=True)
    exact = lift(root / "lmms_eval/api/metrics.py", "exact_match_hf_evaluate")

    def same(answer: str, right: str) -> bool:
        found = exact["exact_match_hf_evaluate"](
            predictions=[answer.strip()],
            references=[right],
            ignore_case=True,
            ignore_punctuation=True,
        )
        return bool(found["exact_match"])

    yield "equal_text lmms_eval", _equal(same, "lmms_eval")
    real = lift(
        tasks / "mme_realworld/utils.py",
        "extract_characters_regex",
        "mme_realworld_process_results",
    )

    def real_letter(answer: str) -> str | None:
        row = {"category": "Perception/OCR", "l2-category": "", "index": 0, "answer": "A"}
        found = real["mme_realworld_process_results"](row, [answer])
        return found["mme_realworld_score"]["pred_answer"] or None

    yield "mme_realworld lmms_eval", _five(real_letter, "lmms_eval")
    blind = lift(tasks / "vlmsareblind/utils.py", "TASKS", "parse_response")

    def blind_reading(draw: random.Random) -> tuple[Any, Any]:
        task = draw.choice(blind["TASKS"]).title()
        between = draw.choice((" ", "", " columns=", ", columns="))
        grid = f"{draw.choice(('rows=', '', 'Rows = '))}{{{draw.randint(1, 12)}}}{between}{{3}}"
        near = draw.choice(
            ("Yes", "no", "{12}", "(3, 4)", "{b}", grid, f"({draw.randint(1, 9)},2)")
        )
        answer = draw.choice((any_answer(draw), near, f"{any_answer(draw)} {near}"))
        theirs = blind["parse_response"](answer.strip().lower(), task)
        return theirs, words.blind_reading(answer, task)

    yield "blind_reading", blind_reading
    yield "charxiv questions", _charxiv(tasks / "charxiv")
    yield "ocrbench_v2", _ocrbench_v2(tasks / "ocrbench_v2")


def _ocrbench_v2(folder: Path) -> Rule:
    metrics = lift(
        folder / "vqa_metric.py",
        *("levenshtein_distance", "vqa_evaluation", "cn_vqa_evaluation", "counting_evaluation"),
        *("vqa_evaluation_case_sensitive", "extract_first_number", "math_expression_evaluation"),
        *("remove_text_tags", "cn_math_expression_evaluation"),
        math=math,
    )
    objects = lift(
        folder / "TEDS_metric.py",
        *("convert_str_to_dict", "generate_combinations", "compute_f1_score"),
        **{"json": json, "ast": ast, "product": itertools.product},
    )
    boxes = lift(
        folder / "IoUscore_metric.py",
        *("calculate_iou", "vqa_with_position_evaluation", "extract_coordinates"),
        **{"ast": ast, "vqa_evaluation": metrics["vqa_evaluation"]},
    )
    given = {**metrics, **objects, **boxes, "ast": ast}
    whole = lift(folder / "utils.py", "ocrbench_v2_process_results", "is_nan_value", **given)

    def score(draw: random.Random) -> tuple[Any, Any]:
        row = any_ocr_row(draw)
        answer = near_ocr_answer(draw, row).strip()
        theirs = whole["ocrbench_v2_process_results"](
            {**row, "answers": [*row["answers"]]}, [answer]
        )
        adapted = OcrbenchV2("").adapt({**row, "image": None, "id": 0})
        facts = {key: adapted.get(key) for key in ("type", "eval", "fields_of", "place")}
        sample = Sample("x", "x", (), Truth(text=tuple(row["answers"])), meta=facts)
        ours = SCORERS["ocrbench_v2"](answer, sample, Frame(640, 480)).value
        return round(float(theirs["ocrbench_v2_accuracy"]["score"]), 12), round(
            float(ours or 0), 12
        )

    return score


TEXTS = (
    "12",
    "Old Moon",
    "the quick brown fox jumps over",
    "A",
    "甲 乙",
    "甲,乙,丙,丁,戊",
    "3 cm",
    "Yes",
)
FORMULAS = (r"x^{2} + 1", r"\frac{a}{b}", r"\text{if} x", "x_1")


def any_ocr_row(draw: random.Random) -> dict[str, Any]:
    """Draw a published row of OCRBench v2 of any task that we keep."""
    task = draw.choice(TASKS)
    row: dict[str, Any] = {"type": task, "question": "Which?", "eval": "None", "bbox": None}
    if task == "text counting en":
        answers = [str(draw.randint(1, 30)) for _ in range(draw.randint(1, 2))]
        return {**row, "answers": answers, "eval": draw.choice(("exact match", "regression"))}
    if task.startswith("formula"):
        return {**row, "answers": [draw.choice(FORMULAS)]}
    if task.startswith("key information"):
        fields = {
            name: draw.sample(TEXTS, draw.randint(1, 2)) for name in ("total", "date", "人 名")
        }
        return {**row, "answers": [json.dumps(fields, ensure_ascii=False)]}
    if "position" in task or "grounding" in task:
        place = [draw.randint(0, 400), draw.randint(0, 400), draw.randint(401, 1000), 900]
        if "grounding" in task:
            return {**row, "answers": [*map(str, place)]}
        return {**row, "answers": draw.sample(TEXTS, 2), "bbox": place}
    by = draw.choice(("None", "multiple choice", "case sensitive"))
    single = by == "multiple choice" or task.startswith("handwritten")
    answers = [draw.choice("ABCD")] if single else draw.sample(TEXTS, draw.randint(1, 3))
    answers = ["ABD"] if task.startswith("handwritten") else answers
    return {**row, "eval": by, "answers": answers}


def near_ocr_answer(draw: random.Random, row: dict[str, Any]) -> str:
    """Draw a hostile answer, or one near to the truth of the row."""
    right, other = draw.choice(row["answers"]), any_answer(draw)
    if row["type"].startswith("key information"):
        fields = {key: draw.choice(values) for key, values in json.loads(right).items()}
        fields = {key: draw.choice((value, other)) for key, value in fields.items()}
        listed = draw.choice((json.dumps(fields, ensure_ascii=False), str(fields)))
        pairs = "\n".join(f"{key}{draw.choice((': ', '=', ' : '))}{v}" for key, v in fields.items())
        right = draw.choice((listed, f"Here:\n```json\n{listed}\n```", pairs, listed[:-1], "[1]"))
    if row["bbox"] or "grounding" in row["type"]:
        place = [*map(int, row["bbox"] or row["answers"])]
        place = [n + draw.choice((0, 0, 5, -30, 700)) for n in place]
        box = draw.choice(("[{}, {}, {}, {}]", "({},{},{},{})", "[{}, {}, {}]")).format(*place)
        if row["bbox"]:
            stated = {"answer": draw.choice((right, other)), "bbox": draw.choice((box, place))}
            box = draw.choice((json.dumps(stated), str(stated), f"answer: {right}, bbox: {box}"))
        right = draw.choice((box, f"{box} or (1, 2, 3, 4)", f"at {box} {box}"))
    near = (
        right,
        f"It is {right}.",
        right.lower(),
        right.replace(" ", ""),
        right[1:],
        f" {right}\n",
    )
    return draw.choice((*near, ", ".join(right), other, f"{other} {right}"))


def _charxiv(folder: Path) -> Rule:
    constants = lift(folder / "constant.py", "DESCRIPTIVE_RESP_INST", "REASONING_RESP_INST")
    given = {name: constants[name] for name in ("DESCRIPTIVE_RESP_INST", "REASONING_RESP_INST")}
    helper = lift(folder / "descriptive_utils.py", "descriptive_query_helper", **given)
    number = lift(folder / "reasoning_utils.py", "get_number_instruction")
    given |= {name: number[name] for name in ("get_number_instruction",)}
    reasoning = lift(folder / "utils.py", "charxiv_reasoning_doc_to_text_cot", **given)

    def question(draw: random.Random) -> tuple[Any, Any]:
        if draw.random() < 0.5:
            kind, right = draw.randint(1, 4), draw.choice(("12", "0.250", "-1.5", "A", "1.2.3"))
            asked = any_answer(draw)
            row = {"reasoning_q": asked, "reasoning_q_source": kind, "reasoning_a": right}
            theirs = reasoning["charxiv_reasoning_doc_to_text_cot"](row)
            return theirs, chart_prompts.reasoning_question(asked, kind, right)
        template, place = draw.randint(1, 19), draw.choice(("the left plot", "(a)", [0, 0], [1, 2]))
        row = {"subplot_loc": None, "subplot_row": None, "subplot_col": None}
        if isinstance(place, str):
            row["subplot_loc"] = place
        else:
            row["subplot_row"], row["subplot_col"] = place
        theirs = helper["descriptive_query_helper"](template, place)
        return theirs, chart_prompts.descriptive_question(template, row)

    return question


def vlmeval_document_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of VLMEvalKit's tasks: from a random state to (theirs, ours)."""
    given = {"istype": lambda *_: False}
    line = lift(root / "vlmeval/dataset/utils/vqa_eval.py", "process_line", **given)

    def same(answer: str, right: str) -> bool:
        row = {"answer": right, "prediction": answer}
        return bool(np.mean(line["process_line"](row, method="accuracy")["match"]))

    yield "equal_text vlmevalkit", _equal(same, "vlmevalkit")
    choices = root / "vlmeval/dataset/utils/multiple_choice.py"
    read = lift(choices, "extract_characters_regex")["extract_characters_regex"]

    def real_letter(answer: str) -> str | None:
        # MMERealWorld.evaluate takes the tags away so, inside of a loop over a table.
        tagged = re.search(r"<answer>(.*?)</answer>", answer, re.DOTALL)
        return read(tagged.group(1).strip().upper() if tagged else answer) or None

    yield "mme_realworld vlmevalkit", _five(real_letter, "vlmevalkit")


def _vqa(theirs: Callable[[Any, Any], Any], tokenized: bool) -> Rule:
    def compare(draw: random.Random) -> tuple[Any, Any]:
        answer, others = any_answer(draw), [any_answer(draw) for _ in range(3)]
        near = (answer, answer + ".", answer.upper(), f"the {answer}", answer.replace("'", ""))
        right = [draw.choice((*near, *others)) for _ in range(10)]
        listed = [{"answer": text, "answer_id": at} for at, text in enumerate(right)]
        row = {"answers": [*right] if tokenized else listed, "question_id": 0}
        found = theirs(row, [answer.strip()])["exact_match"]
        ours = words.vqa_accuracy(answer, right, "lmms_eval", tokenized)
        return round(float(found), 12), round(ours, 12)

    return compare


def _equal(theirs: Callable[[str, str], bool], harness: Harness) -> Rule:
    def compare(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice(("yes", "t-shirt", "Mr. Bean", "dark blue ", "x", any_answer(draw)[:9]))
        near = (right.upper() + ".", f" {right}\n", f"{right} .", right.replace("-", ""), right)
        answer = draw.choice((*near, any_answer(draw)))
        return theirs(answer, right), words.equal_text(answer, right, harness)

    return compare


def _five(theirs: Callable[[str], str | None], harness: Harness) -> Rule:
    phrases = (
        *("The best answer is", "The correct answer is", "The answer is", "The answer"),
        *("The best option is", "The correct option is", "Best answer:", "Best option:"),
        *("Best answer:Best option:", "The best option isThe correct option is", "", "", ""),
    )
    ends = ("a", "(b)", "e", "", " ", "D", "E.", "<answer>c</answer>", "<answer>\nB. x</answer>")

    def compare(draw: random.Random) -> tuple[Any, Any]:
        rest = draw.choice((any_answer(draw), *ends, any_answer(draw).lower()))
        answer = f"{draw.choice(phrases)}{draw.choice((' ', '', ': '))}{rest}"
        answer = draw.choice((answer, answer.strip(), rest))
        return theirs(answer), letters.mme_realworld_letter(answer, harness)

    return compare
