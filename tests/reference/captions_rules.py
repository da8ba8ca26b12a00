"""The words and metrics of captions, compared with pycocoevalcap's and with both harnesses' use of it.

Needs the extra `captions`, and Java for the words: see `compare_rules.py`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from answers import Rule, any_answer, lift

from vlmrl.benchmark_rules.captions import caption_words, rouge_longest
from vlmrl.benchmarking.aggregates import Rows, estimate
from vlmrl.benchmarking.scorers import SCORERS
from vlmrl.schema import Frame, Sample, Truth

BATCH = 4000
"""Captions that one run of Java is given."""
WORDS = """
a an the two man woman's dogs' riding wave surfboard in front of his sitting T-shirt
black-and-white red, white and/or isn't can't they're it's cannot "STOP" "ONE WAY" (left) (on
the right) 3 3.5 1,200 12:30 $5 50% 1/2 1st 10am a.m. p.m. U.S. St. Dr. Mr. Mt. etc. 'hello' &
AT&T #5 #love rock 'n' roll '90s o'clock ma'am gonna wanna Coca-Cola ... -- - ; : ! ? !! café
2-way wi-fi w/o street.The [blue] {x} he'll she'd we've I'm
""".split()


def caption_rules(lmms: Path, vlmeval: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of captions: from a random state to (theirs, ours)."""
    if importlib.util.find_spec("pycocoevalcap") is None:
        print("captions: not compared, pycocoevalcap is not installed")
        return
    from pycocoevalcap.rouge.rouge import Rouge

    def rouge(draw: random.Random) -> tuple[Any, Any]:
        caption, references = any_caption(draw), [any_caption(draw) for _ in range(3)]
        theirs = Rouge().calc_score([caption], references)
        return round(theirs, 12), round(rouge_longest(caption, references), 12)

    yield "rouge_longest", rouge
    yield "captions lmms_eval", _lmms(lmms)
    yield "captions vlmevalkit", _vlmeval(vlmeval)
    if shutil.which("java") is None:
        print("caption_words: not compared, there is no Java")
        return
    yield "caption_words", _words()


def any_caption(draw: random.Random) -> str:
    """Draw words of captions, of which some have a mark behind them."""
    words = draw.choices(WORDS, k=draw.choice((0, 1, 3, 8, 12)))
    marked = (word + draw.choice((*[""] * 12, ",", ".", ".", "!")) for word in words)
    return draw.choice(("", "", " ")) + draw.choice((" ", " ", " ", "  ")).join(marked)


def _words() -> Rule:
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    seeded = random.Random(0)
    captions = [f"{any_caption(seeded)} end" for _ in range(BATCH)]
    listed = {row: [{"caption": caption}] for row, caption in enumerate(captions)}
    with contextlib.redirect_stderr(io.StringIO()):
        tokens = PTBTokenizer().tokenize(listed)

    def compare(draw: random.Random) -> tuple[Any, Any]:
        row = draw.randrange(BATCH)
        return tokens[row][0].split(), caption_words(captions[row])

    return compare


def _drawn(draw: random.Random) -> tuple[list[str], list[list[str]]]:
    """Draw the captions and the references of a few images; some captions are near to a reference."""
    references = [
        [f"{any_caption(draw)} end" for _ in range(draw.randint(1, 3))]
        for _ in range(draw.randint(2, 5))
    ]
    near = [draw.choice(texts) for texts in references]
    return [draw.choice((text, text[:-3], any_answer(draw), "")) for text in near], references


def _ours(scorer: str, captions: Sequence[str], references: Sequence[Sequence[str]]) -> Any:
    frame = Frame(640, 480)
    samples = [
        Sample(str(n), "x", (), Truth(text=tuple(texts))) for n, texts in enumerate(references)
    ]
    scores = [
        SCORERS[scorer](caption, sample, frame)
        for caption, sample in zip(captions, samples, strict=True)
    ]
    values = np.array([score.value for score in scores], float)
    names = [""] * len(scores)
    rows = Rows(values, names, names, names, [score.detail for score in scores])
    cider = estimate("cider", rows, [str(n) for n in range(len(scores))], resamples=2)[0]
    return round(float(values.mean()), 10), round(cider, 10)


def _lmms(root: Path) -> Rule:
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocotools.coco import COCO

    class Tokenizer:
        """The words that we read, in place of those of Java."""

        def tokenize(self, listed: dict[Any, list[dict[str, str]]]) -> dict[Any, list[str]]:
            return {
                key: [" ".join(caption_words(each["caption"])) for each in captions]
                for key, captions in listed.items()
            }

    def evaluation(coco: Any, result: Any) -> Any:
        return SimpleNamespace(coco=coco, cocoRes=result, params={"image_id": coco.getImgIds()})

    space = lift(
        root / "lmms_eval/tasks/textcaps/utils.py",
        *("textcaps_process_result", "textcaps_aggregation_result", "TEXTCAPS_METRICS"),
        **{"COCO": COCO, "COCOEvalCap": evaluation, "PTBTokenizer": Tokenizer, "Cider": Cider},
        **{
            "Rouge": Rouge,
            "Bleu": lambda _: None,
            "Meteor": lambda: None,
            "json": json,
        },
        generate_submission_file=lambda *_: "/dev/null",
        eval_logger=SimpleNamespace(info=lambda _: None),
    )

    def compare(draw: random.Random) -> tuple[Any, Any]:
        captions, references = _drawn(draw)
        results = [
            space["textcaps_process_result"](
                {"caption_str": texts, "image_id": n}, [caption.strip()]
            )
            for n, (caption, texts) in enumerate(zip(captions, references, strict=True))
        ]
        with contextlib.redirect_stdout(io.StringIO()):
            theirs = [
                round(
                    float(
                        space["textcaps_aggregation_result"](
                            [result[f"textcaps_{name}"] for result in results], name
                        )
                    ),
                    10,
                )
                for name in ("ROUGE_L", "CIDEr")
            ]
        return tuple(theirs), _ours("caption_lmms", captions, references)

    return compare


def _vlmeval(root: Path) -> Rule:
    scorer = lift(root / "vlmeval/dataset/image_caption.py", "COCO_Caption_Scorer")

    def compare(draw: random.Random) -> tuple[Any, Any]:
        captions, references = _drawn(draw)
        given = {str(n): [caption] for n, caption in enumerate(captions)}
        right = {str(n): [*texts] for n, texts in enumerate(references)}
        with contextlib.redirect_stdout(io.StringIO()):
            theirs = scorer["COCO_Caption_Scorer"](given, right).compute_scores()
        found = tuple(round(theirs[name] / 100, 10) for name in ("ROUGE_L", "CIDEr"))
        return found, _ours("caption_vlmeval", captions, references)

    return compare
