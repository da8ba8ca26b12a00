"""Laws of single verifiers: what a rank of a batch is worth, and that math pays the right number."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.hostile_text import hostile, law
from helpers.truth_shapes import FRAME, numbers, write_number
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.schema import Sample, Truth
from vlmrl.scoring.verifier import judge


@law
@given(data=st.data())
def test_ranks_of_a_batch_are_bounded_and_follow_their_completions(data):
    verifier = plugins.build("verifier", "quality_rank")
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    texts = [[data.draw(hostile) for _ in range(shape[1])] for _ in range(shape[0])]
    samples = [
        Sample(f"s{p}", data.draw(st.sampled_from(["a", "b"])), (), Truth(number=float(p % 3)))
        for p in range(shape[0])
    ]
    groups = [[templates.completion(text, "none", FRAME) for text in group] for group in texts]
    first = verifier.judge(groups, samples)
    for p, sample in enumerate(samples):
        lonely = sum(s.source == sample.source for s in samples) < 2
        for verdict, text in zip(first[p], texts[p], strict=True):
            assert not (lonely and verdict.applies)
            if verdict.applies:
                assert 0 <= verdict.score <= 1
                assert text.strip() or verdict.score == 0
    backwards = verifier.judge([g[::-1] for g in groups][::-1], samples[::-1])
    for p in range(shape[0]):
        mirrored = [v.score for v in backwards[shape[0] - 1 - p][::-1]]
        for ours, theirs in zip([v.score for v in first[p]], mirrored, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(numbers)
def test_math_pays_the_right_number_and_nothing_else(truth):
    pytest.importorskip("math_verify")
    verifier, right = plugins.build("verifier", "math"), write_number(truth)

    def score(answer):
        return judge(verifier, answer, truth, "none", FRAME).score

    assert score(right) == 1
    for wrong in (f"{right}1", f"{right}, 7777", f"7777 = {right}", f"not {right} but 1"):
        assert score(wrong) == 0
