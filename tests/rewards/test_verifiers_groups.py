"""Group and batch verifiers against the published formulas."""

import math
from dataclasses import replace

import pytest

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.schema import Frame, Sample, Truth
from vlmrl.schema.turns import Call, Segment
from vlmrl.scoring.verifier import judge_batch, judge_group


def scores(name, texts, rewards, meta=None, **options):
    found = judge_group(plugins.build("verifier", name, options), texts, rewards, meta)
    return [v.score for v in found]


def words(*lengths):
    return ["w " * n for n in lengths]


def test_video_r1_window_needs_two_correct_completions():
    texts = words(319, 320, 512, 513, 400)
    assert scores("length_window", texts, [1, 1, 1, 1, 0]) == [0, 1, 1, 0, 0]
    assert scores("length_window", texts, [0, 1, 0, 0, 0]) == [0, 0, 0, 0, 0]
    assert scores("length_window", texts, [None, 1, 1, None, 0]) == [0, 1, 1, 0, 0]


def test_cosine_starts_and_ends_where_it_should():
    found = scores("length_cosine", words(0, 512, 1024, 4096), [1, 1, 1, 1])
    assert found == pytest.approx([1, 0.75, 0.5, 0.5])
    assert scores("length_cosine", words(0, 512, 1024), [0, 0, 0]) == pytest.approx(
        [0, -0.25, -0.5]
    )


def test_dylr_measures_wrong_completions_by_the_correct_ones():
    found = scores("length_dylr", words(100, 200, 0, 75, 150, 300, 900), [1, 1, 0, 0, 0, 0, 0])
    half = -0.25 * (1 + math.cos(math.pi / 2))
    assert found == pytest.approx([0, 0, -0.5, half, 0, -0.5, -0.5])


def test_dylr_pays_a_completion_that_was_cut_the_most_where_none_is_right():
    found = scores("length_dylr", words(0, 750, 900, 901), [0, 0, 0, 0], limit=901)
    assert found == pytest.approx([-0.25, 0, 0, -0.25])


def test_dylr_without_a_correct_completion_uses_the_target():
    assert scores("length_dylr", words(0, 750, 900), [0, 0, None]) == pytest.approx([-0.25, 0, 0])


def test_kimi_golden_values():
    found = scores("length_kimi", words(100, 200, 300, 400), [1, 0, 0, 0])
    assert found == pytest.approx([0.5, 0, -1 / 6, -0.5])
    assert scores("length_kimi", words(5, 5), [1, 0]) == [0, 0]


def test_the_shortest_correct_completion_is_paid_if_long_enough():
    assert scores("length_shortest", words(50, 150, 200, 120), [0, 1, 1, 0]) == [0, 1, 0, 0]
    assert scores("length_shortest", words(50, 150), [1, 1]) == [0, 0]
    assert scores("length_shortest", words(150, 150), [1, 1]) == [1, 1]


def test_temporal_contrast_pays_only_where_order_helped():
    texts = ["a", "b", "c", "d"]
    helped = {"shuffled_rewards": [1.0, 0.0]}
    assert scores("temporal_contrast", texts, [1, 1, 0, None], helped) == [1, 1, 0, 0]
    # the mean, 0.5, is below 0.8 of 0.75
    spoiled = {"shuffled_rewards": [1.0, 1.0, 1.0, 0.0]}
    assert scores("temporal_contrast", texts, [1, 1, 0, 0], spoiled) == [0, 0, 0, 0]
    assert scores("temporal_contrast", texts, [1, 1, 0, 0]) == [None] * 4


def test_think_balance_pays_the_rarer_mode_in_full():
    think, direct, none = "<think>x</think>a", "<think>\n\n</think>a", "<think>never closed"
    assert scores("think_balance", [think, direct], [1, 1]) == [1, 1]
    found = scores("think_balance", [direct, direct, direct, think, none], [1] * 5)
    assert found == pytest.approx([0.5, 0.5, 0.5, 1, 0])
    assert scores("think_balance", [direct, direct], [1, 1]) == [0, 0]
    with pytest.raises(UserError, match="between 0 and 1"):
        plugins.build("verifier", "think_balance", {"direct": 1.0})


