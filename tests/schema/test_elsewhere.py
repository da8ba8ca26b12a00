"""What stands for another rank's completion or verdict knows its numbers, and refuses the rest by name."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

from vlmrl.schema import ElsewhereError, RemoteCompletion, RemoteVerdict

SAID = RemoteCompletion(3, 7, "length", ((0, 4), (1, 3)))
JUDGED = RemoteVerdict(3, 0.5, True, None, is_kill=False)


def test_the_numbers_of_a_completion_are_known():
    assert (SAID.num_tokens, SAID.versions, SAID.origin) == (7, ((0, 4), (1, 3)), "policy")
    assert SAID.truncated and not RemoteCompletion(0, 1, "stop", ()).truncated
    hinted = SAID.with_origin("hint")
    assert hinted.origin == "hint" and hinted != SAID and hinted.with_origin("policy") == SAID


@pytest.mark.parametrize(
    "name",
    ["text", "parsed", "token_ids", "logprobs", "segments", "suffix", "turns", "calls", "answer"],
)
def test_what_was_written_is_refused_with_the_rank_that_knows_it(name):
    with pytest.raises(ElsewhereError, match=r"completion is known to rank 3 .*reads_completions"):
        getattr(SAID, name)


@pytest.mark.parametrize("name", ["parts", "answer", "note"])
def test_what_a_verdict_says_beside_its_score_is_refused(name):
    assert (JUDGED.score, JUDGED.applies, JUDGED.fault, JUDGED.is_kill) == (0.5, True, None, False)
    with pytest.raises(ElsewhereError, match=rf"'{name}' of this verdict is known to rank 3 alone"):
        getattr(JUDGED, name)


@pytest.mark.parametrize("known", [SAID, JUDGED])
def test_a_stand_in_is_shown_but_never_taken_for_the_real_one(known):
    assert "3" in repr(known) and known == known and len({known, known}) == 1
    for take in (pickle.dumps, copy.copy, replace):
        with pytest.raises(ElsewhereError):
            take(known)
    assert not hasattr(known, "no_such_field")
