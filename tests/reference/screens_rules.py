"""The rules of screens, and VLMEvalKit's of MMMU and MathVista, compared with their own code."""

from __future__ import annotations

import ast
import copy
import functools
import io
import itertools
import json
import logging
import math
import os
import random
import string
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from answers import OPTIONS, Quiet, Rule, Table, any_answer, any_options, any_places, lift

from vlmrl.benchmark_rules import letters, screens
from vlmrl.benchmarking.aggregates import Rows, estimate


def vlmeval_screen_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield VLMEvalKit's rules of MMMU and MathVista: from a random state to (theirs, ours)."""
    matching = root / "vlmeval/utils/matching_util.py"
    if "_VERBOSE_ANSWER_RE" not in matching.read_text():
        print(
            "vlmeval_mmmu, vlmeval_mathvista: not compared, this version is older than 'answer is B'"
        )
        return
    names = ("can_infer", "can_infer_option", "can_infer_text", "_VERBOSE_ANSWER_RE")
    infer = lift(matching, *names, cp=copy)["can_infer"]
    yield "vlmeval_mmmu", _mmmu(root, infer)
    yield "vlmeval_mathvista", _mathvista(root, infer)


def _mmmu(root: Path, infer: Callable[..., Any]) -> Rule:
    """Compare with the answer map and the options of `mcq_vanilla_eval`; a judge is asked for Z."""
    import pandas

    prepare = lift(
        root / "vlmeval/dataset/utils/multiple_choice.py",
        *("MMMU_preproc", "build_choices"),
        pd=pandas,
        logger=Quiet(),
    )

    def right(draw: random.Random) -> tuple[Any, Any]:
        options = any_options(draw) if draw.random() < 0.5 else {}
        opens = ("12", "3.5", "force", "B", "Z", "['1/7', '0.143']", "A dog")
        truth = draw.choice(list(options) if options else opens)
        said = draw.choice((any_answer(draw), truth, f"answer is {truth}", "(A)", "so B.", "Z"))
        missing = dict.fromkeys("ABCDE", float("nan"))
        table = pandas.DataFrame([{"answer": truth, "prediction": said, **missing, **options}])
        table = table.astype(object)
        item = prepare["MMMU_preproc"](table).iloc[0]
        wanted = truth if truth in list(string.ascii_uppercase) else "A"
        letter = infer(said, prepare["build_choices"](item))
        theirs = (letter == wanted) if letter else None
        return theirs, letters.vlmeval_mmmu(said, truth, options)

    return right


def _mathvista(root: Path, infer: Callable[..., Any]) -> Rule:
    names = ("post_check", "list_to_dict")
    check = lift(root / "vlmeval/dataset/utils/mathvista.py", *names, can_infer=infer)["post_check"]

    def right(draw: random.Random) -> tuple[Any, Any]:
        kind = draw.choice(("text", "integer", "float", "list"))
        options = [*draw.sample(OPTIONS, 4)] if kind == "text" or draw.random() < 0.2 else []
        truth = draw.choice(("12", "0", "3.5", "-4", "1,200", "1e3", "[1, 2]"))
        letter = draw.choice("ABCD")
        said = draw.choice((any_answer(draw), truth, f" {truth}\n", "12.0", letter, f"({letter})"))
        said = draw.choice((said, said, said + ".", "１２", "nan", "1_2", *options))
        line = {"question_type": "multi_choice" if options else "free_form", "answer_type": kind}
        line |= {"answer": truth, "answer_option": letter, "choices": str(options)}
        found = check({**line, "prediction": said}, prefetch=True)
        theirs = check({**line, "prediction": said, "res": found}) if found else None
        return theirs, letters.vlmeval_mathvista(said, letter if options else truth, options, kind)

    return right


