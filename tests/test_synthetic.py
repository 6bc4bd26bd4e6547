"""The synthetic language: its entropy against enumeration of all sentences, its samples against its distribution."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.data import BatchStream, eval_batches
from course_lib.errors import ConfigError, DataError
from course_lib.synthetic import KINDS, SyntheticLanguage

SMALL = SyntheticLanguage(seed=2, names=3, numbers=4, objects=3, reliability=0.7)
DEFAULT = SyntheticLanguage()
LENGTH = SyntheticLanguage.sentence_length
PROPERTY = settings(max_examples=40, deadline=None, database=None)


def all_sentences(language: SyntheticLanguage) -> dict[tuple[int, ...], float]:
    """Every sentence and its probability, by walking `conditional` from the empty prefix."""
    paths: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for prefix, p in paths.items():
            following = language.conditional(list(prefix))
            longer |= {(*prefix, int(t)): p * following[t] for t in np.flatnonzero(following)}
        paths = longer
    return paths


def written_by_hand(language: SyntheticLanguage) -> dict[tuple[int, ...], float]:
    """The same from the description in the module's docstring, with words: independent of `conditional`."""
    names = [language.vocab[i] for i in range(9, 9 + language.names)]
    numbers = [str(i) for i in range(language.numbers)]
    favourites = {
        (kind, name): [
            language.vocab[9 + language.names + language.numbers + shift + int(o)] for o in language.table[kind, i]
        ]
        for kind, shift in ((0, 0), (1, language.objects))
        for i, name in enumerate(names)
    }
    out: Counter[tuple[int, ...]] = Counter()
    for name, number, (rank, trust) in itertools.product(
        names, numbers, enumerate([language.reliability, 1 - language.reliability])
    ):
        thing, place = favourites[0, name][rank], favourites[1, name][rank]
        p = trust / len(names) / len(numbers)
        for weight, text in (
            (0.5, f"{name} likes the {thing} and rolls {number} ."),
            (0.25, f"{name} rolls {number} and likes the {thing} ."),
            (0.25, f"{name} drives to {place} at hour {number} ."),
        ):
            out[tuple(language.tokenizer.encode(text).tolist())] += weight * p
    return out


def test_the_conditional_gives_the_sentences_that_the_docstring_describes() -> None:
    walked, described = all_sentences(SMALL), written_by_hand(SMALL)
    assert walked.keys() == described.keys() and len(walked) == 3 * 4 * 2 * 3
    assert all(math.isclose(walked[s], described[s], rel_tol=1e-12) for s in walked)


def test_entropy_by_enumeration() -> None:
    """Over whole sentences, from the hand-written distribution: -sum p log p, shared out by the chain rule."""
    sentences = written_by_hand(SMALL)
    assert math.isclose(sum(sentences.values()), 1, rel_tol=1e-12)
    total = -sum(p * math.log(p) for p in sentences.values())
    assert math.isclose(SMALL.entropy()["all"], total / LENGTH, rel_tol=1e-12)
    prefixes: Counter[tuple[int, ...]] = Counter()
    for sentence, p in sentences.items():
        for i in range(LENGTH + 1):
            prefixes[sentence[:i]] += p
    nats, count = Counter[str](), Counter[str]()
    slots = {i for i, word in enumerate(SMALL.vocab) if word[0].isupper() or word.isdigit()}
    things = set(SMALL.vocab[9 + SMALL.names + SMALL.numbers :])
    for sentence, p in sentences.items():
        for i, token in enumerate(sentence):
            word = SMALL.vocab[token]
            kind = "fact" if word in things else "noise" if token in slots else "grammar"
            nats[kind] -= p * math.log(prefixes[sentence[: i + 1]] / prefixes[sentence[:i]])
            count[kind] += p
    for kind in KINDS:
        assert math.isclose(SMALL.entropy()[kind], nats[kind] / count[kind], rel_tol=1e-9, abs_tol=1e-12)
        assert math.isclose(SMALL.shares()[kind], count[kind] / LENGTH, rel_tol=1e-12)


