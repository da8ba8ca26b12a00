"""Rules of tasks about long videos, motion and moments in videos. See `compare_rules.py`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from answers import Quiet, Rule, any_answer, any_options, any_places, lift

from vlmrl import plugins
from vlmrl.benchmark_rules import letters, spans
from vlmrl.benchmarking.scorers import SCORERS
from vlmrl.schema import Frame, Sample, Span, Truth

_moments = SCORERS["moments"]


class _NoDraw:
    """A `random` that draws nothing."""

    choice = staticmethod(lambda letters: None)


def lmms_moment_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of lmms-eval's tasks: from a random state to (theirs, ours)."""
    tasks = root / "lmms_eval/tasks"
    parse = "parse_multi_choice_response"
    ego = lift(tasks / "egoschema/utils.py", parse, random=_NoDraw)[parse]

    def egoschema(draw: random.Random) -> tuple[Any, Any]:
        options = {letter: f"{letter}. {text}" for letter, text in any_options(draw).items()}
        answer = _near(draw, options)
        theirs = ego(answer, list(options), options)[0]
        return theirs, letters.egoschema_letter(answer, options)

    yield "egoschema_letter", egoschema
    following = lift(tasks / "nextqa/utils.py", parse, random=_NoDraw)[parse]

    def nextqa(draw: random.Random) -> tuple[Any, Any]:
        options = any_options(draw)
        answer = _near(draw, options)
        return following(answer, list(options), options), letters.mmmu_letter(answer, options)

    yield "nextqa letter", nextqa
    mcq = lift(
        tasks / "_task_utils/mcq_extract.py",
        *("extract_mcq_answer", "_DEFAULT_CHOICES", "_ANSWER_PHRASES", "_FORMAT_PRIORITY"),
    )["extract_mcq_answer"]

    def lvbench(draw: random.Random) -> tuple[Any, Any]:
        answer = _near(draw, dict.fromkeys("ABCD", "a man"))
        theirs = mcq(answer, choices=["A", "B", "C", "D"])
        return theirs or None, letters.lmms_letter(answer, list("ABCD"))

    yield "lvbench letter", lvbench
    yield from _motionbench(tasks / "motionbench/utils.py")
    first = lift(tasks / "videomathqa/utils.py", "extract_characters_regex")

    def videomathqa(draw: random.Random) -> tuple[Any, Any]:
        answer = _near(draw, any_options(draw))
        theirs = first["extract_characters_regex"](answer)
        return theirs or None, letters.videomathqa_letter(answer)

    yield "videomathqa_letter", videomathqa


def _motionbench(file: Path) -> Iterator[tuple[str, Rule]]:
    names = ("_split_question_and_options", "_OPTION_BLOCK_PATTERN", "_normalize_whitespace")
    names += ("_to_metadata_row", "_append_flat_doc", "_flatten_motionbench_dataset")
    names += ("motionbench_doc_to_text", "_resolve_prompt_kwargs", "_extract_choice_letter")
    own = lift(file, *names, datasets=SimpleNamespace(Dataset=_Listed), eval_logger=Quiet())
    ours = plugins.build("benchmark", "motionbench", {"path": ""})

    def letter(draw: random.Random) -> tuple[Any, Any]:
        answer = _near(draw, any_options(draw))
        return own["_extract_choice_letter"](answer) or None, letters.motion_letter(answer)

    yield "motion_letter", letter

    def asked(draw: random.Random) -> tuple[Any, Any]:
        mark = draw.choice((". ", ") ", ": ", ".\n", ".", " "))
        lines = [f"{letter}{mark}{text}" for letter, text in any_options(draw).items()]
        if draw.random() < 0.2:
            draw.shuffle(lines)
        question = draw.choice(("\n", "\n", " \n  ", " ")).join([any_answer(draw), *lines])
        answer = draw.choice(("A", "B", "b ", "C", "D", "NA", "", "AB"))
        item = {"uid": "1", "question": question, "answer": answer}
        row = {"key": "k", "video_path": "v.mp4", "question_type": "x"}
        kept = own["_flatten_motionbench_dataset"](_Listed([{**row, "qa": [item]}]))
        theirs = [(own["motionbench_doc_to_text"](entry), entry["answer"]) for entry in kept]
        mine = ours.adapt({**row, "qa": item})
        (official,) = ours.officials
        text = official.ask.replace("{question}", mine["asked"])
        return theirs, [(text, mine["letter"])] if mine["answered"] else []

    yield "motionbench prompt", asked


def own_moment_rules(root: Path | None) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of papers' own code; `root` holds a checkout of each of `OWN`."""
    for name, rules in OWN.items():
        if root is None or not (root / name).exists():
            print(f"{name}: not compared, there is no checkout of it")
        else:
            yield from rules(root / name)


