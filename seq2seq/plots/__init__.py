"""Figures of evaluation and training, as PNG or SVG files.

plot_by_length        a score against source length, with intervals
plot_training_curves  dev loss and dev scores during training
plot_curve_sample     what a legend outside these figures shows of a curve
plot_alignment        attention weights between a source sentence and its translation
plot_alignment_sheet  the same of several heads, on one sheet
"""

from seq2seq.plots.alignment import plot_alignment, plot_alignment_sheet
from seq2seq.plots.curves import Curve, Point, plot_by_length, plot_curve_sample, plot_training_curves

__all__ = [
    "Curve",
    "Point",
    "plot_alignment",
    "plot_alignment_sheet",
    "plot_by_length",
    "plot_curve_sample",
    "plot_training_curves",
]
