"""Families against Hugging Face's own processors and forwards."""

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import DynamicCache

from helpers.small import CORPUS, FAMILIES, loaded, mixed_batch, model_config, prompt
from vlmrl import plugins
from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.errors import UserError
from vlmrl.models.base import family_of
from vlmrl.models.loading import load_model
from vlmrl.schema import Media, Sample, Truth

each_family = pytest.mark.parametrize("name", FAMILIES)


def hf_inputs(model, prompts):
    """What the HF processor makes of the same prompts, left-padded."""
    images = [image for p in prompts for image in p.images]
    return model.processor(
        text=[p.text for p in prompts],
        images=images or None,
        padding=True,
        padding_side="left",
        return_tensors="pt",
    )


def left_padded(prompts, pad_id):
    """Ids, mask and positions of some prompts, [B, T], [B, T], [3, B, T]."""
    longest = max(len(p.encoded.ids) for p in prompts)
    ids = torch.full((len(prompts), longest), pad_id)
    mask = torch.zeros(len(prompts), longest, dtype=torch.long)
    positions = torch.zeros(3, len(prompts), longest, dtype=torch.long)
    for row, p in enumerate(prompts):
        n = len(p.encoded.ids)
        ids[row, -n:] = torch.tensor(p.encoded.ids)
        mask[row, -n:] = 1
        positions[:, row, -n:] = p.encoded.position_ids
    return ids, mask, positions


def our_logits(model, prompts, rows=None):
    """Logits by towers once, spread, decode, head."""
    rows = list(range(len(prompts))) if rows is None else rows
    encoded = [p.encoded for p in prompts]
    features = model.family.tower_features(model.model, encoded)
    features = model.family.spread(features, encoded, rows)
    padded = left_padded([prompts[r] for r in rows], model.processor.tokenizer.pad_token_id)
    return model.family.head(model.model)(model.family.decode(model.model, *padded, features))


# ------------------------------------------------------------------------------------ prompts


@each_family
@pytest.mark.parametrize("images", [0, 1, 3])
def test_encode_equals_the_hf_processor_and_get_rope_index(name, images):
    model = loaded(name)
    made = prompt(model, number=1, images=images)

    theirs = hf_inputs(model, [made])

    assert list(made.encoded.ids) == theirs["input_ids"][0].tolist()
    assert made.encoded.compact_ids.count(model.processor.image_token_id) == images
    if images:
        tensors = made.encoded.tensors
        assert torch.equal(tensors["pixel_values"], theirs["pixel_values"])
        assert torch.equal(tensors["image_grid_thw"], theirs["image_grid_thw"])
        positions, delta = model.model.model.get_rope_index(
            theirs["input_ids"],
            mm_token_type_ids=theirs["mm_token_type_ids"],
            image_grid_thw=theirs["image_grid_thw"],
        )
        assert torch.equal(made.encoded.position_ids, positions[:, 0])
        assert made.encoded.next_position == len(made.encoded.ids) + delta.item()
    else:
        assert not made.encoded.tensors
        assert made.encoded.position_ids.tolist() == [list(range(len(made.encoded.ids)))] * 3


@pytest.mark.slow
@each_family
@settings(max_examples=25, deadline=None)
@given(
    width=st.integers(1, 400),
    height=st.integers(1, 400),
    budget=st.sampled_from([(1, 2000), (3136, 1003520), (40000, 50000)]),
)
def test_image_tokens_and_resized_size_are_those_of_the_processor(name, width, height, budget):
    model = load_model(
        model_config(name, min_pixels=budget[0], max_pixels=budget[1]), CORPUS[:1], seed=0
    )
    image_processor = model.processor.image_processor
    picture = Image.new("RGB", (width, height))
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(UserError, match=f"{width}x{height}"):
            model.family.image_tokens(model.processor, width, height)
        with pytest.raises(UserError, match=f"{width}x{height}"):
            model.family.frame(model.processor, picture)
        return

    grid = image_processor(images=[picture], return_tensors="pt")["image_grid_thw"][0].tolist()

    tokens = model.family.image_tokens(model.processor, width, height)
    assert tokens == grid[0] * grid[1] * grid[2] // image_processor.merge_size**2
    frame = model.family.frame(model.processor, picture)
    assert (frame.width, frame.height) == (width, height)
    assert frame.resized_height == grid[1] * image_processor.patch_size
    assert frame.resized_width == grid[2] * image_processor.patch_size


