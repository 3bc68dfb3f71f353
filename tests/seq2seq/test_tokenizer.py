"""Tokenizers: ids, vocabulary limits, round trips, files."""

import io

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.config import ConfigError, TokenizerConfig
from seq2seq.corpora import Pair, normalize_text
from seq2seq.tokenizer import (
    BOS,
    EOS,
    PAD,
    UNK,
    Tokenizer,
    TokenizerError,
    load_tokenizers,
    train_tokenizer,
    train_tokenizers,
)

ENGLISH = ["the cat sat on the mat", "a dog ran far away", "the dog and the cat", "Where is the café?", "it's over, he said."] * 3
FRENCH = [
    "le chat est sur le tapis",
    "un chien courut au loin",
    "le chien et le chat",
    "Où est le café ?",
    "c'est fini, dit-il.",
] * 3
PAIRS = [Pair(a, b, str(i)) for i, (a, b) in enumerate(zip(ENGLISH, FRENCH, strict=True))]
SIZE = 52
KINDS = {"unigram": SIZE, "bpe": SIZE, "word": 30, "char": 30}


def char_size(texts):
    """Vocabulary of all characters; the word marker stands for the space."""
    return 4 + len(set("".join(texts)) | {" "})


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(ENGLISH + FRENCH, TokenizerConfig(vocab_size=SIZE))


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_and_the_exact_size(kind):
    tokenizer = train_tokenizer(ENGLISH + FRENCH, TokenizerConfig(kind=kind, vocab_size=KINDS[kind]))
    assert tokenizer.vocab_size == KINDS[kind]
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert tokenizer.pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert not set(tokenizer.encode("the cat, le chat")) & {PAD, BOS, EOS}


def test_unknown_characters_are_unk_and_a_target_of_its_own(tokenizer):
    ids = tokenizer.encode("the 日 cat")
    assert ids.count(UNK) == 1
    assert PAD not in ids
    assert tokenizer.decode(ids) == "the ⁇ cat"


