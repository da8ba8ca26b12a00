"""What MLflow gives back of a run: the curves of both phases, the evaluation and the config."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from vlmrl import plugins
from vlmrl.runs.tracker import TrackedRun

pytest.importorskip("mlflow")


def test_mlflow_keeps_the_curves_and_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    tracker = plugins.build("tracker", "mlflow", {"uri": uri, "experiment": "grounding"})
    config = {"run": {"steps": 3}, "rewards": [{"verifier": "box_iou"}], "seed": list(range(150))}
    tracker.start(TrackedRun("first", tmp_path, config))
    tracker.log("sft", 1, {"loss/total": 2.0})
    for step in (1, 2):
        tracker.log("rl", step, {"reward/mean": step / 4, "source/röntgen (a)/reward": math.nan})
    tracker.log_evaluation(2, {"reward": 0.75})
    tracker.log("rl", 3, {f"metric/{i}": float(i) for i in range(1500)})
    tracker.close()

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("grounding")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "first" and run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "rl/reward/mean")
    assert [(point.step, point.value) for point in history] == [(1, 0.25), (2, 0.5)]
    found = run.data.metrics
    assert found["sft/loss/total"] == 2.0 and found["rl/evaluation/reward"] == 0.75
    assert math.isnan(found["rl/source/r_ntgen _a_/reward"]) and found["rl/metric/1499"] == 1499
    assert run.data.params["rewards.0.verifier"] == "box_iou"
    assert run.data.params["seed.149"] == "149"
    (artifact,) = client.list_artifacts(run.info.run_id)
    written = Path(client.download_artifacts(run.info.run_id, artifact.path, str(tmp_path)))
    assert json.loads(written.read_text()) == config
