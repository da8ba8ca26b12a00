"""The rules of mathematics, physics and puzzles, compared with the harnesses' own code.

See `compare_rules.py`.
"""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from answers import Rule, any_answer, lift
from task_rules import EXPRESSIONS

from vlmrl.benchmark_rules import science
from vlmrl.benchmarking.aggregates import Rows, estimate
from vlmrl.benchmarking.scorers import SCORERS
from vlmrl.schema import Frame, Sample, Truth

FRAME = Frame(96, 64, space="norm1000")
TRUTHS = (*EXPRESSIONS, *"ABCDEFGH", "A, D", "0.25", "12 cm", "Cat", "increases", "e = 3", "3.0")
FORMS = (
    "{}|{}.| {} |({})|{})|**{}**|Answer: {}|answer: ({}).|Final Answer:\n{}|the answer is {}|"
    "\\boxed{{{}}}|\\boxed{{\\text{{{}}}}}|<answer>{}</answer>|${}$|<think>A</think><answer>{}.</answer>|"
    "<think>{}|</think>{}|\\boxed{{}}\n12.|1. {}|final answer is: {}|correct answer: {}\n\n\nno|"
    "{{'content': '{}'}}|content: {}|{}:|<analysis>\\boxed{{2}}</analysis> so \\boxed{{{}|{}-|{}_|"
    "option is {}|= {}|{{{}}}|Failed to obtain answer via API.|{} 12|"
    "\\boxed{{\\boxed{{3}} {}}} or \\boxed{{{}}}"
).split("|")
CHINESE = (
    "所以答案是{}。|因此等于{}|{}|结果为{}\n|是否正确|不对|正确|这个说法是错误的。|对|该陈述是对的|"
    "错|判断为不正确|最后={}|选择{}。方案是:|，|1，200|2.50|A|(B)|红狗||。"
).split("|")


