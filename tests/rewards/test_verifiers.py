"""Verifiers of layout, words and numbers: answers and scores worked by hand."""

import pytest

from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.schema import Frame, Truth
from vlmrl.scoring.verifier import judge

FRAME = Frame(100, 100, duration=100.0)


def verdict(name, answer, truth, template="none", **options):
    return judge(plugins.build("verifier", name, options), answer, truth, template, FRAME)


def score(name, answer, truth, template="none", **options):
    return verdict(name, answer, truth, template, **options).score


def text(*accepted):
    return Truth(text=accepted)


# ------------------------------------------------------------------------------------- layout

PLAIN = "<think>a</think><answer>B</answer>"
ON_LINES = "<think>\na\n</think>\n<answer>\nB\n</answer>"


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        (PLAIN, {}, 1),
        (f"{PLAIN} and more", {}, 0),
        ("<think>a</think>", {"partial": True}, 0.5),
        (PLAIN, {"own_lines": True}, 0),
        (ON_LINES, {"own_lines": True}, 1),
        ("<think>\na\n</think>\n<answer>B</answer>", {"own_lines": True, "partial": True}, 0.5),
        (PLAIN, {"content": "number"}, 0),
        (PLAIN.replace("B", "7"), {"content": "number"}, 1),
        (PLAIN.replace("B", "[1, 2, 3, 4]"), {"content": "boxes"}, 1),
        (PLAIN.replace("B", "[]"), {"content": "boxes"}, 1),
        (PLAIN.replace("B", "(1, 2)"), {"content": "points"}, 1),
        (PLAIN.replace("B", "1 to 2"), {"content": "spans"}, 1),
        (PLAIN.replace("B", '{"a": 1}'), {"content": "json"}, 1),
        (PLAIN, {"content": "json"}, 0),
    ],
)
def test_format(answer, options, wanted):
    assert score("format", answer, Truth(), "think_answer", **options) == wanted


@pytest.mark.parametrize(
    ("answer", "mode", "wanted"),
    [
        (PLAIN, "free", 1),
        ("<think>\n\n</think><answer>B</answer>", "free", 1),
        ("<think>\n\n</think><answer>B</answer>", "no_think", 1),
        ("<think>\n\n</think><answer>B</answer>", "think", 0),
        (PLAIN, "no_think", 0),
        (PLAIN, "think", 1),
        ("<answer>B</answer>", "free", 0),
        ("<think>a<answer>B</answer>", "free", 0),
    ],
)
def test_think_or_not(answer, mode, wanted):
    assert score("think_or_not", answer, Truth(), "think_or_not", mode=mode) == wanted


def test_an_empty_thought_fails_format_but_not_think_or_not():
    empty = "<think></think><answer>B</answer>"
    assert score("format", empty, Truth(), "think_answer") == 0
    assert score("think_or_not", empty, Truth(), "think_answer") == 1


# --------------------------------------------------------------------------- words and numbers


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("Boeing 747", 1),
        (" boeing  747. ", 1),
        ("Airbus 747", 0),
        ("747", 0),
        ("Boeing 747 400", 0),
    ],
)
def test_exact(answer, wanted):
    assert score("exact", answer, text("Boeing 747", "B747")) == wanted


def test_exact_without_normalising_is_case_sensitive():
    assert score("exact", "boeing 747", text("Boeing 747"), normalise=False) == 0


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [("Passion_Flower", 1), ("passion-flower", 1), ("maypop", 1), ("flower", 0),
     ("passion flower, rose", 0), ("a", 0)],
)  # fmt: skip
def test_class_name(answer, wanted):
    aliases = {"passion flower": ["maypop"]}
    assert score("class_name", answer, text("passion flower"), aliases=aliases) == wanted


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [("B", 1), ("bird", 1), ("(b)", 1), ("A", 0), ("cat", 0), ("A B C", 0), ("B. cat", 0)],
)
@pytest.mark.parametrize("choice", ["B", "bird"])
def test_choice(answer, wanted, choice):
    assert score("choice", answer, Truth(choice=choice, options=("cat", "bird", "cow"))) == wanted


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [("A", 1), ("The answer is A.", 1), ("A. B", 1), ("**A**", 1), ("B", 0), ("B. A", 0)],
)
def test_a_capital_letter_is_a_letter_where_options_are_letters_too(answer, wanted):
    assert score("choice", answer, Truth(choice="A", options=("B", "A", "D", "C"))) == wanted


