"""Text to token ids and back: byte-level BPE, plain bytes, and a closed list of words.

Every tokenizer has the same few members (`Tokenizer` below). The end-of-document token `eos` has an id but no text: no
string encodes to it, so a document that quotes "<|eos|>" is safe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from course_lib.errors import CheckpointError, ConfigError, DataError

__all__ = ["BPETokenizer", "BytesTokenizer", "Tokenizer", "WordTokenizer", "load_tokenizer"]

FILE_NAME = "tokenizer.json"
Ids = Sequence[int] | np.ndarray


class Tokenizer(Protocol):
    """What the trainer, the data and the widgets need of a tokenizer."""

    name: str  # "bpe", "bytes" or "words"
    vocab_size: int  # ids are 0 .. vocab_size - 1, eos among them
    eos: int  # stands between documents
    byte_lengths: np.ndarray  # (vocab_size,) int64: UTF-8 bytes of text that each token stands for; 0 for eos

    def encode(self, text: str) -> np.ndarray:
        """Token ids of `text`, (n,) int32; never contains `eos` for bpe and bytes."""

    def decode(self, ids: Ids) -> str:
        """The text of `ids`; eos adds nothing, and bytes that are not UTF-8 become U+FFFD."""

    def token_text(self, token: int) -> str:
        """One token, printable: a space is ␣, a line end is ⏎, a part of a character is <E2>."""

    def save(self, folder: str | Path) -> Path:
        """Write `tokenizer.json` into `folder` (made if missing); returns the file's path."""

    def content(self) -> dict[str, Any]:
        """What `tokenizer.json` holds, as JSON data."""


class _ByteTable:
    """Decoding for tokenizers whose tokens are byte strings: `table[i]` is the bytes of token i, b"" for eos."""

    def __init__(self, name: str, table: list[bytes], eos: int) -> None:
        self.name = name
        self.table = table
        self.vocab_size = len(table)
        self.eos = eos
        self.byte_lengths = np.array([len(piece) for piece in table], dtype=np.int64)

    def decode_bytes(self, ids: Ids) -> bytes:
        """The exact bytes of `ids`; DataError for an id outside the vocabulary."""
        listed = np.asarray(ids, dtype=np.int64).reshape(-1)
        bad = listed[(listed < 0) | (listed >= self.vocab_size)]
        if len(bad):
            raise DataError(f"token {bad[0]} is not in the vocabulary: ids are 0 to {self.vocab_size - 1}")
        return b"".join([self.table[i] for i in listed.tolist()])

    def decode(self, ids: Ids) -> str:
        """The text of `ids`; eos adds nothing, and bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_text(self, token: int) -> str:
        """One token, printable: a space is ␣, a line end is ⏎, a part of a character is <E2>."""
        if token == self.eos:
            return "<eos>"
        # surrogateescape keeps each stray byte apart, as U+DC80 + (byte - 0x80)
        return "".join(_printable(char) for char in self.decode_bytes([token]).decode("utf-8", "surrogateescape"))


class BytesTokenizer(_ByteTable):
    """The fallback that needs no training: token i is byte i, and 256 is eos."""

    def __init__(self) -> None:
        super().__init__("bytes", [bytes([i]) for i in range(256)] + [b""], eos=256)

    def encode(self, text: str) -> np.ndarray:
        """UTF-8 bytes of `text` as ids, (n,) int32; DataError for half a surrogate pair, which UTF-8 cannot hold."""
        return np.frombuffer(_utf8(text), dtype=np.uint8).astype(np.int32)

    def save(self, folder: str | Path) -> Path:
        """Write `tokenizer.json` into `folder` (made if missing); returns the file's path."""
        return _write(folder, self.content())

    def content(self) -> dict[str, Any]:
        """What `tokenizer.json` holds, as JSON data."""
        return {"kind": self.name}


class BPETokenizer(_ByteTable):
    """Byte-level BPE: starts from the 256 bytes, so that any text encodes, and merges frequent neighbours.

    Ids 0 .. vocab_size - 2 are those of the `tokenizers` model, the last id is eos. Nothing is normalised, no space is
    added in front, no token is special: `decode(encode(text)) == text` for any text that UTF-8 can hold.
    """

    def __init__(self, model: Any) -> None:
        """`model`: a `tokenizers.Tokenizer` made by `train` or read by `load_tokenizer`."""
        byte_of = {char: byte for byte, char in enumerate(_byte_characters())}
        size = model.get_vocab_size()
        table = [bytes(byte_of[char] for char in model.id_to_token(i)) for i in range(size)]
        super().__init__("bpe", [*table, b""], eos=size)
        self._model = model

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int = 1024) -> BPETokenizer:
        """Learn `vocab_size` tokens (256 bytes, merges, eos) from `texts`; fewer when the texts have no more to merge.

        The same texts in the same order give the same tokenizer. ConfigError when `vocab_size` is below 258.
        """
        if vocab_size < 258:
            raise ConfigError(f"vocab_size={vocab_size} is too small for BPE: 256 bytes, a merge and eos need 258")
        lib = _tokenizers()
        model = _pretokenized(lib, lib.models.BPE())
        trainer = lib.trainers.BpeTrainer(
            vocab_size=vocab_size - 1,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=lib.pre_tokenizers.ByteLevel.alphabet(),
        )
        model.train_from_iterator((_utf8(text).decode("utf-8") for text in texts), trainer)
        return cls(model)

    def encode(self, text: str) -> np.ndarray:
        """Token ids of `text`, (n,) int32; DataError for half a surrogate pair, which UTF-8 cannot hold."""
        _utf8(text)
        return np.array(self._model.encode(text).ids, dtype=np.int32)

    def save(self, folder: str | Path) -> Path:
        """Write `tokenizer.json` into `folder` (made if missing); returns the file's path."""
        return _write(folder, self.content())

    def content(self) -> dict[str, Any]:
        """What `tokenizer.json` holds, as JSON data."""
        return {"kind": self.name, "model": json.loads(self._model.to_str())}


