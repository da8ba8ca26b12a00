"""CharXiv's questions about charts, in its words (src/constants.py at 7ebe88f; lmms-eval has them too)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_X = "including the case when x-axis is shared across multiple subplots. "
_Y = "including the case when y-axis is shared across multiple subplots. "
_TWO_X = "When the x-axis is present on both the top and bottom of the plot, "
_TWO_Y = "When the y-axis is present on both the left and right of the plot, "
_UNITS = (
    "Ignore units or scales that are written separately from the tick, such as units and scales from "
    "the axis label or the corner of the plot."
)
_X_TICK = (
    f"Your final answer should be the tick value on the x-axis that is explicitly written, {_X}{_TWO_X}"
    f"answer based on the axis at the bottom. {_UNITS}"
)
_Y_TICK = (
    f"Your final answer should be the tick value on the y-axis that is explicitly written, {_Y}{_TWO_Y}"
    f"based on the axis at the left. {_UNITS}"
)
_STEP = (
    "tick value, or if the tick values are not numerical, or if the difference is not constant between "
    'all consecutive tick values, answer "Not Applicable".'
)
_LINES = "Ignore grid lines, tick marks, and any vertical or horizontal auxiliary lines."
_NO_LINES = (
    "If the plot does not contain any lines or is not considered a line plot, answer "
    '"Not Applicable".'
)
_LEGEND = (
    "Your final answer should account for only labels relevant to the plot in the legend, even if the "
    "legend is located outside the plot."
)
_NO_LEGEND = (
    "If the plot does not have a legend or no legend is not considered relevant to this plot, answer "
    '"Not Applicable".'
)
_PERCENT = "You should remove the percentage sign (if any) in your answer."
_NO_COLORBAR = (
    "If the plot does not have an explicit colorbar-based continuous legend or the legend is not "
    'considered relevant to this subplot, answer "Not Applicable".'
)
_COLORBAR = "of the tick labels on the continuous legend (i.e., colorbar)?"

_DESCRIPTIVE: dict[int, tuple[str, ...]] = {
    1: (
        "what is its title?",
        "Your final answer should be the most relevant title of the plot that is explicitly written.",
        "If the plot does not have an explicit title or contains only a letter, answer 'Not Applicable'."
        "\n    ",
    ),
    2: (
        "what is the label of the x-axis?",
        f"Your final answer should be the label of the x-axis that is explicitly written, {_X}{_TWO_X}"
        "answer the label of the x-axis at the bottom.",
        "If the plot does not have an explicit x-axis label, answer 'Not Applicable'.\n    ",
    ),
    3: (
        "what is the label of the y-axis?",
        f"Your final answer should be the label of the y-axis that is explicitly written, {_Y}{_TWO_Y}"
        "answer the label of the y-axis at the left.",
        "If the plot does not have an explicit y-axis label, answer 'Not Applicable'.",
    ),
    4: ("what is the leftmost labeled tick on the x-axis?", _X_TICK),
    5: ("what is the rightmost labeled tick on the x-axis?", _X_TICK),
    6: ("what is the spatially lowest labeled tick on the y-axis?", _Y_TICK),
    7: ("what is the spatially highest labeled tick on the y-axis?", _Y_TICK),
    8: (
        "what is difference between consecutive numerical tick values on the x-axis?",
        "Your final answer should be the difference between consecutive numerical tick values of the "
        f"x-axis, {_X}{_TWO_X}answer based on the axis at the bottom. {_UNITS}",
        f"If the plot does not have an explicit x-axis {_STEP}",
    ),
    9: (
        "what is difference between consecutive numerical tick values on the y-axis?",
        "Your final answer should be the difference between consecutive numerical tick values of the "
        f"y-axis, {_Y}{_TWO_Y}answer based on the axis at the left. {_UNITS}",
        f"If the plot does not have an explicit y-axis {_STEP}",
    ),
    10: (
        "how many lines are there?",
        f"Your final answer should be the number of lines in the plot. {_LINES}",
        _NO_LINES,
    ),
    11: (
        "do any lines intersect?",
        f'Your final answer should be "Yes" if any lines intersect, and "No" otherwise. {_LINES}',
        _NO_LINES,
    ),
    12: (
        "how many discrete labels are there in the legend?",
        f"{_LEGEND} ",
        _NO_LEGEND,
    ),
    13: (
        "what are the names of the labels in the legend?",
        "You should write down the labels from top to bottom, then from left to right and separate the "
        f"labels with commas. {_LEGEND}",
        _NO_LEGEND,
    ),
    14: (
        f"what is the difference between the maximum and minimum values {_COLORBAR}",
        _PERCENT,
        _NO_COLORBAR,
    ),
    15: (f"what is the maximum value {_COLORBAR}", f"{_PERCENT} ", _NO_COLORBAR),
    16: (
        "what is the general trend of data from left to right?",
        'Your final answer should be within a few words, such as "increases", "increases then '
        'stabilizes".',
    ),
    17: (
        "What is the total number of explicitly labeled ticks across all axes?",
        "Your final answer should be the total number of explicitly labeled ticks across all axes, "
        "including the case when any axis is shared across multiple subplots.",
    ),
    18: (
        "What is the layout of the subplots?",
        'Your final answer should follow "n by m" format, where n is the number of rows and m is the '
        "number of columns.",
        'If the plot does not contain subplots, answer "1 by 1".',
    ),
    19: (
        "What is the number of subplots?",
        "Your final answer should be the total number of subplots in the plot.",
        'If the plot does not contain subplots, answer "1".',
    ),
}
_REASONING: dict[int, tuple[str, ...]] = {
    1: (
        "Your final answer must be grounded to some text that is explicitly written and relevant to the "
        "question in the chart.",
        "If you need to answer multiple terms, separate them with commas.",
        "Unless specified in the question (such as answering with a letter), you are required to answer "
        "the full names of subplots and/or labels by default.",
    ),
    2: (
        "If there are options in the question, your final answer must conform to one of the options.",
        "If there are additional instructions in the question, follow them accordingly.",
        "If there are neither options nor additional instructions, you are allowed to respond with a "
        "short phrase only.",
    ),
    3: (
        "Your final answer must be grounded to a number that is exlicitly written and relevant to the "
        "question in the chart, even if it's an approximate value.",
        "You are allowed to extract numbers within some text when needed.",
    ),
}
KINDS = {
    **dict.fromkeys(range(1, 8), "Information Extraction"),
    **dict.fromkeys((8, 9, 13, 14, 15), "Enumeration"),
    **dict.fromkeys((11, 16, 18), "Pattern Recognition"),
    **dict.fromkeys((10, 12, 19), "Counting"),
    17: "Compositionality",
}
"""The kind of a descriptive question by the number of its template."""
ANSWER_KINDS = {
    1: "Text-in-Chart",
    2: "Text-in-General",
    3: "Number-in-Chart",
    4: "Number-in-General",
}
"""The kind of answer to a reasoning question by its number."""


def descriptive_question(template: int, row: Mapping[str, Any]) -> str:
    """Return a descriptive question about the subplot that a published row names."""
    asked = "\n    * ".join(_DESCRIPTIVE[template])
    if template in (18, 19):
        return asked
    if row["subplot_loc"] is not None:
        return f"For {row['subplot_loc']}, {asked}"
    if row["subplot_row"] == 0:
        return f"For the current plot, {asked}"
    return f"For the subplot at row {row['subplot_row']} and column {row['subplot_col']}, {asked}"


def reasoning_question(question: str, kind: int, right: str) -> str:
    """Return a reasoning question with what its answer has to be: a number as long as the right one."""
    if kind in _REASONING:
        return "\n    * ".join((question, *_REASONING[kind])) + "\n    "
    parts = right.split(".")
    form = f"a number with {len(parts[1])} decimal places" if parts[1:] else "an exact integer"
    return f"{question}\n    * Your final answer must be {form}.\n    "
