"""Reading, cleaning, splitting and keeping of corpora, apart from the Bible (test_bible.py)."""

import gzip
import hashlib
import urllib.error
import urllib.request
import zipfile
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.config import ConfigError, CorpusConfig
from seq2seq.corpora import (
    CorpusError,
    Pair,
    corpus_dir,
    load_corpus,
    multi30k,
    normalize_text,
    prepare_corpus,
    read_lines,
    text_form,
)
from seq2seq.corpora.overlap import group_repeats, hold_out, sentence_key, words
from seq2seq.corpora.pairs import length_histogram
from seq2seq.corpora.passages import join_verses


def quiet(line):
    """A log that prints nothing."""


def load(tmp_path, **values):
    return load_corpus(CorpusConfig(**({"output_dir": str(tmp_path / "data")} | values)), log=quiet)


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


class Answer:
    """Stands for what urlopen returns."""

    def __init__(self, data):
        self.data = data

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def read(self):
        return self.data


# Text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cafe\u0301", "café"),
        ("a\u00adb\u200ec\u200f", "abc"),
        ("a\u00a0b\u202fc", "a b c"),
        (" a \t b\u2028c\x0cd\x85e\u3000f ", "a b c d e f"),
        ("ක්\u200dෂ می\u200cرود", "ක්\u200dෂ می\u200cرود"),
        ("ﬁ ½", "ﬁ ½"),
        (" \u00a0\u200e", ""),
    ],
)
def test_normal_form(text, expected):
    assert normalize_text(text) == expected


@settings(max_examples=30, deadline=None)
@given(text=st.text())
def test_the_normal_form_is_its_own_normal_form(text):
    once = normalize_text(text)
    assert normalize_text(once) == once
    assert "\n" not in once


FORMED = [
    ("I love you.", "i love you ."),
    ("Je t'aime, qu'on l’aime...", "je t' aime , qu' on l’ aime ..."),
    ("Don't say \"o'clock\" (aujourd'hui)!?", "don't say \" o'clock \" ( aujourd'hui ) ! ?"),
    ("Y a-t-il 1,000.50 %, à 7:30, le 2nd -- 3.", "y a-t-il 1,000.50 % , à 7:30 , le 2nd -- 3 ."),
    ("ÎLE قَالَ:", "île قَالَ :"),
]


@pytest.mark.parametrize(("text", "expected"), FORMED)
def test_lower_case_with_punctuation_apart(text, expected):
    assert text_form(CorpusConfig(lowercase=True, split_punctuation=True))(text) == expected
    assert text_form(CorpusConfig())(f" {text}") == text


@settings(max_examples=100, deadline=None)
@given(text=st.text() | st.text("aLt'’.,:- 1é\u0301"), lowercase=st.booleans(), split=st.booleans())
def test_the_form_of_a_corpus_is_its_own_form_and_loses_nothing(text, lowercase, split):
    form = text_form(CorpusConfig(lowercase=lowercase, split_punctuation=split))
    once = form(text)
    assert form(once) == once
    plain = text_form(CorpusConfig(lowercase=lowercase))(text)
    assert once.replace(" ", "") == plain.replace(" ", "")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\n", ["a\r"]),
        ("a\u2028b\n".encode(), ["a\u2028b"]),
        ("a\x85b\n".encode(), ["a\x85b"]),
        (b"a\x0cb\n", ["a\x0cb"]),
        (b"\n\nb\n", ["", "", "b"]),
        (b"", []),
        (b"\xef\xbb\xbfa\n", ["a"]),
    ],
)
def test_lines_are_cut_at_newline_only(tmp_path, data, expected):
    path = tmp_path / "text"
    path.write_bytes(data)
    assert read_lines(path) == expected
    assert len(expected) == data.count(b"\n") + (data[-1:] not in (b"", b"\n"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"fine\na\0b\n", ":2: expected text, got control character U\\+0000"),
        (b"a\x1bb\n", ":1: expected text, got control character U\\+001B"),
        (b"a\nb\n\xff\n", ":3: expected UTF-8 text, got byte 0xff"),
    ],
)
def test_what_is_no_text_is_refused_with_file_and_line(tmp_path, data, message):
    path = tmp_path / "text"
    path.write_bytes(data)
    with pytest.raises(CorpusError, match=f"{path}{message}"):
        read_lines(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CorpusError, match=f"{tmp_path}/none: expected a readable file, got: No such file"):
        read_lines(tmp_path / "none")


