"""Compare our rules of benchmark harnesses with the harnesses' own code, on random hostile answers.

    python tests/reference/compare_rules.py LMMS_EVAL VLMEVAL [--own DIR] [--cases 5000] [--seed 0]
        [--only NAME]

The two folders are unpacked wheels or checkouts (`make reference` fetches the wheels); DIR holds
checkouts of papers' own code (`video_rules.OWN`). Functions are
taken out of their source one by one, so that none of the harnesses' dependencies is needed. Prints
how many answers were judged differently, by rule; exits with 1 if any was.
"""

from __future__ import annotations

import argparse
import random
import string
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from answers import Rule, any_answer, any_options, any_places, lift, on_answers
from captions_rules import caption_rules
from documents_rules import lmms_document_rules, vlmeval_document_rules
from moment_rules import lmms_moment_rules, own_moment_rules
from science_rules import science_rules
from screens_rules import lmms_screen_rules, own_screen_rules, vlmeval_screen_rules
from sounds_rules import lmms_sound_rules, own_sound_rules
from spaces_rules import spaces_rules
from task_rules import lmms_task_rules, vlmeval_task_rules
from video_rules import lmms_video_rules, own_rules

from vlmrl.benchmark_rules import letters, numbers, places, spans, words
from vlmrl.benchmark_rules import letters as yes_no
from vlmrl.schema import Box, Frame, Span

SHOWN = 3
FRAME = Frame(640, 480, space="norm1000")


def any_box(draw: random.Random) -> tuple[float, float, float, float]:
    """Draw a box in the unit square."""
    x1, x2 = sorted(draw.sample(range(101), 2))
    y1, y2 = sorted(draw.sample(range(101), 2))
    return x1 / 100, y1 / 100, x2 / 100, y2 / 100