def test_pixel_reasoner_golden_values():
    call = '<tool_call>{"name": "zoom", "arguments": {}}</tool_call>'
    found = scores("tool_curiosity", [call, call * 3, *["a"] * 6], [1] * 8)
    assert found == pytest.approx([0.025, 0.025 - 0.1, *[0] * 6])
    assert scores("tool_curiosity", [call, call], [1, 1]) == [0, 0]
    assert scores("tool_curiosity", [call * 100, "a"], [1, 1])[0] == -1


@pytest.mark.parametrize(
    "block",
    [
        "<tool_call></tool_call>",
        "<tool_call> \n </tool_call>",
        "</tool_call>zoom<tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>zoom</tool_call>",
        '<tool_call>{"name": ""}</tool_call>',
    ],
)
def test_a_block_without_a_call_in_it_earns_no_curiosity(block):
    assert scores("tool_curiosity", [block, *["a"] * 3], [0] * 4) == [0] * 4
    assert scores("tool_curiosity", [block * 9, "a"], [0, 0])[0] <= 0


def test_curiosity_counts_the_calls_that_were_run():
    """Of several turns the log decides, whatever the last one writes."""

    def completion(*outcomes):
        wrote = [Segment((1,), (-1.0,), calls=(Call("crop", {}, o),)) for o in outcomes]
        segments = [part for one in wrote for part in (one, Segment((2,)))]
        last = templates.completion("<tool_call>{}</tool_call>", "none", Frame())
        return replace(last, segments=(*segments, Segment((3,), (-1.0,))))

    group = [completion("ok"), completion("ok", "ok", "refused"), completion("refused")]
    plain = [templates.completion("a", "none", Frame()) for _ in range(7)]
    sample = Sample("s", "s", (), Truth(), "none")
    verifier = plugins.build("verifier", "tool_curiosity")
    found = [v.score for v in verifier.judge(group + plain, sample, [1.0] * 10)]
    assert found == pytest.approx([0.05, 0.05 - 0.1, 0, *[0] * 7])


def test_thurstone_golden_values():
    verifier = plugins.build("verifier", "quality_rank", {})
    truths = [Truth(number=4.5), Truth(number=2.5)]
    good, bad = judge_batch(verifier, [["4", "5"], ["2", "3"]], truths)
    assert [v.score for v in good] == pytest.approx([0.9670, 0.9979], abs=1e-4)
    # The mirror image: the lower the score of the worse image, the better.
    assert [v.score for v in bad] == pytest.approx([0.9979, 0.9670], abs=1e-4)


def test_scores_are_clamped_before_any_statistic_and_unreadable_ones_left_out():
    verifier = plugins.build("verifier", "quality_rank", {})
    truths = [Truth(number=4.5), Truth(number=2.5)]
    wild = judge_batch(verifier, [["4", "999"], ["2", "x"]], truths)
    tame = judge_batch(verifier, [["4", "5"], ["2", ""]], truths)
    assert [v.score for v in wild[0]] == [v.score for v in tame[0]]
    assert wild[1][1].score == 0 and wild[1][1].note == "no number in the answer"


def test_pictures_are_compared_within_their_source_only():
    verifier = plugins.build("verifier", "quality_rank", {})
    groups = [[templates.completion(t, "none", Frame())] for t in ("4", "2", "3")]
    samples = [
        Sample(str(p), source, (), Truth(number=float(p)))
        for p, source in enumerate(["koniq", "koniq", "spaq"])
    ]
    first, second, lonely = verifier.judge(groups, samples)
    assert first[0].applies and second[0].applies and not lonely[0].applies


def test_equal_truths_pay_equal_scores():
    verifier = plugins.build("verifier", "quality_rank", {})
    truths = [Truth(number=3.0), Truth(number=3.0)]
    (same,), _ = judge_batch(verifier, [["3"], ["3"]], truths)
    (apart,), _ = judge_batch(verifier, [["5"], ["1"]], truths)
    assert same.score == pytest.approx(1) and apart.score == pytest.approx(math.sqrt(0.5), abs=1e-2)


def test_lengths_are_tokens_where_token_ids_are_known():
    verifier = plugins.build("verifier", "length_shortest", {"floor": 2})
    long, short = (
        templates.completion("a", "none", Frame(), token_ids=tuple(range(n))) for n in (9, 5)
    )
    sample = Sample("s", "s", (), Truth())
    assert [v.score for v in verifier.judge([long, short], sample, [1.0, 1.0])] == [0, 1]
