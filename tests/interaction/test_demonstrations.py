"""Demonstrations of several turns: their calls are run, and the loss is that of what they write alone."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from helpers.driving import Shows
from helpers.small import loaded, policy
from vlmrl import cli, plugins
from vlmrl.config import SftConfig, SourceConfig
from vlmrl.data.loader import Loader
from vlmrl.data.prompt import make_prompt
from vlmrl.data.quarantine import Quarantine
from vlmrl.data.source import open_source
from vlmrl.errors import UserError
from vlmrl.interaction.tool import Shown
from vlmrl.interaction.tools import AskedCall, Toolbox, ToolOutcome, parse_calls
from vlmrl.interaction.worlds import Worlds
from vlmrl.parts.tools.crop import Crop
from vlmrl.schema import (
    Box,
    Call,
    Demo,
    DemoTurn,
    Frame,
    Media,
    Point,
    PromptBatch,
    Sample,
    Span,
    Truth,
)
from vlmrl.training import sft
from vlmrl.training.demonstrated_calls import TAGS, play
from vlmrl.training.sft import Writer, demonstrating
from vlmrl.truths import prompting

LOOK = DemoTurn("crop", {"bbox_2d": Box(0.0, 0.0, 0.5, 0.5)}, thought="top left")
CLOSER = DemoTurn("crop", {"bbox_2d": Box(0.5, 0.0, 1.0, 1.0), "image": 2})


class Cuts(Shows):
    """A stand-in of a toolbox: shows what `Crop` returns, in this process."""

    def __init__(self, outcome: ToolOutcome | None = None) -> None:
        super().__init__(outcome)
        self.asked: list[AskedCall] = []

    def run_all(self, turns):
        found = []
        for turn in turns:
            self.asked += turn.calls
            (call,) = turn.calls
            shown = self.outcome or Crop().call(call.name, call.arguments, turn.view)
            found.append(_shown(call, shown) if isinstance(shown, Shown) else shown)
        return found


def _shown(call: AskedCall, shown: Shown) -> ToolOutcome:
    made = Call(call.name, call.arguments, "ok", box=shown.box, image=shown.original)
    return ToolOutcome(("Image:", shown.medium), (shown,), (made,))


@pytest.fixture(scope="module")
def made():
    return policy()


def image(width=112, height=84):
    return Image.effect_noise((width, height), 80).convert("RGB")


def prompt_of(made, *turns, number=0, text="7", weight=1.0):
    demo = Demo(text=text, turns=turns)
    parts = (Media("image", data=b"-"), "What is it?" + " Well?" * number)
    sample = Sample(f"row {number}", "test", parts, Truth(text=("7",)), "answer_only", demo, weight)
    return make_prompt(sample, [image()], made.family, made.processor)


def played(made, runner, *turns, **fields):
    prompt = prompt_of(made, *turns, **fields)
    if not turns:
        return prompt
    return replace(prompt, demonstrated=play(Writer(made.family, made.processor), prompt, runner))


def demonstrated(made, *prompts):
    rollouts = sft.demonstrations(made, PromptBatch(prompts), 0.0, seed=0)
    return [group[0] for group in rollouts.completions]


def test_a_call_is_written_in_the_space_of_the_image_that_it_names(made):
    runner = Cuts()
    prompt = played(made, runner, LOOK, CLOSER)
    first, second = runner.asked
    assert first == AskedCall("crop", {"bbox_2d": [0, 0, 56, 42]})
    shown = prompt.demonstrated.segments[1].media[0]
    assert shown.size == (56, 42)
    frame = made.family.frame(made.processor, shown)
    width, height = frame.resized_width, frame.resized_height
    assert second.arguments == {"bbox_2d": [width // 2, 0, width, height], "image": 2}
    (said,) = demonstrated(made, prompt)
    boxes = [call.box for turn in said.turns for call in turn.calls]
    assert boxes[0] == Box(0, 0, 0.5, 0.5)
    assert boxes[1].xyxy == pytest.approx((0.25, 0, 0.5, 0.5))  # a crop of a crop, in the original


def test_what_is_written_can_be_read_as_a_call():
    frame = Frame(200, 100, space="pixel")
    given = {"at": Point(0.5, 0.5), "part": Span(1.0, 2.5), "how": "slowly", "box": LOOK}
    text = prompting.write_call(DemoTurn("see", {**given, "box": Box(0, 0, 1, 1)}, "so"), frame)
    (call,) = parse_calls(text)
    assert text.startswith("<think>so</think><tool_call>")
    assert call.arguments == {"at": [100, 50], "part": [1.0, 2.5], "how": "slowly"} | {
        "box": [0, 0, 200, 100]
    }


TEXTS = st.text() | st.sampled_from(
    [
        "</tool_call>",
        "<tool_call>{}</tool_call>",
        "</think>",
        "<think>",
        "\\u003c",
        "名前",
        "e\u0301",
    ]
)
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
JSON = st.recursive(
    VALUES | TEXTS, lambda of: st.lists(of) | st.dictionaries(TEXTS, of), max_leaves=5
)


@given(
    name=TEXTS.filter(lambda name: 0 < len(name) <= 80),
    given_=st.dictionaries(TEXTS, JSON, max_size=3),
    thought=st.sampled_from(["", "so", "<tool_call>", "</think>"]),
    space=st.sampled_from(["", "\n"]),
)
def test_any_call_is_read_as_it_is_written(name, given_, thought, space):
    turn = DemoTurn(name, given_, thought)
    assert parse_calls(prompting.write_call(turn, Frame(), space)) == (AskedCall(name, given_),)


@pytest.mark.slow
@pytest.mark.parametrize("family", plugins.names("family"))
def test_every_family_reads_its_own_tokens_of_a_call(family):
    loaded_ = loaded(family)
    writer, tokenizer = Writer(loaded_.family, loaded_.processor), loaded_.processor.tokenizer
    special = [str(t) for t in tokenizer.added_tokens_decoder.values()]
    media = loaded_.family.media_tokens
    told = [t for t in special if not any(token in t for token in media)]
    for values in (["é 名前 😀", " x ", "\n\t"], ["</tool_call>", "</think>", '"}}'], told):
        given_ = {"at": [0, 28, 56.5], "how": values, "a b": {"c": None}}
        text = prompting.write_call(DemoTurn("crop", given_, "so"), Frame(), writer.call_space)
        ids = writer.encode(Sample("1", "s", (), Truth()), text, TAGS)
        assert ids[-1] == writer.end and writer.end not in ids[:-1]
        assert parse_calls(tokenizer.decode(ids[:-1])) == (AskedCall("crop", given_),)


def test_the_turns_are_what_a_rollout_would_have_and_the_answer_is_the_last(made):
    prompt = played(made, Cuts(), LOOK, CLOSER)
    (said,) = demonstrated(made, prompt)
    assert [s.of_policy for s in said.segments] == [True, False, True, False, True]
    assert (said.text, said.answer) == ("<answer>7</answer>", "7")
    assert said.turns[0].text.startswith("<think>top left</think><tool_call>")
    assert all(turn.token_ids[-1] == made.stop_ids[0] for turn in said.turns)
    written = [i for turn in said.turns for i in turn.token_ids]
    assert said.token_ids == tuple(written)
    assert made.tokenizer.decode(said.segments[1].token_ids).startswith("\n<|im_start|>user\n")


def test_the_loss_is_that_of_the_whole_sequence_token_by_token(made):
    """Against the HF model itself, row by row, on all ids and images joined."""
    prompts = [
        played(made, Cuts(), LOOK, CLOSER, number=0, weight=2.0),
        played(made, Cuts(), number=1),
        played(made, Cuts(), LOOK, number=2, text="8"),
    ]
    total, count = 0.0, 0
    for prompt, said in zip(prompts, demonstrated(made, *prompts), strict=True):
        nll, tokens = plain_nll(made, prompt, said)
        total, count = total + prompt.sample.weight * nll, count + tokens
    fresh = policy()
    config = SftConfig(warmup_steps=0, lr=1e-3)
    found = sft.step(fresh, PromptBatch(tuple(prompts)), config, sft.Stage(), 10**6, seed=0)
    assert found["loss"] == pytest.approx(total / count, rel=1e-5)


def plain_nll(made, prompt, said, last_only=False):
    """-log p of what the policy wrote, or of its last turn, summed, and the number of tokens."""
    stretches = [(prompt.encoded.compact_ids, False)]
    segments = said.segments or said.turns
    scored = segments[-1:] if last_only else segments
    stretches += [(s.token_ids, s.of_policy and s in scored) for s in segments]
    media = [*prompt.media, *(m for segment in segments for m in segment.media)]
    text = "".join(made.tokenizer.decode(ids) for ids, _ in stretches)
    whole = made.processor(text=[text], images=media, return_tensors="pt")
    compact = [i for ids, _ in stretches for i in ids]
    assert made.tokenizer(text)["input_ids"] == compact
    written = [own for ids, own in stretches for _ in ids]
    pad = made.processor.image_token_id
    ids = whole["input_ids"][0]
    counts = iter((whole["image_grid_thw"].prod(-1) // 4).tolist())
    carries = [
        c for i, own in zip(compact, written, strict=True) for c in spread(i, own, pad, counts)
    ]
    with torch.no_grad():
        logits = made.base(**whole).logits[0].log_softmax(-1)
    places = [(place, i) for place, i in enumerate(ids.tolist()) if carries[place]]
    return -sum(float(logits[place - 1, i]) for place, i in places), len(places)


def spread(token, own, pad, counts):
    return [False] * next(counts) if token == pad else [own]


def test_what_rows_state_is_shown_as_a_tool_shows_it_and_the_loss_is_of_what_is_written(made):
    """Against the HF model itself, on ids and images joined: the calls, their texts, and the answer."""
    cut = image(56, 42)
    stated = DemoTurn(
        "crop",
        {"bbox_2d": [0, 0, 56, 42]},
        thought="top left",
        text="Look.",
        also=(("zoom", {"factor": 2}),),
        returned=("It is small.", Media("image", data=b"-")),
    )
    prompt = prompt_of(made, stated)
    writer = Writer(made.family, made.processor)
    prompt = replace(prompt, demonstrated=play(writer, prompt, None, [cut]))
    (said,) = demonstrated(made, prompt)
    assert [call.name for call in said.turns[0].calls] == ["crop", "zoom"]
    assert said.turns[0].text.startswith("<think>top left</think>Look.<tool_call>")
    observed = said.segments[1]
    assert observed.media == (cut,)
    assert made.tokenizer.decode(observed.token_ids) == "\n" + made.family.reply(
        made.processor, ["It is small.", "Image 2:", cut]
    ).lstrip("\n")
    nll, tokens = plain_nll(made, prompt, said)
    config = SftConfig(warmup_steps=0, lr=1e-3)
    found = sft.step(policy(), PromptBatch((prompt,)), config, sft.Stage(), 10**6, seed=0)
    assert found["loss"] == pytest.approx(nll / tokens, rel=1e-5)


def test_a_text_that_spells_a_call_and_a_world_half_stated_are_refused(made):
    returned = ("no",)
    spelt = DemoTurn("crop", {}, text="<tool_call>{}</tool_call>", returned=returned)
    with pytest.raises(UserError, match="expected calls of crop in its text, got '', 'crop'"):
        prompt = prompt_of(made, spelt)
        play(Writer(made.family, made.processor), prompt, None)

    class World(Cuts):
        def begin(self, sample, seed):
            return object()

        def leave(self, world):
            pass

    prompt = prompt_of(made, LOOK, DemoTurn("crop", {}, returned=returned))
    with pytest.raises(UserError, match="stated of all turns or of none"):
        play(Writer(made.family, made.processor), prompt, World())


ROWS = """
run: {{name: called, dir: {home}/run, steps: 2, threads: 1, report: false}}
tracking: {{tensorboard: false}}
model:
  build:
    family: qwen2_5_vl
    text: {{hidden_size: 64, num_attention_heads: 2, num_key_value_heads: 2, num_hidden_layers: 2}}
  max_pixels: 3136