def test_length_bins():
    texts = [" ".join("w" * n) for n in (1, 10, 11, 20, 70, 71, 200)]
    assert length_histogram(texts) == {"1-10": 2, "11-20": 2, "61-70": 1, "71+": 2}


# Overlap


def test_words_for_comparison_ignore_case_punctuation_and_vowel_points():
    assert words("L'ÉTÉ, (dit-il)") == ["l", "été", "dit", "il"]
    assert words("مُحَمَّد") == words("محمد")
    assert sentence_key("Go!") == sentence_key("go.") != sentence_key("go on")
    assert sentence_key("?!") == "?!"


def test_pairs_that_share_a_sentence_are_one_group():
    pairs = [Pair(a, b, "") for a, b in [("a", "x"), ("b", "y"), ("A!", "z"), ("c", "Z"), ("d", "w"), ("x", "a")]]
    groups = [[p.source for p in group] for group in group_repeats(pairs)]
    assert groups == [["a", "A!", "c"], ["b"], ["d"], ["x"]]


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=30), count=st.integers(0, 8))
def test_whole_groups_are_held_out(sizes, count):
    groups = [[Pair(f"{i}", f"{i}", f"{i}.{j}") for j in range(size)] for i, size in enumerate(sizes)]
    parts, rest = hold_out(groups, [count, count])
    ids = [p.id for part in (*parts, rest) for p in part]
    assert sorted(ids) == sorted(p.id for group in groups for p in group)
    assert len({p.source for part in (*parts, rest) for p in part}) == sum(
        len({p.source for p in part}) for part in (*parts, rest)
    )
    assert all(len(part) <= count for part in parts)
    assert hold_out(groups, [count, count]) == (parts, rest)


# reverse

REVERSE = {"name": "reverse", "num_symbols": 5, "train_pairs": 300, "held_out": 40, "max_symbols": 6, "max_test_symbols": 9}


def test_reversal_is_exact_distinct_and_longer_in_test(tmp_path):
    corpus = load(tmp_path, **REVERSE)
    assert [len(pairs) for _, pairs in corpus.splits()] == [300, 40, 40]
    pairs = [p for _, split in corpus.splits() for p in split]
    assert all(p.source.split() == p.target.split()[::-1] for p in pairs)
    assert len({p.source for p in pairs}) == len(pairs) == len({p.id for p in pairs})
    lengths = {name: {len(p.source.split()) for p in split} for name, split in corpus.splits()}
    assert lengths == {"train": set(range(1, 7)), "dev": set(range(1, 7)), "test": set(range(1, 10))}
    assert {symbol for p in pairs for symbol in p.source.split()} == set("abcde")
    assert Counter(len(p.source.split()) for p in corpus.train)[1] >= 3  # most of the five symbols alone stay in training


def test_reversal_is_the_same_each_time(tmp_path):
    first, second = load(tmp_path / "a", **REVERSE), load(tmp_path / "b", **REVERSE)
    assert list(first.train) == list(second.train)
    assert (tmp_path / "a" / "data" / "reverse" / "symbols-reversed" / "test.reversed").exists()
    changed = load(tmp_path / "a", **(REVERSE | {"train_pairs": 200}))
    assert len(changed.train) == 200


@pytest.mark.parametrize(("key", "value"), [("train_pairs", 10**6), ("held_out", 10**6)])
def test_more_sequences_than_exist_are_refused(tmp_path, key, value):
    with pytest.raises(
        ConfigError, match=rf"corpus.{key}: expected at most \d+ \(distinct sequences of these lengths\), got {value}"
    ):
        load(tmp_path, **(REVERSE | {key: value}))


# parallel and tsv

SOURCES = [f"sentence number {i}" for i in range(40)]
TARGETS = [f"phrase numéro {i}" for i in range(40)]


def parallel(tmp_path, sources=SOURCES, targets=TARGETS, **values):
    files = (write(tmp_path / "text.en", sources), write(tmp_path / "text.fr", targets))
    return CorpusConfig(**({"name": "parallel", "train": files, "held_out": 4, "output_dir": str(tmp_path / "data")} | values))


