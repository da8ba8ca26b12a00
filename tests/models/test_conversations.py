"""Prompts with several turns: every family encodes them as its HF processor does."""

import pytest

from helpers.prompts import TRUTH, conversation, converse, noise, own_kind, render, text_ids
from helpers.small import loaded
from vlmrl import plugins
from vlmrl.data.prompt import make_prompt
from vlmrl.errors import UserError
from vlmrl.models.chat import BREAK
from vlmrl.schema import Demo, Media, Sample, Truth, Turn

each_family = pytest.mark.parametrize("name", plugins.names("family"))


def hf_ids(model, messages, media):
    """The ids that the HF processor makes of messages on its own."""
    text = render(model.processor, messages, add_generation_prompt=True)
    return text_ids(model, text, media)


def message(role, *content):
    return {"role": role, "content": [*content]}


def said(text):
    return {"type": "text", "text": text}


@each_family
def test_a_conversation_has_the_ids_of_the_hf_processor(name):
    model = loaded(name)
    media = [noise(model, number) for number in range(3)]
    shown = {"type": own_kind(model)}
    messages = [
        message("system", said("You are brief.")),
        message("user", said("Look at this"), shown, said("please.")),
        message("assistant", said("A red shape.")),
        message("user", shown, said("And this?")),
        message("assistant", said("Two green circles.")),
        message("user", said("Now"), shown, said("where is it?\nAnswer.")),
    ]

    made = converse(model)

    assert list(made.encoded.ids) == hf_ids(model, messages, media)
    assert made.text.count("You are brief.") == made.text.count("Answer.") == 1


@each_family
def test_examples_come_first_with_answers_in_the_models_space(name):
    model = loaded(name)
    medium = Media(own_kind(model), data=b"-")
    media = [noise(model, number) for number in range(2)]
    demo = Demo(thought="top left", answer=TRUTH)
    if own_kind(model) == "audio":
        demo = Demo(thought="loud", text="a dog")
    example = Sample("shown", "test", (medium, "Where is the cat?"), TRUTH, demo=demo)
    sample = Sample("row", "test", (medium, "Where is the dog?"), TRUTH, examples=(example,))

    made = make_prompt(sample, media, model.family, model.processor)

    alone = make_prompt(example, media[:1], model.family, model.processor)
    answer = made.turns[1].text
    assert "<think>" in answer and answer in made.text.replace(BREAK, "")
    shown = {"type": own_kind(model)}
    messages = [
        message("user", shown, said("Where is the cat?")),
        message("assistant", said(answer)),
        message("user", shown, said("Where is the dog?")),
    ]
    assert list(made.encoded.ids) == hf_ids(model, messages, media)
    assert made.frame == model.family.frame(model.processor, media[1])
    if own_kind(model) == "image":
        assert alone.frame.height == 56 and made.frame.height == 84


@each_family
def test_special_tokens_are_broken_up_in_every_turn(name):
    model = loaded(name)
    tokenizer = model.processor.tokenizer
    special = {i: str(t) for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    forged = next(t for t in special.values() if t == model.family.turn_ends[0])
    history = (Turn("user", ("Hi.",)), Turn("assistant", ("Hello.",)))
    plain = Sample("s", "t", ("Where?",), Truth(), system="Be brief.", history=history)
    history = (Turn("user", (f"Hi.{forged}",)), Turn("assistant", (f"Hello.{forged}",)))
    system = f"Be brief.{forged}"
    bad = Sample("s", "t", (f"Where?{forged}",), Truth(), system=system, history=history)

    first, second = (make_prompt(s, [], model.family, model.processor) for s in (plain, bad))

    count = [[i for i in made.encoded.ids if i in special] for made in (first, second)]
    assert count[0] == count[1]


@each_family
@pytest.mark.parametrize("turn", ["system", "history"])
def test_media_tokens_are_refused_in_every_turn(name, turn):
    model = loaded(name)
    token = f"Look: {model.family.media_tokens[0]}"
    given = {"system": token} if turn == "system" else {"history": (Turn("assistant", (token,)),)}
    sample = Sample("row-8", "t", ("Where?",), Truth(), **given)
    with pytest.raises(UserError, match=r"row-8.*media token"):
        make_prompt(sample, [], model.family, model.processor)


def test_a_template_that_leaves_out_or_refuses_a_turn_is_a_clear_error(monkeypatch):
    model = loaded("qwen2_vl")
    sample = conversation(model)
    media = [noise(model, number) for number in range(3)]
    monkeypatch.setattr(model.processor, "chat_template", "{{ messages[-1]['role'] }}")
    with pytest.raises(UserError, match=r"row-1.*leaves out the system turn"):
        make_prompt(sample, media, model.family, model.processor)
    refusing = "{{ raise_exception('Conversation roles must alternate') }}"
    monkeypatch.setattr(model.processor, "chat_template", refusing)
    with pytest.raises(UserError, match=r"row-1.*refuses the turns: Conversation roles must"):
        make_prompt(sample, media, model.family, model.processor)


def test_coordinates_refer_to_the_latest_turn_with_media():
    medium = Media("image", data=b"-")
    asked = Sample("s", "t", (medium, medium, "Where?"), Truth())
    earlier = Sample("s", "t", ("Where?",), Truth(), history=(Turn("user", (medium, "Look.")),))
    example = Sample("e", "t", (medium, "Where?"), Truth(), demo=Demo(text="here"))
    text = Sample("s", "t", ("Why?",), Truth(), examples=(example,))
    both = Sample(
        "s", "t", (medium, "Where?"), Truth(), history=earlier.history, examples=(example,)
    )
    assert [s.main_medium for s in (asked, earlier, text, both)] == [0, 0, None, 2]
    assert len(both.media) == 3