def lmms_screen_rules(root: Path) -> Iterator[tuple[str, Rule]]:
    """Yield the rule of lmms-eval's OSWorld-G: from a random state to (theirs, ours)."""
    names = (
        "_NUM_TOKEN",
        "_token_to_float",
        "_parse_point",
        "_to_absolute_point",
        "_point_in_bbox",
    )
    more = ("_point_in_polygon", "osworld_g_process_results")
    judge = lift(root / "lmms_eval/tasks/osworld_g/utils.py", *names, *more)[more[-1]]

    def hit(draw: random.Random) -> tuple[Any, Any]:
        kind = draw.choice(("bbox", "polygon", "polygon", "refusal"))
        count = 4 if kind == "bbox" else draw.choice((4, 6, 7, 8, 10, 2, 0))
        target = [draw.choice((draw.randint(0, 480), draw.random())) for _ in range(count)]
        x, y = target[:2] if len(target) > 1 else (3, 4)
        x, y = round(x + draw.choice((0, 3, -9, 70))), round(y + draw.choice((0, 2, -9, 60)))
        forms = (
            f"[{x}, {y}]",
            f"({x / 640}, {y / 480})",
            "[-1, -1]",
            f"x: {x}, y: {y}",
            "(-3%, 5)",
        )
        said = draw.choice((*forms, *forms, any_places(draw), f"<bbox>{any_places(draw)}</bbox>"))
        row = {"image_size": [640, 480], "box_type": kind, "box_coordinates": target}
        theirs = judge(row, [said])["osworld_g_acc"]["correct"]
        return theirs, bool(screens.osworld_hit(said, kind, target, (640, 480)))

    yield "osworld_hit", hit


def own_screen_rules(own: Path | None) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of papers' own code: from a random state to (theirs, ours)."""
    rules: dict[str, tuple[str, Callable[[Path], Rule]]] = {
        "mmbench_gui_letter": ("MMBench-GUI", _mmbench_gui_letter),
        "mmbench_gui_point": ("MMBench-GUI", _mmbench_gui),
        "ui_vision_point": ("UI-Vision", _ui_vision),
        "os_atlas_step": ("OS-Atlas", _os_atlas),
        "odyssey_step": ("GUI-Odyssey", _odyssey),
        "odyssey scores": ("GUI-Odyssey", _odyssey_scores),
        "coat_step": ("CoAT", _coat),
        "coat prompt": ("CoAT", _coat_prompt),
    }
    for name, (checkout, make) in rules.items():
        if own is not None and (own / checkout).is_dir():
            yield name, make(own / checkout)
        else:
            print(f"{name}: not compared, there is no checkout of it")


def _mmbench_gui_letter(folder: Path) -> Rule:
    name = "parser_answers_into_option"
    read = lift(folder / "utils/misc.py", name)[name]

    def compare(draw: random.Random) -> tuple[Any, Any]:
        said = any_answer(draw) + draw.choice(
            ("", "", " 'b'", "\nc", ' "D".', "Answer： E", " option f")
        )
        return read(said), letters.mmbench_gui_letter(said)

    return compare


def _mmbench_gui(folder: Path) -> Rule:
    """Compare the score of a table, which has icons and texts of both levels on every platform."""
    import pandas

    names = ("parser_response_into_coordinates", "deep_nested")
    misc = lift(folder / "utils/misc.py", *names, defaultdict=defaultdict)
    scores = lift(folder / "benchmarks/matrics.py", "level2_calculate_scores")
    table: list[dict[str, Any]] = []
    given = {"load": lambda _: Table(table), "dump": lambda *_: None, "pd": pandas}
    given |= {"tqdm": lambda some: some, "logger": Quiet(), "ast": ast}
    screen = SimpleNamespace(open=lambda _: SimpleNamespace(size=(640, 480)))
    file = folder / "benchmarks/l2_element_grounding.py"
    evaluate = lift(file, "evaluate", **{**scores, **misc, **given, "Image": screen})["evaluate"]
    harness = SimpleNamespace(img_root="", parse_function=misc["parser_response_into_coordinates"])

    def compare(draw: random.Random) -> tuple[Any, Any]:
        table.clear()
        hits, by = [], []
        kinds = itertools.product(("basic", "advanced"), "ab", ("icon", "text"))
        for level, platform, kind in [*kinds] * draw.randint(1, 2):
            x, y = draw.randint(0, 500), draw.randint(0, 380)
            box = [x / 640, y / 480, (x + 120) / 640, (y + 60) / 480]
            row = {"grounding_type": level, "platform": platform, "data_type": kind, "bbox": box}
            row |= {"image_path": "", "instruction": "", "app_name": ""}
            row["prediction"] = _pair(draw, x + 60, y + 30)
            table.append(row)
            point = screens.mmbench_gui_point(row["prediction"], (640, 480))
            inside = point and box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]
            hits.append(float(bool(inside)))
            by.append(level)
        rows = Rows(np.array(hits), by, [""] * len(by), [""] * len(by))
        ours = estimate("mean_of_groups", rows, [*map(str, range(len(by)))], resamples=1)[0]
        theirs = evaluate(harness, "table.xlsx")["Average accuracy"]
        return round(float(theirs), 9), round(100 * ours, 9)

    return compare