def _time_r1(root: Path) -> Iterator[tuple[str, Rule]]:
    read = lift(root / "evaluate.py", "extract_answer")["extract_answer"]
    own = lift(root / "src/vllm_inference/eval_all.py", "compute_IoU", "calc_score")

    def time_r1(draw: random.Random) -> tuple[Any, Any]:
        right = sorted(round(draw.uniform(0, 40), 1) for _ in range(2))
        right[1] += 1.0
        answer, span = _timed(draw, [right]), Span(*right)
        theirs, ours = read(answer, "tg"), spans.videochat_span(answer)
        if theirs[0] is None or ours is None:
            return theirs, [None, None] if ours is None else [ours.start, ours.end]
        iou = float(own["compute_IoU"](theirs, right))
        counted = own["calc_score"]({"q": iou}, "tvgbench")
        overlap = spans.videochat_iou(ours, span)
        above = [100.0 * (overlap > threshold) for threshold in (0.3, 0.5, 0.7)]
        mine = ([ours.start, ours.end], round(overlap, 12), above)
        return (theirs, round(iou, 12), [counted[key] for key in (0.3, 0.5, 0.7)]), mine

    yield "time_r1 span", time_r1


def _moment_detr(root: Path) -> Iterator[tuple[str, Rule]]:
    names = ("compute_average_precision_detection", "compute_temporal_iou_batch_cross")
    names += ("compute_temporal_iou_batch_paired", "interpolated_precision_recall")
    utils = lift(root / "standalone_eval/utils.py", *names)
    wrapper = "compute_average_precision_detection_wrapper"
    metrics = lift(
        root / "standalone_eval/eval.py",
        *("compute_mr_r1", "compute_mr_ap", wrapper),
        **{name: utils[name] for name in names[:3]},
        defaultdict=defaultdict,
    )

    def moments(draw: random.Random) -> tuple[Any, Any]:
        times = sorted(draw.sample(range(0, 151, 2), 2 * draw.choice((1, 1, 2, 3, 5))))
        right = [[float(a), float(b)] for a, b in zip(times[::2], times[1::2], strict=True)]
        answer = _timed(draw, right)
        stated = spans.listed_spans(answer)
        scored = _moments(answer, Sample("", "", (), Truth(spans=_spans(right))), Frame())
        if not stated:
            return False, scored.read
        windows = [[span.start, span.end, 1.0] for span in stated]
        rows = (
            [{"qid": 1, "pred_relevant_windows": windows}],
            [{"qid": 1, "relevant_windows": right}],
        )
        with np.errstate(invalid="ignore"):
            ap, recall = (
                metrics["compute_mr_ap"](*rows, num_workers=1),
                metrics["compute_mr_r1"](*rows),
            )
        names = {"average": "precision", "0.5": "precision_at_0.5", "0.75": "precision_at_0.75"}
        # They round to two digits of a percentage.
        apart = [abs(ap[key] - 100 * scored.detail[name]) for key, name in names.items()]
        reached = [100.0 * (scored.value >= threshold) for threshold in (0.5, 0.7)]
        theirs = [recall["0.5"], recall["0.7"]]
        return (theirs, True), (reached, max(apart) <= 0.0051)

    yield "moment_detr", moments


OWN = {"time-r1": _time_r1, "moment_detr": _moment_detr}


def _spans(pairs: list[list[float]]) -> tuple[Span, ...]:
    return tuple(Span(*pair) for pair in pairs)


def _timed(draw: random.Random, right: list[list[float]]) -> str:
    """Draw a hostile text with times, or a list of spans that are near to the true ones."""
    if draw.random() < 0.2:
        return any_places(draw) + draw.choice(("", " 3 to 5", "1.5 and 12. to 7", "\n4.2 to 4.2"))
    pairs = []
    for _ in range(draw.choice((1, 1, 2, 3, 12))):
        start, end = draw.choice(right)
        start, end = (abs(time + draw.choice((0, 0, draw.uniform(-4, 4)))) for time in (start, end))
        backwards = draw.random() < 0.1
        pairs.append((end, start) if backwards else (start, end))
    texts = [f"{start:.{draw.choice((0, 1, 2))}f} to {end:.2f}" for start, end in pairs]
    listed = draw.choice((", ", "\n", " and then ")).join(texts)
    return draw.choice((listed, f"<answer>{listed}</answer>", f"{any_answer(draw)} {listed}"))


class _Listed(list[Any]):
    """A list in the place of `datasets.Dataset`."""

    @classmethod
    def from_list(cls, rows: list[Any]) -> list[Any]:
        return rows

    def select(self, numbers: range) -> list[Any]:
        return [self[number] for number in numbers]


def _near(draw: random.Random, options: dict[str, str]) -> str:
    """Draw a hostile answer, one that names an option, or both."""
    letter = draw.choice([*options])
    forms = (
        *(letter, f"({letter})", f"{letter}.", f"{letter}. {options[letter]}", options[letter]),
        f"The best option is {letter}, not {draw.choice([*options])}",
        f"It is clear to all of us: {options[letter].lower()}",
        f"</think>\n{letter.lower()}) {options[letter]}",
    )
    hostile, stated = any_answer(draw), draw.choice(forms)
    return draw.choice((hostile, stated, f"{hostile} {stated}", f"{stated}\n{hostile}"))
