"""One case per shipped verifier: truths that suit it, the perfect answer, junk, and option sets.

The option sets are the published ones that the docstrings name, so that every variant is exercised.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from vlmrl.schema import Box, Frame, Point, Span, Track, Truth

FRAME = Frame(100, 100, duration=100.0)


@dataclass(frozen=True)
class Case:
    """What the property tests need to know of one item verifier.

    `perfect(truth)` is an answer that must score the verifier's best; `junk(answer)` is the same
    answer with something added that must not raise the score. Sets in `loose` may be paid for junk,
    as their docstrings say.
    """

    truths: st.SearchStrategy[Truth]
    perfect: Callable[[Truth], str]
    junk: Callable[[str], str] = lambda answer: f"{answer} zzzz"
    options: tuple[dict[str, Any], ...] = ({},)
    loose: tuple[dict[str, Any], ...] = ()
    template: str = "none"
    shuffles: bool = False


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
    return Truth(track=Track(tuple(map(float, times)), found))


@st.composite
def mask_truths(draw: st.DrawFn) -> Truth:
    found = draw(st.lists(boxes(), min_size=1, max_size=3))
    return Truth(masks=tuple(((b.x1, b.y1), (b.x2, b.y1), (b.x2, b.y2)) for b in found))


@st.composite
def choice_truths(draw: st.DrawFn) -> Truth:
    options = draw(st.lists(word.filter(lambda w: len(w) > 1), min_size=2, max_size=6, unique=True))
    return Truth(choice="ABCDEF"[draw(st.integers(0, len(options) - 1))], options=tuple(options))


label_truths = st.sets(word, min_size=1, max_size=5).map(lambda s: Truth(labels=tuple(sorted(s))))
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


def more_items(item: str) -> Callable[[str], str]:
    """Adds one item to the end of a JSON list."""
    return lambda answer: f"{answer[:-1]}, {item}]" if answer.endswith("]") else answer


def twice(answer: str) -> str:
    """A JSON list with each item twice."""
    return json.dumps(json.loads(answer) * 2)


V_TRIUNE = {"cut": True, "weights": {"truth_iou": 0.7, "completeness": 0.3}, "penalty": 0.6}
GRIFFON = {"quality": "giou", "cut": True, "weights": {"pair_iou": 1.0, "criterion_recall": 1.0}}

CASES: dict[str, Case] = {
    "asr": Case(texts, write_text, options=({}, {"measure": "cer"})),
    "bmas": Case(texts, write_text, options=({},), loose=({"length_penalty": False},)),
    "box_iou": Case(
        one_box,
        write_box,
        junk=lambda answer: f"[{answer}, {answer}]",
        options=(
            {},
            {"threshold": 0.5},
            {"threshold": 0.5, "binary": True},
            {"measure": "giou"},
            {"measure": "ciou"},
            {"iou_weight": 0.25, "centre_weight": 1.0, "size_weight": 0.125},
            {"several": "first"},
            {"threshold": 0.85},
        ),
        loose=({"official": "lmms_eval"}, {"official": "vlmevalkit"}),
    ),
    "calibration": Case(texts, write_text, options=({}, {"form": "log"})),
    "chart": Case(
        texts | counts.map(lambda t: Truth(text=(f"{t.number:g}",))),
        write_text,
        junk=lambda answer: f"{answer} 7777",
        loose=({"official": "lmms_eval"},),
    ),
    "choice": Case(choice_truths(), lambda t: t.choice or "", junk=lambda answer: f"{answer} A B"),
    "class_name": Case(texts, write_text, options=({}, {"aliases": {"abc": ["cab"]}})),
    "confidence": Case(
        many_boxes,
        write_boxes,
        junk=twice,
        options=({}, {"form": "brier"}),
        loose=({"form": "visual_rft"},),
        shuffles=True,
    ),
    "count": Case(counts, write_number, lambda a: f"{a} 7777", options=({}, {"graded": True})),
    "detection": Case(
        many_boxes,
        write_boxes,
        junk=twice,
        options=(
            {},
            {"weights": {"f1": 1.0}},
            {"weights": {"iou": 1.0, "f1": 1.0, "precision": 1.0}},
            {"cut": True, "threshold": [0.5, 0.75, 0.95, 0.99]},
            {"check_labels": False},
        ),
        loose=(
            {"matching": "greedy_iou", "cut": True},
            {"weights": {"map": 1.0}, "length_factor": True},
            {"matching": "label_first", **V_TRIUNE, "threshold": 0.85},
            {"matching": "greedy_iou", **V_TRIUNE, "threshold": 0.99},
            {"matching": "greedy_confidence", "use_confidence": True, "cut": True},
            {"matching": "greedy_iou", "cut": True, "weights": V_TRIUNE["weights"]},
            {"weights": {"map": 1.0}},
            {"weights": {"ap50": 1.0, "ap75": 1.0, "recall": 1.0}},
            {**GRIFFON, "saturate": 0.75},
        ),
        shuffles=True,
    ),
    "events": Case(
        event_truths(),
        write_events,
        junk=more_items('{"start": 98.5, "end": 99.5, "label": "dog"}'),
        options=({}, {"measure": "event"}, {"measure": "segment"}),
        shuffles=True,
    ),
    "exact": Case(texts, write_text, options=({}, {"normalise": False})),
    "format": Case(
        st.just(Truth()),
        lambda _: "<think>\nwhy\n</think>\n<answer>\n7\n</answer>",
        junk=lambda text: f"{text}</answer>",
        options=(
            {},
            {"partial": True},
            {"own_lines": True},
            {"partial": True, "own_lines": True},
            {"content": "number"},
        ),
        template="think_answer",
    ),
    "gui_action": Case(action_truths(), write_action, options=({}, {"radius": 0.2})),
    "json_fields": Case(
        field_truths,
        lambda t: json.dumps(t.fields),
        junk=lambda answer: f"{answer} {answer}",
        options=({}, {"ordered": True}, {"weights": {"a": 0.25, "b": 0.75}, "ordered": True}),
    ),
    "labels": Case(
        label_truths,
        write_labels,
        junk=lambda answer: f"{answer}, zzzz",
        options=(
            {},
            {"measure": "jaccard"},
            {"measure": "exact"},
            {"measure": "exact", "fatal": True, "subset_credit": 0.5},
            {"measure": "recall", "fatal": True, "negative": "No Finding", "negative_credit": 0.25},
        ),
    ),
    "length_overlong": Case(
        st.just(Truth()), lambda _: "short", options=({"limit": 20, "buffer": 10},)
    ),
    "mask_iou": Case(mask_truths(), write_masks, junk=twice, shuffles=True),
    "math": Case(numbers, write_number, junk=lambda answer: f"{answer}, 7777"),
    "ndcg": Case(label_truths, write_labels, lambda a: f"zzzz, {a}", options=({}, {"top": 3})),
    "number": Case(
        numbers,
        write_number,
        junk=lambda answer: f"{answer} 7777.5",
        options=({}, {"tolerance": 1.0}, {"relative": 0.05}, {"decimals": 2}, {"percent": True}),
    ),
    "ocr": Case(
        texts,
        write_text,
        options=(
            {},
            {"measure": "wer", "ignore_case": False},
            {"measure": "anls"},
            {"measure": "anls", "cut": 0.0},
            {"measure": "exact"},
        ),
        loose=({"official": "lmms_eval"}, {"official": "vlmevalkit"}),
    ),
    "point": Case(
        point_truths,
        write_points,
        junk=twice,
        options=({}, {"measure": "gaussian"}, {"measure": "distance", "radius": 0.14}),
        shuffles=True,
    ),
    "refusal": Case(st.just(Truth(none=True)), lambda _: "I don't know"),
    "regression": Case(
        numbers,
        write_number,
        junk=lambda answer: f"{answer} 7777.5",
        options=tuple({"measure": m} for m in ("relative", "symmetric", "absolute", "step", "mra")),
    ),
    "repetition": Case(
        st.just(Truth()), lambda _: "one two three", lambda a: f"{a} {a}", options=({}, {"size": 1})
    ),
    "temporal_iou": Case(
        span_truths(),
        write_spans,
        junk=more_items("[98.5, 99.5]"),
        options=({}, {"union": "hull"}, {"threshold": 0.5, "binary": True}),
        shuffles=True,
    ),
    "text": Case(
        texts,
        write_text,
        options=tuple(
            {"measure": m} for m in ("rouge", "rouge1", "rouge2", "rougeL", "bleu", "token_f1")
        ),
    ),
    "think_or_not": Case(
        st.just(Truth()),
        lambda _: "<think>why</think><answer>7</answer>",
        junk=lambda text: f"{text}</answer>",
        options=({}, {"mode": "think"}),
        template="think_or_not",
    ),
    "track": Case(track_truths(), write_track, junk=twice),
    "yes_no": Case(
        st.sampled_from(["yes", "no"]).map(lambda w: Truth(text=(w,))),
        write_text,
        junk=lambda answer: f"{answer} yes no",
    ),
}