def _pair(draw: random.Random, x: int, y: int) -> str:
    """Draw a click near a place of 640 x 480 pixels in many forms."""
    x, y = x + draw.randint(-80, 80), y + draw.randint(-40, 40)
    forms = (
        f"({x},{y})",
        f"x: {x}, y={y}",
        f"({x / 640:.4f}, {y / 480:.4f})",
        f"[{x} {y}]",
        f"X={x}; Y={y}",
        f"+{x} , .5",
    )
    return draw.choice((*forms, any_places(draw), any_answer(draw) + f"({x},{y})"))


def _ui_vision(folder: Path) -> Rule:
    models = folder / "eval/grounding/models/qwen25vl.py"
    names = ("extract_bbox", "pred_2_point", "ground_only_positive")
    quiet = {"print": lambda *_: None, "json": json, "os": os}
    told: list[str] = []
    inputs = _Inputs({"text": ""})
    processor = _Processor(lambda **_: inputs)
    processor.apply_chat_template = lambda *_, **__: ""
    processor.batch_decode = lambda *_, **__: [told[-1] + "<|im_end|>"]
    model = SimpleNamespace(
        processor=processor, model=SimpleNamespace(generate=lambda **_: [[0, 1]])
    )
    given = {**quiet, "process_vision_info": lambda _: (None, None)}
    ground = lift(models, *names, **given)["ground_only_positive"]
    file = folder / "eval/grounding/eval_uivision.py"
    judge = lift(file, "eval_sample_positive_gt")["eval_sample_positive_gt"]

    def compare(draw: random.Random) -> tuple[Any, Any]:
        x, y = draw.randint(0, 800), draw.randint(0, 800)
        box = [x, y, x + draw.randint(1, 200), y + draw.randint(1, 200)]
        told.append(_qwen_box(draw, *box))
        sample = {"bbox": [*box], "image_size": [1000, 1000]}
        theirs = judge(sample, ground(model, "", str(models)))
        point = screens.ui_vision_point(told[-1])
        if point is None:
            return theirs, "wrong_format"
        a, b, c, d = (number / 1000 for number in box)
        return theirs, "correct" if a <= point[0] <= c and b <= point[1] <= d else "wrong"

    return compare


def _qwen_box(draw: random.Random, *box: int) -> str:
    """Draw a box near a true one as Qwen writes it, or nearly so."""
    a, b, c, d = (number + draw.choice((0, 0, 0, 40, -300)) for number in box)
    listed = f'{{"bbox_2d": [{a}, {b}, {c}, {d}], "label": "x"}}'
    forms = (
        f"```json\n[{listed}]\n```",
        f"```json\n{listed}\n```",
        f'```json\n[{{"point": 1}}, {listed}]\n```',
        f"```json\n[{listed},]\n```",
        f'```json\n{{"bbox_2d": [{a}.5, {b}, {c}]}}\n```',
        listed,
        f"<|box_start|>({a},{b}),({c},{d})<|box_end|>",
        f"no <|box_start|>[1, 2, 3, 4]<|box_end|><|box_start|>[{a}, {b}, {c}, {d}]<|box_end|>",
        f"({a}, {b})",
        f"[{a}, {b}, {c}, {d}]",
    )
    return draw.choice((*forms, any_places(draw), any_answer(draw)))


