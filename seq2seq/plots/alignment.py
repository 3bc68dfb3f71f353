"""Heat map of attention weights between a source sentence and its translation."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from seq2seq.plots.canvas import new_figure, save_figure
from seq2seq.plots.labels import is_right_to_left, shaped, text_style

MAX_TOKENS = 120
"""Rows or columns drawn at most; a warning and a note in the figure tell when there are more."""
_GAP = 0.25  # inches between the maps of a sheet
_ROUNDING = 1e-3  # weights may come from half precision


def plot_alignment(
    path: str | Path, columns: Sequence[str], rows: Sequence[str], weights: np.ndarray, *, title: str = ""
) -> None:
    """Draw weights with source words as columns and produced words as rows, dark for heavy.

    The words are drawn as given, `</s>` included if it is among them.  A source in a right-to-left script runs from right
    to left, which the figure says.

    Args:
        path: PNG to write.
        columns: S source words.
        rows: T produced words.
        weights: [T S], from 0 to 1.
        title: above the figure.

    Raises:
        ValueError: no words, a shape that does not fit them, or a weight outside [0, 1] (NaN included).

    Warns:
        UserWarning: more than MAX_TOKENS rows or columns, or characters that no installed font holds.
    """
    weights = _checked(columns, rows, np.asarray(weights, dtype=np.float64))
    notes = _cap_notes(columns, rows)
    columns, rows, weights = columns[:MAX_TOKENS], rows[:MAX_TOKENS], weights[:MAX_TOKENS, :MAX_TOKENS]
    if any(map(is_right_to_left, columns)):
        notes.append("the source reads from right to left")
    cell = _cell_inches(max(len(columns), len(rows)))
    width, height = max(cell * len(columns), 1.2), max(cell * len(rows), 1.2)
    figure = new_figure(width + 1.0, height + 0.5)
    # axes are placed by hand and labels stick out of the figure: saving takes them in, whatever their length
    axes = figure.add_axes((0.0, 0.0, width / (width + 1.0), height / (height + 0.5)))
    image = _draw(axes, weights)
    _label(axes, columns, rows, title, notes, cell)
    _colour_bar(figure, axes, image)
    save_figure(figure, path)


def plot_alignment_sheet(
    path: str | Path, columns: Sequence[str], rows: Sequence[str], weights: np.ndarray, *, names: Sequence[str], title: str = ""
) -> None:
    """Draw several heat maps of the same words on one sheet, such as the heads of a layer.

    Args:
        path: PNG to write.
        columns: S source words.
        rows: T produced words.
        weights: [N T S], from 0 to 1.
        names: of the N maps, below each.
        title: above the sheet.

    Raises:
        ValueError: no maps, names of another number, or as `plot_alignment`.

    Warns:
        UserWarning: as `plot_alignment`.
    """
    if len(names) != len(weights) or not names:
        raise ValueError(f"names: expected one for each of at least one map, got {len(names)} for {len(weights)}")
    maps = [_checked(columns, rows, np.asarray(each, dtype=np.float64)) for each in weights]
    notes = _cap_notes(columns, rows)
    columns, rows = columns[:MAX_TOKENS], rows[:MAX_TOKENS]
    cell = _cell_inches(2 * max(len(columns), len(rows)))
    across = min(len(maps), 2 if len(maps) <= 4 else 4)
    sheet = _Sheet(across, -(-len(maps) // across), max(cell * len(columns), 1.2), max(cell * len(rows), 1.2))
    figure = sheet.figure()
    for place, (each, name) in enumerate(zip(maps, names, strict=True)):
        axes = figure.add_axes(sheet.box(place))
        image = axes.imshow(
            each[:MAX_TOKENS, :MAX_TOKENS], cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest"
        )
        _label_words(axes, columns if place < across else None, rows if place % across == 0 else None, columns, rows, cell)
        axes.set_xlabel(name, fontsize=10)
        axes.xaxis.set_label_position("bottom")
    style = text_style([title, *columns, *rows])
    figure.axes[0].set_title(shaped("; ".join([title, *notes])), fontsize=11, loc="left", pad=10, **style)
    _colour_bar(figure, figure.axes[across - 1], image)
    save_figure(figure, path)


class _Sheet(NamedTuple):
    """A grid of maps of one size, in inches."""

    across: int
    down: int
    width: float
    height: float

    def figure(self) -> Figure:
        return new_figure(self.across * (self.width + _GAP), self.down * (self.height + 2 * _GAP))

    def box(self, place: int) -> tuple[float, float, float, float]:
        """Left, bottom, width and height of a map, as shares of the figure."""
        row, column = divmod(place, self.across)
        whole = self.across * (self.width + _GAP), self.down * (self.height + 2 * _GAP)
        bottom = (self.down - row - 1) * (self.height + 2 * _GAP) + 2 * _GAP
        return column * (self.width + _GAP) / whole[0], bottom / whole[1], self.width / whole[0], self.height / whole[1]


def _checked(columns: Sequence[str], rows: Sequence[str], weights: np.ndarray) -> np.ndarray:
    if not columns or not rows:
        raise ValueError(f"columns and rows: expected at least one word each, got {len(columns)} and {len(rows)}")
    if weights.shape != (len(rows), len(columns)):
        raise ValueError(f"weights: expected shape [rows columns] = {[len(rows), len(columns)]}, got {list(weights.shape)}")
    inside = (weights >= -_ROUNDING) & (weights <= 1 + _ROUNDING)  # False for NaN
    if not inside.all():
        row, column = np.argwhere(~inside)[0]
        raise ValueError(f"weights: expected numbers from 0 to 1, got {weights[row, column]} at row {row}, column {column}")
    return weights


def _cap_notes(columns: Sequence[str], rows: Sequence[str]) -> list[str]:
    notes = [
        f"the first {MAX_TOKENS} of {len(words)} {kind} words"
        for kind, words in (("source", columns), ("produced", rows))
        if len(words) > MAX_TOKENS
    ]
    for note in notes:
        warnings.warn(f"alignment figure shows {note}", stacklevel=3)
    return notes


def _cell_inches(count: int) -> float:
    """Side of a cell: large for short sentences, never too small for its label."""
    return float(np.clip(12.0 / count, 0.17, 0.36))


def _label(axes: Axes, columns: Sequence[str], rows: Sequence[str], title: str, notes: Sequence[str], cell: float) -> None:
    _label_words(axes, columns, rows, columns, rows, cell)
    style = text_style([*columns, *rows, title])
    axes.set_xlabel("source" + "".join(f"; {note}" for note in notes), fontsize=9, color="0.35")
    axes.xaxis.set_label_position("bottom")
    axes.set_ylabel("produced", fontsize=9, color="0.35")
    axes.set_title(shaped(title), fontsize=11, loc="left", pad=10, **style)


def _draw(axes: Axes, weights: np.ndarray) -> AxesImage:
    return axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")


def _label_words(
    axes: Axes, top: Sequence[str] | None, left: Sequence[str] | None, columns: Sequence[str], rows: Sequence[str], cell: float
) -> None:
    """Words at the top and on the left, where there are to be any, and lines between the cells."""
    size = min(11.0, 72 * cell * 0.62)
    style = text_style([*columns, *rows])
    upright = {"rotation": 90, "ha": "center", "va": "bottom"}
    axes.xaxis.tick_top()
    labels = ["" if top is None else shaped(word) for word in columns], ["" if left is None else shaped(word) for word in rows]
    axes.set_xticks(range(len(columns)), labels[0], fontsize=size, **upright, **style)
    axes.set_yticks(range(len(rows)), labels[1], fontsize=size, **style)
    axes.tick_params(length=0, pad=4)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="0.88", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    if any(map(is_right_to_left, columns)):
        axes.invert_xaxis()


def _colour_bar(figure: Figure, axes: Axes, image: AxesImage) -> None:
    box = axes.get_position()
    width = figure.get_figwidth()
    bar = figure.add_axes((box.x1 + 0.2 / width, box.y0, 0.14 / width, box.height))
    figure.colorbar(image, cax=bar, ticks=[0, 0.25, 0.5, 0.75, 1])
    bar.set_ylabel("weight", fontsize=9, color="0.35")
    bar.tick_params(labelsize=8)
