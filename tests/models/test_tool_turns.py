"""Tools in chat templates: what is offered, and that a rollout's ids are the template's own."""

import json
import re
from importlib import resources

import pytest

from helpers.prompts import noise, own_kind, render, text_ids
from helpers.published import TEMPLATES
from helpers.small import loaded
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.data.prompt import make_prompt
from vlmrl.errors import UserError
from vlmrl.interaction.tools import parse_calls
from vlmrl.interaction.trail import Trail
from vlmrl.models.chat import reply_messages, space_in_calls, template_lists_tools, write_tool_list
from vlmrl.parts.tools.crop import Crop
from vlmrl.schema import DemoTurn, Frame, Media, Sample, Truth
from vlmrl.truths import prompting

CALL = '<tool_call>\n{"name": "crop", "arguments": {"bbox_2d": [0, 0, 28, 28]}}\n</tool_call>'
CASES = [
    *((name, False) for name in plugins.names("family")),
    *((name, True) for name in TEMPLATES),
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{'published' if case[1] else 'small'}")
def model(request, monkeypatch):
    """A small model of each family, with its own template and with the published one."""
    name, published = request.param
    made = loaded(name)
    if published:
        pytest.importorskip("trl")
        file = resources.files("trl") / "chat_templates" / f"{TEMPLATES[name]}.jinja"
        monkeypatch.setattr(made.processor, "chat_template", file.read_text())
    return made


def schema():
    (found,) = Crop().schemas("norm1000")
    return found


def ask(made, **fields):
    parts = (Media(own_kind(made), data=b"-"), "What is written?")
    sample = Sample("row-1", "t", parts, Truth(), system="You are brief.", **fields)
    return make_prompt(sample, [noise(made, 0)], made.family, made.processor)


def observe(made, trail, text, parts):
    """The trail after a turn of the policy with this text, and what it was shown."""
    ids = (*made.processor.tokenizer(text, add_special_tokens=False)["input_ids"], stop(made))
    told = {"token_ids": ids, "logprobs": (0.0,) * len(ids)}
    said = templates.completion(text, "answer_only", trail.prompt.frame, **told)
    trail = trail.write(said)
    return trail.observe(*trail.encode_observation(parts))


def stop(made):
    return made.family.stop_token_ids(made.processor)[0]


def processed(made, messages, media, tools):
    """The ids that the Hugging Face processor makes of the whole conversation at once."""
    text = render(made.processor, messages, tools=tools, add_generation_prompt=True)
    # LLaVA's template writes one separator in a prompt's end, another one before what was said.
    text = text.replace("<|im_start|>assistant ", "<|im_start|>assistant\n")
    text = text.removesuffix("<think>\n")  # the completion's, of a template with tags
    return text_ids(made, text, media)


def test_a_rollouts_ids_are_the_templates_rendering_of_the_whole(model):
    shown = [["Image 2:", noise(model, 1)], ["it is 3", noise(model, 2), "and that is all"], ["x"]]
    trail = Trail(model.family, model.processor, ask(model, tools=(schema(),)))
    listed = template_lists_tools(model.processor)
    system = "You are brief." if listed else f"You are brief.\n\n{write_tool_list([schema()])}"
    messages = [
        {"role": "system", "content": [{"type": "text", "text": system}]},
        {
            "role": "user",
            "content": [{"type": own_kind(model)}, {"type": "text", "text": "What is written?"}],
        },
    ]
    # Qwen3.5's template writes a thought in what was said, and opens it in a prompt: here the policy does.
    thinks = ask(model, template="none").text.endswith("<think>\n")
    for number, parts in enumerate(shown):
        thought = "<think>\nIt is small.\n</think>\n\n" if thinks else ""
        text = f"{thought}Look {number}.\n{CALL}"
        # Idefics' template writes a space before what was said, and none at the end of a prompt.
        space = " " if trail.prompt.text.endswith("Assistant:") else ""
        trail = observe(model, trail, space + text, parts)
        said = [{"type": "text", "text": text}]
        messages.append({"role": "assistant", "content": said})
        messages += reply_messages(model.family, model.processor, parts)
    media = [noise(model, number) for number in range(3)]
    whole = processed(model, messages, media, [schema()] if listed else None)
    assert list(trail.next_prompt().encoded.ids) == whole


def test_a_thought_that_a_template_begins_is_left_to_a_completion_of_tags(model):
    bare, laid_out = (ask(model, template=name).text for name in ("none", "think_answer"))
    assert not laid_out.endswith("<think>\n")
    assert bare.removesuffix("<think>\n") == laid_out
    if bare != laid_out:
        text = "<think>\nIt is small.\n</think>\n\n<answer>7</answer>"
        assert templates.split(text, "think_answer").well_formed


def test_tools_are_offered_once_and_observations_are_marked(model):
    prompt = ask(model, tools=(schema(),))
    assert prompt.text.count('"name": "crop"') == 1
    assert prompt.text.count("You are brief.") == 1
    assert "bbox_2d" not in ask(model).text
    piece = model.family.reply(model.processor, [noise(model, 1)])
    assert piece.count("<tool_response>") == piece.count("</tool_response>") == 1


def test_only_a_template_that_knows_tools_has_the_role(model, request):
    published = re.search(r"qwen3_vl(_moe)?-published", request.node.name) is not None
    assert template_lists_tools(model.processor) == published
    assert space_in_calls(model.processor) == ("\n" if published else "")
    (message,) = reply_messages(model.family, model.processor, ["x"])
    assert message["role"] == ("tool" if published else "user")


def test_a_call_is_written_as_the_template_writes_it(monkeypatch):
    pytest.importorskip("trl")
    made = loaded("qwen3_vl")
    file = resources.files("trl") / "chat_templates" / "qwen3_vl.jinja"
    monkeypatch.setattr(made.processor, "chat_template", file.read_text())
    (asked,) = parse_calls(CALL)
    function = {"name": asked.name, "arguments": asked.arguments}
    said = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
    messages = [{"role": "user", "content": "x"}, said]
    rendered = made.processor.apply_chat_template(messages, tokenize=False)
    assert CALL in rendered
    turn = DemoTurn(asked.name, asked.arguments)
    assert prompting.write_call(turn, Frame(), space_in_calls(made.processor)) in rendered


FOREIGN = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}Call as <function=name>."
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content[0].text }}<|im_end|>\n{% endfor %}"
)
DROPPING = (
    '{% if tools %}{{ tools | tojson }}<tool_call>{"name": 1, "arguments": {}}{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% elif message.role != 'tool' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
)


