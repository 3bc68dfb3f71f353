"""Sentences through a run of random weights: order, blanks, length, lists, weights, and scripts/translate.py on real bytes."""

import importlib.util
import io
import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_run import RNN, run_of, save_run, train_small_tokenizer
from rich.console import Console

from seq2seq.config import (
    ConfigError,
    TransformerConfig,
)
from seq2seq.decoding import beam_search
from seq2seq.decoding.greedy import _greedy_search
from seq2seq.tokenizer import EOS
from seq2seq.translation import BLANK, Hypothesis, TranslationError, Translator, decode, decode_corpus, load
from seq2seq.translation.options import DecodingOptions
from seq2seq.translation.output import TranslationProgress, attention_of_words, format_results, unfinished_note

SCRIPT = Path(__file__).parents[2] / "scripts" / "translate.py"


@pytest.fixture(scope="module")
def tokenizer():
    return train_small_tokenizer()


@pytest.fixture(scope="module")
def run_dir(tokenizer, tmp_path_factory):
    return save_run(run_of(tokenizer), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def translator(tokenizer):
    return Translator(run_of(tokenizer))


SENTENCES = [
    "the dog",
    "",
    "we go to the small house and to the dog",
    " \t ",
    "a",
    "the cat",
    "\u00ad\u200e",
    "le chien voit le chat",
    "日本",
]


def test_every_sentence_has_its_own_translation_in_its_own_place(translator):
    results = translator.translate(SENTENCES)
    assert len(results) == len(SENTENCES)
    assert [i for i, found in enumerate(results) if found == [BLANK]] == [1, 3, 6]
    assert len({found[0].text for found in results}) > 4
    for sentence, found in zip(SENTENCES, results, strict=True):
        (alone,) = translator.translate([sentence])
        assert alone[0].text == found[0].text
        assert alone[0].pieces == found[0].pieces
        assert alone[0].score == pytest.approx(found[0].score, rel=1e-4)


def test_nothing_in_nothing_out(translator):
    assert translator.translate([]) == []
    assert translator.translate(["", " "]) == [[BLANK], [BLANK]]


def test_size_of_batches_never_changes_a_translation(translator):
    expected = [found[0].pieces for found in translator.translate(SENTENCES)]
    for batch_tokens in (1, 500):
        assert [found[0].pieces for found in translator.translate(SENTENCES, batch_tokens=batch_tokens)] == expected


def test_very_long_sentence(tokenizer):
    translator = Translator(run_of(tokenizer, beam_size=1, max_length_factor=0.0, max_length_offset=6))
    calls = []
    results = translator.translate(["the dog", "the cat " * 1000, "a"], progress=lambda *call: calls.append(call))
    assert [len(found) for found in results] == [1, 1, 1]
    assert len(results[1][0].source_pieces) > 2000
    assert results[0][0].pieces == translator.translate(["the dog"])[0][0].pieces
    assert calls == [(0, 3), (1, 3), (3, 3)]


def test_output_is_limited_by_the_length_of_its_own_source(tokenizer):
    run = run_of(tokenizer, beam_size=2, max_length_factor=0.5, max_length_offset=1)
    sources = [[*range(4, 4 + n), EOS] for n in (1, 2, 6, 13)]
    results = decode_corpus(run.model, sources, run.config.decoding, run.config.batches)
    limits = [2, 2, 4, 8]
    assert all(len(best.ids) <= limit for (best, *_), limit in zip(results, limits, strict=True))
    cut = [(len(best.ids), limit) for (best, *_), limit in zip(results, limits, strict=True) if not best.finished]
    assert cut
    assert all(length == limit for length, limit in cut)
    assert all(best.finished == (best.ids[-1] == EOS) for best, *_ in results)


def test_batches_at_once_change_no_translation(tokenizer, monkeypatch):
    run = run_of(tokenizer, lengths=(8, 16), beam_size=2)
    generator = np.random.default_rng(1)
    sources = [[*generator.integers(4, 40, n).tolist(), EOS] for n in generator.integers(1, 15, 41)]

    def translated(workers: int) -> tuple[list, int]:
        threads = set()

        def searched(*args, **options):
            threads.add(threading.get_ident())
            return beam_search(*args, **options)

        monkeypatch.setattr(decode, "how_many_at_once", lambda: workers)
        monkeypatch.setattr(decode, "beam_search", searched)
        found = decode_corpus(run.model, sources, run.config.decoding, run.config.batches)
        return [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in found], len(threads)

    one, threads_of_one = translated(1)
    several, threads_of_several = translated(3)
    assert one == several
    assert threads_of_one == 1 < threads_of_several


def test_few_shapes_are_compiled(tokenizer):
    run = run_of(tokenizer, lengths=(8, 16), beam_size=1)
    generator = np.random.default_rng(0)
    sources = [[*generator.integers(4, 40, n).tolist(), EOS] for n in generator.integers(1, 15, 61)]
    before = _greedy_search._cache_size()
    for _ in range(2):
        decode_corpus(run.model, sources, run.config.decoding, run.config.batches)
    assert _greedy_search._cache_size() - before == 2  # one for each bucket, 8 and 16


def test_n_best_is_sorted_distinct_and_keeps_the_first(translator):
    one = translator.translate(["the dog sees"])[0]
    several = translator.translate(["the dog sees"], n_best=3)[0]
    assert [h.text for h in one] == [several[0].text]
    assert len({tuple(h.pieces) for h in several}) == 3
    assert several == sorted(several, key=lambda h: (not h.finished, -h.score))
    assert all(h.log_prob < h.score < 0 for h in several if len(h.pieces) > 1)


def test_options_reach_the_search(translator):
    plain = translator.translate(["the dog sees the cat"], length_penalty="none")[0][0]
    assert plain.score == plain.log_prob
    power = translator.translate(["the dog sees the cat"], beam_size=1, length_penalty="power", alpha=1.0)[0][0]
    assert power.score == pytest.approx(power.log_prob / len(power.pieces), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_best": 4}, "decoding.n_best: expected 1 <= n_best <= beam_size = 3, got 4"),
        ({"beam_size": 0}, "decoding.beam_size: expected an integer from 1 to 50, got 0"),
        ({"beam_size": 51}, "decoding.beam_size: expected an integer from 1 to 50, got 51"),
        ({"length_penalty": "gmnt"}, "decoding.length_penalty: expected one of 'gnmt', 'power', 'none', got 'gmnt'"),
        ({"top_p": 1.5, "search": "sample"}, "decoding.top_p: expected a number in (0, 1], got 1.5"),
        ({"batch_tokens": 0}, "batch_tokens: expected an integer >= 1, got 0"),
    ],
)
def test_impossible_options_are_named(translator, options, message):
    with pytest.raises(ConfigError) as error:
        translator.translate(["a"], **options)
    assert str(error.value) == message


