"""TRL's prompts with a solution, as its GRPO examples and those of R1-V write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.layout import DataPlace, Layout
from vlmrl.parts.layouts.row_forms import media_columns, read_reply, read_turns

PROMPTS = ("prompt", "problem")
ANSWERS = ("solution", "ground_truth", "answer", "completion")


@dataclass(frozen=True)
class Trl(Layout):
    """A `prompt` (a text or messages) or `problem`, and its `solution`.

    A row: {"prompt": [{"role": "user", "content": "How many dogs?"}], "image": "a.jpg", "solution":
    "<answer> 2 </answer>"}. What stands in `<answer>` counts where a solution has it.

    Source: TRL, docs/source/dataset_formats.md and examples/scripts/grpo_vlm.py.
    """

    title: ClassVar[str] = "TRL prompt and solution"
    origin: ClassVar[str] = "TRL, von Werra et al. 2020, https://github.com/huggingface/trl"
    fields: ClassVar[Mapping[str, str]] = {
        "question": "prompt or problem",
        "system": "prompt",
        "history": "prompt",
        "image": "image or images",
        "answer": "solution, ground_truth, answer or completion",
        "boxes": "solution",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds prompts with solutions."""
        asked = next((key for key in PROMPTS if place.has_keys(key)), None)
        # `answer` beside `problem` and images is EasyR1's; a prompt with reward_model is verl's
        known = ANSWERS if asked == "prompt" else ANSWERS[:1]
        answer = next((key for key in known if place.has_keys(key)), None)
        if asked is None or answer is None or place.has_keys("reward_model"):
            return None
        return f"rows have `{asked}` and `{answer}`"

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        asked = next((key for key in PROMPTS if row.get(key) is not None), PROMPTS[0])
        answer = next((key for key in ANSWERS if row.get(key) is not None), ANSWERS[0])
        prompt, reply = row.get(asked), row.get(answer)
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(reply, list) and reply and isinstance(reply[-1], Mapping):
            reply = reply[-1].get("content")
        ours, _ = read_turns(prompt, media_columns(row), asked)
        return {"id": row.get("id"), **ours, **read_reply(reply, ours["question"], answer)}
