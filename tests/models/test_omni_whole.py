"""Whole checkpoints of Qwen2.5-Omni and Qwen3-Omni, as published: the thinker is taken out of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from helpers.prompts import ask, image, logits
from helpers.small import audio, loaded
from helpers.videos import video
from vlmrl.config import ModelConfig
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model, load_processor
from vlmrl.policy.policy import Policy

TALKER_2_5 = {
    "embedding_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}
SPOKEN_2_5 = {
    "dit_config": {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 16,
        "emb_dim": 16,
        "num_embeds": 65,
        "mel_dim": 8,
        "enc_emb_dim": 8,
        "enc_dim": 8,
        "enc_channels": [8, 8, 8, 8, 16],
        "enc_attention_channels": 4,
        "enc_se_channels": 4,
    },
    "bigvgan_config": {"mel_dim": 8, "upsample_initial_channel": 64},
}
WIDTHS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
}
TALKER_3 = {
    "thinker_hidden_size": 64,
    "spatial_merge_size": 2,
    "text_config": {
        **WIDTHS,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    },
    "code_predictor_config": {**WIDTHS, "num_code_groups": 2},
}
SPOKEN_3 = {
    **{k: v for k, v in WIDTHS.items() if k not in ("head_dim", "vocab_size")},
    "codebook_size": 16,
    "num_quantizers": 2,
    "decoder_dim": 32,
    "upsample_rates": [2, 2],
    "upsampling_ratios": [2],
}
KINDS = {
    "qwen2_5_omni": ("Qwen2_5Omni", {"talker": TALKER_2_5, "token2wav": SPOKEN_2_5}),
    "qwen3_omni_moe": ("Qwen3OmniMoe", {"talker": TALKER_3, "code2wav": SPOKEN_3}),
}
"""Family -> what the names of its classes begin with, and the configs of the parts that speak."""


@pytest.fixture(scope="module", params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def kind(name: str, suffix: str) -> Any:
    return getattr(transformers, f"{KINDS[name][0]}{suffix}")


@pytest.fixture(scope="module")
def whole(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one that transformers wrote, with talker and voice, around the thinker of `loaded`."""
    folder = tmp_path_factory.mktemp("whole")
    thinker = loaded(name).model
    spoken = {f"{part}_config": fields for part, fields in KINDS[name][1].items()}
    config = kind(name, "Config")(thinker_config=thinker.config.to_dict(), **spoken)
    model = kind(name, "ForConditionalGeneration")(config)
    model.thinker.load_state_dict(thinker.state_dict())
    model.save_pretrained(folder, max_shard_size="1MB")
    loaded(name).processor.save_pretrained(folder)
    return folder


def names_in(folder: Path) -> set[str]:
    files = (safetensors.torch.load_file(file) for file in folder.glob("*.safetensors"))
    return {name for tensors in files for name in tensors}


def test_the_thinker_alone_is_taken_out_of_a_whole_checkpoint(name, whole, capfd):
    parts = {name.partition(".")[0] for name in names_in(whole)}
    assert parts == {"thinker", *KINDS[name][1]}
    assert json.loads((whole / "config.json").read_text())["model_type"] == name
    read = load_model(ModelConfig(path=str(whole)))
    assert "UNEXPECTED" not in capfd.readouterr().err  # of the weights left out no word
    made = loaded(name)
    assert type(read.family) is type(made.family)
    assert read.model.config.model_type == f"{name}_thinker"
    kept, given = read.model.state_dict(), made.model.state_dict()
    assert kept.keys() == given.keys() and all(torch.equal(kept[n], given[n]) for n in given)
    shown = (video(4, size=(84, 56)), audio(0.4), image((56, 84)))
    ours, theirs = ask(made, *shown), ask(read, *shown)
    assert ours.encoded.ids == theirs.encoded.ids
    assert torch.equal(logits(made, [ours]), logits(read, [theirs]))
    processor, family = load_processor(str(whole))
    assert type(family) is type(made.family)
    alone = family.encode(processor, ours.text, shown)
    assert alone.ids == ours.encoded.ids
    assert torch.equal(alone.position_ids, ours.encoded.position_ids)


def test_what_is_saved_is_the_thinker_and_goes_back_into_the_whole(name, whole, tmp_path):
    config = ModelConfig(path=str(whole))
    policy = Policy(*load_model(config), config)
    with torch.no_grad():
        policy.base.lm_head.weight.add_(0.5)
    policy.save(str(tmp_path))
    assert not any(name.startswith("thinker.") for name in names_in(tmp_path))
    thinker = kind(name, "ThinkerForConditionalGeneration").from_pretrained(tmp_path)
    again = load_model(ModelConfig(path=str(tmp_path))).model
    for path, weight in policy.base.state_dict().items():
        assert torch.equal(thinker.state_dict()[path], weight)
        assert torch.equal(again.state_dict()[path], weight)
    config = kind(name, "Config").from_pretrained(whole)
    back = kind(name, "ForConditionalGeneration")(config)
    back.thinker.load_state_dict(thinker.state_dict())


def test_a_whole_checkpoint_without_its_thinker_is_refused(whole, tmp_path):
    folder = tmp_path / "spoken"
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    files = [safetensors.torch.load_file(file) for file in whole.glob("*.safetensors")]
    kept = {n: t for tensors in files for n, t in tensors.items() if n.startswith("talker.")}
    safetensors.torch.save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"spoken' lacks \d+ weights"):
        load_model(ModelConfig(path=str(folder)))


@pytest.mark.parametrize("part", ["Talker", "Token2Wav"])
def test_parts_that_speak_are_refused(tmp_path, part):
    kind("qwen2_5_omni", f"{part}Config")().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="speaks and writes no text; use the whole Qwen"):
        load_model(ModelConfig(path=str(tmp_path)))
