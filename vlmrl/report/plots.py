"""Draw the panels of a run as PNG files, for a README, a paper or a chat."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vlmrl.report.series import MAIN_COLOUR, CurvePanel, CurveSection, colours, smoothed
from vlmrl.system.atomic_files import write_bytes

# The light palette of style.css.
PALETTE = (
    "#2563eb",
    "#d9480f",
    "#0d9467",
    "#b5369c",
    "#b7860b",
    "#0e8fb3",
    "#7048e8",
    "#64748b",
)
COLUMNS = 3


def save_plots(folder: Path, sections: list[CurveSection]) -> list[Path]:
    """Write one PNG for each section into plots/, named after it, e.g. plots/reward.png."""
    known = dict(MAIN_COLOUR)
    return [
        write_bytes(folder / "plots" / f"{name}.png", _png(section, known))
        for section in sections
        if section.panels and (name := section.title.lower().replace(" ", "_"))
    ]


def _png(section: CurveSection, known: dict[str, int]) -> bytes:
    columns = min(COLUMNS, len(section.panels))
    rows = -(-len(section.panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 2.9 * rows), dpi=130, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, axes in zip(section.panels, grid, strict=False):
        _plot(panel, axes, [PALETTE[i] for i in colours(panel, known, len(PALETTE))])
    for axes in grid[len(section.panels) :]:
        axes.set_axis_off()
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _plot(panel: CurvePanel, axes: Axes, palette: list[str]) -> None:
    title = axes.set_title(_short(panel.title), loc="left", fontsize=10, fontweight="bold")
    if panel.stacked:
        steps = sorted({step for series in panel.series for step in series.steps})
        parts = [dict(zip(s.steps, s.values, strict=True)) for s in panel.series]
        heights = [[part.get(step) or 0.0 for step in steps] for part in parts]
        names = [_short(series.name) for series in panel.series]
        axes.stackplot(steps, heights, labels=names, colors=palette, alpha=0.7)
    else:
        _lines(panel, axes, palette)
    if panel.unit == "share":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(axis="y", color="#e3e7ee")
    axes.tick_params(labelsize=8, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    legend = axes.legend(fontsize=7.5, frameon=False, ncols=2)
    for text in (title, *legend.get_texts()):
        text.set_parse_math(False)  # a name with dollar signs is not a formula


def _lines(panel: CurvePanel, axes: Axes, palette: list[str]) -> None:
    for series, colour in zip(panel.series, palette, strict=True):
        values = [float("nan") if v is None else v for v in series.values]
        mean = smoothed(series)
        if mean:
            axes.plot(series.steps, values, color=colour, linewidth=0.8, alpha=0.3)
            values = [float("nan") if v is None else v for v in mean.values]
        marker = "o" if len(series.steps) <= 30 else ""
        axes.plot(
            series.steps,
            values,
            color=colour,
            label=_short(series.name),
            marker=marker,
            markersize=3,
        )
        if series.low:
            axes.vlines(series.steps, series.low, series.high, color=colour, alpha=0.6)


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:39]}…"
