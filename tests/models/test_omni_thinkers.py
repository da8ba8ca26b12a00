"""The thinkers of Qwen2.5-Omni and Qwen3-Omni: images, videos and audio against Hugging Face's own code."""

import dataclasses
import functools
import re

import pytest
import torch

from helpers.prompts import ask, hf_inputs, image, logits
from helpers.shared_forward import GRADIENT, LOGPROBS, gaps, micro_batch
from helpers.small import CORPUS, audio, loaded, model_config, policy
from helpers.videos import video
from vlmrl.config import ModelConfig
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.monitoring.run_checks import measure_parity
from vlmrl.schema import PromptBatch

NAMES = ("qwen2_5_omni", "qwen3_omni_moe")
each_family = pytest.mark.parametrize("name", NAMES)


@functools.cache
def mixed(name):
    """All kinds, alone and together; none."""
    model = loaded(name)
    return [
        ask(model, image((84, 56))),
        ask(model, audio(0.5)),
        ask(model, text="red red"),
        ask(model, video(6, size=(84, 56))),
        ask(model, audio(1.3), image((56, 84)), audio(0.4), text="Same?"),
        ask(model, video(4, size=(84, 56)), image((84, 84)), audio(2.1)),
        ask(model, video(8, size=(84, 56), fps=3.0), image((56, 84)), audio(1.0)),
    ]


@each_family
def test_ids_tensors_and_positions_equal_those_of_transformers(name):
    model = loaded(name)
    for made in [*mixed(name), ask(model, video(8, size=(84, 56), fps=4.0))]:
        theirs = hf_inputs(model, made)
        assert list(made.encoded.ids) == theirs["input_ids"][0].tolist()
        for key, tensor in made.encoded.tensors.items():
            assert torch.equal(tensor, theirs[key])
        sounds = theirs.get("feature_attention_mask")
        positions, delta = model.model.get_rope_index(
            theirs["input_ids"],
            image_grid_thw=theirs.get("image_grid_thw"),
            video_grid_thw=theirs.get("video_grid_thw"),
            attention_mask=theirs["attention_mask"],
            audio_seqlens=None if sounds is None else sounds.sum(-1),
            second_per_grids=theirs.get("video_second_per_grid"),
        )
        # Fractions of Qwen3-Omni are rounded at other places.
        torch.testing.assert_close(made.encoded.position_ids, positions[:, 0], atol=1e-5, rtol=0)
        following = len(made.encoded.ids) + delta.item()
        assert made.encoded.next_position == pytest.approx(following, abs=1e-5)


@each_family
def test_logits_equal_the_hf_forward_alone_and_in_rows_that_repeat_and_skip(name):
    model, prompts = loaded(name), mixed(name)
    with torch.no_grad():
        alone = [model.model(**hf_inputs(model, p)).logits[0] for p in prompts]
    rows = [5, 0, 4, 4, 2, 1, 3, 6]
    for row, r in zip(logits(model, prompts, rows), rows, strict=True):
        torch.testing.assert_close(row[-len(alone[r]) :], alone[r], atol=1e-5, rtol=0)


def with_media(made):
    """A micro-batch whose groups show, hear, and watch."""
    micro = micro_batch(made)
    shown = (
        ask(made, image((84, 56))),
        ask(made, audio(0.5), video(4, size=(84, 56), fps=3.0)),
        ask(made, text="red"),
        ask(made, audio(1.3), image((56, 84)), audio(0.4)),
    )
    return dataclasses.replace(micro, prompts=shown)


@each_family
@pytest.mark.parametrize("training", [{}, {"gradient_checkpointing": True}], ids=str)
def test_the_shared_forward_equals_the_plain_one(name, training):
    made = policy(name, **training)
    assert made._can_share
    logprobs, gradient = gaps(made, with_media(made))
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


@each_family
def test_log_probs_of_the_hf_engine_are_the_trainers(name):
    """Prompts of the engine are padded on the left, rows of the trainer on the right."""
    made = policy(name)
    engine = Hf().start(made)
    assert measure_parity(engine, made, mixed(name)).max_abs < 1e-5
    assert len(made.banned) == 7


@each_family
def test_every_parameter_is_in_one_tower_and_every_linear_layer_takes_an_adapter(name):
    model = loaded(name)
    towers = model.family.towers
    for path, _ in model.model.named_parameters():
        assert sum(path.startswith(prefixes) for prefixes in towers.values()) == 1, path
    for tower, prefixes in towers.items():
        linear = {
            path.rpartition(".")[2]
            for path, module in model.model.named_modules()
            if isinstance(module, torch.nn.Linear) and f"{path}.".startswith(prefixes)
        }
        assert linear - {"lm_head"} == set(model.family.lora_targets[tower])
    for layers in model.family.decoder_layers:
        assert len(model.model.get_submodule(layers)) == 2


@each_family
@pytest.mark.parametrize("tied", [False, True])
def test_saved_and_loaded_again_it_is_the_same_to_the_bit(name, tied, tmp_path):
    build = model_config(name).build
    build = build.model_copy(update={"text": {**build.text, "tie_word_embeddings": tied}})
    built = load_model(ModelConfig(build=build), CORPUS, seed=3)
    built.model.save_pretrained(tmp_path)
    built.processor.save_pretrained(tmp_path)
    read = load_model(ModelConfig(path=str(tmp_path)))
    head, words = read.model.get_output_embeddings(), read.model.get_input_embeddings()
    assert (head.weight is words.weight) == tied
    shown = (video(4, size=(84, 56)), audio(0.4), image((56, 84)))
    ours, theirs = (ask(model, *shown) for model in (built, read))
    assert ours.encoded.ids == theirs.encoded.ids
    assert torch.equal(logits(built, [ours]), logits(read, [theirs]))


@each_family
def test_forged_and_missing_media_are_clear_errors(name):
    model = loaded(name)
    token = model.processor.audio_token
    with pytest.raises(UserError, match=rf"row-1.*media token {re.escape(token)}"):
        ask(model, text=f"Hear {token}")
    made = ask(model, audio(1))
    with pytest.raises(UserError, match="1 audio placeholders for 0 audios"):
        model.family.encode(model.processor, made.text, [])


def test_audio_of_a_length_that_the_tower_does_not_take_is_a_clear_error():
    with pytest.raises(UserError, match=r"row-1.*at most 30 s, got 31\.00 s"):
        ask(loaded("qwen2_5_omni"), audio(31))
    with pytest.raises(UserError, match=r"row-1.*more than 200 samples, got 160"):
        ask(loaded("qwen3_omni_moe"), audio(0.01))


@each_family
def test_greedy_tokens_are_those_of_one_prompt_at_a_time(name):
    made = policy(name)
    engine = Hf().start(made)
    sampling = Sampling(n=1, max_tokens=6, greedy=True)
    together = engine.generate(PromptBatch(tuple(mixed(name))), sampling).completions
    for prompt, (completion,) in zip(mixed(name), together, strict=True):
        ((alone,),) = engine.generate(PromptBatch((prompt,)), sampling).completions
        assert alone.token_ids == completion.token_ids
