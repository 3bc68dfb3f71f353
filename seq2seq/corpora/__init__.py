"""Parallel corpora by name: each a recipe with source, licence, checksum and split rule.

| recipe     | text                                                    | split                                        |
|------------|---------------------------------------------------------|----------------------------------------------|
| `bible`    | verses of ten public-domain translations, any pair      | by books, without shared 8-grams             |
| `multi30k` | image captions, English, German, French                 | its own                                      |
| `tatoeba`  | everyday sentences, English with French or Arabic       | by groups of pairs that share a sentence     |
| `parallel` | two text files, line by line                            | given, or held out without shared sentences  |
| `tsv`      | one file, source TAB target                             | given, or held out without shared sentences  |
| `reverse`  | sequences of symbols and their reversal, made here      | distinct sequences, longer ones in test      |

A pair is dropped whole, never one side of it, and counted by reason.  Test text is never filtered by length.
"""

from seq2seq.corpora.cleaning import CorpusError, normalize_text, read_lines
from seq2seq.corpora.overlap import count_shared_ngrams
from seq2seq.corpora.pairs import Pair, ParallelCorpus
from seq2seq.corpora.prepare import corpus_dir, load_corpus, prepare_corpus
from seq2seq.corpora.text_form import TextForm, text_form

__all__ = [
    "CorpusError",
    "Pair",
    "ParallelCorpus",
    "TextForm",
    "corpus_dir",
    "count_shared_ngrams",
    "load_corpus",
    "normalize_text",
    "prepare_corpus",
    "read_lines",
    "text_form",
]