ACTIONS = (
    "CLICK <point>[[{x}, {y}]]</point>",
    "LONG_PRESS <point>[[{x},{y}]]</point>",
    "TYPE [hello world]",
    "TYPE [Hello]",
    "OPEN_APP [Google Chrome]",
    "SCROLL [UP]",
    "SCROLL [DOWN]",
    "PRESS_BACK",
    "WAIT",
    "COMPLETE",
)


def _os_atlas(folder: Path) -> Rule:
    """Compare the counts of one step; the harness stops at an action that has no word."""
    opened: dict[str, str] = {"android_control_test_subsplits.json": "{}"}
    counts: list[dict[str, int]] = []

    def counting(kind: type) -> dict[str, int]:
        counts.append(defaultdict(kind))
        return counts[-1]

    given = {"open": lambda name, *_: io.StringIO(opened[name]), "defaultdict": counting}
    given |= {"logger": logging.getLogger("os_atlas"), "json": json, "math": math}
    file = folder / "eval/eval_scripts/android_control/evaluation_unify.py"
    evaluate = lift(file, "evaluate", "calculate_f1_score", **given)["evaluate"]
    asked = SimpleNamespace(prediction_file_path="p", ground_truth_file_path="g", split="")

    def compare(draw: random.Random) -> tuple[Any, Any]:
        x, y = draw.randint(0, 1000), draw.randint(0, 1000)
        right = draw.choice(ACTIONS).format(x=x, y=y)
        near = {"x": x + draw.choice((0, 60, 84, 112)), "y": y + draw.choice((0, 112, 84))}
        said = draw.choice((right, draw.choice(ACTIONS).format(**near), right.lower(), right[:-1]))
        said = draw.choice(
            (said, said, right.split()[0] + f" {near['x']} {near['y']}", "TYPE hello")
        )
        said = draw.choice((said, said, said + "<|im_end|>", said + "\n", any_answer(draw), ""))
        mark = draw.choice(("thoughts:\nx\nactions:\n", "actions:\n", "actions:\n", "Actions: "))
        said = mark + said + draw.choice(("", "", "\nactions:\nWAIT"))
        image = "a/episode_140_screenshot_0.png"
        truth = {
            "image": image,
            "conversations": [{}, {"value": f"thoughts:\nt\nactions:\n{right}"}],
        }
        opened.update(p=json.dumps({"pred": said}), g=json.dumps(truth))
        counts.clear()
        try:
            evaluate(asked)
        except ZeroDivisionError:  # there is one step alone, of no part of the split
            pass
        except IndexError:
            counts[:] = [defaultdict(int)]
        theirs = [counts[0][key] for key in ("type_match", "full", "CLICK_all_match")]
        step = screens.os_atlas_step(said, right) or {"type": False, "step": False}
        return theirs, [int(step.get(part, False)) for part in ("type", "step", "click")]

    return compare


ODYSSEY = ("TYPE: new york", "TYPE: a: b", "SCROLL: UP", "SCROLL: LEFT", "PRESS_HOME", "COMPLETE")


def _odyssey_code(folder: Path) -> dict[str, Any]:
    file = folder / "src/eval_mm/GUIOdyssey_action_matching.py"
    names = ("levenshtein_distance", "text_matching", "click_matching", "action_matching")
    matching = lift(file, *names, "TEXT_ANLS_THRESHOLD", "CLICK_COORD_THRESHOLD")
    own = ("simple_decode", "action_matching_evaluation", "stat_result", "check_SR")
    given = {**matching, "print": lambda *_: None}
    return lift(folder / "src/eval_mm/evaluate_GUIOdyssey.py", *own, **given)


