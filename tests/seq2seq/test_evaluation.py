"""Scores, intervals and buckets against sacrebleu itself; evaluation and comparison of runs with a stand-in translator."""

import dataclasses
import io
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import sacrebleu
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from seq2seq.config import Config, ConfigError, DecodingConfig, EvaluationConfig, RNNConfig, TransformerConfig
from seq2seq.corpora import Pair, ParallelCorpus
from seq2seq.evaluation import (
    Evaluation,
    compare_runs,
    evaluate_run,
    evaluation_files,
    load_evaluation,
    load_sentences,
    paired_tests,
    score,
)
from seq2seq.evaluation import run as run_module
from seq2seq.evaluation import scores as scores_module
from seq2seq.evaluation.record import read_metrics, training_progress
from seq2seq.evaluation.tables import (
    comparison_table,
    length_table,
    markdown_table,
    print_evaluation,
    print_table,
    significance_table,
)
from seq2seq.tokenizer import train_tokenizers
from seq2seq.translation import BLANK

WORDS = ["the", "river", "runs", "under", "a", "bridge", "of", "stone", "and", "no", "boat", "waits"]
FEW = EvaluationConfig(edges=(3, 6), bootstrap_samples=100, min_bleu_sentences=4)


def sentences(count: int, seed: int, longest: int = 9) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(1, longest + 1))) + "." for _ in range(count)]


def noisy(lines: list[str], seed: int) -> list[str]:
    """The lines with some words replaced or missing."""
    generator = np.random.default_rng(seed)
    kept = [[w if generator.random() < 0.7 else "boat" for w in line.split() if generator.random() < 0.95] for line in lines]
    return [" ".join(words) for words in kept]


def score_lines(hypotheses: list[str], references: list[str], config: EvaluationConfig = FEW, **options):
    return score(hypotheses, references, [len(line.split()) for line in references], config, **options)


def test_overall_is_sacrebleu():
    references = sentences(40, 0)
    hypotheses = noisy(references, 1)
    scores = score_lines(hypotheses, references)
    assert scores.overall.bleu.value == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert scores.overall.chrf.value == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert scores.signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert scores.signatures["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    assert scores.headline == "bleu"
    assert scores.overall.token_accuracy is None


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 11), min_size=1, max_size=25))
def test_summed_rows_of_a_resample_give_its_corpus_score(drawn):
    references = [*sentences(11, 2), "stone"]
    hypotheses = [*noisy(references[:-1], 3), ""]
    statistics, _ = scores_module.sentence_statistics(hypotheses, references, "", ["bleu", "chrf"])
    texts = [hypotheses[i] for i in drawn], [[references[i] for i in drawn]]
    for name, expected in (("bleu", sacrebleu.corpus_bleu(*texts)), ("chrf", sacrebleu.corpus_chrf(*texts))):
        assert statistics[name].compute(statistics[name].rows[drawn].sum(0).tolist()) == expected.score


def test_interval_is_the_percentiles_of_rescored_resamples():
    references = sentences(8, 4)
    hypotheses = noisy(references, 5)
    got = score_lines(hypotheses, references, seed=7).overall.bleu
    counts = np.random.default_rng(7).multinomial(8, np.full(8, 1 / 8), size=100)
    rescored = []
    for row in counts:
        drawn = np.repeat(np.arange(8), row)
        rescored.append(sacrebleu.corpus_bleu([hypotheses[i] for i in drawn], [[references[i] for i in drawn]]).score)
    np.testing.assert_allclose([got.low, got.high], np.percentile(rescored, [2.5, 97.5]), rtol=1e-12)


def test_intervals_are_deterministic_narrow_with_n_and_absent_for_one_sentence():
    references = sentences(400, 6)
    hypotheses = noisy(references, 7)
    all_of_them, again = (score_lines(hypotheses, references).overall.bleu for _ in range(2))
    few = score_lines(hypotheses[:25], references[:25]).overall.bleu
    other_seed = score_lines(hypotheses, references, seed=1).overall.bleu
    one = score_lines(hypotheses[:1], references[:1]).overall
    assert all_of_them == again != other_seed
    assert all_of_them.low < all_of_them.value < all_of_them.high
    assert few.high - few.low > 2 * (all_of_them.high - all_of_them.low)
    assert (one.bleu.low, one.chrf.high) == (None, None)


