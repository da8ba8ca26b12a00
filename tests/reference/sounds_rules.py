"""Rules of tasks about speech, sounds and music, compared with harnesses' code: see `compare_rules.py`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from answers import OPTIONS, any_answer, lift

from vlmrl.benchmark_rules import letters
from vlmrl.benchmarking.scorers import SCORERS
from vlmrl.schema import Frame, Sample, Truth

Rule = Callable[[random.Random], tuple[Any, Any]]


class _NoDraw:
    """A `random` that draws nothing."""

    choice = staticmethod(lambda letters: None)


def lmms_sound_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of lmms-eval's tasks: from a random state to (theirs, ours)."""
    tasks = root / "lmms_eval/tasks"
    score, parse = "mmsu_process_results", "parse_multi_choice_response"
    names = (score, "get_multi_choice_info", parse)
    speech = lift(tasks / "mmsu/utils.py", *names, random=_NoDraw)[score]

    def mmsu(draw: random.Random) -> tuple[Any, Any]:
        offered = dict(zip("ABCD", draw.sample(OPTIONS, 4), strict=True))
        reply, right = _near(draw, offered), draw.choice("ABCD")
        row = {f"choice_{letter.lower()}": text for letter, text in offered.items()}
        theirs = speech({**row, "answer": right}, [reply])["accuracy"]["score"]
        return bool(theirs), letters.mmmu_letter(reply, offered) == right

    yield "mmsu letter", mmsu
    score = "air_bench_process_results_foundation"
    air = lift(tasks / "air_bench/utils.py", score, parse, "get_gt", random=_NoDraw)[score]

    def air_bench(draw: random.Random) -> tuple[Any, Any]:
        count = draw.randint(2, 4)
        offered = dict(zip("ABCD", draw.sample(OPTIONS[:9], count), strict=False))
        reply, right = _near(draw, offered), draw.choice(list(offered))
        row = {f"choice_{letter}": offered.get(letter.upper()) for letter in "abcd"}
        row |= {"answer_gt": offered[right], "task_name": ""}
        theirs = air(row, [reply])["accuracy"]["score"]
        return bool(theirs), letters.mmau_letter(reply.strip(), list(offered)) == right

    yield "air_bench letter", air_bench
    scored = "mmau_process_results"
    sound = lift(tasks / "mmau/utils.py", scored, parse, "letter_to_ans", random=_NoDraw, json=json)
    known = sound["letter_to_ans"]
    sound["letter_to_ans"] = lambda letter, texts: known(letter, texts) if letter else ""

    def mmau(draw: random.Random) -> tuple[Any, Any]:
        listed = draw.choices(("Cat", "cat ", "a red dog", "A Red dog", "12%", "B"), k=4)
        right = draw.choice(listed)
        reply = _near(draw, dict(zip("ABCD", listed, strict=True)))
        row = {"choices": json.dumps(listed), "answer": right, "task": ""}
        theirs = sound[scored](row, [reply])["accuracy"]["overall"]
        letter = "ABCD"[listed.index(right)]
        sample = Sample("", "", ("?",), Truth(choice=letter, options=tuple(listed)))
        return theirs, SCORERS["letter_mmau"](reply, sample, Frame()).value

    yield "mmau row", mmau


def _near(draw: random.Random, offered: dict[str, str]) -> str:
    """Draw an answer, hostile or near to one of the options."""
    letter, text = draw.choice(list(offered.items()))
    forms = (
        "{0}",
        "({0})",
        "{0}. {1}",
        " {0}.\n",
        "the answer is {1}",
        "I would say {1}, so ({0})",
    )
    return draw.choice(
        (any_answer(draw), any_answer(draw), draw.choice(forms).format(letter, text))
    )
