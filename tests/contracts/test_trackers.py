"""What must hold of every tracker; those whose package is installed are run without a network."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest

from helpers.contracts import require
from vlmrl import plugins
from vlmrl.config.sections.run import SECRET
from vlmrl.errors import UserError
from vlmrl.runs.tracker import TrackedRun, Tracker

KIND = "tracker"
APART = True
METRICS = {"loss/total": 0.5, "source/cell photos/reward": 0.25, "update/grad_norm": math.nan}


def test_it_is_a_tracker_whose_options_hold_no_secrets(part: str, loaded: Any) -> None:
    require(issubclass(loaded, Tracker), part, "derive it from vlmrl.runs.tracker.Tracker")
    for method in ("start", "log"):
        defined = getattr(loaded, method) is not getattr(Tracker, method)
        require(defined, part, f"define the method {method}, as the base class says")
    options = plugins.options_of(loaded)
    secrets = [name for name in options if SECRET.search(name)]
    require(not secrets, part, f"read {secrets} from environment variables, not from options")
    required = [name for name, option in options.items() if option.required]
    require(
        not required, part, f"give {required} a default, so that `tracking: {{name: {{}}}}` works"
    )


def test_it_closes_without_a_start_and_twice(part: str) -> None:
    tracker = plugins.build("tracker", part)
    tracker.close()
    tracker.close()


def test_an_absent_package_is_one_line(
    part: str, loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(module: str, *_: Any) -> None:
        asked.append(module)
        raise ModuleNotFoundError(f"No module named {module!r}", name=module.partition(".")[0])

    tracker = plugins.build("tracker", part)
    monkeypatch.setattr(importlib, "import_module", refuse)
    if not loaded.extra:
        return
    sentence = (
        f"the package .* is not installed: pip install 'vlmrl-perception\\[{loaded.extra}\\]'"
    )
    try:
        with pytest.raises(UserError, match=sentence):
            tracker.start(TrackedRun("run", tmp_path, {}))
    except Exception as error:
        require(asked, part, f"import the package with self.import_package in start; got {error!r}")
        raise


def test_it_takes_a_run_from_start_to_close(
    part: str, loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    for name, value in loaded.offline.items():
        monkeypatch.setenv(name, value.replace("{folder}", str(tmp_path / "elsewhere")))
    tracker = plugins.build("tracker", part)
    try:
        tracker.start(TrackedRun("run", folder, {"run": {"name": "run"}, "rewards": [{"a": 1}]}))
    except UserError as error:
        if "is not installed" not in str(error):
            raise
        pytest.skip(str(error))
    tracker.log("sft", 1, METRICS)
    tracker.log("rl", 1, METRICS)
    tracker.log("rl", 2, METRICS)
    tracker.log_evaluation(2, {"reward": 0.75})
    tracker.close()
    tracker.close()
    strays = {path.name for path in tmp_path.iterdir()} - {"run", "elsewhere"}
    require(
        not strays, part, f"write files into the run folder only, not {sorted(strays)} next to it"
    )