def test_parallel_files_are_held_out_and_lose_nothing(tmp_path):
    corpus = load_corpus(parallel(tmp_path), log=quiet)
    assert [len(pairs) for _, pairs in corpus.splits()] == [32, 4, 4]
    pairs = sorted((p for _, split in corpus.splits() for p in split), key=lambda p: int(p.id.split(".")[1]))
    assert pairs == [Pair(a, b, f"train.{i}") for i, (a, b) in enumerate(zip(SOURCES, TARGETS, strict=True), 1)]


def test_no_sentence_stands_on_both_sides(tmp_path):
    # Every source has two translations, every translation two sources, and two pairs come twice.
    sources = [f"sentence {i // 2}" for i in range(60)] + ["Sentence 3!", "sentence 4"]
    targets = [f"phrase {i // 4 * 2 + i % 2}" for i in range(60)] + ["phrase 2", "phrase 4."]
    corpus = load_corpus(parallel(tmp_path, sources, targets), log=quiet)
    assert corpus.report["dropped"] == {"repeats an earlier pair": 2}
    assert len(corpus.dev) == len(corpus.test) == 4
    for side in (0, 1):
        keys = [{sentence_key(p[side]) for p in pairs} for _, pairs in corpus.splits()]
        assert len(set.union(*keys)) == sum(map(len, keys))


def test_a_blank_side_takes_the_pair_along(tmp_path):
    sources, targets = list(SOURCES), list(TARGETS)
    sources[7], targets[9] = " \u00a0", ""
    corpus = load_corpus(parallel(tmp_path, sources, targets), log=quiet)
    assert corpus.report["dropped"] == {"blank on one side or both": 2}
    assert all(p.source.split()[-1] == p.target.split()[-1] for _, pairs in corpus.splits() for p in pairs)


def test_unequal_files_are_refused_with_both_counts(tmp_path):
    config = parallel(tmp_path, SOURCES, TARGETS[:-1])
    with pytest.raises(
        CorpusError, match=r"text.en: expected as many lines as .*text.fr has, got 40 in .*text.en and 39 in .*text.fr"
    ):
        load_corpus(config, log=quiet)


def test_carriage_returns_on_one_side_shift_nothing(tmp_path):
    config = parallel(tmp_path)
    (tmp_path / "text.en").write_bytes("".join(f"{line}\r\n" for line in SOURCES).encode())
    assert {p.source for p in load_corpus(config, log=quiet).train} <= set(SOURCES)


def test_given_dev_and_test_files_are_kept_whole_and_cleared_from_training(tmp_path):
    dev = (
        write(tmp_path / "dev.en", ["new one", "new one", SOURCES[3]]),
        write(tmp_path / "dev.fr", ["neuf", "nouveau", "autre"]),
    )
    test = (write(tmp_path / "test.en", ["x" * 5000]), write(tmp_path / "test.fr", [TARGETS[5]]))
    corpus = load_corpus(parallel(tmp_path, dev=dev, test=test), log=quiet)
    assert [len(pairs) for _, pairs in corpus.splits()] == [38, 3, 1]
    assert corpus.report["dropped"] == {"train pair that copies a dev or test sentence": 2}


def test_only_what_is_missing_is_held_out(tmp_path):
    dev = (write(tmp_path / "dev.en", ["new one"]), write(tmp_path / "dev.fr", ["neuf"]))
    corpus = load_corpus(parallel(tmp_path, dev=dev), log=quiet)
    assert [len(pairs) for _, pairs in corpus.splits()] == [36, 1, 4]


@pytest.mark.parametrize("same_source", [False, True])
def test_more_held_out_than_the_text_can_spare_is_refused(tmp_path, same_source):
    sources = ["one and the same"] * 40 if same_source else SOURCES
    with pytest.raises(
        ConfigError, match=rf"corpus.held_out: expected at most {0 if same_source else 10} .*, got {10 if same_source else 11}"
    ):
        load_corpus(parallel(tmp_path, sources, held_out=10 if same_source else 11), log=quiet)


def test_a_changed_file_is_prepared_anew(tmp_path):
    config = parallel(tmp_path)
    load_corpus(config, log=quiet)
    lines = []
    load_corpus(config, log=lines.append)
    assert lines == [f"using {corpus_dir(config)}, prepared before with the same recipe"]
    write(tmp_path / "text.en", [s.upper() for s in SOURCES])
    assert load_corpus(config, log=quiet).train[0].source.isupper()


