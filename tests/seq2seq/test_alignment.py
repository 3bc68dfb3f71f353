"""Links, their scores, two directions joined, and the attention of random runs between words."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_run import RNN, run_of, save_run, train_small_tokenizer

from seq2seq.alignment import (
    SYMMETRIZATIONS,
    AlignmentError,
    Gold,
    align,
    forced_attention,
    grow_diag,
    intersection,
    read_gold,
    read_links,
    score_alignment,
    union,
    write_links,
)
from seq2seq.alignment.run import attentions
from seq2seq.alignment.view import draw_attention
from seq2seq.alignment.weights import links_of, rows_of
from seq2seq.config import RNNConfig, TransformerConfig
from seq2seq.decoding import attention_weights, greedy_search
from seq2seq.tokenizer import BOS, EOS

pytestmark = pytest.mark.usefixtures("quick_compilation")

TRANSFORMER = TransformerConfig(model_dim=8, ffn_dim=12, num_heads=2, num_layers=3)
LUONG = RNNConfig(attention="general", embed_dim=8, encoder_dim=8, hidden_dim=12, maxout_dim=8)
SOURCES = ["the dog sees the cat", "a cat", "", "we go to the house and the dog sees a small cat"]
TARGETS = ["le chien voit le chat", "chat", "rien", "le chat voit le chien"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_small_tokenizer()


# --- links ----------------------------------------------------------------------------------------------------------


def test_links_survive_their_file(tmp_path):
    links = [frozenset({(0, 1), (10, 2), (2, 0)}), frozenset(), frozenset({(3, 3)})]
    write_links(tmp_path / "x", links)
    assert (tmp_path / "x").read_text() == "0-1 2-0 10-2\n\n3-3\n"
    assert read_links(tmp_path / "x") == links


def test_gold_knows_sure_and_possible_links(tmp_path):
    (tmp_path / "gold").write_text("0-0 1p2\n\n2p2")
    first, second, third = read_gold(tmp_path / "gold")
    assert first == Gold(frozenset({(0, 0)}), frozenset({(0, 0), (1, 2)}))
    assert second == Gold(frozenset(), frozenset())
    assert third == Gold(frozenset(), frozenset({(2, 2)}))


@pytest.mark.parametrize("text", ["0-0 1", "0 - 1", "0-1-2", "a-b", "-1-0", "0−1", "1?2"])
def test_links_that_cannot_be_read_name_file_and_line(tmp_path, text):
    (tmp_path / "gold").write_text(f"0-0\n{text}\n")
    with pytest.raises(AlignmentError, match=r"gold: line 2: expected links such as 0-1"):
        read_gold(tmp_path / "gold")
    (tmp_path / "links").write_text("0-0\n\n1p1\n")
    with pytest.raises(AlignmentError, match=r"links: line 3: .* got a possible one"):
        read_links(tmp_path / "links")


# --- scores ---------------------------------------------------------------------------------------------------------

links_sets = st.frozensets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(links_sets, links_sets, links_sets), min_size=1, max_size=5))
def test_scores_are_the_formulas(cases):
    links = [a for a, _, _ in cases]
    gold = [Gold(s, s | p) for _, s, p in cases]
    sure, possible = (sum(len(getattr(g, name) & a) for a, g in zip(links, gold, strict=True)) for name in Gold._fields)
    total, sure_total = sum(map(len, links)), sum(len(g.sure) for g in gold)
    if not sure_total:
        with pytest.raises(AlignmentError, match="expected sure links"):
            score_alignment(links, gold)
        return
    scores = score_alignment(links, gold, samples=10)
    assert scores.aer.value == pytest.approx(100 * (1 - (sure + possible) / (total + sure_total)))
    assert scores.recall.value == pytest.approx(100 * sure / sure_total)
    assert scores.precision.value == pytest.approx(100 * possible / total if total else 100)


def test_the_sure_links_alone_are_without_error():
    gold = [Gold(frozenset({(0, 0), (1, 2)}), frozenset({(0, 0), (1, 2), (1, 1)}))]
    scores = score_alignment([gold[0].sure], gold)
    assert (scores.aer.value, scores.precision.value, scores.recall.value) == (0, 100, 100)
    assert score_alignment([gold[0].possible], gold).aer.value == 0
    assert score_alignment([frozenset({(5, 5)})], gold).aer.value == 100
    with pytest.raises(AlignmentError, match="each of 1 pairs of sentences, got 2"):
        score_alignment([frozenset()] * 2, gold)


# --- two directions -------------------------------------------------------------------------------------------------


def grown_by_sets(forward, backward):
    """Koehn's grow-diag over the whole grid, with nothing kept between visits."""
    grown, either = set(forward & backward), forward | backward
    while True:
        before = set(grown)
        for i, j in [(i, j) for i in range(5) for j in range(5)]:
            if (i, j) not in grown:
                continue
            for di, dj in ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)):
                new = (i + di, j + dj)
                covered = new[0] in {s for s, _ in grown} and new[1] in {t for _, t in grown}
                if new in either and not covered:
                    grown.add(new)
        if grown == before:
            return grown


