"""Tokenizers: any text comes back exactly, the same texts give the same tokens, files are JSON and nothing else."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import CheckpointError, ConfigError, DataError
from course_lib.tokenizer import BPETokenizer, BytesTokenizer, WordTokenizer, load_tokenizer

TEXTS = ["the cat sat on the mat.\n\nThe cat's hat, naïve café: 1234 中文\n" * 5, "def f(x):\n    return x\n" * 20]
AWKWARD = [
    "",
    " ",
    "\n\n\n",
    " leading and trailing ",
    "tabs\tand\r\nline ends\r",
    "<|eos|> <eos> <|endoftext|> </s>",
    "\ufeffBOM",
    "e\u0301 \u00e9 \ufb01 \u2126",  # what a normaliser would change
    "\u200d\u202e\ufffd\uffff",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "\x00\x01\x7f\x80\xff",
    "Ġ Ċ ĉ",  # the characters that byte-level BPE writes for space, line end and tab
    "\U0010ffff",
]


@cache
def bpe() -> BPETokenizer:
    return BPETokenizer.train(TEXTS, 300)


TOKENIZERS = pytest.mark.parametrize("tokenizer", [bpe(), BytesTokenizer()], ids=lambda t: t.name)


@TOKENIZERS
@pytest.mark.parametrize("text", AWKWARD, ids=range(len(AWKWARD)))
def test_awkward_text_comes_back(tokenizer: BPETokenizer | BytesTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert tokenizer.byte_lengths[ids].sum() == len(text.encode())
    assert tokenizer.eos not in ids


@TOKENIZERS
@settings(max_examples=100, deadline=None, database=None)
@given(text=st.text(st.characters(codec="utf-8")))
def test_any_text_comes_back(tokenizer: BPETokenizer | BytesTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@TOKENIZERS
@settings(max_examples=100, deadline=None, database=None)
@given(data=st.data())
def test_any_ids_decode(tokenizer: BPETokenizer | BytesTokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    joined = b"".join(tokenizer.decode_bytes([i]) for i in ids)
    assert tokenizer.decode(ids) == joined.decode("utf-8", errors="replace")


@TOKENIZERS
def test_half_a_surrogate_pair_is_refused(tokenizer: BPETokenizer | BytesTokenizer) -> None:
    with pytest.raises(DataError, match=r"character 2 is half a surrogate pair \(U\+D800\)"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(DataError, match="surrogate"):
        BPETokenizer.train(["ab\ud800"], 300)


@TOKENIZERS
def test_ids_outside_the_vocabulary(tokenizer: BPETokenizer | BytesTokenizer) -> None:
    for bad in (-1, tokenizer.vocab_size):
        with pytest.raises(DataError, match=f"token {bad} is not in the vocabulary"):
            tokenizer.decode([0, bad])


@TOKENIZERS
def test_eos_is_the_last_id_and_has_no_text(tokenizer: BPETokenizer | BytesTokenizer) -> None:
    assert tokenizer.eos == tokenizer.vocab_size - 1
    assert len(tokenizer.byte_lengths) == tokenizer.vocab_size and tokenizer.byte_lengths[tokenizer.eos] == 0
    assert tokenizer.decode([tokenizer.eos]) == "" and tokenizer.token_text(tokenizer.eos) == "<eos>"


@TOKENIZERS
def test_every_byte_is_a_token(tokenizer: BPETokenizer | BytesTokenizer) -> None:
    pieces = {tokenizer.decode_bytes([i]) for i in range(tokenizer.vocab_size)}
    assert {bytes([b]) for b in range(256)} <= pieces
    assert len(pieces) == tokenizer.vocab_size  # eos is b"", no other token is


@TOKENIZERS
def test_saved_and_loaded(tokenizer: BPETokenizer | BytesTokenizer, tmp_path: Path) -> None:
    path = tokenizer.save(tmp_path / "new folder")
    assert path.name == "tokenizer.json" and json.loads(path.read_text(encoding="utf-8"))["kind"] == tokenizer.name
    loaded = load_tokenizer(path.parent)
    assert (loaded.name, loaded.vocab_size, loaded.eos) == (tokenizer.name, tokenizer.vocab_size, tokenizer.eos)
    for text in [*AWKWARD, *TEXTS]:
        assert np.array_equal(loaded.encode(text), tokenizer.encode(text))
    first = path.read_bytes()
    loaded.save(path.parent)
    assert path.read_bytes() == first


def test_bpe_has_the_size_asked_for_and_shortens() -> None:
    assert bpe().vocab_size == 300
    text = TEXTS[0]
    assert len(bpe().encode(text)) < len(text.encode()) / 1.5
    assert BPETokenizer.train(["ab"], 1000).vocab_size == 257  # nothing occurs twice: bytes and eos
    with pytest.raises(ConfigError, match="258"):
        BPETokenizer.train(TEXTS, 257)


def test_merges_do_not_cross_words() -> None:
    texts = {bpe().token_text(i) for i in range(bpe().vocab_size)}
    assert "␣the" in texts
    assert not any(len(text) > 1 and text.rstrip("␣").find("␣", 1) > 0 for text in texts)


def test_training_is_the_same_in_another_process_and_with_threads(tmp_path: Path) -> None:
    code = (
        "import sys; from course_lib.documents import default_corpus; from course_lib.tokenizer import BPETokenizer;"
        "BPETokenizer.train([d.text for d in default_corpus()[:12]], 600).save(sys.argv[1])"
    )
    for name in ("true", "false"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)],
            env=os.environ | {"TOKENIZERS_PARALLELISM": name, "PYTHONHASHSEED": "1" if name == "true" else "2"},
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0 and done.stderr == b"", done.stderr.decode()
    assert (tmp_path / "true/tokenizer.json").read_bytes() == (tmp_path / "false/tokenizer.json").read_bytes()


def test_token_text_is_printable() -> None:
    tokenizer = BytesTokenizer()
    shown = {byte: tokenizer.token_text(byte) for byte in b" \n\t\rA\x00\xe2"}
    assert list(shown.values()) == ["␣", "⏎", "⇥", "␍", "A", "<U+0000>", "<E2>"]
    for kind in (tokenizer, bpe()):
        for i in range(kind.vocab_size):
            text = kind.token_text(i)
            assert text and text.isprintable() and text.encode()  # also no lone surrogates


def test_words() -> None:
    tokenizer = WordTokenizer(["a", "bee", "."], eos=".")
    assert tokenizer.encode(" bee  a . ").tolist() == [1, 0, 2] and tokenizer.encode("").tolist() == []
    assert tokenizer.decode([1, 0, 2]) == "bee a ." and tokenizer.eos == 2 and tokenizer.token_text(1) == "bee"
    assert tokenizer.byte_lengths.tolist() == [2, 4, 2]
    with pytest.raises(DataError, match="'c' is not a word"):
        tokenizer.encode("a c")
    with pytest.raises(DataError, match="token 3"):
        tokenizer.decode([3])
    for words, eos in ((["a", "a"], "a"), (["a"], "b"), (["a b"], "a b"), (["a", ""], "a")):
        with pytest.raises(ConfigError):
            WordTokenizer(words, eos)


def test_words_saved_and_loaded(tmp_path: Path) -> None:
    WordTokenizer(["a", "bee", "."], eos=".").save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, WordTokenizer) and loaded.words == ["a", "bee", "."] and loaded.eos == 2


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"kind": "bpe", "model": {}}', '{"kind": "morse"}', '{"kind": "words", "words": ["a"]}'],
)
def test_a_broken_file_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read the tokenizer"):
        load_tokenizer(tmp_path / "nowhere")