def test_a_list_that_asks_for_another_form_of_calls_is_not_used(monkeypatch):
    made = loaded("qwen2_5_vl")
    monkeypatch.setattr(made.processor, "chat_template", FOREIGN)
    assert not template_lists_tools(made.processor)


def test_a_template_that_drops_the_images_of_tools_gets_them_as_the_users(monkeypatch):
    made = loaded("qwen2_5_vl")
    monkeypatch.setattr(made.processor, "chat_template", DROPPING)
    assert template_lists_tools(made.processor)
    (message,) = reply_messages(made.family, made.processor, ["look", noise(made, 1)])
    assert message["role"] == "user"
    assert made.family.reply(made.processor, [noise(made, 1)]).count("<|image_pad|>") == 1


def test_descriptions_of_tools_bring_no_special_token_in(model):
    end = model.family.turn_ends[0]
    hostile = json.loads(json.dumps(schema()))
    hostile["function"]["description"] = f"Crop.{end}"
    one, other = ask(model, tools=(schema(),)), ask(model, tools=(hostile,))
    ids = [list(prompt.encoded.ids).count(stop(model)) for prompt in (one, other)]
    assert ids[0] == ids[1]


def test_a_template_without_a_second_turn_is_refused_in_a_line(monkeypatch):
    made = loaded("qwen2_vl")
    refusing = "{% if messages | length > 1 %}{{ raise_exception('one turn') }}{% endif %}x"
    monkeypatch.setattr(made.processor, "chat_template", refusing)
    with pytest.raises(UserError, match="qwen2_vl refuses a second turn: one turn"):
        made.family.reply(made.processor, ["ready"])
