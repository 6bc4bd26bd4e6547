"""What every configuration needs: checks that name the field and a value that works, nearest names, seeds."""

import difflib
import hashlib
from collections.abc import Collection
from typing import Any

from course_lib.errors import ConfigError

__all__ = ["between", "nearest", "one_of", "positive", "require", "stream_seed"]


def stream_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for one purpose ("init", "dropout", ...), so that no two uses of `seed` share a random stream."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:8], "big") >> 1


def require(condition: bool, message: str) -> None:
    """Raise `ConfigError(message)` unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def positive(config: Any, *names: str) -> None:
    """Each of these fields must be a whole number of at least 1."""
    for name in names:
        value = getattr(config, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(whole and value >= 1, f"{name}={value!r} must be a whole number of at least 1")


def between(config: Any, name: str, low: float, high: float, try_value: str) -> None:
    """The field must be at least `low` and below `high`."""
    value = getattr(config, name)
    require(low <= value < high, f"{name}={value} must be at least {low:g} and below {high:g}; try {name}={try_value}")


def one_of(config: Any, name: str, known: tuple[str, ...]) -> None:
    """The field must be one of the known words; the message names the nearest."""
    value = getattr(config, name)
    require(value in known, f"{name}={value!r} is unknown{nearest(value, known)} (there are: {', '.join(known)})")


def nearest(word: str, words: Collection[str]) -> str:
    """ "; did you mean ...?" for the word that is closest, "" when none is close."""
    match = difflib.get_close_matches(word, list(words), n=1, cutoff=0.4)
    return f"; did you mean {match[0]!r}?" if match else ""
