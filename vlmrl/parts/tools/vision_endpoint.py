"""The base of tools that ask another model about an image, at an OpenAI-style endpoint of the user's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from vlmrl.interaction.tool import Shown, Tool
from vlmrl.named_models.asked import image_part, text_part
from vlmrl.system.chat_endpoint import chat


@dataclass(frozen=True)
class EndpointTool(Tool):
    """A tool whose answer another model gives; a subclass sets `prompt`."""

    pure: ClassVar[bool] = False
    waits: ClassVar[bool] = True

    url: str
    """Base address of the endpoint, `http://localhost:8000/v1`."""
    model: str = "default"
    """Name of the model there."""
    prompt: str = ""
    """What it is asked."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the key; unset: none is sent."""
    timeout_s: float = 30.0
    """Seconds that a reply may take."""

    @property
    def time_limit_s(self) -> float:
        """Return the seconds that a call may take."""
        return self.timeout_s + 5

    def ask(self, shown: Shown, prompt: str) -> str:
        """Return what the model says of an image.

        Raises:
            Unavailable: no reply in time, or an error status.
            Invalid: a reply that is no chat completion.
        """
        assert isinstance(shown.medium, Image.Image)
        content = [image_part(shown.medium), text_part(prompt)]
        messages = [{"role": "user", "content": content}]
        body = {"model": self.model, "messages": messages, "temperature": 0}
        return chat(self.url, body, os.environ.get(self.key_variable), self.timeout_s).text
