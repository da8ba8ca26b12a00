"""The values of a completion of several turns."""

import pytest
import torch

from vlmrl.schema import Completion, Encoded, Frame, Parsed, Segment, Suffix

PARSED = Parsed("2", None, "none", True, 1.0)


def test_completion_of_one_turn_is_its_own_only_turn():
    completion = Completion("two", PARSED, Frame(), (5, 6), (-0.1, -0.2), versions=((3, 2),))
    (turn,) = completion.turns
    assert (turn.token_ids, turn.logprobs, turn.text) == ((5, 6), (-0.1, -0.2), "two")
    assert turn.of_policy


def test_turns_are_the_policy_segments_alone():
    asked = Segment((5,), (-0.1,), text="crop")
    shown = Segment((7, 8), text="here")
    told = Segment((6,), (-0.2,), text="two")
    completion = Completion(
        "two", PARSED, Frame(), (5, 6), (-0.1, -0.2), segments=(asked, shown, told)
    )
    assert completion.turns == (asked, told)
    assert not shown.of_policy


@pytest.mark.parametrize(("reason", "cut"), [("stop", False), ("abort", False), ("turns", True)])
def test_truncated_names_limits_and_no_faults(reason, cut):
    assert Completion("", PARSED, Frame(), finish_reason=reason).truncated is cut


def test_segment_refuses_a_missing_logprob_and_media_of_the_policy():
    with pytest.raises(ValueError, match="expected 2 log-probs or none, got 1"):
        Segment((1, 2), (-0.5,))
    with pytest.raises(ValueError, match="expected no media"):
        Segment((1,), (-0.5,), media=(object(),))


def test_suffix_has_a_turn_for_every_id():
    encoded = Encoded((1, 2), (1, 2), {}, torch.arange(2)[None], 2)
    with pytest.raises(ValueError, match="expected as many turns, got 1"):
        Suffix(encoded, (0,))
