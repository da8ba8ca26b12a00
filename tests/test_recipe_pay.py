"""Every recipe pays the truth of its published rows more than a wrong and an unformatted completion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.chat_server import chat_servers, reply_as_asked
from helpers.daily import marked
from helpers.recipe_rows import write_rows
from helpers.score_server import addresses, score_servers
from vlmrl.answers import templates
from vlmrl.assemble.sources import open_training
from vlmrl.config import load
from vlmrl.config.tree import shipped
from vlmrl.features.check.doctor_data import right_answers
from vlmrl.schema import Completion, Demo, Frame, Sample
from vlmrl.scoring.reward_components import form_of
from vlmrl.scoring.scorer import Scorer
from vlmrl.truths import prompting

FRAME = Frame(56, 56, duration=2.0)
NONSENSE = "zzz"
"""A wrong answer of every kind; alone, a completion without any form."""
ANSWERS = {"recipes/q_insight": {"score": '{"rating": 7}'}}
"""Recipe -> source -> the right answer, where its form is the recipe's own."""
OTHERWISE = {
    "a second model says what is right": {
        "recipes/caprl": {"captions"},
        "recipes/craft_gui": {"questions"},
        "recipes/humanomni_v2": {"free"},
        "recipes/ixc_reward": {"open_questions"},
        "recipes/perl": {"preferences"},
        "recipes/perl_reward": {"preferences"},
        "recipes/pf_ppo": {"preferences"},
        "recipes/prompt4trust": {"pmc_vqa"},
        "recipes/qwenlong_l1": {"documents"},
        "recipes/racro": {"virl39k"},
        "recipes/reward_anything": {"principles"},
        "recipes/rubric_anchors": {"open_ended"},
        "recipes/rubrics_as_rewards": {"medicine"},
        "recipes/video_rft": {"choice", "numerical", "ocr", "free_form", "regression"},
        "recipes/visual_arft": {"search"},
        "recipes/vlm_rm": {"captions"},
        "recipes/vrag": {"pages"},
        "recipes/writing_zero": {"writing"},
    },
    "an environment pays, or the step of a trajectory": {
        "recipes/era": {"gui_world"},
        "recipes/ufo": {"geometry3k"},
        "recipes/ui_s1": {"android_control"},
        "recipes/vagen": {"frozen_lake"},
        "recipes/vision_zero": {"pairs"},
    },
    "as published, its form alone is paid": {
        "recipes/toolrl": {"replies"},
        "recipes/visual_arft_code": {"code"},
    },
    "a proposal has no truth": {"recipes/absolute_zero": {"self_play/propose"}},
    "the group says what is right": {
        "recipes/mm_upt": {"questions"},
        "recipes/ttrl": {"aime24"},
        "recipes/visualquality_r1": {"kadid"},
    },
}
"""Why a source is not paid by its row's truth -> recipe -> such sources."""
LEFT_OUT = {
    (recipe, one) for recipes in OTHERWISE.values() for recipe in recipes for one in recipes[recipe]
}
RECIPES = {
    name: [source.label for source in load(name).data.train if (name, source.label) not in LEFT_OUT]
    for name in shipped()
    if name.startswith("recipes/")
}
"""Recipe -> its sources that the truth pays."""


def right(sample: Sample, own: str | None) -> Completion:
    """Return the completion that states the truth of a sample, on a grid without loss."""
    if own is not None:
        return framed(sample, own)
    text, frame = next(iter(right_answers(sample, FRAME).items()))
    return templates.completion(text, sample.template, frame)


def framed(sample: Sample, answer: str) -> Completion:
    """Return a completion in the form that a sample asks for, whose answer and tags are this text."""
    names = [tag.name for tag in templates.template(sample.template).tags]
    demo = Demo("I see it.", text=answer, contents=dict.fromkeys(names, answer))
    return templates.completion(
        prompting.demonstrate(demo, sample.template, FRAME), sample.template, FRAME
    )


def pay(name: str, home: Path) -> Iterator[tuple[str, list[float | None]]]:
    """Yield each source that rules pay, with the rewards of two right, a wrong and an unformatted one."""
    with chat_servers() as start, score_servers() as score:
        models = addresses(
            load(name), score(lambda body: {"data": [{"score": 0.5}], "score": 0.5}).url
        )
        models += [f"models.{one}.url={start(reply_as_asked).url}" for one in load(name).models]
        config = load(name, models)
        write_rows(config, home)
        listed = {source.label: source for source in config.data.train}
        for source in open_training(config):
            if source.name not in RECIPES[name]:
                continue
            chosen = config.rewards_of(listed[source.name])
            sample = replace(source.sample(0), form=form_of(chosen))
            best = right(sample, ANSWERS.get(name, {}).get(source.name))
            raw = templates.completion(NONSENSE, sample.template, FRAME)
            with Scorer({source.name: chosen}, config.scoring) as scorer:
                (group,) = scorer.judge([[best, best, framed(sample, NONSENSE), raw]], [sample])
            assert not any(v.fault for judged in group for v in judged.verdicts.values()), group
            yield source.name, [judged.reward for judged in group]


PAYING = [name for name, sources in RECIPES.items() if sources]


# A third of the recipes every day, all of them nightly: a verifier pays alike in each that names it.
@pytest.mark.parametrize("name", marked(PAYING, PAYING[::3]))
def test_a_right_completion_is_paid_most_and_an_unformatted_one_least(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for source, (one, other, wrong, raw) in pay(name, tmp_path):
        assert None not in (one, other, wrong, raw), source
        assert one == other > 0 and one > wrong >= raw, (source, one, other, wrong, raw)


def test_what_is_left_out_is_there() -> None:
    assert {(name, s.label) for name in RECIPES for s in load(name).data.train} >= LEFT_OUT
