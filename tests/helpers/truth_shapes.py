"""Random truths of every shape that `Laws` can name, each with the answer that states it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from vlmrl.schema import AnswerForm, Box, BoxTrack, Frame, Point, Span, Truth
from vlmrl.scoring.verifier import Laws, Verifier
from vlmrl.truths import json_form, prompting
from vlmrl.truths.base import kinds

FRAME = Frame(100, 100, duration=100.0)


# ------------------------------------------------------------------------------------- truths

pixel = st.integers(0, 100)
word = st.text(alphabet="abcdefgh", min_size=1, max_size=6)
phrase = st.lists(word, min_size=1, max_size=5).map(" ".join)
texts = st.lists(phrase, min_size=1, max_size=3).map(lambda t: Truth(text=tuple(t)))
numbers = st.integers(-5000, 5000).map(lambda n: Truth(number=float(n)))
counts = st.integers(0, 300).map(lambda n: Truth(number=float(n)))


@st.composite
def boxes(draw: st.DrawFn, labels: st.SearchStrategy[str | None] = st.none()) -> Box:
    x1, y1 = draw(st.integers(0, 95)), draw(st.integers(0, 95))
    x2, y2 = draw(st.integers(x1 + 5, 100)), draw(st.integers(y1 + 5, 100))
    return Box(x1 / 100, y1 / 100, x2 / 100, y2 / 100, draw(labels))


one_box = boxes().map(lambda b: Truth(boxes=(b,)))
labelled = st.lists(boxes(st.sampled_from(["cat", "dog", "a bird"])), min_size=1, max_size=6)
many_boxes = labelled.map(lambda b: Truth(boxes=tuple(b)))
share = pixel.map(lambda value: value / 100)
point_truths = st.lists(st.builds(Point, share, share), min_size=1, max_size=4).map(
    lambda p: Truth(points=tuple(p))
)


@st.composite
def span_truths(draw: st.DrawFn) -> Truth:
    cuts = sorted(draw(st.lists(st.integers(0, 100), min_size=2, max_size=8, unique=True)))
    cuts = cuts[: len(cuts) // 2 * 2]
    return Truth(spans=tuple(Span(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True)))


@st.composite
def event_truths(draw: st.DrawFn) -> Truth:
    """Events that may overlap, those of one label too."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, 97))
        end = draw(st.integers(start + 1, 98))
        found.append(Span(start, end, draw(st.sampled_from(["dog", "rain", "a car"]))))
    return Truth(spans=tuple(found))


@st.composite
def track_truths(draw: st.DrawFn) -> Truth:
    times = sorted(draw(st.sets(st.integers(0, 50), min_size=1, max_size=6)))
    found = tuple(draw(boxes()) for _ in times)
    return Truth(track=BoxTrack(tuple(map(float, times)), found))


@st.composite
def mask_truths(draw: st.DrawFn) -> Truth:
    found = draw(st.lists(boxes(), min_size=1, max_size=3))
    return Truth(masks=tuple(((b.x1, b.y1), (b.x2, b.y1), (b.x2, b.y2)) for b in found))


@st.composite
def choice_truths(draw: st.DrawFn) -> Truth:
    options = draw(st.lists(word.filter(lambda w: len(w) > 1), min_size=2, max_size=6, unique=True))
    return Truth(choice="ABCDEF"[draw(st.integers(0, len(options) - 1))], options=tuple(options))


label_truths = st.sets(word, min_size=1, max_size=5).map(lambda s: Truth(labels=tuple(sorted(s))))
order_truths = st.lists(word, min_size=2, max_size=6, unique=True).map(
    lambda names: Truth(more={"order": tuple(names)})
)
field_truths = st.dictionaries(word, word | st.integers(0, 99), min_size=1, max_size=4).map(
    lambda f: Truth(fields=f)
)


@st.composite
def action_truths(draw: st.DrawFn) -> Truth:
    action = {"action": draw(st.sampled_from(["click", "type", "home"]))}
    if action["action"] == "click":
        return draw(one_box.map(lambda t: Truth(fields=action, boxes=t.boxes)))
    typed = (draw(phrase),) if action["action"] == "type" else None
    return Truth(fields=action, text=typed)


# ------------------------------------------------------------------------------ perfect answers


def _whole(values: Any) -> list[int]:
    return [round(100 * value) for value in values]


def write_boxes(truth: Truth) -> str:
    assert truth.boxes is not None
    return json.dumps(
        [{"bbox_2d": _whole(b.xyxy), "label": b.label, "confidence": 1.0} for b in truth.boxes]
    )


def write_box(truth: Truth) -> str:
    assert truth.boxes is not None
    return json.dumps({"bbox_2d": _whole(truth.boxes[0].xyxy)})


def write_pointed_boxes(truth: Truth) -> str:
    return prompting.write(truth, FRAME, AnswerForm(("boxes",), pointed=True)) or ""


