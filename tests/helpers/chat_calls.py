"""Questions to a chat server as a client sends them, and a small model to answer them."""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from PIL import Image

from helpers.small import CORPUS, model_config
from vlmrl.models.loading import load_model

RED = Image.new("RGB", (56, 84), "red")


def save_small_model(folder: Path) -> Path:
    """A checkpoint of random weights."""
    model = load_model(model_config(), CORPUS, seed=0)
    model.family.save(model.model, str(folder), model.model.state_dict())
    model.processor.save_pretrained(folder)
    return folder


def call(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} | headers
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            text = reply.read().decode()
            return reply.status, text if text.startswith("data:") else json.loads(text)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def question(**more: Any) -> dict[str, Any]:
    data = io.BytesIO()
    RED.save(data, format="PNG")
    url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    shown = {"type": "image_url", "image_url": {"url": url}}
    parts = [shown, {"type": "text", "text": "Where is the red shape?"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    return {"messages": messages, "max_tokens": 6, **more}
