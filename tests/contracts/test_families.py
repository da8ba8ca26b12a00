"""What every model family that takes images must do."""

import dataclasses
import functools
import socket

import pytest
import torch

from helpers.prompts import ask_about_images, hf_inputs, logits, mix_images
from helpers.shared_forward import (
    GRADIENT,
    LOGPROBS,
    gaps,
    micro_batch,
    packed,
    rollouts_of,
    with_live_adapter,
)
from helpers.small import CORPUS, advantages, loaded, model_config, policy
from vlmrl import plugins
from vlmrl.config import LoraConfig, ModelConfig, OptimizerConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.models.base import family_of
from vlmrl.models.loading import load_model
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import PromptBatch, Sample, Truth

SIZES = [(100, 100), (64, 48), (300, 90), (90, 300), (250, 230), (500, 120), (113, 111), (31, 40)]
SIZES += [(1, 1), (700, 4), (3, 500), (168, 85), (85, 168), (337, 169)]
"""Of images: small and large, wide and tall; families that tile make one or several tiles."""
CLOSE = {"atol": 1e-5, "rtol": 0}

KIND = "family"
APART = True
SUBSETS = {
    "name": lambda cls: "image" in cls.kinds,
    "sharing": lambda cls: "image" in cls.kinds and cls.shared,
}
shared_policy = functools.cache(policy)
"""For tests that leave the policy as it is."""


# ------------------------------------------------------------------------------------ prompts


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[], [(64, 48)], [(300, 90)], [(100, 100), (90, 300)]], ids=str)
def test_ids_and_tensors_equal_those_of_the_hf_processor(name, sizes):
    model = loaded(name)
    made = ask_about_images(model, *sizes)

    theirs = hf_inputs(model, made)

    assert list(made.encoded.ids) == theirs["input_ids"][0].tolist()
    compact = list(made.encoded.compact_ids)
    assert model.processor.tokenizer.decode(compact, skip_special_tokens=False) == made.text
    assert bool(made.encoded.tensors) == bool(sizes)
    for key, tensor in made.encoded.tensors.items():
        assert torch.equal(tensor, theirs[key])


def test_a_prompt_is_what_the_chat_template_of_the_hf_processor_makes(name):
    model = loaded(name)
    made = ask_about_images(model, (64, 48))
    content = [
        {"type": "image", "image": made.images[0]},
        {"type": "text", "text": "Where is the red shape?"},
    ]
    theirs = model.processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    assert list(made.encoded.ids) == theirs["input_ids"][0].tolist()


def test_the_tokens_of_a_picture_follow_from_its_size(name):
    model = loaded(name)
    for size in SIZES:
        ids = hf_inputs(model, ask_about_images(model, size))["input_ids"][0].tolist()
        wanted = ids.count(model.model.config.image_token_id)
        assert model.family.image_tokens(model.processor, *size) == wanted, size


def test_the_frame_holds_the_first_picture_and_the_familys_space(name):
    model = loaded(name)
    frame = ask_about_images(model, (300, 90), (64, 48)).frame
    assert (frame.width, frame.height, frame.space) == (300, 90, model.family.space)
    assert ask_about_images(model).frame.space == model.family.space


def test_what_it_cannot_show_is_a_clear_error(name):
    model = loaded(name)
    forged = Sample("row-8", "t", (f"Look: {model.family.media_tokens[0]}",), Truth())
    with pytest.raises(UserError, match=r"row-8.*media token"):
        make_prompt(forged, [], model.family, model.processor)
    made = ask_about_images(model, (64, 48))
    with pytest.raises(UserError, match="1 image placeholders for 0 images"):
        model.family.encode(model.processor, made.text, [])


# ------------------------------------------------------------------------------------ forward


@pytest.mark.parametrize("sizes", [[], [(64, 48)], [(300, 90), (100, 100)]], ids=str)
def test_logits_of_a_prompt_equal_the_hf_models_own_forward(name, sizes):
    model = loaded(name)
    made = ask_about_images(model, *sizes)
    with torch.no_grad():
        theirs = model.model(**hf_inputs(model, made)).logits
    torch.testing.assert_close(logits(model, [made]), theirs, **CLOSE)


def test_rows_with_different_numbers_of_pictures_equal_each_prompt_alone(name):
    model = loaded(name)
    prompts, rows = mix_images(model), [0, 0, 3, 1, 2, 1]
    alone = [logits(model, [p])[0] for p in prompts]
    for row, r in zip(logits(model, prompts, rows), rows, strict=True):
        torch.testing.assert_close(row[-len(alone[r]) :], alone[r], **CLOSE)


def test_log_probs_of_the_hf_engine_are_the_trainers(name):
    made = shared_policy(name)
    engine = Hf().start(made)
    batch = PromptBatch(tuple(mix_images(made)))
    rollouts = engine.generate(batch, Sampling(n=3, max_tokens=6, seed=1))
    (packed,) = pack(rollouts, advantages(rollouts), updates=1, micro_tokens=700, max_tokens=6)
    for micro in packed.micro:
        with torch.no_grad():
            ours, _ = made.logprobs(micro)
        assert (ours - micro.sampling_logprobs)[micro.mask].abs().max() < 1e-5
    drawn = {t for group in rollouts.completions for c in group for t in c.token_ids}
    assert not drawn & set(made.banned.tolist())