def test_special_names_in_text_are_plain_text(tokenizer):
    assert not set(tokenizer.encode("<s> </s> <pad>")) & {PAD, BOS, EOS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("joint", [True, False])
def test_a_vocabulary_beyond_the_corpus_names_the_largest_that_trains(kind, joint, tmp_path):
    with pytest.raises(ConfigError) as caught:
        train_tokenizers(PAIRS, TokenizerConfig(kind=kind, vocab_size=8000, joint=joint), tmp_path)
    error = caught.value
    assert (error.key, error.got) == ("tokenizer.vocab_size", 8000)
    assert error.expected.endswith("allows)")
    assert list(tmp_path.iterdir()) == []
    if joint:
        limit = int(error.expected.removeprefix("at most ").split()[0])
        assert train_tokenizers(PAIRS, TokenizerConfig(kind=kind, vocab_size=limit), tmp_path).source.vocab_size == limit
        with pytest.raises(ConfigError, match=f"at most {limit} .*, got {limit + 1}"):
            train_tokenizers(PAIRS, TokenizerConfig(kind=kind, vocab_size=limit + 1), tmp_path)


def test_a_vocabulary_below_the_characters_names_the_smallest():
    with pytest.raises(ConfigError, match=r"tokenizer.vocab_size: expected at least \d+ \(the characters of this text\), got 8"):
        train_tokenizer(ENGLISH, TokenizerConfig(vocab_size=8))


def test_twenty_symbols_make_24_words():
    symbols = "a b c d e f g h i j k l m n o p q r s t"
    tokenizer = train_tokenizer([symbols], TokenizerConfig(kind="word", vocab_size=24))
    assert tokenizer.vocab_size == 24
    assert len(set(tokenizer.encode(symbols))) == 20
    with pytest.raises(ConfigError, match="at most 24"):
        train_tokenizer([symbols], TokenizerConfig(kind="word", vocab_size=25))


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
def test_text_comes_back(kind):
    size = char_size(ENGLISH + FRENCH) if kind == "char" else SIZE
    tokenizer = train_tokenizer(ENGLISH + FRENCH, TokenizerConfig(kind=kind, vocab_size=size))
    for text in ENGLISH + FRENCH:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_training_text_has_few_unknowns(tokenizer):
    ids = [i for text in ENGLISH + FRENCH for i in tokenizer.encode(text)]
    assert ids.count(UNK) < len(ids) / 100


@settings(max_examples=25, deadline=None)
@given(ids=st.lists(st.integers(0, SIZE - 1), max_size=30))
def test_any_ids_decode_to_clean_text(tokenizer, ids):
    text = tokenizer.decode(ids)
    assert "▁" not in text
    assert text == " ".join(text.split())
    assert not any(name in text for name in ("<s>", "</s>", "<pad>", "<unk>"))
    assert text == tokenizer.decode([*ids, EOS, 17, 18])


def test_decode_stops_at_eos_and_skips_pad_and_bos(tokenizer):
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([BOS, *ids, EOS, *ids]) == "the cat"
    assert tokenizer.decode([*ids, PAD, PAD]) == "the cat"
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("bad", [-1, SIZE])
def test_ids_outside_the_vocabulary_are_refused(tokenizer, bad):
    for method in (tokenizer.decode, tokenizer.pieces):
        with pytest.raises(ValueError, match=rf"ids: expected integers in \[0, {SIZE}\), got {bad}"):
            method([5, bad])


def test_decomposed_text_is_the_same_text(tokenizer):
    decomposed = "Where is the cafe\u0301?"
    assert decomposed != normalize_text(decomposed) == "Where is the café?"
    assert tokenizer.encode(decomposed) == tokenizer.encode("Where is the café?")
    assert UNK not in tokenizer.encode(decomposed)
    other = [text.replace("é", "e\u0301") for text in ENGLISH + FRENCH]
    assert train_tokenizer(other, TokenizerConfig(vocab_size=SIZE)).sha256 == tokenizer.sha256


@pytest.mark.parametrize("text", ["ක්\u200dෂ", "می\u200cرود"])
def test_joiners_survive(text):
    tokenizer = train_tokenizer([text, "a b"], TokenizerConfig(kind="char", vocab_size=char_size([text, "a b"])))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_identity_keeps_what_nfkc_rewrites():
    text = "ﬁ ½ ︰"
    kept = train_tokenizer([text], TokenizerConfig(kind="char", vocab_size=char_size([text])))
    assert kept.decode(kept.encode(text)) == text
    rewritten = train_tokenizer(["fi 12"], TokenizerConfig(kind="char", vocab_size=char_size(["fi 12"]), normalization="nfkc"))
    assert rewritten.decode(rewritten.encode("ﬁ ²")) == "fi 2"


@pytest.mark.parametrize("unusual", ["z" * 3 + " long" * 1500, "z▅q"])
def test_no_line_is_skipped_in_training(unusual):
    config = TokenizerConfig(kind="char", vocab_size=char_size([*ENGLISH, unusual]) - unusual.count("▅"))
    tokenizer = train_tokenizer([*ENGLISH, unusual], config)
    assert UNK not in tokenizer.encode("z")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_training_is_deterministic_and_quiet(kind, capfd):
    config = TokenizerConfig(kind=kind, vocab_size=SIZE)
    first, second = (train_tokenizer(ENGLISH + FRENCH, config) for _ in range(2))
    assert first.sha256 == second.sha256
    assert capfd.readouterr() == ("", "")


def test_files_come_back_joint_and_separate(tmp_path):
    joint = train_tokenizers(PAIRS, TokenizerConfig(vocab_size=SIZE), tmp_path)
    assert joint.joint
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.model"]
    loaded = load_tokenizers(tmp_path)
    assert loaded.joint
    assert loaded.sha256 == joint.sha256
    separate = train_tokenizers(PAIRS, TokenizerConfig(vocab_size=34, joint=False), tmp_path)
    assert not separate.joint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tokenizer.source.model", "tokenizer.target.model"]
    loaded = load_tokenizers(tmp_path)
    assert loaded.sha256 == separate.sha256
    assert set(loaded.sha256) == {"tokenizer.source.model", "tokenizer.target.model"}
    assert loaded.source.encode("the cat") == separate.source.encode("the cat")
    assert UNK in loaded.source.encode("où")


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(TokenizerError, match=f"{tmp_path}: expected tokenizer.model, or .*got none"):
        load_tokenizers(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    with pytest.raises(TokenizerError, match=r"tokenizer.model: expected a SentencePiece model"):
        load_tokenizers(tmp_path)
    (tmp_path / "tokenizer.model").rename(tmp_path / "tokenizer.source.model")
    with pytest.raises(TokenizerError, match="expected a"):
        load_tokenizers(tmp_path)


def test_a_model_with_other_special_ids_is_refused():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH), model_writer=model, vocab_size=40, hard_vocab_limit=False, minloglevel=2
    )
    with pytest.raises(TokenizerError, match=r"x.model: expected the special ids .*'PAD': 0.*, got .*'PAD': -1"):
        Tokenizer(model.getvalue(), "x.model")
