"""Small models: their tokenizer, building, saving and loading as real checkpoints are loaded."""

import json
import shutil
import socket

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.small import CORPUS, FAMILIES, loaded, model_config, prompt
from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.parts.families.small import builder

each_family = pytest.mark.parametrize("name", FAMILIES)


def logits(model, made):
    """Logits [T, V] of one prompt by the family's own forward."""
    encoded = made.encoded
    features = model.family.tower_features(model.model, [encoded])
    ids, positions = torch.tensor([encoded.ids]), encoded.position_ids[:, None]
    hidden = model.family.decode(model.model, ids, None, positions, features)
    return model.family.head(model.model)(hidden)[0]


@given(text=st.text())
def test_the_small_tokenizer_gives_back_any_text(text):
    tokenizer = loaded("qwen2_5_vl").processor.tokenizer
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_whole_numbers_lead_ins_and_tags_are_single_tokens_and_tags_survive_decoding():
    corpus = [f'<answer>{{"bbox_2d": [{a}, {a + 7}, 140, 999]}}</answer>' for a in range(0, 84, 7)]
    tokenizer = builder.train(corpus, 512)
    text = '<think>left</think><answer>{"bbox_2d": [7, 84, 140, 999]}</answer>'

    pieces = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])

    lead, numbers = '{"bbox_2d": [', ["7", "84", "140", "999"]
    assert [p for p in pieces if p[0].isdigit()] == numbers
    assert [p for p in pieces if p in (*builder.TAGS, lead)] == [
        "<think>", "</think>", "<answer>", lead, "</answer>",
    ]  # fmt: skip
    ids = tokenizer(text + "<|im_end|>")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(tokenizer) <= 512


def test_the_tokenizer_keeps_its_bound_when_a_corpus_has_more_numbers_than_room():
    tokenizer = builder.train([str(n) for n in range(1000)], 300)
    assert len(tokenizer) <= 300
    assert tokenizer.decode(tokenizer("0 17 999")["input_ids"]) == "0 17 999"


def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    first, again, other = (load_model(model_config(), CORPUS, seed=s).model for s in (1, 1, 2))

    assert torch.equal(torch.get_rng_state(), before)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)
    )
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


@each_family
def test_the_default_small_model_has_head_dim_32_and_under_a_million_parameters(name):
    model = load_model(ModelConfig(build=BuildConfig(family=name)), CORPUS).model
    attention = model.model.language_model.layers[0].self_attn
    assert attention.head_dim == 32
    assert sum(p.numel() for p in model.parameters()) < 1_000_000
    rope = model.config.text_config.rope_parameters
    assert sum(rope["mrope_section"]) == 16


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            {"text": {"hiden_size": 64}},
            r"model\.build\.text.*hiden_size.*did you mean 'hidden_size'",
        ),
        ({"vision": {"deph": 3}}, r"model\.build\.vision.*deph.*did you mean 'depth'"),
        ({"text": {"num_hidden_layers": "two"}}, r"model\.build.*num_hidden_layers"),
        ({"text": {"hidden_act": "sylu"}}, r"model\.build.*sylu"),
        ({"text": {"hidden_size": 100}}, r"hidden_size \(100\) must be a multiple of 2"),
        ({"text": {"num_attention_heads": 0}}, r"num_attention_heads \(0\)"),
        ({"text": {"num_key_value_heads": 2}}, "num_key_value_heads must divide"),
        ({"text": {"bos_token_id": 9}}, "has no field 'bos_token_id'"),
        (
            {"vision": {"num_heads": 3}},
            r"vision: hidden_size \(64\) must be .*num_heads \(3\)",
        ),
        ({"family": "qwen9"}, "no family is named 'qwen9'"),
    ],
)
def test_a_build_that_cannot_be_is_a_clear_error(build, message):
    with pytest.raises(UserError, match=message):
        load_model(ModelConfig(build=BuildConfig(**build)), CORPUS)


def forbid_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a local path must not reach for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def save(model, folder):
    model.model.save_pretrained(folder)
    model.processor.save_pretrained(folder)


@each_family
def test_a_saved_model_loads_offline_with_the_same_ids_and_logits(name, tmp_path, monkeypatch):
    built = load_model(model_config(name, min_pixels=2000, max_pixels=9000), CORPUS, seed=3)
    save(built, tmp_path / "runs" / "x")
    monkeypatch.chdir(tmp_path)
    forbid_network(monkeypatch)

    read = load_model(ModelConfig(path="runs/x", attention="eager"))

    assert type(read.family) is type(built.family)
    assert read.model.config._attn_implementation == "eager"
    size = read.processor.image_processor.size
    assert (size["shortest_edge"], size["longest_edge"]) == (2000, 9000)
    ours, theirs = prompt(built, 2), prompt(read, 2)
    assert ours.text == theirs.text and ours.encoded.ids == theirs.encoded.ids
    with torch.no_grad():
        torch.testing.assert_close(logits(built, ours), logits(read, theirs))
        save(built, tmp_path / "again")  # sdpa on both sides: not one bit may differ
        same = load_model(ModelConfig(path="again"))
        assert torch.equal(logits(built, ours), logits(same, ours))
    assert read.model.generation_config.eos_token_id == list(
        read.family.stop_token_ids(read.processor)
    )


