"""A language that we made, so its entropy is known exactly and every token can be called grammar, fact or noise.

A sentence has eight words and one of three forms, which its second word decides:

    NAME likes the THING and rolls NUMBER .        half of the sentences
    NAME rolls NUMBER and likes the THING .        a quarter
    NAME drives to PLACE at hour NUMBER .          a quarter

- noise: NAME and NUMBER, uniform and independent. Nobody can do better than the logarithm of their count.
- fact: THING and PLACE. Each name has a favourite thing and place, taken with probability `reliability`, and a second
  one. They can be known only by remembering who is who; the form says that a thing comes, but not which.
- grammar: all the rest. The words before decide it, except for the form, which is drawn anew at each second word.
"""

from __future__ import annotations

import math

import numpy as np

from course_lib.config import stream_seed
from course_lib.data import Corpus
from course_lib.errors import ConfigError, DataError
from course_lib.tokenizer import WordTokenizer

__all__ = ["KINDS", "SyntheticLanguage"]

KINDS = ("grammar", "fact", "noise")
GRAMMAR, FACT, NOISE = range(3)

FORMS: tuple[tuple[float, str], ...] = (
    (0.50, "NAME likes the THING and rolls NUMBER ."),
    (0.25, "NAME rolls NUMBER and likes the THING ."),
    (0.25, "NAME drives to PLACE at hour NUMBER ."),
)
LENGTH = 8  # words in every sentence
OBJECTS = (  # things, then places
    "apples bread cheese dates eggs figs grapes honey jam kale lemons milk nuts olives pears rice salt tea wine yams "
    "beans corn fish garlic leeks mint oats peas plums soup toast tofu",
    "Athens Bergen Cairo Delhi Essen Fez Geneva Hanoi Izmir Jaffa Kyoto Lima Madrid Nairobi Oslo Paris Quito Riga "
    "Sofia Tokyo Utrecht Vienna Warsaw Xian York Zagreb Accra Berlin Cork Dublin Exeter Florence",
)
RELATIONS = {"THING": 0, "PLACE": 1}


