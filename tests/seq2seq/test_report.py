"""The report: what stands in the page, that nothing is missing from it, and how its viewer behaves in a browser."""

import base64
import dataclasses
import html
import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from random_run import run_of, train_small_tokenizer

from seq2seq.alignment import AlignmentError, ForcedPair, forced_attention
from seq2seq.checkpoints import CheckpointError
from seq2seq.config import DecodingConfig, EvaluationConfig, RNNConfig, TransformerConfig
from seq2seq.evaluation import Comparison, Estimate, Evaluation, Sentence, evaluation_files, paired_tests, score
from seq2seq.evaluation.record import CorpusFacts
from seq2seq.report import alignments, run_attention, write_report

NONE, RNN_LABEL, TRANSFORMER = "RNN, no attention", "RNN, additive attention", 'Transformer <tied> & "deep"'
HEADS = {RNN_LABEL: (1, 1), TRANSFORMER: (2, 3)}
NASTY = 'the <b>&" </script> <!-- dog'
ARABIC = "يرى الكلب قطة صغيرة في البيت القديم"
SECTIONS = ["runs", "lengths", "tests", "training", "alignments", "samples", "settings"]
VOID = {"meta", "link", "br", "img", "input", "hr"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

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


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """(path, text, what was logged) of the page of three runs."""
    folder, said = tmp_path_factory.mktemp("report"), []
    comparison, folders = stand_in(folder)
    path = write_report(comparison, folders, folder / "out" / "report.html", attention=random_attention, log=said.append)
    return path, path.read_text(encoding="utf-8"), said


def test_the_page_is_sound_html_with_all_sections_in_order(report):
    page = Page(report[1])
    assert [each["id"] for each in page.all("section")] == SECTIONS
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert max(Counter(ids).values()) == 1
    assert [each["href"] for each in page.all("a")][:7] == [f"#{name}" for name in SECTIONS]
    assert {each["href"].removeprefix("#") for each in page.all("a")} <= set(ids)
    assert {each["for"] for each in page.all("label")} == {each["id"] for each in page.all("select")} <= set(ids)
    assert all(each.get("scope") in ("row", "col") for each in page.all("th"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.all("html") == [{"lang": "en"}]


def test_the_page_needs_nothing_else(report):
    text = report[1]
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    page = Page(text)
    assert not [attributes for _, attributes in page.elements if "src" in attributes or "srcset" in attributes]
    assert [each["href"] for each in page.all("link")] == ["data:,"]
    assert all(found == "#" for found in re.findall(r"url\(['\"]?(.)", text))
    references = {each.get("href") or each["clip-path"][4:-1] for _, each in page.elements if "clip-path" in each}
    assert references
    assert references <= {f"#{attributes.get('id')}" for _, attributes in page.elements}


def test_figures_take_the_colours_of_the_page_and_keep_those_of_the_curves(report):
    figures = re.findall(r"<figure>(.*?)</figure>", report[1], re.DOTALL)
    assert len(figures) == 3
    for figure in figures:
        assert "#000000" not in figure
        assert "currentColor" in figure
        assert "var(--line)" in figure
        assert all(colour in figure for colour in ("#0072b2", "#d55e00", "#009e73"))
        assert "longest in training: 20" in figure or "dev loss" in figure
        assert "<style" not in figure


def test_text_is_escaped_wherever_it_stands(report):
    page = Page(report[1])
    assert not page.all("b") + page.all("config") + page.all("tied") + page.all("text<")
    assert page.texts["dd", 'the <b>&" </script> <!-- dog'] == 0  # neither short, medium nor long
    assert page.texts["li", "decoding differs: <b>beam</b>"] == 1
    assert page.texts["pre", "seed = 0 # <config> & more"] == 3
    assert page.texts["dt", TRANSFORMER] == 2
    assert page.texts["dt", f"{TRANSFORMER} (not finished)"] == 1
    assert page.texts["dd", ARABIC] == 1
    assert page.texts["text", TRANSFORMER] == 3  # the legends
    viewer = viewer_of(report[1])
    assert viewer["sentences"][2]["source"] == [*NASTY.split(), "</s>"]
    assert viewer["models"][2]["name"] == TRANSFORMER


def test_tables_have_the_numbers_of_the_comparison(report):
    page = Page(report[1])
    for label in (NONE, RNN_LABEL, TRANSFORMER):
        assert page.texts["th", label] == 5  # runs, all sentences, two metrics, versions
    for cell in ("12,345", "2,030", "beam 4, length penalty gnmt (alpha 0.6)", "run1", "best"):
        assert page.texts["td", cell] == (1 if cell == "run1" else 3)
    assert page.texts["td", "100.0 [100.0, 100.0]"] == 2 + 2 + 4
    assert page.texts["td", "–"] == 2 * 3  # BLEU of two sentences
    assert [page.texts["h3", metric] for metric in ("BLEU", "chrF", "token accuracy")] == [1, 1, 0]
    assert page.texts["li", "Intervals: percentiles of 20 bootstrap resamples, seed 0"] == 1


def test_clear_differences_are_marked_by_signs(tmp_path):
    comparison, folders = stand_in(tmp_path)
    first, *others = comparison.tests
    unclear = dataclasses.replace(first, difference=Estimate(-1.5, -3.0, 0.5))
    comparison = dataclasses.replace(comparison, tests=(unclear, *others))
    clear = [test for test in others if test.difference.low > 0 or test.difference.high < 0]
    text = write_report(comparison, folders, tmp_path / "x.html", attention=random_attention, log=lambda line: None).read_text()
    table = re.search(r'<table class="differences">.*?</table>', text, re.DOTALL)[0]
    better = sum(test.difference.low > 0 for test in clear)
    assert 0 < better < len(clear)
    assert (table.count("▲"), table.count("▼")) == (better, len(clear) - better)
    assert table.count("the first is better") == better
    assert table.count("<strong>") == len(clear)
    assert "<td>\n−1.5\n" in table
    assert ">[−3.0, 0.5]<" in table


def test_weights_in_the_page_are_those_of_the_attention(report, tmp_path):
    viewer = viewer_of(report[1])
    assert [each["name"] for each in viewer["sentences"]] == [
        "Shortest: 2 words (id.0)",
        "Short: 3 words (id.1)",
        "Rather short: 5 words (id.2)",
        "Medium: 7 words (id.3)",
        "Rather long: 20 words (id.5)",
        "Long: 45 words (id.6)",
    ]
    sources = [PAIRS[i][0] for i in CHOSEN]
    for number, label in ((1, RNN_LABEL), (2, TRANSFORMER)):
        hypotheses = [hypotheses_of(label)[i] for i in CHOSEN]
        given = sorted(random_attention(tmp_path / f"run{number}", "best", sources, hypotheses))
        for pair, sentence, forced in zip(viewer["models"][number]["pairs"], viewer["sentences"], given, strict=True):
            assert pair["target"] == forced.target
            if not forced.target:
                assert pair["reason"] == "No weights: one side has no words."
                continue
            for reading in ("naive", "shifted"):
                np.testing.assert_allclose(decoded(pair, sentence, reading), forced.weights(reading), atol=0.5 / 255 + 1e-9)
            assert np.abs(decoded(pair, sentence, "naive") - decoded(pair, sentence, "shifted")).max() > 0.2
    without = viewer["models"][0]["pairs"]
    assert {each["reason"] for each in without} == {"This model has no attention: it reads the whole source as one vector."}
    assert all(each["target"] == ["chat"] for each in without)


def test_the_page_is_the_same_bytes_every_time(report, tmp_path):
    comparison, folders = stand_in(tmp_path)
    again = write_report(comparison, folders, tmp_path / "x.html", attention=random_attention, log=lambda line: None)
    assert again.read_bytes() == report[0].read_bytes()
    assert sum("attention over 6 translations of" in line for line in report[2]) == 3


def test_one_run_alone_without_metrics_or_attention(tmp_path):
    comparison, folders = stand_in(tmp_path, labels=[NONE], name="reverse", metrics=False)
    text = write_report(comparison, folders, tmp_path / "x.html", attention=random_attention, log=lambda line: None).read_text()
    page = Page(text)
    assert [each["id"] for each in page.all("section")] == SECTIONS
    assert page.texts["p", "One run alone: there is nothing to test it against."] == 1
    assert page.texts["p", f"{NONE}: there is no metrics.jsonl that tells of its training."] == 1
    assert page.texts["td", "–"] >= 1  # target tokens
    assert [page.texts["h3", metric] for metric in ("BLEU", "chrF", "token accuracy")] == [0, 1, 1]
    assert not [each for each in page.all("dd") if "lang" in each]


@pytest.mark.parametrize("kind", [AlignmentError, CheckpointError, FileNotFoundError])
def test_attention_that_fails_is_told_in_the_page(tmp_path, kind):
    def fail(*arguments):
        raise kind("run: expected <weights>")

    comparison, folders = stand_in(tmp_path, labels=[RNN_LABEL])
    said = []
    text = write_report(comparison, folders, tmp_path / "x.html", attention=fail, log=said.append).read_text()
    assert {pair["reason"] for pair in viewer_of(text)["models"][0]["pairs"]} == {"No weights: run: expected <weights>"}
    assert said[-1] == "no attention weights in the report: run: expected <weights>"


def test_heads_of_long_sentences_are_given_by_their_mean(tmp_path, monkeypatch):
    monkeypatch.setattr(alignments, "_MOST_BYTES", 6 * 20 * 21 - 1)  # one less than the sentence of twenty words has
    comparison, folders = stand_in(tmp_path)
    text = write_report(comparison, folders, tmp_path / "x.html", attention=random_attention, log=lambda line: None).read_text()
    viewer = viewer_of(text)
    pairs = viewer["models"][2]["pairs"]
    assert [each.get("merged") for each in pairs] == [0, None, 0, 0, 3, 3]
    hypotheses = [hypotheses_of(TRANSFORMER)[i] for i in CHOSEN]
    forced = sorted(random_attention(folders[2], "best", [PAIRS[i][0] for i in CHOSEN], hypotheses))[4]
    mean = forced.weights("naive").mean(1, keepdims=True)
    np.testing.assert_allclose(decoded(pairs[4], viewer["sentences"][4], "naive"), mean, atol=0.5 / 255 + 1e-9)


def test_sentences_are_chosen_by_length():
    assert [choice.index for choice in alignments.choose_sentences(range(1, 102))] == [0, 10, 25, 50, 75, 95, 100]
    assert alignments.choose_sentences([4]) == [alignments.Choice("short", 0)]
    assert [choice.kind for choice in alignments.choose_sentences([3, 1, 2])] == ["short", "medium", "long"]
    assert alignments.choose_sentences([0, 0, 7]) == [alignments.Choice("short", 2)]
    assert {choice.index for choice in alignments.choose_sentences([0, 0])} == {0, 1}


def test_folders_must_fit_the_runs(tmp_path):
    comparison, folders = stand_in(tmp_path, labels=[NONE])
    with pytest.raises(ValueError, match="folders: expected one for each of 1 runs, got 2"):
        write_report(comparison, folders * 2, tmp_path / "x.html")


def test_run_attention_is_the_attention_of_the_run(tmp_path, monkeypatch):
    run = run_of(train_small_tokenizer(), TransformerConfig(model_dim=8, ffn_dim=8, num_heads=2, num_layers=1))
    monkeypatch.setattr(alignments, "load_run", lambda *given: {(tmp_path, "latest"): run}[given])
    sources, targets = ["the dog sees", "a cat"], ["le chien", "chat"]
    found = run_attention(tmp_path, "latest", sources, targets)
    for own, expected in zip(found, forced_attention(run, sources, targets), strict=True):
        assert own.number == expected.number
        np.testing.assert_array_equal(own.steps, expected.steps)
    run.model.config = RNNConfig(attention="none")
    assert run_attention(tmp_path, "latest", sources, targets) is None


# --- in a browser ---------------------------------------------------------------------------------------------------

RECORD = """<script>
const errors = [];
window.onerror = (message) => { errors.push(String(message)); };
console.error = (...parts) => { errors.push(parts.join(" ")); };
addEventListener("securitypolicyviolation", (event) => { errors.push("blocked: " + event.blockedURI); });
</script>"""

PROBE = """<script>
const words = (side) => [...document.querySelectorAll(`#${side}-words .word`)];
const texts = (elements) => [...elements].map((element) => element.textContent);
const heat = document.getElementById("heat");
function state() {
  const sides = {};
  for (const side of ["source", "target"]) {
    sides[side] = words(side).map((word) => ({
      word: word.firstChild.textContent, weight: word.lastChild.textContent, title: word.title, x: word.getBoundingClientRect().x,
      heaviest: word.classList.contains("heaviest"), active: word.classList.contains("active"), tab: word.tabIndex,
    }));
  }
  const rows = heat.tBodies.length ? [...heat.tBodies[0].rows].map((row) => texts(row.cells)) : [];
  const columns = heat.tHead ? [...heat.tHead.rows[0].cells].map((cell) => cell.getBoundingClientRect().x) : [];
  const selects = {};
  for (const select of document.querySelectorAll("select")) {
    selects[select.id.slice(7)] = { value: select.value, disabled: select.disabled, options: texts(select.options) };
  }
  return {
    ...sides, rows, columns, selects, note: document.getElementById("viewer-note").textContent,
    readout: document.getElementById("readout").textContent, focused: document.activeElement.textContent,
    hidden: document.getElementById("heat-part").hidden, activeCells: heat.querySelectorAll(".active, .active-column").length,
    beyond: document.documentElement.scrollWidth - innerWidth,
  };
}
const actions = {
  look() {},
  choose(name, value) {
    const select = document.getElementById(`choose-${name}`);
    select.value = value;
    select.dispatchEvent(new Event("change", { bubbles: true }));
  },
  hover(side, index) { words(side)[index].dispatchEvent(new MouseEvent("mouseover", { bubbles: true })); },
  focus(side, index) { words(side)[index].focus(); },
  cell(row, column) { heat.rows[row].cells[column].dispatchEvent(new MouseEvent("mouseover", { bubbles: true })); },
  press(key) { document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })); },
};
const seen = STEPS.map(([name, ...rest]) => { actions[name](...rest); return state(); });
parent.postMessage({ width: innerWidth, seen, errors }, "*");
</script>"""

FRAMES = """<!DOCTYPE html><meta charset="utf-8"><pre id="seen"></pre><script>
const all = [];
addEventListener("message", ({ data }) => { all.push(data); document.getElementById("seen").textContent = JSON.stringify(all); });
</script>
<iframe src="probed.html" style="width: 390px; height: 844px; border: 0"></iframe>
<iframe src="probed.html" style="width: 1400px; height: 900px; border: 0"></iframe>"""

STEPS = [
    ("look",),
    ("choose", "model", "2"),
    ("choose", "sentence", "4"),
    ("choose", "layer", "1"),
    ("choose", "head", "2"),
    ("choose", "reading", "shifted"),
    ("hover", "target", 7),
    ("hover", "source", 3),
    ("focus", "target", 2),
    ("press", "ArrowRight"),
    ("press", "ArrowUp"),
    ("cell", 5, 1),
    ("cell", 0, 4),
    ("choose", "sentence", "3"),
    ("focus", "source", 1),
    ("press", "ArrowLeft"),
    ("press", "Home"),
    ("choose", "sentence", "5"),
    ("choose", "sentence", "1"),
    ("choose", "model", "0"),
    ("hover", "source", 2),
]


@pytest.fixture(scope="module")
def seen(report, tmp_path_factory):
    """For each width what the page looked like after each step, in headless Chromium."""
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome is installed")
    folder = tmp_path_factory.mktemp("browser")
    probe = PROBE.replace("STEPS", json.dumps(STEPS))
    probed = report[1].replace("<head>", f"<head>{RECORD}", 1).replace("</body>", f"{probe}</body>")
    (folder / "probed.html").write_text(probed, encoding="utf-8")
    (folder / "frames.html").write_text(FRAMES)
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=5000",
        f"--user-data-dir={folder / 'user'}",
    ]
    command = [CHROMIUM, *options, "--dump-dom", f"file://{folder / 'frames.html'}"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', output, re.DOTALL)[1]))
    return {each["width"]: each for each in found}


def after(seen, *step, width=1400):
    return seen[width]["seen"][STEPS.index(step)]


def heaviest(state, side):
    return [index for index, word in enumerate(state[side]) if word["heaviest"]]


def active(state, side):
    return [index for index, word in enumerate(state[side]) if word["active"]]


def test_nothing_fails_and_nothing_sticks_out_in_a_browser(seen):
    assert sorted(seen) == [390, 1400]
    for each in seen.values():
        assert each["errors"] == []
        assert max(state["beyond"] for state in each["seen"]) <= 0


def test_the_viewer_opens_with_the_medium_sentence_and_a_model_with_attention(seen):
    state = after(seen, "look")
    assert [word["word"] for word in state["source"]] == [*ARABIC.split(), "</s>"]
    assert state["selects"]["model"]["options"][int(state["selects"]["model"]["value"])] == RNN_LABEL
    assert state["selects"]["layer"] == {"value": "all", "disabled": True, "options": ["the only one"]}
    assert state["selects"]["head"] == {"value": "mean", "disabled": True, "options": ["the only one"]}
    assert active(state, "target") == [0]
    assert state["activeCells"] == 1 + 8


def test_choices_change_what_is_shown(seen):
    shown = [after(seen, *STEPS[i]) for i in range(6)]
    for before, state in pairwise(shown):
        assert state["rows"] != before["rows"]
    assert len(shown[2]["source"]) == 21
    heads = ["all", "mean of the layer", "head 1", "head 2", "head 3"]
    assert shown[1]["selects"]["layer"]["options"] == ["mean of all layers and heads", "layer 1", "layer 2"]
    assert shown[1]["selects"]["head"]["options"] == heads[:1]
    assert shown[3]["selects"]["head"]["options"] == heads[1:]


def test_words_show_their_weights_and_the_heaviest_link(seen, report):
    viewer = viewer_of(report[1])
    weights = decoded(viewer["models"][2]["pairs"][4], viewer["sentences"][4], "shifted")[1, 2]
    state = after(seen, "hover", "target", 7)
    assert active(state, "target") == [7]
    assert heaviest(state, "source") == [weights[7].argmax()]
    percents = [f"{100 * weight:.0f}" for weight in weights[7]]
    assert [word["weight"].split("\u00a0")[0] for word in state["source"]][weights[7].argmax()] == percents[weights[7].argmax()]
    assert [word["title"] for word in state["source"] if word["heaviest"]] == [
        f"{viewer['sentences'][4]['source'][weights[7].argmax()]}: {percents[weights[7].argmax()]}\u00a0%"
    ]
    assert f"(translation, word 8 of 20) looks at: {viewer['sentences'][4]['source'][weights[7].argmax()]} " in state["readout"]
    assert [int(text or 0) for text in state["rows"][7][1:]] == pytest.approx(100 * weights[7], abs=0.51)
    assert state["activeCells"] == 22
    state = after(seen, "hover", "source", 3)
    assert (active(state, "source"), active(state, "target")) == ([3], [])
    assert heaviest(state, "target") == [weights[:, 3].argmax()]
    assert heaviest(state, "source") == []
    assert "(source, word 4 of 21) is looked at by: maison " in state["readout"]


def test_the_means_of_heads_and_layers_are_means(seen, report):
    viewer = viewer_of(report[1])
    weights = decoded(viewer["models"][2]["pairs"][4], viewer["sentences"][4], "naive")
    for step, mean in ((2, weights.mean((0, 1))), (3, weights[1].mean(0)), (4, weights[1, 2])):
        shown = [[int(text or 0) for text in row[1:]] for row in after(seen, *STEPS[step])["rows"]]
        np.testing.assert_allclose(shown, 100 * mean, atol=0.51)


def test_keys_lead_from_word_to_word(seen):
    assert active(after(seen, "focus", "target", 2), "target") == [2]
    state = after(seen, "press", "ArrowRight")
    assert active(state, "target") == [3]
    assert [index for index, word in enumerate(state["target"]) if word["tab"] == 0] == [3]
    up = after(seen, "press", "ArrowUp")
    assert active(up, "source") == heaviest(state, "source")


def test_cells_of_the_heat_map_show_their_row_or_column(seen):
    assert active(after(seen, "cell", 5, 1), "target") == [4]
    assert active(after(seen, "cell", 0, 4), "source") == [3]


@pytest.mark.parametrize("width", [390, 1400])
def test_arabic_runs_from_right_to_left(seen, width):
    """The row of words, the columns of the heat map and the arrow keys."""
    state = after(seen, "choose", "sentence", "3", width=width)
    assert state["source"][0]["x"] > state["source"][1]["x"] > state["source"][2]["x"]
    assert state["target"][0]["x"] < state["target"][1]["x"]
    assert state["columns"] == sorted(state["columns"], reverse=True)
    assert active(after(seen, "press", "ArrowLeft", width=width), "source") == [2]
    assert active(after(seen, "press", "Home", width=width), "source") == [0]
    plain = after(seen, "choose", "sentence", "4", width=width)
    assert plain["columns"] == sorted(plain["columns"])


def test_what_has_no_weights_says_so(seen):
    state = after(seen, "choose", "sentence", "1")
    assert (state["target"], state["hidden"], state["rows"]) == ([], True, [])
    assert state["note"] == "No weights: one side has no words. The translation is empty."
    state = after(seen, "choose", "model", "0")
    assert state["note"] == "This model has no attention: it reads the whole source as one vector."
    assert [word["word"] for word in state["target"]] == ["chat"]
    assert state["selects"]["layer"] == {"value": "all", "disabled": True, "options": ["no attention"]}
    state = after(seen, "hover", "source", 2)
    assert active(state, "source") == [2]
    assert heaviest(state, "target") == []
    assert state["readout"] == "cat (source, word 3 of 4)"
