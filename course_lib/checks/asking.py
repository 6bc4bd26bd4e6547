"""Reasoning questions: printing one for a variant, remembering which was printed, and the form of an answer."""

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["ASKED", "CheckFailed", "WrongForm", "ask", "came", "kind", "variant_of"]

ASKED: dict[str, int] = {}
"""Exercise -> the variant that its question cell printed last in this session."""

NUMBERS = {0: "none", 1: "one", 2: "two", 3: "three", 4: "four"}


class CheckFailed(Exception):
    """A check that did not pass. Shown in a notebook as its one line, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class WrongForm(Exception):
    """Raised by an exercise's `run`: the answer is not of the form asked for. Its text is one sentence."""


def ask(texts: Mapping[str, Callable[[int], str]], exercise: str, variant: Any = 0) -> None:
    """Print `exercise`'s text for `variant`, a whole number from 0; else CheckFailed with one line."""
    if exercise not in texts:
        raise CheckFailed(f"question: there is no question {exercise!r} here; there is {', '.join(texts)}")
    if isinstance(variant, bool) or not isinstance(variant, int) or variant < 0:
        raise CheckFailed(f"question: variant is a whole number from 0, such as variant=1; yours is {variant!r}")
    print(f"variant {variant}\n\n{texts[exercise](variant)}")
    ASKED[exercise] = variant


def variant_of(answer: Any) -> int:
    """The variant in a reasoning answer. WrongForm says what else the answer is."""
    if not isinstance(answer, dict):
        raise WrongForm(f"the answer is a dict, in braces, with the keys of its first line; yours is {kind(answer)}")
    if "variant" not in answer:
        raise WrongForm('the answer needs the key "variant", the number of the question that it answers')
    variant = answer["variant"]
    if isinstance(variant, bool) or not isinstance(variant, int):
        raise WrongForm(f'"variant" is a whole number without quotes, from 0; yours is {kind(variant)}')
    if variant < 0:
        raise WrongForm(f'"variant" is a whole number from 0; yours is {variant}')
    return variant


def kind(value: Any) -> str:
    """What a value is, in words: "an int", "a str", "a tuple of two", "nothing". A `type` stands for its values."""
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    if name == "NoneType":
        return "nothing"
    size = f" of {NUMBERS.get(len(value), len(value))}" if isinstance(value, tuple | list) else ""
    return _article(name) + size


def came(name: str) -> str:
    """How a message says what a call returned: `came("NoneType")`, `came("ndarray")`, `came("tuple of two")`."""
    return "nothing came back" if name == "NoneType" else f"{_article(name)} came back"


def _article(name: str) -> str:
    vowel = name[:1].lower() in set("aeiou") or name.startswith("nd")  # an ndarray
    return f"{'an' if vowel else 'a'} {name}"