def test_a_failure_leaves_the_old_files(tmp_path):
    config = parallel(tmp_path)
    load_corpus(config, log=quiet)
    before = {p.name: p.read_bytes() for p in corpus_dir(config).iterdir()}
    write(tmp_path / "text.en", ["too short"])
    with pytest.raises(CorpusError, match="as many lines"):
        load_corpus(config, log=quiet)
    assert {p.name: p.read_bytes() for p in corpus_dir(config).iterdir()} == before


def test_a_corpus_mostly_dropped_fails_with_the_reasons(tmp_path):
    config = parallel(tmp_path, [*SOURCES[:10], *[""] * 30], held_out=1)
    with pytest.raises(CorpusError, match=r"expected to keep at least half, got 10 of 40 \(30 blank on one side or both\)"):
        load_corpus(config, log=quiet)


def test_tsv_reads_two_columns_of_any_number(tmp_path):
    path = write(tmp_path / "text.tsv", [f"{a}\t{b}\tcredit" for a, b in zip(SOURCES, TARGETS, strict=True)])
    corpus = load(tmp_path, name="tsv", train=(path,), held_out=4)
    assert {(p.source, p.target) for _, pairs in corpus.splits() for p in pairs} == set(zip(SOURCES, TARGETS, strict=True))
    write(tmp_path / "text.tsv", ["a\tb", "no tab"])
    with pytest.raises(CorpusError, match=r"text.tsv:2: expected source TAB target, got 1 column"):
        load(tmp_path, name="tsv", train=(path,), held_out=4)


# multi30k


