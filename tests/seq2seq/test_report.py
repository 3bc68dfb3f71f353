"""The report: what stands in the page, and that nothing is missing from it."""

import dataclasses
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from random_run import run_of, train_small_tokenizer
from report_material import (
    ARABIC,
    CHOSEN,
    NASTY,
    NONE,
    PAIRS,
    RNN_LABEL,
    SECTIONS,
    TRANSFORMER,
    Page,
    decoded,
    hypotheses_of,
    made_report,
    random_attention,
    stand_in,
    viewer_of,
)

from seq2seq.alignment import AlignmentError, forced_attention
from seq2seq.checkpoints import CheckpointError
from seq2seq.config import RNNConfig, TransformerConfig
from seq2seq.evaluation import Estimate
from seq2seq.report import alignments, run_attention, write_report


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return made_report(tmp_path_factory)


def test_the_page_is_sound_html_with_all_sections_in_order(report):
    page = Page(report[1])
    assert [each["id"] for each in page.all("section")] == SECTIONS
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert max(Counter(ids).values()) == 1
    assert [each["href"] for each in page.all("a")][:7] == [f"#{name}" for name in SECTIONS]
    assert {each["href"].removeprefix("#") for each in page.all("a")} <= set(ids)
    assert {each["for"] for each in page.all("label")} == {each["id"] for each in page.all("select")} <= set(ids)
    assert all(each.get("scope") in ("row", "col") for each in page.all("th"))
    # A range breaks after its dash otherwise.
    tables = [table for table in re.findall(r"<table.*?</table>", report[1], re.DOTALL) if ">source words<" in table]
    assert len(tables) == 3
    assert {c for table in tables for c in re.findall(r'<th scope="row"(.*?)>', table)} == {' class="range"'}
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


def test_the_legend_stands_outside_the_figures(report):
    legends = re.findall(r'<ul class="legend">(.*?)</ul>', report[1], re.DOTALL)
    assert len(legends) == 3
    for legend in legends:
        assert legend.count('aria-hidden="true"') == legend.count("<li>") == 3
        assert all(colour in legend for colour in ("#0072b2", "#d55e00", "#009e73"))


def test_text_is_escaped_wherever_it_stands(report):
    page = Page(report[1])
    assert not page.all("b") + page.all("config") + page.all("tied") + page.all("text<")
    assert page.texts["dd", 'the <b>&" </script> <!-- dog'] == 0  # neither short, medium nor long
    assert page.texts["li", "decoding differs: <b>beam</b>"] == 1
    assert page.texts["pre", "seed = 0 # <config> & more"] == 3
    assert page.texts["dt", TRANSFORMER] == 2
    assert page.texts["dt", f"{TRANSFORMER} (not finished)"] == 1
    assert page.texts["dd", ARABIC] == 1
    assert page.texts["li", TRANSFORMER] == 3  # the legends
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
