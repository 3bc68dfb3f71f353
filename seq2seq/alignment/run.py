"""Links from the attention of a trained run: the files of scripts/align.py.

    <out>/<reading>.pharaoh                     a model with one attention
    <out>/layer2.head1.<reading>.pharaoh        one head of a Transformer, layers and heads counted from 1
    <out>/layer2.mean.<reading>.pharaoh         the mean over the heads of a layer
    <out>/mean.<reading>.pharaoh                the mean over all layers and heads
    <out>/<name>.<symmetrization>.pharaoh       with the links of a run of the other direction
    <out>/alignment.json                        scores against the gold alignment

<reading> is naive or shifted (`seq2seq.alignment.weights`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from seq2seq.alignment.forced import forced_attention
from seq2seq.alignment.links import AlignmentError, Gold, Links, check_fit, swapped, write_links
from seq2seq.alignment.scores import AlignmentScores, score_alignment
from seq2seq.alignment.symmetrization import SYMMETRIZATIONS
from seq2seq.alignment.weights import READINGS, links_of
from seq2seq.checkpoints import Run
from seq2seq.translation.decode import ProgressCall

LinksByName = dict[str, list[Links]]
"""By the name of the attention and the reading: the links of each pair of sentences."""


@dataclass(frozen=True)
class Alignment:
    """What `align` returns."""

    links: LinksByName
    scores: dict[str, AlignmentScores]
    """By the same names; empty without a gold alignment."""
    skipped: tuple[int, ...]
    """Lines, from 1, that have no links because a side has no words."""


def align(
    run: Run,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    gold: Sequence[Gold] | None = None,
    reverse: Run | None = None,
    symmetrization: str = "grow-diag",
    progress: ProgressCall | None = None,
) -> Alignment:
    """The links between the words of each pair, by every attention and reading.

    Args:
        run: a run with attention.
        sources: one sentence each, words apart by spaces.
        targets: a translation of each.
        gold: what people have linked; scores are made against it.
        reverse: a run of the other direction; its links are joined with those of the same name.
        symmetrization: how, a key of SYMMETRIZATIONS.
        progress: called with the number of pairs done and of all.

    Raises:
        AlignmentError: as `forced_attention`; a gold alignment that does not fit the sentences; runs whose attentions have no
            name in common.
    """
    if symmetrization not in SYMMETRIZATIONS:
        raise AlignmentError(f"symmetrization: expected one of {', '.join(SYMMETRIZATIONS)}, got {symmetrization!r}")
    if gold is not None:
        check_fit(gold, [s.split() for s in sources], [t.split() for t in targets], "gold")
    links, skipped = _links_of_run(run, sources, targets, progress)
    if reverse:
        backward, _ = _links_of_run(reverse, targets, sources, progress)
        links |= _joined(links, backward, symmetrization)
    scores = {} if gold is None else {name: score_alignment(each, gold) for name, each in links.items()}
    return Alignment(links, scores, skipped)


def write_alignment(alignment: Alignment, out: str | Path) -> list[Path]:
    """Write the files listed above; their paths."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, links in alignment.links.items():
        files.append(out / f"{name}.pharaoh")
        write_links(files[-1], links)
    if alignment.scores:
        files.append(out / "alignment.json")
        scores = {name: dataclasses.asdict(each) for name, each in alignment.scores.items()}
        files[-1].write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    return files


def attentions(weights: Float[np.ndarray, "L N J I"]) -> dict[str, Float[np.ndarray, "J I"]]:
    """Each head, the mean of each layer and that of all, by name; "" is the only one of a model with one attention."""
    layers, heads = weights.shape[:2]
    if (layers, heads) == (1, 1):
        return {"": weights[0, 0]}
    named = {}
    for i, layer in enumerate(weights, 1):
        named |= {f"layer{i}.head{n}": head for n, head in enumerate(layer, 1)}
        named[f"layer{i}.mean"] = layer.mean(0)
    return named | {"mean": weights.mean((0, 1))}


def score_table(scores: Mapping[str, AlignmentScores], number: Callable[[Any], str]) -> tuple[list[str], list[list[str]]]:
    """(header, rows): one row for each alignment; `number` writes an estimate."""
    header = ["alignment", "AER", "precision", "recall", "links"]
    rows = [[name, number(s.aer), number(s.precision), number(s.recall), f"{s.links:,}"] for name, s in scores.items()]
    return header, rows


def _links_of_run(
    run: Run, sources: Sequence[str], targets: Sequence[str], progress: ProgressCall | None
) -> tuple[LinksByName, tuple[int, ...]]:
    links: LinksByName = {}
    skipped = []
    for pair in forced_attention(run, sources, targets, progress=progress):
        if not pair.steps.size:
            skipped.append(pair.number)
            continue
        for reading in READINGS:
            for attention, weights in attentions(pair.weights(reading)).items():
                name = f"{attention}.{reading}".removeprefix(".")
                links.setdefault(name, [frozenset()] * len(sources))[pair.number - 1] = links_of(weights)
    return links, tuple(skipped)


def _joined(forward: LinksByName, backward: LinksByName, symmetrization: str) -> LinksByName:
    join = SYMMETRIZATIONS[symmetrization]
    names = [name for name in forward if name in backward]
    if forward and not names:
        raise AlignmentError(f"reverse: expected a run with attentions {', '.join(forward)}, got {', '.join(backward)}")
    return {
        f"{name}.{symmetrization}": [join(a, swapped(b)) for a, b in zip(forward[name], backward[name], strict=True)]
        for name in names
    }
