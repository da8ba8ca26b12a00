"""Rules of tasks about long videos, motion and moments in videos. See `compare_rules.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from answers import any_answer, any_options, lift

from vlmrl import plugins
from vlmrl.benchmark_rules import letters

Rule = Callable[[random.Random], tuple[Any, Any]]


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
    own = lift(file, *names, datasets=SimpleNamespace(Dataset=_Listed), eval_logger=_Quiet())
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


class _Listed(list[Any]):
    """A list in the place of `datasets.Dataset`."""

    @classmethod
    def from_list(cls, rows: list[Any]) -> list[Any]:
        return rows

    def select(self, numbers: range) -> list[Any]:
        return [self[number] for number in numbers]


class _Quiet:
    def warning(self, *text: object) -> None: ...


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
