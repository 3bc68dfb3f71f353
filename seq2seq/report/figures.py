"""Figures of the report: SVG that stands inside the page and takes its colours and letters."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib.colors import to_hex

from seq2seq.evaluation import METRICS, Evaluation
from seq2seq.evaluation.record import curve_of
from seq2seq.plots import plot_by_length, plot_curve_sample, plot_training_curves

_LINKS = ("{http://www.w3.org/1999/xlink}href", "clip-path")
# the greys of seq2seq.plots and the black of letters and axes follow the page, light or dark; curves keep their colours
_PAGE_COLOURS = {"black": "currentColor", "0.35": "var(--muted)", "0.4": "var(--muted)", "0.9": "var(--line)"}
_COLOURS = {to_hex(name): colour for name, colour in _PAGE_COLOURS.items()}
_PIXELS_PER_POINT = 96 / 72


def length_figure(evaluations: Mapping[str, Evaluation], metric: str) -> Markup:
    """`metric` of every run over source length, with intervals."""
    first = next(iter(evaluations.values()))
    curves = [curve_of(_with_headline(evaluation, metric), label) for label, evaluation in evaluations.items()]

    def draw(path: Path) -> None:
        plot_by_length(
            path,
            curves,
            metric=METRICS[metric],
            length_unit=first.scores.length_unit,
            longest_training_length=max(e.corpus.longest_training_length for e in evaluations.values()),
            min_sentences=first.scores.min_bleu_sentences,
            legend=False,
        )

    description = f"{METRICS[metric]} by source length of {'; '.join(evaluations)}. The table below has the numbers."
    return inline_svg(draw, metric, description)


def training_figure(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> Markup:
    """Dev loss and dev score of every run against steps and minutes, from the lines of metrics.jsonl."""
    description = f"Loss and score on the dev text against steps and minutes of training of {'; '.join(records)}."
    return inline_svg(lambda path: plot_training_curves(path, records, legend=False), "training", description)


def legend(labels: Iterable[str], name: str) -> dict[str, Markup]:
    """A piece of the curve of each run, for the page to write beside its label: outside the figure `name`, where it wraps."""

    def sample(index: int) -> Markup:
        return inline_svg(lambda path: plot_curve_sample(path, index), f"{name}{index}", "")

    return {label: sample(index) for index, label in enumerate(labels)}


def inline_svg(draw: Callable[[Path], None], name: str, description: str) -> Markup:
    """The SVG element that `draw` makes in the file it is given.

    Args:
        draw: writes an SVG file of matplotlib.
        name: precedes the ids of the element, which are to be unique in the page.
        description: what a screen reader says instead; an empty one says that there is nothing to say.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "figure.svg"
        draw(path)
        root = ElementTree.fromstring(path.read_bytes())
    _drop(root, ("metadata", "style"))  # its style would be that of the whole page
    ids = {match for element in root.iter() for match in _referenced(element)}
    for element in root.iter():
        _rewrite(element, name, ids)
    natural = float(root.attrib.pop("width").removesuffix("pt")) * _PIXELS_PER_POINT
    del root.attrib["height"]
    root.attrib |= {"role": "img", "aria-label": description} if description else {"aria-hidden": "true"}
    root.attrib |= {"fill": "currentColor", "style": f"--natural: {natural:.0f}px"}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _with_headline(evaluation: Evaluation, metric: str) -> Evaluation:
    """`curve_of` draws the headline metric."""
    return dataclasses.replace(evaluation, scores=dataclasses.replace(evaluation.scores, headline=metric))


def _drop(root: ElementTree.Element, names: Sequence[str]) -> None:
    for parent in root.iter():
        for child in list(parent):
            if _local(child.tag) in names:
                parent.remove(child)


def _local(name: str) -> str:
    """The name without its namespace, which HTML knows by itself."""
    return name.rpartition("}")[2]


def _referenced(element: ElementTree.Element) -> list[str]:
    return [found[1] for key in _LINKS if (found := re.search(r"#(\w+)", element.get(key, "")))]


def _rewrite(element: ElementTree.Element, name: str, ids: set[str]) -> None:
    """HTML names, ids of the figure's own, colours of the page."""
    element.tag = _local(element.tag)
    old = dict(element.attrib)
    element.attrib.clear()
    for key, value in old.items():
        if key in _LINKS:
            value = value.replace("#", f"#{name}-")
        elif key == "style":
            value = re.sub(r"#[0-9a-f]{6}", lambda colour: _COLOURS.get(colour[0], colour[0]), value)
        elif key == "id":
            if value not in ids:
                continue
            value = f"{name}-{value}"
        element.set(_local(key), value)