def _odyssey_case(draw: random.Random) -> tuple[str, str, list[int] | None]:
    """Draw an answer, the true action, and the box around its place."""
    x, y = draw.randint(0, 1000), draw.randint(0, 1000)
    clicks = (f"CLICK: ({x}, {y})", f"LONG_PRESS: ({x}, {y})")
    right = draw.choice((*clicks, *clicks, *ODYSSEY))
    box = draw.choice(([x - 20, y - 9, x + 200, y + 9], None, []))
    near = x + draw.choice((0, 10, 84, 140, 190)), y + draw.choice((0, 5, 112, 113))
    forms = (
        "({}, {})",
        "{}, {}",
        "[{}, {}]",
        "({}, {}, 3)",
        "({}",
        "{}",
        "'{}'",
        "None",
        "[[{}, {}]]",
    )
    place = draw.choice((*forms[:3], *forms)).format(*near)
    kind = draw.choice((right.split(":")[0], "CLICK", "LONG_PRESS"))
    texts = ("TYPE: New York", "TYPE: york", "TYPE", "TYPE: new yoke", "TYPE:a", "SCROLL: up")
    said = draw.choice((right, f"{kind}: {place}", f" {kind}:{place} ", *texts, *ODYSSEY))
    return draw.choice((said, said, said, any_answer(draw).replace(":", ""), kind)), right, box


def _odyssey(folder: Path) -> Rule:
    code = _odyssey_code(folder)
    code["stat_result"] = lambda *_: None

    def compare(draw: random.Random) -> tuple[Any, Any]:
        said, right, box = _odyssey_case(draw)
        row = {"question": "", "pred": said, "gt": right, "more_info": {"sam2_bbox": box}}
        (judged,) = code["action_matching_evaluation"]([row])["pred"]
        theirs = {
            "type": judged["info"] != "action_fail",
            "step": judged["is_correct"] == "yes",
        }
        return theirs, screens.odyssey_step(said, right, box)

    return compare


def _odyssey_scores(folder: Path) -> Rule:
    """Compare the two numbers of the random split, which the harness rounds to hundredths."""
    code = _odyssey_code(folder)

    def compare(draw: random.Random) -> tuple[Any, Any]:
        rows, right, categories, episodes = [], [], [], []
        for episode in range(12):
            steps = draw.randint(1, 3)
            good = draw.random() < 0.5
            for step in range(steps):
                said, truth, box = _odyssey_case(draw)
                said = truth if good else said
                if not rows:  # a text that is typed, by whose number the harness divides
                    said, truth = "TYPE: york", "TYPE: new york"
                more = {"category": f"c{episode % 6}", "step_length": steps, "sam2_bbox": box}
                row = {"pred": said, "gt": truth, "more_info": more}
                rows.append({**row, "question": f"<img>/a/{episode}_{step}.png</img>"})
                right.append(float(screens.odyssey_step(said, truth, box)["step"]))
                categories.append(f"c{episode % 6}")
                episodes.append(f"c{episode % 6}/{episode}")
        theirs = code["action_matching_evaluation"](rows, "micro")["info"]
        ours = [
            _estimate(aggregate, right, by)
            for aggregate, by in (
                ("mean_of_groups", categories),
                ("mean_of_groups_of_wholes", episodes),
            )
        ]
        wanted = [theirs["AMS"], theirs["SR"]]
        return [True, True], [abs(a - 100 * b) < 0.011 for a, b in zip(wanted, ours, strict=True)]

    return compare


def _coat_parts(folder: Path) -> dict[str, Any]:
    """Return what CoAT makes of an answer, how it judges it, and how it writes its prompt."""
    from rapidfuzz.distance import Indel

    names = ("node_compare", "row_col_sort", "enlarge_bbox", "check_inside", "intersect_iou")
    given = {"cmp_to_key": functools.cmp_to_key, "Callable": Callable, "Any": Any}
    parts = lift(folder / "coat/screen_utils.py", *names, **given)
    size = SimpleNamespace(get=lambda _: (640, 480))
    alike = SimpleNamespace(ratio=Indel.normalized_similarity)  # what python-Levenshtein computes
    more = {"json": json, "imagesize": size, "print": lambda *_: None, "os": os}
    given = {**parts, **more, "Levenshtein": alike}
    judge = lift(folder / "coat/evaluate.py", "ActionEvaluator", **given)["ActionEvaluator"]
    written: list[dict[str, Any]] = []
    files = SimpleNamespace(
        load=lambda _: {}, dump=lambda value, *_, **__: written.append(value), decoder=json.decoder
    )
    files.loads, files.dumps = json.loads, json.dumps
    agent = ("json_parser", "predict", "make_action", "add_screen_txt", "format_bbox", "coa_action")
    given = {
        **parts,
        **more,
        "json": files,
        "open": lambda *_, **__: None,
        "time": SimpleNamespace(),
    }
    given |= {"HTTPStatus": SimpleNamespace(OK=200, REQUEST_ENTITY_TOO_LARGE=413)}
    return {**lift(folder / "coat/agent.py", *agent, **given), "judge": judge, "written": written}


