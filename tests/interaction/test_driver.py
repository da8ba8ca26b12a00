"""The driver: turns around an engine, their limits, faults and draws."""

import numpy as np
import pytest

from helpers.driving import EndingHf, Scripted, Shows, shows
from helpers.small import policy, prompt
from helpers.turns import packed
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.interaction import driver
from vlmrl.interaction.driver import Driver, TurnLimits
from vlmrl.interaction.tool import Shown
from vlmrl.interaction.tools import AskedCall, Toolbox, ToolOutcome
from vlmrl.parts.tools.crop import Crop
from vlmrl.schema import Call, PromptBatch, Rollouts
from vlmrl.schema.media import Audio

LOOK = '<tool_call>{"name": "crop", "arguments": {"bbox_2d": [0, 0, 28, 28]}}</tool_call>'
ANSWER = "<answer>4</answer>"


@pytest.fixture(scope="module")
def made():
    return policy()


def drive(made, engine, runner, **limits):
    run = Driver(engine, {"noise": lambda space: runner}, TurnLimits(**limits)).start(made)
    return run


def one(made, engine, runner, n=1, **limits):
    run = drive(made, engine, runner, **limits)
    batch = PromptBatch((prompt(made, 0),))
    return run.generate(batch, Sampling(n, 64)).completions[0]


def test_a_call_is_answered_and_the_last_turn_is_graded(made):
    engine, runner = Scripted(LOOK, ANSWER), Shows()
    said, other = one(made, engine, runner, n=2)
    assert (said.text, said.answer, said.finish_reason) == (ANSWER, "4", "stop")
    asked, shown, told = said.segments
    assert (asked.text, told.text) == (LOOK, ANSWER)
    assert asked.calls[0].outcome == "ok"
    assert len(shown.media) == 1
    assert said.token_ids == asked.token_ids + told.token_ids
    assert len(engine.asked[1]) == 2  # every rollout goes on by itself
    assert engine.samplings[1].n == 1
    later = engine.asked[1].prompts[0]
    first = engine.asked[0].prompts[0]
    assert later.encoded.compact_ids == (
        first.encoded.compact_ids + asked.token_ids + shown.token_ids
    )
    assert later.media == (*first.media, *shown.media)
    assert other.segments == said.segments
    (micro,) = packed(Rollouts(PromptBatch((first,)), ((said, other),), 0, 8)).micro
    assert int(micro.mask.sum()) == 2 * len(said.token_ids)


def test_the_view_grows_with_what_was_shown(made):
    runner = Shows()
    one(made, Scripted(LOOK, LOOK, ANSWER), runner)
    assert [view.num_images for view in runner.views] == [1, 2]
    assert runner.views[1].shown[1].frame.width == 56


def test_a_turn_without_calls_is_the_completion_itself(made):
    (said,) = one(made, Scripted(ANSWER), Shows())
    assert said.suffix is None
    assert said.finish_reason == "stop"
    assert len(said.turns) == 1


@pytest.mark.parametrize(
    ("limits", "reason", "turns"),
    [
        ({"max_turns": 2}, "turns", 2),
        ({"max_images": 1}, "budget", 2),
        ({"max_tokens": 100}, "budget", 1),
        ({"max_length": 100}, "budget", 1),
        ({"max_seconds": 0.15}, "budget", 2),
    ],
)
def test_a_limit_ends_before_the_observation(made, limits, reason, turns):
    (said,) = one(made, Scripted(LOOK, LOOK, LOOK, ANSWER), Shows(), **limits)
    assert said.finish_reason == reason
    assert said.truncated
    assert len(said.turns) == turns
    assert said.segments[-1].of_policy
    shown = sum(len(segment.media) for segment in said.segments)
    assert shown == turns - 1
    if said.suffix is not None:
        assert said.suffix.encoded.compact_ids.count(made.base.config.image_token_id) == shown


def test_a_fault_masks_the_rollout_and_shows_nothing(made):
    failed = ToolOutcome(calls=(Call("crop", {}, "fault", "it died"),), fault="crop: it died")
    engine = Scripted(LOOK)
    (said,) = one(made, engine, Shows(failed))
    assert said.finish_reason == "abort"
    assert not said.truncated
    assert said.segments[0].calls[0].note == "it died"
    assert len(engine.asked) == 1


def test_an_image_that_the_family_refuses_is_a_fault(made):
    sliver = shows([AskedCall("crop")], size=(3000, 2))
    (said,) = one(made, Scripted(LOOK), Shows(sliver))
    assert said.finish_reason == "abort"
    assert said.segments[0].calls[0].outcome == "fault"


def test_too_many_faults_end_the_run(made, monkeypatch):
    monkeypatch.setattr(driver, "WINDOW", 4)
    failed = ToolOutcome(calls=(Call("crop", {}, "fault", "it died"),), fault="crop: it died")
    with pytest.raises(UserError, match="crop: it died"):
        one(made, Scripted(LOOK), Shows(failed), n=3)


def test_what_the_family_cannot_show_counts_as_a_fault_as_well(made, monkeypatch):
    monkeypatch.setattr(driver, "WINDOW", 4)
    sound = Audio(np.zeros(800, np.float32), 16000)
    heard = ToolOutcome((sound,), (Shown(sound),), (Call("listen", {}),))
    with pytest.raises(
        UserError, match=r"listen: a tool returned audio, but qwen2_5_vl takes only"
    ):
        one(made, Scripted(LOOK), Shows(heard), n=3)


def test_prompts_of_other_sources_have_one_turn(made):
    run = Driver(Scripted(LOOK), {"other": lambda space: Shows()}).start(made)
    (said,) = run.generate(PromptBatch((prompt(made, 0),)), Sampling(1, 64)).completions[0]
    assert said.text == LOOK
    assert not said.segments


def test_draws_know_neither_company_nor_order(made, monkeypatch):
    monkeypatch.setattr(driver, "parse_calls", lambda text: (AskedCall("crop"),))
    prompts = [prompt(made, number) for number in range(3)]

    def drawn(chosen):
        run = drive(made, EndingHf(), Shows(), max_turns=3)
        found = run.generate(PromptBatch(tuple(chosen)), Sampling(2, 5, seed=3)).completions
        return [[said.token_ids for said in group] for group in found]

    together, alone = drawn(prompts), [drawn([one])[0] for one in prompts]
    assert together == alone
    assert drawn(prompts[::-1]) == together[::-1]
    assert together[0][0] != together[0][1]
    twice = drawn([prompts[0], prompts[0]])
    assert twice[0] == together[0] != twice[1]


@pytest.mark.slow
def test_a_crop_is_cut_from_the_prompts_own_image(made):
    with Toolbox([Crop()], made.family.space) as toolbox:
        (said,) = one(made, Scripted(LOOK, ANSWER), toolbox)
    start = prompt(made, 0).media[0]
    (shown,) = said.segments[1].media
    assert shown.tobytes() == start.crop((0, 0, 28, 28)).tobytes()
    assert said.answer == "4"
