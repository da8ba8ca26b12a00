"""The complete examples of "Extend" do what their pages say. Keys and commands of pages: `make style`."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vlmrl import plugins
from vlmrl.schema import Box, Frame

ROOT = Path(__file__).parents[2]


def blocks(page: Path, language: str) -> Iterator[tuple[str, str]]:
    """The title (or "") and the text of every fenced block of a language."""
    pattern = rf"^```{language}(?: title=\"([^\"]*)\")?\n(.*?)^```$"
    for found in re.finditer(pattern, page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        yield found[1] or "", found[2]


KIND_OF = {"": "verifier", "rewards": "verifier", "datasets": "card", "algorithms": "algorithm"}
KIND_OF |= {"layouts": "layout", "trackers": "tracker", "truths": "truth", "engines": "engine"}
KIND_OF |= {
    "samplers": "sampler",
    "strategies": "strategy",
    "tools": "tool",
    "environments": "environment",
    "benchmarks": "benchmark",
}


def example(page: str, folder: Path, titled: str = "") -> tuple[str, Any]:
    """Write the file of a page, and return its name as a config does, and the part."""
    ((title, text),) = [
        b for b in blocks(ROOT / "docs" / page, "python") if b[0] and titled in b[0]
    ]
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


FAMILY = """
from dataclasses import dataclass

from vlmrl.parts.families.idefics3 import Idefics3


@dataclass(frozen=True)
class EarlyIdefics(Idefics3):
    \"\"\"Idefics3 by a name that is asked before the shipped one.\"\"\"
"""


@pytest.mark.nightly
def test_thirteen_kinds_of_an_installed_package_pass_their_contracts_by_one_command(
    tmp_path: Path,
) -> None:
    files = {"early_idefics": ("family", FAMILY)}
    for guide in sorted(KIND_OF.values()):
        titled = [b for b in blocks(ROOT / f"docs/extend/{guide}.md", "python") if b[0]]
        files.update({Path(title).stem: (guide, text) for title, text in titled})
    info = tmp_path / "guides-1.0.dist-info"
    for folder in (info, tmp_path / "guides"):
        folder.mkdir()
    for name, (_, text) in files.items():
        (tmp_path / "guides" / f"{name}.py").write_text(text)
    entries = [
        f"{kind}.{name} = guides.{name}:{plugins.class_name(name)}"
        for name, (kind, _) in files.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(["[vlmrl.parts]", *entries]))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guides\nVersion: 1.0\n")
    assert len(files) == 13
    command = [sys.executable, "-m", "vlmrl", "test-part", *files]
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]


def test_the_verifier_of_the_guide_scores_and_withstands_attacks(tmp_path: Path) -> None:
    from vlmrl.config import RewardConfig
    from vlmrl.features.verify.attack_bench import verify

    name, part = example("extend/verifier.md", tmp_path)
    assert run_examples(part) > 0
    with pytest.raises(plugins.UserError, match=r"expected a number in \(0, 1\], got 2"):
        plugins.build("verifier", name, {"tolerance": 2.0})
    assert verify(RewardConfig(verifier=name)).findings == ()


def test_the_functions_of_the_guide_withstand_attacks(tmp_path: Path) -> None:
    from vlmrl.config import RewardConfig
    from vlmrl.features.verify.attack_bench import verify

    name, score = example("rewards/your_own.md", tmp_path, "near.py")
    assert score("4", types.SimpleNamespace(number=5)) == 0.5
    assert not verify(RewardConfig(verifier=name)).findings
    name, score = example("rewards/your_own.md", tmp_path, "tight.py")
    truth = types.SimpleNamespace(boxes=[Box(0.0, 0.0, 0.5, 0.5)])
    seen = types.SimpleNamespace(frame=Frame(100, 100))
    answers = ("[0, 0, 50, 40]", "[0, 0, 20, 20]", "[0, 0, 50, 50], [1, 1, 9, 9]")
    paid = [score(answer, truth, seen) for answer in answers]
    assert paid == pytest.approx([0.8, 0.0, 0.0])
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
    made = policy()
    engine = plugins.build("engine", name).start(made)
    batch = mixed_batch(made)
    rollouts = engine.generate(batch, Sampling(n=2, max_tokens=3, seed=1))
    assert rollouts.shape == (len(batch), 2)
    assert engine.generate(batch, Sampling(n=2, max_tokens=3, seed=1)) == rollouts
    engine.close()
