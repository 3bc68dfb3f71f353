"""Time and memory over length, on logarithmic axes: one panel for each kind and pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from seq2seq.benchmarks.record import Measurement, Results
from seq2seq.benchmarks.table import title
from seq2seq.plots.canvas import curve_style, new_figure, plain_axes, save_figure

_QUANTITIES = {
    "time": ("ms", lambda m: 1e3 * m.seconds),
    "memory": ("temporary MiB", lambda m: m.temporary_bytes / 2**20 if m.temporary_bytes else None),
}


def plot_results(folder: str | Path, results: Results) -> list[Path]:
    """Write time and memory, each as PNG and SVG; nothing where no case has a second length to draw a line to."""
    curves = _curves(results.measurements)
    if not curves:
        return []
    written = []
    for name in _QUANTITIES:
        written += _plot(Path(folder) / name, name, curves, title(results))
    return written


Panel = tuple[str, str, str]
Curves = dict[Panel, dict[str, list[Measurement]]]


def _curves(measurements: Sequence[Measurement]) -> Curves:
    """By panel (inputs, kind, pass) and case, in order of length; inputs of one length only make no panel."""
    lengths: dict[str, set[int]] = {}
    for m in measurements:
        lengths.setdefault(m.inputs, set()).add(m.n)
    curves: Curves = {}
    for m in sorted(measurements, key=lambda m: m.n):
        if len(lengths[m.inputs]) > 1:
            curves.setdefault((m.inputs, m.kind, m.of_pass), {}).setdefault(m.case, []).append(m)
    return curves


def _plot(path: Path, quantity: str, curves: Curves, heading: str) -> list[Path]:
    columns = list(dict.fromkeys((inputs, kind) for inputs, kind, _ in curves))
    rows = list(dict.fromkeys(of_pass for _, _, of_pass in curves))
    cases = list(dict.fromkeys(case for panel in curves.values() for case in panel))
    figure = new_figure(1.2 + 3.4 * len(columns), 0.8 + 3.4 * len(rows))
    grid = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
    figure.subplots_adjust(hspace=0.1, wspace=0.08)
    for row, of_pass in enumerate(rows):
        for column, (inputs, kind) in enumerate(columns):
            _draw(grid[row, column], quantity, curves.get((inputs, kind, of_pass), {}), cases)
            if not row:
                grid[row, column].set_title(f"{kind}, {inputs}", fontsize=10)
        grid[row, 0].set_ylabel(f"{of_pass}: {_QUANTITIES[quantity][0]}")
    for axes in grid[-1]:
        axes.set_xlabel("length n")
    _plain_ticks(grid[0, 0], sorted({m.n for panel in curves.values() for case in panel.values() for m in case}))
    lines = {line.get_label(): line for axes in grid.flat for line in axes.lines}
    shown = [case for case in cases if case in lines]
    figure.legend([lines[case] for case in shown], shown, frameon=False, loc="center left", bbox_to_anchor=(0.905, 0.5))
    figure.suptitle(heading, x=0.125, y=0.99 if len(rows) == 1 else 0.95, ha="left", fontsize=10)
    save_figure(figure, path.with_suffix(".png"))
    with matplotlib.rc_context({"svg.hashsalt": "attention", "svg.fonttype": "path"}):
        figure.savefig(path.with_suffix(".svg"), bbox_inches="tight", pad_inches=0.15, metadata={"Date": None})
    return [path.with_suffix(".png"), path.with_suffix(".svg")]


def _draw(axes: Axes, quantity: str, of_panel: dict[str, list[Measurement]], cases: Sequence[str]) -> None:
    plain_axes(axes)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    value = _QUANTITIES[quantity][1]
    for index, case in enumerate(cases):
        points = [(m.n, value(m)) for m in of_panel.get(case, []) if value(m) is not None]
        if points:
            lengths, values = zip(*points, strict=True)
            axes.plot(lengths, values, label=case, markersize=4, linewidth=1.4, **curve_style(index))


def _plain_ticks(axes: Axes, lengths: Sequence[int]) -> None:
    """Each length, and numbers without exponents; the panels share both."""
    axes.xaxis.set_major_locator(FixedLocator(list(lengths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda n, _: f"{n / 1024:g}k" if n >= 1024 else f"{n:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value:.0e}")
    axes.yaxis.set_minor_formatter(NullFormatter())
