"""Curves: a score against source length, and dev loss and scores during training."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from seq2seq.plots.canvas import curve_style, new_figure, plain_axes, save_figure
from seq2seq.plots.labels import text_style

_DEV_METRICS = {"dev_loss": "dev loss", "dev_bleu": "dev BLEU (greedy)", "dev_accuracy": "dev token accuracy"}
_FARTHEST = 1.4  # a training length beyond this multiple of the last bucket is told, not drawn


@dataclass(frozen=True)
class Point:
    """A score of the sentences in one length bucket; a value of None is a gap in the curve."""

    label: str
    length: float | None
    """Mean source length of the bucket; None when it is empty."""
    n: int
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Curve:
    """One system's points, in order of length."""

    label: str
    points: tuple[Point, ...]


def plot_by_length(
    path: str | Path,
    curves: Sequence[Curve],
    *,
    metric: str = "BLEU",
    title: str = "",
    length_unit: str = "words",
    longest_training_length: int | None = None,
    min_sentences: int = 30,
    legend: bool = True,
) -> None:
    """Draw scores against source length, with their intervals, n of each bucket under the axis, and gaps where hidden.

    Args:
        path: PNG to write, or SVG where it ends in .svg.
        curves: all over the same buckets.
        metric: name on the y axis.
        title: above the figure.
        length_unit: what lengths count.
        longest_training_length: marked with a vertical line; None or 0 marks nothing.
        min_sentences: told in the note about gaps.
        legend: which curve is whose, at the right.

    Raises:
        ValueError: no curves, or curves over different buckets.
    """
    buckets = _shared_buckets(curves)
    figure = new_figure(min(max(7.5, 1.6 + 0.85 * len(buckets)), 12.0), 4.6)
    axes = figure.add_axes((0.1, 0.2, 0.86, 0.68))
    plain_axes(axes)
    for index, curve in enumerate(curves):
        _draw_curve(axes, curve, curve_style(index))
    style = text_style([metric, title, length_unit, *(curve.label for curve in curves)])
    axes.set_xlabel(f"source length in {length_unit}: buckets at their mean length, n sentences", labelpad=8, **style)
    axes.set_ylabel(f"{metric} (95 % interval)", **style)
    axes.set_title(title, loc="left", pad=20, **style)
    _set_limits(axes, buckets, curves, longest_training_length)
    _label_buckets(figure, axes, buckets)
    if longest_training_length:
        _mark_training_length(axes, longest_training_length)
    if legend:
        _style_legend(axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5)), style)
    _note_gaps(axes, curves, metric, min_sentences)
    save_figure(figure, path)


def plot_training_curves(
    path: str | Path, runs: Mapping[str, Sequence[Mapping[str, Any]]], *, title: str = "", legend: bool = True
) -> None:
    """Draw dev loss and dev BLEU (token accuracy where no BLEU was measured) against steps and minutes.

    Args:
        path: PNG to write, or SVG where it ends in .svg.
        runs: for each label the records of metrics.jsonl.
        title: above the figure.
        legend: which curve is whose, at the right.
    """
    dev = {label: [record for record in records if record.get("kind") == "dev"] for label, records in runs.items()}
    has_bleu = any(record.get("dev_bleu") is not None for records in dev.values() for record in records)
    style = text_style([title, *runs])
    figure = new_figure(9.5, 6.0)
    grid = figure.subplots(2, 2, sharex="col", sharey="row")
    figure.subplots_adjust(hspace=0.12, wspace=0.08)
    for row, metric in enumerate(("dev_loss", "dev_bleu" if has_bleu else "dev_accuracy")):
        for column, horizontal in enumerate(("step", "minutes")):
            axes = grid[row, column]
            plain_axes(axes)
            for index, (label, records) in enumerate(dev.items()):
                points = [(r[horizontal], r[metric]) for r in records if r.get(metric) is not None]
                axes.plot(*zip(*points, strict=True) if points else ([], []), label=label, markersize=4, **curve_style(index))
            if not axes.lines or not any(len(line.get_xdata()) for line in axes.lines):
                axes.text(0.5, 0.5, "no evaluation on the dev text", transform=axes.transAxes, ha="center", color="0.4")
            axes.set_xlim(left=0)
        grid[row, 0].set_ylabel(_DEV_METRICS[metric])
    grid[1, 0].set_xlabel("steps")
    grid[1, 1].set_xlabel("minutes of training")
    if legend:
        handles = grid[0, 0].get_legend_handles_labels()
        _style_legend(figure.legend(*handles, frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(0.91, 0.5)), style)
    figure.suptitle(title, x=0.125, y=0.94, ha="left", **style)
    save_figure(figure, path)