class SyntheticLanguage:
    """The language with its facts drawn from `seed`.

    `tokens` are ids into `vocab`, int64. Entropies are in nats. Wherever a prefix or a sample is taken, its first token
    starts a sentence.
    """

    sentence_length = LENGTH

    def __init__(
        self, seed: int = 0, *, names: int = 32, numbers: int = 32, objects: int = 32, reliability: float = 0.8
    ) -> None:
        """`names` (at most 400), `numbers` and `objects` (things, and as many places; 2 to 32) set the sizes."""
        for field, value, low, high in (
            ("names", names, 1, 400),
            ("numbers", numbers, 1, 10_000),
            ("objects", objects, 2, 32),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{field}={value} must be from {low} to {high}")
        if not 0.5 <= reliability <= 1:
            raise ConfigError(f"reliability={reliability} must be from 0.5 to 1; try reliability=0.8")
        self.seed, self.reliability = seed, reliability
        self.names, self.numbers, self.objects = names, numbers, objects
        function_words = sorted({word for _, form in FORMS for word in form.split() if not word.isupper()})
        syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
        people = [(first + second).title() for second in syllables for first in syllables][:400]
        self.vocab: list[str] = [
            *function_words,
            *[people[7 * i % 400] for i in range(names)],
            *[str(i) for i in range(numbers)],
            *[word for group in OBJECTS for word in group.split()[:objects]],
        ]
        self.vocab_size = len(self.vocab)
        self._first = {"NAME": len(function_words), "NUMBER": len(function_words) + names}
        self._first["THING"] = self._first["NUMBER"] + numbers
        self._first["PLACE"] = self._first["THING"] + objects
        self.tokenizer = WordTokenizer(self.vocab, eos=".")
        self._forms = [form.split() for _, form in FORMS]
        self._weights = np.array([weight for weight, _ in FORMS])
        self._verbs = [self.vocab.index(form[1]) for form in self._forms]
        rng = np.random.default_rng(stream_seed(seed, "facts"))
        # table[r, name] = (favourite, second), two different objects
        favourite = rng.integers(objects, size=(2, names))
        second = (favourite + rng.integers(1, objects, size=(2, names))) % objects
        self.table = np.stack([favourite, second], axis=-1)

        self._cache: dict[tuple[int, int | None, int | None], np.ndarray] = {}
        slots = [[word if word in self._first else None for word in form] for form in self._forms]
        self._slots: list[list[str | None]] = slots
        kind_of = {"NAME": NOISE, "NUMBER": NOISE, "THING": FACT, "PLACE": FACT, None: GRAMMAR}
        self._kinds = np.array([[kind_of[slot] for slot in form] for form in slots], dtype=np.int8)
        self._literals = np.array(
            [
                [0 if slot else self.vocab.index(word) for word, slot in zip(form, row, strict=True)]
                for form, row in zip(self._forms, slots, strict=True)
            ]
        )

    def sample(self, n_tokens: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, kinds): n_tokens ids, int64, and for each the index of its kind in KINDS, int8."""
        tokens, kinds = self._sentences(-(-n_tokens // LENGTH), seed)
        return tokens.reshape(-1)[:n_tokens], kinds.reshape(-1)[:n_tokens]

    def windows(self, rows: int, context: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, kinds), (rows, context + 1) each; every row is a text of its own that starts with a sentence.

        When `context` is a multiple of `sentence_length`, the targets (all but the first token) hold each kind in its
        exact share, and nothing that decides a target lies before the window: the floor is `entropy`, no more.
        """
        per_row = -(-(context + 1) // LENGTH)
        tokens, kinds = self._sentences(rows * per_row, seed)
        return tokens.reshape(rows, -1)[:, : context + 1], kinds.reshape(rows, -1)[:, : context + 1]

    def _sentences(self, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """`count` sentences: tokens and kinds, (count, 8)."""
        rng = np.random.default_rng(stream_seed(self.seed, f"sample {seed}"))
        form = rng.choice(len(self._forms), size=count, p=self._weights)
        name = rng.integers(self.names, size=count)
        number = rng.integers(self.numbers, size=count)
        second = (rng.random(count) >= self.reliability).astype(np.int64)
        drawn = {"NAME": name, "NUMBER": number}
        drawn |= {slot: self.table[relation, name, second] for slot, relation in RELATIONS.items()}
        tokens = self._literals[form]
        for f, slots in enumerate(self._slots):
            for position, slot in enumerate(slots):
                if slot:
                    tokens[form == f, position] = self._first[slot] + drawn[slot][form == f]
        return tokens, self._kinds[form]

    def conditional(self, prefix: np.ndarray | list[int]) -> np.ndarray:
        """Exact distribution of the token after `prefix`, (vocab_size,) float64.

        The first token of `prefix` starts a sentence; earlier sentences do not matter. DataError when no text of this
        language starts so.
        """
        tokens = self._checked(prefix)
        bad = np.flatnonzero(np.isneginf(self.log_probs(tokens)))
        if len(bad):
            raise DataError(f"token {bad[0]} of the prefix cannot stand there: no sentence of this language has it")
        return self._next(tokens[len(tokens) - len(tokens) % LENGTH :].tolist()).copy()

    def log_probs(self, tokens: np.ndarray | list[int]) -> np.ndarray:
        """Log of the exact conditional probability of each token, (n,) float64 nats; -inf where it cannot stand.

        Minus their mean is the loss of a model that knows the language, on this very text.
        """
        ids = self._checked(tokens).tolist()
        out = np.full(len(ids), -math.inf)
        for start in range(0, len(ids), LENGTH):
            sentence = ids[start : start + LENGTH]
            for i, token in enumerate(sentence):
                probability = self._next(sentence[:i])[token]
                if probability == 0:
                    break  # nothing follows what cannot stand
                out[start + i] = math.log(probability)
        return out

    def entropy(self) -> dict[str, float]:
        """Exact entropy rate in nats per token of each kind, and "all" for the mean over all tokens."""
        per_position = np.zeros((len(FORMS), LENGTH))
        per_position[:, 0] = math.log(self.names)
        per_position[:, 1] = _entropy(self._weights)
        for f, slots in enumerate(self._slots):
            for position in range(2, LENGTH):
                if slots[position] == "NUMBER":
                    per_position[f, position] = math.log(self.numbers)
                elif slots[position] in RELATIONS:
                    per_position[f, position] = _entropy(np.array([self.reliability, 1 - self.reliability]))
        nats = self._weights[:, None] * per_position
        count = self._weights[:, None] * np.ones((1, LENGTH))
        floors = {
            kind: float(nats[self._kinds == k].sum() / count[self._kinds == k].sum()) for k, kind in enumerate(KINDS)
        }
        return {**floors, "all": float(nats.sum() / LENGTH)}

    def shares(self) -> dict[str, float]:
        """Share of the tokens that are of each kind; they sum to 1."""
        count = self._weights[:, None] * np.ones((1, LENGTH))
        return {kind: float(count[self._kinds == k].sum() / LENGTH) for k, kind in enumerate(KINDS)}

    def corpus(self, train_tokens: int, val_tokens: int, seed: int = 0) -> Corpus:
        """Two samples as a corpus that the trainer takes; a word counts as its letters and a space in bits per byte."""
        train, _ = self.sample(train_tokens, 2 * seed)
        val, _ = self.sample(val_tokens, 2 * seed + 1)
        bytes_of = self.tokenizer.byte_lengths
        return Corpus(
            tokenizer=self.tokenizer,
            train=train.astype(np.int32),
            val=val.astype(np.int32),
            train_bytes=int(bytes_of[train[1:]].sum()),
            val_bytes=int(bytes_of[val[1:]].sum()),
        )

    def _checked(self, tokens: np.ndarray | list[int]) -> np.ndarray:
        ids = np.asarray(tokens, dtype=np.int64).reshape(-1)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.vocab_size):
            raise DataError(f"token ids must lie between 0 and {self.vocab_size - 1}, the words of this language")
        return ids

    def _next(self, sentence: list[int]) -> np.ndarray:
        """Distribution after the words of an unfinished sentence that are there, (vocab_size,); do not write to it.

        It depends on the position, the form (known from the second word on) and, for facts, on the name.
        """
        position = len(sentence)
        form = self._verbs.index(sentence[1]) if position > 1 else None
        slot = "NAME" if position == 0 else None if form is None else self._slots[form][position]
        name = sentence[0] - self._first["NAME"] if slot in RELATIONS else None
        key = (position, form, name)
        if key not in self._cache:
            out = np.zeros(self.vocab_size)
            if slot == "NAME" or slot == "NUMBER":
                size = self.names if slot == "NAME" else self.numbers
                out[self._first[slot] : self._first[slot] + size] = 1 / size
            elif position == 1:
                out[self._verbs] = self._weights
            elif slot in RELATIONS:
                objects = self._first[slot] + self.table[RELATIONS[slot], name]
                out[objects] = [self.reliability, 1 - self.reliability]
            else:
                out[self._literals[form, position]] = 1
            self._cache[key] = out
        return self._cache[key]


def _entropy(probabilities: np.ndarray) -> float:
    """Nats of a distribution; 0 log 0 counts 0."""
    positive = probabilities[probabilities > 0]
    return float(-(positive * np.log(positive)).sum())