def test_one_string_is_no_list_of_sentences(translator):
    with pytest.raises(TranslationError, match="expected a list of strings, got one string 'the dog'"):
        translator.translate("the dog")


def test_weights_have_a_row_for_each_piece_and_a_column_for_each_source_piece(translator):
    results = translator.translate(["the dog sees the cat", "", "a"], with_weights=True)
    assert results[1] == [BLANK]
    for (best,) in (results[0], results[2]):
        assert best.source_pieces[-1] == "</s>"
        assert best.weights.shape == (len(best.pieces), len(best.source_pieces))
        np.testing.assert_allclose(best.weights.sum(axis=1), 1.0, rtol=1e-5)
        assert best.finished == (best.pieces[-1] == "</s>")
    assert translator.translate(["a"])[0][0].weights is None


def test_model_without_attention_has_no_weights(tokenizer):
    translator = Translator(run_of(tokenizer, replace(RNN, attention="none")))
    assert translator.translate(["the dog"])[0][0].pieces
    with pytest.raises(TranslationError, match=r"expected a run with attention, got model.attention = 'none' \(runs/none\)"):
        translator.translate(["the dog"], with_weights=True)


def test_learned_positions_limit_both_sides_and_name_the_line(tokenizer):
    model = TransformerConfig(model_dim=8, ffn_dim=8, num_heads=2, num_layers=1, positions="learned", max_length=20)
    translator = Translator(run_of(tokenizer, model, beam_size=1, max_length_factor=3.0))
    longest = "a " * 40
    while len(tokenizer.encode(longest)) > 19:
        longest = longest[:-2]
    found = translator.translate([longest])[0][0]  # a bucket of 20, not of 32
    assert len(found.source_pieces) <= 20
    assert len(found.pieces) <= 20
    with pytest.raises(TranslationError, match=r"line 3: expected at most 20 subwords with </s> .*, got \d+"):
        translator.translate(["a", "", "a " * 40])


def test_diverged_model_is_an_error(tokenizer):
    run = run_of(tokenizer)
    graphdef, params = nnx.split(run.model)
    broken = nnx.merge(graphdef, jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params))
    with pytest.raises(TranslationError, match="got NaN"):
        Translator(replace(run, model=broken)).translate(["a"])


def test_results_as_lines():
    cut = BLANK._replace(text="le chien", score=-1.5, finished=False)
    results = [[cut, cut._replace(text="un chien", score=-2.0)], [BLANK]]
    assert format_results(results) == "le chien\n\n"
    assert format_results(results, 2) == "1 ||| le chien ||| -1.5000\n1 ||| un chien ||| -2.0000\n2 |||  ||| 0.0000\n"
    assert unfinished_note(results) == "1 of 2 outputs reached their limit of length before </s>: line 1"
    assert unfinished_note([[BLANK]]) == ""
    assert unfinished_note([[cut]] * 12).endswith("line 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...")


def test_progress_without_a_terminal_is_plain_lines():
    console = Console(file=io.StringIO(), width=40)
    with TranslationProgress(console=console, plain_seconds=0.0) as progress:
        progress(5, 20)
        progress.say("")
    assert console.file.getvalue() == "translated 5 of 20 sentences, about 0 s left\n"


