"""Cleaning of the Bible translations, verse by verse: marks of editors go, the words of the verse stay.

Each function takes the text of a verse and its reference (book 1-66, chapter, verse) and gives the clean text; a verse
that is only a placeholder gives "".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from seq2seq.corpora.cleaning import normalize_text

JOB, PSALMS = 18, 19


class Reference(NamedTuple):
    """Place of a verse; books are numbered 1 (Genesis) to 66 (Revelation)."""

    book: int
    chapter: int
    verse: int


class Translation(NamedTuple):
    """A public-domain translation: its code in the database, its name and its cleaning."""

    code: str
    name: str
    clean: Callable[[str, Reference], str]


_BRACKETS = str.maketrans("", "", "[]")
_NEXT_TITLE = re.compile(r"\s*(?:BOOK [IV]+ )?Psalm \d+\b.*$")
_HEBREW_LETTER = re.compile(r"\s+[A-Z]{2,}(?: AND SHIN)?$")
_VERSE_MARK = re.compile(r"\(\d+[:-]\d+[a-z]?(?:\)|(?=\s))")
_TITLE_TO_LAST_MARK = re.compile(rf"^.*{_VERSE_MARK.pattern}")
_REFERENCE = re.compile(r"\[[^\[\]]*\d[^\[\]]*\]")


def clean_plain(text: str, reference: Reference) -> str:
    """Translations without marks of editors: the normal form and no more."""
    return normalize_text(text)


def clean_web(text: str, reference: Reference) -> str:
    """World English Bible: four placeholders, titles of the next Psalm, Hebrew letters in Psalm 119, brackets, backticks."""
    text = normalize_text(text)
    if "by amos" in text:
        return ""
    if reference.book == PSALMS or reference[:2] == (JOB, 42):
        text = _NEXT_TITLE.sub("", text)
    if reference[:2] == (PSALMS, 119) and reference.verse % 8 == 0:
        text = _HEBREW_LETTER.sub("", text)
    return normalize_text(text.replace(" -[", "-[").translate(_BRACKETS).replace("`", "'"))


def clean_marked(text: str, reference: Reference) -> str:
    """Louis Segond and Synodal: (chapter:verse) marks; in verse 1 of a Psalm all up to the last one is the title."""
    text = normalize_text(text)
    if reference.book == PSALMS and reference.verse == 1:
        text = _TITLE_TO_LAST_MARK.sub("", text)
    return normalize_text(_VERSE_MARK.sub(" ", text).translate(_BRACKETS))


def clean_synodal(text: str, reference: Reference) -> str:
    """Synodal: marks, and one verse that the editors took over from the King James Version."""
    return "" if "ADDED FROM KJV" in text else clean_marked(text, reference)


def clean_darby(text: str, reference: Reference) -> str:
    """Darby (French): bracketed references to other books, "#" before a name of God, a stray verse number, brackets."""
    text = _REFERENCE.sub("", normalize_text(text).replace("#", ""))
    text = re.sub(r"^\d+\s", "", text).translate(_BRACKETS)
    return normalize_text(re.sub(r"\s+(?=[,.])", "", text))


def clean_elberfelder(text: str, reference: Reference) -> str:
    """Elberfelder: three missing verses, Psalm titles in parentheses, asterisks, closing dashes, brackets.

    "(Lobet Jehova!)" opens several Psalms in parentheses but is text.
    """
    text = normalize_text(text)
    if text == "(*)" or "(MISSING)" in text:
        return ""
    if reference.book == PSALMS and reference.verse == 1:
        text = re.sub(r"^\((Lobet Jehova!)\)", r"\1", text)
        text = re.sub(r"^\([^()]*\)", "", text)
    text = text.replace("*", "").translate(_BRACKETS)
    return normalize_text(re.sub(r"\s-\s*$", "", text))


def clean_smith_van_dyke(text: str, reference: Reference) -> str:
    """Smith & Van Dyke: runs of asterisks, brackets."""
    return normalize_text(re.sub(r"\*+", " ", text).translate(_BRACKETS))


def clean_persian(text: str, reference: Reference) -> str:
    """Old Version: an apostrophe set apart stands for a small alef that the encoding lost."""
    return normalize_text(re.sub(r"\s*'", "", text))


TRANSLATIONS = {
    "en": Translation("4", "World English Bible", clean_web),
    "kjv": Translation("k", "King James Version (English)", clean_plain),
    "fr": Translation("l", "Louis Segond 1910", clean_marked),
    "frd": Translation("5", "Darby (French)", clean_darby),
    "de": Translation("e", "Elberfelder", clean_elberfelder),
    "es": Translation("v", "Reina Valera 1909", clean_plain),
    "it": Translation("d", "Diodati 1649", clean_plain),
    "ru": Translation("r", "Synodal 1876", clean_synodal),
    "ar": Translation("y", "Smith & Van Dyke", clean_smith_van_dyke),
    "fa": Translation("p", "Old Version 1895", clean_persian),
}
