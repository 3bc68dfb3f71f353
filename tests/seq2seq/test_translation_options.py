"""Every decoding option through `Translator`, ensembles of saved runs, forced scoring, and scripts/score.py."""

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from random_run import RNN, run_of, save_run, train_small_tokenizer
from tables import LIMIT, A, TableModel, random_tables

from seq2seq.config import BatchConfig, ConfigError, DecodingConfig, TransformerConfig
from seq2seq.tokenizer import EOS, UNK, Tokenizers, train_tokenizer
from seq2seq.translation import TranslationError, Translator, decode_corpus, load
from seq2seq.translation.options import DecodingOptions
from seq2seq.translation.unknown import replace_unknown, words_of_pieces

pytestmark = pytest.mark.usefixtures("quick_compilation")

SCRIPTS = Path(__file__).parents[2] / "scripts"
SENTENCES = ["the dog sees the cat", "", "a small house", "we go"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_small_tokenizer()


@pytest.fixture(scope="module")
def translator(tokenizer):
    """Its distributions are flat enough for every option to matter."""
    return Translator(run_of(tokenizer, scale=1.7))


@pytest.fixture(scope="module")
def run_dirs(tokenizer, tmp_path_factory):
    """Two runs with one vocabulary: an RNN, and a Transformer."""
    small = TransformerConfig(model_dim=8, ffn_dim=8, num_heads=2, num_layers=1)
    return [save_run(run_of(tokenizer, model), tmp_path_factory.mktemp("run")) for model in (RNN, small)]


def script(name):
    spec = importlib.util.spec_from_file_location(f"{name}_script", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def pieces_of(results):
    return [[hypothesis.pieces for hypothesis in found] for found in results]


def test_patience_lets_a_search_find_better_hypotheses():
    """Where longer outputs gain, to wait until none can win pays."""
    model, sources = TableModel(random_tables(7, count=40)), [[A + i, EOS] for i in range(40)]
    options = {"beam_size": 3, "length_penalty": "power", "alpha": 2.5, "max_length_factor": 0.0, "max_length_offset": LIMIT}

    def scores(patience: float) -> list[float]:
        found = decode_corpus(model, sources, DecodingConfig(patience=patience, **options), BatchConfig(lengths=(4,)))
        return [hypotheses[0].score for hypotheses in found]

    pairs = list(zip(scores(0.3), scores(0.0), strict=True))
    assert all(first <= best + 1e-6 for first, best in pairs)
    assert any(first < best - 1e-3 for first, best in pairs)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"length_penalty": "power", "alpha": 3.0},
        {"coverage_penalty": 50.0},
        {"n_best": 2},
        {"max_length_factor": 0.1, "max_length_offset": 1},
        {"no_repeat_ngram": 1},
        {"search": "sample", "seed": 1},
        {"search": "sample", "seed": 2},
    ],
)
def test_no_option_is_ignored(translator, options):
    plain, changed = translator.translate(SENTENCES), translator.translate(SENTENCES, **options)
    assert pieces_of(plain) != pieces_of(changed) or [f[0].score for f in plain] != [f[0].score for f in changed]
    assert all(found for found in changed)
    # a config that says so does the same
    run = translator.run
    config = replace(run.config, decoding=replace(run.config.decoding, **options))
    assert pieces_of(Translator(replace(run, config=config)).translate(SENTENCES)) == pieces_of(changed)


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.3}, {"top_k": 1}, {"top_p": 0.1}, {"seed": 5}, {"min_length_factor": 1.0}, {"min_length_offset": 9}],
)
def test_no_option_of_sampling_is_ignored(translator, options):
    plain = translator.translate(SENTENCES, search="sample")
    assert pieces_of(plain) != pieces_of(translator.translate(SENTENCES, search="sample", **options))
    assert pieces_of(plain) == pieces_of(translator.translate(SENTENCES, search="sample"))


def test_samples_are_those_of_their_place_whatever_the_batches(translator):
    many = [f"the dog {word}" for word in ("sees", "goes", "a", "house", "cat")] * 2
    expected = translator.translate(many, search="sample", n_best=5)
    assert all(len(found) == 5 for found in expected)
    assert pieces_of(translator.translate(many, search="sample", n_best=5, batch_tokens=1)) == pieces_of(expected)
    assert pieces_of(expected)[0] != pieces_of(expected)[5]
    likeliest = translator.translate(many, search="sample", top_k=1)
    assert pieces_of(likeliest) == pieces_of(translator.translate(many, beam_size=1))


