"""Documents, the split, and batches: pure in (seed, step), each window once an epoch, slices that make up the whole."""

import math
import time
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib import data as data_module
from course_lib import documents as documents_module
from course_lib.config import DataConfig
from course_lib.data import (
    IGNORE,
    BatchStream,
    Corpus,
    Document,
    default_corpus,
    eval_batches,
    load_text,
    pack,
    prepare,
    shift,
    split_documents,
    target_bytes,
)
from course_lib.errors import CheckpointError, ConfigError, DataError
from course_lib.tokenizer import BytesTokenizer

PROPERTY = settings(max_examples=60, deadline=None, database=None)


@cache
def corpus() -> Corpus:
    return prepare(DataConfig())


# Documents


def test_default_corpus_is_real_text() -> None:
    documents = default_corpus()
    assert len(documents) > 50 and sum(len(d.text) for d in documents) > 400_000
    assert [d.name for d in documents] == sorted(d.name for d in documents)
    assert "yield" in "".join(d.text for d in documents)


def text_file(folder: Path, content: bytes | str) -> Path:
    path = folder / "own.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


PARAGRAPHS = "\n\n".join(f"Paragraph {i} is here.\nIt has two lines, naïve café." for i in range(200)) + "\n"


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_own_text_is_cut_at_paragraphs_and_nothing_is_lost(tmp_path: Path, bom: bytes, line_end: str) -> None:
    path = text_file(tmp_path, bom + PARAGRAPHS.replace("\n", line_end).encode())
    documents = load_text(path)
    assert len(documents) > 20
    assert "".join(d.text for d in documents) == PARAGRAPHS
    assert all(d.text.startswith("Paragraph") for d in documents)
    assert documents[0].name == "own.txt:1" and len({d.name for d in documents}) == len(documents)


@pytest.mark.parametrize(
    "text", ["x" * 30_000, "word " * 5_000, "line one\nline 2\n" * 900, "中文" * 3000, "a\n\n" + "b" * 20_000]
)
def test_text_without_paragraphs_is_cut_too(tmp_path: Path, text: str) -> None:
    documents = load_text(text_file(tmp_path, text))
    assert 10 < len(documents) < 130
    assert "".join(d.text for d in documents) == text
    train, val = split_documents(documents)
    assert train and val


def test_large_pieces_have_a_bound(tmp_path: Path) -> None:
    documents = load_text(text_file(tmp_path, PARAGRAPHS * 300))
    assert max(len(d.text) for d in documents) <= 12_000


def test_separator_lines_make_documents(tmp_path: Path) -> None:
    text = "<|endoftext|>\n".join(f"Story {i}.\n\n{'la ' * 100}\n" for i in range(10))
    documents = load_text(text_file(tmp_path, text + "<|endoftext|>"))
    assert len(documents) == 10
    assert all(
        d.text.startswith("Story") and "endoftext" not in d.text and d.text.count("Story") == 1 for d in documents
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b" \n\t\n" * 1000, "empty"),
        (b"<|endoftext|>\n" * 1000, "empty"),
        (b"hello", "too short, 5 characters"),
        (b"abc\0def" * 1000, "NUL at byte 3"),
        (b"abc" * 1000 + b"\xe9t", "not UTF-8, byte 3000 is 0xE9"),
        (b"\xef\xbb\xbf" + b"abc" * 1000 + b"\xff", "byte 3003 is 0xFF"),
        ("hello".encode("utf-16") * 1000, "UTF-16"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20, "NUL at byte 8"),
    ],
)
def test_what_is_not_text_says_so(tmp_path: Path, content: bytes, message: str) -> None:
    path = text_file(tmp_path, content)
    with pytest.raises(DataError, match=message) as caught:
        load_text(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_and_folders_say_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="this is a folder; give one text file"):
        load_text(tmp_path)
    for path in (tmp_path / "nowhere.txt", text_file(tmp_path, "x") / "below"):
        with pytest.raises(DataError, match="there is no such file"):
            load_text(path)


# The split


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.3])
def test_split_of_the_default_corpus(seed: int, fraction: float) -> None:
    documents = default_corpus()
    train, val = split_documents(documents, fraction, seed)
    assert sorted(d.name for d in train + val) == [d.name for d in documents]
    share = sum(d.size for d in val) / sum(d.size for d in documents)
    assert 0.75 * fraction < share < 1.25 * fraction
    assert split_documents(documents, fraction, seed) == (train, val)


