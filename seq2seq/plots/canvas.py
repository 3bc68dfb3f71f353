"""Figures without global state: each is drawn on its own Agg canvas, and the same input gives the same file."""

from __future__ import annotations

import warnings
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe & Ito (2008), told apart under every common kind of colour blindness; shapes tell the curves apart as well
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
DPI = 130

_PNG = {"format": "png", "metadata": {"Software": None}}
_SVG = {"format": "svg", "metadata": dict.fromkeys(("Creator", "Date", "Format", "Type")), "transparent": True}
_SVG_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "seq2seq"}  # text stays text; ids are the same every time


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches."""
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path, padding: float = 0.15) -> None:
    """Write `figure` with nothing cut off, and no date or version in it.

    Args:
        figure: drawn on its canvas.
        path: ends in .svg for an SVG, which has no background; anything else is a PNG.
        padding: inches around what is drawn.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = _SVG if path.suffix == ".svg" else _PNG
    with warnings.catch_warnings(), matplotlib.rc_context(_SVG_SETTINGS):
        warnings.filterwarnings("ignore", message=r"Glyph \d+", category=UserWarning)  # labels.text_style has said so
        figure.savefig(path, bbox_inches="tight", pad_inches=padding, **options)


def curve_style(index: int) -> dict[str, str]:
    """Colour, marker and line of curve `index`; 28 curves differ, those of one colour in marker and line."""
    count = len(COLOURS)
    turn = index // count
    return {"color": COLOURS[index % count], "marker": MARKERS[(index + turn) % count], "linestyle": LINES[turn % len(LINES)]}


def plain_axes(axes: Axes) -> None:
    """Quiet axes: a light grid, no box."""
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