def test_time_left_is_told_of_each_count_by_itself(monkeypatch):
    clock = iter([0, 100, 110, 200, 230])
    monkeypatch.setattr("seq2seq.translation.output.time", SimpleNamespace(monotonic=lambda: next(clock)))
    console = Console(file=io.StringIO(), width=80)
    with TranslationProgress(console=console, plain_seconds=0.0) as progress:
        for done in (0, 5, 0, 10):
            progress(done, 20)
    expected = ["translated 5 of 20 sentences, about 30 s left", "translated 10 of 20 sentences, about 30 s left"]
    assert console.file.getvalue().splitlines() == expected


# --- scripts/translate.py ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("translate_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_load_gives_the_run_back(run_dir, translator):
    assert load(run_dir).translate(SENTENCES) == translator.translate(SENTENCES)


def test_lines_in_lines_out(script, run_dir, translator, monkeypatch, capfdbinary):
    """Cut at "\\n" alone; one "\\r" is stripped; the last line needs no end; blank stays blank."""
    data = "the dog\r\n\n \na\u2028b\x0cc\u0085d\n日本\nthe cat".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    script.main(run_dir)
    sys.stdout.flush()
    lines = capfdbinary.readouterr().out.decode().split("\n")
    assert lines.pop() == ""
    expected = translator.translate(["the dog", "", "", "a b c d", "日本", "the cat"])
    assert lines == [found[0].text for found in expected]


def test_files_lists_and_heat_maps(script, run_dir, translator, tmp_path, capsys):
    (tmp_path / "in.txt").write_bytes(b"the dog\n\n")
    (tmp_path / "more.txt").write_bytes(b"a cat\n")
    script.main(
        run_dir,
        DecodingOptions(beam_size=4, n_best=2, length_penalty="power", alpha=0.5),
        input=(tmp_path / "in.txt", tmp_path / "more.txt"),
        output=tmp_path / "out.txt",
        batch_tokens=100,
        attention=tmp_path / "maps",
    )
    options = {"beam_size": 4, "n_best": 2, "length_penalty": "power", "alpha": 0.5}
    expected = translator.translate(["the dog", "", "a cat"], **options, with_weights=True)
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == format_results(expected, 2)
    assert sorted(p.name for p in (tmp_path / "maps").iterdir()) == ["00001.json", "00001.png", "00003.json", "00003.png"]
    numbers = json.loads((tmp_path / "maps" / "00003.json").read_text(encoding="utf-8"))
    columns, rows, weights = attention_of_words(expected[2][0])
    assert (numbers["line"], numbers["columns"], numbers["rows"]) == (3, columns, rows)
    np.testing.assert_allclose(numbers["weights"], weights, atol=1e-5)
    assert f"wrote 2 heat maps to {tmp_path / 'maps'}" in capsys.readouterr().err


def test_impossible_input_is_one_line_and_exit_code_2(run_dir, tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, run_dir], input=b"a\nb\xff\n", capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode() == "translate.py: standard input:2: expected UTF-8 text, got byte 0xff\n"


def test_output_in_a_missing_folder_fails_before_the_work(script, run_dir, tmp_path):
    with pytest.raises(ConfigError, match="output"):
        script.main(run_dir, input=(tmp_path / "none",), output=tmp_path / "missing" / "out.txt")


def test_input_is_given_the_form_of_the_corpus(tokenizer, tmp_path):
    """A run trained on lower case with punctuation apart reads what is typed as it reads its corpus."""
    for name in ("formed", "plain"):
        (tmp_path / name).mkdir()
    made = run_of(tokenizer)
    corpus = replace(made.config.corpus, lowercase=True, split_punctuation=True)
    save_run(replace(made, config=replace(made.config, corpus=corpus)), tmp_path / "formed")
    translator = load(tmp_path / "formed")
    assert translator.translate(["WE go to the 'House'!"]) == translator.translate(["we go to the ' house ' !"])
    assert translator.score(["A Dog."], ["Le chat!"]) == translator.score(["a dog ."], ["le chat !"])
    assert load(save_run(made, tmp_path / "plain")).score(["A Dog."], ["Le chat!"]) != translator.score(["A Dog."], ["Le chat!"])


def test_attention_of_words_keeps_the_weight_of_each_row():
    """A word is given what its pieces are given, and looks where its pieces look on average."""
    weights = np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2], [0.0, 0.0, 1.0]])
    best = Hypothesis("Jean", ["▁Je", "an", "</s>"], 0.0, 0.0, weights, ["▁Jo", "hn", "</s>"], True)
    columns, rows, merged = attention_of_words(best)
    assert (columns, rows) == (["John", "</s>"], ["Jean", "</s>"])
    np.testing.assert_allclose(merged, [[(0.3 + 0.8) / 2, (0.7 + 0.2) / 2], [0.0, 1.0]])