def test_buckets_hold_every_sentence_once_and_are_scored_alone():
    references = sentences(60, 8, longest=12)
    hypotheses = noisy(references, 9)
    lengths = [len(line.split()) for line in references]
    scores = score(hypotheses, references, lengths, FEW)
    assert [(b.low, b.high, b.label) for b in scores.buckets] == [(1, 3, "1–3"), (4, 6, "4–6"), (7, None, "7+")]
    assert sum(b.scores.n for b in scores.buckets) == 60
    for bucket in scores.buckets:
        inside = [i for i, n in enumerate(lengths) if bucket.low <= n <= (bucket.high or 99)]
        expected = sacrebleu.corpus_bleu([hypotheses[i] for i in inside], [[references[i] for i in inside]])
        assert bucket.scores.bleu.value == expected.score
        assert bucket.scores.mean_source_length == pytest.approx(np.mean([lengths[i] for i in inside]))


def test_edges_belong_to_the_lower_bucket_and_blank_sources_to_the_first():
    lines = ["a"] * 5
    scores = score(lines, lines, [0, 3, 4, 6, 7], FEW)
    assert [b.scores.n for b in scores.buckets] == [2, 2, 1]


def test_bleu_is_hidden_in_small_buckets_only():
    references = ["a b", *sentences(3, 10, longest=1), *(["the river runs under a bridge of stone"] * 3)]
    scores = score_lines(references, references)
    assert [b.scores.n for b in scores.buckets] == [4, 0, 3]
    assert [b.scores.bleu is None for b in scores.buckets] == [False, True, True]
    assert [b.scores.chrf is None for b in scores.buckets] == [False, True, False]
    assert scores.overall.bleu is not None


def test_token_accuracy_counts_positions_over_the_longer_length():
    hypotheses, references = ["a b c", "a", "", "b a x x"], ["a b c", "a b", "c", "b a"]
    scores = score_lines(hypotheses, references, token_accuracy=True)
    assert scores.headline == "token_accuracy"
    assert scores.overall.token_accuracy.value == pytest.approx(100 * (3 + 1 + 0 + 2) / (3 + 2 + 1 + 4))
    assert scores.buckets[0].scores.token_accuracy is not None
    assert score_lines([""], [""], token_accuracy=True).overall.token_accuracy.value == 100


def test_length_ratio_empty_and_unfinished():
    overall = score_lines(["a b", "", "c c c"], ["a", "b b", "c"], finished=[True, True, False]).overall
    assert (overall.length_ratio, overall.empty, overall.unfinished) == (5 / 4, 1 / 3, 1 / 3)
    assert score_lines(["a"], ["a"]).overall.unfinished is None
    assert score_lines(["a"], [""]).overall.length_ratio is None


@pytest.mark.parametrize(
    ("hypotheses", "references", "lengths", "finished", "message"),
    [
        (["a", "b", "c"], ["a", "b"], [1, 1], None, "got 3 and 2"),
        (["a"], ["a"], [1, 1], None, "expected 1, one for each reference, got 2"),
        (["a"], ["a"], [1], [True, True], "finished: expected 1"),
        ([], [], [], None, "at least one sentence"),
    ],
)
def test_unequal_counts_are_errors_that_name_them(hypotheses, references, lengths, finished, message):
    with pytest.raises(ValueError, match=message):
        score(hypotheses, references, lengths, FEW, finished=finished)


def test_tokenised_text_is_warned_of_above_a_tenth():
    references = ["The river runs."] * 20
    tokenised = ["The river runs ."] * 2 + ["The river runs."] * 18
    assert score_lines(tokenised, references).warnings == ()
    (warning,) = score_lines(["The river runs ."] * 3 + references[3:], references).warnings
    assert "15% of the hypotheses (and 0% of the references) end in ' .'" in warning


