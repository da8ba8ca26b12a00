"""The rules of screens, and VLMEvalKit's of MMMU and MathVista, compared with their own code."""

from __future__ import annotations

import copy
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from answers import OPTIONS, any_answer, any_options, lift

from vlmrl.benchmark_rules import letters

Rule = Callable[[random.Random], tuple[Any, Any]]


def vlmeval_screen_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield VLMEvalKit's rules of MMMU and MathVista: from a random state to (theirs, ours)."""
    matching = root / "vlmeval/utils/matching_util.py"
    if "_VERBOSE_ANSWER_RE" not in matching.read_text():
        print(
            "vlmeval_mmmu, vlmeval_mathvista: not compared, this version is older than 'answer is B'"
        )
        return
    names = ("can_infer", "can_infer_option", "can_infer_text", "_VERBOSE_ANSWER_RE")
    infer = lift(matching, *names, cp=copy)["can_infer"]
    yield "vlmeval_mmmu", _mmmu(root, infer)
    yield "vlmeval_mathvista", _mathvista(root, infer)


def _mmmu(root: Path, infer: Callable[..., Any]) -> Rule:
    """Compare with the answer map and the options of `mcq_vanilla_eval`; a judge is asked for Z."""
    import pandas

    prepare = lift(
        root / "vlmeval/dataset/utils/multiple_choice.py",
        *("MMMU_preproc", "build_choices"),
        pd=pandas,
        logger=_Quiet(),
    )

    def right(draw: random.Random) -> tuple[Any, Any]:
        options = any_options(draw) if draw.random() < 0.5 else {}
        opens = ("12", "3.5", "force", "B", "Z", "['1/7', '0.143']", "A dog")
        truth = draw.choice(list(options) if options else opens)
        said = draw.choice((any_answer(draw), truth, f"answer is {truth}", "(A)", "so B.", "Z"))
        missing = dict.fromkeys("ABCDE", float("nan"))
        table = pandas.DataFrame([{"answer": truth, "prediction": said, **missing, **options}])
        table = table.astype(object)
        item = prepare["MMMU_preproc"](table).iloc[0]
        wanted = truth if truth in list(string.ascii_uppercase) else "A"
        letter = infer(said, prepare["build_choices"](item))
        theirs = (letter == wanted) if letter else None
        return theirs, letters.vlmeval_mmmu(said, truth, options)

    return right


def _mathvista(root: Path, infer: Callable[..., Any]) -> Rule:
    names = ("post_check", "list_to_dict")
    check = lift(root / "vlmeval/dataset/utils/mathvista.py", *names, can_infer=infer)["post_check"]

    def right(draw: random.Random) -> tuple[Any, Any]:
        kind = draw.choice(("text", "integer", "float", "list"))
        options = [*draw.sample(OPTIONS, 4)] if kind == "text" or draw.random() < 0.2 else []
        truth = draw.choice(("12", "0", "3.5", "-4", "1,200", "1e3", "[1, 2]"))
        letter = draw.choice("ABCD")
        said = draw.choice((any_answer(draw), truth, f" {truth}\n", "12.0", letter, f"({letter})"))
        said = draw.choice((said, said, said + ".", "１２", "nan", "1_2", *options))
        line = {"question_type": "multi_choice" if options else "free_form", "answer_type": kind}
        line |= {"answer": truth, "answer_option": letter, "choices": str(options)}
        found = check({**line, "prediction": said}, prefetch=True)
        theirs = check({**line, "prediction": said, "res": found}) if found else None
        return theirs, letters.vlmeval_mathvista(said, letter if options else truth, options, kind)

    return right


class _Quiet:
    """A logger that says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None
