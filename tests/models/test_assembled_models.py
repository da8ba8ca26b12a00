"""`vlmrl model assemble`: plain transformers loads what it writes and computes the same."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from typer.testing import CliRunner

from helpers.language_models import TURN, says, source
from vlmrl.cli.app import app
from vlmrl.config import ModelConfig
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.schema.media import Audio

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "image_size": 56}


def assemble(out, *keys):
    result = CliRunner().invoke(app, ["model", "assemble", str(out), *keys], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def siglip(folder):
    config = transformers.SiglipVisionConfig(**SMALL, num_attention_heads=2, patch_size=14)
    transformers.SiglipVisionModel(config).save_pretrained(folder)


def dinov2(folder):
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=3, image_size=84
    )
    transformers.Dinov2Model(config).save_pretrained(folder)


def medium_of(kind):
    """Noise as a picture or as a second of sound, and the argument of a processor that takes it."""
    rng = np.random.default_rng(0)
    if kind == "image":
        image = Image.fromarray(rng.integers(0, 256, (60, 70, 3), np.uint8))
        return image, {"images": [image]}
    wave = rng.normal(size=16000).astype(np.float32) / 4
    return Audio(wave, 16000), {"audio": [wave], "sampling_rate": 16000}


@pytest.mark.parametrize(
    ("family", "eyes"),
    [
        ("internvl", None),
        ("internvl", dinov2),
        ("qwen2_audio", None),
        ("llava_onevision", siglip),
    ],
)
def test_plain_transformers_computes_the_same(tmp_path, family, eyes):
    theirs = source(tmp_path / "lm", tie_word_embeddings=True)
    keys = [f"family={family}", f"weights.language={tmp_path / 'lm'}"]
    if eyes is not None:
        eyes(tmp_path / "eyes")
        keys.append(f"weights.vision={tmp_path / 'eyes'}")
    output = assemble(tmp_path / "out", *keys)

    assert "projector: " in output and "random with seed 0, scaled" in output
    assert (tmp_path / "out/README.md").read_text().endswith(output)
    plain = transformers.AutoModelForMultimodalLM.from_pretrained(tmp_path / "out").eval()
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "out")
    ids = processor.tokenizer(TURN)["input_ids"]
    assert torch.equal(says(plain, ids)[:, :320], says(theirs, ids))
    model, ours, part = load_model(ModelConfig(path=str(tmp_path / "out")))
    kind = part.kinds[0]
    medium, argument = medium_of(kind)
    turn = [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": "Where?"}]}]
    text = processor.apply_chat_template(turn, add_generation_prompt=True)
    inputs = processor(text=text, return_tensors="pt", **argument)
    encoded = part.encode(ours, text, [medium])
    assert inputs["input_ids"][0].tolist() == [*encoded.ids]
    row = torch.tensor([encoded.ids])
    with torch.no_grad():
        seen = part.spread(part.run_towers(model, [encoded]), [encoded], [0])
        hidden = part.decode(model, row, None, encoded.position_ids[:, None], seen)
        torch.testing.assert_close(part.head(model)(hidden), plain(**inputs).logits)


def test_sizes_alone_are_written_without_weights(tmp_path):
    for folder, config in {
        "siglip": transformers.SiglipVisionConfig(
            hidden_size=1152,
            intermediate_size=4304,
            num_hidden_layers=27,
            num_attention_heads=16,
            image_size=384,
            patch_size=14,
        ),
        "qwen": transformers.Qwen2Config(
            hidden_size=1536,
            intermediate_size=8960,
            num_hidden_layers=28,
            num_attention_heads=12,
            num_key_value_heads=2,
            vocab_size=151936,
            tie_word_embeddings=True,
        ),
    }.items():
        config.save_pretrained(tmp_path / folder)
    keys = [f"weights.vision={tmp_path / 'siglip'}", f"weights.language={tmp_path / 'qwen'}"]
    output = assemble(tmp_path / "out", "family=llava_onevision", *keys, "--sizes-only")

    assert "language: 1543.7 M weights" in output  # as published for Qwen2.5-1.5B
    assert "stand-in" in output and not [*(tmp_path / "out").glob("*.safetensors")]
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert config.image_grid_pinpoints[-1] == [768, 768]
    with torch.device("meta"):
        whole = transformers.AutoModelForMultimodalLM.from_config(config)
    assert whole.model.language_model.embed_tokens.weight.shape == (151936, 1536)
    with pytest.raises(UserError, match="has no tokenizer"):
        assemble(tmp_path / "other", "family=llava_onevision", keys[1])


def test_mistakes_are_one_line(tmp_path):
    with pytest.raises(UserError, match="name the language model"):
        assemble(tmp_path / "out", "family=internvl")
    with pytest.raises(UserError, match=r"weights.eyes"):
        assemble(tmp_path / "out", "weights.eyes=x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/config.json").write_text("{}")
    with pytest.raises(UserError, match="got one that has files"):
        assemble(tmp_path / "out", "weights.language=smollm2_135m")
