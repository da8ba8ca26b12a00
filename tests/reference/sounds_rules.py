"""Rules of tasks about speech, sounds and music, compared with harnesses' code: see `compare_rules.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from answers import OPTIONS, any_answer, lift

from vlmrl.benchmark_rules import letters

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
