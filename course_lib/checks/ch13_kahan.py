"""Check 13.4: an optimizer's update of a 16-bit weight with Kahan's compensation, whole runs of it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind

__all__ = ["KAHAN"]

STEPS = 400
NUMBERS = ("fsum", "tolist", "item", "numpy")
"""What makes Python's own numbers, or NumPy's, of a tensor."""


def _bf16(x: np.ndarray) -> np.ndarray:
    """To BF16 and back, ties to even, on the bits of FP32; x is finite and not at the end of the range."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.asarray(rounded.astype(np.uint32).view(np.float32))


def _step(w: np.ndarray, lost: np.ndarray, update: np.ndarray, rule: str = "") -> tuple[np.ndarray, np.ndarray]:
    """One step; every operation in FP32 (which is exact enough for two BF16 numbers to be rounded once) and rounded."""
    y = _bf16(update + lost if rule == "adds-what-was-lost-twice" else update - lost)
    if rule == "forgets-what-was-lost":
        y = _bf16(update)
    new = _bf16(w + y)
    left = _bf16(_bf16(new - w) - y)
    if rule == "lost-is-a-record":
        y = _bf16(update)
        new = _bf16(w + y)
        left = _bf16(lost + _bf16(_bf16(new - w) - y))
    if rule == "the-weight-is-still-there":
        left = -y
    if rule == "counts-what-was-lost-twice":
        left = _bf16(_bf16(new - w) - _bf16(y - lost))
    if rule == "the-update-not-what-was-added":
        left = _bf16(_bf16(new - w) - update)
    if rule == "what-is-lost-is-not-kept":
        left = np.zeros_like(lost)
    if rule == "adds-up-what-was-lost":
        left = _bf16(lost + left)
    return new, left


def kahan_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 1304])
    n = 12

    def case(name: str, weight: np.ndarray, updates: np.ndarray) -> Case:
        return {"name": name, "weight": _bf16(weight), "updates": _bf16(updates)}

    near = rng.uniform(0.5, 2, n) * rng.choice([-1, 1], n)
    return [
        case("one update that is kept whole", np.full(n, 1.0), np.tile(2.0 ** -np.arange(1, 7), 2)[None]),
        case("one update that is lost", near, 1e-3 * rng.uniform(0.3, 0.9, (1, n))),
        case("updates of one sign", near, 1e-3 * rng.uniform(1.1, 1.9, (STEPS, n))),
        case("updates of both signs", near, 1e-3 * (rng.normal(size=(STEPS, n)) - 0.3)),
        case("weights that cross zero", near / 50, -np.sign(near) * 2e-4 * rng.uniform(0.5, 1.5, (STEPS, n))),
    ]


def _bf16_alone() -> Any:
    """A mode that refuses an operation whose result is another kind of number. Comparisons and indices are fine."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Bf16Alone(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            for part in tree_leaves(found):
                kind = getattr(part, "dtype", torch.float64 if isinstance(part, float) else torch.bfloat16)
                if kind != torch.bfloat16 and (kind.is_floating_point or kind.is_complex):
                    name = func.overloadpacket.__name__.strip("_")
                    raise WrongForm(f"every number in `step` is BF16; `{name}` makes one of {kind} in yours")
            return found

    return Bf16Alone()


def kahan_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    import torch

    w = torch.from_numpy(case["weight"]).bfloat16()
    lost, weights = torch.zeros_like(w), []
    for update in torch.from_numpy(case["updates"]).bfloat16():
        given = w.clone(), lost.clone(), update.clone()
        with _bf16_alone():
            found = answer(*given)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise WrongForm(f"step returns a pair, (weight, lost); {'nothing' if found is None else kind(found)} came")
        for name, part in zip(("weight", "lost"), found, strict=True):
            if not isinstance(part, torch.Tensor) or part.shape != w.shape:
                raise WrongForm(f"{name} is a tensor of the shape {tuple(w.shape)}; yours is {kind(part)}")
            if part.dtype != torch.bfloat16:
                raise WrongForm(f"{name} is BF16, two bytes each; yours is {part.dtype}")
        w, lost = found
        weights.append(w.float())
    return {"weights": torch.stack(weights), "lost": lost.float()}


HINTS = {
    "what-is-lost-is-not-kept": "updates are lost as in a plain sum. What comes back for the next step?",
    "forgets-what-was-lost": "what was lost comes back, and nobody adds it",
    "adds-what-was-lost-twice": "the next step makes the loss larger. Is what was lost added or taken away?",
    "the-update-not-what-was-added": "of what is it that something was lost: of the update alone?",
    "adds-up-what-was-lost": "what was lost before is in this step's sum. Is it still lost?",
    "takes-the-update-away": "the weights move the other way",
    "lost-is-a-record": "`lost` is a record of all that was lost, and nobody adds it",
    "the-weight-is-still-there": "`lost` is all that was wanted. Is the weight that you take away still the old one?",
    "counts-what-was-lost-twice": "what was lost before is in what was wanted, and once more in `lost`",
}


def _final(case: Case, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Weight and size of what is kept beside it, after all steps."""
    w, lost = case["weight"], np.zeros_like(case["weight"])
    for update in case["updates"]:
        w, lost = _step(w, lost, -update if rule == "takes-the-update-away" else update, rule)
    return w, np.abs(lost)


