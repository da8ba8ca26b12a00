"""Prompts of each kind of media that every family is shown alike, and groups of completions behind them."""

from __future__ import annotations

import dataclasses

from helpers.prompts import ask, image
from helpers.shared_forward import micro_batch
from helpers.small import audio
from helpers.videos import video

MEDIA = {
    "text": lambda: [[], []],
    "image": lambda: [[image((84, 56))], [image((300, 90)), image((100, 100))]],
    "video": lambda: [[video(8, fps=4.0, size=(112, 84))], [video(5, fps=2.0, size=(84, 56))]],
    "audio": lambda: [[audio(0.5)], [audio(1.3), audio(0.4)]],
}
"""Kind -> the media of two prompts; one video each, which is what vLLM takes of every family."""


def media_of(family):
    """The kinds of prompts of a family."""
    return ("text", *family.kinds)


def prompts_of(made, medium):
    """Two prompts of unequal length that show this kind of media."""
    shown = MEDIA[medium]()
    return tuple(ask(made, *m, text="Where is it?" + " red" * i) for i, m in enumerate(shown))


def groups_of(made, medium):
    """A micro-batch of three completions behind the first of them and two behind the second."""
    return dataclasses.replace(micro_batch(made, (0, 0), (3, 2)), prompts=prompts_of(made, medium))
