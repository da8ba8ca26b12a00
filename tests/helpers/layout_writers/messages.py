"""Chats as lists of messages, in JSONL; the second has a system turn and a turn before."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Written, answer_truth, draw


def write(folder: Path) -> Written:
    drawn = draw(folder)
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"<image>{each.question}"},
                {
                    "role": "assistant",
                    "content": f"<think>I look.</think><answer>{each.answer}</answer>",
                },
            ],
            "images": [each.name],
        }
        for each in drawn
    ]
    rows[1]["messages"] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello"},
        *rows[1]["messages"],
    ]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Written({"path": str(folder)}, [answer_truth(each) for each in drawn])


def spoil(folder: Path) -> str:
    lines = (folder / "train.jsonl").read_text().splitlines()
    lines[1] = lines[1].replace("<image>", "<image><image>")
    (folder / "train.jsonl").write_text("\n".join(lines))
    return r"train\.jsonl:2: key 'messages': expected a <image> for each image, got 2 for 1"
