"""A report of runs that were never trained, and what the tests of its page and of its viewer read from it."""

import base64
import json
import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np

from seq2seq.alignment import ForcedPair
from seq2seq.config import DecodingConfig, EvaluationConfig
from seq2seq.evaluation import Comparison, Evaluation, Sentence, evaluation_files, paired_tests, score
from seq2seq.evaluation.record import CorpusFacts
from seq2seq.report import write_report

NONE, RNN_LABEL, TRANSFORMER = "RNN, no attention", "RNN, additive attention", 'Transformer <tied> & "deep"'
HEADS = {RNN_LABEL: (1, 1), TRANSFORMER: (2, 3)}
NASTY = 'the <b>&" </script> <!-- dog'
ARABIC = "يرى الكلب قطة صغيرة في البيت القديم"
SECTIONS = ["runs", "lengths", "tests", "training", "alignments", "samples", "settings"]
VOID = {"meta", "link", "br", "img", "input", "hr"}

# (source, reference); lengths 2, 3, ... so that the choice by percentiles is known
PAIRS = [
    ("a dog", "un chien"),
    ("the small cat", "le petit chat"),
    (NASTY, "le chien"),
    (ARABIC, "le chien voit un petit chat dans la vieille maison"),
    ("a dog and a cat and a dog and a cat", "un chien et un chat et un chien et un chat"),
    (" ".join(["house"] * 20), " ".join(["maison"] * 20)),
    (" ".join(f"extraordinarily{n}" for n in range(45)), " ".join(f"extraordinairement{n}" for n in range(40))),
]
CHOSEN = [0, 1, 2, 3, 5, 6]
"""Of these pairs, by percentiles."""


def hypotheses_of(label):
    """Reference words, cut or turned; no translation at all of the second sentence by the last model."""
    references = [reference for _, reference in PAIRS]
    if label == NONE:
        return ["chat"] * len(references)
    return (
        references if label == RNN_LABEL else [" ".join(reversed(r.split())) if i != 1 else "" for i, r in enumerate(references)]
    )


def evaluation_of(label, name="tatoeba"):
    references = [reference for _, reference in PAIRS]
    lengths = [len(source.split()) for source, _ in PAIRS]
    config = EvaluationConfig(edges=(3, 9), bootstrap_samples=20, min_bleu_sentences=3)
    return Evaluation(
        run="x",
        split="test",
        n=len(PAIRS),
        corpus=CorpusFacts(name, "ar-fr", "0" * 64, 20),
        model=label,
        parameters=12345,
        checkpoint="best",
        step=20,
        training_steps=40,
        training_minutes=4.0,
        decoding=DecodingConfig(),
        scores=score(
            hypotheses_of(label),
            references,
            lengths,
            config,
            finished=[True] * len(PAIRS),
            token_accuracy=name == "reverse",
        ),
        seconds=1.0,
        sentences_per_second=7.0,
        versions={"python": "3.11", "jax": "0.10"},
        warnings=("odd <text>",) if label == RNN_LABEL else (),
        samples=(),
    )


def stand_in(folder, labels=(NONE, RNN_LABEL, TRANSFORMER), name="tatoeba", metrics=True):
    """(comparison, folders) of runs that were never trained."""
    evaluations, folders = {}, []
    for number, label in enumerate(labels):
        run = folder / f"run{number}"
        (run / "eval").mkdir(parents=True)
        (run / "config.toml").write_text("seed = 0 # <config> & more\n")
        if metrics:
            lines = [{"kind": "train", "step": s, "minutes": s / 10, "tokens": 1000 + s} for s in (10, 20)]
            lines += [{"kind": "dev", "step": s, "minutes": s / 10, "dev_loss": 5 / s, "dev_bleu": s} for s in (10, 20)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        evaluations[label] = evaluation_of(label, name)
        sentences = [
            Sentence(f"id.{i}", source, reference, hypothesis, len(source.split()), i != 6)
            for i, ((source, reference), hypothesis) in enumerate(zip(PAIRS, hypotheses_of(label), strict=True))
        ]
        text = "".join(json.dumps(each._asdict()) + "\n" for each in sentences)
        evaluation_files(run, "test")["sentences"].write_text(text)
        folders.append(run)
    first = evaluations[labels[0]]
    tests = paired_tests(
        {label: hypotheses_of(label) for label in labels},
        [reference for _, reference in PAIRS],
        [len(source.split()) for source, _ in PAIRS],
        EvaluationConfig(edges=(3, 9), bootstrap_samples=20, min_bleu_sentences=3),
        metric=first.scores.headline,
    )
    return Comparison(evaluations, tests, {}, ("decoding differs: <b>beam</b>",)), folders


def random_attention(folder, checkpoint, sources, hypotheses):
    """Random weights of words that are one piece each, longest first as `forced_attention` gives them."""
    label = (NONE, RNN_LABEL, TRANSFORMER)[int(folder.name.removeprefix("run"))]
    assert checkpoint == "best"
    if label == NONE:
        return None
    generator, pairs = np.random.default_rng(0), []
    for number, (source, target) in enumerate(zip(sources, hypotheses, strict=True), 1):
        words, produced = source.split(), target.split()
        scores = 3 * generator.standard_normal((*HEADS[label], len(produced) + 1, len(words) + 1))
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        pieces = np.arange(len(words) + 1), np.arange(len(produced) + 1)
        pairs.append(ForcedPair(number, words, produced, words, produced, *pieces, weights if produced else weights[:0]))
    return pairs[::-1]


class Page(HTMLParser):
    """Tags that are balanced, and what the tests ask of them."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], Counter()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and data.strip():
            self.texts[self.open[-1], " ".join(data.split())] += 1

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def viewer_of(page):
    return json.loads(re.search(r'<script type="application/json" id="alignment-data">(.*?)</script>', page, re.DOTALL)[1])


def decoded(pair, sentence, reading):
    shape = (pair["layers"], pair["heads"], len(pair["target"]), len(sentence["source"]))
    return np.frombuffer(base64.b64decode(pair[reading]), np.uint8).reshape(shape) / 255


def made_report(tmp_path_factory):
    """(path, text, what was logged) of the page of three runs."""
    folder, said = tmp_path_factory.mktemp("report"), []
    comparison, folders = stand_in(folder)
    path = write_report(comparison, folders, folder / "out" / "report.html", attention=random_attention, log=said.append)
    return path, path.read_text(encoding="utf-8"), said