def kahan_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Of the exact sum in FP64, the weight is off by at most two spacings of BF16 at the largest of it, 2^-7 of that.

    Kahan's error does not grow with the steps; a plain sum loses all or most of these updates.
    """
    found = np.asarray(returned["weights"].numpy(), dtype=np.float64)
    exact = case["weight"].astype(np.float64) + np.cumsum(case["updates"].astype(np.float64), axis=0)
    size = np.maximum(np.abs(exact).max(0), np.abs(case["weight"]))
    if found.shape != exact.shape or tuple(returned["lost"].shape) != exact.shape[1:]:
        return Wrong(f"the weights of {len(exact)} steps have another shape than the updates, or `lost` has")
    error = np.abs(found - exact).max(0) / size
    lost = returned["lost"].numpy().astype(np.float64)
    beside, other = ((np.abs(found[-1] + sign * lost - exact[-1]) / size).max() for sign in (1, -1))
    if error.max() <= 2.0**-7 and min(beside, other) <= 2.0**-10 and np.isfinite(found).all():
        if beside <= 2.0**-10:
            return None
        text = "the weights are right, and weight - `lost` is the exact sum. The text wants it the other way round"
        return Wrong(text, "what-was-too-much-is-missing")
    ends = (found[-1].astype(np.float32), np.abs(lost).astype(np.float32))
    for rule, text in HINTS.items():
        if all(np.array_equal(one, two) for one, two in zip(ends, _final(case, rule), strict=True)):
            return Wrong(f"after {len(found)} steps the largest error is {error.max():.2%}: {text}", rule)
    if error.max() <= 2.0**-7:
        text = "the weights are right, and weight and `lost` together are not the exact sum. What is `lost` to hold?"
        return Wrong(text, "the-update-not-what-was-added" if len(found) > 1 else None)
    return Wrong(f"after {len(found)} steps the largest error is {error.max():.2%}; Kahan's stays under 0.8%")


KAHAN = Exercise(
    id="kahan-step",
    title="An update that is not lost",
    cases=kahan_cases,
    run=kahan_run,
    judge=kahan_judge,
    forbidden=(
        "course_lib.precision",
        "course_lib.failures",
        "float",
        "double",
        "float32",
        "float64",
        "fsum",
        *NUMBERS,
    ),
    misconceptions={
        "what-is-lost-is-not-kept": "what a rounding loses is lost",
        "forgets-what-was-lost": "to know what was lost is enough",
        "adds-what-was-lost-twice": "the sign of what was lost does not matter",
        "the-update-not-what-was-added": "what was lost is the update minus what moved",
        "adds-up-what-was-lost": "losses add up, even those that were made good",
        "takes-the-update-away": "an update is always taken away",
        "lost-is-a-record": "to write down what was lost is enough",
        "the-weight-is-still-there": "a name stands for the old value after it was overwritten",
        "counts-what-was-lost-twice": "what was lost before is added beside what was wanted",
        "what-was-too-much-is-missing": "what was added too much and what is missing are the same",
    },
)
