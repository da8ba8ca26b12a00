"""Rules of tasks about videos and audio, compared with the own code of harnesses: see `compare_rules.py`."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from answers import Rule, any_answer, any_options, any_places, lift, on_answers

from vlmrl.benchmark_rules import letters, numbers, words
from vlmrl.benchmark_rules import letters as image_letters
from vlmrl.benchmark_rules import spans as times
from vlmrl.schema import Span

OWN = ("VideoChat-R1", "Video-R1", "HumanOmniV2", "MMAU", "NExT-GQA", "r1-aqa", "Daily-Omni")


class _NoDraw:
    """A `random` that draws nothing."""

    choice = staticmethod(lambda letters: None)


def lmms_video_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of lmms-eval's tasks: from a random state to (theirs, ours)."""
    tasks = root / "lmms_eval/tasks"
    yield from _letters(tasks)
    yield from _tempcompass(tasks)
    sensing = lift(tasks / "worldsense/utils.py", "parse_multi_choice_response")

    def worldsense(draw: random.Random) -> tuple[Any, Any]:
        said, options = any_answer(draw), any_options(draw)
        theirs = sensing["parse_multi_choice_response"](said, list(options), options)
        return theirs, letters.worldsense_letter(said, options) or "A"

    yield "worldsense_letter", worldsense
    names = ("_NUMBER_WORDS", "_NUM_RE", "extract_number", "abs_dist_norm")
    vsi = lift(tasks / "vsibench/utils.py", *names, "mean_relative_accuracy", "fuzzy_matching")

    def vsi_number(draw: random.Random) -> tuple[Any, Any]:
        said, right = draw.choice((any_answer, any_places, _counted))(draw), _number(draw)
        theirs, ours = vsi["extract_number"](said), numbers.vsi_number(said)
        if theirs is None or ours is None:
            return theirs, ours
        accuracy = vsi["mean_relative_accuracy"](theirs, right, 0.5, 0.95, 0.05)
        return (theirs, accuracy), (ours, numbers.vsi_mean_relative_accuracy(ours, right))

    yield "vsi_number", vsi_number
    names = ("parse_open_response", "extract_numbers", "check_is_number", "normalize_str")
    mmmu = lift(tasks / "videommmu/utils.py", *names, "eval_open")

    def video_mmmu_open(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice(("12", "3.5", "1,200", "cat", "the dog", "x", "0.333"))
        said = draw.choice((any_answer(draw), f"there are {right} in total", f"= {right}")) or "x"
        theirs = mmmu["eval_open"](right, mmmu["parse_open_response"](said))
        return theirs, words.video_mmmu_open(said, right)

    yield "video_mmmu_open", video_mmmu_open
    names = ("normalize_math_notation", "evaluate_with_rule_based")
    mmvu = lift(tasks / "mmvu/utils.py", *names)["evaluate_with_rule_based"]

    def mmvu_row(draw: random.Random) -> tuple[Any, Any]:
        said, options = any_answer(draw), any_options(draw)
        if draw.random() < 0.5:
            right = draw.choice(list(options))
            row = {"answer": right, "question_type": "multiple-choice", "choices": options}
            return mmvu(row, said), words.mmvu_choice(said, right, options)
        right = draw.choice(("O(n²)", "the dog", "a red dog", "3.5 m", "Depth First (DFS)", "12"))
        said = draw.choice((said, right[:3], f"it is {right}", "O(n^2) time", "dog the", ""))
        row = {"answer": right, "question_type": "open-ended"}
        return mmvu(row, said), words.mmvu_open(said, right)

    yield "mmvu", mmvu_row


def _letters(tasks: Path) -> Iterator[tuple[str, Rule]]:
    bench = lift(tasks / "mvbench/utils.py", "mcq_acc")["mcq_acc"]

    def mvbench(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_answer(draw), draw.choice("ABCDEF")
        ours = letters.mvbench_word(said) == letters.mvbench_word(right)
        return bool(bench(right, said)), ours

    yield "mvbench_word", mvbench
    found = lift(tasks / "longvideobench/utils.py", "parse_multi_choice_response", random=_NoDraw)[
        "parse_multi_choice_response"
    ]
    yield "long_video_letter", on_answers(lambda a: found(a, [], {}), letters.long_video_letter)
    test = lift(tasks / "perceptiontest/val/utils.py", "perceptiontest_val_process_results_mc")

    def perception(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_answer(draw), draw.randrange(3)
        row = {"answer_id": right, "video_name": "", "question": ""}
        theirs = test["perceptiontest_val_process_results_mc"](row, [said])["accuracy"]["correct"]
        return bool(theirs), letters.perception_letter(said) == "ABC"[right]

    yield "perception_letter", perception
    for task, rule in (("mmau", letters.mmau_letter), ("omni_bench", letters.omni_letter)):
        parse = lift(tasks / task / "utils.py", "parse_multi_choice_response", random=_NoDraw)

        def listed(draw: random.Random, parse: Any = parse, rule: Any = rule) -> tuple[Any, Any]:
            said = any_answer(draw)
            theirs = parse["parse_multi_choice_response"](said, list("ABCD"))
            return theirs, rule(said, "ABCD")

        yield f"{task} letter", listed
    for task in ("mmar", "video_holmes"):
        parse = lift(tasks / task / "utils.py", "parse_multi_choice_response", random=_NoDraw)

        def mmmu_like(draw: random.Random, parse: Any = parse) -> tuple[Any, Any]:
            said, options = any_answer(draw), any_options(draw)
            theirs = parse["parse_multi_choice_response"](said, list(options), options)
            return theirs, image_letters.mmmu_letter(said, options)

        yield f"{task} letter", mmmu_like


def _tempcompass(tasks: Path) -> Iterator[tuple[str, Rule]]:
    names = ("eval_rule", "extract_pred", "tempcompass_process_results_multi_choice")
    judge = {"get_eval_result": lambda prompt: (None, None)}
    temp = lift(tasks / "tempcompass/utils.py", *names, **judge)

    def choice(draw: random.Random) -> tuple[Any, Any]:
        right = f"{draw.choice('ABCD')}. {draw.choice(('cat', 'a dog'))}"
        said = draw.choice((any_answer(draw), right, right[0], f"{draw.choice('ABCD')}. cat"))
        row = {"answer": right, "question": "", "video_id": "", "dim": "action"}
        theirs = temp[names[2]](row, [said])["avg_accuracy"]["rating"]
        return theirs, words.tempcompass_choice(said, right)

    yield "tempcompass_choice", choice

    def yes_no(draw: random.Random) -> tuple[Any, Any]:
        said, right = any_answer(draw), draw.choice(("yes", "no"))
        theirs = temp["extract_pred"](said)
        return theirs == right if theirs else None, words.tempcompass_yes_no(said, right)

    yield "tempcompass_yes_no", yes_no

    def matching(draw: random.Random) -> tuple[Any, Any]:
        kind, marks = draw.choice((("Sentence", "AB"), ("Option", "12"), ("Caption", "AB")))
        options = [f"{kind} {m}: {t}" for m, t in zip(marks, ("A dog.", "no cat: B"), strict=True)]
        right = draw.choice(options)
        near = (*options, *(o.split(": ")[1] for o in options), f"{kind} {marks[0]}.", marks[1])
        said = draw.choice((*near, f"(x) {near[2]}", any_answer(draw)))
        theirs = temp["eval_rule"](said, "Which?\n" + "\n".join(options), right)
        ours = words.tempcompass_matching(said, right, options)
        return None if theirs == "fail" else bool(theirs), ours

    yield "tempcompass_matching", matching


def own_rules(root: Path | None) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of papers' own code; `root` holds a checkout of each of `OWN`."""
    for name in OWN:
        if root is None or not (root / name).exists():
            print(f"{name}: not compared, there is no checkout of it")
        else:
            yield from _OWN[name](root / name)


def _videochat(root: Path) -> Iterator[tuple[str, Rule]]:
    ground = lift(root / "src_eval/evaluate_grounding.py", "parse_timestamp_output")
    names = ("extract_characters_regex", "merge_intervals", "compute_iou")
    check = "is_valid_two_d_list_format"
    gqa = lift(root / "src_eval/evaluate_gqa.py", *names, check, ast=__import__("ast"))

    def span(draw: random.Random) -> tuple[Any, Any]:
        said = any_places(draw) + draw.choice(("", " 3 to 5", "1.5 and 12. to 7", "\n4.2 to 4.2"))
        theirs, ours = ground["parse_timestamp_output"](said), times.videochat_span(said)
        if theirs[0] is None or ours is None:
            return theirs, ours or (None, None)
        (s, e), (a, b) = sorted(draw.sample(range(40), 2)), theirs
        iou = max((min(e, b) - max(s, a)) / (max(e, b) - min(s, a)), 0)
        return (*theirs, iou), (ours.start, ours.end, times.videochat_iou(ours, Span(s, e)))

    yield "videochat_span", span
    theirs = gqa["extract_characters_regex"]
    yield "videochat_letter", on_answers(lambda a: theirs(a) or None, letters.videochat_letter)

    def glue(draw: random.Random) -> tuple[Any, Any]:
        spans = [sorted(round(draw.uniform(0, 20), 1) for _ in range(2)) for _ in range(3)]
        said = str([tuple(one) for one in spans[: draw.randint(0, 3)]])
        said = draw.choice(
            (said, said[:-1] + ",]", said.replace(".", ""), said[1:], any_places(draw))
        )
        right = [sorted(round(draw.uniform(0, 20), 1) for _ in range(2)) for _ in range(2)]
        ours = times.glue_spans(said)
        if not gqa[check](said):
            return None, ours
        found = gqa["compute_iou"](ast.literal_eval(said), right)
        mine = None if ours is None else times.covered_iou(ours, [Span(*one) for one in right])
        return round(found, 12), None if mine is None else round(mine, 12)

    yield "glue_spans, covered_iou", glue


def _r1(file: Path, name: str) -> Iterator[tuple[str, Rule]]:
    """Yield the rules that HumanOmniV2 took over from Video-R1."""
    import torch

    names = ("extract_answer", "normalize_number", "mean_relative_accuracy")
    own = lift(file, *names, torch=torch)

    def tag(answer: str) -> str:
        return own["extract_answer"](answer) or answer

    yield f"{name} tag", _on_tagged(tag, lambda a: (times.tagged(a, "answer") or "").strip() or a)

    def accuracy(draw: random.Random) -> tuple[Any, Any]:
        right = _number(draw)
        said = draw.choice((any_answer(draw), str(_number(draw)), f"{1.5 * right}", "1,2", "nan"))
        theirs, ours = own["normalize_number"](said), numbers.r1_number(said)
        if theirs is None or ours is None:
            return theirs, ours
        theirs = own["mean_relative_accuracy"](theirs, right)
        return round(theirs, 6), round(numbers.r1_mean_relative_accuracy(ours, right), 6)

    yield f"{name} accuracy", accuracy


def _omni(root: Path) -> Iterator[tuple[str, Rule]]:
    file = root / "src/open-r1-multimodal/eval/eval_humanomniv2.py"
    yield from _r1(file, "HumanOmniV2")
    own = lift(file, "emer_ov_mc", "judge")

    def listed(draw: random.Random) -> tuple[Any, Any]:
        said, right = (",".join(draw.choices("ABCDE", k=draw.randint(1, 4))) for _ in range(2))
        said = draw.choice((said, said.replace(",", ", "), any_answer(draw), ""))
        judged = any_answer(draw), draw.choice(("Yes", "No"))
        theirs = round(own["emer_ov_mc"](said, right), 12), bool(own["judge"](*judged))
        return theirs, (round(words.omni_letters_f1(said, right), 12), words.omni_judged(*judged))

    yield "omni_letters_f1, omni_judged", listed


def _mmau(root: Path) -> Iterator[tuple[str, Rule]]:
    match = lift(root / "evaluation.py", "string_match")["string_match"]

    def mmau(draw: random.Random) -> tuple[Any, Any]:
        options = [any_answer(draw)[:12] for _ in range(4)]
        right = draw.choice(options)
        said = draw.choice((any_answer(draw), right, right.upper() + "!", f"{right} {options[0]}"))
        return match(right, said, options), words.mmau_match(said, right, options)

    yield "mmau_match", mmau


def _next_gqa(root: Path) -> Iterator[tuple[str, Rule]]:
    overlap = lift(root / "code/TempGQA/eval_ground.py", "get_tIoU")["get_tIoU"]

    def next_gqa(draw: random.Random) -> tuple[Any, Any]:
        said, right = ([draw.randint(0, 12) / 2 for _ in range(2)] for _ in range(2))
        theirs = tuple(map(float, overlap(sorted(right), said)))
        return theirs, times.next_gqa_overlap(Span(*said), Span(*sorted(right)))

    yield "next_gqa_overlap", next_gqa


def _aqa(root: Path) -> Iterator[tuple[str, Rule]]:
    own = lift(root / "src/test_mmau.py", "extract_answer")["extract_answer"]
    yield "r1_aqa tag", _on_tagged(lambda a: own(a).strip(), words.r1_aqa_answer)


def _daily(root: Path) -> Iterator[tuple[str, Rule]]:
    own = lift(root / "test_model/Qwen2.5-Omni/testmodel.py", "evaluate_answer")["evaluate_answer"]

    def daily(draw: random.Random) -> tuple[Any, Any]:
        right = draw.choice("ABCD")
        said = draw.choice((any_answer(draw), right, f" {right.lower()}\n", f"{right}."))
        return own(said, right), said.strip().upper() == right

    yield "daily_omni letter", daily


_OWN: dict[str, Callable[[Path], Iterator[tuple[str, Rule]]]] = {
    "VideoChat-R1": _videochat,
    "Video-R1": lambda root: _r1(root / "src/eval_bench.py", "Video-R1"),
    "HumanOmniV2": _omni,
    "MMAU": _mmau,
    "NExT-GQA": _next_gqa,
    "r1-aqa": _aqa,
    "Daily-Omni": _daily,
}


def _number(draw: random.Random) -> float:
    return draw.choice(
        (draw.randint(1, 30), round(draw.uniform(0.1, 30), 1), 0.05 * draw.randint(1, 9))
    )


def _counted(draw: random.Random) -> str:
    """Draw numbers in words."""
    vocabulary = "three twenty one and hundred thousand zero five 7 -2.5 boxes, the nineteen ."
    return draw.choice((" ", "-")).join(draw.choices(vocabulary.split(), k=draw.randint(0, 6)))


def _on_tagged(theirs: Callable[[str], Any], ours: Callable[[str], Any]) -> Rule:
    def compare(draw: random.Random) -> tuple[Any, Any]:
        marks = ("<answer>", "</answer>", "<answer>", "</answer>", "<think>", "\n", " ")
        said = "".join(draw.choice((*marks, any_answer(draw))) for _ in range(draw.randint(1, 7)))
        return theirs(said), ours(said)

    return compare