def lmms_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of lmms-eval: from a random state to (theirs, ours)."""
    tasks = root / "lmms_eval/tasks"
    shared = tasks / "_task_utils"
    mcq = lift(
        shared / "mcq_extract.py",
        *("extract_mcq_answer", "_DEFAULT_CHOICES", "_ANSWER_PHRASES", "_FORMAT_PRIORITY"),
    )

    def lmms_letter(draw: random.Random) -> tuple[Any, Any]:
        said, offered = any_answer(draw), list(string.ascii_uppercase[: draw.randint(2, 8)])
        return mcq["extract_mcq_answer"](said, offered) or None, letters.lmms_letter(said, offered)

    yield "lmms_letter", lmms_letter

    class NoDraw:
        choice = staticmethod(lambda letters: None)

    mmmu = lift(shared / "mmmu_mcq_utils.py", "parse_mmmu_multi_choice_response", random=NoDraw)

    def mmmu_letter(draw: random.Random) -> tuple[Any, Any]:
        said, options = any_answer(draw), any_options(draw)
        theirs = mmmu["parse_mmmu_multi_choice_response"](said, list(options), dict(options))
        return theirs, letters.mmmu_letter(said, options)

    yield "mmmu_letter", mmmu_letter
    blink = lift(tasks / "blink/utils.py", "_extract_answer_letter")

    def blink_letter(draw: random.Random) -> tuple[Any, Any]:
        said, offered = any_answer(draw), string.ascii_uppercase[: draw.randint(2, 6)]
        theirs = blink["_extract_answer_letter"](said, offered)
        return theirs or None, letters.blink_letter(said, offered)

    yield "blink_letter", blink_letter
    cv_bench = lift(tasks / "cv_bench/utils.py", "_extract_answer_letter")["_extract_answer_letter"]
    yield "cv_bench_letter", on_answers(lambda a: cv_bench(a) or None, letters.cv_bench_letter)
    vstar = lift(tasks / "vstar_bench/utils.py", "extract_answer_letter")["extract_answer_letter"]
    yield "vstar_letter", on_answers(vstar, letters.vstar_letter)
    seed = lift(tasks / "seedbench/utils.py", "seed_process_result")["seed_process_result"]

    def seed_letter(answer: str) -> str:
        found = seed({"answer": "", "data_type": "x", "question_id": 0}, [answer])
        return str(found["seed_all"]["pred"]).lower().strip()

    yield "first_letter", on_answers(seed_letter, lambda a: letters.first_letter(a).lower())
    pope = lift(tasks / "pope/utils.py", "pope_process_results")["pope_process_results"]

    def pope_word(answer: str) -> str | None:
        row = {"answer": "yes", "question_id": 0}
        said = pope(row, [answer])["pope_accuracy"]["prediction"]
        return said if said in ("yes", "no") else None

    yield "yes_no_exact", on_answers(pope_word, yes_no.yes_no_exact)
    mme = lift(tasks / "mme/utils.py", "parse_pred_ans")["parse_pred_ans"]
    known = {"yes": "yes", "no": "no"}
    yield "yes_no_prefix", on_answers(lambda a: known.get(mme(a)), yes_no.yes_no_prefix)
    counting = lift(
        tasks / "countbench/utils.py",
        *("NUMBER_WORD_TO_NUMERAL", "_normalize_count_answer", "countbench_doc_to_target"),
        "countbench_process_results",
    )["countbench_process_results"]
    pixmo = lift(tasks / "pixmo_count/utils.py", "pixmo_count_process_results")

    def count_word(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_answer(draw), draw.randint(0, 20)
        return bool(counting({"number": right}, [said])["acc"]), numbers.count_word(said, right)

    def count_first(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_answer(draw), draw.choice(("3", "12", "none", "10 dogs"))
        theirs = pixmo["pixmo_count_process_results"]({"answer": right}, [said])["acc"]
        return bool(theirs), numbers.count_first(said, right)

    yield "count_word", count_word
    yield "count_first", count_first
    vqa = lift(shared / "vqa_eval_metric.py", "EvalAIAnswerProcessor")["EvalAIAnswerProcessor"]()
    yield "vqa_accuracy lmms_eval", _vqa(vqa, "lmms_eval")
    ocr = lift(tasks / "ocrbench/utils.py", "_fold_fullwidth_ascii", "ocrbench_process_results")

    def ocrbench(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_answer(draw), [any_answer(draw)[:5] for _ in range(2)]
        formula = draw.random() < 0.3
        row = {"answer": right, "dataset": "HME100k" if formula else "x", "question_type": ""}
        theirs = ocr["ocrbench_process_results"](row, [said])["ocrbench_accuracy"]["score"]
        return bool(theirs), words.ocrbench(said, right, "lmms_eval", formula)

    yield "ocrbench lmms_eval", ocrbench
    yield from lmms_places(root)
    chart = lift(tasks / "chartqa/utils.py", "relaxed_correctness")["relaxed_correctness"]
    yield "relaxed lmms_eval", _relaxed(lambda said, right: chart(said, right), "lmms_eval")
    metrics = lift(root / "lmms_eval/api/metrics.py", "anls", "levenshtein_distance")
    yield "anls lmms_eval", _anls(lambda said, right: metrics["anls"](right, [said])["anls"])


def lmms_places(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of lmms-eval for boxes, clicks and spans."""
    tasks = root / "lmms_eval/tasks"
    names = ("parse_float_sequence_within", "compute_iou", "compute_center_accuracy")
    refcoco = lift(tasks / "refcoco/utils_rec.py", *names)

    def box(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_places(draw), any_box(draw)
        found = places.refcoco_box(said, FRAME, "lmms_eval") or (0.0, 0.0, 0.0, 0.0)
        try:
            theirs = refcoco["compute_iou"](right, refcoco[names[0]](said))
        except ZeroDivisionError:  # a union of exactly 0 ends their run
            theirs = 0.0
        ours = places.raw_iou(found, right)
        return theirs >= 0.5, ours >= 0.5

    yield "refcoco_box lmms_eval", box
    screenspot = lift(tasks / "screenspot/utils_rec.py", *names)

    def click(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_places(draw), any_box(draw)
        theirs = screenspot[names[2]](right, screenspot[names[0]](said))
        return theirs, places.screenspot_hit(said, Box(*right), FRAME, "lmms_eval")

    yield "screenspot_hit lmms_eval", click
    charades = lift(tasks / "charades_sta/utils.py", "extract_time", "_time_to_seconds", "iou")

    def span(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_places(draw), sorted(draw.uniform(0, 60) for _ in range(2))
        theirs, ours = charades["extract_time"](said), spans.charades_span(said)
        if not theirs or ours is None:
            return theirs, [] if ours is None else ours
        iou = spans.hull_iou(ours, Span(*right))
        return (*theirs[0], charades["iou"](theirs[0], right)), (ours.start, ours.end, iou)

    yield "charades_span, hull_iou", span


def vlmeval_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of VLMEvalKit: from a random state to (theirs, ours)."""
    matching = root / "vlmeval/utils/matching_util.py"
    names = ["can_infer", "can_infer_option", "can_infer_text"]
    if "_VERBOSE_ANSWER_RE" in matching.read_text():
        infer = lift(matching, *names, "_VERBOSE_ANSWER_RE", cp=__import__("copy"))["can_infer"]

        def vlmeval_letter(draw: random.Random) -> tuple[Any, Any]:
            said, options = any_answer(draw), any_options(draw)
            return infer(said, dict(options)) or None, letters.vlmeval_letter(said, options)

        yield "vlmeval_letter", vlmeval_letter
    else:
        print("vlmeval_letter: not compared, this version is older than the rule 'answer is B'")
    punctuation = lift(root / "vlmeval/smp/misc.py", "process_punctuation")["process_punctuation"]
    given = {"process_punctuation": punctuation}
    yn = lift(root / "vlmeval/dataset/utils/yorn.py", "YOrN_Extraction", **given)["YOrN_Extraction"]
    said = {"Yes": "yes", "No": "no", "Unknown": None}
    yield "yes_no_words", on_answers(lambda a: said[yn(a)], yes_no.yes_no_words)
    vqa = lift(
        root / "vlmeval/dataset/utils/vqa_eval.py",
        "process_answer",
        "_process_digit_article",
        **given,
    )
    yield "vqa_accuracy vlmevalkit", _vqa(vqa["process_answer"], "vlmevalkit")
    rules = lift(
        root / "vlmeval/dataset/utils/vqa_eval.py",
        *("relaxed_correctness", "anls_compute", "levenshtein_distance"),
    )

    def chart(said: str, right: str) -> bool:
        return bool(rules["relaxed_correctness"](right, said.strip()))

    def anls(said: str, right: Sequence[str]) -> float:
        best = 1 - min(rules["anls_compute"](one, said) for one in right)
        return 0.0 if best < 0.5 else float(best)

    yield "relaxed vlmevalkit", _relaxed(chart, "vlmevalkit")
    yield "anls vlmevalkit", _anls(anls)
    refcoco = lift(
        root / "vlmeval/dataset/refcoco.py", "_parse_prediction", "_to_absolute", "_compute_iou"
    )

    def box(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_places(draw), any_box(draw)
        read = refcoco["_parse_prediction"](said)
        scale = np.array([FRAME.width, FRAME.height] * 2, dtype=float)
        found = None if read is None else refcoco["_to_absolute"](read, FRAME.width, FRAME.height)
        theirs = 0.0 if found is None else refcoco["_compute_iou"](found, np.array(right) * scale)
        ours = places.refcoco_box(said, FRAME, "vlmevalkit")
        return theirs >= 0.5, ours is not None and places.raw_iou(ours, right) >= 0.5

    yield "refcoco_box vlmevalkit", box


def _vqa(process: Callable[[str], str], harness: Any) -> Rule:
    def compare(draw: random.Random) -> tuple[Any, Any]:
        said, others = any_answer(draw), [any_answer(draw) for _ in range(3)]
        right = [draw.choice((said, said + ".", said.upper(), *others)) for _ in range(10)]
        mine, given = process(said), [process(one) for one in right]
        rest = [given[:i] + given[i + 1 :] for i in range(10)]
        theirs = np.mean([min(1, float(others.count(mine)) / 3) for others in rest])
        return round(float(theirs), 12), round(words.vqa_accuracy(said, right, harness), 12)

    return compare


def _relaxed(theirs: Callable[[str, str], bool], harness: Any) -> Rule:
    def compare(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice(("100", "2019", "12%", "Yes", "0", "-4.5", "1,200", "abc", "1e3"))
        near = (right, right.lower(), f" {right} ", "104", "0.12", "95", "105.0", "1e2", "-4.6")
        said = draw.choice((*near, any_answer(draw)))
        return theirs(said, right), words.relaxed(said, right, harness)

    return compare


def _anls(theirs: Callable[[str, Sequence[str]], float]) -> Callable[..., tuple[Any, Any]]:
    def compare(draw: random.Random) -> tuple[Any, Any]:
        right = tuple(any_answer(draw)[: draw.randint(0, 20)] for _ in range(draw.randint(1, 3)))
        said = draw.choice(
            (any_answer(draw), right[0][:-1] + "x", f"  {right[0]} ", right[0].upper())
        )
        return round(theirs(said, right), 12), round(words.anls(said, right), 12)

    return compare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lmms_eval", type=Path)
    parser.add_argument("vlmeval", type=Path)
    parser.add_argument("--own", type=Path)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="compare rules whose name holds this text")
    asked = parser.parse_args()
    wrong = 0
    for name, compare in (
        *lmms_rules(asked.lmms_eval),
        *lmms_task_rules(asked.lmms_eval),
        *lmms_video_rules(asked.lmms_eval),
        *lmms_moment_rules(asked.lmms_eval),
        *lmms_document_rules(asked.lmms_eval),
        *lmms_sound_rules(asked.lmms_eval),
        *lmms_screen_rules(asked.lmms_eval),
        *vlmeval_rules(asked.vlmeval),
        *vlmeval_task_rules(asked.vlmeval),
        *science_rules(asked.lmms_eval, asked.vlmeval),
        *vlmeval_document_rules(asked.vlmeval),
        *vlmeval_screen_rules(asked.vlmeval),
        *caption_rules(asked.lmms_eval, asked.vlmeval),
        *own_rules(asked.own),
        *own_sound_rules(asked.own),
        *own_moment_rules(asked.own),
        *own_screen_rules(asked.own),
        *spaces_rules(asked.lmms_eval, asked.vlmeval, asked.own),
    ):
        if asked.only not in name:
            continue
        draw = random.Random(f"{asked.seed} {name}")
        differing = []
        for case in range(asked.cases):
            theirs, ours = compare(draw)
            if theirs != ours:
                differing.append((case, theirs, ours))
        print(f"{name:26} {len(differing)} of {asked.cases} differ", *differing[:SHOWN])
        wrong += len(differing)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