def test_languages_without_spaces_are_counted_in_characters():
    scores = score(["河水"], ["河水流"], [3], FEW, length_unit="characters", target_language="zh")
    assert scores.length_unit == "characters"
    assert "tok:zh" in scores.signatures["bleu"]
    assert scores.overall.length_ratio == pytest.approx(2 / 3)


# --- two systems ----------------------------------------------------------------------------------------------------


def test_a_paired_test_is_sacrebleus():
    """The difference, its interval and the p-value, with the resamples drawn by hand."""
    references = sentences(30, 20)
    systems = {"a": noisy(references, 21), "b": noisy(references, 22)}
    lengths = [len(line.split()) for line in references]
    test = paired_tests(systems, references, lengths, FEW, seed=3)[0]
    values = {name: sacrebleu.corpus_bleu(lines, [references]).score for name, lines in systems.items()}
    assert (test.first, test.second, test.slice, test.n) == ("a", "b", "all", 30)
    assert test.difference.value == pytest.approx(values["a"] - values["b"])
    differences = []
    for row in np.random.default_rng(3).multinomial(30, np.full(30, 1 / 30), size=100):
        drawn = np.repeat(np.arange(30), row)
        a, b = (
            sacrebleu.corpus_bleu([lines[i] for i in drawn], [[references[i] for i in drawn]]).score for lines in systems.values()
        )
        differences.append(a - b)
    np.testing.assert_allclose([test.difference.low, test.difference.high], np.percentile(differences, [2.5, 97.5]))
    far = np.abs(np.array(differences) - np.mean(differences)) >= abs(test.difference.value)
    assert test.p_value == pytest.approx((1 + far.sum()) / 101)


def test_paired_tests_tell_a_system_from_a_worse_one_and_not_from_itself():
    references = sentences(60, 23)
    lengths = [len(line.split()) for line in references]
    systems = {"good": references, "same": list(references), "bad": noisy(references, 24)}
    found = {(t.first, t.second, t.slice): t for t in paired_tests(systems, references, lengths, FEW)}
    slices = {name for *_, name in found}
    assert slices == {"all", "1–3", "4–6", "7+"}
    assert len(found) == 3 * len(slices)
    for name in slices:
        assert found["good", "same", name].difference.value == 0
        assert found["good", "same", name].p_value == 1
        assert found["good", "bad", name].difference.low > 0
        assert found["good", "bad", name].p_value < 0.05
        assert found["same", "bad", name].difference == found["good", "bad", name].difference
    header, rows = significance_table(list(found.values()))
    assert header == ["runs", "source words", "n", "difference", "p"]
    assert [row[0] for row in rows] == [name for name in ("good - same", "good - bad", "same - bad") for _ in slices]
    assert rows[0] == ["good - same", "all", "60", "+0.0 [0.0, 0.0]", "1.000"]


def test_buckets_with_too_few_sentences_are_not_tested_by_bleu():
    references = sentences(9, 25, longest=3)
    lengths = [1, 2, 3, 3, 3, 7, 7, 7, 7][: len(references)]
    config = dataclasses.replace(FEW, min_bleu_sentences=5)
    systems = {"a": references, "b": noisy(references, 26)}
    assert [t.slice for t in paired_tests(systems, references, lengths, config)] == ["all", "1–3"]
    assert [t.slice for t in paired_tests(systems, references, lengths, config, metric="chrf")] == ["all", "1–3", "7+"]
    with pytest.raises(ValueError, match="b: expected 9 hypotheses, one for each reference, got 8"):
        paired_tests(systems | {"b": references[1:]}, references, lengths, config)


# --- runs -----------------------------------------------------------------------------------------------------------


def pairs_of(texts: list[str], name: str) -> list[Pair]:
    return [Pair(text, " ".join(reversed(text.split())), f"{name}.{i}") for i, text in enumerate(texts, 1)]


