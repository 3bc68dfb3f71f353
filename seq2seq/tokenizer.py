"""Text to ids and back: SentencePiece models (Kudo and Richardson 2018) with ids PAD=0 UNK=1 BOS=2 EOS=3.

One joint model for both languages, or one for each.  Everything that changes text travels inside the model file, apart
from the form of the corpus (``text_form``), which ``encode`` gives to every input as the corpus has it.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece

from seq2seq.config import ConfigError, TokenizerConfig
from seq2seq.corpora import Pair, TextForm, normalize_text

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_IDS = {"PAD": PAD, "UNK": UNK, "BOS": BOS, "EOS": EOS}
JOINT_FILE, SOURCE_FILE, TARGET_FILE = "tokenizer.model", "tokenizer.source.model", "tokenizer.target.model"


class TokenizerError(ValueError):
    """A tokenizer file that is missing, broken or made with other special ids."""


class Tokenizer:
    """One SentencePiece model.

    Attributes:
        vocab_size: number of pieces, the four special ids included.
        sha256: of the model file; a checkpoint made with another tokenizer is of no use.
        form: of the text it was trained on.
    """

    def __init__(self, model: bytes, name: str = "tokenizer", form: TextForm = normalize_text):
        """Raises TokenizerError, naming `name`, if `model` is no SentencePiece model or has other special ids."""
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise TokenizerError(f"{name}: expected a SentencePiece model, got {len(model)} other bytes") from None
        processor = self._processor
        ids = {"PAD": processor.pad_id(), "UNK": processor.unk_id(), "BOS": processor.bos_id(), "EOS": processor.eos_id()}
        if ids != SPECIAL_IDS:
            raise TokenizerError(f"{name}: expected the special ids {SPECIAL_IDS}, got {ids}")
        self._model = model
        self.form = form
        self.vocab_size: int = processor.vocab_size()
        self.sha256 = hashlib.sha256(model).hexdigest()

    @classmethod
    def load(cls, path: str | Path, form: TextForm = normalize_text) -> Tokenizer:
        """Read a model file."""
        try:
            return cls(Path(path).read_bytes(), str(path), form)
        except OSError as error:
            raise TokenizerError(f"{path}: expected a tokenizer file, got: {error.strerror}") from None

    def save(self, path: str | Path) -> None:
        """Write the model file, whole or not at all."""
        temporary = Path(f"{path}.{os.getpid()}.tmp")
        temporary.write_bytes(self._model)
        temporary.replace(path)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without BOS and EOS; characters that training never saw become UNK."""
        return self._processor.encode(self.form(text))

    def decode(self, ids: Iterable[int]) -> str:
        """Plain text of `ids` up to the first EOS; PAD and BOS are skipped, UNK reads " ⁇ " as SentencePiece writes it.

        Any sequence of ids gives clean text: no word marker, single spaces, none at the ends.
        """
        return " ".join(self._processor.decode(self._content(ids)).split())

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id, special ones included ("▁" opens a word)."""
        return [self._processor.id_to_piece(i) for i in self._checked(ids)]

    def _content(self, ids: Iterable[int]) -> list[int]:
        ids = self._checked(ids)
        ids = ids[: ids.index(EOS)] if EOS in ids else ids
        return [i for i in ids if i not in (PAD, BOS)]

    def _checked(self, ids: Iterable[int]) -> list[int]:
        ids = [int(i) for i in ids]
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"ids: expected integers in [0, {self.vocab_size}), got {i}")
        return ids


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of the two sides; one and the same object if the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both sides share one vocabulary."""
        return self.source is self.target

    @property
    def sha256(self) -> dict[str, str]:
        """Checksums of the model files, by file name."""
        return {name: tokenizer.sha256 for name, tokenizer in self._files()}

    def save(self, run_dir: str | Path) -> None:
        """Write the model files into `run_dir`; files of an earlier tokenizer go."""
        run_dir = Path(run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        files = dict(self._files())
        for name, tokenizer in files.items():
            tokenizer.save(run_dir / name)
        for name in {JOINT_FILE, SOURCE_FILE, TARGET_FILE} - set(files):
            (run_dir / name).unlink(missing_ok=True)

    def _files(self) -> list[tuple[str, Tokenizer]]:
        return [(JOINT_FILE, self.source)] if self.joint else [(SOURCE_FILE, self.source), (TARGET_FILE, self.target)]


def train_tokenizers(pairs: Sequence[Pair], config: TokenizerConfig, run_dir: str | Path) -> Tokenizers:
    """Train on the training pairs and write ``tokenizer.model``, or ``tokenizer.source.model`` and ``tokenizer.target.model``.

    Raises:
        ConfigError: a vocabulary larger or smaller than this text allows; the bound is named.
    """
    sources, targets = [p.source for p in pairs], [p.target for p in pairs]
    if config.joint:
        source = target = train_tokenizer(sources + targets, config, "this corpus")
    else:
        source = train_tokenizer(sources, config, "the source side of this corpus")
        target = train_tokenizer(targets, config, "the target side of this corpus")
    tokenizers = Tokenizers(source, target)
    tokenizers.save(run_dir)
    return tokenizers


def load_tokenizers(run_dir: str | Path, form: TextForm = normalize_text) -> Tokenizers:
    """Read what ``train_tokenizers`` wrote, for text that is to be given this form.

    Raises:
        TokenizerError: no tokenizer files, or a broken one.
    """
    run_dir = Path(run_dir)
    if (run_dir / JOINT_FILE).exists():
        tokenizer = Tokenizer.load(run_dir / JOINT_FILE, form)
        return Tokenizers(tokenizer, tokenizer)
    if not (run_dir / SOURCE_FILE).exists() and not (run_dir / TARGET_FILE).exists():
        raise TokenizerError(f"{run_dir}: expected {JOINT_FILE}, or {SOURCE_FILE} and {TARGET_FILE}, got none of them")
    return Tokenizers(Tokenizer.load(run_dir / SOURCE_FILE, form), Tokenizer.load(run_dir / TARGET_FILE, form))


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig, name: str = "this text") -> Tokenizer:
    """Train one model on `texts`; the same texts and config give the same bytes.

    `word` and `char` models keep the most frequent words or characters; a smaller vocabulary leaves the others UNK.
    """
    # SentencePiece skips lines with its own UNK mark U+2585, blank lines and lines above max_sentence_length bytes.
    texts = [normalize_text(text).replace("\u2585", " ") for text in texts]
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            normalization_rule_name=config.normalization,
            character_coverage=config.character_coverage,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            max_sentence_length=max([4192, *(len(text.encode()) + 1 for text in texts)]),
            num_threads=2,  # fixed: sums over threads must not depend on the machine
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _vocabulary_error(str(error), config, name) from None
    tokenizer = Tokenizer(model.getvalue())
    if tokenizer.vocab_size != config.vocab_size:  # `char` shrinks without a word
        raise ConfigError("tokenizer.vocab_size", f"at most {tokenizer.vocab_size} (what {name} allows)", config.vocab_size)
    return tokenizer


def _vocabulary_error(message: str, config: TokenizerConfig, name: str) -> ConfigError:
    if found := re.search(r"set it to a value <= (\d+)", message):
        return ConfigError("tokenizer.vocab_size", f"at most {found[1]} (what {name} allows)", config.vocab_size)
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return ConfigError("tokenizer.vocab_size", f"at least {found[1]} (the characters of {name})", config.vocab_size)
    return ConfigError("tokenizer", f"settings that SentencePiece accepts on {name}", message)