def test_shortest_output_counts_the_pieces_of_its_own_source(translator):
    for found in translator.translate(SENTENCES, min_length_factor=1.0, min_length_offset=1, max_length_offset=4):
        if found[0].pieces:
            assert len(found[0].pieces) >= len(found[0].source_pieces) + 1
    # never above the longest
    found = translator.translate(["the dog"], min_length_offset=40, max_length_factor=0.0, max_length_offset=3)[0][0]
    assert len(found.pieces) == 3


def test_prefixes_are_texts_and_leave_room_for_more(translator):
    prefixes = ["the cat sees", "ignored", "", "a small house and the cat and the dog and the house"]
    found = translator.translate(SENTENCES, prefixes=prefixes)
    for prefix, (best, *_) in zip(prefixes, found, strict=True):
        if best.source_pieces:
            assert best.text.startswith(prefix)
    assert found[1][0].text == ""
    assert pieces_of([found[2]]) == pieces_of([translator.translate(SENTENCES)[2]])
    with pytest.raises(TranslationError, match="prefixes: expected one for each of 4 sentences, got 1"):
        translator.translate(SENTENCES, prefixes=["a"])


def test_unknown_keys_are_named(translator):
    with pytest.raises(ConfigError, match=r"decoding.beamsize: expected a known key .*beam_size.*, got unknown key 'beamsize'"):
        translator.translate(["a"], beamsize=3)


# --- unknown pieces ----------------------------------------------------------------------------------------------------------


def test_unknown_is_replaced_by_the_word_attended_to_most(tokenizer):
    words = words_of_pieces("the 日本 house", tokenizer)
    assert [word for i, word in enumerate(words) if i == 0 or words[i - 1] != word] == ["the", "日本", "house"]
    ids = [*tokenizer.encode("a"), UNK, *tokenizer.encode("dog"), EOS]
    weights = np.zeros((len(ids), len(words) + 1))
    weights[:, 0] = 1.0
    place = ids.index(UNK)
    weights[place] = 0.4 / len(words)
    weights[place, words.index("日本")] = 0.5
    weights[place, -1] = 9.0  # `</s>` is no word
    assert replace_unknown(ids, weights, words, tokenizer) == "a 日本 dog"
    assert replace_unknown(ids[:1], weights, words, tokenizer) == tokenizer.decode(ids[:1])


def test_unknown_outputs_of_a_run_become_source_words(tokenizer):
    run = run_of(tokenizer)
    translator = Translator(replace(run, model=_Unknown(run.model)))
    plain = translator.translate(["the dog sees"], beam_size=1)[0][0]
    assert "⁇" in plain.text
    replaced = translator.translate(["the dog sees"], beam_size=1, replace_unknown=True)[0][0]
    assert "⁇" not in replaced.text
    assert set(replaced.text.split()) <= {"the", "dog", "sees"}
    assert replaced.pieces == plain.pieces
    assert replaced.weights is None


class _Unknown(nnx.Module):
    """A model whose likeliest piece is always UNK."""

    def __init__(self, model):
        self.model = model

    def __call__(self, source, target_in, *, dropout_key=None):
        raise NotImplementedError

    features = logits = __call__

    def encode(self, source):
        return self.model.encode(source)

    def init_state(self, memory, max_length):
        return self.model.init_state(memory, max_length)

    def step(self, memory, state, tokens):
        output = self.model.step(memory, state, tokens)
        return output._replace(logits=output.logits.at[:, UNK].set(99.0))


@pytest.mark.parametrize("options", [{"replace_unknown": True}, {"coverage_penalty": 0.2}])
def test_attention_cannot_be_asked_of_a_model_without(tokenizer, options):
    (key,) = options
    with pytest.raises(TranslationError, match=f"decoding.{key}: expected a run with attention, got model.attention = 'none'"):
        Translator(run_of(tokenizer, replace(RNN, attention="none"))).translate(["a"], **options)


# --- ensembles and scores ----------------------------------------------------------------------------------------------------


def test_scores_of_translations_are_those_of_the_search(translator):
    found = translator.translate(SENTENCES, search="sample", seed=3)
    for sentence, (best, *_) in zip(SENTENCES, found, strict=True):
        (scored,) = translator.score([sentence], [best.text])
        assert scored.log_prob == pytest.approx(sum(scored.log_probs))
        assert len(scored.pieces) == len(scored.log_probs)
        if scored.pieces == best.pieces:  # cut into the same pieces again
            assert scored.log_prob == pytest.approx(best.log_prob, rel=1e-4)
    texts = ["a cat", "", "the house", "we go to the dog and the cat"]
    for sentence, text, pair in zip(SENTENCES, texts, translator.score(SENTENCES, texts), strict=True):
        assert translator.score([sentence], [text])[0].log_prob == pytest.approx(pair.log_prob, rel=1e-4)
    with pytest.raises(TranslationError, match="translations: expected one for each of 4 sentences, got 1"):
        translator.score(SENTENCES, ["a"])