TEST_TEXTS = ["a", "b a", "c b a", "a b c a", "b b a c a", "a a b b c c", "c a b c a b c", "b a c b a c b a"]
CORPUS = ParallelCorpus(
    train=pairs_of(["a b c", "a b c a b", " ".join("abc" * 5), " ".join("ab" * 20)], "train"),
    dev=pairs_of(["a b"], "dev"),
    test=pairs_of(TEST_TEXTS, "test"),
)


class StandInModel(nnx.Linear):
    """20 parameters that pass for an encoder-decoder; the stand-in translator calls none of it."""

    features = logits = encode = init_state = step = nnx.Linear.__call__


class StandInTranslator:
    """Reverses short sources, leaves long ones unfinished and wrong."""

    def __init__(self, run):
        self.run = run

    def translate(self, sources, *, progress, **decoding):
        assert decoding.keys() == {field.name for field in dataclasses.fields(DecodingConfig)}
        assert (decoding["n_best"], decoding["length_penalty"]) == (1, "gnmt")
        texts = [" ".join(reversed(s.split())) if len(s.split()) < 6 else "a" for s in sources]
        ended = [text != "a" or source == "a" for text, source in zip(texts, sources, strict=True)]
        return [[BLANK._replace(text=text, finished=end)] for text, end in zip(texts, ended, strict=True)]


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """make_run(name, ...) writes a run folder; loading it and its corpus needs no training."""
    base = Config()
    tokenizer = dataclasses.replace(base.tokenizer, kind="char", vocab_size=8)
    tokenizers = train_tokenizers(CORPUS.train, tokenizer, tmp_path)
    configs = {}

    def make(name, *, model=base.model, corpus="reverse", steps=20, edges=(3, 6), length_unit="words"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.toml").write_text("")
        dev = {"kind": "dev", "dev_loss": 1.0, "dev_bleu": 1.0}
        lines = [dev | {"step": step, "minutes": step / 10} for step in range(10, steps + 1, 10)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        configs[folder] = dataclasses.replace(
            base,
            model=model,
            tokenizer=tokenizer,
            corpus=dataclasses.replace(base.corpus, name=corpus),
            batches=dataclasses.replace(base.batches, lengths=(16, 32)),
            evaluation=dataclasses.replace(FEW, edges=edges, length_unit=length_unit),
        )
        return folder

    def load(folder, checkpoint):
        module = StandInModel(3, 5, rngs=nnx.Rngs(0))
        return run_module.Run(configs[Path(folder)], module, tokenizers, 20, Path(folder), checkpoint)

    monkeypatch.setattr(run_module, "load_run", load)
    monkeypatch.setattr(run_module, "load_corpus", lambda config, log: CORPUS)
    monkeypatch.setattr(run_module, "Translator", StandInTranslator)
    return make


def test_evaluate_run_writes_everything(make_run):
    folder = make_run("x")
    said = []
    evaluation = evaluate_run(folder, decoding={"beam_size": 2, "alpha": None}, log=said.append)
    files = evaluation_files(folder, "test", "token_accuracy")
    assert sorted(path.name for path in files.values()) == sorted(path.name for path in (folder / "eval").iterdir())
    assert files["hypotheses"].read_text() == "a\na b\na b c\na c b a\na c a b b\na\na\na\n"
    assert load_evaluation(files["metrics"]) == evaluation
    assert (evaluation.n, evaluation.step, evaluation.parameters, evaluation.model) == (8, 20, 20, "RNN, additive attention")
    assert (evaluation.training_steps, evaluation.training_minutes) == (20, 2.0)
    assert evaluation.decoding == dataclasses.replace(DecodingConfig(), beam_size=2)
    assert evaluation.scores.overall.unfinished == 3 / 8
    # of the three wrong outputs "a", only the one for the longest source agrees, in one position
    assert evaluation.scores.overall.token_accuracy.value == pytest.approx(100 * (15 + 0 + 0 + 1) / 36)
    assert [sample.kind for sample in evaluation.samples] == ["short", "medium", "long"]
    assert evaluation.samples[0].reference == evaluation.samples[0].hypothesis == "a"
    curve = json.loads(files["curve"].read_text())
    assert [(p["label"], p["n"], p["value"] == 100) for p in curve["points"]] == [
        ("1–3", 3, True),
        ("4–6", 3, False),
        ("7+", 2, False),
    ]
    assert (curve["metric"], curve["longest_training_length"]) == ("token_accuracy", 15)
    metrics = json.loads(files["metrics"].read_text())
    assert {"jax", "sacrebleu", "python"} <= set(metrics["versions"])
    assert metrics["sentences_per_second"] == pytest.approx(8 / metrics["seconds"])
    assert len(said) == 2


def test_passages_take_the_place_of_verses(make_run, monkeypatch):
    verses = [Pair(text, text, f"Ruth.1.{i}") for i, text in enumerate(["a", "b a", "c b a", "a b c a", "b"], 1)]
    monkeypatch.setattr(run_module, "load_corpus", lambda config, log: dataclasses.replace(CORPUS, test=verses))
    folder, said = make_run("x"), []
    evaluation = evaluate_run(folder, join=(2, 3), log=said.append)
    assert said[0] == "2 passages of 2 consecutive verses; 1 verses left over at ends of chapters"
    assert (evaluation.split, evaluation.n) == ("test.joined-2-3", 3)
    assert evaluation.title.endswith("test, passages of 2, 3 verses")
    kept = load_sentences(folder, "test.joined-2-3")
    assert [(each.id, each.source, each.length) for each in kept] == [
        ("Ruth.1.1-2", "a b a", 3),
        ("Ruth.1.3-4", "c b a a b c a", 7),
        ("Ruth.1.1-3", "a b a c b a", 6),
    ]
    assert [bucket.high for bucket in evaluation.scores.buckets] == [20, 40, 60, 80, 100, 120, 140, 160, 180, 200, None]
    with pytest.raises(ConfigError, match=r"join: expected an integer >= 1, got 0"):
        evaluate_run(folder, join=(0,), log=said.append)
    monkeypatch.setattr(run_module, "load_corpus", lambda config, log: CORPUS)
    with pytest.raises(ConfigError, match=r"join: expected a corpus of verses .* got 'test.1'"):
        evaluate_run(folder, join=(2,), log=said.append)


def test_lengths_can_count_subwords(make_run):
    """The tokenizer of characters has a piece for each letter and for each space."""
    folder = make_run("x", length_unit="subwords")
    evaluation = evaluate_run(folder, log=lambda line: None)
    assert evaluation.scores.length_unit == "subwords"
    assert [each.length for each in load_sentences(folder, "test")] == [2, 4, 6, 8, 10, 12, 14, 16]
    assert evaluation.corpus.longest_training_length == 30


def test_broken_sentences_are_named(make_run):
    folder = make_run("x")
    evaluate_run(folder, log=lambda line: None)
    path = evaluation_files(folder, "test")["sentences"]
    path.write_text(path.read_text().replace('"id"', '"name"', 1))
    with pytest.raises(ValueError, match=r"test.sentences.jsonl: line 1: expected an object with id, source"):
        load_sentences(folder, "test")


def test_bible_like_corpora_have_bleu_as_headline(make_run):
    folder = make_run("x", corpus="tatoeba")
    evaluation = evaluate_run(folder, "dev", log=lambda line: None)
    assert evaluation.scores.headline == "bleu"
    assert (folder / "eval/dev.bleu_by_length.png").read_bytes().startswith(b"\x89PNG")
    assert evaluation.scores.overall.token_accuracy is None


def test_longest_trained_length_leaves_out_what_training_left_out(make_run):
    """The 40 symbols of the longest pair fit no bucket of 32."""
    folder = make_run("x")
    run = run_module.load_run(folder, "best")
    assert run_module.longest_trained_length(CORPUS.train, run.tokenizers, run.config) == 15
    assert run_module.longest_trained_length(CORPUS.train[-1:], run.tokenizers, run.config) == 0


def test_evaluate_run_refuses_unknown_splits_empty_splits_and_impossible_decoding(make_run, monkeypatch):
    folder = make_run("x")
    with pytest.raises(ValueError, match="split: expected one of train, dev, test, got 'valid'"):
        evaluate_run(folder, "valid")
    with pytest.raises(ConfigError, match=r"decoding.beam_size: expected an integer from 1 to 50, got 0"):
        evaluate_run(folder, decoding={"beam_size": 0}, log=lambda line: None)
    monkeypatch.setattr(run_module, "load_corpus", lambda config, log: dataclasses.replace(CORPUS, test=[]))
    with pytest.raises(ValueError, match="the test split of corpus 'reverse' is empty"):
        evaluate_run(folder, log=lambda line: None)
    assert not (folder / "eval").exists()


def test_printed_evaluation_keeps_brackets_and_says_what_is_hidden(make_run):
    evaluation = evaluate_run(make_run("x"), log=lambda line: None)
    text = io.StringIO()
    print_evaluation(Console(file=text, width=150), evaluation)
    header, rows = length_table(evaluation)
    assert header[2] == "token accuracy"
    assert [row[:2] for row in rows] == [["1–3", "3"], ["4–6", "3"], ["7+", "2"], ["all", "8"]]
    assert "100.0 [100.0, 100.0]" in text.getvalue()
    assert "BLEU is not shown under 4 sentences" in text.getvalue()
    assert "hypothesis  a\n" in text.getvalue()
    assert evaluation.scores.signatures["bleu"] in text.getvalue()


def test_table_of_a_translation_fits_eighty_columns(make_run):
    header, rows = length_table(evaluate_run(make_run("x", corpus="tatoeba"), log=lambda line: None))
    text = io.StringIO()
    print_table(Console(file=text, width=80), "title", header, rows)
    lines = [" ".join(line.split()) for line in text.getvalue().split("\n")]
    assert all(" ".join(row) in lines for row in rows)


def test_a_table_of_many_runs_is_printed_in_parts_that_fit():
    """Ten runs side by side, as for the configs of a study: no cell is cut or broken, and each part names its rows."""
    runs = [f"Transformer, kind {i} of positions" for i in range(10)]
    rows = [[f"BLEU {label}", *(f"{10 + i}.{label} [9.5, 12.1]" for i in range(10))] for label in "123"]
    text = io.StringIO()
    print_table(Console(file=text, width=80), "title", ["model", *runs], rows)
    printed = text.getvalue()
    assert max(map(len, printed.splitlines())) <= 80
    assert all(cell in printed for row in rows for cell in row[1:])
    assert printed.count("BLEU 1") == printed.count("BLEU 3") == printed.count("model") > 1
    assert printed.count("title") == 1


def test_compare_evaluates_what_is_missing_or_outdated_and_nothing_else(make_run, tmp_path):
    folders = [make_run("a", model=RNNConfig(attention="none")), make_run("b"), make_run("c", model=TransformerConfig())]
    evaluated = []

    def evaluate(folder, split, *, join, log):
        evaluated.append(folder.name)
        return evaluate_run(folder, split, join=join, log=log)

    def compare():
        evaluated.clear()
        return compare_runs(folders, tmp_path / "out", log=lambda line: None, evaluate=evaluate)

    evaluate_run(folders[1], log=lambda line: None)
    comparison = compare()
    assert evaluated == ["a", "c"]
    assert list(comparison.evaluations) == ["RNN, no attention", "RNN, additive attention", "Transformer"]
    assert comparison.notes == ()
    assert all(path.is_file() for path in comparison.files.values())
    assert {path.name for path in comparison.files.values()} == {path.name for path in (tmp_path / "out").iterdir()}
    assert set(json.loads(comparison.files["json"].read_text())["evaluations"]) == set(comparison.evaluations)
    compare()
    assert evaluated == []
    with open(folders[2] / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 30, "kind": "train", "minutes": 3.0}) + "\n")
    compare()
    assert evaluated == ["c"]


