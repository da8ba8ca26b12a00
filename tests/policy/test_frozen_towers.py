"""Frozen towers run once per medium and step, and nothing else changes, to the last bit."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch

from helpers.prompts import ask, image
from helpers.shared_forward import with_live_adapter
from helpers.small import advantages, audio, mixed_batch, policy, prompt
from helpers.videos import video
from vlmrl.config import LoraConfig
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.models import frozen_towers
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import PromptBatch

LANGUAGE = LoraConfig(rank=4, towers=["language"])
FROZEN = {"freeze": ["vision", "audio", "projector"]}
PROJECTS = {"freeze": ["vision", "audio"]}
CALLED = {
    "qwen2_5_vl": "model.visual.blocks.0",
    "qwen3_vl": "model.visual.blocks.0",
    "internvl": "model.vision_tower",
    "gemma3": "model.vision_tower",
    "llava_onevision": "model.vision_tower",
    "qwen2_audio": "model.audio_tower",
    "voxtral": "model.audio_tower",
    "gemma3n": "model.vision_tower",
}
"""By family, a module that every run of the tower calls once."""


def step(made, keep, batch):
    """Two updates of rollouts with their old and reference log-probs; all that came of it."""
    engine = Hf().start(made)
    with made.seeing_once() if keep else contextlib.nullcontext():
        rollouts = engine.generate(batch, Sampling(n=2, max_tokens=5, seed=1))
        batches = pack(rollouts, advantages(rollouts), updates=2, micro_tokens=400, max_tokens=5)
        batches = made.run_passes(batches, ["reference", "old"], seed=0)
        metrics = made.update(batches, Grpo(kl=0.1), 1e-2, 0.0)
    weights = {name: w.clone() for name, w in made.base.state_dict().items()}
    return rollouts.completions, metrics, weights


def stepped(tmp_path, family, training, keep, prompts=None):
    """The same policy every time after a step, and how often its tower ran."""
    torch.manual_seed(0)  # adapters begin at random
    made = policy(family, **training)
    if made.adapter is not None:
        with_live_adapter(made)
    made.keep_reference(tmp_path / "reference")
    runs: list[int] = []
    for model in (made.base, made.reference._model):
        if family in CALLED and model is not None:
            count_calls(model.get_submodule(CALLED[family]), lambda: runs.append(1))
    batch = mixed_batch(made) if prompts is None else PromptBatch(prompts(made))
    found = step(made, keep, batch)
    return len(runs), found


def count_calls(module, called):
    forward = module.forward

    def counted(*args, **kwargs):
        called()
        return forward(*args, **kwargs)

    module.forward = counted


def same(one, other):
    """Whether tokens, log-probs, metrics and weights are equal to the bit."""
    (said, metrics, weights), (said2, metrics2, weights2) = one, other
    assert said == said2
    assert metrics == metrics2
    return all(torch.equal(weights[name], weights2[name]) for name in weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "training"),
    [
        ("qwen2_5_vl", FROZEN),
        ("qwen2_5_vl", {"lora": LANGUAGE}),
        ("qwen2_5_vl", {**PROJECTS, "gradient_checkpointing": True}),
        ("qwen3_vl", PROJECTS),
        ("internvl", PROJECTS),
        ("gemma3", {"lora": LANGUAGE}),
        ("llava_onevision", PROJECTS),
        ("qwen2_audio", {"lora": LoraConfig(rank=4, towers=["projector", "language"])}),
        ("voxtral", PROJECTS),
        ("gemma3n", PROJECTS),
    ],
    ids=str,
)
def test_a_step_that_keeps_features_is_the_step_that_computes_them_again(
    family, training, tmp_path
):
    once, kept = stepped(tmp_path, family, training, keep=True)
    often, computed = stepped(tmp_path, family, training, keep=False)
    assert same(kept, computed)
    by_medium = ("qwen2_5_vl", "qwen3_vl", "qwen2_audio", "voxtral", "gemma3n")
    media = 4 if family in by_medium else 3  # there: by prompt
    assert once == media
    assert often > 3 * media


def seen_and_heard(made):
    heard = dataclasses.replace(video(4, fps=2.0, size=(84, 56)), audio=audio(2.0))
    both = (heard, audio(0.7)) if made.family.hears_videos else (video(3, size=(56, 56)),)
    return ask(made, image((84, 56)), *both), ask(made, *both, image((56, 84)))


@pytest.mark.slow
@pytest.mark.parametrize("training", [FROZEN, PROJECTS], ids=["frozen", "projects"])
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_omni", "qwen3_omni_moe"])
def test_videos_and_what_they_sound_like_are_kept_as_well(family, training, tmp_path):
    _, kept = stepped(tmp_path, family, training, keep=True, prompts=seen_and_heard)
    _, computed = stepped(tmp_path, family, training, keep=False, prompts=seen_and_heard)
    assert same(kept, computed)


def towers(made, prompts):
    return made.family.tower_features(made.base, [p.encoded for p in prompts]).merged


def test_a_frozen_tower_sees_each_medium_alone():
    made = policy(**FROZEN)
    prompts = [prompt(made, i, images=n) for i, n in enumerate((1, 2, 1))]
    together = towers(made, prompts)
    alone = [feature for p in prompts for feature in towers(made, [p])]
    assert len(together) == 4
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


def test_the_same_image_under_other_questions_is_seen_once():
    made, runs = policy(**FROZEN), []
    count_calls(made.base.get_submodule(CALLED["qwen2_5_vl"]), lambda: runs.append(1))
    with made.seeing_once():
        towers(made, [prompt(made, 1, text="Where?"), prompt(made, 1, text="How many?")])
        assert len(runs) == 1
    towers(made, [prompt(made, 1)])
    assert len(runs) == 2, "nothing is kept beyond the step"


def test_what_does_not_fit_is_computed_again(monkeypatch):
    made, runs = policy(**FROZEN), []
    count_calls(made.base.get_submodule(CALLED["qwen2_5_vl"]), lambda: runs.append(1))
    some = prompt(made, 1)
    monkeypatch.setattr(frozen_towers, "LIMIT", 10)
    with made.seeing_once():
        first, second = towers(made, [some]), towers(made, [some])
    assert len(runs) == 2
    assert torch.equal(first[0], second[0])


def test_a_tower_that_trains_is_not_kept():
    assert policy().frozen_towers is None
    assert policy(lora=LoraConfig(rank=4, towers=["vision", "language"])).frozen_towers is None


def test_a_reference_with_another_tower_sees_for_itself(tmp_path):
    made = policy(**FROZEN)
    made.keep_reference(tmp_path / "reference")
    with torch.no_grad():
        for name, weight in made.base.named_parameters():
            if ".visual." in name:
                weight.mul_(1.1)
    made.keep_reference(tmp_path / "again", tmp_path / "reference")
    encoded = [prompt(made, 1).encoded]
    with made.seeing_once(), made.reference.model() as reference:
        mine = made.family.tower_features(made.base, encoded).merged[0]
        theirs = made.family.tower_features(reference, encoded).merged[0]
    assert not torch.equal(mine, theirs)


@pytest.mark.parametrize("training", [FROZEN, PROJECTS], ids=["frozen", "projects"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_media_that_come_again_in_another_step_are_not_computed_again(family, training, tmp_path):
    runs, found = [], []
    for gib in (0.0, 1.0):
        torch.manual_seed(0)
        made = policy(family, **training, keep_features_gib=gib)
        runs.append([])
        count_calls(made.base.get_submodule(CALLED[family]), lambda: runs[-1].append(1))
        made.keep_reference(tmp_path / f"reference-{gib}")
        found.append([step(made, True, mixed_batch(made)) for _ in range(2)])
    assert all(same(one, other) for one, other in zip(*found, strict=True))
    assert len(runs[1]) == len(runs[0]) / 2


def test_the_features_used_longest_ago_make_room():
    kept = frozen_towers.KeptFeatures(limit=3 * 40)
    cpu = torch.device("cpu")
    for number in range(3):
        kept.add(bytes([number]), {"x": [torch.full((10,), float(number))]})
    assert kept.find(b"\0", cpu)["x"][0].sum() == 0  # used now
    kept.add(b"\3", torch.full((20,), 3.0))
    assert [kept.find(bytes([n]), cpu) is not None for n in range(4)] == [True, False, False, True]
    kept.add(b"\4", torch.zeros(31))
    assert kept.find(b"\4", cpu) is None and kept.find(b"\3", cpu) is not None
    # Blanks take no room, there or elsewhere.
    blank = torch.zeros(()).expand(1000)
    kept.add(b"\5", [blank])
    moved = frozen_towers._moved([blank], torch.device("meta"))[0]
    assert moved.shape == blank.shape and moved.untyped_storage().nbytes() == 4


def test_features_of_a_tower_that_trains_are_not_kept_from_step_to_step():
    with pytest.raises(UserError, match=r"keep_features_gib: a vision or audio tower trains"):
        policy(keep_features_gib=1.0)