@settings(max_examples=200, deadline=None)
@given(links_sets, links_sets)
def test_grow_diag_lies_between_intersection_and_union(forward, backward):
    grown = grow_diag(forward, backward)
    assert intersection(forward, backward) <= grown <= union(forward, backward)
    assert grown == grown_by_sets(forward, backward)
    assert grow_diag(forward, forward) == forward


# --- from pieces to words -------------------------------------------------------------------------------------------


def test_the_two_readings_are_one_step_apart():
    weights = np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(rows_of(weights, "naive"), weights[:3])
    np.testing.assert_array_equal(rows_of(weights, "shifted"), weights[1:])
    with pytest.raises(ValueError, match="one of naive, shifted, got 'late'"):
        rows_of(weights, "late")


def test_every_target_word_has_one_link_and_the_end_has_none():
    assert links_of(np.array([[0.2, 0.3, 0.5], [0.9, 0.0, 0.1]])) == {(1, 0), (0, 1)}
    assert links_of(np.array([[1.0]])) == frozenset()


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [RNN, LUONG, TRANSFORMER])
def test_forced_weights_are_those_of_the_search_that_made_the_translation(tokenizer, model):
    run = run_of(tokenizer, model)
    source = np.array([[*tokenizer.encode("the dog sees"), EOS]])
    decoded = greedy_search(run.model, source, np.array([6]), max_length=6, with_weights=True)
    n = int(decoded.lengths[0, 0])
    ids = np.asarray(decoded.ids[0, 0, :n])
    weights = attention_weights(run.model, source, np.array([[BOS, *ids[:-1]]]))
    _, layers, heads, *_ = weights.shape
    assert (layers, heads) == ((3, 2) if model is TRANSFORMER else (1, 1))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    last = weights[0, -1].mean(0)  # what a search returns
    np.testing.assert_allclose(last, decoded.weights[0, 0, :n], atol=2e-5)


@pytest.mark.parametrize("model", [RNN, TRANSFORMER])
def test_forced_attention_gives_every_pair_whatever_the_batches(tokenizer, model):
    run = run_of(tokenizer, model, lengths=(16, 32, 64))
    found = {pair.number: pair for pair in forced_attention(run, SOURCES, TARGETS)}
    assert sorted(found) == [1, 2, 3, 4]
    assert found[3].steps.size == 0
    for number in (1, 2, 4):
        pair = found[number]
        assert (pair.source, pair.target) == (SOURCES[number - 1].split(), TARGETS[number - 1].split())
        (alone,) = forced_attention(run, [SOURCES[number - 1]], [TARGETS[number - 1]])
        for reading in ("naive", "shifted"):
            weights = pair.weights(reading)
            assert weights.shape[2:] == (len(pair.target), len(pair.source) + 1)
            np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
            np.testing.assert_allclose(alone.weights(reading), weights, atol=1e-5)
        assert np.abs(pair.weights("naive") - pair.weights("shifted")).max() > 1e-3
        columns, rows, view = pair.view()
        assert (columns, rows) == ([*pair.source, "</s>"], [*pair.target, "</s>"])
        np.testing.assert_allclose(view[..., :-1, :], pair.weights("naive"), rtol=1e-5)
        columns, rows, view = pair.view("pieces")
        assert view.shape[2:] == (len(rows), len(columns))
        assert "".join(columns) == "".join(f"▁{word}" for word in pair.source) + "</s>"


def test_alignment_names_every_attention_and_its_means(tokenizer):
    run = run_of(tokenizer, TRANSFORMER)
    alignment = align(run, SOURCES[:3], TARGETS[:3])
    assert alignment.skipped == (3,)
    heads = [f"layer{i}.{name}" for i in (1, 2, 3) for name in ("head1", "head2", "mean")]
    assert set(alignment.links) == {f"{name}.{reading}" for name in [*heads, "mean"] for reading in ("naive", "shifted")}
    for links in alignment.links.values():
        assert [{j for _, j in each} for each in links] == [set(range(5)), {0}, set()]
    weights = np.random.default_rng(0).random((2, 3, 4, 5))
    np.testing.assert_allclose(attentions(weights)["layer2.mean"], weights[1].mean(0))
    np.testing.assert_allclose(attentions(weights)["mean"], weights.mean((0, 1)))


def test_a_gold_alignment_scores_each_and_two_directions_join(tokenizer):
    run, other = run_of(tokenizer), run_of(tokenizer, scale=2.0)
    plain = align(run, SOURCES[:2], TARGETS[:2])
    gold = [Gold(links, links) for links in plain.links["naive"]]
    scored = align(run, SOURCES[:2], TARGETS[:2], gold=gold, reverse=other, symmetrization="intersection")
    assert scored.scores["naive"].aer.value == 0
    backward = align(other, TARGETS[:2], SOURCES[:2]).links["shifted"]
    joined = scored.links["shifted.intersection"]
    assert joined == [a & {(i, j) for j, i in b} for a, b in zip(plain.links["shifted"], backward, strict=True)]
    assert set(scored.scores) == {"naive", "shifted", "naive.intersection", "shifted.intersection"}
    assert set(SYMMETRIZATIONS) == {"intersection", "union", "grow-diag"}