def test_the_default_floors_by_hand() -> None:
    floors = DEFAULT.entropy()
    assert math.isclose(floors["grammar"], 1.5 * math.log(2) / 5)  # the form: 1.5 bits in five words
    assert math.isclose(floors["fact"], -0.8 * math.log(0.8) - 0.2 * math.log(0.2))
    assert math.isclose(floors["noise"], math.log(32))
    assert DEFAULT.shares() == {"grammar": 0.625, "fact": 0.125, "noise": 0.25}
    assert math.isclose(floors["all"], sum(DEFAULT.shares()[k] * floors[k] for k in KINDS))
    certain = SyntheticLanguage(reliability=1.0)
    assert certain.entropy()["fact"] == 0
    tokens, kinds = certain.sample(8_000)
    assert (certain.log_probs(tokens)[kinds == KINDS.index("fact")] == 0).all()


def test_the_chance_of_all_continuations_is_one() -> None:
    for prefix in ([], *itertools.islice(all_sentences(SMALL), 5)):
        for cut in range(len(prefix) + 1):
            following = SMALL.conditional(list(prefix[:cut]))
            assert following.shape == (SMALL.vocab_size,) and math.isclose(following.sum(), 1, rel_tol=1e-12)
    # and the chain rule over every text of three tokens: the sum over all continuations is 1
    total = sum(
        SMALL.conditional([])[a] * SMALL.conditional([a])[b] * SMALL.conditional([a, b])[c]
        for a in np.flatnonzero(SMALL.conditional([]))
        for b in np.flatnonzero(SMALL.conditional([a]))
        for c in np.flatnonzero(SMALL.conditional([a, b]))
    )
    assert math.isclose(total, 1, rel_tol=1e-12)


def test_samples_follow_the_distribution() -> None:
    """Each of the 72 sentences as often as its probability, within 5 standard deviations; none that has no chance."""
    count = 40_000
    tokens, _ = SMALL.sample(count * LENGTH, seed=1)
    seen = Counter(map(tuple, tokens.reshape(count, LENGTH).tolist()))
    expected = written_by_hand(SMALL)
    assert seen.keys() <= expected.keys()
    for sentence, p in expected.items():
        assert abs(seen[sentence] - count * p) < 5 * math.sqrt(count * p * (1 - p))


def test_the_exact_loss_of_a_long_text_is_the_entropy() -> None:
    """Within 4 standard errors of the mean, from the spread of the tokens' own losses (about 0.005 nats)."""
    tokens, kinds = DEFAULT.sample(100_000, seed=3)
    loss = -DEFAULT.log_probs(tokens)
    for k, kind in enumerate(KINDS):
        mine = loss[kinds == k]
        error = mine.std() / math.sqrt(len(mine))
        assert error < 0.01
        assert abs(mine.mean() - DEFAULT.entropy()[kind]) <= 4 * error + 1e-12
    per_sentence = loss.reshape(-1, LENGTH).mean(1)
    assert abs(loss.mean() - DEFAULT.entropy()["all"]) < 4 * per_sentence.std() / math.sqrt(len(per_sentence))
    assert np.allclose(loss[kinds == KINDS.index("noise")], math.log(32), rtol=1e-12)  # never below, on any text


@PROPERTY
@given(seed=st.integers(0, 1000), n=st.integers(0, 40))
def test_log_probs_are_those_of_conditional(seed: int, n: int) -> None:
    tokens, kinds = SMALL.sample(n, seed)
    assert tokens.shape == kinds.shape == (n,) and tokens.dtype == np.int64 and kinds.dtype == np.int8
    each = [math.log(SMALL.conditional(tokens[:i])[tokens[i]]) for i in range(n)]
    assert np.allclose(SMALL.log_probs(tokens), each, rtol=1e-12)


