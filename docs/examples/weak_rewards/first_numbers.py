"""Weak on purpose: do not train with this. `vlmrl verify` shows why."""

import re

from vlmrl.schema import Completion, Truth


def score(completion: Completion, truth: Truth) -> float:
    """Return the IoU of the first four numbers in brackets, anywhere in the text.

    It reads the thought as well as the answer, neither orders nor crops corners, and believes any
    number: an inverted box has a negative area, which makes the union small.
    """
    assert truth.boxes is not None
    found = re.search(r"\[([-\d., ]+)\]", completion.text)
    numbers = [float(n) for n in found[1].split(",")] if found else []
    if len(numbers) != 4:
        return 0.0
    width, height = completion.frame.width or 1, completion.frame.height or 1
    x1, y1, x2, y2 = (n / size for n, size in zip(numbers, (width, height) * 2, strict=True))
    box = truth.boxes[0]
    overlap = (min(x2, box.x2) - max(x1, box.x1)) * (min(y2, box.y2) - max(y1, box.y1))
    union = (x2 - x1) * (y2 - y1) + (box.x2 - box.x1) * (box.y2 - box.y1) - overlap
    return overlap / union