def test_what_cannot_be_aligned_is_an_error(tokenizer):
    run = run_of(tokenizer)
    none = run_of(tokenizer, RNNConfig(attention="none", embed_dim=8, encoder_dim=8, hidden_dim=12, maxout_dim=8))
    learned = run_of(tokenizer, replace(TRANSFORMER, positions="learned", max_length=8))
    transformer = run_of(tokenizer, TRANSFORMER)
    broken = run_of(tokenizer, scale=jnp.nan)
    for case, message in (
        (lambda: align(run, ["a"], ["b", "c"]), "target: expected a translation for each of 1 sentences, got 2"),
        (lambda: align(none, ["a"], ["b"]), "expected one with attention"),
        (lambda: align(learned, ["a", "the dog sees the cat"], ["b", "b"]), "line 2: expected at most 8 subwords"),
        (lambda: align(broken, ["a"], ["b"]), "got NaN"),
        (lambda: align(run, ["a"], ["b"], gold=[]), "gold: expected a line for each of 1 pairs of sentences, got 0"),
        (
            lambda: align(run, ["a"], ["b"], gold=[Gold(frozenset(), frozenset({(0, 1)}))]),
            "gold: line 1: expected links within 1 source and 1 target words, got 0-1",
        ),
        (lambda: align(run, ["a"], ["b"], reverse=transformer), "expected a run with attentions naive, shifted"),
        (lambda: align(run, ["a"], ["b"], reverse=run, symmetrization="x"), "expected one of intersection, union, grow-diag"),
    ):
        with pytest.raises(AlignmentError, match=message):
            case()


@pytest.mark.parametrize(("model", "names"), [(LUONG, ["attention"]), (TRANSFORMER, ["mean", "layer1", "layer2", "layer3"])])
def test_heat_maps_show_words_and_the_end(tokenizer, tmp_path, model, names):
    run = run_of(tokenizer, model)
    drawn = draw_attention(run, "the dog sees $ % _ a cat", None, tmp_path)
    assert [path.stem for path in drawn.files] == ["attention", *names]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn.files[1:])
    kept = json.loads(drawn.files[0].read_text())
    assert kept["columns"] == ["the", "dog", "sees", "$", "%", "_", "a", "cat", "</s>"]
    assert kept["rows"] == [*drawn.translation.split(), "</s>"]
    pieces = draw_attention(run, "the dog", "le chien", tmp_path, units="pieces")
    assert pieces.translation == "le chien"
    assert "".join(json.loads(pieces.files[0].read_text())["rows"]) == "▁le▁chien</s>"
    with pytest.raises(AlignmentError, match="expected words on both sides, got '' and 'x'"):
        draw_attention(run, "", "x", tmp_path)


def script(name):
    path = Path(__file__).parents[2] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_script", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_writes_files_and_prints_a_table(tokenizer, tmp_path, monkeypatch, capsys):
    save_run(run_of(tokenizer), tmp_path)
    for name, lines in (("s", SOURCES), ("t", TARGETS), ("gold", ["0-0 1p1", "0-1", "", "0-0"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    module = script("align")
    files = {name: tmp_path / name for name in ("s", "t", "gold")}
    module.main(tmp_path, files["s"], files["t"], gold=files["gold"], swap_gold=True)
    out = capsys.readouterr().out
    assert all(text in out for text in ("AER", "no links for 1 pairs", "wrote 3 files"))
    assert {path.name for path in (tmp_path / "align").iterdir()} == {"naive.pharaoh", "shifted.pharaoh", "alignment.json"}
    assert len(read_links(tmp_path / "align" / "naive.pharaoh")) == 4
    assert set(json.loads((tmp_path / "align" / "alignment.json").read_text())) == {"naive", "shifted"}


def test_links_of_another_aligner_are_scored(tmp_path, capsys):
    """By hand: two sure links and one possible; forward finds one of the sure, one wrong, reverse both sure and the possible."""
    for name, lines in (("gold", ["0-0 1p1", "1-0"]), ("forward", ["0-0", "0-0"]), ("reverse", ["0-0 1-1", "1-0"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    score = script("score_alignment").main
    score(tmp_path / "forward", tmp_path / "gold", reverse=tmp_path / "reverse")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    error_rates = {row[0]: row[1] for row in rows if row and row[-1] in "1234"}
    assert error_rates == {"links": "50.0", "reverse": "0.0", "intersection": "33.3", "union": "16.7", "grow-diag": "25.0"}
    (tmp_path / "forward").write_text("0-0\n")
    with pytest.raises(AlignmentError, match=r"forward: expected a line for each of 2 pairs of .*gold, got 1"):
        score(tmp_path / "forward", tmp_path / "gold")
