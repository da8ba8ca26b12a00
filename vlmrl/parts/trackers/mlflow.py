"""MLflow: curves on a tracking server, in a database or in a local folder."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

from vlmrl.runs.tracker import Phase, TrackedRun, Tracker

MAX_METRICS = 1000
"""Metrics of one request to MLflow."""
MAX_PARAMS = 100
"""Parameters of one request to MLflow."""
MAX_PARAM_CHARS = 6000


@dataclass
class Mlflow(Tracker):
    """Curves in an experiment of MLflow; the config becomes its parameters and a JSON artifact.

    A resumed run is a new MLflow run of the same name. Characters that MLflow does not take in the
    name of a metric become `_`. User and password are read from MLFLOW_TRACKING_USERNAME and
    MLFLOW_TRACKING_PASSWORD.
    """

    extra: ClassVar[str] = "mlflow"
    offline: ClassVar[Mapping[str, str]] = {
        "MLFLOW_TRACKING_URI": "file://{folder}",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }

    experiment: str = "vlmrl"
    """Experiment of the run; it is created if it does not exist."""
    uri: str | None = None
    """Tracking server or store; absent: MLFLOW_TRACKING_URI, else MLflow's default."""
    _client: Any = field(default=None, init=False, repr=False)
    _id: str = field(default="", init=False, repr=False)
    _metric: Any = field(default=None, init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        """Create a run in the experiment and give it the config."""
        self.import_package("mlflow")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        client = MlflowClient(tracking_uri=self.uri)
        known = client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else client.create_experiment(self.experiment)
        self._id = client.create_run(experiment, run_name=run.name).info.run_id
        self._client = client
        client.set_tag(self._id, "vlmrl.folder", str(run.folder))
        client.log_dict(self._id, dict(run.config), "config.json")
        params = (Param(_allowed(k), str(v)[:MAX_PARAM_CHARS]) for k, v in _leaves(run.config))
        while some := list(islice(params, MAX_PARAMS)):
            client.log_batch(self._id, params=some)

    def log(self, phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        """Send metrics as `<phase>/<metric>`."""
        now = int(1000 * time.time())
        points = (
            self._metric(_allowed(f"{phase}/{key}"), float(value), now, step)
            for key, value in metrics.items()
        )
        while some := list(islice(points, MAX_METRICS)):
            self._client.log_batch(self._id, metrics=some)

    def close(self) -> None:
        """Mark the MLflow run as finished."""
        client, self._client = self._client, None
        if client is not None:
            client.set_terminated(self._id)


def _allowed(name: str) -> str:
    """Return a name with only the characters that every store of MLflow takes."""
    return re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)


def _leaves(tree: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of every value of a config that is neither mapping nor list."""
    items: Any = ()
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    else:
        yield path, tree
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}" if path else str(key))
