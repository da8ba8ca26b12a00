"""Compare our numbers for detection with those of lvis-api and of lmms-eval's ODinW-13, on random corpora.

    python tests/reference/compare_detections.py LMMS_EVAL LVIS [--corpora 40] [--seed 0]

The two folders are unpacked wheels (`make reference` fetches them). Exits with 1 if a number differs
by more than 1e-9.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import random
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from compare_rules import any_answer, lift

from vlmrl.benchmarking.aggregates import Detections, Rows, estimate, pool
from vlmrl.benchmarking.scorers.boxes import odinw_row
from vlmrl.schema import Box, Frame, Sample, Truth

CLASSES = ("cat", "dog", "Red fox", "owl")
SIZE = (640, 480)


def any_corner_box(draw: random.Random) -> list[float]:
    """Draw a box xyxy in pixels."""
    x, y = draw.uniform(0, 500), draw.uniform(0, 380)
    box = [x, y, x + draw.uniform(5, 130), y + draw.uniform(5, 90)]
    return [float(round(n)) for n in box] if draw.random() < 0.5 else box


def near(draw: random.Random, box: Sequence[float]) -> list[float]:
    """Return a box moved by little."""
    move = draw.choice((0, 1, 3, 10))
    x1, y1, x2, y2 = (n + draw.uniform(-move, move) for n in box)
    return [x1, y1, max(x2, x1 + 1), max(y2, y1 + 1)]


# --------------------------------------------------------------------------------------------- LVIS
def lvis_corpus(draw: random.Random) -> list[Detections]:
    images = []
    for _ in range(draw.randint(1, 12)):
        right = [
            (any_corner_box(draw), draw.choice(CLASSES[:3])) for _ in range(draw.randint(0, 5))
        ]
        found = [(near(draw, box), draw.choice((name, *CLASSES))) for box, name in right * 2]
        found += [(any_corner_box(draw), draw.choice(CLASSES)) for _ in range(draw.randint(1, 4))]
        names = {name for _, name in right}
        absent = {name for name in CLASSES if name not in names and draw.random() < 0.5}
        partial = {name for name in names if draw.random() < 0.3}
        images.append(
            Detections(
                np.array([box for box, _ in found]).reshape(-1, 4),
                tuple(name for _, name in found),
                tuple(draw.choice((0.5, 0.9, draw.random())) for _ in found),
                np.array([box for box, _ in right]).reshape(-1, 4),
                tuple(name for _, name in right),
                (False,) * len(right),
                frozenset(names | absent),
                frozenset(partial),
            )
        )
    return images


def lvis_numbers(images: Sequence[Detections], modules: Any) -> list[float]:
    """AP and AP50 of lvis-api."""
    number = {name: i for i, name in enumerate(CLASSES, start=1)}
    annotations, found = [], []
    for row, image in enumerate(images, start=1):
        for box, name in zip(image.right.tolist(), image.right_labels, strict=True):
            size = [box[2] - box[0], box[3] - box[1]]
            one = {"id": len(annotations) + 1, "image_id": row, "category_id": number[name]}
            annotations.append({**one, "bbox": box[:2] + size, "area": size[0] * size[1]})
        for box, name, score in zip(
            image.found.tolist(), image.found_labels, image.scores, strict=True
        ):
            one = {"image_id": row, "category_id": number[name], "score": score}
            found.append({**one, "bbox": [*box[:2], box[2] - box[0], box[3] - box[1]]})
    truth = modules.LVIS.__new__(modules.LVIS)
    truth.logger = logging.getLogger("lvis")
    truth.dataset = {
        "images": [
            {
                "id": row,
                "neg_category_ids": [number[n] for n in one.verified - set(one.right_labels)],
            }
            | {"not_exhaustive_category_ids": [number[name] for name in one.partial]}
            for row, one in enumerate(images, start=1)
        ],
        "annotations": annotations,
        "categories": [{"id": i, "name": n, "frequency": "f"} for n, i in number.items()],
    }
    truth._create_index()
    judged = modules.LVISEval(truth, modules.LVISResults(truth, found), "bbox")
    judged.evaluate()
    judged.accumulate()
    judged.summarize()
    return [judged.results["AP"], judged.results["AP50"]]


def compare_lvis(folder: Path, corpora: int, seed: int) -> float:
    """Return the largest difference."""
    np.float = float  # type: ignore[attr-defined]  # lvis-api is older than numpy 1.24
    package = types.ModuleType("lvis")  # its own __init__ asks for OpenCV
    package.__path__ = [str(folder / "lvis")]
    sys.modules["lvis"] = package
    names = {"lvis": "LVIS", "results": "LVISResults", "eval": "LVISEval"}
    parts = {
        one: getattr(importlib.import_module(f"lvis.{file}"), one) for file, one in names.items()
    }
    lvis = types.SimpleNamespace(**parts)
    worst = 0.0
    for corpus in range(corpora):
        images = lvis_corpus(random.Random(f"{seed} {corpus}"))
        if not any(image.right_labels for image in images):
            continue
        ones = np.ones((1, len(images)))
        ours = [pool(images, True, part)(ones)[0] for part in (slice(None), slice(0, 1))]
        theirs = lvis_numbers(images, lvis)
        worst = max(worst, *(abs(a - b) for a, b in zip(ours, theirs, strict=True)))
    return worst


# --------------------------------------------------------------------------------------------- ODinW
def odinw_doc(draw: random.Random, number: int) -> dict[str, Any]:
    names = draw.sample(CLASSES, draw.randint(1, 3))
    right = [(any_corner_box(draw), draw.choice(names)) for _ in range(draw.randint(0, 4))]
    return {
        "dataset_name": draw.choice(("Aquarium", "Raccoon", "pothole")),
        "categories": names,
        "bboxes": [box for box, _ in right],
        "labels": [name for _, name in right],
        "image_width": SIZE[0],
        "image_height": SIZE[1],
        "image_id": number,
    }


def odinw_answer(draw: random.Random, doc: dict[str, Any]) -> str:
    found = []
    for box, name in zip(doc["bboxes"] * 2, doc["labels"] * 2, strict=True):
        moved = near(draw, box) if draw.random() < 0.8 else any_corner_box(draw)
        scale = draw.choice((1, 1, 1000, 1e-9))
        if scale != 1:
            unit = 1000 if scale == 1000 else 1
            moved = [n / s * unit for n, s in zip(moved, SIZE * 2, strict=True)]
        key = draw.choice(("bbox_2d", "bbox", "box"))
        label = draw.choice((name, name.upper(), *CLASSES, None))
        found.append({key: moved, draw.choice(("label", "class", "other")): label})
    text = json.dumps(draw.choice((found, {"objects": found}, [found])))
    wrapped = (text, f"```json\n{text}\n```", any_answer(draw) + text, text[:-2], text + '"}{"')
    loose = " ".join(str(n) for one in found for n in next(iter(one.values())))
    return draw.choice((*wrapped, text, loose, any_answer(draw), "[]"))


def odinw_numbers(folder: Path) -> dict[str, Any]:
    file = folder / "lmms_eval/tasks/odinw13/utils.py"
    names = [
        *("_norm_label", "_extract_all_objects", "_extract_json_blocks", "_flatten_predictions"),
        *("_parse_predictions", "_iou", "_center_in", "_greedy_match", "_try_bbox_variants"),
        *("_best_variant_pred", "odinw13_process_results", "_macro_average_by_dataset"),
        *("_coco_eval_one_dataset", "_macro_map", "IOU_THRESHOLDS", "ODINW13_SUBSETS"),
        *("MAP_METRIC_KEYS", "odinw13_map", "odinw13_map50"),
    ]
    given = {"json": json, "Tuple": tuple, "eval_logger": logging.getLogger("odinw")}
    return lift(file, *names, **given)


def compare_odinw(folder: Path, corpora: int, seed: int) -> float:
    """Return the largest difference of mAP, mAP50 and ACC@0.5."""
    theirs, worst = odinw_numbers(folder), 0.0
    for corpus in range(corpora):
        draw = random.Random(f"{seed} odinw {corpus}")
        docs = [odinw_doc(draw, number) for number in range(draw.randint(1, 15))]
        if not any(doc["bboxes"] for doc in docs):
            continue
        answers = [odinw_answer(draw, doc) for doc in docs]
        records = [
            theirs["odinw13_process_results"](doc, [answer])["odinw13_IoU"]
            for doc, answer in zip(docs, answers, strict=True)
        ]
        rows = [odinw_row(a, _sample(d), Frame(*SIZE)) for a, d in zip(answers, docs, strict=True)]
        empty = [""] * len(docs)
        by = [doc["dataset_name"] for doc in docs]
        scores = np.array([share for _, share in rows])
        table = Rows(scores, by, empty, empty, [one for one, _ in rows])
        wanted = {
            "ap_of_groups": theirs["odinw13_map"](records),
            "ap50_of_groups": theirs["odinw13_map50"](records),
            "mean_over_truths_of_groups": theirs["_macro_average_by_dataset"](
                records, lambda record: record["acc_sum"][0.5]
            ),
        }
        clusters = [str(n) for n in range(len(docs))]
        for name, value in wanted.items():
            worst = max(worst, abs(estimate(name, table, clusters, resamples=1)[0] - value))
    return worst


def _sample(doc: dict[str, Any]) -> Sample:
    unit = [[n / s for n, s in zip(box, SIZE * 2, strict=True)] for box in doc["bboxes"]]
    boxes = [Box(*box, label=name) for box, name in zip(unit, doc["labels"], strict=True)]
    return Sample("row", "odinw13", ("?",), Truth(boxes=tuple(boxes)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lmms_eval", type=Path)
    parser.add_argument("lvis", type=Path)
    parser.add_argument("--corpora", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.disable()
    with contextlib.redirect_stdout(io.StringIO()):
        lvis = compare_lvis(asked.lvis, asked.corpora, asked.seed)
        odinw = compare_odinw(asked.lmms_eval, asked.corpora, asked.seed)
    worst = {"LVIS, AP and AP50": lvis, "ODinW-13, mAP, mAP50, ACC@0.5": odinw}
    for name, value in worst.items():
        print(f"{name:32} differ by at most {value:.1e} on {asked.corpora} corpora")
    sys.exit(int(max(worst.values()) > 1e-9))


if __name__ == "__main__":
    main()