# --------------------------------------------------------------------------------- on the disk


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_saved_and_loaded_again_it_is_the_same_to_the_bit(name, tied, tmp_path, monkeypatch):
    build = model_config(name).build
    build = build.model_copy(update={"text": {**build.text, "tie_word_embeddings": tied}})
    built = load_model(ModelConfig(build=build), CORPUS, seed=3)
    built.family.save(built.model, str(tmp_path), built.model.state_dict())
    built.processor.save_pretrained(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", None)

    read = load_model(ModelConfig(path=str(tmp_path)))

    assert type(read.family) is type(built.family)
    head, words = read.model.get_output_embeddings(), read.model.get_input_embeddings()
    assert (head.weight is words.weight) == tied
    ours, theirs = (ask_about_images(model, (300, 90), (64, 48)) for model in (built, read))
    assert ours.text == theirs.text and ours.encoded.ids == theirs.encoded.ids
    assert torch.equal(logits(built, [ours]), logits(read, [theirs]))
    ends = read.family.stop_token_ids(read.processor)
    assert read.model.generation_config.eos_token_id == list(ends)


# ------------------------------------------------------------------------------ towers, tokens


MISREAD = {"glm4v_moe": ("gate_proj", "up_proj", "down_proj")}
"""Layers whose adapters peft would take for those of fused experts."""


def test_every_parameter_is_in_exactly_one_tower_and_every_linear_layer_takes_an_adapter(name):
    model = loaded(name)
    towers, found = model.family.towers, set()
    for parameter, _ in model.model.named_parameters():
        owners = [tower for tower, prefixes in towers.items() if parameter.startswith(prefixes)]
        assert len(owners) == 1, parameter
        found.update(owners)
    assert found == set(towers)
    for tower, prefixes in towers.items():
        linear = {
            layer.rpartition(".")[2]
            for layer, module in model.model.named_modules()
            if isinstance(module, torch.nn.Linear) and f"{layer}.".startswith(prefixes)
        }
        linear -= {"lm_head", *MISREAD.get(name, ())}
        assert linear == set(model.family.lora_targets.get(tower, ()))
    for layers in model.family.decoder_layers:
        assert len(model.model.get_submodule(layers)) == 2


def test_placeholders_are_banned_and_the_end_of_a_turn_stops(name):
    model = loaded(name)
    banned = model.family.media_token_ids(model.processor)
    assert model.model.config.image_token_id in banned
    with_image, without = (
        ask_about_images(model, *sizes).encoded.ids for sizes in ([(300, 90)], [])
    )
    around = set(with_image) - set(without) - set(banned)
    # Line breaks, and the number of an image.
    assert not model.processor.tokenizer.decode(sorted(around)).strip("0 \n")
    ends = model.family.stop_token_ids(model.processor)
    assert len(ends) == len(set(ends)) >= 1 and not set(ends) & set(banned)
    assert ends[0] == model.processor.tokenizer.eos_token_id


def test_it_serves_its_model_type(name):
    family = plugins.load("family", name)
    assert type(family_of(loaded(name).model.config.model_type)) is family


def test_every_layer_that_takes_an_adapter_gets_one_and_nothing_else(name):
    bare = loaded(name)
    made = policy(name, lora=LoraConfig(rank=4, towers=[*bare.family.towers]))
    expected = {
        layer
        for layer, module in bare.model.named_modules()
        for tower, prefixes in bare.family.towers.items()
        if isinstance(module, torch.nn.Linear) and f"{layer}.".startswith(prefixes)
        if layer.rpartition(".")[2] in bare.family.lora_targets.get(tower, ())
    }
    assert {adapter.split(".lora_")[0] for adapter in made.named} == expected
    assert made.base.config.model_type == bare.model.config.model_type


# ------------------------------------------------------------------------------ shared forward


@pytest.mark.slow
@pytest.mark.parametrize("images", [(1, 2, 0, 1), (0, 0), (2,)], ids=str)
def test_the_shared_forward_equals_the_plain_one(sharing, images):
    made = shared_policy(sharing)
    assert made._can_share
    logprobs, gradient = gaps(made, micro_batch(made, images, (3, 2, 4, 1)[: len(images)]))
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        {"gradient_checkpointing": True},
        {"lora": LoraConfig(rank=4, towers=["vision", "projector", "language"])},
    ],
    ids=["checkpointing", "lora"],
)
def test_the_shared_forward_equals_the_plain_one_however_it_is_trained(sharing, training):
    torch.manual_seed(0)  # adapters begin at random
    made = with_live_adapter(policy(sharing, **training))
    logprobs, gradient = gaps(made, micro_batch(made))
    assert logprobs < LOGPROBS * (3 if sharing.startswith("qwen3_5") else 1)  # states round, too
    assert gradient < GRADIENT


@pytest.mark.slow
def test_low_memory_gives_the_gradient_of_the_plain_forward(sharing):
    gradients = []
    for setting in ("off", "low_memory"):
        made = policy(sharing)
        made.use_optimizer(
            made.optimizer, OptimizerConfig(shared_forward=setting, max_grad_norm=1e9)
        )
        batch = dataclasses.replace(packed(rollouts_of(made))[0], micro=(micro_batch(made),))
        made.update([batch], Grpo(), lr=0.0, progress=0.0)
        grads = (p.grad for p in made.trainable if p.grad is not None)
        gradients.append(torch.cat([grad.flatten() for grad in grads]))
    assert (gradients[1] - gradients[0]).norm() < GRADIENT * gradients[0].norm()


def test_a_family_without_a_shared_forward_says_so(name):
    made = shared_policy(name)
    if not made.family.shared:
        with pytest.raises(UserError, match="shared_forward"):
            made.use_optimizer(made.optimizer, OptimizerConfig(shared_forward="on"))