def _coat(folder: Path) -> Rule:
    parts = _coat_parts(folder)
    judge = parts["judge"]("COA", "txt")

    def stated(said: str) -> dict[str, Any]:
        """Return what the harness stores of an answer."""
        agent = SimpleNamespace(cfg=SimpleNamespace(DEMO_MODE="COA"), screen_mode="txt")
        agent.coa_action = lambda *_, **__: ("", said, 200)
        parts["written"].clear()
        step = {"subset": "", "episode_id": "", "prev_step_id": None, "step_id": 0}
        try:
            parts["predict"](agent, step, "")
        except (KeyError, TypeError, RecursionError):  # ends its thread
            return {}
        return parts["written"][-1] if parts["written"] else {}

    def compare(draw: random.Random) -> tuple[Any, Any]:
        elements = [_coat_element(draw) for _ in range(draw.randint(1, 5))]
        desc = draw.choice(COAT_WORDS)
        typed = draw.choice(("clock", "best chair", "a")) if desc[0] == "i" else ""
        truth = {"coat_action_desc": desc, "result_action_text": typed, "image_full_path": ""}
        truth |= {"subset": "", "episode_id": "", "step_id": 0, "result_touch_yx": "[0.5, 0.5]"}
        truth |= {"ui_positions": elements, "ui_text": [""] * 9, "ui_types": ["TEXT"] * 9}
        said = _coat_answer(draw, desc, typed, elements)
        try:
            judged = judge(truth, stated(said))
            theirs = {"type": judged["type_match"], "step": bool(judged["exact_match"])}
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, OverflowError):
            theirs = {"type": False, "step": False}  # ends its run
        kind = screens.coat_kind(desc.split(" ")[0]) or ""
        info = {"type": typed, "scroll": desc.split(" ")[1]}.get(kind, "")
        if kind == "press":
            info = next(button for button in ("enter", "back", "home") if button in desc)
        boxes = [(x, y, x + w, y + h) for y, x, h, w in elements]
        right = screens.PhoneAction(kind, info, boxes, (640, 480))
        return theirs, screens.coat_step(said, right) or {"type": False, "step": False}

    return compare


COAT_WORDS = (
    "click on the Clock app",
    "click the corner",
    "scroll up",
    "scroll left",
    'input text "clock"',
    "press the home button",
    "press enter",
    "stop and set the query as completed",
)


def _coat_element(draw: random.Random) -> list[int]:
    """Draw an element as y, x, height and width, now and then in the corner."""
    at = draw.choice((0, 1)) * draw.randint(0, 400)
    return [at, draw.choice((at, draw.randint(0, 500))), draw.randint(5, 60), draw.randint(5, 99)]