@pytest.mark.parametrize("seed", range(4))
def test_validation_holds_no_copies_of_training_text(seed: int) -> None:
    """The manual repeats whole sections under other names; a plain split by document would train on much of them."""

    def copied(train: list[Document], val: list[Document]) -> float:
        known = {p for d in train for p in d.text.split("\n\n") if len(p) >= 80}
        paragraphs = [p for d in val for p in d.text.split("\n\n") if len(p) >= 80]
        return sum(len(p) for p in paragraphs if p in known) / sum(map(len, paragraphs))

    documents = default_corpus()
    assert copied(*split_documents(documents, 0.1, seed)) < 0.02
    wanted = 0.1 * sum(d.size for d in documents)
    alone, _ = documents_module._hold_out(documents, [[i] for i in range(len(documents))], wanted, seed)
    plain = [d for i, d in enumerate(documents) if i not in alone], [documents[i] for i in sorted(alone)]
    assert copied(*plain) > 0.05  # so the test above can fail


@PROPERTY
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=2, max_size=40),
    fraction=st.floats(0.01, 0.9),
    seed=st.integers(0, 10),
)
def test_any_split_has_two_sides(sizes: list[int], fraction: float, seed: int) -> None:
    documents = [Document(str(i), f"{i} " + "x" * size) for i, size in enumerate(sizes)]
    train, val = split_documents(documents, fraction, seed)
    assert train and val and not {d.name for d in train} & {d.name for d in val}
    assert len(train) + len(val) == len(documents)


def test_a_text_that_repeats_itself_can_be_split() -> None:
    paragraph = "The same long paragraph again, which is more than eighty characters long, so that it counts as a copy."
    train, val = split_documents([Document(str(i), paragraph) for i in range(50)], 0.1)
    assert len(val) == 5 and len(train) == 45


def test_impossible_splits() -> None:
    with pytest.raises(DataError, match="at least two"):
        split_documents([Document("one", "text")])
    for fraction in (0.0, 1.0, -1.0):
        with pytest.raises(ConfigError, match="val_fraction"):
            split_documents(default_corpus(), fraction)


# Streams of tokens, and what they weigh


def test_prepare_counts_the_bytes_that_are_predicted() -> None:
    data = corpus()
    for stream, count, documents in (
        (data.train, data.train_bytes, data.train_documents),
        (data.val, data.val_bytes, data.val_documents),
    ):
        assert stream[0] == stream[-1] == data.tokenizer.eos
        assert (stream == data.tokenizer.eos).sum() == len(documents) + 1
        assert count == sum(len(d.text.encode()) for d in documents) == target_bytes(data.tokenizer, stream[1:])
        assert data.tokenizer.decode(stream) == "".join(d.text for d in documents)
    assert data.tokenizer.vocab_size == 1024
    assert len(data.documents) == len(default_corpus())


def test_prepare_is_repeatable_and_trains_the_tokenizer_on_training_text_only() -> None:
    first, second = corpus(), prepare(DataConfig())
    assert np.array_equal(first.train, second.train) and np.array_equal(first.val, second.val)
    marked = [Document(d.name, d.text + " zyxqj" * 300) for d in first.val_documents]
    assert "zyxqj" in "".join(d.text for d in marked)
    # the merges of the corpus's tokenizer are those of its training documents, whatever stands in the others
    from course_lib.tokenizer import BPETokenizer

    again = BPETokenizer.train([d.text for d in first.train_documents], 1024)
    mixed = BPETokenizer.train([d.text for d in [*first.train_documents, *marked]], 1024)
    assert again.table == first.tokenizer.table  # type: ignore[attr-defined]
    assert mixed.table != again.table


def test_prepare_own_text_with_bytes(tmp_path: Path) -> None:
    data = prepare(DataConfig(text=text_file(tmp_path, PARAGRAPHS), tokenizer="bytes"))
    assert data.tokenizer.name == "bytes" and data.train_bytes + data.val_bytes == len(PARAGRAPHS.encode())
    assert len(data.val) == data.val_bytes + len(data.val_documents) + 1


def test_target_bytes() -> None:
    targets = np.array([[104, IGNORE, 256], [0xC3, 0xA9, IGNORE]])
    assert target_bytes(BytesTokenizer(), targets) == 3
    word = corpus().tokenizer.encode(" the")
    assert target_bytes(corpus().tokenizer, np.array([*word, IGNORE, corpus().tokenizer.eos])) == 4


