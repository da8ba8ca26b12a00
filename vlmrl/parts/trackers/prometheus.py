"""Prometheus: an HTTP endpoint from which a monitoring system reads the newest numbers of the run."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlmrl.errors import UserError
from vlmrl.runs.tracker import Phase, TrackedRun, Tracker
from vlmrl.system.files import read_lines

Labels = tuple[tuple[str, str], ...]
"""Names of labels with their values."""
Series = tuple[str, str, Labels]
"""Where a metric is shown: its name, its help text and its labels."""

STEPS = "vlmrl_run_steps", "GRPO steps done, those before a resume included."
SFT_STEPS = "vlmrl_run_sft_steps", "Steps of the cold start done."
TOKENS = "vlmrl_run_loss_tokens", "Loss tokens of all steps (update/tokens)."
SECONDS = "vlmrl_run_seconds", "Wall seconds of all steps by phase (time/<phase>)."
REPORTED = (
    "vlmrl_run_last_report_timestamp_seconds",
    "Unix time of the last report: an old one, a hang.",
)
OTHER = "vlmrl_other", "A number of this run that the glossary of metrics does not have."
RESERVED = re.compile("(?<=_)(total|count|sum|bucket|created|info)$")
"""What the name of a gauge must not end with: these are counters and parts of histograms."""


@dataclass(eq=False)  # the registry wants something that can be a key
class Prometheus(Tracker):
    """The newest value of every number of the run at `http://address:port/metrics`, while it runs.

    The steps, loss tokens and seconds of the run are counters, which a resumed run continues; all else
    are gauges with the texts of the glossary. Whoever reaches the port reads them: no password is asked.
    """

    extra: ClassVar[str] = "prometheus"

    __hash__ = object.__hash__

    port: int = 9464
    """Port of the endpoint."""
    address: str = "127.0.0.1"
    """Address at which it listens; 0.0.0.0 opens it to other machines."""
    _server: Any = field(default=None, init=False, repr=False)
    _thread: Any = field(default=None, init=False, repr=False)
    _families: Any = field(default=None, init=False, repr=False)
    _run: TrackedRun | None = field(default=None, init=False, repr=False)
    _series: dict[str, Series] = field(default_factory=dict, init=False, repr=False)
    _gauges: dict[Series, float] = field(default_factory=dict, init=False, repr=False)
    _counters: dict[Series, float] = field(default_factory=dict, init=False, repr=False)
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        """Open the port, and count what a resumed run has done.

        Raises:
            UserError: the package is not installed, or the port cannot be opened.
        """
        package = self.import_package("prometheus_client")
        self._families = self.import_package("prometheus_client.core")
        self._run = run
        self._counters[(*STEPS, ())] = run.step
        path = run.folder / "metrics.jsonl"
        for line in read_lines(path) if run.step and path.exists() else ():
            if line["step"] <= run.step:
                self._count(line)
        registry = package.CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = package.start_http_server(
                self.port, self.address, registry
            )
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(
                f"cannot listen at {self.address}:{self.port}: {why}; choose another port or address"
            ) from error

    def log(self, phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of one step from now on."""
        self._show("sft/" if phase == "sft" else "", metrics)
        with self._lock:
            self._counters[(*(SFT_STEPS if phase == "sft" else STEPS), ())] = step
            if phase == "rl":
                self._count(metrics)

    def log_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an evaluation from now on."""
        self._show("evaluation/", metrics)

    def close(self) -> None:
        """Close the port."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def collect(self) -> Iterator[Any]:
        """Yield what a scrape shows; prometheus_client asks for it."""
        core, run = self._families, self._run
        if run is None:
            return
        with self._lock:
            shown = [
                (self._gauges.copy(), core.GaugeMetricFamily),
                (self._counters.copy(), core.CounterMetricFamily),
            ]
        for values, family in shown:
            families: dict[str, Any] = {}
            for (name, line, labels), value in sorted(values.items()):
                if name not in families:
                    families[name] = family(name, line, labels=["run", *(key for key, _ in labels)])
                families[name].add_metric([run.name, *(value for _, value in labels)], value)
            yield from families.values()

    def _show(self, kind: str, metrics: Mapping[str, float]) -> None:
        with self._lock:
            self._gauges[(*REPORTED, ())] = time.time()
            for key, value in metrics.items():
                self._gauges[self._series_of(kind + key)] = float(value)

    def _count(self, metrics: Mapping[str, float | None]) -> None:
        """Add the numbers of one step to the counters."""
        for key, value in metrics.items():
            if key == "update/tokens":
                series: Series = (*TOKENS, ())
            elif key.startswith("time/"):
                series = (*SECONDS, (("phase", key.removeprefix("time/")),))
            else:
                continue
            self._counters[series] = self._counters.get(series, 0.0) + (value or 0.0)

    def _series_of(self, name: str) -> Series:
        """Return where a metric is shown; what stands for `<...>` in the glossary's name is a label."""
        if name not in self._series:
            assert self._run is not None
            if (entry := self._run.describe(name)) is None:
                self._series[name] = (*OTHER, (("metric", name),))
            else:
                pattern, line = entry
                self._series[name] = legal_name(pattern), line, labels_of(pattern, name)
        return self._series[name]


def legal_name(pattern: str) -> str:
    """Return the name of a metric for Prometheus; of the labels in it only one at the end is named.

    Example: `source/<source>/<verifier>` is "vlmrl_source_verifier".
    """
    middle, _, last = pattern.rpartition("/")
    kept = [part for part in middle.split("/") if part and not part.startswith("<")]
    name = "_".join(["vlmrl", *kept, last.replace("<", "").replace(">", "")])
    return RESERVED.sub(r"\1_value", re.sub(r"\W", "_", name, flags=re.ASCII))


def labels_of(pattern: str, name: str) -> Labels:
    """Return what stands in a name for each `<label>` of its pattern."""
    names = re.findall(r"<(\w+)>", pattern)
    pieces = [re.escape(piece) for piece in re.split(r"<\w+>", pattern)]
    values = re.fullmatch("([^/]+)".join(pieces), name, re.DOTALL)
    assert values is not None, (pattern, name)
    return tuple(zip(names, values.groups(), strict=True))
