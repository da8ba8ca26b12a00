"""The rules of single tasks, compared with the harnesses' own code: see `compare_rules.py`."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from answers import (
    OPTIONS,
    Quiet,
    Rule,
    Table,
    any_answer,
    any_options,
    any_places,
    lift,
    on_answers,
)

from vlmrl.benchmark_rules import letters, mathematics, numbers, places
from vlmrl.benchmark_rules import words as open_answers
from vlmrl.benchmarking.aggregates import Rows, estimate


def lmms_task_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of lmms-eval's tasks: from a random state to (theirs, ours)."""
    tasks = root / "lmms_eval/tasks"
    mmvp = lift(tasks / "mmvp/utils.py", "_extract_answer_letter")["_extract_answer_letter"]
    yield "mmvp_letter", on_answers(lambda a: mmvp(a) or None, letters.mmvp_letter)
    names = ("OPTION_LETTERS", "_ANSWER_PATTERNS", "_extract_option_letter")
    logic = lift(tasks / "visulogic/utils.py", *names)["_extract_option_letter"]
    yield "visulogic_letter", on_answers(lambda a: logic(a) or None, letters.visulogic_letter)
    space = lift(tasks / "embspatial/utils.py", "_extract_answer_letter")["_extract_answer_letter"]
    from vlmrl.benchmark_rules.letters import cv_bench_letter

    yield "embspatial_letter", on_answers(lambda a: space(a) or None, cv_bench_letter)
    geometry = lift(tasks / "geometry3k/utils.py", "_extract_answer_letter")

    def geometry_letter(draw: random.Random) -> tuple[Any, Any]:
        said, options = any_answer(draw), draw.sample(OPTIONS, 4)
        theirs = geometry["_extract_answer_letter"](said, options)
        return theirs or None, letters.geometry_letter(said, options)

    yield "geometry_letter", geometry_letter
    science = lift(tasks / "scienceqa/utils.py", "sqa_doc_to_target", "sqa_process_results")

    def science_letter(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_answer(draw), draw.randrange(4)
        row = {"choices": list("wxyz"), "answer": right}
        theirs = science["sqa_process_results"](row, [said])["exact_match"]
        return theirs, float(letters.science_letter(said).lower() == "abcd"[right])

    yield "science_letter", science_letter
    natural = lift(tasks / "naturalbench/utils.py", "extract_answer", print=lambda *_: None)

    def naturalbench(draw: random.Random) -> tuple[Any, Any]:
        said, kind = any_answer(draw), draw.choice(("yes_no", "multiple_choice"))
        words = ("yes", "no") if kind == "yes_no" else ("A", "B")
        ours = letters.naturalbench_word(said, words)
        return natural["extract_answer"](said, kind), {words[0]: 1, words[1]: 0}.get(ours or "", -1)

    yield "naturalbench_word", naturalbench
    yield from _mmbench(tasks)
    yield from _open(tasks)
    yield from _points(tasks)


def _mmbench(tasks: Path) -> Iterator[tuple[str, Rule]]:
    methods = ("can_infer_option", "can_infer_text", "can_infer")
    bench = lift(tasks / "mmbench/mmbench_evals.py", *methods, eval_logger=Quiet())
    mcq = lift(
        tasks / "_task_utils/mcq_extract.py",
        *("extract_mcq_answer", "_DEFAULT_CHOICES", "_ANSWER_PHRASES", "_FORMAT_PRIORITY"),
    )["extract_mcq_answer"]

    class Bench:
        can_infer_option = bench["can_infer_option"]
        can_infer_text = bench["can_infer_text"]
        can_infer = bench["can_infer"]

    def letter(draw: random.Random) -> tuple[Any, Any]:
        said, options = any_answer(draw), any_options(draw)
        options = {key: text for key, text in options.items() if key in "ABCD"}
        rest = draw.random() < 0.5
        theirs = Bench().can_infer(said, dict(options))
        if not theirs and rest:
            theirs = mcq(said, choices=sorted(options))
        return theirs or None, letters.mmbench_letter(said, options, rest)

    yield "mmbench_letter", letter
    names = ("can_infer_option", "can_infer_text", "can_infer")
    hr = lift(tasks / "hrbench/hrbench_evals.py", *names, cp=copy)

    class HrBench:
        can_infer_option = hr["can_infer_option"]
        can_infer_text = hr["can_infer_text"]
        can_infer = hr["can_infer"]

    def hr_letter(draw: random.Random) -> tuple[Any, Any]:
        said, options = any_answer(draw), any_options(draw)
        said += draw.choice(
            ("", "", "Cannot determine the answer", " Failed to obtain answer via API")
        )
        theirs = HrBench().can_infer(said, dict(options))
        return theirs or None, letters.hr_bench_letter(said, options)

    yield "hr_bench_letter", hr_letter


def _open(tasks: Path) -> Iterator[tuple[str, Rule]]:
    names = ("parse_open_response", "extract_numbers", "check_is_number", "normalize_str")
    mmmu = lift(tasks / "mmmu/utils.py", *names, "eval_open")

    def mmmu_open(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice(("12", "3.5", "1,200", "cat", "the dog", "x", ["no", "10"], "0.333"))
        said = draw.choice((any_answer(draw), f"{any_answer(draw)} so it is {right}", f"= {right}"))
        theirs = mmmu["eval_open"](right, mmmu["parse_open_response"](said))
        return theirs, open_answers.mmmu_open(said, right)

    yield "mmmu_open", mmmu_open
    words = ("EN_YES", "EN_NO", "ZH_YES", "ZH_NO", "ZH_PUNCTUATION")
    plain = ("normalize_answer", "_normalize_medical_aliases", "_normalize_yes_no")
    lifted = lift(tasks / "slake/utils.py", *words, *plain)
    slake = lifted["normalize_answer"]
    wide = (*lifted["ZH_YES"], *lifted["ZH_NO"], *lifted["ZH_PUNCTUATION"])

    def slake_same(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice(("Yes", "No", "x-ray", "Lung, Heart", "true"))
        words = draw.choices((*wide, "yes", "Lung", "heart", " "), k=draw.randint(1, 4))
        near = (f"{right} (left)", f"{right}\uff08left\uff09\u3002", "X Ray", "yep")
        said = draw.choice((any_answer(draw), right.lower() + ".", *near, "".join(words)))
        return slake(said) == slake(right), open_answers.slake(said, right)

    yield "slake", slake_same
    yield "mathvision", _mathvision(tasks / "mathvision")
    vista = lift(
        tasks / "mathvista/mathvista_evals.py",
        *("extract_answer", "normalize_extracted_answer", "safe_equal"),
        eval_logger=Quiet(),
    )

    class Vista:
        extract_answer = vista["extract_answer"]
        normalize_extracted_answer = vista["normalize_extracted_answer"]
        safe_equal = vista["safe_equal"]

        def create_test_prompt(self, *_: str) -> str:
            return ""

        def get_chat_response(self, *_: Any, **__: Any) -> None:
            return None  # a judge is asked

        def get_most_similar(self, prediction: str, choices: list[str]) -> str:
            return prediction if prediction in choices else choices[0]

    def mathvista(draw: random.Random) -> tuple[Any, Any]:
        kind = draw.choice(("text", "integer", "float"))
        choices = draw.sample(OPTIONS[:9], 3) if kind == "text" else []
        said = draw.choice((any_answer(draw), "12", "3.5", "1.25", *choices)).strip()
        right = draw.choice((*choices, "12", "3.5", "1.2"))
        right = choices[0] if choices else right
        precision = draw.choice((1, 2, 1.0))
        row = {"question_type": "multi_choice" if choices else "free_form", "answer_type": kind}
        theirs = Vista().extract_answer(said, {**row, "choices": choices, "query": ""})
        ours = open_answers.mathvista_reading(said, choices, kind)
        if not theirs or ours is None:
            return theirs or None, ours
        theirs = Vista().normalize_extracted_answer(
            theirs, choices, row["question_type"], kind, precision
        )
        judged = open_answers.mathvista_right(ours, right, choices, kind, precision)
        return Vista().safe_equal(theirs, right), judged

    yield "mathvista", mathvista


def _points(tasks: Path) -> Iterator[tuple[str, Rule]]:
    screen = lift(
        tasks / "screenspot_v2/utils.py",
        *("_NUM_TOKEN", "_token_to_float", "_parse_point"),
        Tuple=Any,
    )

    def screen_point(draw: random.Random) -> tuple[Any, Any]:
        said = any_places(draw)
        if draw.random() < 0.2:
            said = f"<bbox>{said}</bbox> box"
        theirs, size = screen["_parse_point"](said), draw.choice(((1, 1), (640, 480)))
        if theirs is not None and (theirs[0] > 1 or theirs[1] > 1):
            theirs = (theirs[0] / size[0], theirs[1] / size[1])
        return theirs, places.screen_point(said, size)

    yield "screen_point", screen_point
    spatial = lift(tasks / "refspatial/utils.py", "_text2pts")["_text2pts"]

    def unit_points(draw: random.Random) -> tuple[Any, Any]:
        said = any_places(draw) + draw.choice(("", "(0.5, 0.25)", "(1, 0), (0.1, .2)", "(-1, 2)"))
        theirs = [tuple(map(int, one)) for one in np.array(spatial(said, 640, 480)).tolist()]
        return theirs, places.unit_points(said, 640, 480)

    yield "unit_points", unit_points
    share = lift(tasks / "refspatial/utils.py", "_refspatial_acc")["_refspatial_acc"]

    def share_in_mask(draw: random.Random) -> tuple[Any, Any]:
        mask = np.array([[draw.randint(0, 1) for _ in range(7)] for _ in range(5)], np.uint8)
        found = [
            (draw.randint(-3, 9), draw.randint(-3, 9)) for _ in range(draw.choice((0, 1, 2, 5)))
        ]
        theirs = float(share(mask, np.array(found)))
        return round(theirs, 12), round(places.share_in_mask(found, mask), 12)

    yield "share_in_mask", share_in_mask
    pro = lift(
        tasks / "screenspot_pro/utils.py",
        *("_NUM_TOKEN", "_token_to_float", "_parse_point", "_normalize_xyxy", "_parse_bbox"),
        *("_parse_img_size", "_point_in_box", "screenspot_pro_process_results"),
        Tuple=Any,
        json=json,
    )["screenspot_pro_process_results"]

    def pro_click(draw: random.Random) -> tuple[Any, Any]:
        said, box = any_places(draw), sorted(draw.randint(2, 640) for _ in range(4))
        row = {
            "img_size": [640, 480],
            "bbox": [box[0], box[1] % 480, box[2], 479],
            "ui_type": "icon",
        }
        found = places.screen_point(said, (640, 480))
        x1, y1, x2, y2 = row["bbox"]
        ours = found and x1 / 640 <= found[0] <= x2 / 640 and y1 / 480 <= found[1] <= y2 / 480
        theirs = pro(row, [said])["screenspot_pro_action_acc"]["correct"]
        return theirs, bool(ours)

    yield "screenspot_pro", pro_click


def vlmeval_task_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of VLMEvalKit's tasks: from a random state to (theirs, ours)."""
    yield "screenspot_pro_table", _pro_table(root)
    tally = root / "vlmeval/dataset/utils/tallyqa.py"
    if not tally.exists():
        print("count_to_twenty: not compared, this version has no TallyQA")
        return
    read = lift(tally, "text_to_int", "extract_count_from_prediction")
    theirs = read["extract_count_from_prediction"]
    yield "count_to_twenty", on_answers(theirs, numbers.count_to_twenty)


def _pro_table(root: Path) -> Rule:
    """Compare what VLMEvalKit prints of a table of clicks with ours."""
    table: list[dict[str, Any]] = []
    given = {
        "load": lambda _: Table(table),
        "Image": SimpleNamespace(open=lambda _: SimpleNamespace(size=(640, 480))),
        **{"defaultdict": defaultdict, "itertools": itertools, "tqdm": list, "logger": Quiet()},
        **{"dump": lambda *_: None, "get_intermediate_file_path": lambda *_: ""},
    }
    file = root / "vlmeval/dataset/GUI/screenspot_pro.py"
    theirs = lift(file, "parse_bbox_aguvis", "evaluate_point", **given)
    printed: dict[str, Any] = {}
    theirs["dump"] = lambda found, _: printed.update(found)
    harness = SimpleNamespace(parse_response_func=theirs["parse_bbox_aguvis"], img_root="")

    def compare(draw: random.Random) -> tuple[Any, Any]:
        table.clear()
        printed.clear()
        scores = []
        for _ in range(draw.randint(1, 9)):
            x, y = draw.randint(0, 500), draw.randint(0, 400)
            row = {"bbox": [x, y, x + 120, y + 60], "category": draw.choice("ab"), "image_path": ""}
            row |= {"ui_type": draw.choice(("text", "icon")), "question": "", "application": ""}
            table.append({**row, "prediction": _click(draw, x, y)})
            found = places.pyautogui_point(table[-1]["prediction"], (640, 480))
            hit = found and x / 640 <= found[0] <= (x + 120) / 640
            scores.append(float(bool(hit and y / 480 <= found[1] <= (y + 60) / 480)))
        theirs["evaluate_point"](harness, "")
        kinds = {"text": "Text", "icon": "Icon"}
        wanted, ours = [printed["Overall_Accuracy"]], [100 * np.mean(scores)]
        for kind in sorted({row["ui_type"] for row in table}):
            by = [row["category"] if row["ui_type"] == kind else "" for row in table]
            rows = Rows(np.array(scores), by, [""] * len(by), [""] * len(by))
            clusters = [str(number) for number in range(len(by))]
            wanted.append(printed[f"{kinds[kind]}_Accuracy"])
            ours.append(100 * estimate("mean_by_squares", rows, clusters, resamples=1)[0])
        return [round(float(n), 9) for n in wanted], [round(float(n), 9) for n in ours]

    return compare


def _click(draw: random.Random, x: int, y: int) -> str:
    """Draw a click in a box, near it, or in another form."""
    x, y = x + draw.randint(-40, 160), y + draw.randint(-30, 90)
    forms = (
        f"pyautogui.click(x={max(0, x)}, y={max(0, y)})",
        f"x={max(0, x) / 640}, y={max(0, y) / 480}",
    )
    return draw.choice((*forms, *forms, any_places(draw), "x=1.2.3, y=4"))


EXPRESSIONS = (
    "12",
    "3.5",
    "1/2",
    "\\frac{1}{2}",
    "2\\sqrt{3}",
    "\\pi",
    "(1,2)",
    "2^3",
    "45^\\circ",
    "x",
    "9:3",
)


def _mathvision(folder: Path) -> Rule:
    """Compare the rule without a judge; `eval` of what latex2sympy reads is the harness's own."""
    from latex2sympy2_extended import latex2sympy

    names = (
        "is_number",
        "eval_tuple",
        "is_equal",
        "find_math_answer",
        "_strip_string",
        "_fix_fracs",
    )
    more = ("_fix_a_slash_b", "_remove_right_units", "_fix_sqrt")
    parts = lift(folder / "eval_utils.py", *names, *more, latex2sympy=latex2sympy)
    whole = lift(folder / "utils.py", "mathvision_process_results", **parts)

    def right(draw: random.Random) -> tuple[Any, Any]:
        options = [*any_options(draw).values()] if draw.random() < 0.5 else []
        truth = draw.choice("ABCDE"[: len(options)] if options else EXPRESSIONS)
        stated = draw.choice((truth, *EXPRESSIONS, *options))
        phrase = draw.choice(
            ("{}", "The answer is {}.", "\\boxed{{{}}}", "so \\boxed{{1}}, \\boxed{{{}}}")
        )
        answer = draw.choice((any_answer, lambda _: ""))(draw) + " " + phrase.format(stated)
        row = {"answer": truth, "options": options}
        theirs = whole["mathvision_process_results"](row, [answer])
        return theirs["mathvision_standard_eval"]["scores"][0], mathematics.mathvision_right(
            answer, truth, options
        )

    return right
