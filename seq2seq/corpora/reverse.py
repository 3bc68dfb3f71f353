"""Reversal of a sequence of symbols: the toy task where one fixed vector fails and attention does not.

Source "d a c", target "c a d".  Lengths are spread evenly: training and dev over min_symbols..max_symbols, test on to
max_test_symbols.  No sequence stands twice, in one split or in two.  Made by this project, licence as the code.
"""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Callable
from typing import Any

from seq2seq.config import ConfigError, CorpusConfig
from seq2seq.corpora.pairs import Built, Pair

VERSION = 1
SEED = 0


def languages(config: CorpusConfig) -> tuple[str, str]:
    """Names of the two sides."""
    return "symbols", "reversed"


def fingerprint(config: CorpusConfig) -> dict[str, Any]:
    """Everything the pairs depend on."""
    keys = ("num_symbols", "train_pairs", "held_out", "min_symbols", "max_symbols", "max_test_symbols")
    return {"version": VERSION, "seed": SEED} | {key: getattr(config, key) for key in keys}


def build(config: CorpusConfig, log: Callable[[str], object]) -> Built:
    """Draw the three splits."""
    n, generator = config.num_symbols, random.Random(SEED)
    seen_lengths = range(config.min_symbols, config.max_symbols + 1)
    all_lengths = range(config.min_symbols, config.max_test_symbols + 1)
    # Short sequences are few: dev and test leave at least half of each length to training.
    test = _quotas("held_out", config.held_out, {length: n**length // 4 for length in all_lengths})
    dev = _quotas("held_out", config.held_out, {length: n**length // 4 for length in seen_lengths})
    train = _quotas("train_pairs", config.train_pairs, {k: n**k - test.get(k, 0) - dev.get(k, 0) for k in seen_lengths})
    splits: dict[str, list[Pair]] = {"train": [], "dev": [], "test": []}
    for length in all_lengths:
        wanted = {"train": train.get(length, 0), "dev": dev.get(length, 0), "test": test[length]}
        codes = iter(_distinct(n**length, sum(wanted.values()), generator))
        for name, count in wanted.items():
            splits[name] += [_pair(next(codes), n, length) for _ in range(count)]
    for name, pairs in splits.items():
        generator.shuffle(pairs)
        splits[name] = [pair._replace(id=f"{name}.{i}") for i, pair in enumerate(pairs, 1)]
    return Built(**splits, read=sum(map(len, splits.values())), dropped=Counter())


def _quotas(key: str, total: int, capacity: dict[int, int]) -> dict[int, int]:
    """Spread `total` sequences over lengths as evenly as the number of distinct sequences of each length allows."""
    if total > sum(capacity.values()):
        raise ConfigError(f"corpus.{key}", f"at most {sum(capacity.values())} (distinct sequences of these lengths)", total)
    quotas, left = {}, total
    for done, (length, room) in enumerate(sorted(capacity.items(), key=lambda item: item[1])):
        quotas[length] = min(room, -(-left // (len(capacity) - done)))
        left -= quotas[length]
    return quotas


def _distinct(size: int, count: int, generator: random.Random) -> list[int]:
    """`count` different integers below `size`, in random order; `size` may exceed any machine integer."""
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        chosen[generator.randrange(size)] = None
    return list(chosen)


def _pair(code: int, num_symbols: int, length: int) -> Pair:
    symbols = []
    for _ in range(length):
        code, digit = divmod(code, num_symbols)
        symbols.append(string.ascii_lowercase[digit])
    return Pair(" ".join(symbols), " ".join(reversed(symbols)), "")