@pytest.mark.parametrize("other", ["\u0410, \u0412 or D", "\\boxed{\u0392} \\boxed{D}", "\u0410"])
def test_letters_of_other_alphabets_pick_nothing(other):
    for options in (("red", "blue", "black", "grey"), None):
        assert score("choice", other, Truth(choice="D", options=options)) == 0


def test_a_choice_without_options_is_a_letter_or_a_text():
    assert score("choice", "It is C.", Truth(choice="C")) == 1
    assert score("choice", "George", Truth(choice="george")) == 1
    with pytest.raises(ValueError, match="none of"):
        score("choice", "A", Truth(choice="dog", options=("cat", "bird")))


def test_yes_no():
    assert score("yes_no", "Yes, there is nothing else.", text("Yes")) == 1
    assert score("yes_no", "Nothing.", text("no")) == 0
    assert score("yes_no", "yes no", text("no")) == 0
    with pytest.raises(ValueError, match="neither"):
        score("yes_no", "yes", text("perhaps"))


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        ("a, b", {}, 1),
        ("a", {}, 2 / 3),
        ("a, b, c, d", {}, 2 / 3),
        ("a, c", {"measure": "jaccard"}, 1 / 3),
        ("a, c", {"fatal": True}, 0),
        ("a", {"measure": "exact"}, 0),
        ("a", {"measure": "exact", "subset_credit": 0.5}, 0.5),
        ("a, c", {"measure": "exact", "subset_credit": 0.5}, 0),
        ("a", {"measure": "recall", "fatal": True}, 0.5),
        ("b, a, B", {}, 1),
        ("ab", {}, 0),
    ],
)
def test_labels(answer, options, wanted):
    assert score("labels", answer, Truth(labels=("A", "B")), **options) == pytest.approx(wanted)


def test_labels_may_be_letters_or_texts_of_options():
    for labels in (("A", "C"), ("cat", "owl"), ("A", "owl")):
        truth = Truth(labels=labels, options=("cat", "dog", "owl"))
        half = {"measure": "exact", "fatal": True, "subset_credit": 0.5}
        answers = ("A, C", "a,c", "owl, cat", "A, owl", "C", "A, A", "A, B", "dog", "")
        wanted = [1, 1, 1, 1, 0.5, 0.5, 0, 0, 0]
        assert [score("labels", answer, truth, **half) for answer in answers] == wanted


def test_the_negative_class_pays_its_own_credit():
    options = {
        "measure": "recall",
        "fatal": True,
        "negative": "No Finding",
        "negative_credit": 0.25,
    }
    assert score("labels", "no finding", Truth(labels=("No Finding",)), **options) == 0.25
    assert score("labels", "no finding, edema", Truth(labels=("Edema",)), **options) == 0


def test_recall_alone_is_refused():
    with pytest.raises(UserError, match="naming everything"):
        plugins.build("verifier", "labels", {"measure": "recall"})


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        ("3", {}, 1),
        ("three", {}, 1),
        ("3.004", {}, 0),
        ("3.004", {"decimals": 2}, 1),
        ("3.5", {"tolerance": 0.5}, 1),
        ("3.2", {"relative": 0.1}, 1),
        ("3.4", {"relative": 0.1}, 0),
        ("300%", {"percent": True}, 1),
        ("2 3 4", {}, 0),
        ("٣", {}, 0),
        ("1e999", {}, 0),
    ],
)
def test_number(answer, options, wanted):
    assert score("number", answer, Truth(number=3), **options) == wanted


@pytest.mark.parametrize(
    ("answer", "strict", "graded"),
    [("4", 1, 1), ("three", 0, 0.75), ("8", 0, 0), ("400", 0, 0), ("-4", 0, 0), ("4.5", 0, 0)],
)
def test_count(answer, strict, graded):
    assert score("count", answer, Truth(number=4)) == strict
    assert score("count", answer, Truth(number=4), graded=True) == graded


def test_counting_nothing():
    assert score("count", "0", Truth(number=0)) == 1
    assert score("count", "1", Truth(number=0), graded=True) == 0


