"""Whole checkpoints of Qwen2.5-Omni, as they are published: the thinker is taken out of them."""

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers

from helpers.prompts import ask, image, logits
from helpers.small import audio, loaded
from helpers.videos import video
from vlmrl.config import ModelConfig
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy

NAME = "qwen2_5_omni"
TALKER = {
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
SPOKEN = {
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one that transformers wrote, with talker and voice, around the thinker of `loaded`."""
    folder = tmp_path_factory.mktemp("whole")
    thinker = loaded(NAME).model
    config = transformers.Qwen2_5OmniConfig(
        thinker_config=thinker.config.to_dict(), talker_config=TALKER, token2wav_config=SPOKEN
    )
    model = transformers.Qwen2_5OmniForConditionalGeneration(config)
    model.thinker.load_state_dict(thinker.state_dict())
    model.save_pretrained(folder, max_shard_size="1MB")
    loaded(NAME).processor.save_pretrained(folder)
    return folder


def names_in(folder: Path) -> set[str]:
    files = (safetensors.torch.load_file(file) for file in folder.glob("*.safetensors"))
    return {name for tensors in files for name in tensors}


def test_the_thinker_alone_is_taken_out_of_a_whole_checkpoint(whole, capfd):
    parts = {name.partition(".")[0] for name in names_in(whole)}
    assert parts == {"thinker", "talker", "token2wav"}
    assert json.loads((whole / "config.json").read_text())["model_type"] == "qwen2_5_omni"
    read = load_model(ModelConfig(path=str(whole)))
    assert "UNEXPECTED" not in capfd.readouterr().err  # of the weights left out no word
    made = loaded(NAME)
    assert type(read.family) is type(made.family)
    assert read.model.config.model_type == "qwen2_5_omni_thinker"
    kept, given = read.model.state_dict(), made.model.state_dict()
    assert kept.keys() == given.keys() and all(torch.equal(kept[n], given[n]) for n in given)
    shown = (video(4, size=(84, 56)), audio(0.4), image((56, 84)))
    ours, theirs = ask(made, *shown), ask(read, *shown)
    assert ours.encoded.ids == theirs.encoded.ids
    assert torch.equal(logits(made, [ours]), logits(read, [theirs]))


def test_what_is_saved_is_the_thinker_and_goes_back_into_the_whole(whole, tmp_path):
    config = ModelConfig(path=str(whole))
    policy = Policy(*load_model(config), config)
    with torch.no_grad():
        policy.base.lm_head.weight.add_(0.5)
    policy.save(str(tmp_path))
    assert not any(name.startswith("thinker.") for name in names_in(tmp_path))
    thinker = transformers.Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(tmp_path)
    again = load_model(ModelConfig(path=str(tmp_path))).model
    for name, weight in policy.base.state_dict().items():
        assert torch.equal(thinker.state_dict()[name], weight)
        assert torch.equal(again.state_dict()[name], weight)
    config = transformers.Qwen2_5OmniConfig.from_pretrained(whole)
    back = transformers.Qwen2_5OmniForConditionalGeneration(config)
    back.thinker.load_state_dict(thinker.state_dict())


def test_a_whole_checkpoint_without_its_thinker_is_refused(whole, tmp_path):
    folder = tmp_path / "spoken"
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    files = [safetensors.torch.load_file(file) for file in whole.glob("*.safetensors")]
    kept = {n: t for tensors in files for n, t in tensors.items() if n.startswith("talker.")}
    safetensors.torch.save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"spoken' lacks \d+ weights"):
        load_model(ModelConfig(path=str(folder)))


@pytest.mark.parametrize("part", ["talker", "token2wav"])
def test_parts_that_speak_are_refused(whole, tmp_path, part):
    config = transformers.Qwen2_5OmniConfig.from_pretrained(whole)
    getattr(config, f"{part}_config").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="speaks and writes no text; use the whole Qwen"):
        load_model(ModelConfig(path=str(tmp_path)))
