"""`vlmrl mixture fit`: a known quadratic is found again, its argmax is exact, odd runs are refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.optimize import minimize

from vlmrl import config
from vlmrl.errors import UserError
from vlmrl.features.curate.mixture import Surrogate, best_mixture, fit, fit_mixture, lines_of
from vlmrl.runs import run_folder

KNOWN = Surrogate(
    0.3, np.array([0.1, 0.2, 0.0]), np.array([[0, 0.8, 0.1], [0.8, 0, 0], [0.1, 0, 0]])
)
"""Its maximum is at weights 0.4375, 0.5625, 0 by hand: 0.1 + 0.8 w2 = 0.2 + 0.8 w1."""
PILOTS = [
    *({name: 1.0} for name in "abc"),
    *({x: 1.0, y: 1.0} for x, y in itertools.combinations("abc", 2)),
    {"a": 1.0, "b": 1.0, "c": 1.0},
    {"a": 3.0, "b": 1.0, "c": 1.0},
]
HELD_OUT = "{card: shapes, name: held, split: test, options: {task: grounding}}"


def shares(weights: Mapping[str, float]) -> np.ndarray:
    row = np.array([weights.get(name, 0.0) for name in "abc"])
    return row / row.sum()


def write(folder: Path, weights: Mapping[str, float], *more: str, **summary: Any) -> Path:
    """A finished run with the score that the known surrogate has at its weights."""
    sources = [
        f"{{card: shapes, name: {name}, weight: {weights[name]}, "
        f"options: {{task: grounding, seed: {number}}}}}"
        for number, name in enumerate("abc")
        if name in weights
    ]
    common = [f"data.train=[{', '.join(sources)}]", f"evaluation.sources=[{HELD_OUT}]", "sft=null"]
    run_folder.write_config(folder, config.load("quickstart", [*common, *more]))
    evaluation = {"metrics": {"box_iou": KNOWN(shares(weights))}}
    whole = {
        "finished": True,
        "last_evaluation": evaluation,
        "steps": 150,
        "best_evaluation": None,
        **summary,
    }
    (folder / "summary.json").write_text(json.dumps(whole))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    home = tmp_path_factory.mktemp("pilots")
    return [write(home / str(number), weights) for number, weights in enumerate(PILOTS)]


def test_the_argmax_of_a_known_quadratic_is_found(runs: list[Path]) -> None:
    mixture = fit_mixture(runs)
    assert mixture.weights == pytest.approx({"a": 0.4375, "b": 0.5625}, abs=1e-3)
    assert mixture.expected == pytest.approx(KNOWN(np.array([0.4375, 0.5625, 0])), abs=1e-4)
    assert mixture.missing == () and mixture.pilots == 8


def test_what_is_printed_is_a_config_to_paste(runs: list[Path]) -> None:
    lines = lines_of(fit_mixture(runs))
    tree = yaml.safe_load("\n".join(lines))
    assert [s["weight"] for s in tree["data"]["train"]] == pytest.approx([0.4375, 0.5625], abs=1e-3)
    assert tree["data"]["train"][1]["options"] == {"task": "grounding", "seed": 1}
    config.load("quickstart", [f"data.train={json.dumps(tree['data']['train'])}"])
    assert lines[0].startswith("# 8 pilots; box_iou expected of these weights: 0.653")
    assert "# c: 0.0000; without one pilot" in "\n".join(lines)


@pytest.mark.parametrize("seed", range(20))
def test_the_argmax_is_that_of_a_numerical_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 2 + seed % 4
    pairs = np.triu(rng.normal(size=(count, count)), 1)
    surrogate = Surrogate(0.0, rng.normal(size=count), pairs + pairs.T)
    starts = [*np.eye(count), *rng.dirichlet(np.ones(count), 20)]
    whole = {"type": "eq", "fun": lambda w: w.sum() - 1}
    bounds = [(0, 1)] * count
    searched = [
        minimize(lambda w: -surrogate(w), s, method="SLSQP", bounds=bounds, constraints=whole)
        for s in starts
    ]
    best = best_mixture(surrogate)
    assert best.min() >= 0 and best.sum() == pytest.approx(1)
    assert surrogate(best) == pytest.approx(-min(one.fun for one in searched), abs=1e-6)


def test_the_leave_one_out_error_is_that_of_fits_without_the_pilot() -> None:
    rng = np.random.default_rng(1)
    weights, scores = rng.dirichlet(np.ones(3), 12), rng.normal(size=12)
    found = fit(weights, scores, ridge=0.01)
    for left_out in range(12):
        rest = np.arange(12) != left_out
        alone = fit(weights[rest], scores[rest], ridge=0.01).surrogate
        assert found.left_out[left_out] == pytest.approx(alone(weights[left_out]))


def test_noise_takes_a_larger_penalty_and_a_wider_interval() -> None:
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(3), 15)
    clean = np.array([KNOWN(row) for row in weights])
    noisy = clean + rng.normal(size=15) * 0.05
    exact, rough = fit(weights, clean), fit(weights, noisy)
    assert exact.error(clean) < 1e-4 < 0.01 < rough.error(noisy)
    assert rough.ridge > exact.ridge


@pytest.mark.parametrize(
    ("more", "summary", "said"),
    [
        (["model.build.vocab_size=400"], {}, "has another model than"),
        (["rollout.group_size=4"], {}, "has another rollout than"),
        (["run.steps=7"], {}, "has another run.steps than"),
        (
            ["evaluation.sources=[]"],
            {},
            "another evaluation than .*: name the same evaluation.sour",
        ),
        (
            ["data.train.a.options.seed=9"],
            {},
            "its source 'a' is another one than in earlier pilots",
        ),
        ([], {"finished": False}, "expected a finished run"),
        ([], {"last_evaluation": None}, "expected a final held-out 'box_iou', got no evaluation"),
        (["data.sampler=in_order"], {}, "its sampler 'in_order' does not follow weights"),
        (["data.train.a.weight={schedule: [[0, 1], [0.5, 2]]}"], {}, "weights that do not change"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused_by_name(
    runs: list[Path], tmp_path: Path, more: list[str], summary: dict[str, Any], said: str
) -> None:
    other = write(tmp_path / "other", PILOTS[-1], *more, **summary)
    with pytest.raises(UserError, match=said) as refused:
        fit_mixture([*runs, other])
    assert str(other) in str(refused.value) and "\n" not in str(refused.value)


def test_too_few_pilots_are_refused_with_what_is_missing(runs: list[Path]) -> None:
    with pytest.raises(
        UserError, match="expected at least 5 pilots of different weights"
    ) as refused:
        fit_mixture([*runs[:3], runs[0], runs[4]])
    missing = "missing of the paper's design: all but a, all but c, a mixture of all"
    assert str(refused.value).endswith(missing)
    with pytest.raises(UserError, match="expected pilots of 2 to 12 sources, got 1"):
        fit_mixture(runs[:1])
