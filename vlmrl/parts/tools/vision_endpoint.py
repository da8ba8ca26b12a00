"""One question on one image to an OpenAI-style endpoint of the user's."""

from __future__ import annotations

import os

from PIL import Image

from vlmrl.interaction.tool import Shown
from vlmrl.named_models.asked import image_part, text_part
from vlmrl.schema import Box
from vlmrl.system.chat_endpoint import chat

WHOLE = Box(0.0, 0.0, 1.0, 1.0)


def ask(url: str, model: str, shown: Shown, prompt: str, key_variable: str, seconds: float) -> str:
    """Return what a model says of an image.

    Raises:
        Unavailable: no reply in time, or an error status.
        Invalid: a reply that is no chat completion.
    """
    assert isinstance(shown.medium, Image.Image)
    content = [image_part(shown.medium), text_part(prompt)]
    body = {"model": model, "messages": [{"role": "user", "content": content}], "temperature": 0}
    return chat(url, body, os.environ.get(key_variable), seconds).text
