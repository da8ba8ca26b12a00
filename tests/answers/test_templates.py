"""Templates: how a completion is split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.schema import Frame

FRAME = Frame(70, 70)


def split(text, template="think_answer"):
    return templates.split(text, template)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>a</think><answer> B </answer>", "B"),
        ("<think>a</think>\n<answer>\nB\nC\n</answer>\n", "B\nC"),
        ("<think>a</think><answer>A</answer><answer>B</answer>", "B"),
        ("<think>a</think><answer>A<answer>B</answer>", "B"),
        ("<think>a</think><answer>A</answer><answer>B", "A"),
        ("<think>a</think><answer>A</answer></answer>", "A"),
        ("<think>a <answer>A</answer></think>", None),
        ("<think>a <answer>A</answer>", None),
        ("<think>a</think><answer>A</answer><think>b", None),
        ("<think>a</think><answer>A</answer><think>b</think>", None),
        ("<think><think>a</think><answer>B</answer>", "B"),
        ("the prompt opened it</think><answer>B</answer>", "B"),
        ("<answer>B</answer>", "B"),
        ("<think>a</think><ANSWER>B</ANSWER>", None),
        ("<think>a</think><answer> \n</answer>", None),
        ("<think>a</think>B", None),
        ("", None),
    ],
)
def test_the_answer_is_the_last_whole_answer_tag_after_the_thought(text, answer):
    assert split(text).answer == answer


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("answer_only", "<answer>B</answer>"),
        ("think_answer", " <think>a</think>\n<answer>B</answer> "),
        ("think_or_not", "<think>\n\n</think><answer>B</answer>"),
        ("caption_think_answer", "<info>i</info><think>a</think><answer>B</answer>"),
        ("observe_think_answer", "<observe>i</observe><think>a</think><answer>B</answer>"),
        ("context_think_answer", "<context>i</context><think>a</think><answer>B</answer>"),
        ("think_action", "<think></think><action>B</action>"),
        ("think_answer_glue", "<think>a</think><answer>B</answer><glue>[(1, 2)]</glue>"),
        ("boxed", "<think>\\boxed{A}</think> so \\boxed{B}"),
        ("none", "<think>a</think> B"),
    ],
)
def test_each_template_reads_its_own_layout(template, text):
    parsed = templates.split(text, template)
    assert (parsed.answer, parsed.well_formed, parsed.tag_share) == ("B", True, 1.0)


def test_every_template_is_covered_by_a_layout():
    covered = test_each_template_reads_its_own_layout.pytestmark[0].args[1]
    assert {name for name, _ in covered} == set(templates.TEMPLATES)


@pytest.mark.parametrize(
    "text",
    [
        "<think>a</think><answer></answer>",
        "<think></think><answer>B</answer>",
        "x<think>a</think><answer>B</answer>",
        "<think>a</think>x<answer>B</answer>",
        "<think>a</think><answer>B</answer>x",
        "<answer>B</answer><think>a</think>",
        "<think>a</think><answer>b</answer><answer>c</answer>",
        "<think>a<think>b</think><answer>B</answer>",
        "<think>a</think><answer>B</answer></think>",
        "<think>a<answer>B</answer></think>",
        "</think>a<think><answer>B</answer>",
        "<answer>B</answer>",
        "",
    ],
)
def test_anything_but_the_layout_is_not_well_formed(text):
    assert not split(text).well_formed


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0),
        ("<think>a", 0.25),
        ("<think>a</think>", 0.5),
        ("<think>a</think><answer>b</answer>", 1),
        ("<think></think><answer></answer>", 0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.5),
    ],
)
def test_tag_share_counts_marks_that_stand_once_with_content(text, share):
    assert split(text).tag_share == share


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("<think>a</think><answer>B</answer>", "think"),
        ("<think>\n\n</think><answer>B</answer>", "direct"),
        ("<answer>B</answer>", "direct"),
        ("<think>a", "none"),
        ("", "none"),
    ],
)
def test_the_mode_says_whether_something_was_thought(text, mode):
    assert split(text, "think_or_not").mode == mode


def test_spans_point_at_the_content_of_each_tag():
    text = "<info>i</info><think> a </think><answer> B </answer>"
    spans = templates.split(text, "caption_think_answer").spans
    content = {tag: text[start:end] for tag, (start, end) in spans.items()}
    assert content == {"info": "i", "think": " a ", "answer": " B "}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{1} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{ open \\boxed{3}", "3"),
        ("\\boxed{3} \\boxed{4", "3"),
        ("\\boxed 3", None),
        ("\\boxed{}", None),
    ],
)
def test_the_boxed_answer_is_the_last_whose_braces_balance(text, answer):
    assert templates.split(text, "boxed").answer == answer


@given(st.text(alphabet="<>/thinkaswer ", max_size=80), st.sampled_from(list(templates.TEMPLATES)))
def test_splitting_never_fails_and_is_consistent(text, template):
    parsed = templates.split(text, template)
    assert 0 <= parsed.tag_share <= 1
    assert parsed.answer is None or (parsed.answer and parsed.answer in text)
    assert not parsed.well_formed or parsed.answer is not None


thoughts = st.text(max_size=30).filter(lambda t: "<" not in t and t.strip() != "")


@given(thoughts, thoughts)
def test_a_clean_completion_is_read_as_it_was_written(thought, answer):
    parsed = split(f"<think>{thought}</think><answer>{answer}</answer>")
    assert parsed.well_formed
    assert (parsed.thought, parsed.answer) == (thought.strip(), answer.strip())


def test_an_unknown_template_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'think_answer'"):
        templates.split("", "think_answr")


def test_completion_carries_the_frame_and_further_fields():
    made = templates.completion("<answer>1</answer>", "answer_only", FRAME, token_ids=(1, 2))
    assert (made.answer, made.frame, made.token_ids) == ("1", FRAME, (1, 2))


# ------------------------------------------------------------------------------- the user's own


def test_a_template_of_the_users_own_is_laid_out_and_split_like_a_shipped_one():
    own = templates.read(
        {
            "tags": {"look": "required", "think": "optional_empty", "say": "required"},
            "answer": "say",
        }
    )
    text = "<look>A cat.</look><think>\n\n</think><say>7</say>"
    parsed = templates.split(text, own)
    assert (parsed.answer, parsed.well_formed, parsed.mode) == ("7", True, "direct")
    assert (
        own.request
        == "Write <look> </look>, then <think> </think> (may be empty), then <say> </say>."
    )
    asked = templates.read({"tags": {"answer": "required"}, "request": "Be brief."}, "mine.yaml")
    assert (asked.request, str(asked)) == ("Be brief.", "mine.yaml")


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({}, "template.tags: expected a mapping such as {think: required"),
        ({"tags": ["answer"]}, "template.tags: expected a mapping such as"),
        ({"tag": {"answer": "required"}}, "template: unknown key 'tag'; did you mean 'tags'?"),
        ({"tags": {"answer": "yes"}}, "template.tags.answer: expected required, optional"),
        ({"tags": {"a b": "required"}}, "template.tags: expected letters, digits and _"),
        (
            {"tags": {"say": "required"}},
            "template.answer: expected one of the tags say, got 'answer'",
        ),
        ({"tags": {"answer": "optional"}}, "template.tags.answer: the tag with the answer is"),
        (
            {"tags": {"answer": "required"}, "request": 3},
            "template.request: expected a text, got 3",
        ),
        ("think_anser", "template: expected a name or a mapping"),
    ],
)
def test_a_template_that_is_none_is_refused_in_one_line(stated, problem):
    with pytest.raises(UserError) as found:
        templates.read(stated)
    assert problem in str(found.value) and "\n" not in str(found.value)
