"""What the pages say is true: keys, overrides, configs and the complete examples of "Extend"."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from vlmrl import config, plugins

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], key=lambda page: page.as_posix()
)
CURRENT = [page for page in PAGES if page.name not in ("log.md",)]
SECTIONS = config.Config.model_fields.keys()
PLUGIN_OPTIONS = {"algorithm": "algorithm", "engine": "engine", "rewards": "verifier"}


def blocks(page: Path, language: str) -> Iterator[tuple[str, str]]:
    """The title (or "") and the text of every fenced block of a language."""
    pattern = rf"^```{language}(?: title=\"([^\"]*)\")?\n(.*?)^```$"
    for found in re.finditer(pattern, page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        yield found[1] or "", found[2]


def is_key(path: list[str], section: Any = config.Config, kind: str = "") -> bool:
    """Whether a config has this key; `options` lead on to those of some part of the kind."""
    if not path:
        return True
    name, *rest = path
    field = section.model_fields.get(name)
    if field is None:
        return False
    kind = PLUGIN_OPTIONS.get(name, kind)
    if name == "options" and rest and kind:
        parts = [plugins.load(kind, part) for part in plugins.names(kind)]
        return any(rest[0] in plugins.options_of(part) for part in parts)
    inner, is_list = section_in(field.annotation)
    if is_list and rest:
        rest = rest[1:]  # an entry is named by its position or by its own name
    return is_key(rest, inner, kind) if inner else True


def section_in(annotation: Any) -> tuple[Any, bool]:
    """The section that a field holds, and whether in a list or a map."""
    if isinstance(annotation, type) and issubclass(annotation, config.Section):
        return annotation, False
    for inner in typing.get_args(annotation):
        found, _ = section_in(inner)
        if found:
            return found, typing.get_origin(annotation) in (list, dict)
    return None, False


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_key_that_a_page_names_exists(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)(?:[:=][^`]*)?`", text)
    keys = [
        key
        for key in named
        if key.split(".")[0] in SECTIONS and not key.endswith((".py", ".jsonl"))
    ]
    files = ("json", "md", "html", "yaml", "svg")
    keys = [key for key in keys if key.rsplit(".")[-1] not in files]
    assert [key for key in keys if not is_key(key.split("."))] == []


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_override_that_a_page_shows_exists(page: Path) -> None:
    shown = [
        key
        for _, text in blocks(page, "sh")
        for key in re.findall(r"(?<=[\s'])([a-z_]+(?:\.\w+)*)=", text)
        if key.split(".")[0] in SECTIONS
    ]
    assert [key for key in shown if not is_key(key.split("."))] == []


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_config_on_a_page_has_valid_keys(page: Path) -> None:
    for _, text in blocks(page, "yaml"):
        tree = yaml.safe_load(text)
        tree.pop("extends", None)
        if "model" in tree and "data" in tree:
            config.parse(tree)
        for path in keys_of({k: v for k, v in tree.items() if k in SECTIONS}):
            assert is_key(path), ".".join(path)
        assert tree.keys() <= {*SECTIONS, "card", "options", "template"}


def keys_of(tree: Any, above: tuple[str, ...] = ()) -> Iterator[list[str]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield [*above, key]
            if key not in ("options", "weight"):
                yield from keys_of(value, (*above, key))
    elif isinstance(tree, list):
        for entry in tree:
            yield from keys_of(entry, (*above, "0"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_exists(page: Path) -> None:
    from vlmrl.cli.app import app

    known = {c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands}
    known |= {group.name or "" for group in app.registered_groups}
    text = page.read_text("utf-8")
    shown = re.findall(r"`vlmrl ([a-z][a-z-]*)", text)
    shown += [
        name
        for _, block in blocks(page, "sh")
        for name in re.findall("^vlmrl ([a-z][a-z-]*)", block)
    ]
    assert set(shown) - known == set()


def test_the_file_tree_of_the_readme_names_every_room_and_nothing_else() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    tree = readme.split("## The files")[1].split("```")[1]
    named = re.findall(r"^( *)([\w./]+) {2,}", tree, re.MULTILINE)
    paths = {f"vlmrl/{path}" if indent else path for indent, path in named}
    assert [path for path in paths if not (ROOT / path).exists()] == []
    rooms = {f"vlmrl/{file.name}/" for file in (ROOT / "vlmrl").iterdir() if any(file.glob("*.py"))}
    assert rooms - paths == set()


# ------------------------------------------------------------------------- the examples of "Extend"


KIND_OF = {"": "verifier", "rewards": "verifier", "datasets": "card", "algorithms": "algorithm"}
KIND_OF |= {"layouts": "layout", "trackers": "tracker", "truths": "truth", "engines": "engine"}
KIND_OF |= {
    "samplers": "sampler",
    "strategies": "strategy",
    "tools": "tool",
    "environments": "environment",
}


def example(page: str, folder: Path) -> tuple[str, Any]:
    """Write the file of a page, and return its name as a config does, and the part."""
    ((title, text),) = [b for b in blocks(ROOT / "docs" / page, "python") if b[0]]
    file = folder / Path(title).name
    file.write_text(text)
    kind = KIND_OF[Path(title).parent.name]
    name = f"{file}:{plugins.class_name(file.stem)}" if "/" in title else f"{file}:score"
    return name, plugins.load(kind, name)


def run_examples(part: Any) -> int:
    """Run the examples of a docstring; return how many there were."""
    module = types.ModuleType("example")
    vars(module).update(vars(sys.modules[part.__module__]))
    tests = doctest.DocTestFinder(recurse=False).find(part, part.__name__, globs=vars(module))
    results = [doctest.DocTestRunner().run(test) for test in tests]
    assert all(result.failed == 0 for result in results)
    return sum(result.attempted for result in results)


@pytest.mark.slow
def test_the_parts_of_the_guides_pass_their_contract_tests(tmp_path: Path) -> None:
    guides = ("verifier", "layout", "engine", "algorithm", "tracker", "sampler", "strategy", "tool")
    guides = (*guides, "environment")
    names = [example(f"extend/{guide}.md", tmp_path)[0] for guide in guides]
    parts = [argument for name in names for argument in ("--part", name)]
    command = [sys.executable, "-m", "pytest", "-q", "tests/contracts", *parts]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:]


def test_the_verifier_of_the_guide_scores_and_withstands_attacks(tmp_path: Path) -> None:
    from vlmrl.audit.attack_bench import verify
    from vlmrl.config import RewardConfig

    name, part = example("extend/verifier.md", tmp_path)
    assert run_examples(part) > 0
    with pytest.raises(plugins.UserError, match=r"expected a number in \(0, 1\], got 2"):
        plugins.build("verifier", name, {"tolerance": 2.0})
    assert verify(RewardConfig(verifier=name)).findings == ()


def test_the_function_of_the_guide_withstands_attacks(tmp_path: Path) -> None:
    from vlmrl.audit.attack_bench import verify
    from vlmrl.config import RewardConfig

    name, score = example("rewards/your_own.md", tmp_path)
    assert score("4", types.SimpleNamespace(number=5)) == 0.5
    assert not verify(RewardConfig(verifier=name)).findings


def test_the_card_of_the_guide_makes_samples_and_refuses_bad_rows(tmp_path: Path) -> None:
    name, _ = example("extend/card.md", tmp_path)
    row = {"file": "a.jpg", "size": [100, 50], "label": "dog", "box": [10, 10, 60, 30]}
    (tmp_path / "train.json").write_text(json.dumps([row, {**row, "box": [0, 0, 0, 0]}]))
    card = plugins.build("card", name, {"path": str(tmp_path)})
    good, bad = card.rows("train")
    sample = card.to_sample(good, "local")
    assert sample.text == "Where is the dog?"
    assert sample.truth.boxes[0].xyxy == pytest.approx((0.1, 0.2, 0.6, 0.6))
    with pytest.raises(plugins.UserError, match="box with area"):
        card.to_sample(bad, "local")
    with pytest.raises(plugins.UserError, match=r"expected the file .*val\.json"):
        card.rows("val")


def test_the_algorithm_of_the_guide_is_reinforce(tmp_path: Path) -> None:
    import torch

    from vlmrl.algorithms.base import LossInputs

    name, _ = example("extend/algorithm.md", tmp_path)
    recipe = plugins.build("algorithm", name)
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    same = logprobs.detach()
    inputs = LossInputs(
        logprobs, same, same, None, torch.tensor([[0.5]]), mask, torch.ones(1), 2, 1, 2
    )
    recipe.loss(inputs).loss.backward()
    assert torch.allclose(logprobs.grad, torch.tensor([[-0.25, -0.25]]))


def test_the_tracker_of_the_guide_writes_lines(tmp_path: Path) -> None:
    name, _ = example("extend/tracker.md", tmp_path)
    tracker = plugins.build("tracker", name)
    tracker.start(types.SimpleNamespace(folder=tmp_path))
    tracker.log("rl", 3, {"reward/mean": 0.5})
    tracker.close()
    assert (tmp_path / "curves.csv").read_text().splitlines() == ["rl,3,reward/mean,0.5"]


def test_the_kind_of_truth_of_the_guide_is_found_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vlmrl import truths
    from vlmrl.schema import Frame
    from vlmrl.truths import json_form, prompting
    from vlmrl.truths.base import kinds

    example("extend/truth.md", tmp_path)
    monkeypatch.setattr(truths, "__path__", [*truths.__path__, str(tmp_path)])
    kinds.cache_clear()
    try:
        assert "angle" in plugins.names("truth")
        truth = json_form.read({"angle": 370}, Frame())
        assert truth.value("angle") == 10
        assert prompting.write(truth, Frame()) == "10"
        assert "degrees" in prompting.instruct("none", truth, "pixel")
        assert kinds()["angle"].mistake(truth).value("angle") == 100
        with pytest.raises(plugins.UserError, match=r"truth\.angle: expected a finite number"):
            json_form.read({"angle": "north"}, Frame())
    finally:
        kinds.cache_clear()


def test_the_engine_of_the_guide_writes_whole_groups(tmp_path: Path) -> None:
    from helpers.small import mixed_batch, policy
    from vlmrl.engines.base import Sampling

    name, _ = example("extend/engine.md", tmp_path)
    engine, made = plugins.build("engine", name), policy()
    engine.start(made)
    batch = mixed_batch(made)
    rollouts = engine.generate(batch, Sampling(n=2, max_tokens=3, seed=1))
    assert rollouts.shape == (len(batch), 2)
    assert engine.generate(batch, Sampling(n=2, max_tokens=3, seed=1)) == rollouts
    engine.close()