def plot_curve_sample(path: str | Path, index: int) -> None:
    """Draw a short piece of curve `index`, for a legend outside the figure."""
    figure = new_figure(0.42, 0.16)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.plot([0, 1, 2], [0, 0, 0], linewidth=1.8, markersize=6, markevery=[1], **curve_style(index))
    save_figure(figure, path, padding=0.02)


def _style_legend(legend: Legend, style: Mapping[str, Any]) -> None:
    for text in legend.get_texts():
        text.set(**style)


def _shared_buckets(curves: Sequence[Curve]) -> list[Point]:
    """The buckets that hold sentences, the same for all curves."""
    if not curves:
        raise ValueError("curves: expected at least one, got none")
    buckets = [[(point.label, point.n) for point in curve.points] for curve in curves]
    for curve, own in zip(curves, buckets, strict=True):
        if own != buckets[0]:
            first = f"{curves[0].label!r} is over (bucket, n) {buckets[0]}"
            raise ValueError(f"curves: expected the same buckets, but {first}, {curve.label!r} over {own}")
    return [point for point in curves[0].points if point.n]


def _draw_curve(axes: Axes, curve: Curve, style: dict[str, str]) -> None:
    points = [point for point in curve.points if point.n]
    lengths = [point.length for point in points]
    values = [_number(point.value) for point in points]
    lows, highs = [_number(point.low) for point in points], [_number(point.high) for point in points]
    axes.fill_between(lengths, lows, highs, color=style["color"], alpha=0.15, linewidth=0)
    axes.vlines(lengths, lows, highs, color=style["color"], alpha=0.55, linewidth=1.2)
    axes.plot(lengths, values, label=curve.label, linewidth=1.8, markersize=6, **style)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _set_limits(axes: Axes, buckets: Sequence[Point], curves: Sequence[Curve], longest: int | None) -> None:
    lengths = [point.length for point in buckets]
    if longest and longest <= _FARTHEST * max(lengths):
        lengths = [*lengths, longest]
    margin = 0.04 * (max(lengths) - min(lengths)) + 0.5
    axes.set_xlim(min(lengths) - margin, max(lengths) + margin)
    tops = [top for curve in curves for point in curve.points for top in (point.high, point.value) if top is not None]
    axes.set_ylim(0, 1.05 * max(tops, default=1.0) or 1.0)


def _label_buckets(figure: Figure, axes: Axes, buckets: Sequence[Point]) -> None:
    """Bucket and n under each point; turned upright where they would touch."""
    lengths = [point.length for point in buckets]
    inches = figure.get_figwidth() * axes.get_position().width / (axes.get_xlim()[1] - axes.get_xlim()[0])
    room = min((b - a for a, b in pairwise(lengths)), default=float("inf")) * inches
    texts = [f"{point.label}\nn={point.n}" for point in buckets]
    widest = max(len(line) for text in texts for line in text.split("\n"))
    if room > 0.085 * widest:
        axes.set_xticks(lengths, texts, fontsize=8.5)
    else:
        size = min(8.5, max(5.0, 60 * room))
        axes.set_xticks(lengths, [text.replace("\n", ", ") for text in texts], fontsize=size, rotation=90)


def _mark_training_length(axes: Axes, length: int) -> None:
    """A vertical line with its length above; an arrow to the right where it would squeeze the curves."""
    left, right = axes.get_xlim()
    if length > right:
        text, place = f"longest in training: {length} →", right
    else:
        text, place = f"longest in training: {length}", length
        axes.axvline(length, color="0.35", linewidth=1.2, linestyle=(0, (2, 2)))
    axes.annotate(
        text,
        (place, 1.0),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right" if place > (left + right) / 2 else "left",
        va="bottom",
        fontsize=8.5,
        color="0.35",
    )


def _note_gaps(axes: Axes, curves: Sequence[Curve], metric: str, min_sentences: int) -> None:
    hidden = [f"{point.label} (n={point.n})" for point in curves[0].points if point.n and point.value is None]
    if not hidden:
        return
    note = f"{metric} not shown under {min_sentences} sentences: {', '.join(hidden)}"
    label = axes.xaxis.label
    axes.annotate(
        "\n".join(textwrap.wrap(note, 100)),
        (0, 0),
        xycoords=label,
        xytext=(0, -6),
        textcoords="offset points",
        va="top",
        fontsize=8.5,
        color="0.35",
        annotation_clip=False,
    )