@each_family
def test_parts_are_shown_in_order_and_the_instruction_ends_the_last_text(name):
    model = loaded(name)
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    picture = Media("image", data=b"-")
    sample = Sample("s", "t", ("Is this", picture, "or this", picture), Truth())

    text = model.family.render(model.processor, sample, "Answer briefly.")
    bare = model.family.render(model.processor, Sample("s", "t", (picture,), Truth()), "Describe.")

    assert text == (
        f"<|im_start|>user\nIs this{image}or this\nAnswer briefly.{image}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert f"{image}Describe.<|im_end|>" in bare


def test_what_a_family_cannot_show_is_a_clear_error():
    model = loaded("qwen2_5_vl")
    video = Sample("row-7", "t", (Media("audio", path="a.wav"), "What is said?"), Truth())
    forged = Sample("row-8", "t", ("Look: <|image_pad|>",), Truth())
    thin = Sample("row-9", "t", (Media("image", data=b"-"), "What?"), Truth())

    with pytest.raises(UserError, match=r"row-7.*a\.wav is an audio"):
        make_prompt(video, [Image.new("RGB", (28, 28))], model.family, model.processor)
    with pytest.raises(UserError, match=r"row-8.*<\|image_pad\|>"):
        make_prompt(forged, [], model.family, model.processor)
    with pytest.raises(UserError, match=r"row-7.*0 decoded for 1 media"):
        make_prompt(video, [], model.family, model.processor)
    with pytest.raises(UserError, match=r"row-9.*900x3 pixels is refused.*200"):
        make_prompt(thin, [Image.new("RGB", (900, 3))], model.family, model.processor)


def test_the_frame_tells_the_first_image_and_the_space_of_the_family():
    sizes = {}
    for name in FAMILIES:
        model = loaded(name)
        sample = Sample("s", "t", (Media("image", data=b"-"), "Where?"), Truth())
        picture = Image.new("RGB", (100, 50))
        f = make_prompt(sample, [picture], model.family, model.processor).frame
        sizes[name] = (f.space, f.width, f.height, f.resized_width, f.resized_height)
    assert sizes == {
        "qwen2_vl": ("norm1000", 100, 50, 112, 56),
        "qwen2_5_vl": ("resized", 100, 50, 112, 56),
        "qwen3_vl": ("norm1000", 100, 50, 96, 64),
    }


# ------------------------------------------------------------------------------------ forward


@each_family
def test_logits_of_a_left_padded_mixed_batch_equal_the_hf_forward(name):
    model = loaded(name)
    prompts = mixed_batch(model).prompts
    # HF's own forward leaves its rope_deltas behind in the model: ours must not see them.
    with torch.no_grad():
        theirs = model.model(**hf_inputs(model, prompts)).logits
        ours = our_logits(model, prompts)

    for row, p in enumerate(prompts):
        n = len(p.encoded.ids)
        torch.testing.assert_close(ours[row, -n:], theirs[row, -n:], atol=1e-5, rtol=0)


@each_family
@pytest.mark.parametrize("images", [1, 2])
def test_logits_of_a_single_prompt_equal_the_hf_forward(name, images):
    model = loaded(name)
    made = prompt(model, images=images)
    with torch.no_grad():
        theirs = model.model(**hf_inputs(model, [made])).logits
        ours = our_logits(model, [made])

    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@each_family
def test_a_batch_of_text_alone_needs_no_features(name):
    model = loaded(name)
    prompts = [prompt(model, i, images=0, text="red " * (i + 1)) for i in range(2)]
    with torch.no_grad():
        assert model.family.tower_features(model.model, [p.encoded for p in prompts]) is None
        ours = our_logits(model, prompts)
        theirs = [model.model(**hf_inputs(model, [p])).logits[0] for p in prompts]

    for row, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(row[-len(other) :], other, atol=1e-5, rtol=0)


def test_features_that_do_not_fit_the_placeholders_are_refused():
    model = loaded("qwen2_5_vl")
    one, two = (prompt(model, images=n).encoded for n in (1, 2))
    features = model.family.tower_features(model.model, [two])
    with pytest.raises(ValueError, match="media features for"):
        ids, positions = torch.tensor([one.ids]), one.position_ids[:, None]
        model.family.decode(model.model, ids, None, positions, features)


@each_family
def test_towers_run_once_and_their_gradient_is_that_of_images_repeated_per_row(name):
    model = loaded(name)
    prompts = mixed_batch(model).prompts
    rows = [0, 0, 1, 1, 1, 2, 3]
    repeated = [prompts[r] for r in rows]
    weights = torch.randn(len(rows), generator=torch.Generator().manual_seed(0))
    names, parameters = zip(*model.model.named_parameters(), strict=True)
    patches = []
    hook = model.model.model.visual.register_forward_hook(
        lambda module, args, kwargs, out: patches.append(len(args[0])), with_kwargs=True
    )

    def gradients(logits):
        return torch.autograd.grad((logits[:, -1].amax(-1) * weights).sum(), parameters)

    ours = gradients(our_logits(model, prompts, rows))
    theirs = gradients(model.model(**hf_inputs(model, repeated)).logits)
    hook.remove()

    assert patches == [
        sum(len(p.encoded.tensors["pixel_values"]) for p in shown if p.images)
        for shown in (prompts, repeated)
    ]
    assert all(g.abs().sum() > 0 for n, g in zip(names, ours, strict=True) if "patch_embed" in n)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


def test_every_deepstack_level_is_spread():
    vision = {"depth": 3, "deepstack_visual_indexes": [0, 1]}
    model = load_model(
        ModelConfig(build=BuildConfig(family="qwen3_vl", vision=vision)), CORPUS, seed=0
    )
    prompts = mixed_batch(model).prompts
    with torch.no_grad():
        ours = our_logits(model, prompts, rows=[3, 0])
        theirs = model.model(**hf_inputs(model, [prompts[3], prompts[0]])).logits

    for row, r in enumerate([3, 0]):
        n = len(prompts[r].encoded.ids)
        torch.testing.assert_close(ours[row, -n:], theirs[row, -n:], atol=1e-5, rtol=0)


@each_family
def test_decoding_token_by_token_with_a_cache_equals_the_full_forward(name):
    model = loaded(name)
    prompts = mixed_batch(model).prompts
    encoded = [p.encoded for p in prompts]
    ids, mask, positions = left_padded(prompts, model.processor.tokenizer.pad_token_id)
    more = torch.randint(0, 256, (len(prompts), 4), generator=torch.Generator().manual_seed(1))
    start = torch.tensor([p.next_position for p in encoded])
    later = (start[:, None] + torch.arange(4)).expand(3, -1, -1)
    head = model.family.head(model.model)
    with torch.no_grad():
        features = model.family.tower_features(model.model, encoded)
        features = model.family.spread(features, encoded, range(len(encoded)))
        full = model.family.decode(
            model.model,
            torch.cat([ids, more], 1),
            torch.cat([mask, torch.ones_like(more)], 1),
            torch.cat([positions, later], 2),
            features,
        )
        cache = DynamicCache(config=model.model.config)
        steps = [model.family.decode(model.model, ids, mask, positions, features, cache)[:, -1:]]
        for t in range(4):
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            steps.append(
                model.family.decode(
                    model.model, more[:, t : t + 1], mask, later[:, :, t : t + 1], None, cache
                )
            )

    assert cache.get_seq_length() == ids.shape[1] + 4
    torch.testing.assert_close(head(torch.cat(steps, 1)), head(full[:, -5:]), atol=1e-5, rtol=0)


# ------------------------------------------------------------------------- towers and tokens


@each_family
def test_every_parameter_is_in_exactly_one_tower(name):
    model = loaded(name)
    towers = model.family.towers
    found = set()
    for parameter, _ in model.model.named_parameters():
        owners = [tower for tower, prefixes in towers.items() if parameter.startswith(prefixes)]
        assert len(owners) == 1, parameter
        found.update(owners)
    assert found == set(towers) == {"vision", "projector", "language"}


@each_family
def test_lora_targets_name_every_linear_layer_but_the_head(name):
    model = loaded(name)
    for tower, prefixes in model.family.towers.items():
        linear = {
            layer.rpartition(".")[2]
            for layer, module in model.model.named_modules()
            if isinstance(module, torch.nn.Linear) and layer.startswith(prefixes)
        }
        assert linear - {"lm_head"} == set(model.family.lora_targets[tower])


@each_family
def test_media_tokens_and_stop_tokens_are_those_of_the_chat_format(name):
    model = loaded(name)
    tokens = model.processor.tokenizer.convert_ids_to_tokens
    assert {"<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"} <= set(
        tokens(model.family.media_token_ids(model.processor))
    )
    assert tokens(model.family.stop_token_ids(model.processor)) == ["<|im_end|>", "<|endoftext|>"]
    for layers in model.family.decoder_layers:
        assert len(model.model.get_submodule(layers)) == 2


def test_each_shipped_family_serves_its_model_type_and_others_are_refused():
    assert set(plugins.names("family")) >= set(FAMILIES)
    for name in FAMILIES:
        assert type(family_of(name)) is plugins.load("family", name)
        assert name in transformers.CONFIG_MAPPING
    with pytest.raises(UserError, match="did you mean 'qwen2_5_vl'"):
        family_of("qwen2_5_v")