class WordTokenizer:
    """A closed list of words, written with one space between them: for languages that we make up.

    `eos` is one of the words (such as "."). A word's bytes are its letters and the space after it.
    """

    def __init__(self, words: Sequence[str], eos: str) -> None:
        if len(set(words)) != len(words) or eos not in words or any(not w or w.split() != [w] for w in words):
            raise ConfigError("words must be distinct, not empty, without spaces, and contain eos")
        self.name = "words"
        self.words = list(words)
        self.vocab_size = len(self.words)
        self._id = {word: i for i, word in enumerate(self.words)}
        self.eos = self._id[eos]
        self.byte_lengths = np.array([len(word.encode()) + 1 for word in self.words], dtype=np.int64)

    def encode(self, text: str) -> np.ndarray:
        """Ids of the words of `text`, (n,) int32; DataError names a word that is not in the list."""
        words = text.split()
        for word in words:
            if word not in self._id:
                raise DataError(f"{word!r} is not a word of this language; it has {', '.join(self.words[:5])}, ...")
        return np.array([self._id[word] for word in words], dtype=np.int32)

    def decode(self, ids: Ids) -> str:
        """The words of `ids`, one space between them; DataError for an id outside the list."""
        listed = np.asarray(ids, dtype=np.int64).reshape(-1).tolist()
        for token in listed:
            if not 0 <= token < self.vocab_size:
                raise DataError(f"token {token} is not in the vocabulary: ids are 0 to {self.vocab_size - 1}")
        return " ".join(self.words[token] for token in listed)

    def token_text(self, token: int) -> str:
        """The word itself."""
        return self.decode([token])

    def save(self, folder: str | Path) -> Path:
        """Write `tokenizer.json` into `folder` (made if missing); returns the file's path."""
        return _write(folder, self.content())

    def content(self) -> dict[str, Any]:
        """What `tokenizer.json` holds, as JSON data."""
        return {"kind": self.name, "words": self.words, "eos": self.words[self.eos]}


def load_tokenizer(folder: str | Path) -> BPETokenizer | BytesTokenizer | WordTokenizer:
    """Read `tokenizer.json` from `folder`, as `save` wrote it; CheckpointError when it is missing or not ours."""
    path = Path(folder) / FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["kind"] == "bytes":
            return BytesTokenizer()
        if content["kind"] == "words":
            return WordTokenizer(content["words"], content["eos"])
        if content["kind"] == "bpe":
            return BPETokenizer(_tokenizers().Tokenizer.from_str(json.dumps(content["model"])))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot read the tokenizer ({error.strerror or error})") from error
    except Exception as error:  # the tokenizers library raises a bare Exception for a model it cannot read
        raise CheckpointError(f"{path}: not a tokenizer file of this library ({error})") from error
    raise CheckpointError(f"{path}: unknown kind of tokenizer {content['kind']!r}; known: bpe, bytes, words")


def _tokenizers() -> Any:
    """The `tokenizers` library, loaded when first needed.

    It warns in every child process that is forked after it has used its threads; our texts are small, so no threads.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    return tokenizers


def _pretokenized(lib: Any, model: Any) -> Any:
    """A tokenizer that cuts text as GPT-2 does, before `model` merges inside the pieces."""
    tokenizer = lib.Tokenizer(model)
    tokenizer.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return tokenizer


def _byte_characters() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table): itself, or U+0100 onwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _utf8(text: str) -> bytes:
    """UTF-8 bytes of `text`; DataError where it has half a surrogate pair."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"character {error.start} is half a surrogate pair (U+{ord(text[error.start]):04X}), which UTF-8 cannot "
            "hold; remove it or replace it by '?'"
        ) from error


def _printable(char: str) -> str:
    """`char` as a reader can see it."""
    if 0xDC80 <= ord(char) <= 0xDCFF:
        return f"<{ord(char) - 0xDC00:02X}>"
    if char in " \n\t\r":
        return {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}[char]
    return char if char.isprintable() else f"<U+{ord(char):04X}>"


def _write(folder: str | Path, content: dict[str, Any]) -> Path:
    path = Path(folder) / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8", newline="\n")
    return path
