"""Check 13.6: the learner's test of a summing kernel, tried on right kernels of unlike bits, and on wrong ones."""

from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind

__all__ = ["KERNEL", "RIGHT", "WRONG", "kernel_of"]

Array = np.ndarray[Any, Any]
LARGE, INDEX = 4096, 65_536
ODD = [37, 41, 47, 53, 59, 71, 73, 79, 83, 89]
LOOKS = ("__closure__", "__code__", "__globals__", "__defaults__", "__qualname__", "inspect", "gc", "dis")
"""Ways to look into a kernel and not at what it does."""


def _in_order(x: Array) -> np.float32:
    return np.float32(np.add.accumulate(x, dtype=np.float32)[-1]) if len(x) else np.float32(0)


def _pairs(x: Array) -> np.float32:
    while len(x) > 1:
        x = np.append(x, np.float32(0)) if len(x) % 2 else x
        x = x[0::2] + x[1::2]
    return np.float32(x[0])


def _padded(x: Array, block: int) -> Array:
    """One row a block; zeros behind the end."""
    padded = np.zeros(-(-len(x) // block) * block, dtype=np.float32)
    padded[: len(x)] = x
    return padded.reshape(-1, block)


def _partials(x: Array, block: int) -> Array:
    """The sum of each block, in pairs, all blocks at once."""
    level = _padded(x, block)
    while level.shape[1] > 1:
        level = np.pad(level, ((0, 0), (0, 1))) if level.shape[1] % 2 else level
        level = level[:, 0::2] + level[:, 1::2]
    return level[:, 0]


def _by_block(x: Array, block: int) -> np.float32:
    return _in_order(_partials(x, block))


def _lanes(x: Array, block: int) -> np.float32:
    """As many running sums as a block has places, each of every block's own place; added up in the end."""
    return _in_order(np.add.accumulate(_padded(x, block), axis=0, dtype=np.float32)[-1])


def _tail_missing(x: Array, block: int) -> np.float32:
    return _by_block(x[: len(x) - len(x) % block], block)


def _tail_short(x: Array, block: int) -> np.float32:
    return _by_block(x[:-1] if len(x) % block else x, block)


def _edge_twice(x: Array, block: int) -> np.float32:
    return np.float32(_by_block(x, block) + (x[block] if len(x) > block else np.float32(0)))


def _stale(x: Array, block: int) -> np.float32:
    """The tail block is not masked: behind the end it adds what the block before had there."""
    rest = len(x) % block
    if not rest or len(x) < block:
        return _by_block(x, block)
    return _by_block(np.append(x, x[len(x) - block : len(x) - rest]), block)


def _half_partials(x: Array, block: int) -> np.float32:
    return _in_order(_partials(x, block).astype(np.float16).astype(np.float32))


def _bf16_result(x: Array, block: int) -> np.float32:
    bits = np.array([_by_block(x, block)], dtype=np.float32).view(np.uint32)
    return np.float32((bits & np.uint32(0xFFFF0000)).view(np.float32)[0])


def _index_ends(x: Array, block: int) -> np.float32:
    return _by_block(x[:LARGE], block)


def _no_nan(x: Array, block: int) -> np.float32:
    return _by_block(np.where(np.isnan(x), np.float32(0), x), block)


def _no_sign(x: Array, block: int) -> np.float32:
    """A block whose sum is below 0 counts as 0, as after a maximum that began at 0."""
    return _in_order(np.maximum(_partials(x, block), np.float32(0)))


def _whole_end(x: Array, block: int) -> np.float32:
    """The last block is cut to what is left over; where nothing is, all of it goes."""
    return _by_block(x if len(x) % block else x[:-block], block)


def _one_number(x: Array, block: int) -> np.float32:
    """A loop over pairs that does not run for one number."""
    return _by_block(x, block) if len(x) > 1 else np.float32(0)


def _short_index(x: Array, block: int) -> np.float32:
    """The number of numbers, in 16 bits."""
    return _by_block(x[: len(x) % INDEX], block)


def _two_bf16(x: Array, block: int) -> np.float32:
    """The result is kept as a BF16 number and another one for what is left: 16 bits and a sign, of 24."""
    total = _by_block(x, block)
    if not np.isfinite(total):
        return total
    high = _bf16(total)
    return np.float32(high + _bf16(np.float32(total - high)))


def _bf16(x: np.float32) -> np.float32:
    """The nearest BF16 number; ties are rounded away from 0, which nobody asks of a wrong kernel."""
    bits = np.array([x], dtype=np.float32).view(np.uint32) + np.uint32(0x8000)
    return np.float32((bits & np.uint32(0xFFFF0000)).view(np.float32)[0])


def _tiny_is_none(x: Array, block: int) -> np.float32:
    """What is less than a millionth counts as 0."""
    return _by_block(np.where(np.abs(x) < np.float32(1e-6), np.float32(0), x), block)


def _held_down(x: Array, block: int) -> np.float32:
    """Its partial sums are held within FP16's range, in FP32."""
    return _in_order(_partials(x, block).clip(np.float32(-65504), np.float32(65504)))


RIGHT: dict[str, Callable[[Array, int], np.float32]] = {
    "in order": lambda x, block: _in_order(x),
    "backwards": lambda x, block: _in_order(x[::-1]),
    "in pairs": lambda x, block: _pairs(x),
    "by block": _by_block,
    "lanes": _lanes,
}
WRONG: dict[str, Callable[[Array, int], np.float32]] = {
    "tail missing": _tail_missing,
    "tail short": _tail_short,
    "edge twice": _edge_twice,
    "stale": _stale,
    "half partials": _half_partials,
    "bf16 result": _bf16_result,
    "index ends": _index_ends,
    "no nan": _no_nan,
    "no sign": _no_sign,
    "whole end": _whole_end,
    "one number": _one_number,
    "short index": _short_index,
    "two bf16": _two_bf16,
    "tiny is none": _tiny_is_none,
    "held down": _held_down,
}
HINTS = {
    "tail missing": (
        "it leaves out what is left over after the last whole block. Which sizes did you try?",
        "round-sizes-will-do",
    ),
    "stale": (
        "its last block reads what it should not, when it is not a whole one. Which sizes?",
        "round-sizes-will-do",
    ),
    "index ends": ("it stops reading after some thousands. Which sizes did you try?", "small-stands-for-large"),
    "no nan": ("it hides a NaN. What did you ask of it?", "numbers-are-numbers"),
    "no sign": ("some of its partial sums have the wrong sign. Which numbers did you try?", "positive-stands-for-all"),
    "tail short": (
        "it leaves out one number, with some sizes. How large is that, by the error that you allow?",
        "close-is-right",
    ),
    "edge twice": ("it adds one number twice. How large is that, by the error that you allow?", "close-is-right"),
    "half partials": (
        "its partial sums are FP16. Which error do you allow, and which would FP32 make?",
        "close-is-right",
    ),
    "bf16 result": ("it has BF16 in it. Which error do you allow, and which would FP32 make?", "close-is-right"),
    "short index": ("it is wrong with more than 65,535. Which sizes did you try?", "small-stands-for-large"),
    "whole end": (
        "it is wrong when its last block is a whole one. Which sizes did you try, and which sizes may a block have?",
        "some-sizes-stand-for-all",
    ),
    "one number": ("it is wrong with one number alone. Which sizes did you try?", "some-sizes-stand-for-all"),
    "two bf16": (
        "its result has 16 bits where FP32 has 24. How small is what you allow for a few numbers that are not whole?",
        "close-is-right",
    ),
    "tiny is none": ("it leaves out tiny numbers. How large were all that you tried?", "numbers-are-near-one"),
    "held down": ("it is wrong with huge numbers. How large were all that you tried?", "numbers-are-near-one"),
}


def kernel_of(name: str, block: int) -> Callable[[Any], float]:
    """The kernel as a learner's test gets it."""
    made = {**RIGHT, **WRONG}[name]

    def kernel(x: Any) -> float:
        if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim != 1 or not 1 <= len(x) <= 100_000:
            got = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
            raise ValueError(f"a kernel takes a float32 array of one dimension, 1 to 100,000 numbers; yours was {got}")
        if np.isfinite(x).all() and np.abs(x).sum(dtype=np.float64) > np.finfo(np.float32).max:
            raise ValueError("the sizes of these numbers add up to more than FP32 holds; the text leaves that out")
        with np.errstate(all="ignore"):
            return float(made(x.copy(), block))

    return kernel


def kernel_cases(seed: int) -> list[Case]:
    """All kernels twice, with blocks of a power of two and of any size, in an order that the seed draws."""
    rng = np.random.default_rng([seed, 1306])
    usual = "twenty kernels, blocks of 64, 128 or 256"

    def case(name: str, sizes: list[int]) -> Case:
        names = [str(one) for one in rng.permutation([*RIGHT, *WRONG])]
        blocks = {one: int(rng.choice(sizes)) for one in names}
        if name != usual:  # no round number, nor one beside it, is some of its blocks
            blocks["whole end"] = int(rng.choice(ODD))
        return {"name": name, "kernels": [[one, blocks[one]] for one in names]}

    return [
        case(usual, [64, 128, 256]),
        case("twenty others, blocks of any size", [*range(33, 60), *range(70, 120)]),
    ]


def kernel_run(answer: Callable[..., Any], case: Case) -> list[bool]:
    found = []
    for name, block in case["kernels"]:
        try:
            said = answer(kernel_of(name, block))
        except AssertionError:
            raise WrongForm("accepts returns False for a wrong kernel; yours raised an AssertionError") from None
        said = said.item() if getattr(said, "ndim", None) == 0 and hasattr(said, "item") else said
        if not isinstance(said, bool):
            what = "nothing came back" if said is None else f"yours returned {kind(said)}"
            raise WrongForm(f"accepts returns True or False; {what}")
        found.append(said)
    return found


def kernel_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact. Right kernels are off by less than n x 2^-24 of the sum of the sizes; of each wrong one there are inputs
    within the text's rules where it is off by ten times that and more."""
    if not all(isinstance(ok, bool) for ok in returned):
        return Wrong("your test says True or False of each kernel", form=True)
    said = {name: ok for (name, _), ok in zip(case["kernels"], returned, strict=True)}
    number = {name: f"kernel {place} of {len(said)}" for place, (name, _) in enumerate(case["kernels"], start=1)}
    refused = [name for name in RIGHT if not said[name]]
    accepted = [name for name in WRONG if said[name]]
    if not refused and not accepted:
        return None
    many = f"{len(refused) + len(accepted)} of {len(said)} kernels wrong. "
    if refused:
        if not any(said.values()):
            return Wrong(f"{many}Your test accepts none. Which error is no error?", "only-one-order-is-right")
        text = "is right, and your test refuses it. It adds in another order: how large may its error be?"
        return Wrong(f"{many}{number[refused[0]].capitalize()} {text}", "only-one-order-is-right")
    name = next(name for name in HINTS if name in accepted)
    text, rule = HINTS[name]
    if len(accepted) == len(WRONG):
        rule = "what-runs-is-right"
    return Wrong(f"{many}{number[name].capitalize()} is wrong, and your test accepts it: {text}", rule)


KERNEL = Exercise(
    id="kernel-test",
    title="A test that finds the bug",
    cases=kernel_cases,
    run=kernel_run,
    judge=kernel_judge,
    forbidden=("course_lib.failures", *LOOKS),
    misconceptions={
        "only-one-order-is-right": "a right kernel has the bits of the reference",
        "round-sizes-will-do": "a kernel that is right with a power of two is right",
        "some-sizes-stand-for-all": "a handful of sizes stands for all of them",
        "small-stands-for-large": "a kernel that is right with a few numbers is right with many",
        "numbers-are-numbers": "NaN is no input",
        "numbers-are-near-one": "numbers of the size of 1 show all that there is",
        "positive-stands-for-all": "positive numbers show all that there is",
        "close-is-right": "an error of a few per mille is rounding",
        "what-runs-is-right": "one input is a test",
    },
)
