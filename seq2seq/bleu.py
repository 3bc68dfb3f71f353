"""BLEU (Papineni et al. 2002) by sacrebleu, in the words of the target language."""

from sacrebleu.metrics import BLEU

UNSPACED = frozenset({"zh", "ja", "th", "lo", "km", "my"})
"""Languages written without spaces between words; their lengths are counted in characters."""

_TOKENIZERS = dict.fromkeys(UNSPACED, "char") | {"zh": "zh"}


def bleu_metric(language: str) -> BLEU:
    """The metric for texts in the language of this code: characters are its words where words are not spaced.

    >>> round(bleu_metric("ja").corpus_score(["彼は本を読む"], [["彼は本を読んだ"]]).score, 1)
    64.3
    """
    # force=True turns off sacrebleu's log line about tokenised text, which looks at 100 lines whatever n is
    return BLEU(tokenize=_TOKENIZERS.get(language, "13a"), force=True)
