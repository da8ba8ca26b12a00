"""LLaMA-Factory's `dataset_info.json`: a ShareGPT set with columns and tags of its own, and an Alpaca set."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Written, answer_truth, draw


def write(folder: Path) -> Written:
    drawn = draw(folder)
    rows = [
        {
            "talk": [
                {"role": "user", "content": f"<image>{image.question}"},
                {"role": "assistant", "content": image.answer},
            ],
            "photos": [image.name],
        }
        for image in drawn
    ]
    (folder / "chats.json").write_text(json.dumps(rows))
    info = {
        "chats": {
            "file_name": "chats.json",
            "formatting": "sharegpt",
            "columns": {"messages": "talk", "images": "photos"},
            "tags": {
                "role_tag": "role",
                "content_tag": "content",
                "user_tag": "user",
                "assistant_tag": "assistant",
            },
        },
        "of a hub": {"hf_hub_url": "somebody/something"},
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return Written({"path": str(folder)}, [answer_truth(image) for image in drawn])


def spoil(folder: Path) -> str:
    rows = json.loads((folder / "chats.json").read_text())
    rows[1]["talk"][1]["content"] = " "
    (folder / "chats.json").write_text(json.dumps(rows))
    return r"chats\.json item 1: key 'conversations': expected an answer"