def science_rules(lmms_eval: Path, vlmeval: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of lmms-eval and VLMEvalKit: from a random state to (theirs, ours)."""
    tasks = lmms_eval / "lmms_eval/tasks"
    yield from _reasoned(tasks)
    yield from _puzzles(tasks, vlmeval)
    yield from _cmmmu(tasks)
    yield from _phyx(tasks, vlmeval)
    yield from _olympiad(tasks)
    emma = lift(
        tasks / "emma/utils.py", "fast_extract_answer", "is_number", "extract_full_boxed_content"
    )

    def emma_reading(draw: random.Random) -> tuple[Any, Any]:
        answer = stated(draw, draw.choice(TRUTHS))
        return emma["fast_extract_answer"](answer), science.emma_reading(answer)

    yield "emma_reading", emma_reading


def stated(draw: random.Random, right: str) -> str:
    """Draw an answer: often the truth or one like it in some form, with hostile words around it."""
    reading = draw.choice((right, right, right, draw.choice(TRUTHS), any_answer(draw)))
    forms = [draw.choice(FORMS) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    parts = [form.format(*(reading for _ in range(form.count("{}")))) for form in forms]
    around = draw.choice(("", "", any_answer(draw)))
    parts = draw.choice(([around, *parts], [*parts, around]))
    return draw.choice(("", " ", "\n", ". ")).join(parts)


def with_text(right: str) -> Sample:
    return Sample("0", "", (), Truth(text=(right,)))


def _reasoned(tasks: Path) -> Iterator[tuple[str, Rule]]:
    from math_verify import parse, verify

    names = (
        "extract_boxed_answer",
        "extract_anwser_tag",
        "format_reward",
        "simple_parse",
        "parse_mcq",
    )
    more = ("relax_exact_match", "acc_reward", "compute_score")
    given = {"parse": parse, "verify": verify, "USE_LLM_JUDGE": "False"}
    theirs = lift(tasks / "_task_utils/reasoning_utils.py", *names, *more, **given)
    strip = lift(tasks.parent / "api/reasoning.py", "strip_reasoning_tags")["strip_reasoning_tags"]
    pairs = [["<think>", "</think>"], ["<analysis>", "</analysis>"]]

    def reasoned(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice(TRUTHS)
        answer = stated(draw, right)
        bare = strip(answer, pairs)
        score = theirs["compute_score"]("x", bare.strip(), right)
        ours = SCORERS["reasoned_lmms"](answer, with_text(right), FRAME)
        return (score["predict_str"], float(score["acc_score"])), (ours.reading, ours.value)

    yield "reasoned_lmms", reasoned

    def reasoned_letter(draw: random.Random) -> tuple[Any, Any]:
        answer = draw.choice((any_answer(draw), stated(draw, draw.choice("ABCDEFGH"))))
        return theirs["parse_mcq"](answer), science.reasoned_letter(answer)

    yield "reasoned_letter", reasoned_letter
    yield "mastery", _mastery(tasks)


def _mastery(tasks: Path) -> Rule:
    import pandas as pd

    names = ("process_steps_data", "calculate_metrics", "compute_final_scores")
    wemath = lift(tasks / "wemath/wemath_utils.py", *names, "update_main_results_df", pd=pd)
    whole = lift(tasks / "wemath/reasoning/utils.py", "wemath_aggregate_results", **wemath)

    def mastery(draw: random.Random) -> tuple[Any, Any]:
        level, rows = draw.random(), []
        for number in range(525):
            steps = 2 if number < 360 else 3
            for step in (*range(1, steps + 1), "multi"):
                right = float(draw.random() < level)
                rows.append({"ID": number, "key": f"{steps}steps_{step}", "acc_score": right})
        kind = draw.choice(("strict", "loose"))
        try:
            theirs = whole["wemath_aggregate_results"](rows, f"wemath_{kind}")
        except ZeroDivisionError:  # where no whole problem is right their run ends
            return 0, 0
        parts = [f"{row['key'][:6]}/{row['ID']}/{row['key'][7:]}" for row in rows]
        scored = Rows(pd.Series([row["acc_score"] for row in rows]).to_numpy(), parts, [], [])
        clusters = [part.rpartition("/")[0] for part in parts]
        return theirs, f"{estimate(f'mastery_{kind}', scored, clusters, resamples=2)[0]:.2%}"

    return mastery


def _puzzles(tasks: Path, vlmeval: Path) -> Iterator[tuple[str, Rule]]:
    class NoDraw:
        choice = staticmethod(lambda letters: "-")

    parse = lift(tasks / "VisualPuzzles/utils.py", "parse_response", random=NoDraw)[
        "parse_response"
    ]

    def puzzle(draw: random.Random) -> tuple[Any, Any]:
        options = draw.choice((None, draw.sample(("a red dog", "Cat", "12%", "3", "A", ""), 4)))
        answer = stated(draw, draw.choice((*"ABCDabcd", *(options or ()))))
        texts = None if options is None else dict(zip("ABCD", options, strict=True))
        theirs = parse(answer.strip(), list("ABCD"), texts).upper()
        return theirs, science.puzzle_letter(answer, options) or "-"

    yield "puzzle_letter", puzzle
    file = vlmeval / "vlmeval/dataset/utils/visualpuzzles.py"
    extract = lift(file, "extract_answer")["extract_answer"]

    def stated_letter(draw: random.Random) -> tuple[Any, Any]:
        answer = stated(draw, draw.choice("ABCDabcd"))
        return extract(answer).lower(), (science.stated_letter(answer) or "Z").lower()

    yield "stated_letter", stated_letter
    yield "wemath_letter", _wemath_letter(vlmeval)


def _wemath_letter(vlmeval: Path) -> Rule:
    import pandas as pd

    tables: list[Any] = []
    file = vlmeval / "vlmeval/dataset/utils/wemath.py"
    load = lift(file, "load_and_process_data", load=lambda _: tables.pop())["load_and_process_data"]

    def letter(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice("ABCDEFGH")
        answer = stated(draw, right)
        tables.append(pd.DataFrame({"prediction": [answer], "answer": [right]}))
        return bool(load("")["joker"][0]), science.wemath_letter(answer) == right

    return letter


def _cmmmu(tasks: Path) -> Iterator[tuple[str, Rule]]:
    class NoDraw:
        choice = staticmethod(lambda options: None)

    names = ("extract_numbers", "check_is_number", "count_letters", "eval_cmmmu", "normalize_str")
    names += tuple(f"get_{kind}_prediction" for kind in ("multi_choice", "fill_blank", "TF"))
    space = lift(tasks / "cmmmu/utils.py", *names, Counter=Counter, random=NoDraw)

    def answered(draw: random.Random, right: str) -> str:
        parts = [draw.choice(CHINESE) for _ in range(draw.choice((1, 1, 2, 3)))]
        text = "".join(part.format(draw.choice((right, right, "3"))) for part in parts)
        return draw.choice((text, text, any_answer(draw), any_answer(draw) + text))

    def letters(draw: random.Random) -> tuple[Any, Any]:
        texts = dict(
            zip("ABCD", draw.sample(("红狗", "2.50", "cat", "", "是", "12"), 4), strict=True)
        )
        answer = answered(draw, draw.choice((*"ABCD", "AB", *texts.values())))
        theirs = space["get_multi_choice_prediction"](answer, list("ABCD"), texts)
        return theirs, science.cmmmu_letters(answer, texts)

    def judged(draw: random.Random) -> tuple[Any, Any]:
        answer, right = answered(draw, draw.choice("对错")), draw.choice("对错")
        row = {"parsed_pred": space["get_TF_prediction"](answer), "question_type": "判断"}
        theirs = space["eval_cmmmu"]([row | {"answer": right}])["correct_num"]
        return theirs, int(science.cmmmu_judged(answer) == right)

    def blank(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice(("12", "2.5", "1,200", "红狗", "x=3", "-4", "0.333", "ab", "1e3"))
        answer = answered(draw, right)
        row = {"parsed_pred": space["get_fill_blank_prediction"](answer, right)}
        row |= {"question_type": "填空", "answer": right}
        return space["eval_cmmmu"]([row])["correct_num"], int(science.cmmmu_blank(answer, right))

    yield from (("cmmmu_letters", letters), ("cmmmu_judged", judged), ("cmmmu_blank", blank))


def _phyx(tasks: Path, vlmeval: Path) -> Iterator[tuple[str, Rule]]:
    methods = ("mapping_str", "safe_literal_eval", "extract_boxed_content", "PhyX_process_line")
    judged = ("PhyX_process_line_MC", "PhyX_auxeval", "PhyX_auxeval_MC")
    fail = "Failed to obtain answer via API."
    held = lift(tasks / "phyx/phyx_evals.py", *methods, *judged, ast=ast, FAIL_MSG=fail)
    own: dict[str, Any] = {name: held[name] for name in (*methods, *judged)}
    own |= {f"build_phyx_gpt4_prompt{kind}": lambda *_: "" for kind in ("", "_MC")}

    def asked(*_: Any, **__: Any) -> str:
        raise LookupError("a judge is asked")

    evaluator = type("Evaluator", (), {**own, "judger_generate": asked})()

    def compared(right: str, answer: str, kind: str) -> bool | None:
        row = {"index": 0, "answer": right, "prediction": answer.strip()}
        try:
            return bool(getattr(evaluator, f"PhyX_auxeval{kind}")(row)["res"])
        except LookupError:
            return None

    def choice_judged(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice("ABCD")
        answer = stated(draw, right)
        return compared(right, answer, "_MC"), science.phyx_choice_judged(answer, right)

    def open_judged(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice(TRUTHS)
        answer = stated(draw, right)
        try:
            return compared(right, answer, ""), science.phyx_open_judged(answer, right)
        except AttributeError:  # a content that is no text ends their run
            return None, None

    yield from (("phyx_choice_judged", choice_judged), ("phyx_open_judged", open_judged))
    strings = lift(
        vlmeval / "vlmeval/dataset/utils/phyx.py", *methods, judged[0], ast=ast, FAIL_MSG=fail
    )

    def choice(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice("ABCD")
        row = {"index": 0, "answer": right, "prediction": stated(draw, right)}
        theirs = strings["PhyX_process_line_MC"](row)["match"]
        return bool(theirs), science.phyx_choice(row["prediction"], right)

    def open_text(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice(TRUTHS)
        row = {"index": 0, "answer": right, "prediction": stated(draw, right)}
        theirs = strings["PhyX_process_line"](row)["match"]
        return bool(theirs), science.phyx_open(row["prediction"], right)

    yield from (("phyx_choice", choice), ("phyx_open", open_text))


def _olympiad(tasks: Path) -> Iterator[tuple[str, Rule]]:
    import math_verify
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig

    kinds = ("LatexExtractionConfig", "StringExtractionConfig", "parse", "verify")
    given = {name: getattr(math_verify, name) for name in kinds}
    given |= {"NormalizationConfig": NormalizationConfig, "print": lambda *_: None}
    file = tasks / "_task_utils/math_verify_utils.py"
    verify = lift(file, "MathVerifyFn", **given)["MathVerifyFn"](silent=False)

    def olympiad(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice(
            (*EXPRESSIONS, "$2,3$", "$x=1$", "$[0,1)$", "12。", "$\\frac{mv^2}{r}$")
        )
        answer = stated(draw, draw.choice((right, right.strip("$"))))
        theirs = verify(answer.strip(), right.rstrip("。"))[0]
        return theirs, SCORERS["olympiad_lmms"](answer, with_text(right), FRAME).value

    yield "olympiad_lmms", olympiad