def test_pack() -> None:
    stream = pack(BytesTokenizer(), [Document("a", "hi"), Document("b", ""), Document("c", "é")])
    assert stream.tolist() == [256, 104, 105, 256, 256, 0xC3, 0xA9, 256] and stream.dtype == np.int32


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_shift(make: object) -> None:
    tokens = make([[5, 6, 7, 8], [1, 2, 3, 4]])  # type: ignore[operator]
    inputs, targets = shift(tokens)
    assert inputs.tolist() == [[5, 6, 7], [1, 2, 3]] and targets.tolist() == [[6, 7, 8], [2, 3, 4]]
    inputs, targets = shift(tokens, make([[5, 6, IGNORE, 8], [1, 2, 3, 4]]))  # type: ignore[operator]
    assert inputs.tolist() == [[5, 6, 7], [1, 2, 3]] and targets.tolist() == [[6, IGNORE, 8], [2, 3, 4]]


@PROPERTY
@given(n=st.integers(0, 200), context=st.integers(1, 20), batch=st.integers(1, 9))
def test_eval_batches_predict_each_token_once(n: int, context: int, batch: int) -> None:
    tokens = np.arange(7, 7 + n, dtype=np.int32)
    pairs = [
        (i, t)
        for inputs, targets in eval_batches(tokens, context, batch)
        for i, t in zip(inputs.ravel().tolist(), targets.ravel().tolist(), strict=True)
        if t != IGNORE
    ]
    assert pairs == [(t - 1, t) for t in range(8, 7 + n)]
    assert all(
        inputs.shape == targets.shape
        and inputs.shape[1] == context
        and len(inputs) <= batch
        and inputs.dtype == np.int64
        for inputs, targets in eval_batches(tokens, context, batch)
    )


# Batches


@st.composite
def streams(draw: st.DrawFn) -> BatchStream:
    """A stream over tokens 0, 1, 2, ..., so that a token says where it was."""
    context = draw(st.integers(1, 12))
    n = draw(st.integers(context + 1, 300))
    windows = max(1, (n - context) // context)
    batch = draw(st.integers(1, min(windows, 17)))
    return BatchStream(np.arange(n, dtype=np.int32), context, batch, seed=draw(st.integers(0, 5)))


def clone(stream: BatchStream, start_step: int = 0) -> BatchStream:
    return BatchStream(stream.tokens, stream.context, stream.batch, stream.seed, start_step)


def equal(left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@PROPERTY
@given(stream=streams(), data=st.data())
def test_a_batch_depends_on_seed_and_step_alone(stream: BatchStream, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=8))
    in_order = {step: clone(stream).global_batch(step) for step in steps}
    for step in steps:  # any order, other steps in between, another cursor
        assert equal(stream.global_batch(step), in_order[step])
        assert equal(clone(stream, start_step=step).next(), in_order[step])
    inputs, targets = in_order[steps[0]]
    assert inputs.shape == targets.shape == (stream.batch, stream.context)
    assert inputs.dtype == targets.dtype == np.int64
    assert np.array_equal(targets, inputs + 1)  # each target is the token after its input


@PROPERTY
@given(stream=streams())
def test_each_window_exactly_once_per_epoch(stream: BatchStream) -> None:
    """Epochs are found by counting rows, across batches that hold the end of one and the start of the next."""
    epochs = 3
    steps = math.ceil(epochs * stream.windows / stream.batch)
    rows = np.concatenate([stream.next()[0] for _ in range(steps)])
    for epoch in range(epochs):
        mine = rows[epoch * stream.windows : (epoch + 1) * stream.windows]
        starts = np.sort(mine[:, 0])
        assert len(set(starts.tolist())) == stream.windows
        assert (np.diff(starts) == stream.context).all()  # side by side: no target twice, none left out in between
        assert starts[0] < stream.context and starts[-1] + stream.context < len(stream.tokens)


@PROPERTY
@given(stream=streams(), step=st.integers(0, 40), world_size=st.integers(1, 5), micros=st.integers(1, 5))
def test_slices_make_up_the_global_batch(stream: BatchStream, step: int, world_size: int, micros: int) -> None:
    if world_size * micros > stream.batch:
        with pytest.raises(ConfigError, match=f"set batch={world_size * micros}"):
            stream.slice(step, 0, world_size, 0, micros)
        return
    parts = [stream.slice(step, r, world_size, m, micros) for r in range(world_size) for m in range(micros)]
    whole = tuple(np.concatenate(side) for side in zip(*parts, strict=True))
    assert equal((whole[0], whole[1]), stream.global_batch(step))
    sizes = [len(inputs) for inputs, _ in parts]
    assert max(sizes) - min(sizes) <= 1


@PROPERTY
@given(stream=streams(), data=st.data())
def test_resume_at_any_world_size_neither_repeats_nor_skips(stream: BatchStream, data: st.DataObject) -> None:
    straight = [clone(stream).global_batch(step) for step in range(12)]
    taken: list[tuple[np.ndarray, np.ndarray]] = []
    state = stream.state_dict()
    while len(taken) < 12:  # sessions of 1 to 5 steps, each at another world size, each from the saved numbers alone
        session = clone(stream)
        session.load_state_dict(state)
        world_size = data.draw(st.integers(1, stream.batch))
        for _ in range(data.draw(st.integers(1, 5))):
            parts = [session.slice(session.step, rank, world_size) for rank in range(world_size)]
            taken.append((np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])))
            session.step += 1
        state = session.state_dict()
    assert all(equal(a, b) for a, b in zip(taken, straight, strict=False))