def test_ensemble_of_saved_runs(run_dirs):
    first, second = (load(folder) for folder in run_dirs)
    both = load(run_dirs[0], ensemble=[run_dirs[1]])
    texts = ["a cat", "", "the house", "we"]
    each = [[np.exp(pair.log_probs) for pair in one.score(SENTENCES, texts)] for one in (first, second)]
    mean, geometric = both.score(SENTENCES, texts), both.score(SENTENCES, texts, ensemble_average="log_probabilities")
    for pair, other, p, q in zip(mean, geometric, *each, strict=True):
        np.testing.assert_allclose(pair.log_probs, np.log((p + q) / 2), rtol=1e-4)
        assert pair.log_prob != pytest.approx(other.log_prob)
    found, others = both.translate(SENTENCES), both.translate(SENTENCES, ensemble_average="log_probabilities")
    assert [f[0].score for f in found] != [f[0].score for f in others]
    for one in (first, second):
        assert [f[0].score for f in found] != [f[0].score for f in one.translate(SENTENCES)]


def test_runs_of_different_vocabularies_are_no_ensemble(run_dirs, tokenizer, tmp_path):
    other = train_tokenizer(["other words entirely"], replace(run_of(tokenizer).config.tokenizer, kind="char", vocab_size=15))
    folder = save_run(run_of(other), tmp_path)
    with pytest.raises(TranslationError) as error:
        load(run_dirs[0], ensemble=[folder])
    for said in (str(run_dirs[0]), str(folder), tokenizer.sha256, other.sha256):
        assert said in str(error.value)
    assert Tokenizers(other, other).sha256 != Tokenizers(tokenizer, tokenizer).sha256


def test_json_prefix_and_ensemble_of_the_script(run_dirs, tmp_path):
    (tmp_path / "in.txt").write_text("the dog\n\n")
    (tmp_path / "prefix.txt").write_text("a\n\n")
    script("translate")(
        run_dirs[0],
        DecodingOptions(n_best=2),
        input=(tmp_path / "in.txt",),
        output=tmp_path / "out.json",
        json=True,
        prefix=tmp_path / "prefix.txt",
        ensemble=(run_dirs[1],),
    )
    lines = [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()]
    expected = load(run_dirs[0], ensemble=[run_dirs[1]]).translate(["the dog", ""], prefixes=["a", ""], n_best=2)
    assert [line["source"] for line in lines] == ["the dog", ""]
    for line, found in zip(lines, expected, strict=True):
        for entry, h in zip(line["hypotheses"], found, strict=True):
            shown = [entry[key] for key in ("text", "score", "log_probability", "tokens", "finished")]
            assert shown == [h.text, pytest.approx(h.score), pytest.approx(h.log_prob), h.pieces, h.finished]
    assert all(entry["text"].startswith("a") for entry in lines[0]["hypotheses"])


def test_scores_of_the_script(run_dirs, tmp_path, capsys):
    (tmp_path / "source.txt").write_text("the dog\na cat\n")
    (tmp_path / "target.txt").write_text("le chien\nun chat\n")
    files = {"source": tmp_path / "source.txt", "target": tmp_path / "target.txt", "output": tmp_path / "out.txt"}
    expected = load(run_dirs[0]).score(["the dog", "a cat"], ["le chien", "un chat"])
    main = script("score")
    main(run_dirs[0], **files)
    assert (tmp_path / "out.txt").read_text() == "".join(f"{pair.log_prob:.4f}\n" for pair in expected)
    tokens, total = sum(len(pair.pieces) for pair in expected), sum(pair.log_prob for pair in expected)
    assert f"perplexity of a token {math.exp(-total / tokens):.4f}" in capsys.readouterr().err
    main(run_dirs[0], **files, tokens=True)
    first = (tmp_path / "out.txt").read_text().split("\n")[0]
    assert first.split("\t")[1].split() == [
        f"{p}={v:.4f}" for p, v in zip(expected[0].pieces, expected[0].log_probs, strict=True)
    ]
    main(run_dirs[0], **files, json=True)
    (entry, _) = [json.loads(line) for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert (entry["source"], entry["target"], entry["tokens"]) == ("the dog", "le chien", expected[0].pieces)
    assert jax.tree.leaves(entry["log_probabilities"]) == pytest.approx(expected[0].log_probs)