def write_points(truth: Truth) -> str:
    return json.dumps([_whole((p.x, p.y)) for p in truth.points or ()])


def write_spans(truth: Truth) -> str:
    return json.dumps([[s.start, s.end] for s in truth.spans or ()])


def write_events(truth: Truth) -> str:
    return json.dumps(
        [{"start": s.start, "end": s.end, "label": s.label} for s in truth.spans or ()]
    )


def write_track(truth: Truth) -> str:
    assert truth.track is not None
    rows = zip(truth.track.times, truth.track.boxes, strict=True)
    return json.dumps([{"time": t, "bbox_2d": _whole(b.xyxy)} for t, b in rows])


def write_masks(truth: Truth) -> str:
    return json.dumps([{"polygon": [_whole(c) for c in mask]} for mask in truth.masks or ()])


def write_action(truth: Truth) -> str:
    assert truth.fields is not None
    action: dict[str, Any] = {"action": truth.fields["action"].upper()}
    if truth.boxes:
        b = truth.boxes[0]
        action["position"] = [50 * (b.x1 + b.x2), 50 * (b.y1 + b.y2)]
    return json.dumps(action | ({"value": truth.text[0]} if truth.text else {}))


def write_text(truth: Truth) -> str:
    return (truth.text or ("",))[0]


def write_number(truth: Truth) -> str:
    return f"{truth.number:g}"


def write_labels(truth: Truth) -> str:
    return ", ".join(truth.labels or ())


def write_order(truth: Truth) -> str:
    return ", ".join(truth.value("order"))


def write_choice(truth: Truth) -> str:
    return truth.choice or ""


def write_fields(truth: Truth) -> str:
    return json.dumps(truth.fields)


def shape_of_kind(name: str) -> tuple[st.SearchStrategy[Truth], Callable[[Truth], str]]:
    """Truths of a kind that has no shape here: the examples of its own file, at whole pixels."""
    stated = [
        json_form.to_json(json_form.convert(t.value(name), FRAME))
        for _, t in kinds()[name].examples()
    ]
    truths = [json_form.read({name: _round(value)}, FRAME) for value in stated]

    def write(truth: Truth) -> str:
        text = prompting.write(truth, FRAME) or ""
        return text if text.startswith("[") else f"[{text}]"

    return st.sampled_from(truths), write


def _round(value: Any) -> Any:
    if isinstance(value, list):
        return [_round(part) for part in value]
    if isinstance(value, dict):
        return {key: _round(part) for key, part in value.items()}
    return round(value) if isinstance(value, float) else value


SHAPES: dict[str, tuple[st.SearchStrategy[Truth], Callable[[Truth], str]]] = {
    "boxes": (many_boxes, write_boxes),
    "pointed boxes": (many_boxes, write_pointed_boxes),
    "one box": (one_box, write_box),
    "points": (point_truths, write_points),
    "spans": (span_truths(), write_spans),
    "labelled spans": (event_truths(), write_events),
    "track": (track_truths(), write_track),
    "masks": (mask_truths(), write_masks),
    "choice": (choice_truths(), write_choice),
    "labels": (label_truths, write_labels),
    "order": (order_truths, write_order),
    "fields": (field_truths, write_fields),
    "action": (action_truths(), write_action),
    "text": (texts, write_text),
    "numeral": (counts.map(lambda t: Truth(text=(f"{t.number:g}",))), write_text),
    "number": (numbers, write_number),
    "count": (counts, write_number),
    "yes or no": (st.sampled_from(["yes", "no"]).map(lambda w: Truth(text=(w,))), write_text),
    "none": (st.just(Truth(none=True)), lambda _: "[]"),
    "anything": (st.just(Truth()), lambda _: ""),
}
SHAPES |= {
    name: shape_of_kind(name)
    for name, kind in kinds().items()
    if kind.placed and name not in SHAPES
}


def truths_of(verifier: type[Verifier]) -> st.SearchStrategy[tuple[Truth, str]]:
    """Truths that suit a verifier, each with the answer that scores its best."""
    laws = verifier.laws
    shapes = laws.truth or verifier.needs[:1] or ("anything",)
    unknown = [shape for shape in shapes if shape not in SHAPES]
    assert not unknown, f"laws: no truths of shape {unknown}; name some of {', '.join(SHAPES)}"
    return st.one_of(
        truths.map(lambda truth, write=write: (truth, laws.best or write(truth)))
        for truths, write in (SHAPES[shape] for shape in shapes)
    )


def with_junk(laws: Laws, answer: str) -> str:
    """The answer with the junk that `Laws.junk` describes."""
    if "ITEMS" in laws.junk:
        whole = answer.startswith("[") and answer.endswith("]")
        return laws.junk.replace("ITEMS", answer[1:-1]) if whole else answer
    return laws.junk.replace("ANSWER", answer)