def _coat_answer(
    draw: random.Random, desc: str, typed: str, elements: Sequence[Sequence[int]]
) -> str:
    """Draw an action near the true one in many forms."""
    y, x, high, wide = draw.choice(elements)
    corners = (x / 0.64, y / 0.48, (x + wide) / 0.64, (y + high) / 0.48)
    box = [round(number) + draw.choice((0, 0, 9, -30)) for number in corners]
    word, direction = desc.split(" ")[:2]
    near: tuple[Any, ...] = ({"bbox": box},) if word == "click" else ()
    arguments = draw.choice(
        (
            *near * 9,
            {"bbox": box},
            {"bbox": box, "direction": direction, "text": typed},
            {"direction": draw.choice(("up", "left", direction))},
            {"text": draw.choice((typed, "Clock", "", "cloc", "best chairs"))},
            {},
            [],
            {"bbox": draw.choice(([], [1, 2, 3], ["1", 2, 3, 4], "", [1, 2, 3, 4, 5], None))},
            {"text": 3},
        )
    )
    names = (
        "click_element",
        "scroll",
        "input",
        "press_home",
        "press_enter",
        "press",
        "stop",
        "Stop",
    )
    own = {"click": "click_element", "press": "press_" + desc.split()[-1].replace("button", "home")}
    name = draw.choice((*[own.get(word, word)] * 30, *names, "", None, "typeText", 3))
    said = json.dumps({"ACTION": name, "ARGS": arguments})
    forms = (
        "{}",
        "{}",
        "```json\n{}\n```",
        "So: ```json{}``` yes",
        "```JSON{}",
        "```{}```",
        "{} no",
    )
    said = draw.choice(forms).replace("{}", said)
    others = (said[:-1], said[:-2], any_answer(draw), "[1]", "{}", "3")
    return draw.choice((*[said] * 12, *others))


def _coat_prompt(folder: Path) -> Rule:
    """Compare the prompt by the elements of a screen and the actions before."""
    import yaml

    from vlmrl.benchmarking.prompts import COAT_SYSTEM
    from vlmrl.benchmarks.aitz import Aitz, _element

    parts = _coat_parts(folder)
    config = yaml.safe_load((folder / "coat/config.yaml").read_text(encoding="utf-8"))
    data = SimpleNamespace(BBOX_FORMAT="relative_int")
    asked: list[Any] = []
    model = SimpleNamespace(get_response=lambda _, prompt: asked.append(prompt) or ("", 200))
    agent = SimpleNamespace(cfg=SimpleNamespace(DEMO_MODE="COA", DATA=data), vlm=model)
    agent.prompts, agent.use_screen_tag, agent.use_screen_txt = config["PROMPTS"], False, True
    for name in ("make_action", "add_screen_txt", "format_bbox"):
        setattr(agent, name, functools.partial(parts[name], agent))

    def compare(draw: random.Random) -> tuple[Any, Any]:
        elements = [_coat_element(draw) for _ in range(draw.randint(1, 12))]
        texts = [draw.choice(("", "Set up", "a\nb")) for _ in elements]
        types = [draw.choice(("TEXT", "icon_home")) for _ in elements]
        history = draw.sample(("CLICK", "SCROLL", "PRESS HOME"), draw.randint(0, 3))
        step = {"instruction": "open it", "image_full_path": "", "history_actions": history}
        step |= {"ui_positions": elements, "ui_text": texts, "ui_types": types}
        parts["coa_action"](agent, step, save_dir="")
        (_, system), *turns = asked.pop()
        theirs = "".join(turn["text"] + "<image 1>" * ("img_index" in turn) for _, turn in turns)
        boxes = [(x, y, x + w, y + h) for y, x, h, w in elements]
        listed = [
            f"  {_element(types[n], texts[n], boxes[n], 640, 480)}"
            for n in screens.reading_order(boxes)
        ]
        filled = {"elements": "\n".join(listed), "question": "open it"}
        filled["history"] = (", ".join(history) or "None") + "."
        ours = Aitz.officials[0].ask
        for key, text in filled.items():
            ours = ours.replace(f"{{{key}}}", text)
        return (system, theirs), (COAT_SYSTEM, ours)

    return compare


def _estimate(aggregate: str, scores: Sequence[float], by: Sequence[str]) -> float:
    rows = Rows(np.array(scores), by, [""] * len(by), [""] * len(by))
    return estimate(aggregate, rows, [*map(str, range(len(by)))], resamples=1)[0]


class _Inputs(dict[str, Any]):
    """What a processor makes of a prompt."""

    input_ids = ((0,),)

    def to(self, _: str) -> Mapping[str, Any]:
        return self


class _Processor:
    """A processor that is called, and has methods."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.apply_chat_template: Callable[..., str]
        self.batch_decode: Callable[..., list[str]]

    def __call__(self, **given: Any) -> Any:
        return self.call(**given)
