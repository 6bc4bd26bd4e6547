"""Checks of chapter 6, checkpoint and resume: the size of a checkpoint.

Resuming is in `ch06_resume` (the small run in `ch06_run`), the drill in `ch06_drill`, power cuts in `ch06_crash`, the
two reasoning exercises in `ch06_questions`.
"""

from collections.abc import Callable
from itertools import takewhile
from math import prod
from typing import Any

import numpy as np

from course_lib.checks.ch02_gradients import no_number, number
from course_lib.checks.ch06_crash import CRASH
from course_lib.checks.ch06_drill import DRILL
from course_lib.checks.ch06_questions import WEIGHTS_ONLY, WHICH_PART, left_out_text, weights_only_text
from course_lib.checks.ch06_resume import FORGOTTEN
from course_lib.checks.ch06_run import small_run_text
from course_lib.checks.core import Case, Exercise, Wrong, ask, make_check

__all__ = ["EXERCISES", "check", "question"]

# --- 06.1 how large is a checkpoint? ----------------------------------------------------------------------------------


def _tensor(name: str, shape: list[int], trained: bool = True, tied: str | None = None) -> dict[str, Any]:
    return {"name": name, "shape": shape, "trained": trained, "tied": tied}


def size_cases(seed: int) -> list[Case]:
    """Ordered so that each mistake first shows where no other gives its number."""
    rng = np.random.default_rng([seed, 601])
    width, vocab, rows = (int(n) for n in rng.integers((96, 900, 300), (160, 1300, 400)))
    body = [_tensor("matrix", [rows, width]), _tensor("gain", [width])]
    table = _tensor("embedding", [vocab, width])
    tied = [table, *body, _tensor("output", [vocab, width], tied="embedding")]
    frozen = [_tensor("embedding", [vocab, width], trained=False), *body]

    def case(name: str, tensors: list[dict[str, Any]], weights: str, optimizer: str) -> Case:
        return {"name": name, "tensors": tensors, "weights": weights, "optimizer": optimizer}

    return [
        case("FP32, plain SGD", body, "fp32", "sgd"),
        case("FP32, AdamW", [table, *body], "fp32", "adamw"),
        case("FP32, AdamW, output layer tied to the embedding", tied, "fp32", "adamw"),
        case("FP32, AdamW, embedding frozen", frozen, "fp32", "adamw"),
        case("BF16 with FP32 masters, plain SGD", body, "bf16", "sgd"),
        case("BF16 with FP32 masters, AdamW", [table, *body], "bf16", "adamw"),
        case("BF16 with FP32 masters, AdamW, embedding frozen", frozen, "bf16", "adamw"),
    ]


def size_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    return number(answer(case["tensors"], case["weights"], case["optimizer"]))


def _size(case: Case) -> dict[str, float]:
    """What the right rule and each mistake give, in bytes: of each tensor that is stored, added up."""
    tensors, adamw, low = case["tensors"], case["optimizer"] == "adamw", case["weights"] == "bf16"

    def total(
        *, weight: int = 2 if low else 4, moments: int = 8, master: int = 4, gradient: int = 0, count: int = 4,
        ties: bool = False, frozen: bool = False,
    ) -> float:  # fmt: skip
        out = 0.0
        for tensor in tensors:
            if tensor["tied"] and not ties:
                continue
            n, trained = prod(tensor["shape"]), tensor["trained"] or frozen
            out += weight * n
            if trained:
                out += gradient * n + (master * n if low else 0) + (moments * n + count if adamw else 0)
        return out

    return {
        "right": total(),
        "gradients-are-saved": total(gradient=2 if low else 4),
        "weights-are-the-state": total(moments=0, master=0, count=0),
        "one-moment": total(moments=4),
        "every-name-is-a-tensor": total(ties=True),
        "frozen-tensors-have-moments": total(frozen=True),
        "masters-can-be-made-again": total(master=0),
        "moments-in-16-bit": total(moments=4 if low else 8),
        "no counts": total(count=0),
        "count a parameter": total(moments=12, count=0),
    }


SIZE_HINTS = {
    "gradients-are-saved": "you counted gradients. Between two steps, when a checkpoint is written, where are they?",
    "weights-are-the-state": "you counted the weights alone. What does the next update need besides them?",
    "one-moment": "how many running averages does AdamW keep?",
    "every-name-is-a-tensor": "two names are one tensor here. How often is it written?",
    "frozen-tensors-have-moments": "a frozen tensor is never updated. What does the optimizer keep for it?",
    "masters-can-be-made-again": (
        "the FP32 masters are missing. Can they be had from the 16-bit weights, which are rounded?"
    ),
    "moments-in-16-bit": "in which format does the optimizer keep its averages?",
    "no counts": "nearly: AdamW also keeps a step count for each tensor that it updates, 4 bytes",
    "count a parameter": "AdamW's step count is one number for a tensor, not for a parameter",
}


def size_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact: bytes are whole numbers. Oracle: every stored tensor's bytes, added up."""
    if "number" not in returned:
        if returned["type"] == "NoneType":
            return Wrong("nothing came back. Does every path end in a `return`?", form=True)
        return no_number(returned)
    got, guesses = returned["number"], _size(case)
    if got == guesses["right"]:
        return None
    message = f"{got:,.0f} bytes; "
    earlier = [_size(c) for c in takewhile(lambda c: c["name"] != case["name"], size_cases(0))]
    for rule, hint in SIZE_HINTS.items():  # a mistake that would have shown in an earlier case is another one
        if got == guesses[rule] and all(book[rule] == book["right"] for book in earlier):
            return Wrong(message + hint, rule if rule in SIZE.misconceptions else None)
    return Wrong(message + "list what is stored of each tensor, one line each")


SIZE = Exercise(
    id="checkpoint-size",
    title="How large is a checkpoint?",
    cases=size_cases,
    run=size_run,
    judge=size_judge,
    misconceptions={
        "gradients-are-saved": "a checkpoint holds gradients",
        "weights-are-the-state": "a checkpoint is the weights",
        "one-moment": "AdamW keeps one average",
        "every-name-is-a-tensor": "tied tensors are written twice",
        "frozen-tensors-have-moments": "the optimizer keeps averages of every tensor",
        "masters-can-be-made-again": "the FP32 masters can be had from the 16-bit weights",
        "moments-in-16-bit": "the averages have the format of the weights",
    },
)


def question(exercise: str, variant: int = 0) -> None:
    """Print the small run's source (`small-run`), or a reasoning exercise's text (`which-part`, `weights-only`)."""
    if exercise == "small-run":
        print(small_run_text())
        return
    ask({"which-part": left_out_text, "weights-only": weights_only_text}, exercise, variant)


EXERCISES = [SIZE, FORGOTTEN, DRILL, WHICH_PART, CRASH, WEIGHTS_ONLY]

check = make_check("06", EXERCISES)