@pytest.mark.parametrize(
    ("measure", "answer", "wanted"),
    [
        ("relative", "15", 0.75),
        ("relative", "50", 0),
        ("symmetric", "40", 0.5),
        ("absolute", "20.07", 0.8),
        ("step", "20.3", 1),
        ("step", "20.35", 0),
        ("mra", "20", 1),
        ("mra", "22", 0.8),  # error 0.1: below 1 - t for t = 0.5 ... 0.85
        ("mra", "30", 0),
    ],
)
def test_regression(measure, answer, wanted):
    assert score("regression", answer, Truth(number=20), measure=measure) == pytest.approx(wanted)


def test_regression_reads_a_key_of_a_json_object():
    options = {"measure": "step", "key": "rating"}
    assert score("regression", '{"rating": 3.1, "of": 5}', Truth(number=3), **options) == 1
    assert score("regression", "3.1", Truth(number=3), **options) == 0
    assert score("regression", "0", Truth(number=0)) == 1
    assert score("regression", "1", Truth(number=0)) == 0


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [("1/2", 1), ("0.5", 1), ("\\boxed{\\frac{1}{2}}", 1), ("$\\frac{1}{2}$", 1), ("x = 1/2", 1),
     ("0.5 kg", 1), ("It is 1/2", 1), ("1/3", 0), ("0.5 or 0.6", 0), ("1/3 = 1/2", 0),
     ("\\boxed{1} \\boxed{1/2}", 0), ("hello", 0)],
)  # fmt: skip
def test_math(answer, wanted):
    pytest.importorskip("math_verify")
    assert score("math", answer, text("1/2")) == wanted


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("3 4", "7"),  # math-verify adds numbers that are next to each other
        ("1 2 4", "7"),
        ("3(4)", "7"),
        ("(7)(8)", "15"),
        ("7 8 cm", "15"),
        ("\\frac{3}{1}4", "7"),
        ("3.4.5", "1.7"),
        ("5 cm", "5 kg"),
        ("5\\text{ cm}", "5\\text{ kg}"),
        ("5 m", "5 cm"),
        ("5 cm^2", "5 cm"),
        ("5 dollars", "5 euros"),
        ("7\\%", "0.07"),
        ("7|8", "7"),
        ("7\\\\ 8", "8"),
        ("7 → 8", "8"),
        ("7…8", "7"),
        ("7\\bmod 8", "8"),
        ("\\boxed{7}, 8", "7"),
        ("\\(7\\) 8", "8"),
        ("7, 8", "7"),
    ],
)
def test_math_reads_the_whole_answer_as_one_value(answer, truth):
    pytest.importorskip("math_verify")
    assert score("math", answer, text(truth)) == 0


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("5 cm", "5"),
        ("5", "5 cm"),
        ("$5$ cm", "5 cm"),
        ("5 cm^2", "5\\text{ cm}^2"),
        ("5 km/h", "5 km/h"),
        ("\\$5", "5"),
        ("7\\%", "7"),
        ("1 1/2", "1.5"),
        ("2\\frac{1}{2}", "2.5"),
        ("(x-1)(2x+3)", "(2x+3)(x-1)"),
        ("8, 7", "7, 8"),
        ("x = \\boxed{7}", "7"),
        ("The answer is $\\frac{1}{2}$.", "0.5"),
        ("\\sqrt[3]{8}", "2"),
        ("\\log_2 8", "3"),
        ("3\\times 10^4", "30000"),
        ("1,234.5", "1234.5"),
        ("90^\\circ", "90"),
    ],
)
def test_math_reads_each_spelling_of_the_truth(answer, truth):
    pytest.importorskip("math_verify")
    assert score("math", answer, text(truth)) == 1


def test_a_percent_sign_divides_only_on_request():
    pytest.importorskip("math_verify")
    assert score("math", "7%", text("0.07"), percent=True) == 1
    assert score("math", "7%", text("7"), percent=True) == 0
    assert score("math", "7%", text("7\\%"), percent=True) == 1


def test_a_truth_that_is_no_mathematics_is_a_fault_of_the_data():
    pytest.importorskip("math_verify")
    with pytest.raises(ValueError, match="not an expression"):
        score("math", "1", text("$$"))