data:
  workers: 0
  train:
    - &rows
      card: auto
      options: {{path: {home}/train.jsonl}}
      template: think_answer
      tools: [crop]
sft: {{sources: [*rows], max_steps: 100, batch_size: 2, lr: 3.0e-3, warmup_steps: 10, decay_steps: 10}}
rollout: {{prompts: 2, group_size: 4, max_tokens: 96, temperature: 0.2, turns: {{max_turns: 2}}}}
evaluation:
rewards: [exact, {{verifier: tool_used, weight: 0.5}}]
checks: {{media_ablation_every: 0, parity_every: 0}}
"""


@pytest.mark.slow
def test_the_command_line_imitates_calls_of_rows_and_then_trains_on_them(tmp_path, monkeypatch):
    for name in ("whole.png", "cut.png"):
        image(56, 56).save(tmp_path / name)
    row = {
        "messages": [
            {"role": "user", "content": "<image>What is it?"},
            {
                "role": "assistant",
                "content": "<think>small</think>",
                "tool_calls": [
                    {"function": {"name": "crop", "arguments": {"bbox_2d": [0, 0, 28, 28]}}}
                ],
            },
            {"role": "tool", "content": "<image>"},
            {"role": "assistant", "content": "<think>so</think><answer>7</answer>"},
        ],
        "images": ["whole.png", "cut.png"],
    }
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(row)}\n" * 4)
    config = tmp_path / "called.yaml"
    config.write_text(ROWS.format(home=tmp_path))
    monkeypatch.setattr(sys, "argv", ["vlmrl", "train", str(config)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    imitated = [json.loads(line) for line in (tmp_path / "run/sft.jsonl").read_text().splitlines()]
    assert imitated[-1]["loss"] < 0.1 < imitated[0]["loss"]
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert all(step["tool/used"] > 0.5 and step["reward/mean"] > 0.5 for step in steps)
    assert not (tmp_path / "run/quarantine.jsonl").exists()


def test_ranks_that_are_not_its_home_know_what_is_said_and_nothing_that_is_shown(made):
    whole = replace(prompt_of(made, LOOK), sample=prompt_of(made, LOOK, text=None).sample)
    demo = play(Writer(made.family, made.processor), whole, Cuts())
    for prompt in (played(made, Cuts(), LOOK, CLOSER), replace(whole, demonstrated=demo)):
        told = prompt.without_media()
        assert not any(segment.media for segment in told.demonstrated.segments)
        assert told.demonstrated.suffix is None
        home, elsewhere = demonstrated(made, prompt, told)
        assert elsewhere.token_ids == home.token_ids
        assert [turn.text for turn in elsewhere.turns] == [turn.text for turn in home.turns]
        assert elsewhere.suffix is None and elsewhere.calls == home.calls


def test_a_call_that_fails_or_is_refused_makes_the_row_bad(made):
    failing = Cuts(ToolOutcome(calls=(Call("crop", {}, "fault"),), fault="crop: it died"))
    with pytest.raises(
        UserError, match="sample 'row 0': call 1 of its demonstration failed: crop: it"
    ):
        played(made, failing, LOOK)
    refusing = Cuts(ToolOutcome(("Error: no",), (), (Call("crop", {}, "refused", "no pixel"),)))
    with pytest.raises(UserError, match="call 1 of its demonstration is refused: no pixel"):
        played(made, refusing, LOOK)
    with pytest.raises(UserError, match="call 1 of its demonstration: image 2 does not exist"):
        played(made, Cuts(), CLOSER)


def test_a_bad_demonstration_is_left_out_by_name_and_counted(made, tmp_path):
    source = open_source(SourceConfig(card="look_twice", options={"count": 40, "look": 1.0}))

    class Fails(Cuts):
        def run_all(self, turns):
            self.outcome = (
                None
                if len(self.asked) % 20
                else ToolOutcome(calls=(Call("crop", {}, "fault"),), fault="crop: it died")
            )
            return super().run_all(turns)

    def plain(sample, media):
        return make_prompt(sample, media, made.family, made.processor)

    make = demonstrating(plain, Writer(made.family, made.processor), {source.name: Fails()})
    quarantine = Quarantine(tmp_path / "quarantine.jsonl")
    loader = Loader([source], make, 16, quarantine=quarantine, quarantine_limit=0.2)
    batch = loader.next()
    assert len(batch) == 16
    assert all(len(prompt.demonstrated.turns) == 1 for prompt in batch.prompts)
    (line,) = map(json.loads, (tmp_path / "quarantine.jsonl").read_text().splitlines())
    assert line["reason"].endswith("call 1 of its demonstration failed: crop: it died")
    assert quarantine.counts == {"row": 1}


def test_calls_of_a_source_without_tools_are_refused_by_name(made):
    prompt = prompt_of(made, LOOK)
    make = demonstrating(
        lambda sample, media: prompt, Writer(made.family, made.processor), {"a": 1}
    )
    with pytest.raises(
        UserError, match="calls 'crop', but source 'test' of the cold start names no"
    ):
        make(prompt.sample, [])


@pytest.mark.slow
def test_the_real_toolbox_shows_the_pixels_of_the_original(made):
    prompt = prompt_of(made, LOOK)
    with Toolbox([Crop()], made.family.space) as toolbox:
        said = play(Writer(made.family, made.processor), prompt, toolbox)
    (shown,) = said.segments[1].media
    assert shown.tobytes() == prompt.media[0].crop((0, 0, 56, 42)).tobytes()


def test_the_last_turn_may_weigh_more_and_a_single_turn_never_does(made):
    prompts = (played(made, Cuts(), LOOK), played(made, Cuts(), number=1))
    several, single = demonstrated(made, *prompts)
    rollouts = sft.demonstrations(made, PromptBatch(prompts), 0.0, seed=0)
    weights = sft._token_weights(rollouts, 3.0)["token_weight"]
    last = len(several.turns[-1].token_ids)
    assert weights[0, 0].tolist() == [1.0] * (len(several.token_ids) - last) + [3.0] * last
    assert set(weights[1, 0].tolist()) == {1.0}
    losses = []
    for weight in (1.0, 3.0):
        config = SftConfig(warmup_steps=0, lr=1e-3, last_turn_weight=weight)
        found = sft.step(policy(), PromptBatch(prompts), config, sft.Stage(), 10**6, seed=0)
        losses.append(found["loss"])
    fresh = policy()
    nll, _ = plain_nll(fresh, prompts[0], several, last_only=True)
    count = len(several.token_ids) + len(single.token_ids)
    assert losses[1] - losses[0] == pytest.approx(2 * nll / count, rel=1e-4)


def test_a_demonstration_without_an_answer_ends_with_its_last_call(made):
    demo = Demo(turns=(LOOK, CLOSER))
    prompt = prompt_of(made)
    prompt = replace(prompt, sample=replace(prompt.sample, demo=demo))
    prompt = replace(prompt, demonstrated=play(Writer(made.family, made.processor), prompt, Cuts()))
    (said,) = demonstrated(made, prompt)
    assert [segment.of_policy for segment in said.segments] == [True, False, True]
    assert '"image": 2' in said.text and said.segments[-1].calls[0].outcome == "ok"


def test_moves_in_a_world_are_played(made):
    source = open_source(SourceConfig(card="world", options={"count": 1}))
    sample = replace(source.sample(0), demo=Demo(turns=(DemoTurn("move", {"direction": "up"}),)))
    worlds = Worlds(plugins.build("environment", "grid_world"))
    try:
        shown = [Image.open(io.BytesIO(m.data)).convert("RGB") for m in sample.media]
        prompt = make_prompt(sample, shown, made.family, made.processor)
        said = play(Writer(made.family, made.processor), prompt, worlds)
    finally:
        worlds.close()
    assert [turn.reward is not None for turn in said.turns] == [True]
