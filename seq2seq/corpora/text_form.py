"""The form that the text of a corpus has, and that the input of a model trained on it must have too."""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Callable
from typing import Any

from seq2seq.config import CorpusConfig
from seq2seq.corpora.cleaning import normalize_text

TextForm = Callable[[str], str]


def text_form(config: CorpusConfig) -> TextForm:
    """What `normalize_text` makes of a line, then in lower case and with punctuation apart where `config` says so.

    The form of a text in that form is itself.

    >>> text_form(CorpusConfig(lowercase=True, split_punctuation=True))("Je t'aime, qu'on l'aime... Don't ask for 1,000!")
    "je t' aime , qu' on l' aime ... don't ask for 1,000 !"
    """

    def form(text: str) -> str:
        text = normalize_text(text)
        if config.lowercase:
            text = normalize_text(text.lower())
        return split_punctuation(text) if config.split_punctuation else text

    return form


def split_punctuation(text: str) -> str:
    """Punctuation marks and elided French words (l', qu') stand alone; what joins a word or a number (' - . ,) stays.

    >>> split_punctuation("L'Orateur : «Y a-t-il 3.5 % d'eau?»")
    "L' Orateur : « Y a-t-il 3.5 % d' eau ? »"
    """
    return " ".join(found[0] for found in _tokens().finditer(text))


def form_fingerprint(config: CorpusConfig) -> dict[str, Any]:
    """The part of the form that a corpus need not have."""
    return {key: True for key in ("lowercase", "split_punctuation") if getattr(config, key)}


@functools.cache
def _tokens() -> re.Pattern[str]:
    # Marks and joiners, which `\w` leaves out, are parts of words: vowels in Arabic and Indic scripts.
    joined = (c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Mn", "Mc", "Me", "Cf"))
    letter = rf"[\w{''.join(joined)}]"
    return re.compile(
        rf"""
        (?<!{letter})(?:[cdjlmnst]|(?:jus|lors|puis|quoi)?qu)['’]   # l' of "l'eau"
        | {letter}+(?:(?:['’-]|(?<=\d)[.,:](?=\d)){letter}+)*       # eau, don't, demi-heure, 1,000.5
        | ([^\w\s])\1*                                              # ? ...
        """,
        re.VERBOSE | re.IGNORECASE,
    )