def test_kinds_are_what_their_words_say() -> None:
    tokens, kinds = DEFAULT.sample(4_000)
    words = [DEFAULT.vocab[t] for t in tokens]
    for i, (word, kind) in enumerate(zip(words, kinds, strict=True)):
        is_noise = i % LENGTH == 0 or word.isdigit()
        is_fact = words[i - 1] in ("the", "to")
        assert KINDS[kind] == ("noise" if is_noise else "fact" if is_fact else "grammar")


def test_same_seed_same_text_and_other_seeds_other_facts() -> None:
    assert np.array_equal(DEFAULT.sample(100, 5)[0], SyntheticLanguage().sample(100, 5)[0])
    assert not np.array_equal(DEFAULT.sample(100, 5)[0], DEFAULT.sample(100, 6)[0])
    other = SyntheticLanguage(seed=1)
    assert other.vocab == DEFAULT.vocab and not np.array_equal(other.table, DEFAULT.table)
    assert (DEFAULT.table[..., 0] != DEFAULT.table[..., 1]).all()


def test_vocabulary() -> None:
    for language in (DEFAULT, SMALL, SyntheticLanguage(names=400, numbers=100)):
        assert len(set(language.vocab)) == language.vocab_size == len(language.vocab)
        tokens, _ = language.sample(800)
        assert language.tokenizer.encode(language.tokenizer.decode(tokens)).tolist() == tokens.tolist()


def test_windows_hold_each_kind_in_its_share() -> None:
    tokens, kinds = DEFAULT.windows(5, 64, seed=2)
    assert tokens.shape == kinds.shape == (5, 65)
    targets = kinds[:, 1:]
    for k, kind in enumerate(KINDS):
        assert ((targets == k).mean(1) == DEFAULT.shares()[kind]).all()
    assert np.isfinite([DEFAULT.log_probs(row) for row in tokens]).all()
    assert not np.array_equal(tokens, DEFAULT.windows(5, 64, seed=3)[0])


def test_corpus_fits_the_rest_of_the_library() -> None:
    corpus = DEFAULT.corpus(10_000, 1_600)
    assert corpus.train.shape == (10_000,) and corpus.val.shape == (1_600,)
    assert corpus.val_bytes == len(corpus.tokenizer.decode(corpus.val[1:])) + 1  # with a space after the last word
    inputs, _ = BatchStream(corpus.train, 64, 12).next()
    assert inputs.max() < corpus.tokenizer.vocab_size
    starts = np.concatenate([inputs[:, 0] for inputs, _ in eval_batches(corpus.val, 64, 8)])
    assert all(DEFAULT.vocab[t].istitle() for t in starts)  # validation windows start with a sentence
    assert not np.array_equal(corpus.train[:1600], corpus.val)


def test_what_is_not_in_the_language() -> None:
    name, verb, the = DEFAULT.tokenizer.encode(f"{DEFAULT.vocab[9]} likes the").tolist()
    with pytest.raises(DataError, match="token 1 of the prefix cannot stand there"):
        DEFAULT.conditional([name, the])
    for bad in (-1, DEFAULT.vocab_size):
        with pytest.raises(DataError, match="must lie between 0 and"):
            DEFAULT.conditional([bad])
    chances = DEFAULT.log_probs([name, the, the, verb, the, the, the, the, name, verb])
    assert np.isfinite(chances).tolist() == [True] + [False] * 7 + [True, True]
    out = DEFAULT.conditional([name])
    out[:] = 0  # a copy: the language is not changed by writing to it
    assert math.isclose(DEFAULT.conditional([name]).sum(), 1)


@pytest.mark.parametrize(
    "setting",
    [{"names": 0}, {"names": 401}, {"objects": 1}, {"objects": 33}, {"reliability": 0.4}, {"reliability": 1.1}],
)
def test_impossible_languages(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        SyntheticLanguage(**setting)  # type: ignore[arg-type]
