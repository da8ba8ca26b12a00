"""Rules of tasks about speech, sounds and music, compared with harnesses' code: see `compare_rules.py`."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from answers import OPTIONS, Rule, any_answer, lift

from vlmrl.benchmark_rules import letters, speech
from vlmrl.benchmarking.base import open_benchmark
from vlmrl.benchmarking.scorers import SCORERS
from vlmrl.schema import Frame, Sample, Truth


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
    yield from _voicebench(tasks / "voicebench/utils.py")


def own_sound_rules(root: Path | None) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of papers' own code; `root` holds a checkout of it."""
    if root is None or not (root / "MMAUPro").exists():
        print("MMAUPro: not compared, there is no checkout of it")
        return
    import torch

    class Embedding:
        """A stand-in: equal texts have the same direction, others any."""

        def encode(self, listed: list[str], **options: Any) -> Any:
            seeds = [random.Random(text) for text in listed]
            return torch.tensor([[seed.gauss(0, 1) for _ in range(16)] for seed in seeds])

    given = {"torch": torch, "F": torch.nn.functional, "tqdm": lambda rows: rows, "print": _silent}
    name = "evaluate_closedended_with_nvembed"
    own = lift(root / "MMAUPro/evaluate_mmau_pro_comprehensive.py", name, **given)[name]

    def mmau_pro(draw: random.Random) -> tuple[Any, Any]:
        listed = draw.sample((*OPTIONS[:9], "cat", " Cat", "B. two dogs"), draw.randint(2, 6))
        right = draw.choice((*listed, listed[0].upper()))
        reply = draw.choice((*listed, right, any_answer(draw)))
        matched = own(Embedding(), ["?"], [listed], [right], [reply], ["sound"])[0][0]
        row = {"audio_path": ["a"], "category": "sound", "choices": listed, "answer": right}
        row = open_benchmark("mmau_pro", "").adapt(row)
        truth = Truth(choice=row["letter"], options=tuple(listed))
        truth = truth if row["letter"] else Truth(text=(right,))
        sample = Sample("", "", ("?",), truth, meta={"answer": right})
        score = SCORERS["text_mmau_pro"](reply, sample, Frame())
        return matched == right if score.read else None, bool(score.value) if score.read else None

    yield "mmau_pro text", mmau_pro


def _voicebench(file: Path) -> Iterator[tuple[str, Rule]]:
    names = [f"voicebench_process_results_{kind}" for kind in ("mcq", "harm", "bbh")]
    quiet = SimpleNamespace(info=lambda text: None)
    own = lift(file, "get_column_value", *names, random=_NoDraw, eval_logger=quiet, print=_silent)
    choice, harm, puzzle = (own[name] for name in names)
    phrases = {name: _phrases_of(file, name) for name in names}

    def spoken(draw: random.Random, name: str) -> str:
        """Draw an answer of the phrases that the code lists, of words, and of marks of turns."""
        parts = []
        for _ in range(draw.choice((0, 1, 1, 2, 3))):
            phrase = draw.choice(phrases[name]).replace("[CHOICE]", draw.choice("abcd"))
            phrase = phrase.replace("(.+?)", draw.choice(("he ran", "x", "")))
            cut = draw.randrange(len(phrase) + 1) if draw.random() < 0.2 else None
            parts += [draw.choice((phrase, phrase, phrase.capitalize(), any_answer(draw)))[:cut]]
            parts += [draw.choice(("", " ", ". ", ", ", "\n", "\uff1a", "**", "-"))]
        before, after = draw.choice(("", "", "", "<1>", "<3> ")), draw.choice(("", "", "<|user|>"))
        return before + draw.choice(("", *"aAbc", "no", "Yes ")) + "".join(parts) + after

    def letter(draw: random.Random) -> tuple[Any, Any]:
        reply, right = spoken(draw, names[0]), draw.choice("ABCD")
        theirs = choice({"reference": right}, [reply])["accuracy"]
        return theirs == 100, speech.voicebench_letter(reply) == right

    def refusal(draw: random.Random) -> tuple[Any, Any]:
        reply = spoken(draw, names[1])
        reply = draw.choice((reply, any_answer(draw), "mix " + any_answer(draw), " \n"))
        return harm({}, [reply])["accuracy"] == 100, speech.voicebench_refuses(reply)

    def bbh(draw: random.Random) -> tuple[Any, Any]:
        task = draw.choice(("sports_understanding", "hyperbaton", "navigate", "web_of_lies"))
        reply, right = spoken(draw, names[2]), draw.choice(("yes", "No", "(A)", "(b)"))
        theirs = puzzle({"id": f"{task}_7", "reference": right}, [reply])["accuracy"]
        truth = Truth(choice=right[1].upper()) if right[0] == "(" else Truth(text=(right.lower(),))
        sample = Sample("", "", ("?",), truth, meta={"task": task})
        score = SCORERS["voicebench_bbh"](reply, sample, Frame())
        return theirs == 100, bool(score.value and score.read)

    yield from (("voicebench letter", letter), ("voicebench refusal", refusal))
    yield "voicebench bbh", bbh


def _phrases_of(file: Path, name: str) -> list[str]:
    """Return the texts that stand in a function."""
    (function,) = (node for node in ast.walk(ast.parse(file.read_text())) if _is(node, name))
    texts = (node.value for node in ast.walk(function) if isinstance(node, ast.Constant))
    return [text for text in texts if isinstance(text, str) and text]


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _silent(*texts: object) -> None:
    """Print nothing."""


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