@pytest.fixture
def captions(tmp_path, monkeypatch):
    """Small files under the names of the benchmark, their checksums in place of the real ones."""
    folder = tmp_path / "captions"
    folder.mkdir()
    checksums = {}
    for part, count in (("train", 6), ("val", 2), ("test_2016_flickr", 2)):
        for language in ("en", "de", "fr"):
            path = folder / f"{part}.{language}"
            write(path, [f"A {language}, {part} {i}" for i in range(count)])
            checksums[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(multi30k, "SHA256", checksums)
    return folder


def test_multi30k_keeps_its_own_split(tmp_path, captions):
    corpus = load(tmp_path, name="multi30k", pair="de-fr", data_dir=str(captions))
    assert [len(pairs) for _, pairs in corpus.splits()] == [6, 2, 2]
    assert corpus.test[1] == Pair("A de, test_2016_flickr 1", "A fr, test_2016_flickr 1", "test_2016_flickr.2")
    assert list(corpus.report["notes"].values()) == [0]
    formed = load(tmp_path, name="multi30k", pair="de-fr", data_dir=str(captions), lowercase=True, split_punctuation=True)
    assert formed.test[1][:2] == ("a de , test_2016_flickr 1", "a fr , test_2016_flickr 1")


def test_multi30k_names_a_changed_or_missing_file(tmp_path, captions):
    write(captions / "val.de", ["changed", "text"])
    with pytest.raises(CorpusError, match=r"val.de: expected a file of sha256 [0-9a-f]{64}, got"):
        load(tmp_path, name="multi30k", pair="en-de", data_dir=str(captions))
    (captions / "val.de").unlink()
    with pytest.raises(CorpusError, match=r"val.de: expected a readable file"):
        load(tmp_path, name="multi30k", pair="en-de", data_dir=str(captions))


def test_multi30k_fetches_what_it_lacks(tmp_path, captions, monkeypatch):
    asked = []

    def urlopen(request, timeout):
        asked.append(request.full_url)
        return Answer(gzip.compress((captions / request.full_url.rsplit("/", 1)[1].removesuffix(".gz")).read_bytes()))

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert len(load(tmp_path, name="multi30k", pair="en-de").train) == 6
    assert len(asked) == 6
    assert all(url.startswith("https://") and url.endswith((".en.gz", ".de.gz")) for url in asked)
    load(tmp_path, name="multi30k", pair="en-fr")
    assert len(asked) == 9  # the English files are there already


def test_without_a_network_the_way_out_is_named(tmp_path, monkeypatch):
    def urlopen(request, timeout):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(CorpusError, match=r"train.en.gz, got: no route to host; give a folder that holds it as data_dir"):
        load(tmp_path, name="multi30k", pair="en-de")
    with pytest.raises(CorpusError, match=r"fra-eng.zip, got: no route to host"):
        load(tmp_path, name="tatoeba")


# tatoeba

ROWS = [(f"Say {i}.", f"Dis {i}.") for i in range(30)] + [("Say 1!", "Dites 1."), ("Tell 1.", "Dites 1."), ("Say 2.", "DIS 2")]


def test_tatoeba_keeps_groups_together_in_both_directions(tmp_path):
    write(tmp_path / "eng-fra.tsv", [f"{a}\t{b}\t{i}" for i, (a, b) in enumerate(ROWS)])
    corpus = load(tmp_path, name="tatoeba", data_dir=str(tmp_path), held_out=3)
    assert [len(pairs) for _, pairs in corpus.splits()] == [26, 3, 3]
    assert corpus.report["dropped"] == {"repeats an earlier pair": 1}
    assert sum("1." in {p.source.split()[-1], p.target.split()[-1]} for p in corpus.train) in (0, 3)
    back = load(tmp_path, name="tatoeba", data_dir=str(tmp_path), held_out=3, pair="fr-en")
    assert {(p.target, p.source) for _, pairs in back.splits() for p in pairs} == {p[:2] for _, q in corpus.splits() for p in q}
    assert back.train[0].source.startswith("Di")


def test_tatoeba_reads_the_public_archive_and_prints_its_credit(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as archive:
        archive.writestr("ara.txt", "".join(f"{a}\t{b}\tCC-BY 2.0 (France)\n" for a, b in ROWS))
    monkeypatch.setattr(urllib.request, "urlopen", lambda request, timeout: Answer((tmp_path / "made.zip").read_bytes()))
    lines = []
    config = CorpusConfig(name="tatoeba", pair="en-ar", held_out=3, output_dir=str(tmp_path / "data"))
    report = prepare_corpus(config, log=lines.append)
    assert report["pairs"] == {"train": 26, "dev": 3, "test": 3}
    assert any("credit manythings.org/anki and tatoeba.org" in line for line in lines)


def test_every_recipe_gives_its_text_the_form(tmp_path):
    """And files prepared in another form are prepared anew."""
    write(tmp_path / "eng-fra.tsv", [f"{a}\t{b}" for a, b in ROWS])
    write(tmp_path / "a", [a for a, _ in ROWS])
    write(tmp_path / "b", [b for _, b in ROWS])
    given = {"tatoeba": (), "tsv": ("eng-fra.tsv",), "parallel": ("a", "b")}
    form = {"lowercase": True, "split_punctuation": True}
    for name, train in given.items():
        for options, wanted in (({}, "Say 7."), (form, "say 7 ."), ({"lowercase": True}, "say 7.")):
            corpus = load(tmp_path, name=name, data_dir=str(tmp_path), train=train, held_out=3, **options)
            assert wanted in {pair.source for _, pairs in corpus.splits() for pair in pairs}


@pytest.mark.parametrize("name", ["multi30k", "tatoeba"])
def test_a_pair_the_corpus_lacks_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=r"corpus.pair: expected .*, got is-en"):
        load(tmp_path, name=name, pair="is-en")


# --- passages -------------------------------------------------------------------------------------------------------


def test_passages_are_whole_and_share_no_verse():
    places = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 4), (2, 5), (2, 6), (2, 7)]
    verses = [Pair(f"s{c}{v}", f"t{c}{v}", f"1Cor.{c}.{v}") for c, v in places]
    passages, left_out = join_verses(verses, 2)
    assert [(p.source, p.target, p.id) for p in passages] == [
        ("s11 s12", "t11 t12", "1Cor.1.1-2"),
        ("s21 s22", "t21 t22", "1Cor.2.1-2"),
        ("s24 s25", "t24 t25", "1Cor.2.4-5"),
        ("s26 s27", "t26 t27", "1Cor.2.6-7"),
    ]
    assert left_out == 1
    assert join_verses(verses, 1) == (verses, 0)
    assert [p.id for p in join_verses(verses, 4).pairs] == ["1Cor.2.4-7"]
    assert join_verses([], 3) == ([], 0)


def test_passages_want_verses():
    with pytest.raises(ConfigError, match=r"join: expected an integer >= 1, got -1"):
        join_verses([], -1)
    with pytest.raises(ConfigError, match=r"join: expected a corpus of verses .* got 'test.7'"):
        join_verses([Pair("a", "b", "test.7")], 2)