@each_family
def test_a_model_with_tied_embeddings_is_saved_and_loaded_whole(name, tmp_path):
    text = {"tie_word_embeddings": True}
    built = load_model(ModelConfig(build=BuildConfig(family=name, text=text)), CORPUS)
    save(built, tmp_path)
    read = load_model(ModelConfig(path=str(tmp_path)))

    assert read.model.lm_head.weight is read.model.get_input_embeddings().weight
    made = prompt(built)
    with torch.no_grad():
        assert torch.equal(logits(built, made), logits(read, made))


def test_a_folder_in_the_hub_layout_of_before_transformers_5_loads(tmp_path):
    built = load_model(model_config("qwen2_vl"), CORPUS)
    save(built, tmp_path)
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "min_pixels": 3136,
                "max_pixels": 12845056,
                "patch_size": 14,
                "temporal_patch_size": 2,
                "merge_size": 2,
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
                "image_processor_type": "Qwen2VLImageProcessor",
                "processor_class": "Qwen2VLProcessor",
            }
        )
    )
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    template = system + (tmp_path / "chat_template.jinja").read_text()
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    (tmp_path / "chat_template.jinja").unlink()

    read = load_model(ModelConfig(path=str(tmp_path), max_pixels=40000))

    ours, theirs = prompt(built, 1), prompt(read, 1)
    assert theirs.text == system + ours.text
    with torch.no_grad():
        assert torch.equal(logits(built, theirs), logits(read, theirs))
    size = read.processor.image_processor.size
    assert (size["shortest_edge"], size["longest_edge"]) == (3136, 40000)


def test_a_checkpoint_that_cannot_be_used_is_a_clear_error(tmp_path, monkeypatch):
    forbid_network(monkeypatch)
    monkeypatch.chdir(tmp_path)
    save(load_model(model_config(), CORPUS), tmp_path / "good")

    def broken(name):
        return shutil.copytree(tmp_path / "good", tmp_path / "runs" / name)

    weights = broken("truncated") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    (broken("no_weights") / "model.safetensors").unlink()
    (broken("no_config") / "config.json").unlink()
    (broken("bad_config") / "config.json").write_text("{oops")
    config = json.loads((broken("other") / "config.json").read_text())
    (tmp_path / "runs/other/config.json").write_text(json.dumps({"model_type": "bert"}))
    config["text_config"]["num_hidden_layers"] = 3
    (broken("contradiction") / "config.json").write_text(json.dumps(config))
    del config["text_config"]["layer_types"]
    (broken("too_few") / "config.json").write_text(json.dumps(config))
    (broken("no_tokenizer") / "tokenizer.json").unlink()

    for path, message in {
        "runs/absent": "no such folder",
        "/absent/folder": "no such folder",
        "runs/no_config": "has no config.json",
        "runs/truncated": "truncated.*cannot be used",
        "runs/no_weights": "no_weights.*cannot be used.*safetensors",
        "runs/bad_config": "bad_config.*cannot be used.*JSON",
        "runs/other": "no family serves model type 'bert'.*qwen2_5_vl",
        "runs/contradiction": "contradiction.*cannot be used.*num_hidden_layers",
        "runs/too_few": r"lacks \d+ weights, e\.g\. model\.language_model\.layers\.2",
        "runs/no_tokenizer": "no_tokenizer.*cannot be used",
    }.items():
        with pytest.raises(UserError, match=message) as caught:
            load_model(ModelConfig(path=path))
        assert "\n" not in str(caught.value)


def test_pixel_budgets_and_attention_that_cannot_be_are_clear_errors():
    with pytest.raises(UserError, match=r"min_pixels 99999999 exceeds model\.max_pixels"):
        load_model(model_config(min_pixels=99999999), CORPUS)
    with pytest.raises(UserError, match=r"model\.attention.*quick"):
        load_model(model_config(attention="quick"), CORPUS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="weights leave the CPU")
def test_a_product_of_one_row_has_the_same_bits_by_built_and_by_loaded_weights(tmp_path):
    """Else what a resumed run samples parts from what the run without a break samples."""
    built = loaded("qwen2_5_vl")
    built.model.save_pretrained(tmp_path)
    built.processor.save_pretrained(tmp_path)
    again = load_model(ModelConfig(path=str(tmp_path))).model
    weights = dict(built.model.named_parameters())
    row = torch.Generator().manual_seed(0)
    for name, weight in again.named_parameters():
        assert weight.data_ptr() % 64 == 0, name
        if weight.ndim == 2:
            x = torch.randn(1, weight.shape[1], generator=row)
            linear = torch.nn.functional.linear
            assert torch.equal(linear(x, weight), linear(x, weights[name])), name