def test_comparison_table_has_a_column_for_each_bucket(make_run, tmp_path):
    comparison = compare_runs([make_run("a"), make_run("b")], tmp_path / "out", log=lambda line: None)
    header, rows = comparison_table(comparison.evaluations)
    assert header[:5] == ["model", "parameters", "steps trained", "minutes trained", "step scored"]
    assert header[-3:] == ["token accuracy 1–3 (n=3)", "token accuracy 4–6 (n=3)", "token accuracy 7+ (n=2)"]
    assert [row[0] for row in rows] == ["RNN, additive attention (a)", "RNN, additive attention (b)"]
    assert [row[1:5] for row in rows] == [["20", "20", "2.0", "20"]] * 2
    table = markdown_table(header, rows).split("\n")
    assert len({line.count("|") for line in table}) == 1
    text = comparison.files["table"].read_text()
    assert "| token accuracy 1–3 (n=3) | 100.0 [100.0, 100.0] |" in text
    assert "beam 4, length penalty gnmt (alpha 0.6)" in text


def test_comparison_names_both_runs_when_they_cannot_be_compared(make_run, tmp_path, monkeypatch):
    first, other_corpus, other_edges, other_text = (
        make_run("a"),
        make_run("b", corpus="tatoeba"),
        make_run("c", edges=(2, 6)),
        make_run("d"),
    )
    for folder in (first, other_corpus, other_edges):
        evaluate_run(folder, log=lambda line: None)
    monkeypatch.setattr(run_module, "load_corpus", lambda config, log: dataclasses.replace(CORPUS, test=CORPUS.test[1:]))
    evaluate_run(other_text, log=lambda line: None)
    for folder, message in (
        (other_corpus, r"different corpus: .*a has reverse test, .*b has tatoeba en-fr test"),
        (other_edges, r"different length buckets: .*a has 1–3, 4–6, 7\+, .*c has 1–2, 3–6, 7\+"),
        (other_text, r"different text: .*a has 8 sentences .*d has 7 sentences"),
    ):
        with pytest.raises(ValueError, match=message):
            compare_runs([first, folder], tmp_path / "out", log=lambda line: None)
    with pytest.raises(ConfigError, match=r"different run folders, got .*a 2 times"):
        compare_runs([first, tmp_path / "b" / ".." / "a"], tmp_path / "out")
    with pytest.raises(ConfigError, match="nowhere: run: expected a run folder"):
        compare_runs([tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(ConfigError, match="at least one run folder"):
        compare_runs([], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_comparison_notes_other_differences(make_run, tmp_path):
    first, second = make_run("a"), make_run("b")
    evaluate_run(first, decoding={"beam_size": 1}, log=lambda line: None)
    comparison = compare_runs([first, second], tmp_path / "out", log=lambda line: None)
    (note,) = comparison.notes
    assert note.startswith("decoding differs: RNN, additive attention (a): beam 1, ")
    assert note in comparison.files["table"].read_text()


def test_broken_files_are_named(tmp_path):
    (tmp_path / "test.metrics.json").write_text('{"run": "x"}')
    with pytest.raises(ValueError, match=r"test.metrics.json: expected an evaluation"):
        load_evaluation(tmp_path / "test.metrics.json")
    assert read_metrics(tmp_path) == []
    assert training_progress(tmp_path) == (None, None)
    lines = tmp_path / "metrics.jsonl"
    lines.write_text('{"step": 1, "minutes": 0.5}\n{"step": 2, "min')
    assert training_progress(tmp_path) == (1, 0.5)
    lines.write_text('{"step": 1,\n{"step": 2, "minutes": 1.0}\n')
    with pytest.raises(ValueError, match="line 1: expected JSON"):
        read_metrics(tmp_path)


def test_an_evaluation_survives_json(make_run):
    """What a later version adds or drops is refused rather than read wrongly."""
    folder = make_run("x")
    evaluation = evaluate_run(folder, log=lambda line: None)
    assert isinstance(evaluation, Evaluation)
    assert jax.tree.all(jax.tree.map(np.isfinite, evaluation.scores.overall.bleu.value))
    path = evaluation_files(folder, "test")["metrics"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": 1}))
    with pytest.raises(ValueError, match="expected an evaluation"):
        load_evaluation(path)
