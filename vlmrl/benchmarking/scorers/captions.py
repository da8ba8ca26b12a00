"""Official scorers of captions: ROUGE-L of each row, and the texts that CIDEr compares over all rows."""

from __future__ import annotations

from collections.abc import Callable

from vlmrl.benchmark_rules.captions import caption_words, rouge_longest
from vlmrl.benchmarking.scores import Score, Scorer, accepted_texts
from vlmrl.schema import Frame, Sample


def _caption(form: Callable[[str], str]) -> Scorer:
    """Make a scorer of captions and references in a form, in which blanks part the words."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        caption, references = form(answer), [form(text) for text in accepted_texts(sample)]
        detail = {"caption": caption, "references": references}
        return Score(rouge_longest(caption, references), detail=detail)

    return score


SCORERS: dict[str, Scorer] = {
    "caption_lmms": _caption(lambda text: " ".join(caption_words(text))),
    # VLMEvalKit hands the texts over as they are, with their capitals and punctuation.
    "caption_vlmeval": _caption(lambda text: text),
}