def test_state_is_a_few_whole_numbers_and_guards_the_data() -> None:
    stream = BatchStream(np.arange(1000), 10, 4, seed=3)
    stream.next()
    state = stream.state_dict()
    assert state["step"] == 1 and len(state) <= 6 and all(type(v) is int for v in state.values())
    for other in (
        BatchStream(np.arange(1001), 10, 4, seed=3),
        BatchStream(np.arange(1000), 11, 4, seed=3),
        BatchStream(np.arange(1000), 10, 5, seed=3),
        BatchStream(np.arange(1000), 10, 4, seed=4),
    ):
        with pytest.raises(CheckpointError, match="resume with the saved"):
            other.load_state_dict(state)
        assert other.step == 0


def test_seeds_epochs_and_offsets_differ() -> None:
    tokens = np.arange(2000)
    orders = [BatchStream(tokens, 10, 100, seed=seed).global_batch(0)[0][:, 0].tolist() for seed in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    stream = BatchStream(tokens, 10, stream_windows := (2000 - 10) // 10, seed=0)
    assert stream.windows == stream_windows
    offsets = Counter(int(stream.global_batch(epoch)[0].min()) for epoch in range(300))
    assert set(offsets) == set(range(10)) and max(offsets.values()) < 60  # uniform: 30 each, sd 5.2
    first, second = (stream.global_batch(epoch)[0][:, 0] // 10 for epoch in (0, 1))
    assert (first == second).mean() < 0.1


def test_labels_travel_with_their_tokens() -> None:
    tokens = np.arange(500)
    labels = np.where(tokens % 3 == 0, IGNORE, tokens)
    inputs, targets = BatchStream(tokens, 10, 5, labels=labels).global_batch(3)
    after = inputs + 1
    assert np.array_equal(targets, np.where(after % 3 == 0, IGNORE, after))
    with pytest.raises(DataError, match="shape"):
        BatchStream(tokens, 10, 5, labels=labels[1:])


def test_what_cannot_be_batched_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"batch=40 is larger than the data.*set batch=9 or less"):
        BatchStream(np.arange(100), 10, 40)
    assert BatchStream(np.arange(100), 10, 9).global_batch(5)[0].shape == (9, 10)
    with pytest.raises(ConfigError, match=r"context=100 is too long.*set context=12 or less"):
        BatchStream(np.arange(100), 100, 1)
    assert BatchStream(np.arange(101), 100, 1).next()[1][0].tolist() == list(range(1, 101))
    for arguments in ((0, 1), (1, 0)):
        with pytest.raises(ConfigError, match="at least 1"):
            BatchStream(np.arange(100), *arguments)
    with pytest.raises(ConfigError, match="no slice"):
        BatchStream(np.arange(100), 10, 4).slice(0, rank=2, world_size=2)


def test_the_global_generator_is_left_alone() -> None:
    np.random.seed(1)
    state = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    BatchStream(np.arange(1000), 10, 4).next()
    split_documents(default_corpus())
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index, union-attr]


def test_the_next_batch_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Median under 1 ms (measured: 0.02), and an epoch's order is made once, also where batches hold two epochs."""
    stream = BatchStream(corpus().train, 64, 12)
    seconds = []
    for _ in range(100):
        before = time.perf_counter()
        stream.next()
        seconds.append(time.perf_counter() - before)
    assert sorted(seconds)[50] < 1e-3
    made = []
    monkeypatch.setattr(data_module, "stream_seed", lambda seed, purpose: made.append(purpose) or 0)
    crossing = BatchStream(np.arange(20 * 64), 64, 12)  # 19 windows: two batches of three hold the ends of two epochs
    for step in range(40):
        for rank in (2, 0, 1):
            crossing.slice(step, rank, 3)
    assert made == [f"epoch {epoch}" for epoch in range(-(-40 * 12 // 19))]
