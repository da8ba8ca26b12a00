"""The rules of single tasks, compared with the harnesses' own code: see `compare_rules.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from answers import OPTIONS, any_answer, any_options, any_places, lift

from vlmrl.answers.benchmark_rules import counts, open_answers, points, task_letters

Rule = Callable[[random.Random], tuple[Any, Any]]


def lmms_task_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of lmms-eval's tasks: from a random state to (theirs, ours)."""
    tasks = root / "lmms_eval/tasks"
    mmvp = lift(tasks / "mmvp/utils.py", "_extract_answer_letter")["_extract_answer_letter"]
    yield "mmvp_letter", _on_answers(lambda a: mmvp(a) or None, task_letters.mmvp_letter)
    names = ("OPTION_LETTERS", "_ANSWER_PATTERNS", "_extract_option_letter")
    logic = lift(tasks / "visulogic/utils.py", *names)["_extract_option_letter"]
    yield "visulogic_letter", _on_answers(lambda a: logic(a) or None, task_letters.visulogic_letter)
    space = lift(tasks / "embspatial/utils.py", "_extract_answer_letter")["_extract_answer_letter"]
    from vlmrl.answers.benchmark_rules.letters import cv_bench_letter

    yield "embspatial_letter", _on_answers(lambda a: space(a) or None, cv_bench_letter)
    geometry = lift(tasks / "geometry3k/utils.py", "_extract_answer_letter")

    def geometry_letter(draw: random.Random) -> tuple[Any, Any]:
        said, options = any_answer(draw), draw.sample(OPTIONS, 4)
        theirs = geometry["_extract_answer_letter"](said, options)
        return theirs or None, task_letters.geometry_letter(said, options)

    yield "geometry_letter", geometry_letter
    science = lift(tasks / "scienceqa/utils.py", "sqa_doc_to_target", "sqa_process_results")

    def science_letter(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_answer(draw), draw.randrange(4)
        row = {"choices": list("wxyz"), "answer": right}
        theirs = science["sqa_process_results"](row, [said])["exact_match"]
        return theirs, float(task_letters.science_letter(said).lower() == "abcd"[right])

    yield "science_letter", science_letter
    natural = lift(tasks / "naturalbench/utils.py", "extract_answer", print=lambda *_: None)

    def naturalbench(draw: random.Random) -> tuple[Any, Any]:
        said, kind = any_answer(draw), draw.choice(("yes_no", "multiple_choice"))
        words = ("yes", "no") if kind == "yes_no" else ("A", "B")
        ours = task_letters.naturalbench_word(said, words)
        return natural["extract_answer"](said, kind), {words[0]: 1, words[1]: 0}.get(ours or "", -1)

    yield "naturalbench_word", naturalbench
    yield from _mmbench(tasks)
    yield from _open(tasks)
    yield from _points(tasks)


def _mmbench(tasks: Path) -> Iterator[tuple[str, Rule]]:
    methods = ("can_infer_option", "can_infer_text", "can_infer")
    bench = lift(tasks / "mmbench/mmbench_evals.py", *methods, eval_logger=_Quiet())
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
        return theirs or None, task_letters.mmbench_letter(said, options, rest)

    yield "mmbench_letter", letter


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
    slake = lift(tasks / "slake/utils.py", *words, *plain)["normalize_answer"]

    def slake_same(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice(("Yes", "No", "x-ray", "Lung, Heart", "true"))
        said = draw.choice(
            (any_answer(draw), right.lower() + ".", f"{right} (left)", "X Ray", "yep")
        )
        return slake(said) == slake(right), open_answers.slake(said, right)

    yield "slake", slake_same
    vista = lift(
        tasks / "mathvista/mathvista_evals.py",
        *("extract_answer", "normalize_extracted_answer", "safe_equal"),
        eval_logger=_Quiet(),
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
        return theirs, points.screen_point(said, size)

    yield "screen_point", screen_point
    spatial = lift(tasks / "refspatial/utils.py", "_text2pts")["_text2pts"]

    def unit_points(draw: random.Random) -> tuple[Any, Any]:
        said = any_places(draw) + draw.choice(("", "(0.5, 0.25)", "(1, 0), (0.1, .2)", "(-1, 2)"))
        theirs = [tuple(map(int, one)) for one in np.array(spatial(said, 640, 480)).tolist()]
        return theirs, points.unit_points(said, 640, 480)

    yield "unit_points", unit_points


def vlmeval_task_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of VLMEvalKit's tasks: from a random state to (theirs, ours)."""
    tally = root / "vlmeval/dataset/utils/tallyqa.py"
    if not tally.exists():
        print("count_to_twenty: not compared, this version has no TallyQA")
        return
    read = lift(tally, "text_to_int", "extract_count_from_prediction")
    theirs = read["extract_count_from_prediction"]
    yield "count_to_twenty", _on_answers(theirs, counts.count_to_twenty)


def _on_answers(theirs: Callable[[str], Any], ours: Callable[[str], Any]) -> Rule:
    def compare(draw: random.Random) -> tuple[Any, Any]:
        said = any_answer(draw)
        return theirs(said), ours(said)

    return compare


class _Quiet:
    """A logger that says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None
